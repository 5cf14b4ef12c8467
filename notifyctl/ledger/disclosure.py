"""Who has seen an address: one line in a delivery's trail, written and committed before the address is shown.

The line changes nothing (`from` and `to` are the state as it is), has the reason `revealed`, the operator as actor and
the command as note, never an address. A page of deliveries is one statement, a line for each delivery shown. A
recipient's endpoints belong to no delivery: they are shown under the newest delivery of their channel, and a channel
that has none has no trail, so its addresses stay masked. If a COMMIT's reply was lost, the line may be there twice:
a trail may say too much, never too little.
"""

from __future__ import annotations

from collections.abc import Iterable

from notifyctl.ledger.database import Tx, ids
from notifyctl.model import Channel

REASON = "revealed"

_TRAIL = """INSERT INTO notify_transition (delivery_id, at, "from", "to", reason, actor, note)
  SELECT d.id, :now, d.state, d.state, :reason, :actor, :note
  FROM {o: id bigint} JOIN notify_delivery d ON d.id = o.id ORDER BY d.id"""

_NEWEST = """SELECT d.channel, max(d.id) FROM notify_delivery d WHERE d.recipient_id = :recipient GROUP BY d.channel"""


def reveal(tx: Tx, deliveries: Iterable[int], *, actor: str, note: str) -> None:
    """Record that `actor` is about to be shown the addresses of these deliveries by the command `note`."""
    chosen = ids(set(deliveries))
    if chosen:
        tx.execute(_TRAIL, o=chosen, reason=REASON, actor=actor, note=note)


def reveal_recipient(tx: Tx, recipient: str, *, actor: str, note: str) -> set[Channel]:
    """The same of a recipient's endpoints; returns the channels with a trail: only their addresses may be shown."""
    newest = {Channel(channel): delivery for channel, delivery in tx.execute(_NEWEST, recipient=recipient)}
    reveal(tx, newest.values(), actor=actor, note=note)
    return set(newest)
