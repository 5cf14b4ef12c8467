"""Retention: what ended long ago is removed, a page per transaction, with all that was noted of it.

What is still to happen, in doubt, or waits for a person (`dead_letter`, `unresolved`) stays however old it is. So do
keys (no event is ever sent twice), endpoints, consents, suppressions, templates and runs.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from functools import partial
from typing import Any

from notifyctl.ledger.database import Ledger, Tx, ids
from notifyctl.model import State

ENDED = (
    State.ACCEPTED, State.DELIVERED, State.PERMANENT_FAILURE, State.SUPPRESSED, State.EXPIRED, State.CANCELLED,
)  # fmt: skip
PAGE = 500  # deliveries per transaction, so that nobody waits long for a lock

# An accepted delivery that awaits its receipt has a work row. Nothing is settled before it was created, so the index of
# creation times bounds what is read.
_MAY_GO = """d.created_at < :before AND d.settled_at < :before AND d.doubt_since IS NULL
  AND d.state IN (SELECT state FROM {s: state text})
  AND NOT EXISTS (SELECT 1 FROM notify_work w WHERE w.delivery_id = d.id)"""

_COUNT = f"SELECT d.state, count(*) FROM notify_delivery d WHERE {_MAY_GO} GROUP BY d.state"

_FIND = f"""SELECT d.id, d.created_at FROM notify_delivery d
  WHERE (d.created_at > :at OR (d.created_at = :at AND d.id > :after)) AND {_MAY_GO}
  ORDER BY d.created_at, d.id LIMIT :size"""

# Asked again under the row's lock: what somebody has requeued meanwhile is not removed.
_DELETE = """DELETE FROM notify_delivery WHERE id IN (SELECT id FROM {o: id bigint})
  AND settled_at < :before AND doubt_since IS NULL AND state IN (SELECT state FROM {s: state text})
  AND NOT EXISTS (SELECT 1 FROM notify_work w WHERE w.delivery_id = notify_delivery.id)
  RETURNING id, state"""

_NOTES = [
    f"DELETE FROM notify_{table} WHERE delivery_id IN (SELECT id FROM {{o: id bigint}})"
    for table in ("attempt", "receipt", "transition")
]

_STATES = [(state,) for state in ENDED]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def count(tx: Tx, before: datetime) -> dict[str, int]:
    """How many deliveries would go, by state."""
    return dict(tx.execute(_COUNT, before=before, s=_STATES))


def prune(ledger: Ledger, before: datetime) -> dict[str, int]:
    """Remove what was settled before that instant; how many, by state. Safe to stop and to run again."""
    gone: Counter[str] = Counter()
    last: tuple[int, Any] | None = (0, _EPOCH)
    while last is not None:
        states, last = ledger.transact(partial(_page, before, *last))
        gone.update(states)
    return dict(gone)


def _page(before: datetime, after: int, at: Any, tx: Tx) -> tuple[list[str], tuple[int, Any] | None]:
    """The states of what was removed, and where the next page begins; None: there is none."""
    found = tx.execute(_FIND, at=at, after=after, before=before, size=PAGE, s=_STATES)
    if not found:
        return [], None
    removed = tx.execute(_DELETE, o=ids(row[0] for row in found), before=before, s=_STATES)
    if removed:
        tx.execute_all(_NOTES, o=ids(row[0] for row in removed))
    return [state for _, state in removed], tuple(found[-1])
