"""What `doctor` looks at in the ledger itself; nothing is written, and no transaction of the ledger's clock is opened,
since a clock mark far ahead refuses those.

All functions take the driver's connection, inside `Ledger.look`.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from notifyctl import clock
from notifyctl.ledger.dialect import SQLITE

_STEPS = 10_000  # of SQLite's machine, between two looks at the time


@dataclass(frozen=True, slots=True)
class Version:
    """What the ledger says of itself: its last schema file, the oldest tool that may use it, and whose it is."""

    schema: int
    min_reader: int
    instance: str


@dataclass(frozen=True, slots=True)
class Clock:
    """The host's clock against the ledger's. `ahead`: seconds by which the ledger's is later, negative: the host's is.

    On SQLite the ledger's is the mark of its last write (`mark`), which a right clock is behind of never: `ahead` is 0
    or more; `offset` is what is added to the host's clock at present. On Postgres it is the server's.
    """

    ahead: float
    offset: float = 0.0
    mark: datetime | None = None


def version(connection: Any) -> Version:
    """Schema version, min_reader and instance; the tables must be there."""
    row = connection.execute(
        """SELECT (SELECT max(version) FROM notify_schema), (SELECT max(min_reader) FROM notify_schema),
        (SELECT value FROM notify_meta WHERE key = 'instance')"""
    ).fetchone()
    return Version(row[0] or 0, row[1] or 0, row[2] or "")


def defect(connection: Any, dialect: str, seconds: float) -> str:
    """What is wrong with the database under the ledger; "": nothing was found within about `seconds`."""
    return _sqlite_defect(connection, seconds) if dialect == "sqlite" else _postgres_defect(connection)


def unwritable(path: Path) -> bool:
    """Whether this user may not write an SQLite ledger: the file, and beside it the log that every writer needs."""
    return not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK | os.X_OK))


def reading(connection: Any, dialect: str, wall: Callable[[], datetime] = clock.wall) -> Clock:
    """How this host's clock (`wall`) stands to the ledger's."""
    if dialect == "sqlite":
        found = connection.execute("SELECT key, value FROM notify_meta WHERE key IN ('clock_mark', 'clock_offset')")
        values = dict(found.fetchall())
        mark = SQLITE.instant(values.get("clock_mark") or None)
        ahead = max(0.0, (mark - wall()).total_seconds()) if mark else 0.0
        return Clock(ahead, float(values.get("clock_offset") or 0), mark)
    best: tuple[float, float] | None = None
    for _ in range(3):  # the quickest answer tells it best
        before = wall()
        (server,) = connection.execute("SELECT clock_timestamp()").fetchone()
        took = (wall() - before).total_seconds()
        ahead = (server.astimezone(UTC) - before).total_seconds() - took / 2
        best = min(best, (took, ahead)) if best else (took, ahead)
    assert best is not None
    return Clock(best[1])


def _sqlite_defect(connection: Any, seconds: float) -> str:
    (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    if mode != "wal":
        return f"its journal mode is {mode}, not wal: readers and writers stop each other"
    over = clock.monotonic() + seconds
    connection.set_progress_handler(lambda: clock.monotonic() >= over, _STEPS)
    try:
        (said,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
            raise
        return ""
    finally:
        connection.set_progress_handler(None, 0)
    return "" if said == "ok" else "SQLite finds its file damaged"


def _postgres_defect(connection: Any) -> str:
    recovering, invalid, refused = connection.execute(
        """SELECT pg_is_in_recovery(),
        (SELECT count(*) FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
          WHERE starts_with(c.relname, 'notify_') AND pg_table_is_visible(c.oid) AND NOT i.indisvalid),
        (SELECT count(*) FROM pg_class c
          WHERE c.relname IN ('notify_delivery', 'notify_work', 'notify_attempt', 'notify_run')
          AND pg_table_is_visible(c.oid) AND NOT (has_table_privilege(c.oid, 'SELECT')
            AND has_table_privilege(c.oid, 'INSERT') AND has_table_privilege(c.oid, 'UPDATE')))"""
    ).fetchone()
    if recovering:
        return "the server is a standby, which nothing can be written to"
    if refused:
        return "its role may not read and write all of the ledger's tables"
    return f"{invalid} of its indexes are invalid, as after a failed CREATE INDEX CONCURRENTLY" if invalid else ""
