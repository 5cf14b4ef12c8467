"""`reconcile`: every way in which doubt, overdue receipts and expired sends end, on both databases."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from email import message_from_bytes
from pathlib import Path
from typing import Any, ClassVar

import pytest

from notifyctl import lifecycle
from notifyctl.ledger import resolve
from notifyctl.ledger.claim import Cursor
from notifyctl.ledger.record import Result, record
from notifyctl.lifecycle import Facts
from notifyctl.model import Absent, CannotTell, Finding, Found, Outcome, OutcomeKind, Search, State, Step
from notifyctl.settings import TransportSettings
from notifyctl.ticks import lanes
from notifyctl.ticks.judge import Judge
from notifyctl.ticks.reconcile import Reconcile
from notifyctl.transports.base import Trouble
from tests.cli.rig import environment
from tests.scripted import NOON, Desk, Scripted, append, lines
from tests.site import DOMAIN, LONG_AGO, Site
from tests.smtp_server import Rule, SmtpServer


class Prover(Scripted):
    """A provider that takes every message and loses the answer; what can be proved about it is set by the test."""

    search: ClassVar[Search] = Search.OWN_KEY
    window: ClassVar[float] = 0.0
    absence: ClassVar[bool] = True
    takes: ClassVar[bool] = True
    finds: ClassVar[Any] = None  # a finding, or an exception

    def __init__(self, settings: TransportSettings) -> None:
        super().__init__(settings)
        self.capabilities = replace(
            self.capabilities, search=self.search, replay_window=self.window, absence_proves_unsent=self.absence
        )

    def submit(self, requests: Any, deadline: Any, validity: Any) -> Any:
        found = super().submit(requests, deadline, validity)
        append(self.folder / "bodies.jsonl", {"key": requests[0].key, "envelope": list(requests[0].envelope)})
        return found

    def find(
        self, key: str, recipient: str = "", since: datetime | None = None, until: datetime | None = None
    ) -> Finding:
        append(self.folder / "finds.jsonl", {"key": key, "recipient": recipient})
        if self.finds is not None:
            if isinstance(self.finds, Exception):
                raise self.finds
            found: Finding = self.finds
            return found
        sent = [one for one in lines(self.folder / "sent.jsonl") if one["key"] == key]
        return Found(sent[0]["ids"][0]) if sent and self.takes else Absent()


@pytest.fixture(autouse=True)
def provable(monkeypatch: pytest.MonkeyPatch) -> None:
    """`kind = "scripted"` is a Prover here."""
    monkeypatch.setattr(sys.modules["tests.scripted"], "Scripted", Prover)
    for name, value in {"search": Search.OWN_KEY, "window": 0.0, "absence": True, "takes": True, "finds": None}.items():
        monkeypatch.setattr(Prover, name, value)


class Bench(Desk):
    """A desk whose one delivery is in doubt."""

    def doubt(self, number: int = 1, **columns: Any) -> None:
        self.intend(number, to=f"lost{number}@{DOMAIN}", **columns)
        self.dispatched()
        assert self.delivery(number) == "ambiguous"
        self.later()

    def reconciled(self, code: int = 0, *, lost: str | None = None, **budget: Any) -> dict[str, Any]:
        with self._run("reconcile", **budget) as run:
            tick = Reconcile(run, lanes.chosen(run.config, [], None), "", lost=lost)
            assert tick() == code, tick.document()
            return tick.document()

    def work(self, number: int = 1) -> tuple[Any, ...]:
        (row,) = self.sql(
            "SELECT w.step, w.mandate, w.held, w.owner FROM notify_work w JOIN notify_delivery d "
            "ON d.id = w.delivery_id WHERE d.event_id = ?", f"e{number}",
        )  # fmt: skip
        return row


@pytest.fixture
def bench(tmp_path: Path, migrated_url: str) -> Iterator[Bench]:
    desk = Bench(tmp_path / "site", migrated_url)
    with desk:
        yield desk


def copies(bench: Bench) -> int:
    return len(lines(bench.provider / "sent.jsonl"))


def test_what_a_look_up_finds_was_accepted_and_is_not_sent_again(bench: Bench) -> None:
    bench.doubt()
    done = bench.reconciled()
    assert (done["found"], bench.delivery(1, "state, remote_id, doubt_since")) == (
        1, ("accepted", bench.remote_id(1), None),
    )  # fmt: skip
    assert bench.sql("SELECT outcome, reason FROM notify_attempt") == [("accepted", "found")]
    bench.later()
    assert bench.dispatched()["claimed"] == 0
    assert copies(bench) == 1


def test_what_certainly_never_arrived_is_sent_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Prover, "takes", False)
    bench.doubt()
    assert bench.reconciled()["absent"] == 1
    assert bench.delivery(1, "state, reason, doubt_since") == ("temporary_failure", "not_accepted", None)
    assert bench.sql("SELECT outcome FROM notify_attempt") == [("temporary_failure",)]
    assert bench.work()[0] == "send"


def test_what_certainly_never_arrived_and_has_expired_ends(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Prover, "takes", False)
    bench.doubt()
    bench.sql("UPDATE notify_delivery SET expires_at = ?", LONG_AGO)
    assert bench.reconciled()["expired"] == 1
    assert bench.delivery(1) == "expired"


def test_absence_that_proves_nothing_is_replayed_inside_the_window_with_the_same_bytes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Prover, "window", 86400.0)
    monkeypatch.setattr(Prover, "finds", CannotTell())
    bench.doubt()
    assert bench.reconciled()["mandated"] == 1
    assert bench.work()[:2] == ("send", "replay")
    bench.sql("UPDATE notify_delivery SET destination = ?", f"lost1@{DOMAIN}")
    done = bench.dispatched()
    assert (done["claimed"], done["ambiguous"]) == (1, 1)
    first, second = lines(bench.provider / "bodies.jsonl")
    assert first == second
    assert [m for (m,) in bench.sql("SELECT mandate FROM notify_attempt ORDER BY number")] == [None, "replay"]


def test_a_replay_that_would_differ_is_held_as_changed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Prover, "window", 86400.0)
    monkeypatch.setattr(Prover, "finds", CannotTell())
    bench.doubt()
    bench.reconciled()
    bench.sql("UPDATE notify_attempt SET request_digest = 'another'")
    done = bench.dispatched()
    assert (done["held"], bench.delivery(1, "state, reason")) == (1, ("ambiguous", "content_changed"))
    assert bool(bench.work()[2])
    assert copies(bench) == 1


def test_a_replay_does_not_follow_its_recipient_to_another_address(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Prover, "window", 86400.0)
    monkeypatch.setattr(Prover, "finds", CannotTell())
    move = "INSERT INTO notify_endpoint (recipient_id, channel, address) VALUES ('r-1', 'email', ?)"
    bench.sql(move, f"lost1@{DOMAIN}")
    bench.intend(1)
    bench.sql("UPDATE notify_delivery SET destination = NULL")
    assert bench.dispatched()["ambiguous"] == 1
    bench.later()
    assert bench.reconciled()["mandated"] == 1
    bench.sql(move, f"moved@{DOMAIN}")
    assert bench.dispatched()["held"] == 1
    assert bench.delivery(1, "state, reason") == ("ambiguous", "destination_changed")
    assert bench.work()[:2] == ("resolve", None)
    assert [one["to"] for one in lines(bench.provider / "sent.jsonl")] == [f"lost1@{DOMAIN}"]


def test_a_window_that_has_closed_is_no_mandate(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Prover, "window", 3600.0)
    monkeypatch.setattr(Prover, "finds", CannotTell())
    monkeypatch.setattr(Prover, "search", Search.NONE)
    bench.doubt()
    bench.sql("UPDATE notify_delivery SET doubt_since = ?", _ago(bench, 3590))
    assert bench.reconciled(3)["held"] == 1
    assert bench.delivery(1) == "ambiguous"


def test_the_policy_to_resend_makes_one_mandated_duplicate(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Prover, "finds", CannotTell())
    bench.configure(lane={"on_ambiguous": "resend"})
    bench.doubt()
    assert bench.reconciled()["mandated"] == 1
    assert bench.work()[:2] == ("send", "duplicate")
    bench.later()
    assert bench.dispatched()["claimed"] == 1
    assert copies(bench) == 2


@pytest.mark.parametrize("policy", ["suppressed", "expired"])
def test_no_mandate_is_given_for_what_must_not_be_sent_any_more(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    monkeypatch.setattr(Prover, "finds", CannotTell())
    bench.configure(lane={"on_ambiguous": "resend"})
    bench.doubt()
    if policy == "expired":
        bench.sql("UPDATE notify_delivery SET expires_at = ?", LONG_AGO)
    else:
        bench.sql("INSERT INTO notify_suppression (recipient_id, channel, reason) VALUES ('r-1', 'email', 'manual')")
    bench.later()
    assert bench.reconciled(3)["mandated"] == 0
    assert (bench.delivery(1), bench.work()[0], copies(bench)) == ("ambiguous", "resolve", 1)


def test_a_person_is_told_once_of_what_nobody_can_tell(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Prover, "finds", CannotTell())
    bench.doubt()
    assert bench.reconciled(3)["held"] == 1
    bench.later()
    assert bench.reconciled(0)["held"] == 0
    assert bool(bench.work()[2])
    assert len(bench.trail(1)) == len(set(enumerate(bench.trail(1))))
    assert len(lines(bench.provider / "finds.jsonl")) == 2


def test_reviewed_doubt_becomes_a_dead_letter_after_one_last_look(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Prover, "finds", CannotTell())
    bench.doubt()
    bench.reconciled(3)
    bench.sql("UPDATE notify_delivery SET doubt_since = ?", LONG_AGO)
    bench.later()
    assert bench.reconciled(3)["dead_letter"] == 1
    state, doubt = bench.delivery(1, "state, doubt_since")
    assert (state, doubt is None) == ("dead_letter", False)
    assert len(lines(bench.provider / "finds.jsonl")) == 2


def test_the_last_look_before_the_dead_letter_may_still_find_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Prover, "finds", CannotTell())
    bench.doubt()
    bench.reconciled(3)
    bench.sql("UPDATE notify_delivery SET doubt_since = ?", LONG_AGO)
    bench.later()
    monkeypatch.setattr(Prover, "finds", None)
    assert bench.reconciled(0)["found"] == 1
    assert bench.delivery(1) == "accepted"


@pytest.mark.parametrize("fault", [Trouble("timeout"), OSError(5, "r1@rcpt.example"), ValueError("r1@rcpt.example")])
def test_a_look_up_that_fails_decides_nothing_and_says_so(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    monkeypatch.setattr(Prover, "finds", fault)
    bench.doubt()
    done = bench.reconciled(1 if isinstance(fault, ValueError) else 75)
    assert sum(done[name] for name in ("found", "absent", "mandated", "held", "dead_letter")) == 0
    assert (bench.delivery(1), bench.work()) == ("ambiguous", ("resolve", None, bench.work()[2], None))
    assert DOMAIN not in json.dumps(done)


def test_two_that_look_alike_settle_neither(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Prover, "finds", Found("m-the-same"))
    monkeypatch.setattr(Prover, "search", Search.RECIPIENT_TIME)
    for number in (1, 2):
        bench.intend(number, to=f"lost@{DOMAIN}")
    bench.dispatched()
    bench.later()
    assert bench.reconciled(3)["found"] == 0
    assert bench.states() == {"ambiguous": 2}


def test_reviewed_look_alikes_do_not_leave_their_find_to_the_last_of_them(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Prover, "finds", Found("m-the-only-one"))
    monkeypatch.setattr(Prover, "search", Search.RECIPIENT_TIME)
    for number in (1, 2):
        bench.intend(number, to=f"lost@{DOMAIN}")
    bench.dispatched()
    bench.configure(lane={"ambiguous_review_after": "1s"})
    bench.sql("UPDATE notify_delivery SET doubt_since = ?", _ago(bench, 60))
    for _ in (1, 2):
        bench.later()
        assert bench.reconciled(3, limit=1)["dead_letter"] == 1
    assert bench.states() == {"dead_letter": 2}


def test_what_a_second_copy_settled_may_still_be_what_another_finds(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """e1 was sent again and that copy is known: the message that is found may be its first, as well as e2's."""
    monkeypatch.setattr(Prover, "finds", Found("m-the-only-one"))
    monkeypatch.setattr(Prover, "search", Search.RECIPIENT_TIME)
    for number in (1, 2):
        bench.intend(number, to=f"lost@{DOMAIN}", recipient="r-1")
    bench.dispatched()
    bench.sql(
        "UPDATE notify_delivery SET state = 'accepted', doubt_since = NULL, accepted_at = updated_at, "
        "remote_id = 'm-2' WHERE event_id = 'e1'"
    )
    bench.sql("DELETE FROM notify_work WHERE delivery_id = (SELECT id FROM notify_delivery WHERE event_id = 'e1')")
    bench.later()
    assert bench.reconciled(3)["found"] == 0
    assert bench.delivery(2) == "ambiguous"


