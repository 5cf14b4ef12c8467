"""What the ledger says when asked: right on both databases, and by an index whatever the history's size."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from notifyctl.ledger import inspection
from notifyctl.ledger.database import Ledger, Tx
from notifyctl.ledger.inspection import Filter
from notifyctl.model import State
from notifyctl.pacing import Meter
from tests.ledger.databases import Database

START = datetime(2026, 1, 1, tzinfo=UTC)


class Desk:
    """A ledger to put deliveries into, and to ask."""

    def __init__(self, url: str) -> None:
        self.ledger = Ledger(url)
        self.database = Database(url)

    def put(self, event: str, state: str = "queued", step: str | None = "send", **columns: Any) -> int:
        """A delivery in this state; `step` None: its work is done."""
        self.database.intend(event, **{"recipient_id": f"r-{event}", **columns})
        number: int = self.database.delivery(event, "id")
        if step is None:
            self.database.execute("DELETE FROM notify_work WHERE delivery_id = ?", number)
        else:
            self.database.execute("UPDATE notify_work SET step = ? WHERE delivery_id = ?", step, number)
        self.database.execute("UPDATE notify_delivery SET state = ? WHERE id = ?", state, number)
        return number

    def page(self, limit: int = 100, before: Any = None, **filters: Any) -> list[dict[str, Any]]:
        """One page of a list."""
        return self.ledger.read(lambda tx: inspection.page(tx, Filter(**filters), limit, before))

    def events(self, **filters: Any) -> list[str]:
        """The events of a list's deliveries, in its order."""
        return [row["event_id"] for row in self.page(**filters)]


@pytest.fixture
def desk(migrated_url: str) -> Iterator[Desk]:
    made = Desk(migrated_url)
    yield made
    made.database.connection.close()
    made.ledger.close()


# -- the overview -----------------------------------------------------------------------------------------------


def test_live_rows_are_counted_by_state_lane_and_region(desk: Desk) -> None:
    for n in range(3):
        desk.put(f"q{n}")
    desk.put("retry", "temporary_failure")
    desk.put("mandated", "ambiguous", "send")
    desk.put("sending", "sending", "resolve")
    desk.put("doubt", "ambiguous", "resolve")
    desk.put("taken", "accepted", "check")
    desk.put("asked", "pending", "check")
    desk.put("north", region="eu")
    desk.put("text", channel="sms")
    live = desk.ledger.read(inspection.overview).live
    assert {place: {s.value: n for s, n in states.items() if n} for place, states in live.items()} == {
        ("email", ""): {
            "queued": 3, "temporary_failure": 1, "ambiguous": 2, "sending": 1, "accepted": 1, "pending": 1,
        },
        ("email", "eu"): {"queued": 1},
        ("sms", ""): {"queued": 1},
    }  # fmt: skip


def test_what_is_at_rest_is_not_live(desk: Desk) -> None:
    for n, state in enumerate(("accepted", "delivered", "suppressed", "dead_letter", "unresolved", "dead_letter")):
        desk.put(f"e{n}", state, None)
    seen = desk.ledger.read(inspection.overview)
    assert seen.live == {}
    assert seen.review == {State.DEAD_LETTER: 2, State.UNRESOLVED: 1}


def test_the_oldest_age_is_that_of_the_send_which_was_due_first(desk: Desk) -> None:
    now = desk.ledger.read(lambda tx: tx.now)
    for n, minutes in enumerate((10, 30, 20)):
        desk.put(f"e{n}", due_at=(now - timedelta(minutes=minutes)).isoformat())
    desk.put("gone", "accepted", "check", due_at=(now - timedelta(hours=9)).isoformat())
    desk.put("later", lane="bulk", due_at=(now + timedelta(hours=1)).isoformat())
    ages = desk.ledger.read(inspection.overview).ages
    assert set(ages) == {("email", "")}
    assert ages["email", ""] == pytest.approx(1800, abs=60)


def test_only_doubt_that_a_person_was_told_of_is_held(desk: Desk) -> None:
    desk.put("replay", "ambiguous", "send")
    desk.put("looked up", "ambiguous", "resolve")
    number = desk.put("doubt", "ambiguous", "resolve", lane="bulk")
    desk.database.execute("UPDATE notify_work SET held = ? WHERE delivery_id = ?", True, number)
    assert desk.ledger.read(inspection.overview).held == 1


