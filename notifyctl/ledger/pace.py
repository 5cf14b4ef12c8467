"""The limits' state in the ledger: shared by all processes and hosts, taken for a whole group at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta

from notifyctl.ledger.database import Tx
from notifyctl.pacing import LimitKey, Meter

_ADD = """INSERT INTO notify_pace (key, rate) SELECT o.key, o.rate FROM {o: key text, rate text} WHERE true
  ON CONFLICT DO NOTHING"""

_READ = """SELECT p.key, p.rate, p.tat, p.window_start, p.count FROM {o: key text, rate text}
  JOIN notify_pace p ON p.key = o.key AND p.rate = o.rate ORDER BY p.key, p.rate {lock of p}"""

_WRITE = """UPDATE notify_pace SET tat = o.tat, window_start = o.window_start, count = o.count
  FROM {o: key text, rate text, tat timestamptz, window_start timestamptz, count bigint}
  WHERE notify_pace.key = o.key AND notify_pace.rate = o.rate"""


def read(tx: Tx, keys: Iterable[LimitKey]) -> dict[LimitKey, Meter]:
    """The meters of these limits, locked until the transaction ends; new ones begin empty."""
    wanted = sorted(set(keys))
    if not wanted:
        return {}
    at = tx.dialect.instant
    rows = tx.execute(_READ, o=list(wanted))
    if len(rows) < len(wanted):
        tx.execute(_ADD, o=list(wanted))
        rows = tx.execute(_READ, o=list(wanted))
    return {(key, rate): Meter(at(tat), at(start), count) for key, rate, tat, start, count in rows}


def delay(tx: Tx, late: Mapping[LimitKey, timedelta]) -> None:
    """Messages went so much later than their slots: what follows them keeps its distance."""
    meters = read(tx, late)
    for key, meter in meters.items():
        meter.delay(late[key])
    write(tx, meters)


def write(tx: Tx, meters: dict[LimitKey, Meter]) -> None:
    """Keep what was taken."""
    if meters:
        tx.execute(_WRITE, o=[(*key, m.tat, m.window_start, m.count) for key, m in sorted(meters.items())])
