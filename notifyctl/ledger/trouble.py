"""What the databases' errors mean: run the transaction again, reconnect, or tell a person. Never quotes their text."""

from __future__ import annotations

import os
import random
import sqlite3
import time
from pathlib import Path
from typing import Any

from notifyctl.errors import ConfigError, LedgerUnavailable, NotifyctlError

# serialization_failure, deadlock_detected, lock_not_available: the whole transaction is run again
_RETRIED = frozenset({"40001", "40P01", "55P03"})
_LITTLE = 64 << 10  # bytes: what SQLite's shared memory and a page of its log need
_REFUSED = ("password authentication", "no pg_hba.conf entry", "no password supplied", "does not exist")


class Again(Exception):
    """The transaction may be run again; `lost`: on a new connection. `reported` is raised when patience ends."""

    def __init__(self, reported: NotifyctlError, *, lost: bool = False) -> None:
        super().__init__(str(reported))
        self.reported = reported
        self.lost = lost


def pause() -> None:
    """Short, even, jittered steps: a back-off that grows lets late arrivals win the lock again and again."""
    time.sleep(0.001 * random.uniform(0.5, 1.5))  # noqa: S311  (jitter)


def sqlite_error(error: sqlite3.Error, path: Path, patience: float) -> Exception | None:
    """What an error of SQLite means for us; None: a bug of ours."""
    code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Again(
            LedgerUnavailable(
                f"the ledger {path} stayed locked by another process for {patience:g} s",
                hint="see who holds it (lsof), or raise [ledger] patience; the next run tries again",
                code="ledger_locked",
            )
        )
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return ConfigError(
            f"the ledger {path} cannot be written",
            hint="the file and its folder must be writable by the user that runs notifyctl",
            code="ledger_read_only",
        )
    if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
        # what cannot even open its log or shared memory on a full disk only says that input or output failed
        cause = "the disk is full" if code == sqlite3.SQLITE_FULL or _full(path) else "input/output error"
        return LedgerUnavailable(
            f"the ledger {path} cannot be written: {cause}",
            hint="free some space; nothing that was recorded is lost",
            code="disk",
        )
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return ConfigError(f"{path} is not a usable SQLite database", hint="restore a backup", code="ledger")
    return None


def _full(path: Path) -> bool:
    try:
        disk = os.statvfs(path.parent)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < _LITTLE


def postgres_error(error: Exception, connection: Any) -> Exception | None:
    """What a psycopg error means for us; None: not an error of the database. Never quotes the server's text."""
    import psycopg

    if not isinstance(error, psycopg.Error):
        return None
    state = error.sqlstate or ""
    closed = connection is None or connection.closed or connection.broken
    if state in _RETRIED and not closed:
        return Again(
            LedgerUnavailable(
                "the ledger's rows stayed locked by another transaction",
                hint="look for long transactions in pg_stat_activity; the next run tries again",
                code="ledger_locked",
            )
        )
    text = "" if state else str(error)  # a refused connection has no SQLSTATE
    if state in ("28P01", "28000", "3D000", "42501") or any(sign in text for sign in _REFUSED):
        return ConfigError(
            f"Postgres refuses the ledger's connection or a statement (SQLSTATE {state or '28P01'})",
            hint="check user, password, database and grants of ledger.url",
            code="ledger_refused",
        )
    ended = state[:2] in ("53", "57", "58", "08") or state in ("25P03", "25P04")  # 25P…: the transaction took too long
    if ended or (closed and isinstance(error, psycopg.OperationalError)):
        full = state == "53100"
        return Again(
            LedgerUnavailable(
                "Postgres is out of disk" if full else "the ledger's Postgres server cannot be reached",
                hint="nothing that was recorded is lost; the next run tries again",
            ),
            lost=True,
        )
    if state == "25006":
        return LedgerUnavailable("the ledger's Postgres server is read-only", hint="is it a standby?", code="read_only")
    return None
