"""The one table of the life of a delivery, as data: `RULES`. `lifecycle.decide` walks it, the README prints it.

Rules are tried from top to bottom and the first whose source and guard hold is taken, so a rule may say "else". A
source or guard carries its own words, so that what the documentation says and what is tested cannot part. What no rule
allows is illegal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from notifyctl import lifecycle_guards as g
from notifyctl.lifecycle_clocks import Clock
from notifyctl.lifecycle_facts import NON_TERMINAL_RECEIPTS, TERMINAL_RECEIPTS, Trigger
from notifyctl.model import Mandate, State, Step


class Effect(StrEnum):
    """What else a rule does; some are done by `decide`, the rest by whoever records the transition."""

    TOKEN = "token+1"  # noqa: S105 - a fencing token
    TOKEN_OUTSIDER = "token+1 unless the owner"  # noqa: S105 - a fencing token
    RECOVERY = "over an old owner: lease recovery counted"
    OWNER_EMPTY = "owner empty"
    OWNER_STAYS = "owner stays"
    OPEN_ATTEMPT = "attempt opened, pins"
    REMOTE_ID = "remote_id, accepted_at, attempt accepted"
    WORKER_LOST = "attempt `worker_lost`"
    ATTEMPT_ONLY = "attempt only"
    RECEIPT_ONLY = "receipt only"
    GATE = "gate by scope"
    TRIES = "tries+1"
    DOUBT_CLEARED = "doubt cleared"
    DOUBT_KEPT = "doubt kept"
    DOUBT_EARLIEST = "doubt = earliest"
    DOUBT_RECOMPUTED = "doubt recomputed, the open attempt included"
    MANDATE_CLEARED = "mandate cleared"
    SUPPRESSION = "suppression, sweep"
    PERSON = "needs a person"
    HOLD = "needs a person, once"
    TRAIL = "trail"
    TRAIL_ON_CHANGE = "trail on change"
    GRANT = "batch, one more attempt (or all), `give_up_after` restarts"
    PINS_CLEARED = "pins cleared but the template version"
    NEW_DEADLINE = "new receipt deadline"


class To(StrEnum):
    """A state that depends on the delivery."""

    SAME = "same"
    PRIOR = "prior"
    ON_TIME = "as on time"


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table."""

    source: g.Source
    triggers: tuple[Trigger, ...]
    guard: g.Guard
    to: State | To
    step: Step | None = None
    clock: Clock = Clock.NONE
    effects: tuple[Effect, ...] = ()
    reason: str = ""  # always this one
    otherwise: str = ""  # when none is given
    mandate: Mandate | None = None  # the one it gives
    number: int = 0


S = State
E = Effect
T = Trigger
SEND, CHECK, RESOLVE = Step.SEND, Step.CHECK, Step.RESOLVE
Work = tuple[Step | None, Clock]
DONE: Work = (None, Clock.NONE)
UNCHANGED: Work = (None, Clock.SAME)


def _rule(
    source: g.Source,
    triggers: Trigger | tuple[Trigger, ...],
    guard: g.Guard,
    to: State | To,
    work: Work = DONE,
    *effects: Effect,
    reason: str = "",
    otherwise: str = "",
    mandate: Mandate | None = None,
) -> Rule:
    triggers = (triggers,) if isinstance(triggers, Trigger) else triggers
    return Rule(source, triggers, guard, to, work[0], work[1], effects, reason, otherwise, mandate)


def _acceptance(source: g.Source, trigger: Trigger, guard: g.Guard | None, *effects: Effect) -> tuple[Rule, Rule, Rule]:
    """As accepted: what follows depends on how the transport speaks of receipts."""

    def row(receipts: g.Guard, work: Work, reason: str = "") -> Rule:
        when = guard & receipts if guard else receipts
        return _rule(source, trigger, when, S.ACCEPTED, work, E.REMOTE_ID, E.DOUBT_CLEARED, *effects, reason=reason)

    return (
        row(g.ASKED, (CHECK, Clock.FIRST)),
        row(g.BOUNCES, (CHECK, Clock.RECEIPT_DEADLINE)),
        row(g.NO_RECEIPTS, DONE, "no_receipt_expected"),
    )


