"""What becomes of an accepted delivery by what its provider says: on both databases, with a scripted provider."""

from __future__ import annotations

import os
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from notifyctl.ledger.database import Ledger
from notifyctl.ticks import receipts, receipts_feeds
from tests.scripted import HOOKS, Desk, append, lines


def when(desk: Desk, number: int, column: str = "w.eligible_at") -> datetime:
    """An instant of the work row of e<number>, or of the delivery (`d.`)."""
    ledger = Ledger(desk.url)
    try:
        (row,) = ledger.read(
            lambda tx: tx.execute(
                f"SELECT {column} FROM notify_delivery d LEFT JOIN notify_work w ON w.delivery_id = d.id "
                "WHERE d.event_id = :event",
                event=f"e{number}",
            )
        )
        found = ledger.dialect.instant(row[0])
        assert found is not None
        return found
    finally:
        ledger.close()


@pytest.fixture(params=["lookup", "feed"])
def desk(request: pytest.FixtureRequest, tmp_path: Path, migrated_url: str) -> Desk:
    """Both ways of learning receipts; what holds for one holds for the other."""
    return Desk(tmp_path, migrated_url, request.param)


@pytest.fixture
def looking(tmp_path: Path, migrated_url: str) -> Desk:
    return Desk(tmp_path, migrated_url)


@pytest.fixture
def feeding(tmp_path: Path, migrated_url: str) -> Desk:
    return Desk(tmp_path, migrated_url, "feed")


# -- one receipt after another ----------------------------------------------------------------------------------------


def test_a_delivered_receipt_settles_the_delivery_and_is_kept(desk: Desk) -> None:
    desk.send(2)
    desk.says(1, "delivered")
    desk.due()
    done = desk.polled()
    assert (done["delivered"], done["pending"], done["errors"], done["unmatched"]) == (1, 1, 0, 0)
    assert done["transports"]["relay"]["delivered"] == 1
    assert done["drained"]
    assert desk.delivery(1) == "delivered"
    assert desk.receipts(1) == ["delivered"]
    assert desk.trail(1)[-2:] == ["accepted", "delivered"]
    assert desk.sql("SELECT d.event_id FROM notify_work w JOIN notify_delivery d ON d.id = w.delivery_id") == [("e2",)]
    assert desk.sql("SELECT owner FROM notify_work") == [(None,)]
    assert desk.sql("SELECT command, exit_code FROM notify_run ORDER BY started")[-1] == ("poll-receipts", 0)
    assert lines(desk.provider / "sent.jsonl")[2:] == []


def test_a_provider_whose_clock_is_mad_is_heard_all_the_same(desk: Desk) -> None:
    mad = ("9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00", "0001-01-01T00:00:00+00:00", "1969-12-31T23:00Z")
    desk.send(len(mad) + 1)
    for number, moment in enumerate(mad, 1):
        desk.says(number, "delivered", moment)
    desk.says(len(mad) + 1, "delivered", "9999-12-31T23:59:59.999999+00:00")
    desk.due()
    assert desk.polled()["delivered"] == len(mad) + 1
    for number in range(1, len(mad) + 2):
        assert desk.delivery(number) == "delivered"
    kept = desk.sql("SELECT count(*), count(provider_time) FROM notify_receipt")
    assert kept == [(len(mad) + 1, 1)]
    for number in (1, len(mad) + 1):
        (key,) = desk.sql("SELECT id FROM notify_delivery WHERE event_id = ?", f"e{number}")[0]
        assert desk.beside("inspect", "delivery", str(key)).code == 0


def test_a_poll_with_nothing_due_writes_nothing(desk: Desk) -> None:
    desk.send()
    desk.says(1, "delivered")
    if desk.settings["transports.relay"]["receipts"] == "feed":
        desk.sql("INSERT INTO notify_cursor (transport, eligible_at) VALUES ('relay', '2100-01-01 00:00:00.000000')")
    before = desk.sql("SELECT * FROM notify_work"), desk.sql("SELECT * FROM notify_cursor")
    assert desk.polled()["run"] is None
    assert (desk.sql("SELECT * FROM notify_work"), desk.sql("SELECT * FROM notify_cursor")) == before
    assert desk.sql("SELECT count(*) FROM notify_run WHERE command = 'poll-receipts'") == [(0,)]


