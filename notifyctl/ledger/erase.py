"""Erasure of a person: what was said to whom is emptied, that it was said stays.

Kept are the references (event, recipient), states, times, the keyed digest of the content (so that the same enqueue
again is still a duplicate), and suppressions and consents with their keyed fingerprints: they protect the person.
"""

from __future__ import annotations

from collections.abc import Sequence

from notifyctl.ledger.database import Tx, ids

_OF = """SELECT d.id FROM notify_delivery d WHERE d.recipient_id = :recipient AND d.id > :after
  ORDER BY d.id LIMIT :size"""

# What a server may be receiving at this moment stays whole until that is known.
_EMPTY = """UPDATE notify_delivery SET variables = '{}', attachments = '[]', destination = NULL, fingerprint = NULL,
    updated_at = :now
  WHERE id IN (SELECT id FROM {o: id bigint}) AND state <> 'sending'
    AND (variables <> '{}' OR attachments <> '[]' OR destination IS NOT NULL OR fingerprint IS NOT NULL)
  RETURNING id"""

_ATTEMPTS = "UPDATE notify_attempt SET fingerprint = NULL WHERE delivery_id IN (SELECT id FROM {o: id bigint})"

_TRAIL = """INSERT INTO notify_transition (delivery_id, at, "from", "to", reason, actor, note)
  SELECT d.id, :now, d.state, d.state, 'recipient_erased', :actor, :note
  FROM {o: id bigint} JOIN notify_delivery d ON d.id = o.id ORDER BY d.id"""

_ENDPOINTS = """UPDATE notify_endpoint SET address = '', fingerprint = NULL
  WHERE recipient_id = :recipient AND address <> ''"""

_KNOWN = "SELECT count(*) FROM notify_endpoint WHERE recipient_id = :recipient AND address <> ''"


def page(tx: Tx, recipient: str, after: int, size: int) -> list[int]:
    """The next of the recipient's deliveries, by id."""
    return [row[0] for row in tx.execute(_OF, recipient=recipient, after=after, size=size)]


def empty(tx: Tx, deliveries: Sequence[int], *, actor: str, note: str) -> int:
    """Empty what these deliveries say and to whom; how many had something left."""
    emptied = ids(row[0] for row in tx.execute(_EMPTY, o=ids(deliveries)))
    if emptied:
        tx.execute(_ATTEMPTS, o=emptied)
        tx.execute(_TRAIL, o=emptied, actor=actor, note=note)
    return len(emptied)


def addresses(tx: Tx, recipient: str, *, dry_run: bool = False) -> int:
    """Empty the recipient's addresses, earlier ones too; how many there were."""
    if dry_run:
        return int(tx.execute(_KNOWN, recipient=recipient)[0][0])
    return tx.affected(_ENDPOINTS, recipient=recipient)