def test_a_doubt_of_long_ago_stands_in_no_ones_way(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Prover, "finds", Found("m-the-only-one"))
    monkeypatch.setattr(Prover, "search", Search.RECIPIENT_TIME)
    bench.intend(1, to=f"lost@{DOMAIN}")
    bench.dispatched()
    bench.sql("UPDATE notify_delivery SET state = 'dead_letter', doubt_since = ?", LONG_AGO)
    bench.sql("UPDATE notify_attempt SET started = ?, finished = ?", LONG_AGO, LONG_AGO)
    bench.sql("DELETE FROM notify_work")
    bench.intend(2, to=f"lost@{DOMAIN}")
    bench.dispatched()
    bench.later()
    assert bench.reconciled()["found"] == 1
    assert bench.delivery(2) == "accepted"


def test_no_absence_is_believed_before_it_has_settled_also_not_behind_a_second_copy(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Prover, "takes", False)
    bench.configure(relay={"settle_delay": "30m"})
    bench.doubt()
    done = bench.run("requeue", "1", "--accept-duplicate", "--reason", "asked", "--yes", "--json")
    assert done.json["requeued"] == 1, done
    monkeypatch.setattr(Prover, "submit", lambda *_: [Outcome(OutcomeKind.TEMPORARY_FAILURE, "busy")])
    bench.dispatched()
    assert (bench.delivery(1), bench.work()[0]) == ("ambiguous", "resolve")
    assert bench.reconciled()["absent"] == 0
    ((due, told),) = bench.sql("SELECT w.eligible_at, d.updated_at FROM notify_work w JOIN notify_delivery d "
                               "ON d.id = w.delivery_id")  # fmt: skip
    assert (_instant(due) - _instant(told)).total_seconds() >= 1800


