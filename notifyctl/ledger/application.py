"""An intent inserted in an application's own transaction, on whatever connection it holds. Never commits.

A role that may only INSERT the intent's columns is enough (schema/README.md): what such a role cannot read is then not
looked at, and duplicates are told from new rows by the number of rows inserted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from notifyctl.errors import UsageError
from notifyctl.ledger.database import Tx
from notifyctl.ledger.dialect import POSTGRES, SQLITE
from notifyctl.ledger.enqueue import Verdict, differs, documents, idempotency_key, stored
from notifyctl.model import Intent

_INSERT = """INSERT INTO notify_delivery (event_id, recipient_id, channel, lane, region, topic, template,
    template_version, locale, variables, attachments, destination, due_at, expires_at, sensitive, batch)
  SELECT o.event_id, o.recipient_id, o.channel, o.lane, o.region, o.topic, o.template, o.template_version, o.locale,
    o.variables, o.attachments, o.destination, o.due_at, o.expires_at, o.sensitive, o.batch
  FROM {o: event_id text, recipient_id text, channel text, lane text, region text, topic text, template text,
    template_version text, locale text, variables json, attachments json, destination text, due_at timestamptz,
    expires_at timestamptz, sensitive boolean, batch text} WHERE true ON CONFLICT DO NOTHING"""

_RETURNING = "RETURNING idempotency_key"


def insert(connection: Any, intents: Sequence[Intent], *, batch: str | None = None) -> list[Verdict]:
    """Insert what is new; one verdict for each intent, in order."""
    tx = adopt(connection)
    rows = [_row(intent, batch) for intent in intents]
    if not _may_read(tx):
        return [Verdict("enqueued" if tx.affected(_INSERT, o=[row]) else "duplicate") for row in rows]
    keys = [idempotency_key(i.event_id, i.recipient_id, i.channel) for i in intents]
    first: dict[str, int] = {}
    for position, key in enumerate(keys):
        first.setdefault(key, position)
    inserted = {row[0] for row in tx.execute(f"{_INSERT} {_RETURNING}", o=[rows[i] for i in first.values()])}
    known = stored(tx, list(first))
    verdicts = []
    for position, (key, intent) in enumerate(zip(keys, intents, strict=True)):
        row = known.get(key)
        if row is None:
            verdicts.append(Verdict("duplicate"))  # sent long ago, and pruned since
        elif key in inserted and first[key] == position:
            verdicts.append(Verdict("suppressed" if row[1] == "suppressed" else "enqueued", row[0], row[2]))
        else:
            field = differs(tx, intent, row)
            verdicts.append(Verdict("conflict" if field else "duplicate", row[0], "conflict" if field else "", field))
    return verdicts


def _row(intent: Intent, batch: str | None) -> tuple[Any, ...]:
    i = intent
    return (
        i.event_id, i.recipient_id, i.channel, i.lane, i.region or "", i.topic, i.template, i.template_version,
        i.locale, json.dumps(dict(i.variables)), json.dumps(documents(i)), i.destination, i.due_at, i.expires_at,
        i.sensitive, batch,
    )  # fmt: skip


def _may_read(tx: Tx) -> bool:
    if tx.dialect is SQLITE:
        return True
    return bool(tx.execute("SELECT has_table_privilege('notify_delivery', 'SELECT')")[0][0])


def adopt(connection: Any) -> Tx:
    """The caller's open transaction as ours: an sqlite3 or psycopg connection, an SQLAlchemy Connection or Session."""
    for kind in type(connection).__mro__:
        root = kind.__module__.partition(".")[0]
        if root == "sqlite3":
            return Tx(_on_sqlite3(connection), SQLITE, datetime.now(UTC), False)
        if root == "psycopg" and "Async" not in kind.__name__:
            return Tx(_on_psycopg(connection), POSTGRES, datetime.now(UTC), False)
        if root == "sqlalchemy" and "Async" not in kind.__name__:
            return _on_sqlalchemy(connection if hasattr(connection, "exec_driver_sql") else connection.connection())
    raise UsageError(
        f"a {type(connection).__module__}.{type(connection).__qualname__} is not a connection notifyctl can use",
        hint="pass an sqlite3 or psycopg 3 connection, or an SQLAlchemy Connection or Session "
        "(from async code: await session.run_sync(notifyctl.enqueue, intent))",
    )


def _on_sqlite3(connection: Any) -> Callable[[str, Any], Any]:
    def execute(sql: str, parameters: Any) -> Any:
        cursor = connection.cursor()
        cursor.row_factory = None  # the caller may have set one of its own
        return cursor.execute(sql, parameters)

    return execute


def _on_psycopg(connection: Any) -> Callable[[str, Any], Any]:
    from psycopg.rows import tuple_row

    return lambda sql, parameters: connection.cursor(row_factory=tuple_row).execute(sql, parameters)


def _on_sqlalchemy(connection: Any) -> Tx:
    name, driver = connection.dialect.name, connection.dialect.driver
    if (name, driver) not in (("sqlite", "pysqlite"), ("postgresql", "psycopg"), ("postgresql", "psycopg2")):
        raise UsageError(
            f"SQLAlchemy's {name}+{driver} is not supported", hint="use sqlite, postgresql+psycopg or +psycopg2"
        )

    class Result:
        """What `Tx` reads of a cursor, of an SQLAlchemy result."""

        def __init__(self, sql: str, parameters: Any) -> None:
            given = parameters if isinstance(parameters, dict) else tuple(parameters)
            self._result = connection.exec_driver_sql(sql, given)
            self.description = self._result.returns_rows or None
            self.rowcount = self._result.rowcount

        def fetchall(self) -> list[Any]:
            return [tuple(row) for row in self._result.fetchall()]

    return Tx(Result, SQLITE if name == "sqlite" else POSTGRES, datetime.now(UTC), False)
