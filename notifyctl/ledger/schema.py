"""The ledger's schema: which numbered SQL files are applied, applying the rest, and whether this is the right ledger.

A file of schema/<dialect>/ and its row in notify_schema are one transaction, so a migration that is killed has not
happened and is simply run again, and two at once wait for each other. Nothing outside the tables `notify_…` is
touched. A file is never edited once released: its checksum is compared. Its first line `-- min_reader: N` names the
oldest tool (READER) that may still use a ledger to which it was applied, so additive files leave older hosts working.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import re
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, TypeVar

from notifyctl.errors import ConfigError, LedgerUnavailable, NotifyctlError

T = TypeVar("T")

SCHEMA_VERSION = 1  # the last file this tool was written for
READER = 1  # what this tool can read: a ledger whose files ask for more is refused

_ADVISORY_LOCK = 0x6E6F_7469_6679  # "notify": whoever migrates this Postgres database holds it until the commit
_RETRIED = ("55P03", "40P01", "40001")  # lock_not_available, deadlock_detected, serialization_failure
# While a change of the tables waits for a lock, whoever writes to them waits behind it. So it asks for a moment only,
# lets the others pass, and asks again: no writer is held up for longer by a lock that somebody else keeps.
LOCK_WAIT = 1.0  # seconds
_PASS = 0.3

_HEADER = re.compile(r"-- min_reader: (\d+)\n")
_MIGRATE = "run: notifyctl migrate"


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered file; `checksum` is the SHA-256 of its text with Unix line ends."""

    version: int
    name: str
    checksum: str
    min_reader: int
    sql: str = field(repr=False)


def folder(dialect: str) -> Traversable:
    """Where the numbered files of "sqlite" or "postgresql" lie: inside the wheel, or beside an editable checkout."""
    packaged = files("notifyctl") / "schema" / dialect
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "schema" / dialect


def migrations(dialect: str) -> list[Migration]:
    """All known files, in order."""
    found = []
    for file in folder(dialect).iterdir():
        if not re.fullmatch(r"\d{4}_\w+\.sql", file.name):
            continue
        text = file.read_text(encoding="utf-8").replace("\r\n", "\n")
        header = _HEADER.match(text)
        assert header is not None, f"{file.name} lacks its first line -- min_reader: N"
        checksum = hashlib.sha256(text.encode()).hexdigest()
        found.append(Migration(int(file.name[:4]), file.name[:-4], checksum, int(header[1]), text))
    return sorted(found, key=lambda m: m.version)


def pending(connection: Any, dialect: str) -> list[Migration]:
    """The files not yet applied. Raises ConfigError where an applied one differs, or the ledger is too new."""
    applied = _applied(connection, dialect)
    waiting = []
    for migration in migrations(dialect):
        checksum = applied.get(migration.version, ("", 0))[0]
        if not checksum:
            waiting.append(migration)
        elif checksum != migration.checksum:
            raise ConfigError(
                f"schema file {dialect}/{migration.name}.sql is not the one that was applied to this ledger",
                hint="install the notifyctl release that made the ledger, or one after it; never edit an applied file",
                code="schema_changed",
            )
    _check_reader(max((reader for _, reader in applied.values()), default=0))
    return waiting


def migrate(connection: Any, dialect: str, instance: str, *, lock_timeout: float = 5.0) -> list[Migration]:
    """Apply what is pending and name a new ledger `instance`; returns what was applied, empty: nothing to do.

    `connection` is the driver's own (sqlite3 with isolation_level=None, psycopg with autocommit). `lock_timeout`: how
    many seconds another process's lock is waited for, on Postgres LOCK_WAIT at a time. Safe to run again after being
    killed, and twice at once.
    Raises ConfigError, or LedgerUnavailable when the lock was not free in time; then nothing has been changed.
    """
    done = []
    for migration in pending(connection, dialect):
        if _transact(connection, dialect, lock_timeout, partial(_apply, connection, dialect, migration, instance)):
            done.append(migration)
    if not done and not _seeded(connection, dialect):  # the files were applied by hand, from `migrate --sql`
        _transact(connection, dialect, lock_timeout, partial(_seed, connection, dialect, instance))
    return done


