"""What no command can read is refused by the schema, in every column of every table: a new one is covered at once.

Each table gets one whole row that is taken, and the same row with one odd value that must not be.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import psycopg
import pytest

from notifyctl.ledger.dialect import POSTGRES, SQLITE
from tests.ledger.databases import Database

NINE = "2027-03-28 09:00:00.000000"
TIME, TEXT, WHOLE, REAL, TRUTH = "time", "text", "whole", "real", "truth"
REFUSED = (sqlite3.IntegrityError, psycopg.errors.CheckViolation, psycopg.DataError)
# the values that a rule of their column asks for; all others are made from the column's kind
WORDS = {
    "channel": "email", "step": "send", "mandate": "replay", "outcome": "accepted", "part": "sms", "kind": "pause",
    "scope": "lane", "action": "closed", "state": "delivered", "variables": "{}", "attachments": "[]",
    "remote_ids": "[]", "counts": "{}",
}  # fmt: skip
OF_THE_DATABASE = {"id", "idempotency_key"}
ODD: dict[str, dict[str, tuple[Any, ...]]] = {
    "postgresql": {
        TIME: ("infinity", "-infinity", "0001-01-01 BC", "1969-12-31 23:59:59Z", "12000-01-01Z", "10000-01-01Z"),
        REAL: (float("inf"), float("-inf"), float("nan")),
    },
    "sqlite": {
        TIME: ("soon", "infinity", "", "9999-99-99 99:99:99.999999", "2999-02-30 10:00:00.000000", 1806224400,
               "0001-01-01 00:00:00.000000", "12000-01-01 00:00:00.000000", b"2027-03-28 09:00:00.000000", b"\xff"),
        TEXT: (b"x", b"\xff", b""),
        WHOLE: ("x", 1.5, float("inf"), b"1"),
        REAL: ("x", b"1", float("inf"), float("-inf")),
        TRUTH: ("x", 2, b"1"),
    },
}  # fmt: skip
CATALOGUE = {
    "postgresql": """SELECT table_name, column_name, data_type FROM information_schema.columns
        WHERE table_schema = current_schema() AND table_name LIKE 'notify\\_%' ORDER BY 1, ordinal_position""",
    "sqlite": """SELECT t.name, c.name, c.type FROM sqlite_master t, pragma_table_info(t.name) c
        WHERE t.type = 'table' AND t.name LIKE 'notify\\_%' ESCAPE '\\' ORDER BY 1, c.cid""",
}
KINDS = {
    "timestamp with time zone": TIME, "text": TEXT, "jsonb": TEXT, "bigint": WHOLE, "integer": WHOLE, "boolean": TRUTH,
    "double precision": REAL, "real": REAL,
}  # fmt: skip

TIMES = {
    "applied_at", "published_at", "due_at", "expires_at", "first_tried_at", "doubt_since", "message_date",
    "accepted_at", "receipts_from", "settled_at", "created_at", "updated_at", "eligible_at", "started", "finished",
    "at", "provider_time", "until", "tat", "window_start",
}  # fmt: skip
TRUTHS = {"sensitive", "held", "late", "lifted", "granted"}


@pytest.fixture
def database(migrated_url: str) -> Iterator[Database]:
    with Database(migrated_url) as database:
        database.intend("order-1")
        database.execute("DELETE FROM notify_work")
        yield database


def tables(database: Database) -> dict[str, dict[str, str]]:
    """The kind of each column of each table; SQLite's times and truths are those of Postgres' catalogue."""
    found: dict[str, dict[str, str]] = {}
    for table, column, kind in database.execute(CATALOGUE[database.dialect]):
        found.setdefault(table, {})[column] = _lite(column, kind) if database.dialect == "sqlite" else KINDS[kind]
    return found


def _lite(column: str, kind: str) -> str:
    if kind == "TEXT" and column in TIMES:
        return TIME
    return TRUTH if kind == "INTEGER" and column in TRUTHS else KINDS[kind.lower()]


def whole(table: str, columns: dict[str, str], dialect: str) -> dict[str, Any]:
    """A row of `table` that has a value in every column and is taken."""
    plain: dict[str, Any] = {TIME: NINE, TEXT: "x", WHOLE: 1, REAL: 1.5}
    plain[TRUTH] = False if dialect == "postgresql" else 0
    row = {name: WORDS.get(name, plain[kind]) for name, kind in columns.items() if name not in OF_THE_DATABASE}
    if "part" in columns and columns["part"] == WHOLE:
        row["part"] = 1
    if table == "notify_run":
        row["id"] = "x"
    if table == "notify_schema":
        row["version"] = 2
    return row


def put(database: Database, table: str, row: dict[str, Any]) -> None:
    """Insert, and take it back."""
    names, marks = ", ".join(f'"{name}"' for name in row), ", ".join("?" * len(row))
    database.begin()
    try:
        database.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", *row.values())
    finally:
        database.execute("ROLLBACK")


def test_no_column_takes_a_value_that_no_command_can_read(database: Database) -> None:
    odd, taken, tried = ODD[database.dialect], [], 0
    for table, columns in tables(database).items():
        row = whole(table, columns, database.dialect)
        put(database, table, row)
        for column in row:
            for value in odd.get(columns[column], ()):
                tried += 1
                try:
                    put(database, table, {**row, column: value})
                except REFUSED as error:
                    if columns[column] == TIME and not _names(error, table, column):
                        taken.append((table, column, str(error)))
                else:
                    taken.append((table, column, value))
    assert tried > 100
    assert taken == []


def _names(error: BaseException, table: str, column: str) -> bool:
    """Whether a refusal tells its column to whoever wrote the statement."""
    if isinstance(error, psycopg.Error):
        return error.diag.constraint_name == f"{table}_{column}_check"
    return column in str(error)


def test_the_two_databases_agree_on_which_columns_are_times_and_truths(database: Database) -> None:
    if database.dialect == "postgresql":
        columns = [pair for table in tables(database).values() for pair in table.items()]
        assert {name for name, kind in columns if kind == TIME} == TIMES
        assert {name for name, kind in columns if kind == TRUTH} == TRUTHS


def test_the_first_and_the_last_moment_of_a_ledger_are_taken(database: Database) -> None:
    for event, moment in (("first", "1970-01-01 00:00:00.000000"), ("last", "9999-12-31 23:59:59.999999")):
        zone = "Z" if database.dialect == "postgresql" else ""
        database.intend(event, due_at=moment + zone, expires_at=moment + zone)


@pytest.mark.parametrize("column", ["variables", "attachments", "remote_ids", "counts"])
@pytest.mark.parametrize("value", ["5", '"x"', "null", "true"])
def test_a_document_of_another_form_is_refused(database: Database, column: str, value: str) -> None:
    for table, columns in tables(database).items():
        if column in columns:
            with pytest.raises(REFUSED):
                put(database, table, {**whole(table, columns, database.dialect), column: value})


FAR = timezone(timedelta(hours=14))
BEHIND = timezone(timedelta(hours=-14))


@pytest.mark.parametrize("dialect", [SQLITE, POSTGRES], ids=["sqlite", "postgresql"])
@pytest.mark.parametrize("moment", [datetime.max.replace(tzinfo=BEHIND), datetime.min.replace(tzinfo=FAR)], ids=str)
def test_every_datetime_can_be_written(dialect: Any, moment: datetime) -> None:
    text = dialect.time(moment)
    assert text is not None
    read: Callable[[str], datetime] = datetime.fromisoformat
    assert (read(text).replace(tzinfo=UTC) > datetime(2027, 1, 1, tzinfo=UTC)) == (moment.year == 9999)


@pytest.mark.parametrize("value", [b"\xff", b"2027", 5, 1.5, "soon", "\udcff"], ids=repr)
def test_everything_that_sqlite_holds_is_read_as_some_instant(value: Any) -> None:
    assert isinstance(SQLITE.instant(value), datetime)


@pytest.mark.parametrize("state", ["queued", "sending", "temporary_failure", "ambiguous"])
def test_what_was_accepted_cannot_be_said_to_wait_for_its_sending(database: Database, state: str) -> None:
    """No rule of the lifecycle knows such a row: it would never go out, or end the run that meets it."""
    with pytest.raises(REFUSED):
        database.execute("UPDATE notify_delivery SET accepted_at = ?, state = ?", NINE, state)
    with pytest.raises(REFUSED):
        database.intend("order-2", accepted_at=NINE)


COUNTED = {"attempts_used", "fencing_token", "tries", "level", "count"}


@pytest.mark.parametrize("value", [-1, 2**31 - 1, 2**63 - 1])
def test_what_is_counted_on_leaves_room_for_the_count(database: Database, value: int) -> None:
    """One more than the last number is none: who counts on from it would end with an error, and everybody's run too."""
    found = set()
    for table, columns in tables(database).items():
        row = whole(table, columns, database.dialect)
        for column in COUNTED & set(columns):
            found.add(column)
            if value == 2**31 - 1 and column in ("fencing_token", "count"):
                continue  # of 64 bits on both databases
            with pytest.raises(REFUSED):
                put(database, table, {**row, column: value})
    assert found == COUNTED
