"""What a lane will do when nobody knows whether a message was accepted, and how it learns what became of one.

Nothing here repeats the rules: a delivery whose answer was lost is put before the state machine, with the lane's
policy and what its transport can prove, and what that decides is put into words.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from notifyctl import lifecycle
from notifyctl.lifecycle import Facts, Transition
from notifyctl.model import (
    Absent,
    CannotTell,
    Capabilities,
    Finding,
    Found,
    Lane,
    Mandate,
    Outcome,
    OutcomeKind,
    Receipts,
    Search,
    State,
    Step,
)
from notifyctl.settings import TransportSettings
from notifyctl.units import short

_THEN = datetime(2001, 1, 1, tzinfo=UTC)  # any instant will do
FINDINGS: dict[str, Finding] = {"found": Found("id"), "absent": Absent(), "cannot_tell": CannotTell()}


@dataclass(frozen=True, slots=True)
class Prospect:
    """How doubt ends. `ends`: finding → what then happens (`accepted`, `sent_again`, `replayed`, `duplicate`, `held`,
    `asked_again`); only `cannot_tell` where nothing can be looked up. `held` in place of all where nobody asks."""

    ends: dict[str, str]
    words: str


def prospect(lane: Lane, capabilities: Capabilities, settings: TransportSettings) -> Prospect:
    """What becomes of a delivery of this lane whose answer was lost."""
    lost = Facts(
        State.SENDING, Step.RESOLVE, owned=True, due_at=_THEN, eligible_at=_THEN, first_tried_at=_THEN,
        attempt_started=_THEN,
    )  # fmt: skip
    outcome = Outcome(OutcomeKind.AMBIGUOUS, "reply_lost")
    doubt = lifecycle.after(lost, outcome, _THEN, lane, capabilities, jitter=0.0, deadline=settings.deadline)
    review = short(lane.ambiguous_review_after)
    if doubt.held:
        last = "a last look-up, then " if capabilities.search is not Search.NONE else ""
        return Prospect({"cannot_tell": "held"}, f"held for a person at once; after {review} {last}a dead letter")
    searched = capabilities.search is not Search.NONE
    ends = {name: _end(doubt, one, lane, capabilities, settings)
            for name, one in FINDINGS.items() if searched or name == "cannot_tell"}  # fmt: skip
    return Prospect(ends, "; ".join(_words(ends, capabilities, settings, review)))


def _end(
    doubt: Transition, finding: Finding, lane: Lane, capabilities: Capabilities, settings: TransportSettings
) -> str:
    at = doubt.eligible_at or _THEN
    facts = Facts(
        State.AMBIGUOUS, Step.RESOLVE, owned=True, used=doubt.used, due_at=_THEN, eligible_at=at,
        first_tried_at=_THEN, doubt_since=doubt.doubt_since,
    )  # fmt: skip
    then = lifecycle.looked_up(facts, finding, at, lane, capabilities, jitter=0.0, deadline=settings.deadline)
    if then.mandate is not None:
        return "replayed" if then.mandate is Mandate.REPLAY else "duplicate"
    if then.state in (State.ACCEPTED, State.PENDING):
        return "accepted"
    if then.step is Step.SEND:
        return "sent_again"
    if then.state is State.DEAD_LETTER or capabilities.search is Search.NONE:
        return "held"
    return "asked_again"


def _words(ends: dict[str, str], capabilities: Capabilities, settings: TransportSettings, review: str) -> Iterator[str]:
    window = max(0.0, capabilities.replay_window - settings.deadline)
    unknown = {
        "replayed": f"replayed under the same key within {_about(window)}",
        "duplicate": "sent again, perhaps as a duplicate",
        "held": f"held for a person, a dead letter after {review}",
        "asked_again": f"held for a person and looked up again; a dead letter after {review}",
        "sent_again": "sent again",
    }
    if len(ends) == 1:
        yield unknown[ends["cannot_tell"]]
        return
    wait = f" after {short(capabilities.settle_delay)}" if capabilities.settle_delay else ""
    how = "its own key" if capabilities.search is Search.OWN_KEY else "recipient and time"
    yield f"looked up by {how}{wait}: found is accepted"
    if ends["absent"] == "sent_again":
        yield "not found is sent again (it proves that nothing went)"
        yield f"no answer is {unknown[ends['cannot_tell']]}"
    else:
        yield f"not found is {unknown[ends['absent']]}"


def _about(seconds: float) -> str:
    """A long duration in whole hours or days, as no second of it matters."""
    unit = 86400 if seconds >= 2 * 86400 else 3600 if seconds >= 7200 else 1
    return short(seconds // unit * unit)


def receipts(lane: Lane, capabilities: Capabilities, settings: TransportSettings, *, feeds: bool) -> str:
    """How this lane learns what became of what was accepted."""
    policy = lane.receipt
    if capabilities.receipts is Receipts.LOOKUP:
        return (f"looked up after {short(policy.first)}, then every {short(policy.cap)} at most, "
                f"until {short(policy.deadline)}")  # fmt: skip
    if capabilities.receipts is Receipts.NONE or not feeds:
        return "none: accepted is the end"
    often, end = short(settings.poll_every), short(policy.deadline)
    if capabilities.receipts is Receipts.FEED:
        return f"event feed read every {often}, until {end}"
    return f"bounces only, read every {often}: accepted is the end where none has come within {end}"


def flaws(
    lane: Lane, capabilities: Capabilities, settings: TransportSettings, *, feeds: bool
) -> Iterator[tuple[str, str]]:
    """(what in the lane's times defeats itself, what to do) for a person to judge."""
    policy, lookup = lane.receipt, capabilities.receipts is Receipts.LOOKUP
    window, settle = capabilities.receipt_window, capabilities.settle_delay
    exchange, review, given_up = settings.deadline, lane.ambiguous_review_after, lane.give_up_after
    name, way = f"lanes.{lane.name}", f"transports.{settings.name}"
    if lookup and 0 < window < policy.deadline:
        yield (
            (
                f"the provider keeps statuses for {short(window)}, but receipts are asked for until "
                f"{short(policy.deadline)}"
            ),
            f"set {name}.receipt.deadline to {short(window)} or less",
        )
    if lookup and policy.first >= policy.deadline:
        yield (
            f"receipts are first asked for after {short(policy.first)} and given up after {short(policy.deadline)}",
            f"set {name}.receipt.first below receipt.deadline",
        )
    if feeds and settings.poll_every > policy.deadline:
        yield (
            (
                f"its feed is read every {short(settings.poll_every)}, but receipts are given up after "
                f"{short(policy.deadline)}"
            ),
            f"set {way}.poll_every below {name}.receipt.deadline",
        )
    if 0 < capabilities.replay_window <= exchange:
        yield (
            (
                f"one exchange may take {short(exchange)}, no shorter than idempotency keys are honoured: nothing is "
                "ever replayed"
            ),
            f"set {way}.deadline below {short(capabilities.replay_window)}",
        )
    if capabilities.search is not Search.NONE and settle >= review:
        yield (
            f"doubt becomes a dead letter after {short(review)}, before a look-up can be trusted ({short(settle)})",
            f"raise {name}.ambiguous_review_after",
        )
    if exchange >= given_up:
        yield (
            (
                f"one exchange may take {short(exchange)}, but what has failed is given up after {short(given_up)}: "
                "there is no second try"
            ),
            f"raise {name}.give_up_after, or lower {way}.deadline",
        )
    if lane.backoff.base > given_up:
        yield (
            (
                f"the first wait may be {short(lane.backoff.base)}, but what has failed is given up after "
                f"{short(given_up)}"
            ),
            f"set {name}.backoff.base below give_up_after",
        )
