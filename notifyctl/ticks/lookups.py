"""Look-ups: ask a transport whether it has a message whose outcome is unknown, and decide by what it says."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from notifyctl import lifecycle
from notifyctl.compose import destinations
from notifyctl.errors import InputError
from notifyctl.failpoints import reach
from notifyctl.ledger import record as recording
from notifyctl.ledger import resolve
from notifyctl.ledger.database import Tx
from notifyctl.ledger.record import Move, Result
from notifyctl.ledger.resolve import Doubt
from notifyctl.lifecycle import Transition, Trigger
from notifyctl.model import (
    Absent,
    Capabilities,
    Channel,
    ConsentMode,
    Finding,
    Found,
    Lane,
    Outcome,
    OutcomeKind,
    Search,
    State,
)
from notifyctl.policy import check
from notifyctl.ticks.judge import Judge
from notifyctl.ticks.run import Run
from notifyctl.transports.base import Transport, Trouble

# What is assumed of a transport that the configuration no longer names: nothing can be found or replayed.
_UNKNOWN = Capabilities(channels=frozenset())
SPREAD = timedelta(minutes=1)  # the provider's clock may differ from ours by as much
_EVER = timedelta(days=3650)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a look-up said. `finding` None: nothing, for the reason `fault` ("": it was not asked, its row waits)."""

    doubt: Doubt
    finding: Finding | None
    fault: str = ""
    config: bool = False
    broken: bool = False


@dataclass(frozen=True, slots=True)
class LookUp:
    """One look-up, as a job of a worker thread."""

    doubt: Doubt
    question: Callable[[], Finding]

    def __call__(self) -> Answer:
        try:
            finding = self.question()
        except Trouble as trouble:
            return Answer(self.doubt, None, trouble.reason, trouble.config)
        except OSError as error:
            return Answer(self.doubt, None, f"unreachable:{type(error).__name__}")
        except Exception as error:  # a bug in the transport; nothing was learnt
            return Answer(self.doubt, None, f"transport_failed:{type(error).__name__}", broken=True)
        reach("reconcile.looked")
        return Answer(self.doubt, finding)


@dataclass(frozen=True, slots=True)
class Group:
    """What a turn is given."""

    answers: Sequence[Answer]

    @property
    def decides(self) -> bool:
        """Whether anything is decided: only then the run has a record."""
        return any(answer.finding is not None or answer.fault for answer in self.answers)


