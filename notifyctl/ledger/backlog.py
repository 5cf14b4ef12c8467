"""What waits in a lane, and why it has not gone: for reports and dry runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from notifyctl.ledger.database import Tx

Pairs = Sequence[tuple[str, str]]  # (lane, region)

_OLDEST = """SELECT w.lane, min(w.due_at) FROM {p: lane text, region text} JOIN notify_work w
  ON w.step = 'send' AND w.lane = p.lane AND w.region = p.region
  WHERE w.due_at <= :now GROUP BY w.lane"""

_NEXT = """SELECT min(w.eligible_at) FROM {p: lane text, region text} JOIN notify_work w
  ON w.step = 'send' AND w.lane = p.lane AND w.region = p.region"""

_WAITING = """SELECT w.lane, CASE WHEN w.eligible_at <= :now THEN 'due' WHEN w.owner IS NOT NULL THEN 'leased'
    WHEN w.due_at > :now THEN 'scheduled' WHEN d.state = 'temporary_failure' THEN 'retry' ELSE 'deferred' END,
    count(*)
  FROM {p: lane text, region text} JOIN notify_work w ON w.step = 'send' AND w.lane = p.lane AND w.region = p.region
  JOIN notify_delivery d ON d.id = w.delivery_id GROUP BY 1, 2"""


@dataclass(slots=True)
class Waiting:
    """One lane's sends: how many are due now, and how many wait for what."""

    due: int = 0
    held_by: Counter[str] = field(default_factory=Counter)


def oldest_ages(tx: Tx, pairs: Pairs) -> dict[str, float]:
    """Seconds since the oldest due, unaccepted send of each lane was due."""
    ages = {}
    for lane, due_at in tx.execute(_OLDEST, p=list(pairs)):
        due = tx.dialect.instant(due_at)
        assert due is not None
        ages[lane] = round((tx.now - due).total_seconds(), 3)
    return ages


def next_due(tx: Tx, pairs: Pairs) -> datetime | None:
    """When the first send of these lanes is due, retried, or free of its lease; None: nothing waits."""
    return tx.dialect.instant(tx.execute(_NEXT, p=list(pairs))[0][0])


def waiting(tx: Tx, pairs: Pairs) -> dict[str, Waiting]:
    """What waits in each lane, by reason."""
    lanes = {lane: Waiting() for lane, _ in pairs}
    for lane, why, count in tx.execute(_WAITING, p=list(pairs)):
        if why == "due":
            lanes[lane].due += count
        else:
            lanes[lane].held_by[why] += count
    return lanes