HELD: Work = (RESOLVE, Clock.REVIEW)
SETTLE: Work = (RESOLVE, Clock.SETTLE)
AGAIN = (T.RATE_LIMITED, T.UNAVAILABLE)
REFUSALS = (T.POLICY, T.EXPIRY, T.CANNOT_HEAL)
UNASKED = (*NON_TERMINAL_RECEIPTS, T.RECEIPT_DEADLINE)
FAILED = S.PERMANENT_FAILURE
RETRY = S.TEMPORARY_FAILURE
MAY_GO = g.PASSES & g.UNEXPIRED & g.LEFT & g.YOUNG
MAY_REQUEUE = g.NEVER_ACCEPTED & g.NO_DOUBT & g.PASSES & g.UNEXPIRED & g.CONTENT

# fmt: off
_RULES: tuple[Rule, ...] = (
    _rule(g.NOTHING, T.INSERT, g.CLEAN, S.QUEUED, (SEND, Clock.DUE)),
    _rule(g.NOTHING, T.INSERT, g.REFUSED, S.SUPPRESSED),
    _rule(g.WAITING, T.CLAIM, g.DUE & g.GATE_OPEN, To.SAME, (SEND, Clock.LEASE), E.TOKEN, E.RECOVERY),
    _rule(g.CLAIMED, T.RELEASE, g.OWNER, To.SAME, (SEND, Clock.OLD), E.OWNER_EMPTY),
    _rule(g.CLAIMED, T.RENEW, g.OWNER, To.SAME, (SEND, Clock.LEASE), E.OWNER_STAYS),
    _rule(g.CLAIMED, T.POLICY, g.NO_DOUBT, S.SUPPRESSED, otherwise="policy"),
    _rule(g.CLAIMED, T.EXPIRY, g.NO_DOUBT, S.EXPIRED, otherwise="expired"),
    _rule(g.CLAIMED, T.CANNOT_HEAL, g.NO_DOUBT, FAILED, DONE, E.PERSON, otherwise="refused"),
    _rule(g.CLAIMED, REFUSALS, g.DOUBT, S.AMBIGUOUS, HELD, E.MANDATE_CLEARED, E.HOLD),
    _rule(g.CLAIMED, T.CAN_HEAL, g.YOUNG, To.SAME, (SEND, Clock.TRIES), E.TRIES),
    _rule(g.CLAIMED, T.CAN_HEAL, g.OLD, S.DEAD_LETTER, DONE, E.DOUBT_KEPT, E.PERSON, otherwise="gave_up"),
    _rule(g.CLAIMED, T.BEGIN, g.LEASED & g.PASSES & g.UNEXPIRED & g.GATE_OPEN & g.MANDATED,
          S.SENDING, (RESOLVE, Clock.DEADLINE), E.OPEN_ATTEMPT, E.OWNER_STAYS),

    *_acceptance(g.SENDING, T.ACCEPTED, None),
    _rule(g.SENDING, T.TEMPORARY_FAILURE, g.NO_DOUBT & g.LEFT & g.YOUNG, RETRY, (SEND, Clock.RETRY)),
    _rule(g.SENDING, T.TEMPORARY_FAILURE, g.NO_DOUBT & g.EXHAUSTED, S.DEAD_LETTER, DONE, E.PERSON,
          otherwise="attempts_exhausted"),
    _rule(g.SENDING, AGAIN, g.NO_DOUBT & g.YOUNG, To.PRIOR, (SEND, Clock.WAIT), E.GATE, E.TRIES),
    _rule(g.SENDING, T.TEMPORARY_FAILURE, g.NO_DOUBT & g.OLD, S.DEAD_LETTER, DONE, E.PERSON, otherwise="gave_up"),
    _rule(g.SENDING, AGAIN, g.NO_DOUBT & g.OLD, S.DEAD_LETTER, DONE, E.GATE, E.PERSON, otherwise="gave_up"),
    _rule(g.SENDING, T.PERMANENT_FAILURE, g.NO_DOUBT, FAILED),
    _rule(g.SENDING, T.INVALID, g.ALWAYS, S.SUPPRESSED, DONE, E.SUPPRESSION, E.DOUBT_KEPT),
    _rule(g.SENDING, (T.TEMPORARY_FAILURE, T.PERMANENT_FAILURE), g.DOUBT, S.AMBIGUOUS, (RESOLVE, Clock.AGAIN),
          E.MANDATE_CLEARED, E.DOUBT_KEPT),
    _rule(g.SENDING, AGAIN, g.DOUBT, S.AMBIGUOUS, (RESOLVE, Clock.AGAIN), E.GATE, E.MANDATE_CLEARED, E.DOUBT_KEPT),
    _rule(g.SENDING, T.AMBIGUOUS, g.SETTLEABLE, S.AMBIGUOUS, SETTLE, E.DOUBT_EARLIEST),
    _rule(g.SENDING, T.AMBIGUOUS, g.UNSETTLEABLE, S.AMBIGUOUS, HELD, E.DOUBT_EARLIEST, E.HOLD),
    _rule(g.OPEN, T.LAPSE, g.LAPSED & g.SETTLEABLE, S.AMBIGUOUS, SETTLE, E.WORKER_LOST, E.DOUBT_EARLIEST, E.TOKEN,
          reason="worker_lost"),
    _rule(g.OPEN, T.LAPSE, g.LAPSED & g.UNSETTLEABLE, S.AMBIGUOUS, HELD, E.WORKER_LOST, E.DOUBT_EARLIEST, E.HOLD,
          E.TOKEN, reason="worker_lost"),

    _rule(g.DOUBTFUL, T.CLAIM, g.DUE, To.SAME, (RESOLVE, Clock.LEASE), E.TOKEN, E.RECOVERY),
    _rule(g.RESOLVING, T.RELEASE, g.OWNER, To.SAME, (RESOLVE, Clock.OLD), E.OWNER_EMPTY),
    _rule(g.RESOLVING, T.RENEW, g.OWNER, To.SAME, (RESOLVE, Clock.LEASE), E.OWNER_STAYS),
    *_acceptance(g.RESOLVING, T.FOUND, g.UNIQUE),
    _rule(g.RESOLVING, T.ABSENT, g.PROVES & g.EXPIRED, S.EXPIRED, DONE, E.DOUBT_CLEARED, otherwise="expired"),
    _rule(g.RESOLVING, T.ABSENT, g.PROVES & g.EXHAUSTED, S.DEAD_LETTER, DONE, E.DOUBT_CLEARED, E.PERSON,
          otherwise="attempts_exhausted"),
    _rule(g.RESOLVING, T.ABSENT, g.PROVES & g.OLD, S.DEAD_LETTER, DONE, E.DOUBT_CLEARED, E.PERSON, otherwise="gave_up"),
    _rule(g.RESOLVING, T.ABSENT, g.PROVES, RETRY, (SEND, Clock.BACKOFF), E.DOUBT_CLEARED, reason="not_accepted"),
    _rule(g.RESOLVING, T.CANNOT_TELL, g.AUTO & g.WINDOW & MAY_GO, To.SAME, (SEND, Clock.NOW),
          E.TRAIL, reason="mandate_replay", mandate=Mandate.REPLAY),
    _rule(g.RESOLVING, T.CANNOT_TELL, g.RESEND & MAY_GO, To.SAME, (SEND, Clock.BACKOFF),
          E.TRAIL, reason="mandate_duplicate", mandate=Mandate.DUPLICATE),
    _rule(g.RESOLVING, (T.CANNOT_TELL, T.REVIEW_PASSED), g.REVIEW, S.DEAD_LETTER, DONE, E.DOUBT_KEPT, E.PERSON,
          reason="review_passed"),
    _rule(g.RESOLVING, T.CANNOT_TELL, g.SEARCH, S.AMBIGUOUS, (RESOLVE, Clock.TRIES), E.TRIES, E.HOLD,
          reason="cannot_tell"),
    _rule(g.RESOLVING, T.CANNOT_TELL, g.ELSE, S.AMBIGUOUS, HELD, E.HOLD, reason="cannot_tell"),
    _rule(g.RESOLVING, T.LOOKUP_ERROR, g.UNREVIEWED, To.SAME, (RESOLVE, Clock.TRIES), E.TRIES),
    _rule(g.RESOLVING, T.LOOKUP_ERROR, g.ELSE, S.DEAD_LETTER, DONE, E.DOUBT_KEPT, E.PERSON, reason="review_passed"),

    _rule(g.CHECKED, T.CLAIM, g.DUE, To.SAME, (CHECK, Clock.LEASE), E.TOKEN, E.RECOVERY),
    _rule(g.CHECKED, T.RELEASE, g.OWNER, To.SAME, (CHECK, Clock.OLD), E.OWNER_EMPTY),
    _rule(g.CHECKED, T.RENEW, g.OWNER, To.SAME, (CHECK, Clock.LEASE), E.OWNER_STAYS),
    _rule(g.CHECKED, T.RECEIPT_PENDING, g.READER & g.IN_TIME, S.PENDING, (CHECK, Clock.CHECK), E.TRIES,
          E.TRAIL_ON_CHANGE, E.TOKEN_OUTSIDER),
    _rule(g.CHECKED, (T.RECEIPT_NOT_YET, T.RECEIPT_ERROR), g.READER & g.IN_TIME, To.SAME, (CHECK, Clock.CHECK), E.TRIES,
          E.TOKEN_OUTSIDER),
    _rule(g.TAKEN, T.RECEIPT_DELIVERED, g.READER, S.DELIVERED, DONE, E.TOKEN_OUTSIDER),
    _rule(g.TAKEN, T.RECEIPT_HARD, g.READER, S.SUPPRESSED, DONE, E.SUPPRESSION, E.TOKEN_OUTSIDER),
    _rule(g.TAKEN, T.RECEIPT_FAILED, g.READER, FAILED, DONE, E.TOKEN_OUTSIDER, otherwise="failed"),
    _rule(g.CHECKED, T.RECEIPT_GONE, g.READER & g.ASKED, S.UNRESOLVED, DONE, E.PERSON, E.TOKEN_OUTSIDER,
          otherwise="gone"),
    _rule(g.CHECKED, UNASKED, g.READER & g.OVERDUE & g.ASKED, S.UNRESOLVED, DONE, E.PERSON, E.TOKEN_OUTSIDER,
          reason="receipt_deadline"),
    _rule(g.CHECKED, UNASKED, g.READER & g.OVERDUE & g.NOT_ASKED, S.ACCEPTED, DONE, E.TOKEN_OUTSIDER,
          reason="no_receipt_expected"),
    _rule(g.WAS_ACCEPTED, T.RECEIPT_COMPLAINT, g.ALWAYS, To.SAME, UNCHANGED, E.SUPPRESSION, E.TRAIL,
          reason="complained"),
    _rule(g.SETTLED, T.RECEIPT_DELIVERED, g.NEWER, S.DELIVERED, DONE, E.TOKEN, E.TRAIL_ON_CHANGE),
    _rule(g.SETTLED, T.RECEIPT_FAILED, g.NEWER, FAILED, DONE, E.TOKEN, E.TRAIL_ON_CHANGE, otherwise="failed"),
    _rule(g.SETTLED, T.RECEIPT_HARD, g.NEWER, S.SUPPRESSED, DONE, E.SUPPRESSION, E.TOKEN, E.TRAIL_ON_CHANGE),
    _rule(g.AT_REST, (*TERMINAL_RECEIPTS, *NON_TERMINAL_RECEIPTS, T.RECEIPT_GONE), g.ELSE, To.SAME, UNCHANGED,
          E.RECEIPT_ONLY),

    *_acceptance(g.NOT_ACCEPTED, T.RECEIPT_BY_KEY, g.VERIFIED, E.TOKEN),
    *_acceptance(g.NOT_ACCEPTED, T.LATE_ACCEPTED, None, E.TOKEN),
    _rule(g.WAS_ACCEPTED, T.LATE_ACCEPTED, g.ANOTHER_ID, To.SAME, UNCHANGED, E.ATTEMPT_ONLY, E.TRAIL,
          reason="duplicate_accepted"),
    _rule(g.AMBIGUOUS, T.LATE_FAILURE, g.ONLY_DOUBT, To.ON_TIME, (None, Clock.ON_TIME), E.TOKEN, E.DOUBT_CLEARED),
    _rule(g.OPEN, (T.LATE_FAILURE, T.LATE_OTHER), g.THE_OPEN, To.ON_TIME, (None, Clock.ON_TIME), E.TOKEN),
    _rule(g.OPEN, T.LATE_FAILURE, g.EARLIER, To.SAME, UNCHANGED, E.ATTEMPT_ONLY, E.DOUBT_RECOMPUTED),
    _rule(g.EVERY, (T.LATE_OTHER, T.LATE_FAILURE, T.LATE_ACCEPTED), g.ELSE, To.SAME, UNCHANGED, E.ATTEMPT_ONLY),

    _rule(g.UNBEGUN, T.CANCEL, g.ALWAYS, S.CANCELLED, DONE, E.TOKEN, otherwise="cancelled"),
    _rule(g.UNBEGUN, T.SUPPRESSION_ADDED, g.ALWAYS, S.SUPPRESSED, DONE, E.TOKEN, otherwise="suppressed"),
    _rule(g.UNBEGUN, T.ERASED, g.ALWAYS, S.SUPPRESSED, DONE, E.TOKEN, otherwise="recipient_erased"),
    _rule(g.UNOWNED, T.EXPIRY_SWEEP, g.NO_DOUBT & g.EXPIRED, S.EXPIRED, DONE, E.TOKEN, otherwise="expired"),
    _rule(g.OVER, T.REQUEUE, MAY_REQUEUE, S.QUEUED, (SEND, Clock.NOW),
          E.TOKEN, E.GRANT, E.PINS_CLEARED, otherwise="requeued"),
    _rule(g.IN_DOUBT, T.REQUEUE_DUPLICATE, g.IS_DOUBTED, S.AMBIGUOUS, (SEND, Clock.NOW), E.TOKEN, E.GRANT, E.TRAIL,
          reason="mandate_duplicate", mandate=Mandate.DUPLICATE),
    *_acceptance(g.IN_DOUBT, T.MARK_ACCEPTED, g.WITH_ID, E.TOKEN),
    _rule(g.IN_DOUBT, T.MARK_ACCEPTED, g.WITHOUT_ID, S.ACCEPTED, DONE, E.REMOTE_ID, E.DOUBT_CLEARED, E.TOKEN,
          otherwise="marked_accepted"),
    _rule(g.IN_DOUBT, T.MARK_FAILED, g.OPERATOR, FAILED, DONE, E.DOUBT_CLEARED, E.TOKEN, otherwise="marked_failed"),
    _rule(g.UNRESOLVED, (T.REQUEUE, T.RECHECK), g.ALWAYS, S.PENDING, (CHECK, Clock.NOW), E.TOKEN, E.NEW_DEADLINE,
          otherwise="requeued"),
    _rule(g.HAS_WORK, T.TAKE_OVER, g.ALWAYS, To.SAME, UNCHANGED, E.OWNER_EMPTY, E.TOKEN),
)
# fmt: on
RULES: tuple[Rule, ...] = tuple(replace(rule, number=n) for n, rule in enumerate(_RULES, 1))

# The rules that can apply, by state and trigger, in table order: a decision looks at a handful, not at all.
INDEX: dict[tuple[State | None, Trigger], tuple[Rule, ...]] = {
    (state, trigger): found
    for state in (None, *State)
    for trigger in Trigger
    if (found := tuple(r for r in RULES if trigger in r.triggers and state in r.source.states))
}
