"""One turn of a dispatch run: a single transaction that records what has finished and begins what fits.

It may be run again from its start (a deadlock, a lost connection), so it takes plain values in and gives plain values
back; the run's own state changes only after it has committed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from notifyctl.failpoints import reach
from notifyctl.ledger import begin as beginning
from notifyctl.ledger import claim as claiming
from notifyctl.ledger import gate as gates
from notifyctl.ledger import pace
from notifyctl.ledger import record as recording
from notifyctl.ledger.begin import Begun, Held, Ready
from notifyctl.ledger.database import Tx
from notifyctl.ledger.record import Move, Result
from notifyctl.lifecycle import Trigger
from notifyctl.model import Delivery, Outcome, OutcomeKind, State
from notifyctl.pacing import LimitKey
from notifyctl.ticks.judge import Judge, proves_open, transport_wide
from notifyctl.ticks.lane import Submitted
from notifyctl.ticks.prepare import Refusal
from notifyctl.ticks.run import Run


@dataclass(slots=True)
class Group:
    """What a turn is given."""

    finished: Sequence[Submitted] = ()
    refusals: Sequence[Refusal] = ()
    returning: Sequence[tuple[Delivery, datetime]] = ()  # rows to release, and when they are eligible again
    ready: Sequence[Ready] = ()
    late: Mapping[LimitKey, timedelta] = field(default_factory=dict)  # how late messages went after their slots

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write."""
        return not (self.finished or self.refusals or self.returning or self.ready or self.late)


@dataclass(slots=True)
class Done:
    """What a turn did."""

    recorded: list[Move] = field(default_factory=list)
    refused: list[tuple[Refusal, Move]] = field(default_factory=list)
    released: set[int] = field(default_factory=set)
    begun: dict[int, Begun | Held] = field(default_factory=dict)
    opened: set[str] = field(default_factory=set)  # transports whose probe succeeded


def turn(tx: Tx, run: Run, judge: Judge, group: Group) -> Done:
    """Record, refuse, release, begin: in this order, in one transaction."""
    reach("turn.begun")
    run.open_record(tx)
    done = Done()
    if faulty := {
        s.flight.prepared.ready.transport for s in group.finished if s.flight.begun.probe or transport_wide(s.outcome)
    }:
        judge.levels = {**judge.levels, **dict.fromkeys(faulty, 0), **gates.levels(tx, faulty)}
    done.recorded = recording.record(
        tx, run=run.id, results=[_result(s, judge, tx.now) for s in group.finished],
        late=lambda row, outcome: judge.late(row, outcome, tx.now),
    ).moves  # fmt: skip
    reach("turn.recorded")
    done.opened = _gates(tx, run, judge, group.finished)
    reach("turn.gated")
    done.released = claiming.release(
        tx, run=run.id, rows=[(d.id, d.token, at) for d, at in group.returning],
    )  # fmt: skip
    reach("turn.released")
    pace.delay(tx, group.late)
    done.begun = beginning.begin(tx, run=run.id, ready=group.ready) if group.ready else {}
    reach("turn.begins")
    refusals = list(group.refusals) + [
        Refusal(ready.delivery, Trigger.EXPIRY if held.state == State.EXPIRED else Trigger.POLICY, held.reason)
        for ready in group.ready
        if isinstance(held := done.begun[ready.delivery.id], Held) and held.why == "policy"
    ]
    done.refused = _refuse(tx, run, judge, refusals)
    reach("turn.done")
    return done


def _result(submitted: Submitted, judge: Judge, now: datetime) -> Result:
    ready, begun = submitted.flight.prepared.ready, submitted.flight.begun
    delivery = ready.delivery
    return Result(
        id=delivery.id, number=begun.number, token=delivery.token, was=State.SENDING, outcome=submitted.outcome,
        transition=judge.outcome(delivery, begun.started, submitted.outcome, now, probe=begun.probe),
        duration=submitted.duration, fingerprint=ready.fingerprint,
    )  # fmt: skip


def _refuse(tx: Tx, run: Run, judge: Judge, refusals: Sequence[Refusal]) -> list[tuple[Refusal, Move]]:
    if not refusals:
        return []
    by_id = {r.delivery.id: r for r in refusals}
    moves = [
        Move(r.delivery.id, r.delivery.token, r.delivery.state, judge.refusal(r, tx.now)) for r in by_id.values()
    ]
    return [(by_id[move.id], move) for move in recording.refuse(tx, run=run.id, moves=moves)]


def _gates(tx: Tx, run: Run, judge: Judge, finished: Sequence[Submitted]) -> set[str]:
    """A transport-wide fault closes the transport's gate for everybody; only the success of its probe opens it.

    A probe that shows nothing of its transport (a lost connection, no answer) has failed as one. Returns what opened.
    """
    faults: dict[str, tuple[Outcome, bool]] = {}
    working = set()
    for submitted in finished:
        outcome, probe = submitted.outcome, submitted.flight.begun.probe
        transport = submitted.flight.prepared.ready.transport
        if probe and proves_open(outcome):
            working.add(transport)
        elif probe or (transport_wide(outcome) and transport not in faults):
            faults[transport] = outcome, probe
    for transport, (outcome, probe) in sorted(faults.items()):
        limited = outcome.kind is OutcomeKind.RATE_LIMITED
        gates.close(
            tx, "transport", transport, gates.COOLDOWN if limited else gates.BREAKER,
            until=tx.now + timedelta(seconds=judge.wait(transport, outcome, probe=probe)),
            level=judge.level(transport, probe=probe), reason=outcome.reason or outcome.kind, actor=run.id, probe=probe,
        )  # fmt: skip
    return gates.reopen(tx, working - faults.keys(), run=run.id)
