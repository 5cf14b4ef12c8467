"""One turn of a dispatch run: a single transaction that records what has finished and begins what fits.

It may be run again from its start (a deadlock, a lost connection), so it takes plain values in and gives plain values
back; the run's own state changes only after it has committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from notifyctl.failpoints import reach
from notifyctl.ledger import begin as beginning
from notifyctl.ledger import claim as claiming
from notifyctl.ledger import gate as gates
from notifyctl.ledger import record as recording
from notifyctl.ledger.begin import Begun, Held, Ready
from notifyctl.ledger.database import Tx
from notifyctl.ledger.record import Move, Result
from notifyctl.lifecycle import Trigger
from notifyctl.model import Delivery, Outcome, OutcomeKind, State
from notifyctl.ticks.judge import Judge, transport_wide
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

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write."""
        return not (self.finished or self.refusals or self.returning or self.ready)


@dataclass(slots=True)
class Done:
    """What a turn did."""

    recorded: list[Move] = field(default_factory=list)
    refused: list[tuple[Refusal, Move]] = field(default_factory=list)
    released: set[int] = field(default_factory=set)
    begun: dict[int, Begun | Held] = field(default_factory=dict)


def turn(tx: Tx, run: Run, judge: Judge, group: Group) -> Done:
    """Record, refuse, release, begin: in this order, in one transaction."""
    reach("turn.begun")
    run.open_record(tx)
    done = Done()
    done.recorded = recording.record(
        tx, run=run.id, results=[_result(s, judge, tx.now) for s in group.finished],
        late=lambda row, outcome: judge.late(row, outcome, tx.now),
    ).moves  # fmt: skip
    reach("turn.recorded")
    _gates(tx, run, judge, group.finished)
    reach("turn.gated")
    done.released = claiming.release(
        tx, run=run.id, rows=[(d.id, d.token, at) for d, at in group.returning],
    )  # fmt: skip
    reach("turn.released")
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
        transition=judge.outcome(delivery, begun.started, submitted.outcome, now), duration=submitted.duration,
        fingerprint=ready.fingerprint,
    )  # fmt: skip


def _refuse(tx: Tx, run: Run, judge: Judge, refusals: Sequence[Refusal]) -> list[tuple[Refusal, Move]]:
    if not refusals:
        return []
    by_id = {r.delivery.id: r for r in refusals}
    moves = [
        Move(r.delivery.id, r.delivery.token, r.delivery.state, judge.refusal(r, tx.now)) for r in by_id.values()
    ]
    return [(by_id[move.id], move) for move in recording.refuse(tx, run=run.id, moves=moves)]


def _gates(tx: Tx, run: Run, judge: Judge, finished: Sequence[Submitted]) -> None:
    """A transport-wide fault closes the transport's gate for everybody; an acceptance forgets its breaker."""
    faults: dict[str, Outcome] = {}
    working = set()
    for submitted in finished:
        transport = submitted.flight.prepared.ready.transport
        if transport_wide(submitted.outcome):
            faults.setdefault(transport, submitted.outcome)
        elif submitted.outcome.kind is OutcomeKind.ACCEPTED and judge.levels.get(transport):
            working.add(transport)
    for transport, outcome in sorted(faults.items()):
        kind = "breaker" if outcome.kind is OutcomeKind.UNAVAILABLE else "cooldown"
        gates.close(
            tx, "transport", transport, kind, until=tx.now + timedelta(seconds=judge.wait(transport, outcome)),
            level=judge.levels.get(transport, 0) + 1, reason=outcome.reason or outcome.kind, actor=run.id,
        )  # fmt: skip
    if working:
        gates.forget(tx, working)
