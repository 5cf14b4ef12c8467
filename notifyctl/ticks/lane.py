"""One lane within a dispatch run: what it has claimed, what is ready, what is in flight."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from heapq import heappop, heappush

from notifyctl.ledger.begin import Begun
from notifyctl.ledger.claim import Cursor
from notifyctl.model import Delivery, Lane, Outcome
from notifyctl.pacing import LimitKey
from notifyctl.ticks.prepare import Prepared, Preparer, Refusal
from notifyctl.ticks.wake import Wake
from notifyctl.ticks.workers import Workers

COMPOSERS = 2  # threads per lane that compose: enough to overlap object fetches, little for the interpreter's lock


@dataclass(frozen=True, slots=True)
class InFlight:
    """A begun attempt."""

    prepared: Prepared
    begun: Begun

    @property
    def key(self) -> tuple[int, int]:
        """Delivery and attempt: an exchange that outlives its deadline may meet the delivery's next one in this run."""
        return self.prepared.ready.delivery.id, self.begun.number


@dataclass(frozen=True, slots=True)
class Composed:
    """A composing job's results."""

    lane: str
    results: list[Prepared | Refusal]


@dataclass(frozen=True, slots=True)
class Submitted:
    """A submitting job's result; `broken`: the transport raised, which is a bug."""

    lane: str
    flight: InFlight
    outcome: Outcome
    duration: float
    broken: bool = False


@dataclass(frozen=True, slots=True)
class Late:
    """A message went so much later than the slots it had taken of these limits."""

    limits: frozenset[LimitKey]
    late: timedelta


@dataclass(slots=True)
class LaneRun:
    """The state of one lane in this run; only the main thread touches it."""

    lane: Lane
    region: str
    preparer: Preparer
    done: Wake
    cursor: Cursor = field(default_factory=Cursor)
    stopped: str = ""  # why nothing more is claimed: empty, limit, seconds, gate, pace, signal
    composing: dict[int, Delivery] = field(default_factory=dict)
    inline: bool = True  # rows without attachments are composed by the main thread, between two turns
    slow: int = 0  # how many of them in a row held it up for too long
    light: deque[Delivery] = field(default_factory=deque)  # those rows
    laden: deque[Delivery] = field(default_factory=deque)  # with attachments: composed only when a slot is near
    loaded: set[int] = field(default_factory=set)  # laden ones whose bytes are in memory
    refused: list[Refusal] = field(default_factory=list)
    ready: deque[Prepared] = field(default_factory=deque)
    locked: set[int] = field(default_factory=set)  # found locked by somebody else since the last pause
    returning: list[tuple[Delivery, datetime]] = field(default_factory=list)
    flying: dict[tuple[int, int], InFlight] = field(default_factory=dict)  # by delivery and attempt
    finished: list[Submitted] = field(default_factory=list)
    not_before: float = 0.0  # monotonic: nothing of this lane tries to begin earlier
    again: list[float] = field(default_factory=list)  # monotonic, a heap: when rows that went back are due again
    rests_until: float = 0.0  # monotonic: nothing is due any more, but some of those will be
    renew_at: float = 0.0  # monotonic: half of the lease of what is unbegun has passed
    counts: Counter[str] = field(default_factory=Counter)
    composers: Workers = field(init=False)
    senders: Workers = field(init=False)

    def __post_init__(self) -> None:
        self.composers = Workers(f"compose-{self.lane.name}", COMPOSERS, self.done)
        self.senders = Workers(f"submit-{self.lane.name}", self.lane.concurrency, self.done)

    @property
    def transport(self) -> str:
        """The name of the transport this lane uses."""
        return self.lane.transport

    @property
    def unbegun(self) -> dict[int, Delivery]:
        """What is claimed and neither begun nor on its way back."""
        rows = dict(self.composing)
        rows.update((p.ready.delivery.id, p.ready.delivery) for p in self.ready)
        return rows

    @property
    def waiting(self) -> int:
        """How many rows are claimed and neither begun nor on their way back."""
        return len(self.composing) + len(self.ready)

    @property
    def free(self) -> int:
        """Exchanges that could start now."""
        return self.lane.concurrency - self.senders.busy

    def take_ready(self, exchanges: int) -> list[Prepared]:
        """What may try to begin now: what so many exchanges hold.

        Where one holds several, it is not begun for the first few while others are being composed here.
        """
        most = self.preparer.transport.capabilities.max_batch
        if most > 1 and self.light and len(self.ready) < most:
            return []
        return [self.ready.popleft() for _ in range(min(max(0, exchanges) * most, len(self.ready)))]

    @property
    def active(self) -> bool:
        """Whether anything of this lane is still on its way to the ledger."""
        return bool(self.flying or self.finished or self.refused or self.returning)

    def composed(self, result: Prepared | Refusal) -> None:
        """Take a composed row, unless it was given back meanwhile."""
        delivery = result.ready.delivery if isinstance(result, Prepared) else result.delivery
        if self.composing.pop(delivery.id, None) is None:
            return
        if isinstance(result, Prepared):
            self.ready.append(result)
        else:
            self.loaded.discard(delivery.id)
            self.refused.append(result)

    def take_done(self) -> tuple[list[Submitted], list[Refusal], list[tuple[Delivery, datetime]]]:
        """What is to be written, no longer this lane's."""
        done = self.finished, self.refused, self.returning
        self.finished, self.refused, self.returning = [], [], []
        return done

    def put_back_done(
        self, finished: list[Submitted], refused: list[Refusal], returning: list[tuple[Delivery, datetime]]
    ) -> None:
        """It could not be written: in front of what has come since."""
        self.finished, self.refused = finished + self.finished, refused + self.refused
        self.returning = returning + self.returning

    def put_back_locked(self, prepared: Prepared) -> bool:
        """Keep a row that somebody else has locked behind the others. Returns whether none is left but such rows."""
        self.ready.append(prepared)
        self.locked.add(prepared.ready.delivery.id)
        only = all(other.ready.delivery.id in self.locked for other in self.ready)
        if only:
            self.locked.clear()
        return only

    def comes_again(self, at: float) -> None:
        """A row that goes back is due again within this run, at that point of the monotonic clock."""
        heappush(self.again, at)
        if self.stopped == "empty":
            self.stopped, self.rests_until = "", self.again[0]

    def swept(self, now: float) -> None:
        """Nothing more is due: the lane is done, or rests until the next row comes again."""
        while self.again and self.again[0] <= now:
            heappop(self.again)
        if self.again:
            self.rests_until = self.again[0]
        else:
            self.stopped = "empty"

    def next_laden(self) -> Delivery | None:
        """The next delivery with attachments to compose, if not too many of them are in memory already."""
        if not self.laden or len(self.loaded) >= self.lane.concurrency:
            return None
        delivery = self.laden.popleft()
        self.loaded.add(delivery.id)
        return delivery

    def take_unbegun(self) -> list[Delivery]:
        """Everything unbegun, no longer this lane's."""
        rows = list(self.unbegun.values())
        self.composing.clear()
        self.ready.clear()
        self.light.clear()
        self.laden.clear()
        self.loaded &= {delivery for delivery, _ in self.flying}
        return rows

    def drop(self, ids: Iterable[int]) -> None:
        """Forget rows whose lease was lost."""
        gone = set(ids)
        if gone:
            self.composing = {i: d for i, d in self.composing.items() if i not in gone}
            self.ready = deque(p for p in self.ready if p.ready.delivery.id not in gone)
            self.light = deque(d for d in self.light if d.id not in gone)
            self.laden = deque(d for d in self.laden if d.id not in gone)
            self.loaded -= gone