def test_an_id_that_another_delivery_has_is_not_taken(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.send()
    monkeypatch.setattr(Prover, "finds", Found(bench.remote_id(1)))
    bench.doubt(2)
    assert bench.reconciled(3)["found"] == 0
    assert bench.delivery(2) == "ambiguous"


def test_whoever_lost_its_lease_does_not_decide_but_what_it_found_counts(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.doubt()
    monkeypatch.setattr(
        Prover, "find", lambda self, *_: (_raise_token(bench), Found(f"m-{bench.delivery(1, 'wire_key')[:12]}"))[1]
    )
    assert bench.reconciled()["found"] == 1
    assert bench.delivery(1) == "accepted"


def test_whoever_lost_its_lease_gives_no_mandate(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Prover, "window", 86400.0)
    bench.doubt()
    monkeypatch.setattr(Prover, "find", lambda self, *_: (_raise_token(bench), CannotTell())[1])
    assert bench.reconciled()["mandated"] == 0
    assert bench.work()[:2] == ("resolve", None)


def test_a_run_that_dies_with_claimed_doubt_leaves_it_to_the_next(bench: Bench) -> None:
    bench.doubt()
    with bench._run("reconcile") as run:
        claimed, _ = resolve.claim_doubt(
            run.ledger, run="dead", lane="email", region="", limit=10, lease=60.0, after=Cursor(), but=[]
        )
        assert len(claimed) == 1
    assert bench.reconciled()["found"] == 0
    bench.later()
    done = bench.reconciled()
    assert (done["found"], done["leases_recovered"]) == (1, 1)


def test_receipts_that_never_came_end_unresolved_and_need_a_person(bench: Bench) -> None:
    bench.send(2)
    bench.sql("UPDATE notify_delivery SET accepted_at = ? WHERE event_id = 'e1'", LONG_AGO)
    bench.later()
    done = bench.reconciled(3)
    assert (done["unresolved"], bench.delivery(1), bench.delivery(2)) == (1, "unresolved", "accepted")


def test_the_poll_has_a_while_for_its_last_look(bench: Bench) -> None:
    bench.send()
    bench.sql("UPDATE notify_delivery SET accepted_at = ?", _ago(bench, 72 * 3600 + 60))
    bench.later()
    assert bench.reconciled()["unresolved"] == 0
    assert bench.delivery(1) == "accepted"


def test_an_expired_send_ends_also_behind_a_closed_gate(bench: Bench) -> None:
    bench.intend(1, expires_at=LONG_AGO)
    bench.intend(2)
    bench.sql("INSERT INTO notify_gate (scope, name, kind, reason, actor) VALUES ('lane', 'email', 'pause', 'x', 'x')")
    assert bench.reconciled()["expired"] == 1
    assert (bench.delivery(1, "state, reason"), bench.delivery(2)) == (("expired", "expired"), "queued")


def test_a_rehearsal_says_what_is_due_and_writes_nothing(bench: Bench) -> None:
    bench.send()
    bench.sql("UPDATE notify_delivery SET accepted_at = ?", LONG_AGO)
    bench.doubt(2)
    bench.intend(3, expires_at=LONG_AGO)
    bench.intend(4, region="lost")
    before = _everything(bench)
    with bench._run("reconcile") as run:
        said = Reconcile(run, lanes.chosen(run.config, [], None), "", lost="lost").rehearse()
    assert {name: said[name] for name in ("run", "unresolved", "in_doubt", "expired", "taken_over")} == {
        "run": None, "unresolved": 1, "in_doubt": 1, "expired": 1, "taken_over": 1,
    }  # fmt: skip
    assert _everything(bench) == before
    assert lines(bench.provider / "finds.jsonl") == []
    done = bench.reconciled(3, lost="lost")
    assert [done[name] for name in ("unresolved", "found", "expired", "taken_over")] == [1, 1, 1, 1]


def test_a_check_whose_owner_died_is_a_recovered_lease(bench: Bench) -> None:
    bench.send()
    bench.sql("UPDATE notify_delivery SET accepted_at = ?", LONG_AGO)
    bench.sql("UPDATE notify_work SET owner = 'dead'")
    bench.later()
    done = bench.reconciled(3)
    assert (done["unresolved"], done["leases_recovered"]) == (1, 1)


def test_an_accepted_message_whose_transport_only_bounces_is_at_rest_at_its_deadline(
    tmp_path: Path, migrated_url: str
) -> None:
    with Bench(tmp_path / "site", migrated_url, "bounces_only") as bench:
        bench.send()
        bench.later()
        assert bench.reconciled()["run"] is None
        bench.sql("UPDATE notify_delivery SET accepted_at = ?", LONG_AGO)
        bench.later()
        done = bench.reconciled()
        assert (done["run"] is None, done["unresolved"]) == (False, 0)
        assert bench.delivery(1, "state, reason") == ("accepted", "no_receipt_expected")
        assert bench.sql("SELECT count(*) FROM notify_work") == [(0,)]


def test_a_claimed_send_is_its_owners_to_expire(bench: Bench) -> None:
    bench.intend(1, expires_at=LONG_AGO)
    bench.sql("UPDATE notify_work SET owner = 'somebody', eligible_at = ?", _ago(bench, -60))
    assert bench.reconciled()["expired"] == 0
    assert bench.delivery(1) == "queued"


def test_a_taken_over_region_goes_on_here_and_its_old_owner_is_fenced(bench: Bench) -> None:
    for number in (1, 2, 3):
        bench.intend(number, region="lost" if number < 3 else "other")
    bench.sql("UPDATE notify_work SET owner = 'there' WHERE region = 'lost'")
    before = bench.sql("SELECT delivery_id, eligible_at, fencing_token FROM notify_work ORDER BY delivery_id")
    done = bench.reconciled(lost="lost")
    assert done["taken_over"] == 2
    after = bench.sql("SELECT delivery_id, eligible_at, fencing_token FROM notify_work ORDER BY delivery_id")
    assert [(i, at, token + (i < 3)) for i, at, token in before] == after
    assert bench.sql("SELECT DISTINCT owner FROM notify_work") == [(None,)]
    assert [r for (r,) in bench.sql("SELECT region FROM notify_delivery ORDER BY id")] == ["", "", "other"]
    assert bench.dispatched()["accepted"] == 2


def test_a_large_region_is_taken_over_in_pages_and_within_the_limit(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["notifyctl.ticks.reconcile"], "PAGE", 2)
    for number in range(1, 8):
        bench.intend(number, region="lost")
    pages: list[int] = []
    take_over = resolve.take_over

    def watched(tx: Any, **given: Any) -> int:
        pages.append(take_over(tx, **given))
        return pages[-1]

    monkeypatch.setattr(resolve, "take_over", watched)
    assert bench.reconciled(lost="lost", limit=3)["taken_over"] == 3
    assert bench.reconciled(lost="lost")["taken_over"] == 4
    assert max(pages) == 2
    assert lines(bench.provider / "sent.jsonl") == []


@pytest.mark.parametrize(
    ("outcome", "state"),
    [(OutcomeKind.TEMPORARY_FAILURE, "temporary_failure"), (OutcomeKind.PERMANENT_FAILURE, "permanent_failure"),
     (OutcomeKind.AMBIGUOUS, "ambiguous"), (OutcomeKind.ACCEPTED, "accepted")],
)  # fmt: skip
def test_what_a_taken_over_attempt_ends_with_counts_as_on_time(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, outcome: OutcomeKind, state: str
) -> None:
    def submit(*_: Any) -> list[Outcome]:
        bench.sql("UPDATE notify_work SET owner = NULL, fencing_token = fencing_token + 1")
        return [Outcome(outcome, remote_ids=("m-1",) if outcome is OutcomeKind.ACCEPTED else ())]

    monkeypatch.setattr(Prover, "submit", submit)
    bench.intend(1)
    bench.dispatched()
    assert bench.delivery(1, "state, attempts_used") == (state, 1)
    assert bench.sql("SELECT outcome FROM notify_attempt") == [(outcome.value,)]


def test_what_no_lane_claims_is_counted(bench: Bench) -> None:
    bench.intend(1, lane="nobody")
    bench.intend(2)
    assert bench.reconciled()["unroutable"] == 1


def test_what_another_region_has_left_lying_is_counted_unless_somebody_is_at_it(bench: Bench) -> None:
    bench.intend(1, region="elsewhere")
    bench.intend(2, region="elsewhere")
    assert bench.reconciled()["unroutable"] == 0
    bench.later()
    assert bench.reconciled()["unroutable"] == 2
    bench.sql("UPDATE notify_work SET owner = 'there', eligible_at = ? WHERE delivery_id = 1", _ago(bench, -60))
    assert bench.reconciled()["unroutable"] == 0


def test_a_late_acceptance_that_comes_during_the_look_up_stands(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody learns of the acceptance while reconcile asks; what reconcile concludes meanwhile is fenced off."""
    monkeypatch.setattr(Prover, "window", 86400.0)
    bench.doubt()

    def find(*_: Any) -> Finding:
        with bench._run("dispatch") as run:
            judge = Judge({lane.name: lane for lane in lanes.chosen(run.config, [], None)}, {})
            outcome = Outcome(OutcomeKind.ACCEPTED, remote_ids=("m-late",))
            facts = Facts(State.SENDING, Step.RESOLVE, owned=True)
            told = lifecycle.after(facts, outcome, NOON, judge.lanes["email"], Prover.CAPABILITIES)
            result = Result(1, 1, 0, State.SENDING, outcome, told, 1.0)
            run.ledger.transact(
                lambda tx: record(tx, run="gone", results=[result], late=lambda row, o: judge.late(row, o, tx.now))
            )
        return CannotTell()

    monkeypatch.setattr(Prover, "find", find)
    done = bench.reconciled()
    assert (done["mandated"], done["held"]) == (0, 0)
    assert bench.delivery(1, "state, remote_id, doubt_since") == ("accepted", "m-late", None)
    bench.later()
    assert bench.dispatched()["claimed"] == 0
    assert copies(bench) == 1


def test_two_at_once_decide_about_each_delivery_once(bench: Bench) -> None:
    for number in range(1, 41):
        bench.intend(number, to=f"lost{number}@{DOMAIN}")
    assert bench.dispatched()["ambiguous"] == 40
    bench.later()
    both = [bench.start("reconcile", "--json", env=environment()) for _ in (1, 2)]
    done = [one.result() for one in both]
    assert [one.code for one in done] == [0, 0], done
    assert sum(one.json["found"] for one in done) == 40
    assert bench.states() == {"accepted": 40}
    assert all(bench.trail(n) == ["queued", "sending", "ambiguous", "accepted"] for n in range(1, 41))


def test_a_signal_lets_look_ups_end_and_claims_no_more(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.configure(lane={"concurrency": 2})
    for number in range(1, 11):
        bench.intend(number, to=f"lost{number}@{DOMAIN}")
    bench.dispatched()
    bench.later()
    found, once = Prover.find, threading.Lock()

    def find(self: Prover, key: str, *more: Any) -> Finding:
        if once.acquire(blocking=False):  # a second signal would end the process at once
            os.kill(os.getpid(), signal.SIGTERM)
        return found(self, key, *more)

    monkeypatch.setattr(Prover, "find", find)
    done = bench.reconciled()
    assert done["drained"]
    assert 0 < done["found"] < 10
    assert bench.sql("SELECT count(*) FROM notify_work WHERE owner IS NOT NULL") == [(0,)]
    bench.later()
    monkeypatch.setattr(Prover, "find", found)
    assert done["found"] + bench.reconciled()["found"] == 10


def test_a_look_up_that_outlives_the_drain_is_left_to_its_lease(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.configure(relay={"drain": "1ms"})
    bench.doubt()
    answers = threading.Event()

    def find(*_: Any) -> Finding:
        os.kill(os.getpid(), signal.SIGTERM)
        answers.wait(30)
        return CannotTell()

    monkeypatch.setattr(Prover, "find", find)
    try:
        assert not bench.reconciled(75)["drained"]
    finally:
        answers.set()
    assert bench.delivery(1) == "ambiguous"
    monkeypatch.undo()
    bench.later()
    assert bench.sql("SELECT step FROM notify_work") == [("resolve",)]


def test_a_transport_that_is_gone_can_prove_nothing(bench: Bench) -> None:
    bench.doubt()
    bench.settings["transports.other"] = dict(bench.settings["transports.relay"])
    del bench.settings["transports.relay"]
    bench.settings["lanes.email"]["transport"] = "other"
    text = ['instance = "test"']
    for table, keys in bench.settings.items():
        text += [f"[{table}]", *(f"{k} = {json.dumps(v)}" for k, v in keys.items())]
    bench.config.write_text("\n".join(text) + "\n")
    assert bench.reconciled(3)["held"] == 1


def test_a_transport_whose_secret_is_missing_keeps_only_its_own_doubt_waiting(bench: Bench) -> None:
    bench.settings["transports.other"] = {
        "kind": "smtp", "host": "127.0.0.1", "port": 1, "from": "no-reply@shop.example", "username": "u",
        "password_file": "no-such-file",
    }  # fmt: skip
    bench.configure()
    bench.doubt(1)
    bench.doubt(2)
    bench.sql("UPDATE notify_delivery SET transport = 'other' WHERE event_id = 'e2'")
    before = bench.sql("SELECT * FROM notify_work WHERE delivery_id = 2")
    assert bench.reconciled(78)["found"] == 1
    assert (bench.delivery(1), bench.delivery(2)) == ("accepted", "ambiguous")
    assert bench.sql("SELECT * FROM notify_work WHERE delivery_id = 2") == before


def test_a_limit_holds_for_everything_a_run_decides(bench: Bench) -> None:
    for number in range(1, 6):
        bench.intend(number, to=f"lost{number}@{DOMAIN}")
    bench.dispatched()
    bench.later()
    assert bench.reconciled(limit=2)["found"] == 2
    assert bench.reconciled(limit=10)["found"] == 3


# -- the command ------------------------------------------------------------------------------------------------------


def test_smtp_proves_nothing_so_a_lost_reply_is_held_then_reviewed(tmp_path: Path, migrated_url: str) -> None:
    with SmtpServer() as server, Site(tmp_path / "site", migrated_url, port=server.port) as site:
        site.publish()
        site.configure(relay={"deadline": "2s"})
        site.enqueue(1)
        site.sql("UPDATE notify_work SET eligible_at = ?", LONG_AGO)
        # as a killed dispatch leaves it
        site.sql(
            "INSERT INTO notify_attempt (delivery_id, number, run, fencing_token, transport, started) "
            "SELECT id, 1, 'dead', 1, 'relay', due_at FROM notify_delivery"
        )
        site.sql("UPDATE notify_delivery SET state = 'sending', transport = 'relay', first_tried_at = due_at")
        site.sql("UPDATE notify_work SET step = 'resolve', owner = 'dead', fencing_token = 1")
        done = site.run("reconcile", "--json")
        assert (done.code, done.json["leases_recovered"], done.json["held"]) == (3, 1, 1), done
        assert site.run("reconcile", "--json").json["run"] is None
        site.sql("UPDATE notify_delivery SET doubt_since = ?", LONG_AGO)
        site.later()
        done = site.run("reconcile")
        assert (done.code, done.out) == (3, ""), done
        assert "review_passed (1)" in done.err
        assert site.delivery(1) == "dead_letter"
        assert server.messages == []


def test_a_mail_whose_reply_is_lost_goes_again_only_at_a_persons_word(tmp_path: Path, migrated_url: str) -> None:
    """On the wire: taken, and no reply to the final dot. Held at once, nothing sends it, and its review ends it."""
    hangs = Rule("dot", hang=True, times=1)
    with SmtpServer(hangs) as server, Site(tmp_path / "site", migrated_url, port=server.port) as site:
        site.publish()
        site.configure(relay={"deadline": "2s"})
        site.enqueue(1)
        done = site.dispatch()
        assert (done.code, done.json["ambiguous"], done.json["held"]) == (3, 1, 1), done
        done = site.run("reconcile", env=environment())
        assert (done.code, done.out, done.err) == (0, "", "")
        assert site.dispatch().json["claimed"] == 0
        site.sql("UPDATE notify_delivery SET doubt_since = ?", LONG_AGO)
        site.later()
        assert site.run("reconcile", "--json").code == 3
        assert site.delivery(1, "state, reason") == ("dead_letter", "review_passed")
        assert len(server.messages) == 1
        assert site.run("requeue", "1", "--reason", "again", "--yes", "--json").json["refused"] == 1
        done = site.run("requeue", "1", "--accept-duplicate", "--reason", "again", "--yes", "--json")
        assert done.json["requeued"] == 1
        assert site.dispatch().json["accepted"] == 1
        first, second = (message_from_bytes(message.raw) for message in server.messages)
        assert (first["Message-ID"], first["Date"]) == (second["Message-ID"], second["Date"])
        assert site.dispatch().json["claimed"] == 0


@pytest.mark.parametrize("written", [True, False])
def test_a_folder_knows_what_it_holds(tmp_path: Path, migrated_url: str, written: bool) -> None:
    with Site(tmp_path / "site", migrated_url) as site:
        site.settings["transports.relay"] = {"kind": "file", "path": "out", "from": "no-reply@shop.example"}
        site.configure()
        site.config.write_text(
            site.config.read_text().replace(
                "[lanes.email]",
                f'fail = [{{ match = "*", outcome = "ambiguous", after_accept = {str(written).lower()}, times = 1 }}]\n'
                "[lanes.email]",
            )
        )
        site.publish()
        site.enqueue(1)
        assert site.dispatch().json["ambiguous"] == 1
        site.later()
        rehearsed = site.run("reconcile", "--dry-run", "--json").json
        assert (rehearsed["run"], rehearsed["in_doubt"], site.delivery(1)) == (None, 1, "ambiguous")
        done = site.run("reconcile", "--json").json
        assert (done["found"], done["absent"]) == ((1, 0) if written else (0, 1)), done
        site.later()
        site.dispatch()
        assert len(list((site.path / "out" / "mail" / "new").iterdir())) == 1


def test_an_idle_reconcile_writes_nothing_and_says_nothing(tmp_path: Path, migrated_url: str) -> None:
    with Site(tmp_path / "site", migrated_url) as site:
        site.publish()
        site.enqueue(1)
        done = site.run("reconcile", env=environment())
        assert (done.code, done.out, done.err) == (0, "", "")
        assert site.sql("SELECT count(*) FROM notify_run WHERE command = 'reconcile'") == [(0,)]


def test_the_receiving_region_cannot_be_the_lost_one(tmp_path: Path, migrated_url: str) -> None:
    with Site(tmp_path / "site", migrated_url) as site:
        done = site.run("reconcile", "--take-over", "eu", "--region", "eu")
        assert done.code == 2
        assert "--region" in done.err


def _raise_token(bench: Bench) -> bool:
    bench.sql("UPDATE notify_work SET fencing_token = fencing_token + 1, owner = 'another'")
    return True


def _everything(bench: Bench) -> list[Any]:
    tables = ("delivery", "work", "attempt", "transition", "run", "pace", "gate", "cursor")
    return [bench.sql(f"SELECT * FROM notify_{table} ORDER BY 1, 2") for table in tables]


def _instant(stored: Any) -> datetime:
    return stored if isinstance(stored, datetime) else datetime.fromisoformat(stored)


def _ago(bench: Bench, seconds: float) -> str:
    from datetime import UTC, timedelta

    at = datetime.now(UTC) - timedelta(seconds=seconds)
    return at.strftime("%Y-%m-%d %H:%M:%S.%f") + ("" if bench.url.startswith("sqlite:") else "+00")
