"""One exchange with a provider, as a job of a worker thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta

from notifyctl import clock
from notifyctl.failpoints import reach
from notifyctl.model import Outcome, OutcomeKind
from notifyctl.pacing import TOLERANCE
from notifyctl.ticks.lane import InFlight, LaneRun, Late, Submitted
from notifyctl.transports.base import SLOT_MISSED, Transport

MISSED = 0.5  # seconds after its slot at which a message does not go at all: others may have gone in its place


class Exchange:
    """Begun attempts of one lane that are submitted together, in a worker thread. Nothing else happens there.

    `sent`: monotonic time just before the transaction that began them. `moment` makes monotonic time of the ledger's.
    """

    __slots__ = ("deadline", "flights", "lane", "notice", "paced", "slot", "transport", "validity")

    def __init__(
        self, lane: LaneRun, transport: Transport, flights: Sequence[InFlight], sent: float,
        moment: Callable[[datetime], float],
    ) -> None:  # fmt: skip
        self.lane = lane.lane.name
        self.transport = transport
        self.flights = flights
        self.deadline = clock.Deadline(sent + transport.settings.deadline)
        self.notice = lane.done.put
        self.paced = frozenset(
            (key, rate.text) for f in flights for key, rate in f.prepared.ready.limits if rate.seconds <= 60
        )
        # When the pace lets the first byte go: once all of them may, at most `pacing.HORIZON` after the first, so an
        # exchange never holds more than that much of a rate.
        self.slot = moment(max(f.begun.slot for f in flights)) if self.paced else sent
        lives = [_validity(flight) for flight in flights]
        self.validity = None if None in lives else max(one for one in lives if one is not None)

    def __call__(self) -> list[Submitted]:
        clock.sleep_until(self.slot)
        began = clock.monotonic()
        late = began - self.slot
        if self.paced and late > MISSED:
            missed = Outcome(OutcomeKind.RATE_LIMITED, SLOT_MISSED, retry_after=0.1)
            return [Submitted(self.lane, flight, missed, 0.0) for flight in self.flights]
        if self.paced and late > TOLERANCE.total_seconds():
            self.notice(Late(self.paced, timedelta(seconds=late) - TOLERANCE))
        reach("exchange.begun")
        broken = False
        requests = [flight.prepared.request for flight in self.flights]
        try:
            outcomes = self.transport.submit(requests, self.deadline, self.validity)
            if len(outcomes) != len(requests):
                raise ValueError("not one outcome for each request")  # noqa: TRY301 - a bug like any other below
        except Exception as error:  # a bug; what it had written nobody knows
            outcomes = [Outcome(OutcomeKind.AMBIGUOUS, f"transport_failed:{type(error).__name__}")] * len(requests)
            broken = True
        reach("exchange.done")
        took = clock.monotonic() - began
        each = zip(self.flights, outcomes, strict=True)
        return [Submitted(self.lane, flight, outcome, took, broken) for flight, outcome in each]


def grouped(
    lane: LaneRun, transport: Transport, flights: Sequence[InFlight], sent: float, moment: Callable[[datetime], float]
) -> Iterator[Exchange]:
    """As few exchanges as the provider takes."""
    most = transport.capabilities.max_batch
    for at in range(0, len(flights), most):
        yield Exchange(lane, transport, flights[at : at + most], sent, moment)


def _validity(flight: InFlight) -> float | None:
    """Seconds during which a message is worth delivering; None: for ever."""
    expires = flight.prepared.ready.delivery.expires_at
    return None if expires is None else (expires - flight.begun.started).total_seconds()
