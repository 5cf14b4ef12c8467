"""The one state machine of the program: facts + trigger + policy + now → transition. All else is illegal.

Pure: no I/O, no clock, no SQL, no chance. The table itself is data (`lifecycle_table.RULES`): `decide` walks it and
`markdown` prints it for the README. Durations in seconds, instants are aware UTC datetimes; `jitter` is in [0, 1).

Three decisions shaped it. Doubt outlives later failures: only acceptance, proven absence, late evidence or an operator
clears `doubt_since`. What has `accepted_at` is never led to another submission. An attempt's own outcome comes in time
(`after`, by the owner), or late (`late`, by anybody): what is learnt late is never lost, and raises the token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from notifyctl.lifecycle_clocks import Clock, backoff, eligible_at
from notifyctl.lifecycle_facts import CERTAIN_FAILURES, Case, Facts, Trigger
from notifyctl.lifecycle_table import INDEX, RULES, Effect, Rule, To
from notifyctl.model import (
    FINGERPRINT_REASONS,
    Absent,
    Capabilities,
    Finding,
    Found,
    Lane,
    Mandate,
    Outcome,
    OutcomeKind,
    Receipt,
    ReceiptStatus,
    State,
    Step,
)

__all__ = [
    "RULES",
    "Effect",
    "Facts",
    "IllegalTransition",
    "Rule",
    "Transition",
    "Trigger",
    "after",
    "backoff",
    "decide",
    "late",
    "looked_up",
    "markdown",
    "receipt",
    "receipt_trigger",
    "trigger_of",
]

INVALID_REASONS = frozenset({"invalid_recipient", "opted_out"})
SUPPRESSING = FINGERPRINT_REASONS | {"opted_out", "complained"}
MARGIN = 5.0  # seconds between the exchange's deadline and the moment another may call the attempt lost

_OUTCOME_TRIGGERS = {
    OutcomeKind.ACCEPTED: Trigger.ACCEPTED,
    OutcomeKind.TEMPORARY_FAILURE: Trigger.TEMPORARY_FAILURE,
    OutcomeKind.RATE_LIMITED: Trigger.RATE_LIMITED,
    OutcomeKind.UNAVAILABLE: Trigger.UNAVAILABLE,
    OutcomeKind.PERMANENT_FAILURE: Trigger.PERMANENT_FAILURE,
    OutcomeKind.AMBIGUOUS: Trigger.AMBIGUOUS,
}
_RECEIPT_TRIGGERS = {
    ReceiptStatus.PENDING: Trigger.RECEIPT_PENDING,
    ReceiptStatus.DELIVERED: Trigger.RECEIPT_DELIVERED,
    ReceiptStatus.SOFT_FAILURE: Trigger.RECEIPT_FAILED,
    ReceiptStatus.FAILURE: Trigger.RECEIPT_FAILED,
    ReceiptStatus.HARD_BOUNCE: Trigger.RECEIPT_HARD,
    ReceiptStatus.INVALID: Trigger.RECEIPT_HARD,
    ReceiptStatus.OPTED_OUT: Trigger.RECEIPT_HARD,
    ReceiptStatus.COMPLAINED: Trigger.RECEIPT_COMPLAINT,
    ReceiptStatus.UNKNOWN_YET: Trigger.RECEIPT_NOT_YET,
    ReceiptStatus.GONE: Trigger.RECEIPT_GONE,
}


class IllegalTransition(Exception):
    """No rule of the table allows this trigger for what the delivery is; names state and trigger, nothing else."""

    def __init__(self, facts: Facts, trigger: Trigger) -> None:
        self.state = facts.state
        self.trigger = trigger
        work = "no work" if facts.step is None else f"{facts.step} {'owned' if facts.owned else 'unowned'}"
        super().__init__(f"{facts.state or 'a new delivery'} ({work}): {trigger.name} is not in the table")


@dataclass(frozen=True, slots=True)
class Transition:
    """What becomes of a delivery and its work row; every field is the value to be stored, not a change to it.

    `rule` is the number of the table's row, `effects` all it says. `step` None: the work row is gone.
    """

    rule: int
    state: State
    step: Step | None
    eligible_at: datetime | None  # None: no work row
    mandate: Mandate | None
    tries: int
    reason: str  # "": none given; where neither state nor trail changes, the delivery keeps the one it has
    charged: bool  # one more attempt counts against max_attempts
    used: int  # charged attempts from now on; a late failure may also take one back
    doubt_since: datetime | None
    accepted_at: datetime | None
    first_tried_at: datetime | None  # where `give_up_after` counts from
    receipts_from: datetime | None  # where the receipt deadline counts from, None: accepted_at
    suppress: str  # reason of the suppression to add (its pair's waiting sends are settled with it), "": none
    needs_person: bool  # new to a person: exit 3
    held: bool  # in doubt and waiting for a person
    settled: bool  # at rest: there is no work row
    token_raised: bool
    release_owner: bool
    lease_recovered: bool
    clear_pins: bool
    trail: bool  # a notify_transition row is to be written
    untouched: bool  # delivery and work row stay as they are, owner, token, reason and times included: to be written
    # are only the attempt's outcome or the receipt, and what `trail` and `suppress` say
    effects: tuple[Effect, ...]


def decide(
    facts: Facts,
    trigger: Trigger,
    now: datetime,
    lane: Lane,
    capabilities: Capabilities,
    *,
    jitter: float = 0.5,
    reason: str = "",
    retry_after: float | None = None,
    deadline: float = 60.0,
    margin: float = MARGIN,
    settle_delay: float | None = None,
    old_eligible_at: datetime | None = None,
    provider_time: datetime | None = None,
    on_time: Trigger | None = None,
    reset_attempts: bool = False,
) -> Transition:
    """The transition that the first rule that holds makes of these facts; raises IllegalTransition when none does.

    `deadline` is the transport's whole exchange; `settle_delay` overrides that of the capabilities; `old_eligible_at`
    is when a released row is due again (as before the claim, or when its slot or gate opens); `provider_time` belongs
    to a receipt; `on_time` is what a late failure would have been in time; `reset_attempts` to a requeue.
    """
    delay = capabilities.settle_delay if settle_delay is None else settle_delay
    case = Case(
        facts, trigger, now, lane, capabilities, jitter, reason, retry_after, deadline, margin, delay,
        old_eligible_at, provider_time, on_time, reset_attempts,
    )  # fmt: skip
    for rule in INDEX.get((facts.state, trigger), ()):
        if rule.source.holds(facts) and rule.guard.holds(case):
            return _apply_as_on_time(rule, case) if rule.to is To.ON_TIME else _apply(rule, case)
    raise IllegalTransition(facts, trigger)


def after(
    facts: Facts,
    outcome: Outcome,
    now: datetime,
    lane: Lane,
    capabilities: Capabilities,
    *,
    jitter: float = 0.5,
    deadline: float = 60.0,
    margin: float = MARGIN,
    settle_delay: float | None = None,
) -> Transition:
    """What the owner's own attempt leads to, its outcome being known in time."""
    return decide(
        facts, trigger_of(outcome), now, lane, capabilities,
        jitter=jitter, reason=outcome.reason, retry_after=outcome.retry_after, deadline=deadline, margin=margin,
        settle_delay=settle_delay,
    )  # fmt: skip


