"""What an application may do with plain SQL, and what the database makes of it (schema/README.md)."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.ledger.databases import REFUSED, UNIQUE, Database
from tests.postgres import Cluster

TRAIL = 'SELECT "from", "to", reason, actor FROM notify_transition WHERE delivery_id = ? ORDER BY id'
ANY = (sqlite3.Error, psycopg.Error)


@pytest.fixture
def database(migrated_url: str) -> Iterator[Database]:
    with Database(migrated_url) as database:
        yield database


def works(database: Database) -> int:
    return int(database.one("SELECT count(*) FROM notify_work"))


def trail(database: Database, event: str) -> list[tuple[Any, ...]]:
    return database.execute(TRAIL, database.delivery(event, "id"))


def instant(database: Database, value: Any) -> datetime | None:
    if database.dialect == "postgresql" or value is None:
        return value
    assert len(value) == len("2027-03-28 09:00:00.000000"), value
    return datetime.strptime(value, "%Y-%m-%d %H:%M:%S.%f").replace(tzinfo=UTC)


# -- the intent -------------------------------------------------------------------------------------------------------


def test_the_smallest_insert_is_a_queued_delivery_due_now_with_its_key_work_and_trail(database: Database) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    database.intend("order-1")
    state, lane, region, variables, due, key = database.delivery(
        "order-1", "state, lane, region, variables, due_at, idempotency_key"
    )
    assert (state, lane, region) == ("queued", "email", "")
    assert variables in ("{}", {})
    due_at = instant(database, due)
    assert due_at is not None
    assert before < due_at < datetime.now(UTC) + timedelta(seconds=1)
    assert key == "7:order-1:r-1:email"
    work = database.one(
        "SELECT delivery_id, step, lane, region, due_at, eligible_at, owner, fencing_token FROM notify_work"
    )
    delivery = database.delivery("order-1", "id")
    assert work == (delivery, "send", "email", "", due, due, None, 0)
    assert database.one("SELECT key, delivery_id FROM notify_key") == (key, delivery)
    who = "sql" if database.dialect == "sqlite" else "postgres"
    assert trail(database, "order-1") == [(None, "queued", "", who)]


def test_a_rolled_back_business_event_leaves_nothing(database: Database) -> None:
    database.execute("CREATE TABLE orders (id integer)")
    database.begin()
    database.execute("INSERT INTO orders VALUES (1)")
    database.intend("order-1")
    database.execute("ROLLBACK")
    for table in ("orders", "notify_delivery", "notify_work", "notify_key", "notify_transition"):
        assert database.one(f"SELECT count(*) FROM {table}") == 0, table


def test_columns_given_as_null_or_empty_get_their_defaults(database: Database) -> None:
    nothing = dict.fromkeys(("lane", "region", "variables", "attachments", "due_at", "sensitive"))
    database.intend("order-1", **nothing)
    assert database.delivery("order-1", "lane, region, sensitive") == ("email", "", 0)
    empty = dict.fromkeys(("lane", "topic", "locale", "destination", "template_version"), "")
    database.intend("order-2", **empty)
    assert database.delivery("order-2", "lane, topic, locale, destination, template_version") == (
        "email", None, None, None, None,
    )  # fmt: skip


def test_a_batch_is_named_in_the_trail(database: Database) -> None:
    database.intend("order-1", batch="digest-2027-03")
    assert trail(database, "order-1") == [(None, "queued", "", "digest-2027-03")]


@pytest.mark.parametrize(
    "value", ["", "a@example.com", "line\nbreak", "nul\x00l", "bell\x07", "\x7f", "\x85", "x" * 201]
)
@pytest.mark.parametrize("column", ["event_id", "recipient_id"])
def test_a_reference_that_is_no_reference_is_refused(database: Database, column: str, value: str) -> None:
    with pytest.raises((*REFUSED, psycopg.DataError)):
        database.intend("order-1", **{column: value})
    assert works(database) == 0


def test_the_longest_reference_and_any_script_are_taken(database: Database) -> None:
    database.intend("ü" * 200, recipient_id="客户-42")
    assert database.one("SELECT idempotency_key FROM notify_delivery") == f"200:{'ü' * 200}:客户-42:email"


@pytest.mark.parametrize(
    "wrong",
    [
        {"channel": "fax"}, {"channel": None}, {"template": ""}, {"template": None}, {"variables": "[]"},
        {"variables": "{"}, {"attachments": "{}"}, {"attachments": "x"},
    ],
    ids=str,
)  # fmt: skip
def test_what_no_delivery_can_be_made_of_is_refused(database: Database, wrong: dict[str, Any]) -> None:
    with pytest.raises((*REFUSED, psycopg.DataError)):
        database.intend("order-1", "ON CONFLICT DO NOTHING", **wrong)
    assert works(database) == 0


def test_two_pairs_that_read_the_same_have_different_keys(database: Database) -> None:
    database.intend("a:b", recipient_id="c")
    database.intend("a", recipient_id="b:c")
    assert works(database) == 2


# -- once per event, recipient and channel ----------------------------------------------------------------------------


def test_a_plain_duplicate_fails_with_a_unique_violation(database: Database) -> None:
    database.intend("order-1")
    with pytest.raises(UNIQUE):
        database.intend("order-1")
    assert works(database) == 1


def test_on_conflict_do_nothing_keeps_the_first(database: Database) -> None:
    database.intend("order-1", template="first")
    for suffix in ("ON CONFLICT DO NOTHING", "ON CONFLICT (idempotency_key) DO NOTHING"):
        database.intend("order-1", suffix, template="second")
    assert database.delivery("order-1", "template") == "first"
    assert len(trail(database, "order-1")) == 1
    assert works(database) == 1


def test_duplicates_within_one_statement_make_one_delivery(database: Database) -> None:
    database.execute(
        "INSERT INTO notify_delivery (event_id, recipient_id, channel, template) VALUES "
        "('e', 'r', 'email', 't'), ('e', 'r', 'email', 't'), ('e', 'r', 'sms', 't') ON CONFLICT DO NOTHING"
    )
    assert database.execute("SELECT channel, lane FROM notify_delivery ORDER BY id") == [
        ("email", "email"), ("sms", "sms"),
    ]  # fmt: skip
    assert database.one("SELECT count(*) FROM notify_transition") == 2


def test_a_pruned_deliverys_event_is_never_enqueued_again(database: Database) -> None:
    database.intend("order-1", state="delivered")
    for table, column in (("notify_transition", "delivery_id"), ("notify_delivery", "id")):
        database.execute(f"DELETE FROM {table} WHERE {column} > 0")
    database.intend("order-1")
    database.intend("order-1", "ON CONFLICT DO NOTHING")
    assert database.one("SELECT count(*) FROM notify_delivery") == 0
    assert works(database) == 0
    database.execute(
        "INSERT INTO notify_delivery (event_id, recipient_id, channel, template) VALUES "
        "('order-1', 'r-1', 'email', 't'), ('order-2', 'r-1', 'email', 't')"
    )
    assert database.one("SELECT event_id FROM notify_delivery") == "order-2"


def test_the_identity_of_a_delivery_cannot_be_changed(database: Database) -> None:
    database.intend("order-1")
    for column, value in (("event_id", "order-2"), ("recipient_id", "r-2"), ("channel", "sms")):
        with pytest.raises(ANY, match="identity"):
            database.execute(f"UPDATE notify_delivery SET {column} = ?", value)
    database.execute("UPDATE notify_delivery SET event_id = event_id, reason = 'x'")


def test_a_delivery_that_still_has_work_cannot_be_deleted(database: Database) -> None:
    database.intend("order-1")
    with pytest.raises(ANY):
        database.execute("DELETE FROM notify_delivery")
    if database.dialect == "sqlite":
        database.execute("PRAGMA foreign_keys = OFF")  # what most clients start with
        with pytest.raises(sqlite3.IntegrityError, match="notifyctl cancel"):
            database.execute("DELETE FROM notify_delivery")
    assert database.delivery("order-1") == "queued"


# -- versions and states ----------------------------------------------------------------------------------------------


def publish(database: Database, version: str, sequence: int) -> None:
    for part in ("subject", "text"):
        database.insert(
            "notify_template", name="welcome", version=version, part=part, body="x", sha256="x", sequence=sequence
        )


def test_the_newest_published_version_is_pinned_by_the_insert(database: Database) -> None:
    database.intend("before")
    publish(database, "9", 1)
    publish(database, "10", 2)
    database.intend("order-1")
    database.intend("order-2", template_version="9")
    publish(database, "8", 3)
    versions = [database.delivery(event, "template_version") for event in ("before", "order-1", "order-2")]
    assert versions == [None, "10", "9"]


def test_a_published_version_never_changes(database: Database) -> None:
    publish(database, "1", 1)
    with pytest.raises(ANY, match="published version never changes"):
        database.execute("UPDATE notify_template SET body = 'y'")


@pytest.mark.parametrize("state", ["sending", "temporary_failure", "ambiguous", "pending"])
def test_no_delivery_is_born_in_the_middle_of_its_life(database: Database, state: str) -> None:
    with pytest.raises(REFUSED, match="born queued"):
        database.intend("order-1", state=state)


@pytest.mark.parametrize(
    "state",
    ["accepted", "delivered", "permanent_failure", "suppressed", "expired", "cancelled", "dead_letter", "unresolved"],
)
def test_imported_history_is_at_rest_and_its_key_is_taken(database: Database, state: str) -> None:
    database.intend("old", state=state, reason="imported", created_at="2020-01-01T00:00:00Z")
    assert works(database) == 0
    settled, accepted = database.delivery("old", "settled_at, accepted_at")
    assert settled is not None
    assert (accepted is not None) == (state in ("accepted", "delivered", "unresolved"))
    assert instant(database, database.delivery("old", "created_at")) == datetime(2020, 1, 1, tzinfo=UTC)
    assert [row[1:3] for row in trail(database, "old")] == [(state, "imported")]
    database.intend("old", "ON CONFLICT DO NOTHING")
    assert works(database) == 0


# -- suppression and consent ------------------------------------------------------------------------------------------


def suppress(database: Database, **columns: Any) -> None:
    database.insert("notify_suppression", **{"recipient_id": "r-1", "channel": "email", **columns})


def consent(database: Database, granted: bool, **columns: Any) -> None:
    given = {"recipient_id": "r-1", "channel": "email", "topic": "news", "granted": granted, **columns}
    database.insert("notify_consent", **given)


def test_a_delivery_to_a_suppressed_recipient_is_born_suppressed(database: Database) -> None:
    suppress(database, reason="opted_out")
    database.intend("order-1")
    database.intend("order-2", channel="sms")
    database.intend("order-3", recipient_id="r-2")
    assert database.delivery("order-1", "state, reason") == ("suppressed", "opted_out")
    assert database.delivery("order-1", "settled_at") is not None
    assert [row[:3] for row in trail(database, "order-1")] == [(None, "suppressed", "opted_out")]
    assert works(database) == 2


def test_lifting_frees_the_pair_and_keeps_its_history(database: Database) -> None:
    suppress(database)
    suppress(database, reason="complained")
    suppress(database, lifted=True)
    database.intend("order-1")
    suppress(database)
    database.intend("order-2")
    assert [database.delivery(event) for event in ("order-1", "order-2")] == ["suppressed", "suppressed"]
    assert [row[1] for row in trail(database, "order-1")] == ["queued", "suppressed"]
    assert database.one("SELECT count(*) FROM notify_suppression") == 4


def test_a_bounced_address_says_nothing_of_another(database: Database) -> None:
    for reason in ("hard_bounce", "invalid_recipient"):
        suppress(database, reason=reason, fingerprint="f-1")
    database.intend("other", fingerprint="f-2")
    database.intend("unknown")
    database.intend("same", fingerprint="f-1")
    assert [database.delivery(event) for event in ("other", "unknown", "same")] == ["queued", "queued", "suppressed"]


def test_a_bounce_without_an_address_concerns_the_pair(database: Database) -> None:
    suppress(database, reason="hard_bounce")
    database.intend("order-1", fingerprint="f-1")
    assert database.delivery("order-1") == "suppressed"


def test_the_newest_word_on_a_topic_counts(database: Database) -> None:
    consent(database, True)
    database.intend("granted", topic="news")
    consent(database, False)
    consent(database, False, topic="offers")
    consent(database, True)
    database.intend("granted again", topic="news")
    consent(database, False)
    database.intend("revoked", topic="news")
    database.intend("no topic")
    database.intend("another topic", topic="receipts")
    database.intend("another channel", topic="news", channel="sms")
    assert database.delivery("revoked", "state, reason") == ("suppressed", "consent_revoked")
    for event in ("granted", "granted again"):
        assert database.delivery(event, "state, reason") == ("suppressed", "consent_revoked")
        assert [row[:3] for row in trail(database, event)] == [
            (None, "queued", ""), ("queued", "suppressed", "consent_revoked"),
        ]  # fmt: skip
    for event in ("no topic", "another topic", "another channel"):
        assert database.delivery(event) == "queued"


def test_a_suppression_settles_what_waits_also_what_is_claimed(database: Database) -> None:
    for event in ("waiting", "claimed", "failed", "sending", "doubtful", "accepted"):
        database.intend(event)
    number = {
        event: database.delivery(event, "id") for event in ("claimed", "failed", "sending", "doubtful", "accepted")
    }
    database.execute(
        "UPDATE notify_work SET owner = 'run-1', fencing_token = 7 WHERE delivery_id = ?", number["claimed"]
    )
    for event, state, step in (
        ("failed", "temporary_failure", "send"), ("sending", "sending", "resolve"), ("doubtful", "ambiguous", "send"),
        ("accepted", "accepted", "check"),
    ):  # fmt: skip
        database.execute("UPDATE notify_delivery SET state = ? WHERE id = ?", state, number[event])
        database.execute("UPDATE notify_work SET step = ? WHERE delivery_id = ?", step, number[event])
    database.execute("UPDATE notify_work SET mandate = 'replay' WHERE delivery_id = ?", number["doubtful"])
    suppress(database, reason="opted_out", actor="jane")
    assert database.delivery("waiting", "state, reason, fencing_token") == ("suppressed", "opted_out", 1)
    assert database.delivery("claimed", "state, fencing_token") == ("suppressed", 8)
    assert database.delivery("failed", "state, fencing_token") == ("suppressed", 1)
    assert database.delivery("waiting", "settled_at") is not None
    assert trail(database, "failed")[-1] == ("temporary_failure", "suppressed", "opted_out", "jane")
    left = {event: database.delivery(event) for event in ("sending", "doubtful", "accepted")}
    assert left == {"sending": "sending", "doubtful": "ambiguous", "accepted": "accepted"}
    assert works(database) == 3


def test_a_bounce_settles_what_waits_for_that_address_only(database: Database) -> None:
    database.intend("same", fingerprint="f-1")
    database.intend("other", fingerprint="f-2")
    database.intend("unknown")
    suppress(database, reason="hard_bounce", fingerprint="f-1")
    assert [database.delivery(event) for event in ("same", "other", "unknown")] == ["suppressed", "queued", "queued"]


def test_a_suppression_that_is_rolled_back_settles_nothing(database: Database) -> None:
    database.intend("order-1")
    database.begin()
    suppress(database)
    assert database.delivery("order-1") == "suppressed"
    database.execute("ROLLBACK")
    assert database.delivery("order-1") == "queued"
    assert works(database) == 1


MANY = """WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000)
  INSERT INTO notify_delivery (event_id, recipient_id, channel, template, topic, state)
  SELECT 'e-' || i, 'other-' || i, 'email', 't', 'news', CASE i % 2 WHEN 0 THEN 'queued' ELSE 'suppressed' END FROM n"""


@pytest.mark.parametrize("say_no", [suppress, lambda database: consent(database, False)], ids=["suppress", "revoke"])
def test_what_a_no_costs_does_not_grow_with_the_backlog(database: Database, say_no: Callable[..., None]) -> None:
    database.execute(MANY)
    database.intend("order-1", topic="news")
    if database.dialect == "sqlite":
        steps = []
        database.connection.set_progress_handler(lambda: steps.append(1), 10)  # every tenth instruction
        say_no(database)
        database.connection.set_progress_handler(None, 0)
        assert 1 < len(steps) < 200
    else:
        rows_read = (
            "SELECT sum(seq_tup_read + COALESCE(idx_tup_fetch, 0)) FROM pg_stat_xact_user_tables "
            "WHERE relname IN ('notify_delivery', 'notify_work')"
        )
        database.execute("ANALYZE")
        database.begin()
        before = database.one(rows_read)
        say_no(database)
        assert 1 <= database.one(rows_read) - before < 30
        database.execute("COMMIT")
    assert database.delivery("order-1") == "suppressed"
    assert works(database) == 1500


@pytest.mark.parametrize("table", ["notify_suppression", "notify_consent", "notify_endpoint"])
def test_the_tables_of_recipients_are_append_only(database: Database, table: str) -> None:
    more: dict[str, Any] = {
        "notify_suppression": {}, "notify_consent": {"topic": "news", "granted": True},
        "notify_endpoint": {"address": "jane@example.com"},
    }[table]  # fmt: skip
    database.insert(table, recipient_id="r-1", channel="email", **more)
    before = database.execute(f"SELECT * FROM {table}")
    for change in ("SET actor = 'x'", "SET recipient_id = 'r-2'", "SET at = '2027-03-28 09:00:00.000000'"):
        with pytest.raises(ANY, match="append-only"):
            database.execute(f"UPDATE {table} {change}")
    with pytest.raises(ANY, match="append-only"):
        database.execute(f"DELETE FROM {table}")
    if database.dialect == "sqlite":
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            database.execute(f"REPLACE INTO {table} SELECT * FROM {table}")
    assert database.execute(f"SELECT * FROM {table}") == before


def test_an_endpoint_can_be_fingerprinted_once_and_erased(database: Database) -> None:
    database.insert("notify_endpoint", recipient_id="r-1", channel="email", address="jane@example.com")
    for change in ("address = 'eve@example.com'", "fingerprint = 'f-2'"):
        if change.startswith("fingerprint"):
            database.execute("UPDATE notify_endpoint SET fingerprint = 'f-1'")
        with pytest.raises(ANY, match="append-only"):
            database.execute(f"UPDATE notify_endpoint SET {change}")
    database.execute("UPDATE notify_endpoint SET address = '', fingerprint = NULL")
    assert database.one("SELECT recipient_id, address, fingerprint FROM notify_endpoint") == ("r-1", "", None)


# -- beside other transactions ----------------------------------------------------------------------------------------


def meanwhile(first: Database, change: Callable[[], None], url: str, then: Callable[[Database], None]) -> None:
    """`change` inside an open transaction of `first`; `then` on another connection, blocked by it; then commit."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            with Database(url) as second:
                started.set()
                then(second)
        except BaseException as error:
            failures.append(error)

    started = threading.Event()
    first.begin()
    change()
    other = threading.Thread(target=run)
    other.start()
    assert started.wait(30)
    if first.dialect == "postgresql":
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        with Database(url) as watcher:
            while other.is_alive() and not watcher.one(waiting):
                pass
    first.execute("COMMIT")
    other.join(30)
    assert not other.is_alive()
    assert failures == []


