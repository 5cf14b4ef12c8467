"""Connections to the two databases, made the same way by everybody."""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from notifyctl.errors import ConfigError
from notifyctl.ledger.dialect import decode

if TYPE_CHECKING:
    import psycopg


def is_sqlite(url: str) -> bool:
    """Whether `url` names an SQLite file."""
    return url.startswith("sqlite:")


def sqlite_path(url: str) -> Path:
    """The file behind sqlite:///relative or sqlite:////absolute."""
    return Path(url.removeprefix("sqlite:///"))


def conninfo(url: str) -> str:
    """A postgresql+psycopg:// URL as libpq reads it."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme.partition('+')[0]}{separator}{rest}"


def connect_sqlite(path: Path, create: bool) -> sqlite3.Connection:
    """A connection in autocommit that waits for nobody; `create`: make a missing file. Raises ConfigError."""
    if not create and not path.exists():
        raise ConfigError(f"there is no ledger at {path}", hint="make one: notifyctl migrate", code="no_ledger")
    if create:
        _create(path)
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={'rwc' if create else 'rw'}",
        uri=True, isolation_level=None, timeout=0, cached_statements=256,
        check_same_thread=False,  # a COMMIT may be carried out by another, see `Ledger.transact`
    )  # fmt: skip


def set_up_sqlite(connection: sqlite3.Connection, create: bool) -> None:
    """What holds for one connection only; may meet a locked file, and be repeated."""
    if create:
        connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA temp_store = MEMORY")
    # bytes that are no text, stored by somebody else's SQL, are refused row by row, not here
    connection.text_factory = _text


def _create(path: Path) -> None:
    """Make a missing file for its owner alone: a ledger holds addresses, and SQLite's own would follow the umask. Its
    log and shared memory take over this file's mode."""
    with suppress(OSError):  # there already, or not to be made: SQLite says so
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


_text = partial(str, encoding="utf-8", errors="surrogateescape")


def connect_postgres(url: str, patience: float) -> psycopg.Connection[Any]:
    """A connection in autocommit, no server-side prepared statements at first, dead peers noticed by keepalives."""
    import psycopg
    from psycopg.types.json import set_json_loads

    connection = psycopg.connect(
        conninfo(url),
        autocommit=True,
        prepare_threshold=None,
        connect_timeout=max(2, int(patience)),
        application_name="notifyctl",
        keepalives_idle=15,
        keepalives_interval=5,
        keepalives_count=3,
        tcp_user_timeout=30_000,
    )
    set_json_loads(decode, connection)
    return connection
