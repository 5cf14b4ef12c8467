"""Where a rule may start and when it holds: each condition of the table with the words that name it.

Pure. Names as in the table of `lifecycle_table`; a guard's text is what the documentation prints.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from notifyctl.lifecycle_facts import Case, Facts, Trigger, plus
from notifyctl.model import SETTLED_STATES, Mandate, OnAmbiguous, Receipts, Search, State, Step


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition and its words."""

    text: str
    holds: Callable[[Case], bool]

    def __and__(self, other: Guard) -> Guard:
        return Guard(f"{self.text}, {other.text}", lambda c: self.holds(c) and other.holds(c))


@dataclass(frozen=True, slots=True)
class Source:
    """Where a rule starts: its words, the states, and what the work row must be."""

    text: str
    states: frozenset[State | None]
    holds: Callable[[Facts], bool] = lambda _: True


S = State
T = Trigger
SEND, CHECK, RESOLVE = Step.SEND, Step.CHECK, Step.RESOLVE
MOVABLE = frozenset[State | None]({S.QUEUED, S.TEMPORARY_FAILURE, S.AMBIGUOUS})
ANY = frozenset[State | None](State)


def _of(*states: State | None) -> frozenset[State | None]:
    return frozenset(states)


def _waiting(f: Facts) -> bool:
    mandated = f.mandate is not None or (f.state is not S.AMBIGUOUS and f.doubt_since is None)
    return f.step is SEND and f.accepted_at is None and mandated


NOTHING = Source("∅", _of(None), lambda f: f.accepted_at is None)
WAITING = Source("queued, temporary_failure, mandated ambiguous", MOVABLE, _waiting)
CLAIMED = Source("claimed (send)", MOVABLE, lambda f: f.owned and _waiting(f))
SENDING = Source("sending", _of(S.SENDING), lambda f: f.owned and f.accepted_at is None)
OPEN = Source("sending", _of(S.SENDING), lambda f: f.accepted_at is None)
DOUBTFUL = Source("ambiguous", _of(S.AMBIGUOUS), lambda f: f.step is RESOLVE and f.accepted_at is None)
RESOLVING = Source("ambiguous", _of(S.AMBIGUOUS), lambda f: f.step is RESOLVE and f.owned and f.accepted_at is None)
AMBIGUOUS = Source("ambiguous", _of(S.AMBIGUOUS), lambda f: f.accepted_at is None)
CHECKED = Source("accepted, pending", _of(S.ACCEPTED, S.PENDING), lambda f: f.step is CHECK)
TAKEN = Source("accepted, pending", _of(S.ACCEPTED, S.PENDING))
WAS_ACCEPTED = Source("accepted_at set", ANY, lambda f: f.accepted_at is not None)
SETTLED = Source("settled, accepted_at set", frozenset(SETTLED_STATES), lambda f: f.accepted_at is not None)
AT_REST = Source(
    "settled, accepted_at set",
    frozenset(SETTLED_STATES | {S.ACCEPTED}),
    lambda f: f.accepted_at is not None and f.step is None,
)
NOT_ACCEPTED = Source("accepted_at empty, any", ANY, lambda f: f.accepted_at is None)
EVERY = Source("any", ANY)
UNBEGUN = Source("queued, temporary_failure", _of(S.QUEUED, S.TEMPORARY_FAILURE), lambda f: f.step is SEND)
UNOWNED = Source("unowned send", UNBEGUN.states, lambda f: f.step is SEND and not f.owned)
OVER = Source(
    "dead_letter, permanent_failure, cancelled, expired (+new expiry), suppressed",
    _of(S.DEAD_LETTER, S.PERMANENT_FAILURE, S.CANCELLED, S.EXPIRED, S.SUPPRESSED),
)
IN_DOUBT = Source(
    "ambiguous, doubtful dead_letter",
    _of(S.AMBIGUOUS, S.DEAD_LETTER),
    lambda f: f.accepted_at is None and (f.state is S.AMBIGUOUS or f.doubt_since is not None),
)
UNRESOLVED = Source("unresolved", _of(S.UNRESOLVED))
HAS_WORK = Source("has work", ANY, lambda f: f.step is not None)


def young(c: Case) -> bool:
    """Within `give_up_after` of the first try; what never got as far as a try counts from when it was due."""
    untried = c.facts.due_at if c.trigger is T.CAN_HEAL else None
    since = c.facts.first_tried_at or c.facts.attempt_started or untried or c.now
    return (c.now - since).total_seconds() < c.lane.give_up_after


def window_open(c: Case) -> bool:
    """The whole exchange of a replay fits into the provider's idempotency window, counted from the first doubt."""
    since = c.facts.doubt_since
    return since is not None and plus(c.now, c.deadline) < plus(since, c.capabilities.replay_window)


def _mandated(c: Case) -> bool:
    f = c.facts
    if f.doubt_since is None or f.mandate is Mandate.DUPLICATE:
        return True
    return f.mandate is Mandate.REPLAY and window_open(c) and f.same_bytes


