"""The clocks of the table: when a work row is due next. Pure; durations in seconds, `jitter` in [0, 1).

B counts charged attempts, C the uncharged tries of a step; both are exponential. Sends and look-ups take full jitter;
checks half of it, so that a receipt is never asked for sooner than half the wait.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from notifyctl.lifecycle_facts import Case, plus
from notifyctl.model import Backoff, Receipts, Search


class Clock(StrEnum):
    """Which instant becomes `eligible_at`."""

    NONE = "–"  # noqa: RUF001 - the design's sign for "no work row"
    SAME = "same"
    ON_TIME = "as on time"
    DUE = "due"
    NOW = "now"
    LEASE = "now+lease"
    OLD = "old/limit/gate"
    DEADLINE = "deadline+margin"
    BACKOFF = "B"
    AGAIN = "max(B, Retry-After), not before a look-up has settled"
    RETRY = "max(B, Retry-After)"
    WAIT = "Retry-After, else C"
    TRIES = "C"
    FIRST = "first"
    CHECK = "C, at the deadline at the latest"
    RECEIPT_DEADLINE = "deadline"
    SETTLE = "now+settle"
    REVIEW = "review"


def backoff(policy: Backoff, n: int, jitter: float) -> float:
    """Seconds to wait, full jitter: [0, min(cap, base * 2^n)), but a second at least; n counts from 0, of any size."""
    ceiling = min(policy.cap, policy.base * 2.0 ** min(max(n, 0), 60))
    return max(ceiling * jitter, min(1.0, ceiling))


def eligible_at(clock: Clock, case: Case) -> datetime | None:
    """The row's one clock. Provider waits never outlast `give_up_after`: what waits longer has been given up."""
    facts, now, lane = case.facts, case.now, case.lane
    last = max(case.used - 1, 0)
    match clock:
        case Clock.NONE | Clock.ON_TIME:
            return None
        case Clock.SAME:
            return facts.eligible_at
        case Clock.DUE:
            return facts.due_at or now
        case Clock.NOW:
            return now
        case Clock.LEASE:
            return plus(now, lane.lease)
        case Clock.OLD:
            return case.old_eligible_at or now
        case Clock.DEADLINE:
            return plus(now, case.deadline + case.margin)
        case Clock.BACKOFF:
            return plus(now, backoff(lane.backoff, last, case.jitter))
        case Clock.AGAIN:  # what was in doubt before may not be searchable yet: a second copy came at a person's word
            settled = case.settle_delay if case.capabilities.search is not Search.NONE else 0.0
            return plus(now, max(backoff(lane.backoff, last, case.jitter), settled, _asked_wait(case)))
        case Clock.RETRY:
            return plus(now, max(backoff(lane.backoff, last, case.jitter), _asked_wait(case)))
        case Clock.WAIT:
            return plus(now, _asked_wait(case) or backoff(lane.backoff, facts.tries, case.jitter))
        case Clock.TRIES:
            return plus(now, backoff(lane.backoff, facts.tries, case.jitter))
        case Clock.SETTLE:
            return plus(now, case.settle_delay)
        case Clock.REVIEW:
            return max(case.review, now)
        case Clock.FIRST:
            return _before_the_end(case, lane.receipt.first)
        case Clock.RECEIPT_DEADLINE:
            return case.receipt_deadline
        case Clock.CHECK:
            if case.capabilities.receipts in (Receipts.NONE, Receipts.BOUNCES_ONLY):
                return case.receipt_deadline
            ceiling = min(lane.receipt.cap, lane.receipt.first * 2.0 ** min(facts.tries, 6))
            return _before_the_end(case, max(ceiling * (0.5 + case.jitter / 2), _asked_wait(case)))


def _asked_wait(case: Case) -> float:
    """Seconds the provider asked for; 0: none, or nonsense (negative, NaN)."""
    asked = case.retry_after or 0.0
    return min(asked, case.lane.give_up_after) if asked > 0 else 0.0


def _before_the_end(case: Case, wait: float) -> datetime:
    """now + wait, but one check falls before the provider forgets the message, and one on the receipt deadline."""
    at = min(plus(case.now, wait), case.receipt_deadline)
    if case.capabilities.receipt_window > 0:
        forgets = plus(case.facts.accepted_at or case.now, 0.9 * case.capabilities.receipt_window)
        at = min(at, forgets) if forgets > case.now else at
    return max(at, case.now)
