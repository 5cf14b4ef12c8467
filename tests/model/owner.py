"""One running dispatch, step by step: the tool's own statements and judgements, in the order its main thread has them.

What a run knows it knows from its claim and its configuration when it began; a crash is forgetting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from notifyctl.compose.attachments import Objects
from notifyctl.config import Config
from notifyctl.ledger import claim as claiming
from notifyctl.ledger import record as recording
from notifyctl.ledger.begin import Begun, Held
from notifyctl.ledger.database import Tx
from notifyctl.model import Delivery, Outcome, OutcomeKind, Step
from notifyctl.ticks.judge import Judge
from notifyctl.ticks.lane import InFlight, Submitted
from notifyctl.ticks.prepare import Prepared, Preparer, Refusal
from notifyctl.ticks.run import Run
from notifyctl.ticks.turn import Done, Group, turn
from tests.model.truth import DEADLINE, REPLIES, TOO_LATE, Scripted
from tests.model.world import World


@dataclass
class Flight:
    """A begun attempt under way; `until`: when its worker may write no more, in true time."""

    inner: InFlight
    until: float
    outcome: Outcome | None = None

    @property
    def id(self) -> int:
        """Its delivery."""
        return self.inner.prepared.ready.delivery.id


@dataclass
class Owner:
    """One process."""

    world: World
    number: int
    lives: int = 0
    run: Run = field(init=False)
    config: Config = field(init=False)
    held: dict[int, Delivery] = field(default_factory=dict)
    ready: dict[int, Prepared] = field(default_factory=dict)
    refused: dict[int, Refusal] = field(default_factory=dict)
    returning: dict[int, tuple[Delivery, datetime]] = field(default_factory=dict)
    flying: dict[tuple[int, int], Flight] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ledger = self.world.bench.ledger(self.number)
        self.restart()

    def restart(self) -> None:
        """A new run, with the configuration as it is now; whatever the old one knew is forgotten."""
        self.lives += 1
        self.config = self.world.config
        name = f"run-{self.number}-{self.lives}"
        self.run = Run(self.config, self.ledger, "dispatch", id=name, recorded=True, _keys=self.world.keys)
        for known in (self.held, self.ready, self.refused, self.returning, self.flying):
            known.clear()

    @property
    def busy(self) -> bool:
        """Whether it still knows of anything."""
        return bool(self.held or self.ready or self.refused or self.returning or self.flying)

    def judge(self) -> Judge:
        """The policies of this run."""
        names = {lane.transport for lane in self.config.lanes.values()}
        return Judge(self.config.lanes, {name: self._open(name) for name in sorted(names)})

    def _open(self, name: str) -> Scripted:
        return Scripted(self.config.transports[name])

    # -- claim, compose -------------------------------------------------------------------------------------------

    def lapse(self) -> None:
        """What every tick does first."""
        judge = self.judge()
        pairs = [(name, "") for name in self.config.lanes]
        self.ledger.transact(
            lambda tx: recording.lapse(
                tx, pairs=pairs, limit=100, actor=self.run.id, judge=lambda row: judge.lapse(row, tx.now)
            )
        )
        self.world.check("lapse", actor=self.run.id)

    def claim(self, lane: str, limit: int = 10) -> list[Delivery]:
        """Own what is due to be sent."""
        rows, _ = claiming.claim(
            self.ledger, run=self.run.id, step=Step.SEND, lane=lane, region="", limit=limit,
            lease=self.config.lanes[lane].lease, after=claiming.Cursor(),
        )  # fmt: skip
        self.held.update((row.id, row) for row in rows)
        for row in rows:  # what it knew of an earlier claim is overtaken
            self.ready.pop(row.id, None)
            self.refused.pop(row.id, None)
            self.returning.pop(row.id, None)
        self.world.check("claim", actor=self.run.id)
        return rows

    def compose(self) -> None:
        """Make the exact requests of what is held."""
        now = self.world.now
        for delivery in list(self.held.values()):
            lane = self.config.lanes[delivery.lane]
            preparer = Preparer(
                self.config, lane, self._open(lane.transport), self.world.renderer, self.world.keys,
                Objects(""),
            )  # fmt: skip
            made = preparer.prepare(delivery, self.world.templates, now)
            del self.held[delivery.id]
            if isinstance(made, Prepared):
                self.ready[delivery.id] = made
            else:
                self.refused[delivery.id] = made

    # -- the turn -------------------------------------------------------------------------------------------------

    def turn(self, *, flights: Sequence[Flight] = (), begin: bool = False, repeat: bool = False) -> None:
        """One transaction: record these, refuse, release, begin what is ready; `repeat`: its reply is lost."""
        ready = dict(self.ready) if begin else {}
        group = Group(
            finished=[Submitted(f.inner.prepared.ready.delivery.lane, f.inner, f.outcome or TOO_LATE, 0.5)
                      for f in flights],
            refusals=list(self.refused.values()), returning=list(self.returning.values()),
            ready=[prepared.ready for prepared in ready.values()],
        )  # fmt: skip
        if group.empty:
            return
        judge = self.judge()
        done = self.ledger.transact(lambda tx: turn(tx, self.run, judge, group))
        told = {f.id for f in flights if f.outcome and f.outcome.kind is OutcomeKind.ACCEPTED}
        self.world.check("turn", actor=self.run.id, told_accepted=told)
        if repeat:
            done = self.ledger.transact(lambda tx: turn(_again(tx), self.run, judge, group))
            self.world.check("turn again", actor=self.run.id, unchanged=True)
        self._take(done, flights, ready)

    def _take(self, done: Done, flights: Sequence[Flight], ready: dict[int, Prepared]) -> None:
        self.refused.clear()
        self.returning.clear()
        for flight in flights:
            self.flying.pop((flight.id, flight.inner.begun.number), None)
        for delivery, result in done.begun.items():
            prepared = self.ready.pop(delivery)
            if isinstance(result, Begun):
                flight = Flight(InFlight(ready[delivery], result), self.world.clock.passed + DEADLINE)
                self.flying[delivery, result.number] = flight
            else:
                self._hold(prepared, result)

    def _hold(self, prepared: Prepared, held: Held) -> None:
        delivery = prepared.ready.delivery
        if held.why in ("gate", "pace", "destination_pace", "moved"):
            until = held.until or delivery.was_eligible_at or delivery.due_at
            self.returning[delivery.id] = delivery, until

    # -- the network ----------------------------------------------------------------------------------------------

    def submit(self, flight: Flight, reply: str) -> None:
        """The worker's whole exchange; nothing is written after its deadline."""
        assert self.world.bench.idle(), "a transaction is open during a network call"
        if self.world.clock.passed >= flight.until:
            flight.outcome = TOO_LATE
            return
        prepared, begun = flight.inner.prepared, flight.inner.begun
        digest = self.world.keys.request(prepared.request)
        self.world.oracle.submitted(flight.id, begun.number, digest, self.run.id)
        taken, outcome = REPLIES[reply]
        if taken:
            transport = self._open(prepared.ready.transport)
            mandate = prepared.ready.delivery.mandate
            remote = self.world.providers.take(
                transport, prepared.request, digest, (flight.id, begun.number), mandate and mandate.value
            )
            if remote is None:
                outcome = Outcome(OutcomeKind.PERMANENT_FAILURE, "idempotency_conflict")
            elif outcome.kind is OutcomeKind.ACCEPTED:
                outcome = replace(outcome, remote_ids=(remote,))
        flight.outcome = outcome

    # -- giving back ----------------------------------------------------------------------------------------------

    def renew(self) -> None:
        """Half a lease has passed."""
        held = {**self.held, **{i: p.ready.delivery for i, p in self.ready.items()}}
        if not held:
            return
        owned = {i: d.token for i, d in held.items()}
        kept = claiming.renew(self.ledger, run=self.run.id, owned=owned, lease=60.0)
        for lost in owned.keys() - kept:
            self.held.pop(lost, None)
            self.ready.pop(lost, None)
        self.world.check("renew", actor=self.run.id)

    def release(self) -> None:
        """The run ends: what has not begun goes back."""
        for delivery in [*self.held.values(), *(p.ready.delivery for p in self.ready.values())]:
            self.returning[delivery.id] = delivery, delivery.was_eligible_at or delivery.due_at
        self.held.clear()
        self.ready.clear()
        self.turn()


def _again(tx: Tx) -> Any:
    tx.rerun = True
    return tx
