"""One way to ask either database in a test, through the raw drivers, so that no code of the ledger is believed."""

from __future__ import annotations

import sqlite3
from typing import Any

import psycopg


class Database:
    """A connection in autocommit; statements are written with `?`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.dialect = "sqlite" if url.startswith("sqlite:") else "postgresql"
        self.connection: Any
        if self.dialect == "sqlite":
            self.connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None, timeout=10)
            self.connection.execute("PRAGMA foreign_keys = ON")
        else:
            self.connection = psycopg.connect(url, autocommit=True)

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def execute(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows."""
        if self.dialect == "postgresql" and values:
            sql = sql.replace("?", "%s")
        cursor = self.connection.execute(sql, values) if values else self.connection.execute(sql)
        return cursor.fetchall() if cursor.description else []

    def one(self, sql: str, *values: Any) -> Any:
        """The only row, or its only value."""
        (row,) = self.execute(sql, *values)
        return row[0] if len(row) == 1 else row

    def begin(self) -> None:
        """Open a writing transaction."""
        self.execute("BEGIN IMMEDIATE" if self.dialect == "sqlite" else "BEGIN")

    def insert(self, table: str, suffix: str = "", **columns: Any) -> list[tuple[Any, ...]]:
        """A plain INSERT of these columns."""
        names, marks = ", ".join(columns), ", ".join("?" * len(columns))
        return self.execute(f"INSERT INTO {table} ({names}) VALUES ({marks}) {suffix}", *columns.values())

    def intend(self, event: str, suffix: str = "", **columns: Any) -> None:
        """The smallest INSERT that an application makes."""
        given = {"event_id": event, "recipient_id": "r-1", "channel": "email", "template": "welcome", **columns}
        self.insert("notify_delivery", suffix, **given)

    def delivery(self, event: str, columns: str = "state") -> Any:
        """Columns of the one delivery of this event."""
        return self.one(f"SELECT {columns} FROM notify_delivery WHERE event_id = ?", event)


REFUSED = (sqlite3.IntegrityError, psycopg.errors.IntegrityError)
UNIQUE = (sqlite3.IntegrityError, psycopg.errors.UniqueViolation)