def late(
    facts: Facts,
    outcome: Outcome,
    now: datetime,
    lane: Lane,
    capabilities: Capabilities,
    *,
    jitter: float = 0.5,
    deadline: float = 60.0,
    margin: float = MARGIN,
    settle_delay: float | None = None,
) -> Transition:
    """What an outcome leads to that is learnt by somebody who does not own the delivery any more.

    The outcome itself always belongs on its attempt. `facts` are the delivery's as they are now, with
    `attempt_started` and `other_doubt` for the attempt the outcome is of. See `Transition.untouched`.
    """
    trigger = trigger_of(outcome)
    arrived = Trigger.LATE_ACCEPTED if trigger is Trigger.ACCEPTED else Trigger.LATE_OTHER
    arrived = Trigger.LATE_FAILURE if trigger in CERTAIN_FAILURES else arrived
    return decide(
        facts, arrived, now, lane, capabilities,
        jitter=jitter, reason=outcome.reason, retry_after=outcome.retry_after, deadline=deadline, margin=margin,
        settle_delay=settle_delay, on_time=trigger,
    )  # fmt: skip


def looked_up(
    facts: Facts,
    finding: Finding,
    now: datetime,
    lane: Lane,
    capabilities: Capabilities,
    *,
    jitter: float = 0.5,
    deadline: float = 60.0,
) -> Transition:
    """What a look-up leads to: a find that is not unique and an absence that proves nothing cannot tell."""
    trigger = Trigger.CANNOT_TELL
    if isinstance(finding, Found) and facts.id_free:
        trigger = Trigger.FOUND
    elif isinstance(finding, Absent) and capabilities.absence_proves_unsent and facts.lookup_settled:
        trigger = Trigger.ABSENT
    return decide(facts, trigger, now, lane, capabilities, jitter=jitter, deadline=deadline)