def test_a_row_claimed_while_its_recipient_is_suppressed_is_settled_with_a_higher_token(
    database: Database, migrated_url: str
) -> None:
    database.intend("order-1")
    claim = "UPDATE notify_work SET owner = 'run-1', fencing_token = fencing_token + 1"
    meanwhile(database, lambda: _nothing(database.execute(claim)), migrated_url, suppress)
    assert database.delivery("order-1", "state, fencing_token") == ("suppressed", 2)
    assert works(database) == 0


def test_a_row_begun_before_its_recipient_is_suppressed_is_left_to_its_owner(
    database: Database, migrated_url: str
) -> None:
    database.intend("order-1")

    def begin() -> None:
        database.execute("UPDATE notify_work SET step = 'resolve', owner = 'run-1'")
        database.execute("UPDATE notify_delivery SET state = 'sending'")

    meanwhile(database, begin, migrated_url, suppress)
    assert database.delivery("order-1") == "sending"
    assert works(database) == 1
    assert database.one("SELECT count(*) FROM notify_suppression") == 1


def test_of_two_applications_that_insert_the_same_event_one_makes_it(database: Database, migrated_url: str) -> None:
    meanwhile(
        database, lambda: database.intend("order-1", template="first"), migrated_url,
        lambda second: second.intend("order-1", "ON CONFLICT DO NOTHING", template="second"),
    )  # fmt: skip
    assert database.delivery("order-1", "template") == "first"
    assert works(database) == 1


