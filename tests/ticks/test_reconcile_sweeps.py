"""`reconcile`: overdue receipts, expired sends, lost regions, and how a run shares, drains and ends; both databases."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from notifyctl import lifecycle
from notifyctl.ledger import resolve
from notifyctl.ledger.record import Result, record
from notifyctl.lifecycle import Facts
from notifyctl.model import CannotTell, Finding, Outcome, OutcomeKind, State, Step
from notifyctl.ticks import lanes
from notifyctl.ticks.judge import Judge
from notifyctl.ticks.reconcile import Reconcile
from tests.cli.rig import environment
from tests.scripted import NOON, lines
from tests.site import DOMAIN, LONG_AGO
from tests.ticks.prover import Bench, Prover, ago, copies, everything


def test_receipts_that_never_came_end_unresolved_and_need_a_person(bench: Bench) -> None:
    bench.send(2)
    bench.sql("UPDATE notify_delivery SET accepted_at = ? WHERE event_id = 'e1'", LONG_AGO)
    bench.later()
    done = bench.reconciled(3)
    assert (done["unresolved"], bench.delivery(1), bench.delivery(2)) == (1, "unresolved", "accepted")


def test_the_poll_has_a_while_for_its_last_look(bench: Bench) -> None:
    bench.send()
    bench.sql("UPDATE notify_delivery SET accepted_at = ?", ago(bench, 72 * 3600 + 60))
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
    before = everything(bench)
    with bench._run("reconcile") as run:
        said = Reconcile(run, lanes.chosen(run.config, [], None), "", lost="lost").rehearse()
    assert {name: said[name] for name in ("run", "unresolved", "in_doubt", "expired", "taken_over")} == {
        "run": None, "unresolved": 1, "in_doubt": 1, "expired": 1, "taken_over": 1,
    }  # fmt: skip
    assert everything(bench) == before
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
    bench = Bench(tmp_path / "site", migrated_url, "bounces_only")
    with bench:
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
    bench.sql("UPDATE notify_work SET owner = 'somebody', eligible_at = ?", ago(bench, -60))
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
    bench.sql("UPDATE notify_work SET owner = 'there', eligible_at = ? WHERE delivery_id = 1", ago(bench, -60))
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