def receipt(
    facts: Facts,
    said: Receipt,
    now: datetime,
    lane: Lane,
    capabilities: Capabilities,
    *,
    jitter: float = 0.5,
) -> Transition:
    """What a receipt leads to; what suppresses carries its status as its reason."""
    trigger = receipt_trigger(said.status)
    suppresses = trigger in (Trigger.RECEIPT_HARD, Trigger.RECEIPT_COMPLAINT)
    reason = said.status.value if suppresses else said.reason
    return decide(
        facts, trigger, now, lane, capabilities, jitter=jitter, reason=reason, provider_time=said.provider_time
    )


def trigger_of(outcome: Outcome) -> Trigger:
    """The trigger an outcome is, when it comes in time."""
    if outcome.kind is OutcomeKind.PERMANENT_FAILURE and outcome.reason in INVALID_REASONS:
        return Trigger.INVALID
    return _OUTCOME_TRIGGERS[outcome.kind]


def receipt_trigger(status: ReceiptStatus) -> Trigger:
    """The trigger a receipt is."""
    return _RECEIPT_TRIGGERS[status]


def markdown() -> str:
    """The table for the README, one line per rule."""
    lines = ["| from | trigger | guard | to | work | effects |", "|---|---|---|---|---|---|"]
    for rule in RULES:
        triggers = " · ".join(t.value.replace("_", " ") for t in rule.triggers)
        to = f"{rule.to.value}{', held' if Effect.HOLD in rule.effects else ''}"
        work = f"{rule.step}@{rule.clock}" if rule.step else str(rule.clock)
        effects = [*rule.effects, *([f"mandate `{rule.mandate}`"] if rule.mandate else [])]
        effects += [f"reason `{rule.reason}`"] if rule.reason else []
        effects += [f"reason as given, else `{rule.otherwise}`"] if rule.otherwise else []
        lines.append(f"| {rule.source.text} | {triggers} | {rule.guard.text} | {to} | {work} | {', '.join(effects)} |")
    return "\n".join(lines) + "\n"


