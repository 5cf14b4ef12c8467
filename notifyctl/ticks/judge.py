"""From evidence to transition, with the lane's policy and the transport's capabilities at hand. Decides nothing itself:
`lifecycle` does."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from notifyctl import lifecycle
from notifyctl.ledger.record import LateRow
from notifyctl.lifecycle import Facts, Transition, Trigger
from notifyctl.model import Capabilities, Delivery, Lane, Outcome, OutcomeKind, Scope, State, Step
from notifyctl.ticks.prepare import Refusal
from notifyctl.transports.base import Transport

BREAKER_CAP = 900.0  # seconds

# What is assumed of a lane or transport that the configuration no longer names: nothing can be proved or replayed.
_UNKNOWN = Capabilities(channels=frozenset())


def transport_wide(outcome: Outcome) -> bool:
    """Whether an outcome says something of the transport and not of its message."""
    return outcome.kind is OutcomeKind.UNAVAILABLE or (
        outcome.kind is OutcomeKind.RATE_LIMITED and outcome.scope is Scope.ACCOUNT
    )


def proves_open(outcome: Outcome) -> bool:
    """Whether a probe's outcome shows that the transport works: it took the message, or answered to it with a code of
    its own that concerns the message alone. Silence and lost connections show nothing."""
    if transport_wide(outcome) or outcome.kind is OutcomeKind.AMBIGUOUS:
        return False
    return outcome.kind in (OutcomeKind.ACCEPTED, OutcomeKind.PERMANENT_FAILURE) or bool(outcome.code)


class Judge:
    """The policies of one run."""

    def __init__(self, lanes: Mapping[str, Lane], transports: Mapping[str, Transport]) -> None:
        self.lanes = lanes
        self.transports = transports
        self.levels: dict[str, int] = {}  # how often in a row each transport had been closed, as last read

    def level(self, transport: str, *, probe: bool) -> int:
        """The level of a gate that a transport-wide fault closes: only its probe's failure raises that of a closed
        one; attempts that had begun before it was closed say nothing new."""
        return max(1, self.levels.get(transport, 0) + probe)

    def wait(self, transport: str, outcome: Outcome, *, probe: bool = False) -> float:
        """Seconds a transport-wide fault closes its gate: what the provider asks, else doubling from the cool-down."""
        if outcome.retry_after is not None:
            return outcome.retry_after
        cooldown = self.transports[transport].settings.cooldown
        return float(min(cooldown * 2 ** min(self.level(transport, probe=probe) - 1, 16), BREAKER_CAP))

    def outcome(
        self, delivery: Delivery, started: datetime, outcome: Outcome, now: datetime, *, probe: bool = False
    ) -> Transition:
        """What the owner's outcome means."""
        facts = Facts(
            state=State.SENDING, step=Step.RESOLVE, owned=True, used=delivery.attempts_used, tries=delivery.tries,
            due_at=delivery.due_at, expires_at=delivery.expires_at, first_tried_at=delivery.first_tried_at or started,
            doubt_since=delivery.doubt_since, accepted_at=delivery.accepted_at, attempt_started=started,
        )  # fmt: skip
        transport = self.lanes[delivery.lane].transport
        if transport_wide(outcome):
            outcome = replace(outcome, retry_after=self.wait(transport, outcome, probe=probe))
        return lifecycle.after(
            facts, outcome, now, *self._policy(delivery.lane, transport), jitter=random.random(),  # noqa: S311
            settle_delay=self._settle(transport),
        )  # fmt: skip

    def refusal(self, refusal: Refusal, now: datetime) -> Transition:
        """What it means that a claimed delivery is not attempted."""
        d = refusal.delivery
        facts = Facts(
            state=d.state, step=Step.SEND, owned=True, used=d.attempts_used, tries=d.tries, due_at=d.due_at,
            eligible_at=d.was_eligible_at, expires_at=d.expires_at, first_tried_at=d.first_tried_at,
            doubt_since=d.doubt_since, accepted_at=d.accepted_at, mandate=d.mandate,
        )  # fmt: skip
        transport = self.lanes[d.lane].transport
        return lifecycle.decide(
            facts, refusal.trigger, now, *self._policy(d.lane, transport), reason=refusal.reason,
            jitter=random.random(),  # noqa: S311
        )  # fmt: skip

    def late(self, row: LateRow, outcome: Outcome, now: datetime) -> Transition:
        """What an outcome means that comes after its owner's lease was lost."""
        return lifecycle.late(
            row.facts, outcome, now, *self._policy(row.lane, row.transport), jitter=random.random(),  # noqa: S311
            settle_delay=self._settle(row.transport),
        )  # fmt: skip

    def lapse(self, row: LateRow, now: datetime) -> Transition:
        """What it means that an attempt's deadline passed without an outcome."""
        return lifecycle.decide(
            row.facts, Trigger.LAPSE, now, *self._policy(row.lane, row.transport), reason="worker_lost",
            settle_delay=self._settle(row.transport),
        )  # fmt: skip

    def _policy(self, lane: str, transport: str) -> tuple[Lane, Capabilities]:
        known = self.transports.get(transport)
        return self.lanes[lane], known.capabilities if known else _UNKNOWN

    def _settle(self, transport: str) -> float | None:
        known = self.transports.get(transport)
        return known.settings.settle_delay if known else None
