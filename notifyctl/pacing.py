"""When may the next message go? Pure: the state of every limit comes in and goes back out.

Limits per second and per minute are paced by GCRA without burst (ITU-T I.371: one cell per interval, a theoretical
arrival time instead of a bucket), so that no recovery after an outage bursts. Limits per hour and per day count in
windows that begin with their first use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from notifyctl.model import Lane, Rate

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
            self.tat = at + timedelta(seconds=rate.seconds / rate.count)
            return
        if self.window_start is None or at >= self.window_start + timedelta(seconds=rate.seconds):
            self.window_start, self.count = at, 0
        self.count += 1


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
    slot = max((meters[key, rate.text].free_at(rate, now) for key, rate in limits), default=now)
    if slot > now + horizon:
        return slot, False
    for key, rate in limits:
        meters[key, rate.text].take(rate, slot)
    return slot, True
