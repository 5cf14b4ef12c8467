"""The arithmetic of limits, with invented clocks."""

from __future__ import annotations

import itertools
import random
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notifyctl.model import Rate
from notifyctl.pacing import GUARD, HORIZON, LEAD, TOLERANCE, Meter, take

NOW = datetime(2027, 3, 28, tzinfo=UTC)
MS = timedelta(milliseconds=1)


def rate(count: int, seconds: int) -> Rate:
    return Rate(count, seconds, f"{count}/{seconds}")


def most(times: list[datetime], seconds: float) -> int:
    """The largest number of these in any window of so many seconds."""
    times = sorted(times)
    return max(sum(at <= other < at + timedelta(seconds=seconds) for other in times) for at in times)


@given(
    count=st.integers(1, 60), seconds=st.sampled_from([1, 60]), seed=st.integers(0, 1000), owners=st.integers(1, 4)
)
def test_no_window_ever_holds_more_whoever_asks_when_and_however_late_each_goes(
    count: int, seconds: int, seed: int, owners: int
) -> None:
    """Owners come at random instants; each message goes up to the tolerance late, and reaches the other side later
    still; what goes later than the tolerance is told to the meter before the next second's slots are taken."""
    chance, limit = random.Random(seed), rate(count, seconds)
    meters = {("lane:x", limit.text): Meter()}
    now, arrived = NOW, []
    for _ in range(200):
        now += timedelta(seconds=chance.expovariate(owners * count / seconds))
        slot, taken = take(meters, [("lane:x", limit)], now, HORIZON)
        if not taken:
            now = slot - HORIZON / 2
            continue
        late = chance.choice([0, 0, 0, 10, 20, 200]) * MS
        if late > TOLERANCE:
            meters["lane:x", limit.text].delay(late - TOLERANCE)
        arrived.append(slot + late + chance.random() * (GUARD - TOLERANCE))
    assert most(arrived, seconds) <= count


@pytest.mark.parametrize("count", [1, 5, 50, 500])
def test_a_busy_limit_is_used_up_to_its_guard(count: int) -> None:
    limit = rate(count, 1)
    meters = {("lane:x", limit.text): Meter()}
    now, slots = NOW, []
    while now < NOW + timedelta(seconds=60):
        slot, taken = take(meters, [("lane:x", limit)], now, HORIZON)
        if taken:
            slots.append(slot)
        else:
            now = slot - HORIZON / 2
    assert 0.95 * 60 * count - 1 <= len(slots) <= 60 * count
    gaps = {after - before for before, after in itertools.pairwise(slots)}
    assert max(gaps) - min(gaps) <= 2 * timedelta(microseconds=1)


def test_after_an_outage_nothing_is_caught_up_with() -> None:
    limit = rate(10, 1)
    meters = {("lane:x", limit.text): Meter(tat=NOW - timedelta(hours=3))}
    slots = [take(meters, [("lane:x", limit)], NOW, timedelta(seconds=5))[0] for _ in range(30)]
    assert slots[0] == NOW + LEAD
    assert most(slots, 1) == 10


def test_the_narrowest_of_several_limits_decides_and_nothing_is_taken_of_the_others_in_vain() -> None:
    wide, narrow, daily = rate(10, 1), rate(1, 60), rate(2, 86400)
    limits = [("lane:x", wide), ("transport:t", narrow), ("lane:x", daily)]
    meters = {(key, one.text): Meter() for key, one in limits}
    assert take(meters, limits, NOW, HORIZON)[1]
    before = meters["lane:x", wide.text].tat
    slot, taken = take(meters, limits, NOW, HORIZON)
    assert (taken, slot) == (False, NOW + LEAD + timedelta(minutes=1) + GUARD)
    assert meters["lane:x", wide.text].tat == before
    assert take(meters, limits, slot, HORIZON)[1]
    assert take(meters, limits, slot + timedelta(hours=1), HORIZON) == (NOW + LEAD + timedelta(days=1), False)


def test_those_who_wait_are_told_times_one_at_a_time() -> None:
    limit, line = rate(5, 3600), Meter()
    slot = NOW + timedelta(minutes=40)
    told = [line.line_up(limit, slot, last=True) for _ in range(12)]
    assert told[0] == slot
    assert most(told, 3600) == 5
    assert line.line_up(limit, slot, last=False) == slot  # has waited before: not behind the others again
    assert line.line_up(limit, slot, last=True) > told[-1]
