"""The Python API: an intent lives and dies with the caller's transaction, on every kind of connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.orm import Session

import notifyctl
from notifyctl.errors import UsageError
from notifyctl.ledger.database import Ledger
from tests.postgres import Cluster

INTENT = notifyctl.Intent(
    event_id="order-1", recipient_id="c1", channel=notifyctl.Channel.EMAIL, template="welcome",
    variables={"name": "Zoë", "lines": [1, 2.5, None]}, destination='"Doe, Jane" <jane@EXAMPLE.com>',
)  # fmt: skip

Open = Callable[[str], Any]


@contextmanager
def raw(url: str) -> Iterator[Any]:
    """The driver's own connection, with a row factory as applications set them."""
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"))
        connection.row_factory = lambda cursor, row: {c[0]: v for c, v in zip(cursor.description, row, strict=True)}
        yield connection
        connection.close()
    else:
        with psycopg.connect(url, row_factory=dict_row) as connection:
            yield connection


@contextmanager
def core(url: str) -> Iterator[Any]:
    """An SQLAlchemy Connection."""
    engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as connection:
        yield connection
    engine.dispose()


@contextmanager
def orm(url: str) -> Iterator[Any]:
    """An SQLAlchemy Session."""
    engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with Session(engine) as session:
        yield session
    engine.dispose()


@pytest.fixture(params=[raw, core, orm], ids=["driver", "connection", "session"])
def opened(request: pytest.FixtureRequest) -> Open:
    return request.param  # type: ignore[no-any-return]


def rows(url: str, sql: str) -> list[Any]:
    ledger = Ledger(url)
    try:
        return ledger.read(lambda tx: tx.execute(sql))
    finally:
        ledger.close()


def test_a_committed_intent_is_in_the_ledger_and_a_rolled_back_one_is_not(migrated_url: str, opened: Open) -> None:
    with opened(migrated_url) as connection:
        assert notifyctl.enqueue(connection, INTENT).status == "enqueued"
        connection.rollback()
    assert rows(migrated_url, "SELECT * FROM notify_delivery") == []
    assert rows(migrated_url, "SELECT * FROM notify_key") == []
    with opened(migrated_url) as connection:
        done = notifyctl.enqueue(connection, INTENT)
        connection.commit()
    assert done.status == "enqueued"
    found = rows(migrated_url, "SELECT id, lane, destination, state FROM notify_delivery")
    assert found == [(done.id, "email", '"Doe, Jane" <jane@example.com>', "queued")]
    assert rows(migrated_url, "SELECT delivery_id, step FROM notify_work") == [(done.id, "send")]


def test_it_never_commits_by_itself(migrated_url: str, opened: Open) -> None:
    with opened(migrated_url) as connection:
        notifyctl.enqueue(connection, INTENT)
        assert rows(migrated_url, "SELECT count(*) FROM notify_delivery") == [(0,)]
        connection.rollback()


def test_the_same_event_is_a_duplicate_and_with_other_content_a_conflict(migrated_url: str, opened: Open) -> None:
    from dataclasses import replace

    with opened(migrated_url) as connection:
        first = notifyctl.enqueue(connection, INTENT)
        again = notifyctl.enqueue(connection, INTENT)
        other = notifyctl.enqueue(connection, replace(INTENT, variables={"name": "Ada"}))
        less = notifyctl.enqueue(connection, replace(INTENT, variables={}, destination=None))
        connection.commit()
    assert (again.status, again.id) == ("duplicate", first.id)
    assert (other.status, other.id, other.field) == ("conflict", first.id, "variables")
    assert less.status == "duplicate"  # only what the caller states is compared
    assert rows(migrated_url, "SELECT count(*) FROM notify_delivery") == [(1,)]


def test_many_intents_are_one_statement_and_one_answer_each(migrated_url: str, opened: Open) -> None:
    from dataclasses import replace

    many = [replace(INTENT, event_id=f"e{n % 3}", due_at=datetime(2999, 1, 1, tzinfo=UTC)) for n in range(5)]
    with opened(migrated_url) as connection:
        done = notifyctl.enqueue(connection, many)
        connection.commit()
    assert [d.status for d in done] == ["enqueued"] * 3 + ["duplicate"] * 2
    assert done[3].id == done[0].id


def test_a_suppressed_recipient_is_born_suppressed(migrated_url: str, opened: Open) -> None:
    with opened(migrated_url) as connection:
        execute = connection.execute
        statement = "INSERT INTO notify_suppression (recipient_id, channel) VALUES ('c1', 'email')"
        execute(sqlalchemy.text(statement) if opened is not raw else statement)
        done = notifyctl.enqueue(connection, INTENT)
        connection.commit()
    assert (done.status, done.reason) == ("suppressed", "manual")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"event_id": "jane@example.com"}, "event_id"), ({"recipient_id": ""}, "recipient_id"),
        ({"channel": "fax"}, "channel"), ({"template": ""}, "template"),
        ({"due_at": datetime(2027, 1, 1)}, "due_at"),
        ({"destination": "not an address"}, "to"),
    ],
)  # fmt: skip
def test_what_cannot_be_an_intent_is_refused_before_anything_is_written(
    tmp_path: Path, change: dict[str, Any], field: str
) -> None:
    from dataclasses import replace

    connection = sqlite3.connect(tmp_path / "empty.db")
    with pytest.raises(notifyctl.InputError) as refused:
        notifyctl.enqueue(connection, replace(INTENT, **change))
    assert refused.value.field == field
    assert "jane" not in str(refused.value)
    assert not connection.in_transaction


def test_a_role_that_may_only_insert_can_enqueue(postgres: Cluster, migrated_template: str) -> None:
    url = postgres.create_database(template=migrated_template)
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute("DROP ROLE IF EXISTS api_shop")
        owner.execute("CREATE ROLE api_shop LOGIN")
        owner.execute(
            "GRANT INSERT (event_id, recipient_id, channel, lane, region, topic, template, template_version, locale, "
            "variables, attachments, destination, due_at, expires_at, sensitive, batch) ON notify_delivery TO api_shop"
        )
    with psycopg.connect(url, user="api_shop") as shop:
        assert notifyctl.enqueue(shop, INTENT).status == "enqueued"
        assert notifyctl.enqueue(shop, INTENT).status == "duplicate"
        shop.commit()
    assert rows(url, "SELECT count(*) FROM notify_work") == [(1,)]


def test_a_connection_of_another_kind_is_refused_with_the_way_out() -> None:
    with pytest.raises(UsageError) as refused:
        notifyctl.enqueue(object(), INTENT)
    assert "run_sync" in refused.value.hint
