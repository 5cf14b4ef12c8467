"""When may the next message go? Pure: the state of every limit comes in and goes back out.

Limits per second and per minute are paced by GCRA without burst (ITU-T I.371: one cell per interval, a theoretical
arrival time instead of a bucket), so that no recovery after an outage bursts. Limits per hour and per day count in
windows that begin with their first use.

A limit of N per second means: never more than N in any second, as the other side sees them. Slots are therefore N in
a second and `GUARD`, so that a message that is a little late is not caught up with by one that is not; and they lie
`LEAD` ahead, so that there is time to commit before the message goes. What is later than the guard allows moves the
slots after it (`Meter.delay`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from notifyctl.model import Lane, Rate

GUARD = timedelta(milliseconds=40)  # in each second or minute: 4 % of a limit per second is the price of its exactness
TOLERANCE = GUARD / 2  # how late a message may go; the other half is for the way to the other side
LEAD = timedelta(milliseconds=30)
HORIZON = timedelta(milliseconds=150)  # how far ahead a slot may be taken: its worker waits for it

LimitKey = tuple[str, str]  # (what is limited, the rate as configured)


@dataclass(slots=True)
class Meter:
    """What one limit remembers: a theoretical arrival time, or a window and its count."""

    tat: datetime | None = None
    window_start: datetime | None = None
    count: int = 0

    def free_at(self, rate: Rate, now: datetime) -> datetime:
        """The earliest instant, not before `now`, at which this limit lets a message go."""
        if rate.seconds <= 60:
            return max(now, self.tat) if self.tat else now
        if self.window_start is None:
            return now
        end = self.window_start + timedelta(seconds=rate.seconds)
        return now if now >= end or self.count < rate.count else end

    def take(self, rate: Rate, at: datetime) -> None:
        """Count one message that goes at `at`."""
        if rate.seconds <= 60:
            self.tat = at + spacing(rate)
            return
        if self.window_start is None or at >= self.window_start + timedelta(seconds=rate.seconds):
            self.window_start, self.count = at, 0
        self.count += 1


    def delay(self, late: timedelta) -> None:
        """A message went later than its slot: those that follow keep their distance to it."""
        if self.tat is not None:
            self.tat += late

    def line_up(self, rate: Rate, slot: datetime, *, last: bool) -> datetime:
        """When one more of those who wait for this limit should come again: none sooner than `slot`, one at a time;
        `last`: behind everybody who has been told a time. Nothing is reserved for them."""
        at = max(slot, self.tat) if last and self.tat else slot
        self.tat = max(at + spacing(rate), self.tat or at)
        return at


def spacing(rate: Rate) -> timedelta:
    """The distance of two messages that keeps a limit."""
    return (timedelta(seconds=rate.seconds) + GUARD) / rate.count


def waiting(key: str, rate: Rate) -> LimitKey:
    """Under which those who wait for a limit line up."""
    return key, f"{rate.text} waiting"


def limits(lane: Lane, transport: Sequence[Rate], fingerprint: str | None) -> tuple[tuple[str, Rate], ...]:
    """Every limit that a message of `lane` counts against, by the key under which it is metered.

    `transport`: the rates of the lane's transport; `fingerprint` None: the destination is not known yet.
    """
    return (
        *((f"lane:{lane.name}", rate) for rate in lane.rates),
        *((f"transport:{lane.transport}", rate) for rate in transport),
        *((f"destination:{lane.name}:{fingerprint}", rate) for rate in (lane.per_destination if fingerprint else ())),
    )


def take(
    meters: Mapping[LimitKey, Meter], limits: Sequence[tuple[str, Rate]], now: datetime, horizon: timedelta
) -> tuple[datetime, bool]:
    """The slot of one message under all its limits, and whether it was taken.

    A slot further away than `horizon` is not taken: nothing is reserved for what must wait.
    """
    first = now + LEAD if any(rate.seconds <= 60 for _, rate in limits) else now
    slot = max((meters[key, rate.text].free_at(rate, first) for key, rate in limits), default=first)
    if slot > now + horizon:
        return slot, False
    for key, rate in limits:
        meters[key, rate.text].take(rate, slot)
    return slot, True
