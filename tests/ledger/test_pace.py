"""Limits in the ledger: shared by owners, several at once, and what waits for them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial

import pytest

from notifyctl.ledger import pace
from notifyctl.ledger.begin import Begun, Held
from notifyctl.model import Rate
from notifyctl.pacing import GUARD, TOLERANCE
from tests.ledger.workbench import Workbench, workbench

SECOND, HOUR = Rate(2, 1, "2/s"), Rate(3, 3600, "3/h")


@pytest.fixture
def bench(migrated_url: str) -> Iterator[Workbench]:
    with workbench(migrated_url) as one:
        yield one


@pytest.fixture
def other(migrated_url: str) -> Iterator[Workbench]:
    with workbench(migrated_url, "run-2") as one:
        yield one


def crowd(limit: Rate) -> tuple[tuple[str, Rate], ...]:
    return (("destination:email:f", limit),)


def times(results: dict[int, Begun | Held]) -> list[datetime]:
    return [one.until for one in results.values() if isinstance(one, Held) and one.until]


def test_rows_for_a_crowded_address_go_back_with_times_of_their_own(bench: Workbench, other: Workbench) -> None:
    bench.deliveries(20)
    first = bench.begin(bench.claim(10), limits=crowd(HOUR))
    second = other.begin(other.claim(10), limits=crowd(HOUR))
    assert sum(isinstance(one, Begun) for one in [*first.values(), *second.values()]) == 3
    waits = times(first) + times(second)
    assert len(waits) == len(set(waits)) == 17
    assert waits == sorted(waits)
    assert all(
        after - before >= timedelta(minutes=20) for before, after in itertools.pairwise(waits)
    )
    assert {one.why for one in first.values() if isinstance(one, Held)} == {"destination_pace"}


def test_who_has_waited_is_not_sent_behind_everybody_again(bench: Workbench) -> None:
    bench.deliveries(9)
    rows = bench.claim(9)
    bench.begin(rows[:8], limits=crowd(HOUR))
    bench.execute(
        "UPDATE notify_work SET owner = NULL, eligible_at = :at WHERE delivery_id = :id", id=rows[7].id,
        at=bench.ledger.now() - timedelta(seconds=1),
    )  # fmt: skip
    bench.execute("UPDATE notify_work SET due_at = :at", at=bench.ledger.now() - timedelta(hours=2))
    bench.execute("UPDATE notify_delivery SET due_at = :at", at=bench.ledger.now() - timedelta(hours=2))
    (again,) = bench.claim(1)
    (waited,) = times(bench.begin([again], limits=crowd(HOUR)))
    (new,) = times(bench.begin([rows[8]], limits=crowd(HOUR)))
    assert waited < bench.ledger.now() + timedelta(hours=1)
    assert new > bench.ledger.now() + timedelta(hours=2)


def test_other_addresses_go_while_one_is_crowded(bench: Workbench) -> None:
    bench.deliveries(4)
    a, b, c, d = bench.claim(4)
    assert isinstance(bench.begin([a], limits=(("destination:email:a", SECOND), ("lane:email", HOUR)))[a.id], Begun)
    assert bench.begin([b], limits=(("destination:email:a", SECOND), ("lane:email", HOUR)))[b.id].__class__ is Held
    assert isinstance(bench.begin([c], limits=(("destination:email:c", SECOND), ("lane:email", HOUR)))[c.id], Begun)
    assert isinstance(bench.begin([d], limits=(("destination:email:d", SECOND), ("lane:email", HOUR)))[d.id], Begun)


def test_what_went_late_keeps_its_distance_to_what_follows(bench: Workbench, other: Workbench) -> None:
    bench.deliveries(2)
    limits = (("lane:email", SECOND), ("lane:email", HOUR))
    (first,) = bench.claim(1)
    begun = bench.begin([first], limits=limits)[first.id]
    assert isinstance(begun, Begun)
    late = {("lane:email", "2/s"): timedelta(seconds=3), ("lane:email", "3/h"): timedelta(seconds=3)}
    bench.ledger.transact(lambda tx: pace.delay(tx, late))
    held = other.begin(other.claim(1), limits=limits)
    assert times(held) == [begun.slot + (timedelta(seconds=1) + GUARD) / 2 + timedelta(seconds=3)]
    assert TOLERANCE < GUARD


def test_the_number_of_statements_does_not_grow_with_those_who_wait(bench: Workbench) -> None:
    counts = []
    for size in (2, 12):
        bench.deliveries(size, prefix=f"s{size}-")
        claimed = bench.claim(size)
        seen: list[str] = []
        bench.ledger.watch(partial(_Watched, seen=seen))
        bench.begin(claimed, limits=crowd(HOUR))
        bench.ledger.watch(lambda watched: watched.connection)
        counts.append(len(seen))
    assert counts[1] <= counts[0] + 2  # the first time the limit's rows are made


class _Watched:
    """A connection that notes what it is asked."""

    def __init__(self, connection: object, seen: list[str]) -> None:
        self.connection = connection
        self._seen = seen

    def execute(self, sql: str, *parameters: object, **options: object) -> object:
        self._seen.append(sql)
        return self.connection.execute(sql, *parameters, **options)  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> object:
        return getattr(self.connection, name)
