"""A ledger that was restored from a backup does not know what was sent since; it is told that something may have been.

A delivery that a dispatch may have submitted meanwhile gets the attempt that such a dispatch would have opened, under
way from the backup's time until now. What then becomes of it is what becomes of every attempt whose worker was lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from notifyctl.ledger.database import Tx
from notifyctl.model import Channel

REASON = "restored"

# Whoever owned such a row at the backup's time is gone; a dispatch of today that owns it is fenced off.
_WAITING = """notify_work w JOIN notify_delivery d ON d.id = w.delivery_id
  LEFT JOIN notify_endpoint e ON e.id = (SELECT max(n.id) FROM notify_endpoint n
    WHERE n.recipient_id = d.recipient_id AND n.channel = d.channel)
  WHERE w.step = 'send' AND w.delivery_id > :after AND w.due_at <= :now
    AND (w.owner IS NOT NULL OR w.eligible_at <= :now) AND COALESCE(d.destination, e.address, '') <> ''"""

_PAGE = f"""SELECT d.id, d.channel, d.lane, d.transport, d.fingerprint, COALESCE(d.destination, e.address), d.state
  FROM {_WAITING} ORDER BY w.delivery_id LIMIT :limit {{lock of w}}"""

_ATTEMPT = """INSERT INTO notify_attempt (delivery_id, number, run, fencing_token, transport, started, finished, reason,
    fingerprint)
  SELECT o.id, 1 + COALESCE((SELECT max(a.number) FROM notify_attempt a WHERE a.delivery_id = o.id), 0), :run,
    w.fencing_token + 1, o.transport, :since, :now, :reason, o.fingerprint
  FROM {o: id bigint, transport text, fingerprint text} JOIN notify_work w ON w.delivery_id = o.id"""

_WORK = """UPDATE notify_work SET step = 'resolve', owner = NULL, eligible_at = :now, mandate = NULL,
    fencing_token = fencing_token + 1
  WHERE delivery_id IN (SELECT o.id FROM {o: id bigint, transport text, fingerprint text})"""

_DELIVERY = """UPDATE notify_delivery SET state = 'sending', reason = '', updated_at = :now, transport = o.transport,
    first_tried_at = COALESCE(notify_delivery.first_tried_at, :since), fingerprint = o.fingerprint
  FROM {o: id bigint, transport text, fingerprint text} WHERE notify_delivery.id = o.id"""

_TRAIL = """INSERT INTO notify_transition (delivery_id, at, "from", "to", reason, attempt, actor)
  SELECT t.id, :now, t.state, 'sending', :reason, (SELECT max(a.number) FROM notify_attempt a
    WHERE a.delivery_id = t.id), :actor FROM {t: id bigint, state text} WHERE true"""


@dataclass(frozen=True, slots=True)
class Unsure:
    """A delivery that may have been sent since the backup was made; `fingerprint` of the address it was first for."""

    id: int
    channel: Channel
    lane: str
    transport: str | None
    fingerprint: str | None
    address: str
    state: str


def count(tx: Tx) -> int:
    """How many deliveries may have been sent meanwhile."""
    return int(tx.execute(f"SELECT count(*) FROM {_WAITING}", after=0)[0][0])


def page(tx: Tx, after: int, limit: int) -> list[Unsure]:
    """Up to `limit` of them behind delivery `after`, locked."""
    rows: Sequence[Any] = tx.execute(_PAGE, after=after, limit=limit)
    return [Unsure(row[0], Channel(row[1]), *row[2:]) for row in rows]


def doubt(
    tx: Tx, some: Sequence[Unsure], told: Sequence[tuple[int, str, str | None]], *, since: datetime, run: str,
    actor: str,
) -> None:
    """Open for each its attempt; `told`: (id, transport, fingerprint) of those in `some`, in order of id."""
    if not some:
        return
    o = list(told)
    tx.execute(_ATTEMPT, o=o, since=since, run=run, reason=REASON)
    tx.execute(_WORK, o=o)
    tx.execute(_DELIVERY, o=o, since=since)
    tx.execute(_TRAIL, t=[(one.id, one.state) for one in some], actor=actor, reason=REASON)
