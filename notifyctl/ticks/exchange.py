"""One exchange with a provider: a job of a worker thread, or a conversation of the main thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta

from notifyctl import clock
from notifyctl.failpoints import reach
from notifyctl.model import Outcome, OutcomeKind, Request
from notifyctl.pacing import TOLERANCE
from notifyctl.ticks.lane import InFlight, LaneRun, Late, Submitted
from notifyctl.transports.base import SLOT_MISSED, Conversation, Transport

MISSED = 0.5  # seconds after its slot at which a message does not go at all: others may have gone in its place


class Exchange:
    """Begun attempts of one lane that are submitted together.

    `sent`: monotonic time just before the transaction that began them. `moment` makes monotonic time of the ledger's.
    """

    __slots__ = ("began", "deadline", "flights", "lane", "notice", "paced", "slot", "transport", "validity")

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
        """Submit, in the thread that calls."""
        clock.sleep_until(self.slot)
        self.began = clock.monotonic()
        late = self.began - self.slot
        if self.paced and late > MISSED:
            missed = Outcome(OutcomeKind.RATE_LIMITED, SLOT_MISSED, retry_after=0.1)
            return [Submitted(self.lane, flight, missed, 0.0) for flight in self.flights]
        if self.paced and late > TOLERANCE.total_seconds():
            self.notice(Late(self.paced, timedelta(seconds=late) - TOLERANCE))
        reach("exchange.begun")
        try:
            return self.ended(self.transport.submit(self.requests, self.deadline, self.validity))
        except Exception as error:  # a bug; what it had written nobody knows
            return self.ended(error)

    @property
    def requests(self) -> list[Request]:
        """What is to be submitted."""
        return [flight.prepared.request for flight in self.flights]

    def converse(self) -> Conversation | None:
        """Begin on a connection that is open already; None: it is to be called, in a thread."""
        if self.paced:  # it waits for its slot
            return None
        conversation = self.transport.converse(self.requests, self.deadline)
        if conversation is not None:
            self.began = clock.monotonic()
            reach("exchange.begun")
        return conversation

    def ended(self, outcomes: Sequence[Outcome] | Exception) -> list[Submitted]:
        """What became of it."""
        if not isinstance(outcomes, Exception) and len(outcomes) != len(self.flights):
            outcomes = ValueError("not one outcome for each request")
        if broken := isinstance(outcomes, Exception):
            reason = f"transport_failed:{type(outcomes).__name__}"
            outcomes = [Outcome(OutcomeKind.AMBIGUOUS, reason)] * len(self.flights)
        reach("exchange.done")
        took = clock.monotonic() - self.began
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
