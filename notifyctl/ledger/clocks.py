"""Facts about the ledger itself that an administrator asks for or corrects, outside any transaction of its clock.

A ledger whose clock mark lies far ahead refuses ordinary transactions, so these use the driver's connection.
"""

from __future__ import annotations

from typing import Any


def instance(connection: Any) -> str | None:
    """The name of the instance that the ledger belongs to."""
    row = connection.execute("SELECT value FROM notify_meta WHERE key = 'instance'").fetchone()
    return str(row[0]) if row else None


def reset(connection: Any) -> None:
    """SQLite: forget the high-water mark and the offset, so that the host's wall clock is the ledger's time again."""
    connection.execute(
        "UPDATE notify_meta SET value = CASE key WHEN 'clock_mark' THEN '' ELSE '0' END "
        "WHERE key IN ('clock_mark', 'clock_offset')"
    )