class Resolver:
    """Decides about doubt, with the lanes' policies and the transports' capabilities at hand."""

    def __init__(self, run: Run, lanes: Mapping[str, Lane], transports: Mapping[str, Transport]) -> None:
        self.run = run
        self.lanes = lanes
        self.transports = transports
        self.judge = Judge(lanes, transports)

    def policy(self, lane: str, channel: Channel, transport: str) -> tuple[Lane, Capabilities]:
        """The policies that apply; defaults stand in for what the configuration no longer names."""
        known = self.transports.get(transport)
        return (
            self.lanes.get(lane) or Lane(lane, channel, transport),
            known.capabilities if known else _UNKNOWN,
        )

    def question(self, doubt: Doubt) -> Callable[[], Finding] | None:
        """The look-up to be made; None: its transport cannot be searched, or not for this one."""
        transport = self.transports.get(doubt.transport)
        if transport is None or transport.capabilities.search is Search.NONE:
            return None
        recipient = ""
        if transport.capabilities.search is Search.RECIPIENT_TIME:
            try:
                stored = destinations.normalize(
                    doubt.channel, doubt.address or "", self.run.config.phone_region or None
                )
                recipient = destinations.bare(doubt.channel, stored)
            except InputError:
                return None  # the address was erased or is none: several messages may be to nobody
        key, (since, until) = self.run.keys.wire(doubt.idempotency_key), _span(doubt, transport)
        return lambda: transport.find(key, recipient, since, until)

    def turn(self, tx: Tx, group: Group) -> list[Move]:
        """Record what was found and decide about the rest, in one transaction; returns the moves made."""
        if group.decides:
            self.run.open_record(tx)
        taken = self._taken(tx, group)
        results, moves, absent = [], [], []
        for answer in group.answers:
            doubt = answer.doubt
            transition = self._decide(answer, tx.now, free=doubt.id not in taken)
            if isinstance(answer.finding, Found) and transition.state is State.ACCEPTED and doubt.number is not None:
                outcome = Outcome(OutcomeKind.ACCEPTED, "found", remote_ids=(answer.finding.remote_id,))
                results.append(
                    Result(doubt.id, doubt.number, doubt.token, State.AMBIGUOUS, outcome, transition, duration=None)
                )
                continue
            if isinstance(answer.finding, Absent) and transition.doubt_since is None:
                absent.append(doubt.id)
            moves.append(Move(doubt.id, doubt.token, State.AMBIGUOUS, transition, attempt=doubt.number))
        recorded = recording.record(
            tx, run=self.run.id, results=results, late=lambda row, outcome: self.judge.late(row, outcome, tx.now)
        )
        decided = resolve.decide(tx, run=self.run.id, moves=moves, absent=absent)
        reach("reconcile.decided")
        return [*recorded.moves, *decided]

    def _taken(self, tx: Tx, group: Group) -> set[int]:
        """Deliveries whose find proves nothing of them: another attempt has the id, or two name the same, or it was
        found by recipient and time, and another one that is in doubt looks just the same."""
        found = [(a.doubt.id, a.doubt.transport, a.finding.remote_id)
                 for a in group.answers if isinstance(a.finding, Found)]  # fmt: skip
        named: dict[tuple[str, str], list[int]] = {}
        for delivery, transport, remote_id in found:
            named.setdefault((transport, remote_id), []).append(delivery)
        twice = {delivery for several in named.values() if len(several) > 1 for delivery in several}
        by_look = []
        for doubt in (a.doubt for a in group.answers if isinstance(a.finding, Found)):
            asked = self.transports[doubt.transport]
            if asked.capabilities.search is Search.RECIPIENT_TIME:
                since, until = _span(doubt, asked)
                # whatever began an exchange before that may have been taken within it
                begun = (since or tx.now - _EVER) - timedelta(seconds=asked.settings.deadline)
                by_look.append((doubt.id, begun, until or tx.now))
        return twice | resolve.taken_ids(tx, found) | resolve.alike(tx, by_look)

    def _decide(self, answer: Answer, now: datetime, *, free: bool) -> Transition:
        doubt = answer.doubt
        lane, capabilities = self.policy(doubt.lane, doubt.channel, doubt.transport)
        if doubt.elsewhere:  # neither an absence here nor a replay through here says anything of what went there
            capabilities = replace(capabilities, absence_proves_unsent=False, replay_window=0.0)
        facts = replace(doubt.facts, refusal=self._refusal(doubt, now), id_free=free)
        known = self.transports.get(doubt.transport)
        deadline = known.settings.deadline if known else 60.0
        if answer.finding is None:
            trigger = Trigger.LOOKUP_ERROR if answer.fault else Trigger.RELEASE
            return lifecycle.decide(
                facts, trigger, now, lane, capabilities, jitter=_jitter(), deadline=deadline, reason=answer.fault,
                old_eligible_at=doubt.was_eligible_at,
            )  # fmt: skip
        return lifecycle.looked_up(
            facts, answer.finding, now, lane, capabilities, jitter=_jitter(), deadline=deadline
        )

    def _refusal(self, doubt: Doubt, now: datetime) -> str:
        """Why consent or suppression refuses it now; expiry is a guard of its own."""
        topic = self.run.config.topics.get(doubt.topic) if doubt.topic else None
        refused = check(
            consent_mode=topic.consent if topic else ConsentMode.NONE, consent=doubt.consent,
            suppression=doubt.suppression, expires_at=None, now=now,
        )  # fmt: skip
        return refused.reason if refused else ""


def _span(doubt: Doubt, transport: Transport) -> tuple[datetime | None, datetime | None]:
    """When the provider may have taken it, by its own clock."""
    longest = timedelta(seconds=transport.settings.deadline)
    return (
        None if doubt.since is None else doubt.since - SPREAD,
        None if doubt.until is None else doubt.until + longest + SPREAD,
    )


def _jitter() -> float:
    return random.random()  # noqa: S311 - spreads look-ups, protects nothing

