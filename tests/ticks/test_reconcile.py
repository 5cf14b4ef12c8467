"""`reconcile`: every way in which doubt ends, on both databases."""

from __future__ import annotations

import json

import pytest

from notifyctl.ledger import resolve
from notifyctl.ledger.claim import Cursor
from notifyctl.model import CannotTell, Found, Outcome, OutcomeKind, Search
from notifyctl.transports.base import Trouble
from tests.scripted import lines
from tests.site import DOMAIN, LONG_AGO
from tests.ticks.prover import Bench, Prover, ago, copies, instant, raise_token


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
    bench.sql("UPDATE notify_delivery SET doubt_since = ?", ago(bench, 3590))
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
    bench.sql("UPDATE notify_delivery SET doubt_since = ?", ago(bench, 60))
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
    assert (instant(due) - instant(told)).total_seconds() >= 1800


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
        Prover, "find", lambda self, *_: (raise_token(bench), Found(f"m-{bench.delivery(1, 'wire_key')[:12]}"))[1]
    )
    assert bench.reconciled()["found"] == 1
    assert bench.delivery(1) == "accepted"


def test_whoever_lost_its_lease_gives_no_mandate(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Prover, "window", 86400.0)
    bench.doubt()
    monkeypatch.setattr(Prover, "find", lambda self, *_: (raise_token(bench), CannotTell())[1])
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