def sql(dialect: str, since: int = 0) -> str:
    """What `migrate` would run on a ledger at version `since` (0: none yet), for a person to review and apply.

    Run `notifyctl migrate` afterwards: it finds the files applied, and writes instance and secret with no DDL right.
    """
    begin = "BEGIN IMMEDIATE;" if dialect == "sqlite" else "BEGIN;"
    parts = [
        f"{begin}\n\n{m.sql}\n"
        f"INSERT INTO notify_schema (version, name, checksum, min_reader)\n"
        f"  VALUES ({m.version}, '{m.name}', '{m.checksum}', {m.min_reader});\n\nCOMMIT;\n"
        for m in migrations(dialect)
        if m.version > since
    ]
    return "\n".join(parts)


def adopt_instance(connection: Any, dialect: str, instance: str) -> str:
    """Make this ledger `instance`'s, as after a deliberate copy or restore; returns the name it had."""
    rows = _rows(connection, dialect, "SELECT value FROM notify_meta WHERE key = 'instance'")
    _rows(connection, dialect, "UPDATE notify_meta SET value = ? WHERE key = 'instance'", instance)
    return str(rows[0][0]) if rows else ""


def check(connection: Any, dialect: str, instance: str) -> None:
    """Whether this tool may use this ledger under this instance's name. Raises ConfigError naming what to do."""
    facts = """SELECT (SELECT max(version) FROM notify_schema), (SELECT max(min_reader) FROM notify_schema),
      (SELECT value FROM notify_meta WHERE key = 'instance')"""
    with _missing_tables_are_none():
        version, reader, name = _rows(connection, dialect, facts)[0]
        _check_reader(reader or 0)
        if (version or 0) < SCHEMA_VERSION:
            raise ConfigError(
                f"the ledger is at schema version {version or 0}, this notifyctl needs {SCHEMA_VERSION}",
                hint=_MIGRATE, code="ledger_too_old",
            )  # fmt: skip
        if name is None:
            raise ConfigError("the ledger has no instance yet", hint=_MIGRATE, code="no_instance")
        if name != instance:
            raise ConfigError(
                f'this ledger belongs to instance "{name}", the configuration says "{instance}"',
                hint="a copy must not send again what its original sends; if it is meant to be yours now: "
                "notifyctl migrate --adopt-instance",
                code="wrong_instance",
            )
        return
    raise ConfigError("the database holds no notifyctl tables", hint=_MIGRATE, code="no_ledger")


# -- inside ------------------------------------------------------------------------------------------------------


def _rows(connection: Any, dialect: str, text: str, *values: object) -> list[Any]:
    if dialect == "postgresql" and values:
        text = text.replace("?", "%s")
    cursor = connection.execute(text, values) if values else connection.execute(text)
    return cursor.fetchall() if cursor.description else []


def _state(error: Exception) -> str:
    """The SQLSTATE of a psycopg error, without importing psycopg on SQLite."""
    return getattr(error, "sqlstate", None) or ""


@contextlib.contextmanager
def _missing_tables_are_none() -> Iterator[None]:
    try:
        yield
    except NotifyctlError:
        raise
    except Exception as error:
        missing = isinstance(error, sqlite3.OperationalError) and str(error).startswith("no such table: notify_")
        if not missing and _state(error) != "42P01":  # undefined_table
            raise


def _applied(connection: Any, dialect: str) -> dict[int, tuple[str, int]]:
    exists = {
        "sqlite": "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'notify_schema'",
        "postgresql": "SELECT count(*) FROM pg_class WHERE oid = to_regclass('notify_schema')",
    }[dialect]
    if not _rows(connection, dialect, exists)[0][0]:
        return {}
    found = _rows(connection, dialect, "SELECT version, checksum, min_reader FROM notify_schema")
    return {version: (checksum, min_reader) for version, checksum, min_reader in found}