# -- one delivery -----------------------------------------------------------------------------------------------


def test_a_delivery_is_found_by_id_and_by_key_with_all_its_columns(desk: Desk, dialect: str) -> None:
    number = desk.put("order", variables='{"name": "Jane"}', sensitive=True, topic="news")
    by_id = desk.ledger.read(lambda tx: inspection.delivery(tx, number))
    by_key = desk.ledger.read(lambda tx: inspection.delivery(tx, "5:order:r-order:email"))
    assert by_id is not None
    assert by_id == by_key
    table = "pragma_table_xinfo('notify_delivery')" if dialect == "sqlite" else "information_schema.columns"
    name = "name" if dialect == "sqlite" else "column_name"
    where = "" if dialect == "sqlite" else " WHERE table_name = 'notify_delivery'"
    assert set(by_id.delivery) == {row[0] for row in desk.database.execute(f"SELECT {name} FROM {table}{where}")}
    assert by_id.delivery["variables"] == {"name": "Jane"}
    assert by_id.delivery["sensitive"] is True
    assert by_id.delivery["created_at"].tzinfo is UTC
    assert by_id.work is not None
    assert by_id.work["step"] == "send"
    assert [one["to"] for one in by_id.transitions] == ["queued"]


@pytest.mark.parametrize("which", [7, "7", "5:order:nobody:email", "", 10**17])
def test_what_is_not_there_is_none(desk: Desk, which: int | str) -> None:
    desk.put("order")
    assert desk.ledger.read(lambda tx: inspection.delivery(tx, which)) is None


def test_a_pruned_delivery_is_known_by_its_key(desk: Desk) -> None:
    number = desk.put("old", "delivered", None)
    desk.database.execute("DELETE FROM notify_transition WHERE delivery_id = ?", number)
    desk.database.execute("DELETE FROM notify_delivery WHERE id = ?", number)
    assert desk.ledger.read(lambda tx: inspection.delivery(tx, "3:old:r-old:email")) is None
    assert desk.ledger.read(lambda tx: inspection.pruned(tx, "3:old:r-old:email"))
    assert not desk.ledger.read(lambda tx: inspection.pruned(tx, "3:new:r-new:email"))


def test_attempts_and_receipts_come_in_order(desk: Desk) -> None:
    number = desk.put("order")
    for attempt in (2, 1):
        desk.database.insert(
            "notify_attempt", delivery_id=number, number=attempt, run="run-1", fencing_token=attempt, transport="out",
            started="2026-01-01 00:00:00.000000", outcome="ambiguous", remote_ids='["a", "b"]',
        )  # fmt: skip
    for status in ("pending", "delivered"):
        desk.database.insert("notify_receipt", delivery_id=number, status=status)
    found = desk.ledger.read(lambda tx: inspection.delivery(tx, number))
    assert found is not None
    assert [one["number"] for one in found.attempts] == [1, 2]
    assert found.attempts[0]["remote_ids"] == ["a", "b"]
    assert found.attempts[0]["started"] == START
    assert [one["status"] for one in found.receipts] == ["pending", "delivered"]


def test_the_newest_consent_endpoint_and_suppression_are_joined_in(desk: Desk) -> None:
    number = desk.put("order", topic="news")
    pair = {"recipient_id": "r-order", "channel": "email"}
    for address, fingerprint in (("old@example.com", "f1"), ("new@example.com", "f2")):
        desk.database.insert("notify_endpoint", address=address, fingerprint=fingerprint, **pair)
    desk.database.insert("notify_consent", topic="news", granted=True, **pair)
    desk.database.insert("notify_suppression", reason="hard_bounce", fingerprint="f1", **pair)
    found = desk.ledger.read(lambda tx: inspection.delivery(tx, number))
    assert found is not None
    assert (found.address, found.fingerprint, found.consent) == ("new@example.com", "f2", True)
    assert found.suppression is None  # it concerns the old address
    assert "example" not in repr(found)


def test_a_template_counts_as_published_in_the_pinned_version_only(desk: Desk) -> None:
    part = {"name": "welcome", "part": "text", "body": "x", "sha256": "x", "sequence": 1}
    newest, pinned = desk.put("a"), desk.put("b", template_version="2")
    desk.database.insert("notify_template", version="1", **part)
    published = [
        found.template_published
        for number in (newest, pinned)
        if (found := desk.ledger.read(lambda tx, which=number: inspection.delivery(tx, which)))
    ]
    assert published == [True, False]