def _settleable(c: Case) -> bool:
    policy = c.lane.on_ambiguous
    return policy is OnAmbiguous.RESEND or (policy is OnAmbiguous.AUTO and c.capabilities.can_settle_doubt)


def _newer(c: Case) -> bool:
    return c.provider_time is not None and (c.facts.last_receipt is None or c.provider_time > c.facts.last_receipt)


def _due(c: Case) -> bool:
    return c.facts.eligible_at is not None and c.facts.eligible_at <= c.now


ALWAYS = Guard("", lambda _: True)
ELSE = Guard("else", lambda _: True)
OWNER = Guard("owner", lambda c: c.facts.owned)
DUE = Guard("due", _due)
GATE_OPEN = Guard("gate open", lambda c: c.facts.gate_open)
LEASED = Guard("eligible_at > now", lambda c: c.facts.eligible_at is not None and c.facts.eligible_at > c.now)
PASSES = Guard("policy passes", lambda c: not c.facts.refusal)
REFUSED = Guard("suppressed pair / no consent", lambda c: bool(c.facts.refusal or c.reason))
CLEAN = Guard("clean", lambda c: not (c.facts.refusal or c.reason))
UNEXPIRED = Guard("unexpired", lambda c: c.facts.expires_at is None or c.facts.expires_at > c.now)
EXPIRED = Guard("expiry passed", lambda c: c.facts.expires_at is not None and c.facts.expires_at <= c.now)
MANDATED = Guard("in doubt: mandate, and for a replay its window and digest", _mandated)
NO_DOUBT = Guard("no doubt", lambda c: c.doubt is None)
DOUBT = Guard("doubt", lambda c: c.doubt is not None)
YOUNG = Guard("young", young)
OLD = Guard("not young", lambda c: not young(c))
LEFT = Guard("used < max", lambda c: c.used < c.lane.max_attempts)
EXHAUSTED = Guard("used = max", lambda c: c.used >= c.lane.max_attempts)
ASKED = Guard("receipts by look-up/feed", lambda c: c.capabilities.receipts in (Receipts.LOOKUP, Receipts.FEED))
BOUNCES = Guard("bounces only", lambda c: c.capabilities.receipts is Receipts.BOUNCES_ONLY)
NO_RECEIPTS = Guard("no receipts", lambda c: c.capabilities.receipts is Receipts.NONE)
NOT_ASKED = Guard("bounces only or none", lambda c: c.capabilities.receipts in (Receipts.BOUNCES_ONLY, Receipts.NONE))
SETTLEABLE = Guard("owner; search or replay window, or policy `resend`", _settleable)
UNSETTLEABLE = Guard("owner; neither, or policy `hold`", lambda c: not _settleable(c))
LAPSED = Guard("deadline passed, any tick", _due)
UNIQUE = Guard("unique; id not another attempt's", lambda c: c.facts.id_free)
PROVES = Guard("absence proves, settled", lambda c: c.capabilities.absence_proves_unsent and c.facts.lookup_settled)
AUTO = Guard("auto", lambda c: c.lane.on_ambiguous is OnAmbiguous.AUTO)
WINDOW = Guard("replay window", window_open)
RESEND = Guard("`resend`", lambda c: c.lane.on_ambiguous is OnAmbiguous.RESEND)
SEARCH = Guard("else, while search exists", lambda c: c.capabilities.search is not Search.NONE)
REVIEW = Guard("review passed, after one last look-up", lambda c: c.now >= c.review)
UNREVIEWED = Guard("young, or before review", lambda c: young(c) or c.now < c.review)
READER = Guard("owner or feed", lambda c: c.facts.owned or c.facts.outsider or c.facts.step is None)
IN_TIME = Guard("before deadline", lambda c: c.now < c.receipt_deadline)
OVERDUE = Guard("deadline, after a last look-up", lambda c: c.now >= c.receipt_deadline)
NEWER = Guard("newer provider time", _newer)
VERIFIED = Guard("verified", lambda c: c.facts.verified)
WITH_ID = Guard("operator, with id", lambda c: c.facts.has_remote_id)
WITHOUT_ID = Guard("operator, without id", lambda c: not c.facts.has_remote_id)
ANOTHER_ID = Guard("another attempt, another id", lambda c: not c.facts.same_id)
THE_OPEN = Guard("of the open attempt", lambda c: not c.facts.attempt_charged and c.on_time is not None)
EARLIER = Guard("of an earlier attempt", lambda _: True)
OPERATOR = Guard("operator", lambda _: True)
ONLY_DOUBT = Guard("of the only doubtful attempt", lambda c: c.facts.other_doubt is None and c.on_time is not None)
CONTENT = Guard("content present", lambda c: c.facts.content_present)
NEVER_ACCEPTED = Guard("accepted_at empty", lambda c: c.facts.accepted_at is None)
IS_DOUBTED = Guard("in doubt", lambda c: c.facts.doubt_since is not None)
