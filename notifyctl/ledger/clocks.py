"""Facts about the ledger itself that an administrator asks for or corrects, outside any transaction of its clock.

A ledger whose clock mark lies far ahead refuses ordinary transactions, so these use the driver's connection.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from notifyctl.ledger.dialect import SQLITE


def instance(connection: Any) -> str | None:
    """The name of the instance that the ledger belongs to."""
    row = connection.execute("SELECT value FROM notify_meta WHERE key = 'instance'").fetchone()
    return str(row[0]) if row else None


# What a clock that was ahead wrote lies ahead as far as it did: it is brought back by as much, but not into the past.
_BACK = "max(:now, strftime('%Y-%m-%d %H:%M:%f', {0}, :back) || '000')"
_EARLIER = "strftime('%Y-%m-%d %H:%M:%f', {0}, :back) || '000'"
_SEND = "w.step = 'send' AND w.eligible_at > :mark"
_DELIVERY = "SELECT id FROM notify_delivery WHERE"

# What is brought back: a name for people, and the statement. Leases and deadlines of a run that is under way are left
# alone: they are short.
_CORRECTIONS = (
    (
        "due times",
        f"""UPDATE notify_delivery SET due_at = {_BACK.format("due_at")}
        WHERE created_at > :now AND due_at > :now AND abs(julianday(due_at) - julianday(created_at)) * 86400 < 2
          AND settled_at IS NULL""",
    ),
    (
        "retry and check times",
        f"""UPDATE notify_work SET eligible_at = {_BACK.format("eligible_at")}
        WHERE owner IS NULL AND eligible_at > :now AND delivery_id IN (
          SELECT w.delivery_id FROM notify_work w JOIN notify_delivery d ON d.id = w.delivery_id
          WHERE (w.eligible_at > w.due_at AND (d.updated_at > :now OR ({_SEND})))
            OR (w.eligible_at = w.due_at AND w.due_at > d.due_at))""",
    ),
    (
        "leases and deadlines",
        f"""UPDATE notify_work SET eligible_at = {_BACK.format("eligible_at")}
        WHERE owner IS NOT NULL AND eligible_at > :soon""",
    ),
    (
        "gates",
        f"""UPDATE notify_gate SET until = {_BACK.format("until")}, at = {_EARLIER.format("at")}
        WHERE until > :now AND at > :now""",
    ),
    (
        "limits",
        """UPDATE notify_pace SET tat = CASE WHEN tat > :soon OR rate LIKE '% waiting' THEN :now ELSE tat END,
          window_start = CASE WHEN window_start > :now THEN :now ELSE window_start END
        WHERE tat > :soon OR window_start > :now OR (rate LIKE '% waiting' AND tat > :now)""",
    ),
    (
        "first tries and doubts",
        f"""UPDATE notify_delivery SET
          first_tried_at = CASE WHEN first_tried_at > :now THEN {_EARLIER.format("first_tried_at")}
            ELSE first_tried_at END,
          doubt_since = CASE WHEN doubt_since > :now THEN {_EARLIER.format("doubt_since")} ELSE doubt_since END
        WHERE settled_at IS NULL AND (first_tried_at > :now OR doubt_since > :now)""",
    ),
    ("work", ("UPDATE notify_work SET due_at = (SELECT d.due_at FROM notify_delivery d WHERE d.id = delivery_id)"
             f" WHERE delivery_id IN ({_DELIVERY} created_at > :now AND settled_at IS NULL)")),
)  # fmt: skip
_SOON = timedelta(minutes=15)  # longer than leases, deadlines and the slots of limits per minute usually last


def reset(connection: Any, wall: datetime) -> tuple[timedelta, dict[str, int]]:
    """SQLite: make the host's wall clock the ledger's time again, and bring back what a clock ahead of it has written.

    Returns how far ahead the ledger's time was (zero: it was not), and how many values of which kind were corrected.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        row = connection.execute("SELECT value FROM notify_meta WHERE key = 'clock_mark'").fetchone()
        mark = SQLITE.instant(row[0]) if row and row[0] else None
        ahead = max(mark - wall, timedelta(0)) if mark else timedelta(0)
        corrected: dict[str, int] = {}
        if ahead:
            values = {
                "now": SQLITE.time(wall), "soon": SQLITE.time(wall + _SOON), "mark": SQLITE.time(mark),
                "back": f"-{ahead.total_seconds():.6f} seconds",
            }  # fmt: skip
            for name, sql in _CORRECTIONS:
                count = connection.execute(sql, values).rowcount
                if count and name != "work":
                    corrected[name] = count
        connection.execute(
            "UPDATE notify_meta SET value = CASE key WHEN 'clock_mark' THEN '' ELSE '0' END "
            "WHERE key IN ('clock_mark', 'clock_offset')"
        )
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    return ahead, corrected