def test_pending_is_asked_again_later_and_later_and_kept_once(looking: Desk) -> None:
    looking.send()
    looking.says(1, "pending", reason="queued_at_carrier")
    for tries in (1, 2, 3):
        looking.due()
        assert looking.polled()["pending"] == 1
        assert looking.sql("SELECT tries, owner FROM notify_work") == [(tries, None)]
        wait = (when(looking, 1) - when(looking, 1, "d.updated_at")).total_seconds()
        assert 7.5 * 2 ** (tries - 1) - 1 <= wait <= 15 * 2 ** (tries - 1) + 1
    assert looking.delivery(1, "state, reason") == ("pending", "queued_at_carrier")
    assert looking.receipts(1) == ["pending"]
    assert looking.trail(1).count("pending") == 1
    assert len(lines(looking.provider / "sent.jsonl")) == 1


def test_an_id_that_is_not_known_yet_is_asked_again_and_leaves_the_reason_as_it_is(looking: Desk) -> None:
    looking.send()
    looking.sql("UPDATE notify_delivery SET reason = 'kept'")
    looking.due()
    assert looking.polled()["pending"] == 1
    assert looking.delivery(1, "state, reason") == ("accepted", "kept")
    assert looking.receipts(1) == []


def test_receipts_out_of_order_and_twice_never_take_a_delivery_back(feeding: Desk) -> None:
    feeding.send()
    feeding.says(1, "delivered", 20)
    feeding.says(1, "pending", 10)
    feeding.says(1, "delivered", 20)
    feeding.says(1, "failure", 5, reason="late_news")
    assert feeding.polled()["delivered"] == 1
    feeding.says(1, "pending", 10)
    feeding.says(1, "pending", 30)
    feeding.says(1, "hard_bounce", 6)
    feeding.due()
    feeding.polled()
    assert feeding.delivery(1) == "delivered"
    assert feeding.receipts(1) == ["delivered", "pending", "failure", "pending", "hard_bounce"]
    assert feeding.suppressions() == []
    assert feeding.trail(1).count("delivered") == 1


def test_a_later_bounce_revises_delivered_and_both_stay_in_the_trail(feeding: Desk) -> None:
    feeding.send()
    feeding.says(1, "delivered", 20)
    feeding.says(1, "hard_bounce", 60, reason="mailbox_gone", code="5.1.1")
    done = feeding.polled()
    assert (done["checked"], done["suppressed"]) == (2, 1)
    assert feeding.delivery(1, "state, reason") == ("suppressed", "hard_bounce")
    assert feeding.trail(1)[-2:] == ["delivered", "suppressed"]
    assert feeding.suppressions() == [("r-1", "email", "hard_bounce")]


def test_opens_and_what_belongs_to_nobody_are_counted_and_stop_nothing(feeding: Desk) -> None:
    feeding.send()
    append(feeding.provider / "says.jsonl", {"noise": True})
    feeding.says("m-of-somebody-else", "hard_bounce", 1)
    feeding.says(1, "delivered")
    append(feeding.provider / "says.jsonl", {"remote_id": "", "key": "x" * 32, "status": "hard_bounce"})
    done = feeding.polled()
    assert (done["unmatched"], done["delivered"], done["checked"]) == (3, 1, 1)
    assert feeding.suppressions() == []
    assert [one["unknown"] for one in lines(feeding.provider / "fed.jsonl")] == [2]


def test_an_id_that_several_deliveries_share_is_nobodys(feeding: Desk) -> None:
    feeding.send(2)
    feeding.sql("UPDATE notify_delivery SET remote_id = 'same'")
    feeding.says("same", "delivered")
    assert feeding.polled()["unmatched"] == 1
    assert feeding.states() == {"accepted": 2}


def test_the_id_of_another_transport_is_not_ours(feeding: Desk) -> None:
    feeding.send()
    feeding.sql("UPDATE notify_delivery SET transport = 'other'")
    feeding.says(1, "delivered")
    assert feeding.polled()["unmatched"] == 1


def test_texts_from_outside_stop_nothing(feeding: Desk) -> None:
    feeding.send()
    feeding.says("nul\0 and \ud800", "delivered")
    feeding.says(1, "failure", 1, reason="a\0b\udfff" * 100, code="x\n" * 300)
    done = feeding.polled()
    assert (done["unmatched"], done["permanent_failure"]) == (1, 1)
    assert feeding.delivery(1) == "permanent_failure"


# -- a receipt before its acceptance ----------------------------------------------------------------------------------