def _check_reader(min_reader: int) -> None:
    if min_reader > READER:
        raise ConfigError(
            f"a newer notifyctl has changed this ledger: it asks for reader {min_reader}, this one is {READER}",
            hint="update notifyctl on this host", code="ledger_too_new",
        )  # fmt: skip


def _apply(connection: Any, dialect: str, migration: Migration, instance: str) -> bool:
    """Inside a transaction that holds the lock; False: another process was faster."""
    if migration.version in _applied(connection, dialect):
        return False
    if dialect == "postgresql" and _rows(connection, dialect, "SELECT current_schema()")[0][0] is None:
        raise ConfigError(
            "no schema of this database can hold the ledger's tables",
            hint="create one, and name it in the role's search_path: ALTER ROLE … SET search_path = …",
            code="no_schema",
        )
    for statement in statements(migration.sql) if dialect == "sqlite" else [migration.sql]:
        connection.execute(statement)
    _rows(
        connection, dialect, "INSERT INTO notify_schema (version, name, checksum, min_reader) VALUES (?, ?, ?, ?)",
        migration.version, migration.name, migration.checksum, migration.min_reader,
    )  # fmt: skip
    _seed(connection, dialect, instance)
    return True


def statements(text: str) -> Iterator[str]:
    """The statements of an SQLite file one by one (sqlite3's executescript would commit); each ends at a line's end."""
    statement = ""
    for line in text.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _seeded(connection: Any, dialect: str) -> bool:
    return bool(_rows(connection, dialect, "SELECT count(*) FROM notify_meta WHERE key = 'instance'")[0][0])


def _seed(connection: Any, dialect: str, instance: str) -> None:
    """Name the ledger and give it its secret, once."""
    values = {"instance": instance, "secret": secrets.token_hex(32), "clock_offset": "0", "clock_mark": ""}
    for key, value in values.items():
        _rows(
            connection, dialect, "INSERT INTO notify_meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO NOTHING",
            key, value,
        )  # fmt: skip


def _transact(connection: Any, dialect: str, lock_timeout: float, work: Callable[[], T]) -> T:
    """Run `work` alone, in one transaction; wait for the lock at most `lock_timeout` seconds."""
    give_up = time.monotonic() + lock_timeout
    while True:
        try:
            if dialect == "sqlite":
                connection.execute("BEGIN IMMEDIATE")
            else:
                connection.execute("BEGIN")
                wait = min(LOCK_WAIT, give_up - time.monotonic())
                connection.execute(f"SET LOCAL lock_timeout = {max(1, round(wait * 1000))}")
                connection.execute(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})")
            result = work()
            connection.execute("COMMIT")
        except BaseException as error:
            with contextlib.suppress(Exception):  # a lost connection has rolled back already
                connection.execute("ROLLBACK")
            if not isinstance(error, Exception):
                raise
            _explain(error, lock_timeout, last=time.monotonic() >= give_up)
            least = _PASS if _state(error) == _RETRIED[0] else 0.005
            time.sleep(random.uniform(least, 2 * least))  # noqa: S311  (jitter)
        else:
            return result


def _explain(error: Exception, lock_timeout: float, *, last: bool) -> None:
    """Return where the transaction should be tried again; otherwise raise what `error` means."""
    code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) or _state(error) in _RETRIED:
        if last:
            raise LedgerUnavailable(
                f"the ledger stayed locked by another process for {lock_timeout:g} s; nothing was changed",
                hint="find the process that holds it, then run notifyctl migrate again",
                code="ledger_locked",
            ) from error
        return
    if _state(error) == "42501":  # insufficient_privilege
        raise ConfigError(
            "the role of ledger.url may not create or change the ledger's tables",
            hint="give the output of notifyctl migrate --sql to somebody who may, then run notifyctl migrate",
            code="ledger_refused",
        ) from error
    raise error