def test_meters_are_read_and_none_is_made(desk: Desk) -> None:
    start = "2026-01-01 00:00:00.000000" + ("Z" if desk.database.dialect == "postgresql" else "")
    desk.database.insert("notify_pace", key="lane:email", rate="5/h", window_start=start, count=5)
    keys = [("lane:email", "5/h"), ("lane:email", "1/s")]
    assert desk.ledger.read(lambda tx: inspection.meters(tx, keys)) == {("lane:email", "5/h"): Meter(None, START, 5)}
    assert desk.database.one("SELECT count(*) FROM notify_pace") == 1


# -- lists ------------------------------------------------------------------------------------------------------


def test_each_filter_narrows_the_list_and_all_must_hold(desk: Desk) -> None:
    desk.put("a", "dead_letter", None, lane="bulk", created_at="2026-01-01T00:00:00Z")
    desk.put("b", "suppressed", None, created_at="2026-01-02T00:00:00Z")
    number = desk.put("c", "accepted", None, created_at="2026-01-03T00:00:00Z")
    desk.put("d", created_at="2026-01-04T00:00:00Z")
    desk.database.execute("UPDATE notify_delivery SET remote_id = 'x-1', reason = 'ok' WHERE id = ?", number)
    dead, suppressed, accepted = State.DEAD_LETTER, State.SUPPRESSED, State.ACCEPTED
    second, fourth = START + timedelta(days=1), START + timedelta(days=3)
    assert desk.events() == ["d", "c", "b", "a"]
    assert desk.events(states=(dead,)) == ["a"]
    assert desk.events(states=(dead, suppressed, dead)) == ["b", "a"]
    assert desk.events(lane="bulk") == ["a"]
    assert desk.events(event="b") == ["b"]
    assert desk.events(recipient="r-b") == ["b"]
    assert desk.events(remote_id="x-1") == ["c"]
    assert desk.events(reason="ok") == ["c"]
    assert desk.events(since=second) == ["d", "c", "b"]
    assert desk.events(until=second) == ["a"]
    assert desk.events(since=second, until=fourth) == ["c", "b"]
    assert desk.events(since=second, states=(dead, suppressed)) == ["b"]
    assert desk.events(since=second, states=(dead, accepted)) == ["c"]
    assert desk.events(event="b", states=(dead,)) == []
    assert desk.events(event="b", states=(suppressed,), lane="email", since=second) == ["b"]
    assert desk.events(lane="nowhere") == []