@pytest.mark.parametrize("lapsed", [False, True])
def test_a_receipt_by_our_key_is_the_acceptance_that_nobody_recorded(
    tmp_path: Path, migrated_url: str, lapsed: bool
) -> None:
    desk = Desk(tmp_path, migrated_url, "feed")
    desk.intend(1, to="lost1@rcpt.example")
    desk.dispatched()
    assert desk.delivery(1) == "ambiguous"
    if lapsed:  # as a run leaves it that died before it heard the answer
        desk.sql("UPDATE notify_delivery SET state = 'sending', doubt_since = NULL")
        desk.sql("UPDATE notify_attempt SET outcome = NULL, finished = NULL, reason = ''")
        desk.sql("UPDATE notify_work SET owner = 'dead', eligible_at = '2100-01-01 00:00:00.000000'")
    (sent,) = lines(desk.provider / "sent.jsonl")
    append(desk.provider / "says.jsonl", {"remote_id": "m-1", "key": sent["key"], "status": "delivered", "at": 3})
    assert desk.polled()["delivered"] == 1
    state, remote, doubt, accepted = desk.delivery(1, "state, remote_id, doubt_since, accepted_at")
    assert (state, remote, doubt) == ("delivered", "m-1", None)
    assert accepted is not None
    assert desk.trail(1)[-2:] == ["accepted", "delivered"]
    assert desk.sql("SELECT outcome, reason, remote_id FROM notify_attempt") == [("accepted", "receipt", "m-1")]
    assert desk.sql("SELECT * FROM notify_work") == []
    desk.later()
    assert desk.dispatched()["claimed"] == 0
    assert len(lines(desk.provider / "sent.jsonl")) == 1


def test_an_acceptance_that_comes_after_its_receipt_takes_nothing_back(tmp_path: Path, migrated_url: str) -> None:
    """The receipt is read while the answer is still on its way: the dispatcher finds its work done."""
    desk = Desk(tmp_path, migrated_url, "feed")
    desk.intend(1)
    begun: list[Any] = []

    def between(point: str) -> None:
        if point == "sent" and not begun:
            begun.append(point)
            (sent,) = lines(desk.provider / "sent.jsonl")
            append(
                desk.provider / "says.jsonl",
                {"remote_id": sent["ids"][0], "key": sent["key"], "status": "delivered", "at": 3},
            )
            desk.beside("poll-receipts")

    HOOKS["relay"] = between
    try:
        done = desk.dispatched()
    finally:
        HOOKS.clear()
    assert begun
    assert done["accepted"] == 1
    assert desk.delivery(1) == "delivered"
    assert desk.trail(1) == ["queued", "sending", "accepted", "delivered"]
    assert desk.sql("SELECT outcome FROM notify_attempt") == [("accepted",)]
    assert desk.sql("SELECT * FROM notify_work") == []


# -- several parts ----------------------------------------------------------------------------------------------------


def test_a_message_in_parts_is_delivered_once_all_of_them_are(desk: Desk) -> None:
    desk.intend(1, to="p2a@rcpt.example")
    desk.dispatched()
    first = desk.remote_id(1)
    fed = desk.settings["transports.relay"]["receipts"] == "feed"
    desk.says(first, "delivered", 1)
    desk.due()
    assert desk.polled()["pending"] == 1
    assert desk.delivery(1) == "pending"
    desk.says(first if fed else f"{first}-2", "delivered", 2, part=1)
    desk.due()
    assert desk.polled()["delivered"] == 1
    assert desk.delivery(1, "state, remote_id") == ("delivered", first)
    assert desk.sql("SELECT part, status FROM notify_receipt ORDER BY part") == [(0, "delivered"), (1, "delivered")]


def test_a_failed_part_stays_visible_whatever_comes_of_the_others(feeding: Desk) -> None:
    feeding.intend(1, to="p2a@rcpt.example")
    feeding.dispatched()
    feeding.says(1, "failure", 5, part=1, reason="unreachable")
    assert feeding.polled()["permanent_failure"] == 1
    feeding.says(1, "delivered", 9, part=0)
    feeding.due()
    feeding.polled()
    assert feeding.delivery(1, "state, reason") == ("permanent_failure", "unreachable")
    assert feeding.receipts(1) == ["failure", "delivered"]
    feeding.says(1, "delivered", 20, part=1)  # the carrier takes it back
    feeding.due()
    feeding.polled()
    assert feeding.delivery(1) == "delivered"


