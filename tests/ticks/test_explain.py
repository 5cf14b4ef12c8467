"""Why a delivery has not gone yet, from its facts; no ledger is needed."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from notifyctl.config import Config
from notifyctl.ledger.gate import Gate
from notifyctl.ledger.inspection import DELIVERY, Found
from notifyctl.model import Channel, ConsentMode, Lane, Rate, Topic
from notifyctl.pacing import Meter
from notifyctl.settings import TransportSettings
from notifyctl.ticks.explain import Why, can_go_at, explain, limits

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)
LANE = Lane("email", Channel.EMAIL, "relay")
CONFIG = Config(
    path=Path("notifyctl.toml"), instance="test", url="sqlite:///x", templates_path=Path("t"),
    transports={"relay": TransportSettings("relay", "file", {}, Path())},
    lanes={"email": LANE, "sms": Lane("sms", Channel.SMS, "relay")},
    topics={"news": Topic("news", ConsentMode.REQUIRED)},
)  # fmt: skip


def found(*, step: str | None = "send", eligible: timedelta = -SECOND, **changes: Any) -> Found:
    """A delivery due now that nothing holds back, but for `changes` of its columns, work row or context."""
    delivery = {
        **dict.fromkeys(DELIVERY), "id": 1, "channel": "email", "lane": "email", "region": "", "state": "queued",
        "reason": "", "template": "welcome", "template_version": "1", "destination": "x", "due_at": NOW - HOUR,
        **{key: value for key, value in changes.items() if key in DELIVERY},
    }  # fmt: skip
    work = {
        "step": step, "eligible_at": NOW + eligible, "due_at": delivery["due_at"],
        "owner": changes.get("owner"), "mandate": None, "held": changes.get("held", False),
    }  # fmt: skip
    context = {"address": None, "fingerprint": None, "consent": None, "suppression": None, "template_published": True}
    context.update({key: value for key, value in changes.items() if key in context})
    return Found(delivery, work if step else None, [], [], [], **context)  # type: ignore[arg-type]


def why(one: Found, config: Config = CONFIG, **given: Any) -> list[Why]:
    return explain(one, config, given.get("gates", {}), given.get("meters", {}), NOW)


def reasons(one: Found, config: Config = CONFIG, **given: Any) -> list[tuple[str, datetime | None]]:
    return [(reason.reason, reason.until) for reason in why(one, config, **given)]


def test_what_nothing_holds_is_due_and_goes_with_the_next_dispatch() -> None:
    assert reasons(found()) == [("due", None)]
    assert can_go_at(why(found()), NOW) == NOW


@pytest.mark.parametrize(
    ("changes", "reason", "detail"),
    [
        ({"owner": "run-7"}, "leased", "run run-7"),
        ({"due_at": NOW + HOUR}, "scheduled", ""),
        ({"state": "temporary_failure", "reason": "greylisted"}, "retry", "greylisted"),
        ({"reason": "rate_limited"}, "deferred", "rate_limited"),
    ],
)
def test_the_one_clock_of_the_row_says_what_it_stands_for(changes: dict[str, Any], reason: str, detail: str) -> None:
    said = why(found(eligible=HOUR, **changes))
    assert said == [Why(reason, NOW + HOUR, detail)]
    assert can_go_at(said, NOW) == NOW + HOUR


def test_a_lease_that_has_passed_holds_nothing() -> None:
    (said,) = why(found(owner="run-7"))
    assert said.reason == "due"
    assert "run-7" in said.detail


def test_an_administrators_eligible_at_counts_and_not_the_due_time() -> None:
    assert reasons(found(due_at=NOW + HOUR)) == [("due", None)]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"lane": "old"}, "lane_unknown"),
        ({"lane": "sms"}, "lane_serves_another_channel"),
        ({"topic": "gone"}, "topic_unknown"),
        ({"template_published": False}, "template_unknown"),
        ({"destination": None}, "destination_missing"),
        ({"destination": None, "address": ""}, "destination_missing"),
        ({"suppression": "opted_out"}, "suppressed"),
        ({"consent": False}, "consent_revoked"),
        ({"topic": "news"}, "consent_missing"),
        ({"expires_at": NOW}, "expired"),
    ],
)
def test_what_does_not_end_by_itself_has_no_until(changes: dict[str, Any], reason: str) -> None:
    said = why(found(**changes))
    assert [one.reason for one in said] == [reason]
    assert can_go_at(said, NOW) is None


def test_all_reasons_are_listed_and_the_last_to_end_decides() -> None:
    gates = {
        ("lane", "email"): Gate("lane", "email", "pause", NOW + 2 * HOUR, 0, "maintenance"),
        ("transport", "relay"): Gate("transport", "relay", "breaker", NOW + HOUR, 1, "connect_failed"),
    }
    said = why(found(eligible=SECOND, state="temporary_failure"), gates=gates)
    assert [one.reason for one in said] == ["retry", "gate", "gate"]
    assert said[1].detail == "lane email: pause (maintenance)"
    assert can_go_at(said, NOW) == NOW + 2 * HOUR
    assert can_go_at([*said, Why("template_unknown")], NOW) is None


def test_a_pause_without_end_waits_for_somebody() -> None:
    gates = {("lane", "email"): Gate("lane", "email", "pause", None, 0, "")}
    assert can_go_at(why(found(), gates=gates), NOW) is None
    assert reasons(found(lane="sms", channel="sms"), gates=gates) == [("due", None)]


def test_each_exhausted_limit_says_when_its_next_slot_is_free() -> None:
    minute, hour, day = Rate(1, 60, "1/m"), Rate(5, 3600, "5/h"), Rate(9, 86400, "9/d")
    lane = replace(LANE, rates=(minute,), per_destination=(hour,))
    relay = replace(CONFIG.transports["relay"], rates=(day,))
    config = replace(CONFIG, lanes={"email": lane}, transports={"relay": relay})
    one = found(fingerprint="f")
    assert [key for key, _ in limits(one, config)] == ["lane:email", "transport:relay", "destination:email:f"]
    assert [key for key, _ in limits(found(), config)] == ["lane:email", "transport:relay"]
    meters = {
        ("lane:email", "1/m"): Meter(tat=NOW + SECOND),
        ("transport:relay", "9/d"): Meter(window_start=NOW - HOUR, count=8),
        ("destination:email:f", "5/h"): Meter(window_start=NOW - HOUR / 2, count=5),
    }
    assert reasons(one, config, meters=meters) == [("pace", NOW + SECOND), ("destination_pace", NOW + HOUR / 2)]
    assert all("f" not in one.detail.split() for one in why(one, config, meters=meters))


def test_another_region_is_named_where_nothing_else_holds() -> None:
    assert reasons(found(region="eu")) == [("other_region", None)]
    assert reasons(found(region="eu", eligible=HOUR)) == [("deferred", NOW + HOUR)]


def test_an_open_attempt_has_its_deadline_and_one_that_lapsed_has_none() -> None:
    assert reasons(found(step="resolve", state="sending", eligible=HOUR, owner="r")) == [("sending", NOW + HOUR)]
    assert reasons(found(step="resolve", state="sending", owner="r")) == [("attempt_lapsed", None)]


def test_doubt_is_looked_up_or_held_until_its_review() -> None:
    doubt: dict[str, Any] = {"step": "resolve", "state": "ambiguous", "doubt_since": NOW - HOUR}
    assert reasons(found(**doubt)) == [("in_doubt", None)]
    assert reasons(found(eligible=HOUR, **doubt)) == [("in_doubt", NOW + HOUR)]
    assert reasons(found(eligible=23 * HOUR, held=True, **doubt)) == [("held", NOW + 23 * HOUR)]
    assert reasons(found(eligible=HOUR, held=True, owner="run-7", **doubt)) == [("leased", NOW + HOUR)]


def test_what_is_accepted_waits_for_its_receipt_or_for_nothing() -> None:
    taken: dict[str, Any] = {"state": "accepted", "accepted_at": NOW - HOUR}
    assert reasons(found(step="check", eligible=HOUR, **taken)) == [("waiting_for_receipt", NOW + HOUR)]
    assert reasons(found(step=None, **taken)) == []
    assert reasons(found(step=None, state="unresolved", accepted_at=NOW)) == []


@pytest.mark.parametrize("state", ["dead_letter", "suppressed", "expired", "cancelled", "permanent_failure"])
def test_what_ended_without_having_gone_says_how(state: str) -> None:
    assert why(found(step=None, state=state, reason="because")) == [Why(state, None, "because")]