@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"states": (State.QUEUED, State.DEAD_LETTER)},
        {"event": "same"},
        {"since": START},
        {"since": START, "states": (State.ACCEPTED, State.QUEUED, State.DEAD_LETTER)},
    ],
)
def test_pages_follow_each_other_without_gap_or_repetition(desk: Desk, filters: dict[str, Any]) -> None:
    states = ("queued", "accepted", "dead_letter")
    for n in range(12):
        desk.database.intend("same", recipient_id=f"r{n}", created_at=(START + timedelta(minutes=n // 4)).isoformat())
        number = desk.database.one("SELECT max(id) FROM notify_delivery")
        desk.database.execute("UPDATE notify_delivery SET state = ? WHERE id = ?", states[n % 3], number)
    whole = [row["id"] for row in desk.page(**filters)]
    assert whole == sorted(whole, reverse=True)
    paged: list[int] = []
    last = None
    while page := desk.page(5, last, **filters):
        paged += [row["id"] for row in page]
        last = page[-1]
    assert paged == whole
    assert len(whole) == (8 if filters.get("states") == (State.QUEUED, State.DEAD_LETTER) else 12)


def test_a_listed_delivery_has_its_work_row_or_none(desk: Desk) -> None:
    desk.put("done", "delivered", None)
    desk.put("live")
    live, done = desk.page()
    assert done["work"] is None
    assert live["work"]["step"] == "send"


def test_runs_come_newest_first_and_page(desk: Desk) -> None:
    for n in range(5):
        desk.database.insert(
            "notify_run", id=f"run-{n}", command="dispatch", host="h", pid=1, version="0",
            started=f"2026-01-01 00:00:0{n // 2}.000000", counts='{"claimed": 1}',
        )  # fmt: skip
    first = desk.ledger.read(lambda tx: inspection.runs(tx, 3))
    rest = desk.ledger.read(lambda tx: inspection.runs(tx, 3, first[-1]))
    assert [run["id"] for run in first + rest] == ["run-4", "run-3", "run-2", "run-1", "run-0"]
    assert first[0]["counts"] == {"claimed": 1}


def test_an_event_is_counted_by_channel_and_state(desk: Desk) -> None:
    for n in range(3):
        desk.database.intend("order", recipient_id=f"r{n}")
    desk.database.intend("order", channel="sms")
    desk.database.execute(
        "UPDATE notify_delivery SET state = 'accepted', accepted_at = ?, settled_at = ? WHERE recipient_id = 'r0'",
        "2026-01-01 00:00:00.000000", "2026-01-01 00:00:00.000000",
    )  # fmt: skip
    assert desk.ledger.read(lambda tx: inspection.event(tx, "order")) == [
        ("email", "accepted", 1, 1, 1), ("email", "queued", 2, 0, 0), ("sms", "queued", 1, 0, 0),
    ]  # fmt: skip
    assert desk.ledger.read(lambda tx: inspection.event(tx, "unknown")) == []


# -- plans ------------------------------------------------------------------------------------------------------


class Planner:
    """Answers as the database does, and keeps how it went about it."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.plans: list[str] = []
        self.explain = "EXPLAIN QUERY PLAN " if desk.database.dialect == "sqlite" else "EXPLAIN "

    def tx(self) -> Tx:
        return Tx(self._execute, self.desk.ledger.dialect, START, False)

    def _execute(self, sql: str, parameters: Any) -> Any:
        connection = self.desk.database.connection
        self.plans.append("\n".join(str(row) for row in connection.execute(self.explain + sql, parameters)))
        return connection.execute(sql, parameters)


@pytest.fixture
def planner(desk: Desk, dialect: str) -> Planner:
    """On Postgres small tables are scanned whatever the indexes; what would be scanned anyway still shows."""
    desk.put("a")
    if dialect == "postgresql":
        desk.database.execute("SET enable_seqscan = off")
        desk.database.execute("SET enable_sort = off")
    return Planner(desk)


@pytest.mark.parametrize(
    ("filters", "index"),
    [
        ({"states": (State.DEAD_LETTER,)}, "notify_delivery_state"),
        ({"states": (State.DEAD_LETTER, State.ACCEPTED)}, "notify_delivery_state"),
        ({"states": (State.DEAD_LETTER,), "lane": "email", "since": START}, "notify_delivery_state"),
        ({"event": "a", "states": (State.QUEUED,)}, "notify_delivery_event"),
        ({"event": "a", "since": START}, "notify_delivery_event"),
        ({"recipient": "a", "states": (State.QUEUED,)}, "notify_delivery_recipient"),
        ({"remote_id": "a", "states": (State.ACCEPTED,)}, "notify_delivery_remote"),
        ({"since": START}, "notify_delivery_created"),
        ({"since": START, "states": (State.ACCEPTED,)}, "notify_delivery_created"),
    ],
)
def test_a_list_walks_down_the_index_of_its_narrowest_filter(
    planner: Planner, filters: dict[str, Any], index: str
) -> None:
    for before in (None, {"id": 9, "created_at": START}):
        inspection.page(planner.tx(), Filter(**filters), 100, before)
    for plan in planner.plans:
        assert index in plan
        assert "SCAN d" not in plan
        assert "Seq Scan on notify_delivery" not in plan


def test_the_overview_reads_the_work_table_and_states_that_are_never_history(planner: Planner) -> None:
    inspection.overview(planner.tx())
    for plan in planner.plans:
        assert "SCAN d" not in plan
        assert "Seq Scan on notify_delivery" not in plan


def test_one_delivery_is_found_by_indexes_alone(planner: Planner) -> None:
    inspection.delivery(planner.tx(), 1)
    inspection.delivery(planner.tx(), "1:a:r-a:email")
    for plan in planner.plans:
        assert "SCAN d" not in plan
        assert "SCAN x" not in plan
        assert "Seq Scan" not in plan