def test_a_part_that_bounces_later_suppresses_once(feeding: Desk) -> None:
    feeding.intend(1, to="p2a@rcpt.example")
    feeding.dispatched()
    for part in (0, 1):
        feeding.says(1, "delivered", 30, part=part)
    feeding.polled()
    assert feeding.delivery(1) == "delivered"
    feeding.says(1, "hard_bounce", 31, part=0)
    feeding.says(1, "hard_bounce", 10, part=1)  # older than what that part said last
    feeding.due()
    feeding.polled()
    assert feeding.delivery(1) == "suppressed"
    assert len(feeding.suppressions()) == 1


# -- ends that are none -----------------------------------------------------------------------------------------------


def test_past_its_deadline_a_delivery_is_looked_up_once_more_and_then_unresolved(desk: Desk) -> None:
    desk.send(2)
    desk.sql("UPDATE notify_delivery SET accepted_at = '2001-01-01 00:00:00.000000'")
    desk.says(1, "delivered")
    desk.due()
    done = desk.polled(code=3)
    assert (done["delivered"], done["unresolved"]) == (1, 1)
    assert desk.delivery(2, "state, reason") == ("unresolved", "receipt_deadline")
    asked = lines(desk.provider / "asked.jsonl")
    desk.due()
    desk.polled()
    assert desk.delivery(2) == "unresolved"
    if desk.settings["transports.relay"]["receipts"] == "lookup":
        assert lines(desk.provider / "asked.jsonl") == asked
    assert desk.dispatched()["claimed"] == 0
    assert len(lines(desk.provider / "sent.jsonl")) == 2


def test_an_unresolved_delivery_is_corrected_by_what_comes_late(feeding: Desk) -> None:
    feeding.send()
    feeding.sql("UPDATE notify_delivery SET accepted_at = '2001-01-01 00:00:00.000000'")
    feeding.due()
    feeding.polled(code=3)
    feeding.says(1, "delivered", 99)
    feeding.due()
    assert feeding.polled()["delivered"] == 1
    assert feeding.trail(1)[-2:] == ["unresolved", "delivered"]


def test_what_the_provider_no_longer_knows_is_unresolved(looking: Desk) -> None:
    looking.send()
    looking.says(1, "gone")
    looking.due()
    assert looking.polled(code=3)["unresolved"] == 1
    assert looking.delivery(1, "state, reason") == ("unresolved", "gone")


def test_a_requeued_check_has_a_new_deadline_and_sends_nothing(looking: Desk) -> None:
    looking.send()
    looking.sql("UPDATE notify_delivery SET accepted_at = '2001-01-01 00:00:00.000000'")
    looking.due()
    looking.polled(code=3)
    assert looking.run("requeue", looking.delivery(1, "id").__str__(), "--reason", "again", "--json").code == 0
    assert looking.polled()["pending"] == 1
    assert looking.delivery(1) == "pending"
    looking.says(1, "delivered", 5)
    looking.due()
    assert looking.polled()["delivered"] == 1
    assert len(lines(looking.provider / "sent.jsonl")) == 1


def test_bounces_only_ends_at_the_deadline_without_a_receipt(tmp_path: Path, migrated_url: str) -> None:
    desk = Desk(tmp_path, migrated_url, "bounces_only")
    desk.send(2)
    due = when(desk, 1) - when(desk, 1, "d.accepted_at")
    assert due == timedelta(hours=72)
    desk.says(2, "hard_bounce", 4)
    desk.polled()
    assert desk.delivery(2) == "suppressed"
    desk.sql("UPDATE notify_delivery SET accepted_at = '2001-01-01 00:00:00.000000'")
    desk.due()
    assert desk.polled()["no_receipt_expected"] == 1
    assert desk.delivery(1, "state, reason") == ("accepted", "no_receipt_expected")
    assert desk.sql("SELECT * FROM notify_work") == []
    desk.says(1, "hard_bounce", 9)  # the mailbox brings it after the deadline
    desk.due()
    assert desk.polled()["suppressed"] == 1
    assert desk.delivery(1) == "suppressed"


def test_a_check_falls_before_the_provider_forgets(tmp_path: Path, migrated_url: str) -> None:
    desk = Desk(tmp_path, migrated_url, window=100)
    desk.configure(lane={"receipt": {"first": "10m"}})
    desk.send()
    assert when(desk, 1) - when(desk, 1, "d.accepted_at") == timedelta(seconds=90)


