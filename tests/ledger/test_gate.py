"""Gates in the ledger: who may begin behind one whose time is over, and what is kept of it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from notifyctl.ledger import gate
from notifyctl.ledger.begin import Begun, Held
from notifyctl.model import Rate
from tests.ledger.workbench import DEADLINE, Workbench, workbench


@pytest.fixture
def bench(migrated_url: str) -> Iterator[Workbench]:
    with workbench(migrated_url) as one:
        yield one


@pytest.fixture
def other(migrated_url: str) -> Iterator[Workbench]:
    with workbench(migrated_url, "run-2") as one:
        yield one


def shut(bench: Workbench, kind: str = "breaker", *, seconds: float = 60, level: int = 1, probe: bool = False) -> None:
    until = bench.ledger.now() + timedelta(seconds=seconds)
    bench.ledger.transact(
        lambda tx: gate.close(
            tx, "transport", "relay", kind, until=until, level=level, reason="down", actor=bench.run, probe=probe
        )
    )


def past(bench: Workbench) -> None:
    """An administrator moves the gate's end into the past."""
    bench.execute("UPDATE notify_gate SET until = :past", past=bench.ledger.now() - timedelta(seconds=1))


def reopen(bench: Workbench) -> set[str]:
    return bench.ledger.transact(lambda tx: gate.reopen(tx, {"relay"}, run=bench.run))


@pytest.mark.parametrize("kind", ["breaker", "cooldown"])
def test_behind_a_gate_whose_time_is_over_one_attempt_of_all_owners_begins(
    bench: Workbench, other: Workbench, kind: str
) -> None:
    bench.deliveries(8)
    mine, theirs = bench.claim(4), other.claim(4)
    shut(bench, kind)
    past(bench)
    first, second = bench.begin(mine), other.begin(theirs)
    begun = [one for one in [*first.values(), *second.values()] if isinstance(one, Begun)]
    assert [one.probe for one in begun] == [True]
    assert {one.why for one in [*first.values(), *second.values()] if isinstance(one, Held)} == {"gate"}
    (seen,) = bench.ledger.read(gate.look)
    assert (seen.state, seen.prober, seen.due) == ("probe", "run-1", False)
    assert seen.until is not None
    assert seen.until > bench.ledger.now() + timedelta(seconds=DEADLINE - 5)
    assert reopen(other) == set()
    assert reopen(bench) == {"relay"}
    assert all(isinstance(one, Begun) and not one.probe for one in other.begin(theirs).values())


def test_a_probe_whose_owner_died_is_elected_anew(bench: Workbench, other: Workbench) -> None:
    bench.deliveries(2)
    mine, theirs = bench.claim(1), other.claim(1)
    shut(bench)
    past(bench)
    assert isinstance(bench.begin(mine)[mine[0].id], Begun)
    assert isinstance(other.begin(theirs)[theirs[0].id], Held)
    past(bench)  # the probe's deadline
    begun = other.begin(theirs)[theirs[0].id]
    assert isinstance(begun, Begun)
    assert begun.probe
    assert reopen(bench) == set()
    assert reopen(other) == {"relay"}


def test_a_row_that_policy_or_pace_holds_back_is_no_probe(bench: Workbench, other: Workbench) -> None:
    bench.deliveries(3)
    rows = bench.claim(2)
    rate = (("lane:email", Rate(1, 3600, "1/h")),)
    (first,) = other.claim(1)
    assert isinstance(other.begin([first], limits=rate)[first.id], Begun)
    shut(bench)
    past(bench)
    held = bench.begin(rows, limits=rate)
    assert sorted(one.why for one in held.values() if isinstance(one, Held)) == ["gate", "pace"]
    (seen,) = bench.ledger.read(gate.look)
    assert seen.due
    (row, _) = rows
    bench.execute(
        "INSERT INTO notify_suppression (recipient_id, channel, reason, actor) VALUES (:r, 'email', 'manual', 'op')",
        r=row.recipient_id,
    )
    begun = bench.begin(rows)
    assert [one.probe for one in begun.values() if isinstance(one, Begun)] == [True]


def test_a_straggler_changes_nothing_of_a_probe_that_is_out(bench: Workbench, other: Workbench) -> None:
    bench.deliveries(1)
    rows = bench.claim(1)
    shut(bench, level=3)
    past(bench)
    bench.begin(rows)
    shut(other, seconds=5)
    shut(bench, seconds=5)
    (seen,) = bench.ledger.read(gate.look)
    assert (seen.prober, seen.level) == ("run-1", 3)
    shut(bench, seconds=5, level=4, probe=True)
    (seen,) = bench.ledger.read(gate.look)
    assert (seen.prober, seen.level, seen.state) == (None, 4, "breaker")
    assert seen.until is not None
    assert seen.until < bench.ledger.now() + timedelta(seconds=6)


def test_begin_repeated_after_a_lost_reply_knows_its_probe(bench: Workbench) -> None:
    from notifyctl.ledger import begin as beginning
    from tests.ledger.workbench import ready_for

    bench.deliveries(1)
    (row,) = bench.claim(1)
    shut(bench)
    past(bench)
    ready = [ready_for(row, bench.ledger.now())]
    assert bench.begin([row])

    def again(tx: object) -> object:
        tx.rerun = True  # type: ignore[attr-defined]
        return beginning.begin(tx, run="run-1", ready=ready)[row.id]  # type: ignore[arg-type]

    second = bench.ledger.transact(again)
    assert isinstance(second, Begun)
    assert second.probe


def test_a_pause_keeps_who_and_why_and_so_does_its_end(bench: Workbench) -> None:
    def pause(reason: str) -> bool:
        return bench.ledger.transact(lambda tx: gate.pause(tx, "email", reason=reason, actor="ada"))

    def resume() -> bool:
        return bench.ledger.transact(lambda tx: gate.resume(tx, "email", reason="moved", actor="bob"))

    assert not resume()
    assert pause("moving house")
    assert not pause("again")
    bench.deliveries(1)
    (row,) = bench.claim(1)
    assert bench.begin([row])[row.id] == Held("gate", reason="moving house")
    assert resume()
    assert isinstance(bench.begin([row])[row.id], Begun)
    lines = bench.execute("SELECT name, kind, action, reason, actor FROM notify_gate_trail ORDER BY id")
    assert [tuple(line) for line in lines] == [
        ("email", "pause", "closed", "moving house", "ada"), ("email", "pause", "opened", "moved", "bob"),
    ]  # fmt: skip


def test_a_pause_that_an_administrator_gave_an_end_ends(bench: Workbench) -> None:
    bench.ledger.transact(lambda tx: gate.pause(tx, "email", reason="x", actor="ada"))
    past(bench)
    assert bench.ledger.read(gate.look) == []
    bench.deliveries(1)
    (row,) = bench.claim(1)
    assert isinstance(bench.begin([row])[row.id], Begun)