def _nothing(_: object) -> None:
    """For a statement whose rows are of no interest."""


# -- what is SQLite's own ---------------------------------------------------------------------------------------------


@pytest.fixture
def lite(migrated_file: Any, tmp_path: Any) -> Iterator[Database]:
    path = tmp_path / "lite.db"
    path.write_bytes(migrated_file.read_bytes())
    with Database(f"sqlite:///{path}") as database:
        yield database


@pytest.mark.parametrize("recursive", ["OFF", "ON"])
def test_replace_is_refused_and_forgets_nothing(lite: Database, recursive: str) -> None:
    lite.execute(f"PRAGMA recursive_triggers = {recursive}")
    lite.intend("order-1", template="first")
    number = lite.delivery("order-1", "id")
    for form in ("REPLACE", "INSERT OR REPLACE"):
        for foreign_keys in ("ON", "OFF"):
            lite.execute(f"PRAGMA foreign_keys = {foreign_keys}")
            with pytest.raises(sqlite3.IntegrityError):
                lite.execute(
                    f"{form} INTO notify_delivery (event_id, recipient_id, channel, template) "
                    "VALUES ('order-1', 'r-1', 'email', 'second')"
                )
            with pytest.raises(sqlite3.IntegrityError):
                lite.execute(
                    f"{form} INTO notify_delivery (id, event_id, recipient_id, channel, template) "
                    f"VALUES ({number}, 'order-2', 'r-1', 'email', 'second')"
                )
    lite.intend("settled", state="delivered")
    with pytest.raises(sqlite3.IntegrityError, match="REPLACE would forget a delivery"):
        lite.execute(
            "REPLACE INTO notify_delivery (event_id, recipient_id, channel, template) "
            "VALUES ('settled', 'r-1', 'email', 'second')"
        )
    assert lite.execute("SELECT event_id, template, state FROM notify_delivery ORDER BY id") == [
        ("order-1", "first", "queued"), ("settled", "welcome", "delivered"),
    ]  # fmt: skip
    assert works(lite) == 1


