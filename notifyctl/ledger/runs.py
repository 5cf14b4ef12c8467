"""The record of runs: one row for each tick that did something, and the open ledger that each of them needs."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from typing import Any

from notifyctl import __version__, clock
from notifyctl.failpoints import watched
from notifyctl.keys import Keys
from notifyctl.ledger import schema
from notifyctl.ledger.database import Ledger, Tx


def new_id() -> str:
    """A run's name: sorts by time, random enough that no two hosts ever share one."""
    return f"{clock.wall():%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"


def open_ledger(url: str, instance: str, *, patience: float = 10.0, connection: Any = None) -> Ledger:
    """Connect, and check that version and instance fit. Raises ConfigError or LedgerUnavailable."""
    ledger = Ledger(url, patience=patience, connection=connection)
    ledger.watch(watched)
    try:
        ledger.look(lambda connection: schema.check(connection, ledger.dialect.name, instance))
    except BaseException:
        ledger.close()
        raise
    return ledger


def keys(ledger: Ledger) -> Keys:
    """The ledger's derived keys."""
    return Keys(ledger.read(lambda tx: tx.execute("SELECT value FROM notify_meta WHERE key = 'secret'"))[0][0])


def start(tx: Tx, run: str, command: str) -> None:
    """Open a run's record; repeating it changes nothing."""
    tx.execute(
        """INSERT INTO notify_run (id, command, host, pid, version, started)
        VALUES (:id, :command, :host, :pid, :version, :now) ON CONFLICT (id) DO NOTHING""",
        id=run, command=command, host=os.uname().nodename, pid=os.getpid(), version=__version__,
    )  # fmt: skip


def finish(tx: Tx, run: str, exit_code: int, counts: Mapping[str, Any]) -> None:
    """Close a run's record with its exit code and counts."""
    tx.execute(
        "UPDATE notify_run SET finished = :now, exit_code = :exit_code, counts = :counts WHERE id = :id",
        id=run, exit_code=exit_code, counts=json.dumps(counts),
    )  # fmt: skip
