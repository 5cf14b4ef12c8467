"""What the state machine is told: the trigger, the facts of the delivery, and the policies that apply (`Case`).

Pure values: no I/O, no clock, no chance. Durations in seconds, instants are aware UTC datetimes as stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from notifyctl.model import Capabilities, Lane, Mandate, State, Step


class Trigger(StrEnum):
    """What happens to a delivery; the first block comes from dispatch, the last from people."""

    INSERT = "insert"
    CLAIM = "claim"
    RELEASE = "release"
    RENEW = "renew"
    POLICY = "policy"  # consent or suppression refuses
    EXPIRY = "expiry"
    CANNOT_HEAL = "cannot_heal"  # also a replay that would differ or whose window has closed, a changed destination
    CAN_HEAL = "can_heal"
    BEGIN = "begin"
    ACCEPTED = "accepted"
    TEMPORARY_FAILURE = "temporary_failure"
    RATE_LIMITED = "rate_limited"
    UNAVAILABLE = "unavailable"
    PERMANENT_FAILURE = "permanent_failure"
    INVALID = "invalid_or_opted_out"
    AMBIGUOUS = "ambiguous"
    LAPSE = "deadline_passed"
    FOUND = "found"
    ABSENT = "absent"
    CANNOT_TELL = "cannot_tell"
    LOOKUP_ERROR = "look-up_error"
    REVIEW_PASSED = "review_passed"
    RECEIPT_PENDING = "receipt:_not_terminal"
    RECEIPT_NOT_YET = "receipt:_not_yet"
    RECEIPT_ERROR = "receipt:_error"
    RECEIPT_DELIVERED = "receipt:_delivered"
    RECEIPT_HARD = "receipt:_hard_bounce,_invalid_or_opted_out"
    RECEIPT_FAILED = "receipt:_soft_or_final_failure"
    RECEIPT_GONE = "receipt:_gone"
    RECEIPT_DEADLINE = "receipt_deadline"
    RECEIPT_COMPLAINT = "complaint"
    RECEIPT_BY_KEY = "receipt_by_our_key"
    LATE_ACCEPTED = "late_acceptance"
    LATE_FAILURE = "late_certain_failure"
    LATE_OTHER = "any_other_late_outcome"
    CANCEL = "cancel"
    SUPPRESSION_ADDED = "suppression_added"
    ERASED = "recipient_erased"
    EXPIRY_SWEEP = "expiry_sweep"
    REQUEUE = "requeue"
    REQUEUE_DUPLICATE = "requeue_--accept-duplicate"
    MARK_ACCEPTED = "--mark_accepted"
    MARK_FAILED = "--mark_failed"
    RECHECK = "recheck"  # the requeue of what is unresolved
    TAKE_OVER = "take-over"


T = Trigger
CERTAIN_FAILURES = (T.TEMPORARY_FAILURE, T.RATE_LIMITED, T.UNAVAILABLE, T.PERMANENT_FAILURE, T.INVALID)
TERMINAL_RECEIPTS = (T.RECEIPT_DELIVERED, T.RECEIPT_HARD, T.RECEIPT_FAILED)
NON_TERMINAL_RECEIPTS = (T.RECEIPT_PENDING, T.RECEIPT_NOT_YET, T.RECEIPT_ERROR)
CHARGING = frozenset(
    {T.ACCEPTED, T.TEMPORARY_FAILURE, T.PERMANENT_FAILURE, T.INVALID, T.AMBIGUOUS, T.LAPSE, T.LATE_ACCEPTED}
)


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a delivery when a trigger arrives. Instants are aware UTC, as stored."""

    state: State | None  # None: not inserted yet
    step: Step | None = None  # of the work row; None: there is none
    owned: bool = False  # somebody holds the work row; what only an owner may do needs it
    used: int = 0  # charged attempts as stored
    tries: int = 0  # uncharged tries of the current step; begin keeps them, so that waits grow
    due_at: datetime | None = None
    eligible_at: datetime | None = None
    expires_at: datetime | None = None
    first_tried_at: datetime | None = None
    doubt_since: datetime | None = None
    accepted_at: datetime | None = None
    attempt_started: datetime | None = None  # of the attempt being judged
    attempt_charged: bool = False  # `used` already counts the attempt being judged: it was recorded as lost
    mandate: Mandate | None = None
    other_doubt: datetime | None = None  # earliest start of another attempt of unknown outcome, an open one included
    held: bool = False  # a person has been told of this doubt already
    gate_open: bool = True
    refusal: str = ""  # why consent or suppression refuses it now; "": policy passes
    same_bytes: bool = True  # the request's digest equals that of the attempt to be replayed
    content_present: bool = True  # variables and destination have not been erased
    outsider: bool = False  # a receipt read by somebody who does not own the row (feed, bounce mailbox)
    id_free: bool = True  # a look-up found exactly one candidate and no other attempt has its id
    lookup_settled: bool = True  # the look-up was made after the settle delay
    same_id: bool = False  # a second acceptance names the remote id already known: a replay answered, no second copy
    has_remote_id: bool = False  # the operator who marks it accepted gave the provider's id
    verified: bool = False  # a receipt matched by our own key, its signature checked
    last_receipt: datetime | None = None  # provider time of the receipt that decided the present state
    receipts_from: datetime | None = None  # where the receipt deadline counts from; None: accepted_at


@dataclass(frozen=True, slots=True)
class Case:
    """Facts and everything else a rule may look at. Durations in seconds."""

    facts: Facts
    trigger: Trigger
    now: datetime
    lane: Lane
    capabilities: Capabilities
    jitter: float
    reason: str
    retry_after: float | None
    deadline: float
    margin: float
    settle_delay: float
    old_eligible_at: datetime | None
    provider_time: datetime | None
    on_time: Trigger | None
    reset_attempts: bool

    @property
    def used(self) -> int:
        """Charged attempts, with the one being judged where this trigger charges it."""
        counted = self.trigger not in CHARGING or self.facts.attempt_charged
        return self.facts.used + (0 if counted else 1)

    @property
    def doubt(self) -> datetime | None:
        """Start of the earliest attempt of unknown outcome, the one being judged not among them.

        What an owner is told of is what was in doubt before its own attempt; that is never concluded from times, which
        may be equal or have stepped back.
        """
        return self.facts.doubt_since

    @property
    def doubt_with_this(self) -> datetime:
        """The same, with the attempt being judged among the unknown."""
        started = self.facts.attempt_started or self.now
        return min(self.facts.doubt_since or started, started)

    @property
    def review(self) -> datetime:
        """When doubt becomes a dead letter."""
        since = self.doubt_with_this if self.trigger in (T.AMBIGUOUS, T.LAPSE) else self.facts.doubt_since
        return plus(since or self.now, self.lane.ambiguous_review_after)

    @property
    def receipt_deadline(self) -> datetime:
        """When asking for a receipt ends."""
        return plus(self.facts.receipts_from or self.facts.accepted_at or self.now, self.lane.receipt.deadline)


def plus(at: datetime, seconds: float) -> datetime:
    """`at` + seconds, within what a datetime can hold; NaN counts as no wait."""
    if seconds != seconds:
        return at
    latest = datetime.max.replace(tzinfo=UTC) - timedelta(days=1)
    return latest if seconds >= (latest - at).total_seconds() else at + timedelta(seconds=seconds)