NINE = "2027-03-28 09:00:00.000000"


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ("2027-03-28T09:00:00Z", NINE),
        ("2027-03-28T09:00Z", NINE),
        ("2027-03-28 09:00", NINE),
        ("2027-03-28 09:00:00", NINE),
        ("2027-03-28T11:00:00+02:00", NINE),
        ("2027-03-27T21:30:00.000-11:30", NINE),
        ("2027-03-28T09:00:00.25Z", "2027-03-28 09:00:00.250000"),
        ("2027-03-28 09:00:00.123456", "2027-03-28 09:00:00.123456"),
        (NINE, NINE),
    ],
)
def test_a_time_in_any_iso_form_is_stored_in_the_one_that_sorts(lite: Database, given: str, stored: str) -> None:
    lite.intend("order-1", due_at=given, expires_at=given)
    assert lite.delivery("order-1", "due_at, expires_at") == (stored, stored)
    assert lite.one("SELECT due_at, eligible_at FROM notify_work") == (stored, stored)
    suppress(lite, at=given)
    consent(lite, True, at=given)
    lite.insert("notify_endpoint", recipient_id="r-1", channel="email", address="a@example.com", at=given)
    for table in ("notify_suppression", "notify_consent", "notify_endpoint"):
        assert lite.one(f"SELECT at FROM {table}") == stored, table