# -- status endpoints that fail, limits, budgets ----------------------------------------------------------------------


def test_a_failing_status_endpoint_only_reschedules(desk: Desk) -> None:
    desk.send(2)
    desk.due()
    (desk.provider / "down").write_text("timeout")
    done = desk.polled(code=75)
    fed = desk.settings["transports.relay"]["receipts"] == "feed"
    assert done["errors"] == (3 if fed else 2)
    assert (done["pending"], done["unresolved"]) == (0, 0)
    assert desk.states() == {"accepted": 2}
    assert desk.sql("SELECT DISTINCT owner, tries FROM notify_work") == [(None, 1)]
    assert when(desk, 1) > datetime.now(UTC)
    (desk.provider / "down").unlink()
    for number in (1, 2):
        desk.says(number, "delivered")
    desk.due()
    assert desk.polled()["delivered"] == 2


def test_a_provider_that_asks_for_time_is_left_alone_for_as_long(looking: Desk) -> None:
    looking.send(4)
    looking.settings["transports.relay"]["status_rate"] = "1/s"
    looking.configure()
    looking.due()
    (looking.provider / "down").write_text("throttled 7200")
    assert looking.polled(code=75)["errors"] == 1, "who was told to wait asked again"
    told = when(looking, 1)
    assert told > datetime.now(UTC) + timedelta(seconds=7000)
    assert looking.sql("SELECT count(*) FROM notify_work WHERE owner IS NOT NULL") == [(0,)]
    assert all(when(looking, number) > datetime.now(UTC) + timedelta(seconds=3000) for number in (2, 3, 4))
    (looking.provider / "down").write_text("throttled 99999999999")
    looking.due()
    looking.polled(code=75)
    assert when(looking, 1) < datetime.now(UTC) + timedelta(days=4), "no later than its receipt is awaited"


def test_rejected_credentials_are_a_fault_of_the_configuration(looking: Desk) -> None:
    looking.send()
    looking.due()
    (looking.provider / "down").write_text("credentials_rejected")
    assert looking.polled(code=78)["errors"] == 1


def test_a_bug_in_a_transport_is_exit_1_and_stops_no_other_row(looking: Desk) -> None:
    looking.send(3)
    looking.due()
    (looking.provider / "down").write_text("bug")
    assert looking.polled(code=1)["errors"] == 3
    assert looking.states() == {"accepted": 3}


def test_an_endpoint_that_is_down_is_left_alone_after_a_few_tries(looking: Desk) -> None:
    looking.configure(lane={"concurrency": 1})
    looking.send(20)
    looking.due()
    (looking.provider / "down").write_text("timeout")
    done = looking.polled(code=75)
    assert done["errors"] == len(lines(looking.provider / "asked.jsonl")) < 20
    assert looking.sql("SELECT count(*) FROM notify_work WHERE owner IS NOT NULL") == [(0,)]
    assert looking.sql("SELECT count(*) FROM notify_work WHERE tries = 0") == [(20 - done["errors"],)]


def test_look_ups_share_the_status_rate_with_all_processes(tmp_path: Path, migrated_url: str) -> None:
    desk = Desk(tmp_path, migrated_url, declared="2/d")
    desk.send(5)
    for number in range(1, 6):
        desk.says(number, "delivered")
    desk.due()
    assert desk.polled()["delivered"] == 2
    desk.due()
    assert desk.polled()["delivered"] == 0
    assert len(lines(desk.provider / "asked.jsonl")) == 2
    assert desk.sql("SELECT key, count FROM notify_pace WHERE key LIKE 'status:%'") == [("status:relay", 2)]
    assert desk.sql("SELECT owner FROM notify_work") == [(None,)] * 3
    desk.configure(relay={"status_rate": "100/d"})
    desk.due()
    assert desk.polled()["delivered"] == 3


def test_each_part_counts_against_the_status_rate(tmp_path: Path, migrated_url: str) -> None:
    desk = Desk(tmp_path, migrated_url, declared="20/s")
    desk.intend(1, to="p2a@rcpt.example")
    desk.intend(2, to="p2b@rcpt.example")
    desk.dispatched()
    desk.due()
    assert desk.polled()["checked"] == 2
    assert [len(one["ids"]) for one in lines(desk.provider / "asked.jsonl")] == [2, 2]


