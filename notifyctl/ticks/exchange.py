"""One submission, as a job of a worker thread."""

from __future__ import annotations

from notifyctl import clock
from notifyctl.failpoints import reach
from notifyctl.model import Outcome, OutcomeKind
from notifyctl.ticks.lane import InFlight, Submitted
from notifyctl.transports.base import Transport


class Exchange:
    """One submission in a worker thread. Nothing else happens there."""

    __slots__ = ("deadline", "flight", "lane", "slot", "transport", "validity")

    def __init__(
        self, lane: str, transport: Transport, flight: InFlight, deadline: clock.Deadline, validity: float | None,
        slot: float,
    ) -> None:  # fmt: skip
        self.lane = lane
        self.transport = transport
        self.flight = flight
        self.deadline = deadline
        self.validity = validity
        self.slot = slot  # monotonic: when the pace lets the first byte go

    def __call__(self) -> Submitted:
        clock.sleep_until(self.slot)
        began = clock.monotonic()
        reach("exchange.begun")
        broken = False
        try:
            outcome = self.transport.submit([self.flight.prepared.request], self.deadline, self.validity)[0]
        except Exception as error:  # a bug; what it had written nobody knows
            outcome = Outcome(OutcomeKind.AMBIGUOUS, f"transport_failed:{type(error).__name__}")
            broken = True
        reach("exchange.done")
        return Submitted(self.lane, self.flight, outcome, clock.monotonic() - began, broken)