WRONG_TIMES = [
    "now", "tomorrow", "", "12:00", "2027-03-28", 1806224400, 2460000.5, "2460000.5", "2027-02-30T09:00:00Z",
    "2027-13-01 09:00:00.000000", "2027-03-28T09:00:00 Europe/London", "2027-03-28T09:00:00+2",
    "0001-01-01T00:00:00Z", "9999-12-31T23:59:59-01:00", "10000-01-01T00:00:00Z", "2027-03-28 25:00:00.000000",
    "28.03.2027 09:00",
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG_TIMES, ids=str)
def test_a_time_that_cannot_be_read_aborts_and_names_its_column(lite: Database, wrong: Any) -> None:
    for column in ("due_at", "expires_at"):
        for suffix in ("", "ON CONFLICT DO NOTHING"):
            with pytest.raises(sqlite3.IntegrityError, match=rf"^(CHECK .*: )?notify_delivery\.{column} is not a time"):
                lite.intend("order-1", suffix, **{column: wrong})
    with pytest.raises(sqlite3.IntegrityError, match=r"^notify_suppression\.at is not a time"):
        suppress(lite, at=wrong)
    with pytest.raises(sqlite3.IntegrityError, match=r"^notify_consent\.at is not a time"):
        consent(lite, True, at=wrong)
    with pytest.raises(sqlite3.IntegrityError, match=r"^notify_endpoint\.at is not a time"):
        lite.insert("notify_endpoint", recipient_id="r-1", channel="email", address="a@example.com", at=wrong)
    assert lite.one("SELECT count(*) FROM notify_delivery") == 0