def test_the_limit_is_for_the_run_and_the_rest_stays_due(looking: Desk) -> None:
    looking.send(7)
    looking.due()
    assert looking.polled(limit=3)["checked"] == 3
    assert looking.sql("SELECT count(*) FROM notify_work WHERE owner IS NOT NULL") == [(0,)]
    assert looking.polled()["checked"] == 4


def test_only_the_named_lane_and_transport_are_asked(looking: Desk) -> None:
    looking.settings["transports.other"] = {**looking.settings["transports.relay"]}
    looking.settings["lanes.other"] = {"channel": "email", "transport": "other"}
    looking.configure()
    looking.intend(1)
    looking.intend(2, lane="other")
    looking.dispatched()
    for number in (1, 2):
        looking.says(number, "delivered")
    looking.due()
    assert looking.polled(lane="other")["delivered"] == 1
    assert looking.delivery(2) == "delivered"
    assert looking.polled("other")["checked"] == 0
    assert looking.polled("relay")["delivered"] == 1


def test_a_transport_that_cannot_be_opened_leaves_the_others_running(looking: Desk) -> None:
    looking.settings["transports.broken"] = {"kind": "smtp", "host": "127.0.0.1", "from": "a@shop.example"}
    looking.settings["lanes.other"] = {"channel": "email", "transport": "broken"}
    looking.configure()
    looking.intend(1)
    looking.intend(2)
    looking.dispatched()
    looking.sql("UPDATE notify_delivery SET transport = 'broken' WHERE event_id = 'e2'")
    looking.settings["transports.broken"].update(tls="starttls", ca_file="missing.pem")
    looking.configure()
    looking.says(1, "delivered")
    looking.due()
    assert looking.polled(code=78)["delivered"] == 1
    assert looking.delivery(2) == "accepted"
    assert looking.sql("SELECT owner FROM notify_work") == [(None,)]


def test_a_transport_that_is_no_longer_configured_cannot_be_asked_and_ends_unresolved(looking: Desk) -> None:
    looking.send()
    looking.sql("UPDATE notify_delivery SET transport = 'gone'")
    looking.due()
    assert looking.polled()["errors"] == 1
    assert looking.delivery(1) == "accepted"
    looking.sql("UPDATE notify_delivery SET accepted_at = '2001-01-01 00:00:00.000000'")
    looking.due()
    looking.polled(code=3)
    assert looking.delivery(1) == "unresolved"


def test_a_signal_ends_a_poll_soon_and_gives_back_what_was_not_asked_for(looking: Desk) -> None:
    looking.configure(lane={"concurrency": 1})
    looking.send(30)
    looking.due()
    stopped: list[str] = []

    def stop(point: str) -> None:
        if point == "asked" and not stopped:
            stopped.append(point)
            os.kill(os.getpid(), signal.SIGTERM)

    HOOKS["relay"] = stop
    try:
        done = looking.polled()
    finally:
        HOOKS.clear()
    assert done["drained"]
    assert 0 < done["checked"] < 30
    assert looking.sql("SELECT count(*) FROM notify_work WHERE owner IS NOT NULL") == [(0,)]
    looking.due()
    assert looking.polled()["checked"] == 30


