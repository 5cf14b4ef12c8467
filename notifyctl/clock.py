"""Time as the tool uses it: instants are aware UTC datetimes, durations are seconds as float.

Deadlines of a running process use CLOCK_BOOTTIME where the system has it: unlike CLOCK_MONOTONIC it also counts
while the machine sleeps, so a laptop or a paused VM that wakes up late knows that its exchange is over.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)


def monotonic() -> float:
    """Seconds since some fixed point; never steps, also counts suspended time where the system can tell."""
    if _BOOTTIME is not None:
        return time.clock_gettime(_BOOTTIME)
    return time.monotonic()


def wall() -> datetime:
    """The host's wall clock, UTC."""
    return datetime.now(UTC)


class Deadline:
    """A point on the monotonic clock after which an exchange must not write another byte."""

    __slots__ = ("at",)

    def __init__(self, at: float) -> None:
        self.at = at

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """The deadline `seconds` from now."""
        return cls(monotonic() + seconds)

    def remaining(self) -> float:
        """Seconds left, negative once passed."""
        return self.at - monotonic()

    @property
    def passed(self) -> bool:
        """Whether no byte may be written any more."""
        return monotonic() >= self.at

    def __repr__(self) -> str:
        return f"Deadline({self.remaining():+.3f}s)"


def sleep_until(at: float) -> None:
    """Sleep until a point of the monotonic clock; returns at once if it has passed."""
    while (left := at - monotonic()) > 0:
        time.sleep(left)