def test_a_time_rewritten_by_hand_keeps_its_meaning_and_the_others_their_microseconds(lite: Database) -> None:
    lite.intend("order-1", due_at="2027-03-28 09:00:00.123456")
    lite.execute("UPDATE notify_delivery SET expires_at = '2027-03-28T12:00:00+01:00'")
    assert lite.delivery("order-1", "due_at, expires_at") == (
        "2027-03-28 09:00:00.123456", "2027-03-28 11:00:00.000000",
    )  # fmt: skip
    lite.execute("UPDATE notify_work SET eligible_at = datetime('2027-03-28 09:00:00', '-1 hour')")
    assert lite.one("SELECT eligible_at FROM notify_work") == "2027-03-28 08:00:00.000000"
    lite.insert("notify_gate", scope="lane", name="email", kind="pause", until=NINE)
    lite.execute("UPDATE notify_gate SET until = '2027-03-28T10:00:00Z'")
    assert lite.one("SELECT until FROM notify_gate") == "2027-03-28 10:00:00.000000"
    lite.insert("notify_attempt", delivery_id=1, number=1, run="r", fencing_token=1, transport="t", started=NINE)
    lite.execute("UPDATE notify_attempt SET started = '2027-03-28T08:00:00Z'")
    assert lite.one("SELECT started, finished FROM notify_attempt") == ("2027-03-28 08:00:00.000000", None)
    lite.execute("UPDATE notify_transition SET at = '2027-03-28T08:00:00Z'")
    assert lite.one("SELECT at FROM notify_transition") == "2027-03-28 08:00:00.000000"
    for table, column in (
        ("work", "eligible_at"),
        ("delivery", "doubt_since"),
        ("gate", "until"),
        ("attempt", "started"),
    ):
        with pytest.raises(sqlite3.IntegrityError, match=rf"notify_{table}\.{column} is not a time"):
            lite.execute(f"UPDATE notify_{table} SET {column} = 'soon'")