@pytest.mark.parametrize("point", ["asked", "feed", "fed"])
def test_a_provider_that_never_answers_does_not_hold_the_run(
    tmp_path: Path, migrated_url: str, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(tmp_path, migrated_url, "lookup" if point == "asked" else "feed")
    desk.configure(relay={"deadline": "100ms"})
    desk.send()
    desk.says(1, "delivered")
    desk.due()
    monkeypatch.setattr(receipts, "MARGIN", 0.0)
    monkeypatch.setattr(receipts_feeds, "MARGIN", 0.0)
    answer = Event()

    def hang(reached: str) -> None:
        if reached == point:
            answer.wait(60)

    HOOKS["relay"] = hang
    try:
        assert not desk.polled(code=75)["drained"]
    finally:
        HOOKS.clear()
        answer.set()
    desk.due()
    assert desk.polled()["delivered"] == (0 if point == "fed" else 1)
    assert desk.delivery(1) == "delivered"


# -- ownership --------------------------------------------------------------------------------------------------------


def test_the_check_of_a_dead_run_is_taken_over_and_counted(looking: Desk) -> None:
    looking.send()
    looking.says(1, "delivered")
    looking.due()
    looking.sql("UPDATE notify_work SET owner = 'dead', fencing_token = 7")
    done = looking.polled()
    assert (done["delivered"], done["leases_recovered"]) == (1, 1)
    assert looking.delivery(1, "fencing_token") == 8


def test_what_is_learnt_after_the_lease_was_lost_is_never_lost(looking: Desk) -> None:
    looking.send(2)
    looking.says(1, "delivered")
    looking.due()

    def stolen(point: str) -> None:
        if point == "asked":
            looking.sql("UPDATE notify_work SET owner = 'other', fencing_token = 50")

    HOOKS["relay"] = stolen
    try:
        looking.polled()
    finally:
        HOOKS.clear()
    assert looking.delivery(1, "state, fencing_token") == ("delivered", 51)
    assert looking.delivery(2) == "accepted"
    assert looking.sql("SELECT owner, fencing_token, tries FROM notify_work") == [("other", 50, 0)]


def test_a_feed_is_read_by_one_at_a_time(feeding: Desk) -> None:
    feeding.send()
    feeding.says(1, "delivered")
    beside: list[Any] = []

    def meanwhile(point: str) -> None:
        if point == "feed" and not beside:
            beside.append(feeding.beside("poll-receipts"))

    HOOKS["relay"] = meanwhile
    try:
        assert feeding.polled()["delivered"] == 1
    finally:
        HOOKS.clear()
    assert beside[0].json["checked"] == 0
    assert [one["cursor"] for one in lines(feeding.provider / "asked.jsonl")] == [0]
    assert feeding.sql("SELECT cursor, owner FROM notify_cursor") == [("1", None)]


def test_a_page_that_comes_after_its_lease_does_not_count(feeding: Desk) -> None:
    """Stopped between reading and keeping, while another process reads the feed anew: its page is not applied."""
    feeding.send()
    feeding.says(1, "delivered")

    def stolen(point: str) -> None:
        if point == "feed":
            feeding.sql("UPDATE notify_cursor SET owner = 'other', fencing_token = 50, cursor = '0'")

    HOOKS["relay"] = stolen
    try:
        done = feeding.polled()
    finally:
        HOOKS.clear()
    assert (done["checked"], feeding.delivery(1)) == (0, "accepted")
    assert feeding.receipts(1) == []
    assert feeding.sql("SELECT owner, cursor FROM notify_cursor") == [("other", "0")]
    assert lines(feeding.provider / "fed.jsonl") == []


def test_a_page_read_again_after_a_crash_before_it_was_marked_changes_nothing(feeding: Desk) -> None:
    feeding.send()
    feeding.says(1, "delivered", 1)
    feeding.says(1, "complained", 2)
    assert feeding.polled()["complained"] == 1
    before = feeding.trail(1), feeding.receipts(1), feeding.suppressions()
    feeding.sql("UPDATE notify_cursor SET cursor = ''")
    feeding.due()
    done = feeding.polled()
    assert (done["complained"], done["delivered"], done["unmatched"]) == (0, 0, 0)
    assert (feeding.trail(1), feeding.receipts(1), feeding.suppressions()) == before


def test_a_long_feed_is_read_in_pages_each_kept_and_then_marked(feeding: Desk) -> None:
    feeding.configure(lane={"batch": 500})
    feeding.send()
    for at in range(450):
        feeding.says(1, "pending", at)
    feeding.says(1, "delivered", 1000)
    assert feeding.polled()["delivered"] == 1
    fed = [(one["from"], one["to"]) for one in lines(feeding.provider / "fed.jsonl")]
    assert fed == [(0, "200"), (200, "400"), (400, "451")]
    feeding.says(1, "hard_bounce", 2000)
    feeding.due()
    assert feeding.polled()["suppressed"] == 1
    assert [one["cursor"] for one in lines(feeding.provider / "asked.jsonl")] == [0, 200, 400, 451]


def test_a_feed_cut_short_by_the_limit_concludes_nothing_from_what_it_did_not_read(feeding: Desk) -> None:
    feeding.send(2)
    feeding.sql("UPDATE notify_delivery SET accepted_at = '2001-01-01 00:00:00.000000'")
    for at in range(5):
        feeding.says(1, "pending", at)
    feeding.says(2, "delivered", 9)
    feeding.due()
    assert feeding.polled(limit=3, code=3)["delivered"] == 0
    assert feeding.delivery(2) == "accepted"
    feeding.due()
    assert feeding.polled()["delivered"] == 1
