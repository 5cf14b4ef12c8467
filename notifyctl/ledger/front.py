"""Is anything due? The one question of an idle tick, answered with the database driver alone.

`ask` says "no" only when it is certain: version and instance are right, the ledger's clock has not stepped back, and
no work row of this command's is eligible. Whatever else it sees, a fault included, is left to the ordinary way, which
judges and reports it. On SQLite nothing is written, not even a lock file; on Postgres the connection is handed on.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

# `schema`'s own numbers (a test compares): importing it would cost more than the question.
SCHEMA_VERSION = 1
READER = 1
STALE = 120  # seconds a receipt check may be due before reconcile looks at it: poll-receipts comes first

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from typing import Any

    from notifyctl.ledger.database import Ledger

_DUE = """EXISTS (SELECT 1 FROM notify_work WHERE step = '{step}' AND lane IN ({lanes}) AND region = {region}
    AND eligible_at <= {now})"""

# An attempt whose exchange deadline has passed: every tick marks it, so a host that only dispatches shows it too.
_LAPSED = """EXISTS (SELECT 1 FROM notify_work w JOIN notify_delivery d ON d.id = w.delivery_id
    WHERE w.step = 'resolve' AND w.lane IN ({lanes}) AND w.region = {region} AND w.eligible_at <= {now}
      AND d.state = 'sending')"""

# A feed or a mailbox is read at its own times: one of those configured has no cursor yet, or its time has come.
_UNREAD = """(SELECT count(*) FROM notify_cursor WHERE transport IN ({feeds}) AND eligible_at > {now}) < {feed_count}"""

# Receipts that nobody has looked for since: poll-receipts is not running, or their deadline has passed.
_OVERDUE = _DUE.replace("{step}", "check").replace("{now}", "{stale}")

_EXPIRED = """EXISTS (SELECT 1 FROM notify_delivery d CROSS JOIN notify_work w
    WHERE w.delivery_id = d.id AND d.expires_at <= {now} AND d.expires_at IS NOT NULL AND d.accepted_at IS NULL
      AND d.settled_at IS NULL
      AND d.doubt_since IS NULL AND w.step = 'send' AND w.lane IN ({lanes}) AND w.region = {region}
      AND (w.owner IS NULL OR w.eligible_at <= {now}))"""

# What each tick has to do: if none of its conditions holds, it is idle.
DUTIES: dict[str, tuple[str, ...]] = {
    "dispatch": (_DUE.replace("{step}", "send"), _LAPSED),
    "poll-receipts": (_DUE.replace("{step}", "check"), _LAPSED, _UNREAD),
    "reconcile": (_DUE.replace("{step}", "resolve"), _OVERDUE, _EXPIRED),
}

_QUESTION = """SELECT (SELECT max(version) FROM notify_schema), (SELECT max(min_reader) FROM notify_schema),
  (SELECT value FROM notify_meta WHERE key = 'instance'), (SELECT value FROM notify_meta WHERE key = 'clock_mark'),
  """


def ask_sqlite(
    path: str, command: str, *, instance: str, lanes: Sequence[str], region: str, feeds: Sequence[str] = ()
) -> bool:
    """Whether this tick certainly has nothing to do. Never raises for what the ordinary way can judge better."""
    import sqlite3

    try:
        connection = _open(path)
        if connection is None:
            return False
        try:
            now = _now()
            names = {
                "lanes": ", ".join(f"?{n + 3}" for n in range(len(lanes))), "region": "?2", "now": "?1",
                "feeds": ", ".join(f"?{n + 3 + len(lanes)}" for n in range(len(feeds))), "feed_count": len(feeds),
                "stale": f"strftime('%Y-%m-%d %H:%M:%f', ?1, '-{STALE} seconds')",
            }  # fmt: skip
            sql = _QUESTION + " OR ".join(duty.format(**names) for duty in _duties(command, feeds))
            row = connection.execute(sql, (now, region, *lanes, *feeds)).fetchone()
        finally:
            connection.close()
    except sqlite3.Error:
        return False
    return _idle(row, instance) and now >= (row[3] or "")


def ask_postgres(
    ledger: Ledger, command: str, *, instance: str, lanes: Sequence[str], region: str, feeds: Sequence[str] = ()
) -> bool:
    """The same on an open ledger, by the server's clock, in one statement outside any transaction."""
    import psycopg

    names = {
        "lanes": ", ".join(["%s"] * len(lanes)), "region": "%s", "now": "now()",
        "feeds": ", ".join(["%s"] * len(feeds)), "feed_count": len(feeds),
        "stale": f"now() - interval '{STALE} seconds'",
    }  # fmt: skip
    duties = _duties(command, feeds)
    sql = _QUESTION + " OR ".join(duty.format(**names) for duty in duties)
    values = [value for duty in duties for value in (feeds if duty is _UNREAD else (*lanes, region))]
    try:
        row = ledger.connection.execute(sql, values).fetchone()
    except psycopg.Error:
        return False
    return _idle(row, instance)


def _duties(command: str, feeds: Sequence[str]) -> list[str]:
    return [duty for duty in DUTIES[command] if feeds or duty is not _UNREAD]


def _idle(row: Sequence[Any], instance: str) -> bool:
    version, min_reader, name, _, due = row
    return (version or 0) >= SCHEMA_VERSION and (min_reader or 0) <= READER and name == instance and not due


def _now() -> str:
    """This host's wall clock as SQLite columns hold it; without `datetime`'s objects it is one call."""
    import time

    seconds, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(seconds))}.{nanoseconds // 1000:06d}"


def _open(path: str) -> sqlite3.Connection | None:
    """The ledger, read-only. None: this way cannot read it without writing, or there is none.

    With a write-ahead log present, another process is (or was) at work, and `mode=ro` joins its shared memory. Without
    one the file is complete, and opening it in the usual way would create log and shared memory only to read: so it
    is opened as immutable. Should a writer arrive in that millisecond, the worst answer is one idle tick too many.
    """
    import sqlite3

    if os.path.exists(path + "-journal") or not os.path.exists(path):
        return None
    logged = os.path.exists(path + "-wal")
    quoted = path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    uri = f"file:{quoted}?{'mode=ro' if logged else 'mode=ro&immutable=1'}"
    return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=0)