# -- what is Postgres' own --------------------------------------------------------------------------------------------


INTENT = (
    "event_id, recipient_id, channel, lane, region, topic, template, template_version, locale, variables, "
    "attachments, destination, due_at, expires_at, sensitive, batch"
)
GRANTS = (
    f"GRANT INSERT ({INTENT}) ON notify_delivery TO shop",
    "GRANT INSERT (recipient_id, channel, address, actor) ON notify_endpoint TO shop",
    "GRANT INSERT (recipient_id, channel, reason, lifted, actor, note) ON notify_suppression TO shop",
    "GRANT INSERT (recipient_id, channel, topic, granted, actor, note) ON notify_consent TO shop",
)


@pytest.fixture
def owner(postgres: Cluster, migrated_template: str) -> Iterator[Database]:
    url = postgres.create_database(template=migrated_template)
    with Database(url) as owner:
        owner.execute("DO $$ BEGIN CREATE ROLE shop LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
        yield owner
    postgres.drop_database(url)


@pytest.fixture
def shop(owner: Database) -> Iterator[Database]:
    """An application whose role has the grants of schema/README.md, word for word."""
    readme = (Path(__file__).parents[2] / "schema/README.md").read_text()
    for grant in GRANTS:
        assert " ".join(grant.split()) in " ".join(readme.split())
        owner.execute(grant)
    with Database(owner.url.replace("postgres@", "shop@")) as shop:
        yield shop


def test_a_role_that_may_only_insert_intents_is_enough(shop: Database, owner: Database) -> None:
    publish(owner, "3", 1)
    consent(shop, False)
    shop.insert("notify_endpoint", recipient_id="r-1", channel="email", address="jane@example.com")
    shop.intend("order-1")
    shop.intend("order-1", "ON CONFLICT DO NOTHING")
    shop.intend("news-1", topic="news")
    assert owner.delivery("order-1", "state, template_version") == ("queued", "3")
    assert trail(owner, "order-1") == [(None, "queued", "", "shop")]
    assert owner.delivery("news-1", "state, reason") == ("suppressed", "consent_revoked")
    suppress(shop, reason="opted_out")
    assert owner.delivery("order-1", "state, reason") == ("suppressed", "opted_out")
    assert trail(owner, "order-1")[-1] == ("queued", "suppressed", "opted_out", "shop")
    with pytest.raises(psycopg.errors.UniqueViolation):
        shop.intend("order-1")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE notify_delivery SET reason = 'x'",
        "DELETE FROM notify_delivery",
        "SELECT destination FROM notify_delivery",
        "SELECT address FROM notify_endpoint",
        "SELECT value FROM notify_meta",
        "INSERT INTO notify_work SELECT 1, 'send', 'email', '', now(), now()",
        "INSERT INTO notify_key VALUES ('1:e:r:email', 1)",
        "UPDATE notify_work SET eligible_at = now()",
        "SELECT notify_sweep('r-1', 'email', NULL, NULL, 'x', 'x')",
        "CREATE TRIGGER mine AFTER INSERT ON pg_temp.mine FOR EACH STATEMENT EXECUTE FUNCTION notify_delivery_born()",
    ],
)
def test_such_a_role_can_do_nothing_else(shop: Database, statement: str) -> None:
    shop.execute("CREATE TEMP TABLE mine (id bigint)")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        shop.execute(statement)


