"""A fresh ledger for every history, on either database, whose clock is the model's own.

SQLite: the tool's `wall` is replaced. Postgres: a function `now()` of the test database comes before the built-in one
in its search path, so that every statement of the tool, its triggers and defaults included, runs on the model's time.
Nothing is flushed to disk: what survives a crash of the machine is proved elsewhere.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg

from notifyctl.ledger import schema, templates
from notifyctl.ledger.database import Ledger
from notifyctl.model import Template
from tests.ledger.databases import Database
from tests.model.truth import Clock
from tests.postgres import Cluster

TEMPLATES = [
    Template("note", "1", {("", "subject"): "Note {{ n }}", ("", "text"): "Number {{ n }}."}),
    Template("note", "2", {("", "subject"): "A note {{ n }}", ("", "text"): "The number is {{ n }}."}),
]

_OWN_TIME = """
CREATE TABLE model_clock (at timestamptz NOT NULL);
INSERT INTO model_clock VALUES ('2031-03-03 09:00:00+00');
CREATE FUNCTION public.now() RETURNS timestamptz LANGUAGE sql STABLE AS 'SELECT at FROM public.model_clock';
ALTER DATABASE "{name}" SET search_path = public, pg_catalog;
ALTER DATABASE "{name}" SET synchronous_commit = off;
"""
_KEPT = ("notify_schema", "notify_meta", "notify_template")


class Bench:
    """One database, emptied for each history."""

    def __init__(self, dialect: str, folder: Path, cluster: Cluster | None = None) -> None:
        self.dialect = dialect
        self.folder = folder
        self.clock = Clock()
        self._opened: list[Ledger] = []
        if cluster is None:
            self._template = folder / "template.db"
            self._migrate(sqlite3.connect(self._template, isolation_level=None))
            self.url = f"sqlite:///{folder / 'ledger.db'}"
        else:
            self.url = cluster.create_database(name="model")
            with psycopg.connect(self.url, autocommit=True) as connection:
                connection.execute(_OWN_TIME.format(name="model"))
            self._migrate(psycopg.connect(self.url, autocommit=True))
        self.observer: Database | None = None

    def _migrate(self, connection: Any) -> None:
        if self.dialect == "sqlite":
            connection.execute("PRAGMA journal_mode = WAL")
        schema.migrate(connection, self.dialect, "test")
        connection.close()
        url = self.url if self.dialect == "postgresql" else f"sqlite:///{self._template}"
        ledger = Ledger(url)
        ledger.transact(lambda tx: templates.publish(tx, TEMPLATES))
        if self.dialect == "sqlite":
            ledger.connection.execute("UPDATE notify_meta SET value = '' WHERE key = 'clock_mark'")
            ledger.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        ledger.close()

    def fresh(self) -> Database:
        """Forget everything; the raw connection to look at what is stored."""
        self.clock.passed = self.clock.skew = 0.0
        if self.dialect == "postgresql":
            self.observer = self.observer or Database(self.url)
            named = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename LIKE 'notify%'"
            tables = ", ".join(name for (name,) in self.observer.execute(named) if name not in _KEPT)
            self.observer.execute(f"TRUNCATE {tables} RESTART IDENTITY")
            self.tell_time()
            return self.observer
        self.close()
        for suffix in ("", "-wal", "-shm"):
            (self.folder / f"ledger.db{suffix}").unlink(missing_ok=True)
        shutil.copyfile(self._template, self.folder / "ledger.db")
        self.observer = Database(self.url)
        self.observer.execute("PRAGMA synchronous = OFF")
        return self.observer

    def ledger(self, number: int) -> Ledger:
        """The connection of one process."""
        while len(self._opened) <= number:
            ledger = Ledger(self.url)
            ledger.wall = self.clock.wall
            if self.dialect == "sqlite":
                ledger.connection.execute("PRAGMA synchronous = OFF")
            self._opened.append(ledger)
        return self._opened[number]

    def tell_time(self) -> None:
        """Postgres: the server's clock is true time."""
        if self.dialect == "postgresql":
            assert self.observer is not None
            self.observer.execute("UPDATE model_clock SET at = ?", self.clock.now())

    def ledger_now(self) -> datetime:
        """The ledger's time."""
        return self.ledger(0).read(lambda tx: tx.now)

    def idle(self) -> bool:
        """Whether none of the processes has a transaction open."""
        if self.dialect == "sqlite":
            return not any(ledger.connection.in_transaction for ledger in self._opened)
        idle = psycopg.pq.TransactionStatus.IDLE
        return all(ledger.connection.info.transaction_status == idle for ledger in self._opened)

    def close(self) -> None:
        """Close what is open."""
        for ledger in self._opened:
            ledger.close()
        self._opened = []
        if self.observer is not None:
            self.observer.connection.close()
            self.observer = None

    def __iter__(self) -> Iterable[Ledger]:
        return iter(self._opened)
