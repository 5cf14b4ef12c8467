"""The three writes of a send, on both databases: owned once, fenced, on disk before the first byte, never forgotten."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from notifyctl.ledger import claim as claiming
from notifyctl.ledger import gate
from notifyctl.ledger.begin import Begun, Held
from notifyctl.model import ConsentMode, Delivery, Outcome, OutcomeKind, Rate
from tests.ledger.workbench import WITH_LOOKUP, Workbench, ready_for, workbench

ACCEPTED = Outcome(OutcomeKind.ACCEPTED, remote_ids=("remote-1",))
TEMPORARY = Outcome(OutcomeKind.TEMPORARY_FAILURE, "greylisted", code="451 4.7.1")
AMBIGUOUS = Outcome(OutcomeKind.AMBIGUOUS, "reply_lost")
REFUSED = Outcome(OutcomeKind.PERMANENT_FAILURE, "rejected", code="550")
INVALID = Outcome(OutcomeKind.PERMANENT_FAILURE, "invalid_recipient", code="550 5.1.1")
BUSY = Outcome(OutcomeKind.RATE_LIMITED, "rate_limited", retry_after=120.0)


@pytest.fixture
def bench(migrated_url: str) -> Iterator[Workbench]:
    with workbench(migrated_url) as made:
        yield made


@pytest.fixture
def other(migrated_url: str, bench: Workbench) -> Iterator[Workbench]:
    with workbench(migrated_url, "run-2") as made:
        yield made


def consent(bench: Workbench, *, granted: bool) -> None:
    bench.execute(
        "INSERT INTO notify_consent (recipient_id, channel, topic, granted) VALUES ('e0', 'email', 'news', :granted)",
        granted=granted,
    )


# -- claim ---------------------------------------------------------------------------------------------------------


def test_a_claimed_row_is_nobody_elses_until_its_lease_passes(bench: Workbench, other: Workbench) -> None:
    bench.deliveries(3)
    assert len(bench.claim(2)) == 2
    assert len(other.claim(10)) == 1
    assert other.claim(10) == []
    bench.pass_leases()
    taken = other.claim(10)
    assert len(taken) == 3
    assert all(d.recovered for d in taken)
    assert {d.token for d in taken} == {2}


def test_a_claim_brings_everything_a_send_needs(bench: Workbench) -> None:
    for address in ("old@x.example", "new@x.example"):
        bench.execute(
            "INSERT INTO notify_endpoint (recipient_id, channel, address) VALUES ('e0', 'email', :address)",
            address=address,
        )
    consent(bench, granted=True)
    bench.deliveries(1, topic="'news'", variables='\'{"name": "Zoë"}\'')
    (delivery,) = bench.claim()
    assert delivery.address == "new@x.example"
    assert delivery.consent is True
    assert delivery.variables == {"name": "Zoë"}
    assert delivery.suppression is None
    assert delivery.due_at.tzinfo is not None
    assert delivery.idempotency_key == "2:e0:e0:email"


def test_only_the_asked_lane_and_region_and_only_what_is_due_is_claimed(bench: Workbench) -> None:
    bench.deliveries(1, prefix="a", lane="bulk")
    bench.deliveries(1, prefix="b", region="'eu'")
    bench.deliveries(1, prefix="c", due_at="'2999-01-01 00:00:00+00:00'")
    bench.deliveries(1, prefix="d")
    assert [d.event_id for d in bench.claim()] == ["d0"]
    assert [d.event_id for d in bench.claim(region="eu")] == ["b0"]
    assert [d.event_id for d in bench.claim(lane="bulk")] == ["a0"]


def test_the_cursor_passes_over_rows_that_came_back_and_a_sweep_finds_them(bench: Workbench) -> None:
    bench.deliveries(5)
    first, cursor = claiming.claim(
        bench.ledger, run="run-1", step="send", lane="email", region="", limit=3, lease=60, after=claiming.Cursor()
    )
    rows = [(d.id, d.token, d.was_eligible_at) for d in first]
    bench.ledger.transact(lambda tx: claiming.release(tx, run="run-1", rows=rows))
    second, _ = claiming.claim(
        bench.ledger, run="run-1", step="send", lane="email", region="", limit=9, lease=60, after=cursor
    )
    assert len(second) == 2
    assert len(bench.claim()) == 3


def test_ten_claimers_at_once_share_all_rows_and_no_row_has_two_owners(bench: Workbench, migrated_url: str) -> None:
    bench.deliveries(400)
    taken: list[int] = []
    barrier = threading.Barrier(10)

    def take(number: int) -> None:
        with workbench(migrated_url, f"claimer-{number}") as mine:
            barrier.wait()
            while rows := mine.claim(7):
                taken.extend(d.id for d in rows)

    threads = [threading.Thread(target=take, args=(n,)) for n in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == 400
    assert max(Counter(taken).values()) == 1


def test_renewing_keeps_only_what_is_still_owned(bench: Workbench, other: Workbench) -> None:
    bench.deliveries(2)
    mine = bench.claim(1)
    kept = claiming.renew(bench.ledger, run="run-1", owned={d.id: d.token for d in mine}, lease=600)
    assert kept == {mine[0].id}
    bench.pass_leases()
    assert claiming.renew(bench.ledger, run="run-1", owned={mine[0].id: mine[0].token}, lease=600) == set()
    assert len(other.claim()) == 2


def test_a_released_row_is_due_again_as_before_and_not_for_a_stale_owner(bench: Workbench, other: Workbench) -> None:
    bench.deliveries(1)
    (mine,) = bench.claim()
    row = [(mine.id, mine.token, mine.was_eligible_at)]
    bench.pass_leases()
    (theirs,) = other.claim()
    assert bench.ledger.transact(lambda tx: claiming.release(tx, run="run-1", rows=row)) == set()
    theirs_row = [(theirs.id, theirs.token, mine.was_eligible_at)]
    assert other.ledger.transact(lambda tx: claiming.release(tx, run="run-2", rows=theirs_row)) == {mine.id}
    assert [d.attempts_used for d in bench.claim()] == [0]


# -- begin ---------------------------------------------------------------------------------------------------------


def test_begin_puts_the_attempt_on_disk_and_the_row_out_of_dispatchs_reach(bench: Workbench, other: Workbench) -> None:
    bench.deliveries(1)
    (delivery,) = bench.claim()
    begun = bench.begin([delivery])[delivery.id]
    assert isinstance(begun, Begun)
    assert begun.number == 1
    assert bench.state(delivery.id) == "sending"
    attempt = bench.execute("SELECT run, transport, outcome, finished, request_digest FROM notify_attempt")
    assert attempt == [("run-1", "relay", None, None, f"r{delivery.id}")]
    work = bench.work(delivery.id)
    assert work is not None
    assert (work["step"], work["owner"]) == ("resolve", "run-1")
    bench.pass_leases()
    assert other.claim() == []


def test_a_stale_owner_cannot_begin(bench: Workbench, other: Workbench) -> None:
    bench.deliveries(1)
    (mine,) = bench.claim()
    bench.pass_leases()
    held = bench.begin([mine])[mine.id]
    assert held == Held("lost")  # the lease has passed, although nobody has taken the row yet
    (theirs,) = other.claim()
    assert bench.begin([mine])[mine.id] == Held("lost")
    assert isinstance(other.begin([theirs])[theirs.id], Begun)
    assert bench.execute("SELECT count(*) FROM notify_attempt") == [(1,)]


@pytest.mark.parametrize("how", ["suppressed", "revoked", "missing", "expired", "other_address"])
def test_begin_itself_refuses_what_policy_forbids_by_then(bench: Workbench, how: str) -> None:
    bench.deliveries(1, topic="'news'")
    (delivery,) = bench.claim()
    mode = ConsentMode.REQUIRED if how == "missing" else ConsentMode.OPT_OUT
    # A revocation or a pair-wide suppression settles the row by itself; here the fence is tested without that trigger.
    if how == "suppressed":
        bench.execute("INSERT INTO notify_suppression (recipient_id, channel, reason, fingerprint) "
                      "VALUES ('e0', 'email', 'hard_bounce', :f)", f=f"f{delivery.id}")  # fmt: skip
    elif how == "other_address":
        bench.execute("INSERT INTO notify_suppression (recipient_id, channel, reason, fingerprint) "
                      "VALUES ('e0', 'email', 'hard_bounce', 'another')")  # fmt: skip
    elif how == "revoked":
        consent(bench, granted=False)
    elif how == "expired":
        bench.execute("UPDATE notify_delivery SET expires_at = :past", past=bench.ledger.now() - timedelta(seconds=1))
    held = bench.begin([delivery], consent_mode=mode)[delivery.id]
    expected = {
        "suppressed": Held("policy", state="suppressed", reason="hard_bounce"), "revoked": Held("lost"),
        "missing": Held("policy", state="suppressed", reason="consent_missing"),
        "expired": Held("policy", state="expired", reason="expired"),
    }  # fmt: skip
    if how == "other_address":
        assert isinstance(held, Begun)
    else:
        assert held == expected[how]
        assert bench.execute("SELECT count(*) FROM notify_attempt") == [(0,)]


def test_what_an_application_suppresses_while_a_begin_is_under_way_does_not_begin(
    bench: Workbench, other: Workbench
) -> None:
    bench.deliveries(3)
    claimed = bench.claim()
    application = other.ledger.connection
    application.execute("BEGIN" if bench.ledger.dialect.name == "postgresql" else "BEGIN IMMEDIATE")
    application.execute("INSERT INTO notify_suppression (recipient_id, channel) VALUES ('e1', 'email')")
    if bench.ledger.dialect.name == "postgresql":  # its own row only is delayed
        results = bench.begin(claimed)
        application.execute("COMMIT")
        assert results.pop(claimed[1].id) == Held("locked")
        results.update(bench.begin(claimed[1:2]))
    else:  # one writer: the whole begin waits for the application
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(begin_with_a_connection_of_its_own, bench, claimed)
            application.execute("COMMIT")
            results = waiting.result()
    assert results.pop(claimed[1].id) == Held("lost")
    assert all(isinstance(result, Begun) for result in results.values())
    assert bench.state(claimed[1].id) == "suppressed"


def begin_with_a_connection_of_its_own(bench: Workbench, claimed: list[Delivery]) -> dict[int, Begun | Held]:
    with workbench(bench.ledger.url, bench.run) as mine:
        return mine.begin(claimed)


def test_a_closed_gate_stops_begins_until_its_time(bench: Workbench) -> None:
    bench.deliveries(1)
    (delivery,) = bench.claim()
    until = bench.ledger.now() + timedelta(seconds=60)

    def shut(kind: str) -> None:
        bench.ledger.transact(
            lambda tx: gate.close(tx, "transport", "relay", kind, until=until, level=1, reason="down", actor="x")
        )

    shut("breaker")
    assert bench.begin([delivery])[delivery.id] == Held("gate", until=until, reason="down")
    bench.execute("UPDATE notify_gate SET until = :past", past=bench.ledger.now() - timedelta(seconds=1))
    assert isinstance(bench.begin([delivery])[delivery.id], Begun)


def test_begin_repeated_after_a_lost_commit_reply_finds_what_it_had_begun(bench: Workbench) -> None:
    from notifyctl.ledger import begin as beginning

    bench.deliveries(2)
    claimed = bench.claim()
    ready = [ready_for(d, bench.ledger.now()) for d in claimed]
    first = bench.ledger.transact(lambda tx: beginning.begin(tx, run="run-1", ready=ready))

    def again(tx: object) -> object:
        tx.rerun = True  # type: ignore[attr-defined]
        return beginning.begin(tx, run="run-1", ready=ready)  # type: ignore[arg-type]

    second = bench.ledger.transact(again)
    assert {i: b.number for i, b in first.items()} == {i: b.number for i, b in second.items()}  # type: ignore
    assert bench.execute("SELECT count(*) FROM notify_attempt") == [(2,)]


def test_a_rate_grants_one_slot_per_interval_and_shares_it_between_owners(bench: Workbench, other: Workbench) -> None:
    bench.deliveries(12)
    limits = (("lane:email", Rate(2, 1, "2/s")),)
    mine, theirs = bench.claim(6), other.claim(6)
    first = bench.begin(mine, limits=limits)
    second = other.begin(theirs, limits=limits)
    begun = [b for b in [*first.values(), *second.values()] if isinstance(b, Begun)]
    held = [h for h in [*first.values(), *second.values()] if isinstance(h, Held)]
    assert len(begun) == 1
    assert {h.why for h in held} == {"pace"}
    assert all(h.until and h.until > begun[0].started for h in held)


def test_an_hourly_limit_counts_in_a_window_and_says_when_it_ends(bench: Workbench) -> None:
    bench.deliveries(5)
    results = bench.begin(bench.claim(), limits=(("lane:email", Rate(3, 3600, "3/h")),))
    held = [r for r in results.values() if isinstance(r, Held)]
    assert len(held) == 2
    assert all(h.until and h.until - bench.ledger.now() > timedelta(minutes=59) for h in held)


# -- record --------------------------------------------------------------------------------------------------------


def test_each_outcome_leaves_state_work_and_trail_as_the_table_says(bench: Workbench) -> None:
    bench.deliveries(6)
    claimed = bench.claim()
    begun = bench.begin(claimed)
    outcomes = [ACCEPTED, TEMPORARY, AMBIGUOUS, REFUSED, INVALID, BUSY]
    bench.record([bench.result(d, begun[d.id], o) for d, o in zip(claimed, outcomes, strict=True)])
    rows = bench.execute("SELECT state, reason, attempts_used FROM notify_delivery ORDER BY id")
    assert [tuple(row) for row in rows] == [
        ("accepted", "no_receipt_expected", 1), ("temporary_failure", "greylisted", 1), ("ambiguous", "reply_lost", 1),
        ("permanent_failure", "rejected", 1), ("suppressed", "invalid_recipient", 1), ("queued", "rate_limited", 0),
    ]  # fmt: skip
    steps = [work["step"] if (work := bench.work(d.id)) else None for d in claimed]
    assert steps == [None, "send", "resolve", None, None, "send"]
    assert bench.execute("SELECT reason, fingerprint FROM notify_suppression") == [("invalid_recipient", "f")]
    bench.sound()


def test_recording_twice_changes_nothing(bench: Workbench) -> None:
    bench.deliveries(4)
    claimed = bench.claim()
    begun = bench.begin(claimed)
    outcomes = [ACCEPTED, TEMPORARY, AMBIGUOUS, INVALID]
    results = [bench.result(d, begun[d.id], o) for d, o in zip(claimed, outcomes, strict=True)]
    bench.record(results)
    tables = ("notify_delivery", "notify_attempt", "notify_work", "notify_transition", "notify_suppression")
    before = [sorted(map(str, bench.execute(f"SELECT * FROM {table}"))) for table in tables]
    assert bench.record(results).repeated == {r.id for r in results}
    assert before == [sorted(map(str, bench.execute(f"SELECT * FROM {table}"))) for table in tables]


def test_a_lapsed_attempt_is_doubt_and_its_owners_late_acceptance_settles_it(
    bench: Workbench, other: Workbench
) -> None:
    bench.deliveries(1)
    (delivery,) = bench.claim()
    begun = bench.begin([delivery])
    bench.pass_leases()
    assert other.lapse() == [("email", True)]
    assert bench.state(delivery.id) == "ambiguous"
    assert bench.execute("SELECT outcome, reason, finished FROM notify_attempt") == [("ambiguous", "worker_lost", None)]
    bench.record([bench.result(delivery, begun[delivery.id], ACCEPTED)])
    assert bench.state(delivery.id) == "accepted"
    assert bench.execute("SELECT outcome FROM notify_attempt") == [("accepted",)]
    assert bench.execute("SELECT attempts_used, doubt_since, remote_id FROM notify_delivery") == [(1, None, "remote-1")]
    bench.sound()


def test_a_late_failure_of_the_only_doubtful_attempt_is_as_good_as_in_time(bench: Workbench, other: Workbench) -> None:
    bench.deliveries(1)
    (delivery,) = bench.claim()
    begun = bench.begin([delivery])
    bench.pass_leases()
    other.lapse()
    bench.record([bench.result(delivery, begun[delivery.id], TEMPORARY)])
    assert bench.state(delivery.id) == "temporary_failure"
    assert bench.execute("SELECT attempts_used FROM notify_delivery") == [(1,)]
    bench.sound()


def test_a_late_outcome_never_overwrites_better_evidence(bench: Workbench, other: Workbench) -> None:
    bench.deliveries(1)
    (delivery,) = bench.claim()
    begun = bench.begin([delivery])
    bench.record([bench.result(delivery, begun[delivery.id], ACCEPTED)])
    bench.record([bench.result(delivery, begun[delivery.id], AMBIGUOUS)])
    bench.record([bench.result(delivery, begun[delivery.id], REFUSED)])
    assert bench.state(delivery.id) == "accepted"
    assert bench.execute("SELECT outcome FROM notify_attempt") == [("accepted",)]


def test_two_outcomes_of_one_delivery_in_one_record_are_judged_one_after_the_other(
    bench: Workbench, other: Workbench
) -> None:
    """The run got back what another tick had called lost, and then both of its exchanges ended at once."""
    bench.deliveries(1)
    first = bench.claim()
    hung = bench.begin(first)
    bench.pass_leases()
    other.lapse()
    bench.execute("UPDATE notify_work SET step = 'send', mandate = 'duplicate', eligible_at = :now")
    again = bench.claim()
    begun = bench.begin(again)
    ends = [
        bench.result(first[0], hung[first[0].id], REFUSED), bench.result(again[0], begun[again[0].id], AMBIGUOUS),
    ]  # fmt: skip
    bench.record(ends)
    bench.sound()
    outcomes = "SELECT number, outcome FROM notify_attempt ORDER BY number"
    assert bench.execute(outcomes) == [(1, "permanent_failure"), (2, "ambiguous")]
    work = bench.work(first[0].id)
    assert bench.state(first[0].id) == "ambiguous"
    assert work is not None
    assert work["fencing_token"] >= again[0].token
    assert bench.record(ends).repeated == {first[0].id}


def test_doubt_survives_a_later_certain_failure(bench: Workbench) -> None:
    bench.deliveries(1)
    (first,) = bench.claim()
    bench.send([first], AMBIGUOUS)
    since = bench.execute("SELECT doubt_since FROM notify_delivery")[0][0]
    # an operator's mandate puts it back to dispatch; the second attempt is certainly refused
    bench.execute("UPDATE notify_work SET step = 'send', mandate = 'duplicate', eligible_at = :now, owner = NULL")
    (second,) = bench.claim()
    assert second.doubt_since is not None
    bench.send([second], TEMPORARY)
    assert bench.state(first.id) == "ambiguous"
    assert bench.execute("SELECT doubt_since FROM notify_delivery") == [(since,)]
    work = bench.work(first.id)
    assert work is not None
    assert (work["step"], work["mandate"]) == ("resolve", None)
    bench.pass_leases()
    assert bench.claim() == []


def test_attempts_are_capped_and_end_as_a_dead_letter(bench: Workbench) -> None:
    bench.deliveries(1)
    for _ in range(3):
        (delivery,) = bench.claim()
        bench.send([delivery], TEMPORARY)
        bench.pass_leases()
    assert bench.states() == {"dead_letter": 1}
    assert bench.claim() == []
    bench.sound()


def test_an_invalid_address_settles_the_recipients_other_waiting_sends(bench: Workbench) -> None:
    bench.deliveries(1)
    bench.execute("INSERT INTO notify_delivery (event_id, recipient_id, channel, template, fingerprint) "
                  "VALUES ('later', 'e0', 'email', 'welcome', 'f')")  # fmt: skip
    (delivery,) = [d for d in bench.claim() if d.event_id == "e0"]
    bench.send([delivery], INVALID)
    assert bench.states() == {"suppressed": 2}
    bench.sound()


def test_an_expected_receipt_leaves_a_check_to_do(migrated_url: str) -> None:
    with workbench(migrated_url, capabilities=WITH_LOOKUP) as bench:
        bench.deliveries(1)
        (delivery,) = bench.claim()
        bench.send([delivery], ACCEPTED)
        work = bench.work(delivery.id)
        assert work is not None
        assert (work["step"], work["owner"]) == ("check", None)
        bench.pass_leases()
        assert bench.claim() == []


def test_the_number_of_statements_does_not_grow_with_the_group(bench: Workbench) -> None:
    def statements(count: int, prefix: str) -> int:
        bench.deliveries(count, prefix=prefix)
        calls = 0
        from notifyctl.ledger.database import Tx

        original = Tx._run

        def counting(self: Tx, sql: str, parameters: dict[str, object]) -> object:
            nonlocal calls
            calls += 1
            return original(self, sql, parameters)

        Tx._run = counting  # type: ignore[method-assign]
        try:
            claimed = bench.claim()
            begun = bench.begin(claimed)
            bench.record([bench.result(d, begun[d.id], ACCEPTED) for d in claimed])
        finally:
            Tx._run = original  # type: ignore[method-assign]
        return calls

    assert statements(40, "many") == statements(2, "few")