@pytest.mark.parametrize(
    ("column", "value"),
    [("state", "delivered"), ("attempts_used", 5), ("remote_id", "x"), ("fingerprint", "x"), ("accepted_at", "now")],
)
def test_such_a_role_cannot_claim_what_only_notifyctl_knows(shop: Database, column: str, value: Any) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        shop.intend("order-1", **{column: value})
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        shop.execute(
            "INSERT INTO notify_delivery (id, event_id, recipient_id, channel, template) OVERRIDING SYSTEM VALUE "
            "VALUES (1, 'e', 'r', 'email', 't')"
        )


def test_a_conflict_target_or_a_returned_id_asks_for_the_right_that_is_documented(
    shop: Database, owner: Database
) -> None:
    shop.intend("order-1")
    for suffix in ("ON CONFLICT (idempotency_key) DO NOTHING", "ON CONFLICT DO NOTHING RETURNING id"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            shop.intend("order-1", suffix)
    owner.execute("GRANT SELECT (id, idempotency_key) ON notify_delivery TO shop")
    shop.intend("order-1", "ON CONFLICT (idempotency_key) DO NOTHING")
    shop.intend("order-2", "ON CONFLICT DO NOTHING RETURNING id")
    assert works(owner) == 2


def test_objects_of_the_caller_do_not_stand_in_for_the_ledgers(shop: Database, owner: Database) -> None:
    """The functions run as the owner: a temporary table of the same name must not be what they read."""
    shop.execute("CREATE TEMP TABLE notify_suppression (recipient_id text, channel text)")
    shop.execute("CREATE TEMP TABLE notify_work (delivery_id text)")
    shop.execute(
        "INSERT INTO public.notify_delivery (event_id, recipient_id, channel, template) VALUES ('e', 'r', 'email', 't')"
    )
    assert owner.delivery("e") == "queued"
    assert works(owner) == 1


def test_a_time_no_clock_can_reach_is_refused(owner: Database) -> None:
    for column in ("due_at", "expires_at"):
        for wrong in ("infinity", "-infinity", "0001-01-01 BC", "12000-01-01"):
            with pytest.raises(psycopg.Error):
                owner.intend("order-1", **{column: wrong})