def _apply(rule: Rule, case: Case) -> Transition:
    facts, effects = case.facts, rule.effects
    same_work = rule.clock is Clock.SAME
    step = facts.step if same_work else rule.step
    state = _state(rule, case)
    begins, used = Effect.OPEN_ATTEMPT in effects, _used(rule, case)
    stays = same_work or begins or (step is facts.step and facts.state is not State.SENDING)
    kept = facts.tries if stays else 0
    held = Effect.HOLD in effects
    accepts = state is State.ACCEPTED and facts.accepted_at is None
    changed = state is not facts.state
    refusal = facts.refusal if case.trigger in (Trigger.INSERT, Trigger.POLICY) else ""
    reason = rule.reason or case.reason or refusal or rule.otherwise
    outsider = facts.outsider or not facts.owned
    restarts = Effect.GRANT in effects
    return Transition(
        rule=rule.number,
        state=state,
        step=step,
        eligible_at=eligible_at(rule.clock, case),
        mandate=rule.mandate or (facts.mandate if same_work or begins or step is facts.step is Step.SEND else None),
        tries=facts.tries + 1 if Effect.TRIES in effects else kept,
        reason=reason,
        charged=used > facts.used,
        used=used,
        doubt_since=_doubt_since(effects, case),
        accepted_at=case.now if accepts else facts.accepted_at,
        first_tried_at=case.now if restarts else facts.first_tried_at or (case.now if begins else None),
        receipts_from=case.now if Effect.NEW_DEADLINE in effects else facts.receipts_from,
        suppress=_suppression(case) if Effect.SUPPRESSION in effects else "",
        needs_person=Effect.PERSON in effects or (held and not facts.held),
        held=held or (facts.held and not changed and step is facts.step is Step.RESOLVE),
        settled=step is None,
        token_raised=Effect.TOKEN in effects or (Effect.TOKEN_OUTSIDER in effects and outsider),
        release_owner=Effect.OWNER_EMPTY in effects or not (same_work or rule.clock is Clock.LEASE or begins),
        lease_recovered=Effect.RECOVERY in effects and facts.owned,
        clear_pins=Effect.PINS_CLEARED in effects,
        trail=changed or Effect.TRAIL in effects or (held and not facts.held),
        untouched=same_work and not {Effect.TOKEN, Effect.DOUBT_RECOMPUTED}.intersection(effects),
        effects=effects,
    )


def _apply_as_on_time(rule: Rule, case: Case) -> Transition:
    """As if what is learnt had been known in time, by a non-owner's hand: the only doubtful attempt turns out to have
    failed, or the open one has ended although its owner lost the row (a region that was taken over)."""
    assert case.on_time is not None
    # Its loss may have been charged; whether it counts is decided anew.
    used = max(case.facts.used - (1 if case.facts.attempt_charged else 0), 0)
    facts = replace(
        case.facts,
        state=State.SENDING,
        step=Step.RESOLVE,
        owned=True,
        mandate=None,
        doubt_since=None if Effect.DOUBT_CLEARED in rule.effects else case.facts.doubt_since,
        used=used,
        attempt_charged=False,
    )
    made = decide(
        facts, case.on_time, case.now, case.lane, case.capabilities,
        jitter=case.jitter, reason=case.reason, retry_after=case.retry_after,
    )  # fmt: skip
    return replace(
        made,
        rule=rule.number,
        charged=made.used > case.facts.used,
        token_raised=True,
        release_owner=True,
        trail=True,
        effects=(*rule.effects, *made.effects),
    )


def _state(rule: Rule, case: Case) -> State:
    if isinstance(rule.to, State):
        return rule.to
    if rule.to is To.PRIOR:
        return State.TEMPORARY_FAILURE if case.facts.used > 0 else State.QUEUED
    assert case.facts.state is not None
    return case.facts.state


def _used(rule: Rule, case: Case) -> int:
    if Effect.GRANT in rule.effects:
        return 0 if case.reset_attempts else min(case.facts.used, max(case.lane.max_attempts - 1, 0))
    return case.facts.used if Effect.ATTEMPT_ONLY in rule.effects else case.used


def _doubt_since(effects: tuple[Effect, ...], case: Case) -> datetime | None:
    if Effect.DOUBT_CLEARED in effects:
        return None
    if Effect.DOUBT_EARLIEST in effects:
        return case.doubt_with_this
    return case.facts.other_doubt if Effect.DOUBT_RECOMPUTED in effects else case.doubt


def _suppression(case: Case) -> str:
    if case.reason in SUPPRESSING:
        return case.reason
    defaults = {Trigger.RECEIPT_HARD: "hard_bounce", Trigger.RECEIPT_COMPLAINT: "complained"}
    return defaults.get(case.trigger, "invalid_recipient")
