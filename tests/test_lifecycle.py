"""The state machine against an expectation written by hand: nothing here reads the table to know what is right."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from notifyctl.lifecycle import (
    RULES,
    Facts,
    IllegalTransition,
    Transition,
    Trigger,
    after,
    backoff,
    decide,
    late,
    looked_up,
    markdown,
    receipt,
)
from notifyctl.model import (
    Absent,
    Backoff,
    CannotTell,
    Capabilities,
    Channel,
    Found,
    Lane,
    Mandate,
    OnAmbiguous,
    Outcome,
    OutcomeKind,
    Receipt,
    ReceiptPolicy,
    Receipts,
    ReceiptStatus,
    Search,
    State,
    Step,
)

S, T = State, Trigger
NOW = datetime(2027, 3, 28, 9, 0, tzinfo=UTC)
DAY = 86400.0
NONE, SEND, CHECK, RESOLVE = None, Step.SEND, Step.CHECK, Step.RESOLVE

LANE = Lane(
    "email", Channel.EMAIL, "relay", lease=60.0, max_attempts=3, give_up_after=3 * DAY,
    ambiguous_review_after=DAY, backoff=Backoff(10.0, 1000.0), receipt=ReceiptPolicy(15.0, 960.0, 3 * DAY),
)  # fmt: skip
BARE = Capabilities(frozenset({Channel.EMAIL}), settle_delay=30.0)
LOOKUP = replace(BARE, receipts=Receipts.LOOKUP)
FEED = replace(BARE, receipts=Receipts.FEED)
BOUNCES = replace(BARE, receipts=Receipts.BOUNCES_ONLY)
SEARCHES = replace(BARE, search=Search.OWN_KEY)
PROVES = replace(SEARCHES, absence_proves_unsent=True)
REPLAYS = replace(BARE, replay_window=DAY)
HOLDS = replace(LANE, on_ambiguous=OnAmbiguous.HOLD)
RESENDS = replace(LANE, on_ambiguous=OnAmbiguous.RESEND)


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


QUEUED = Facts(S.QUEUED, SEND, due_at=at(-100), eligible_at=at(-100))
CLAIMED = replace(QUEUED, owned=True, eligible_at=at(60))
DOUBTED = Facts(
    S.AMBIGUOUS, SEND, owned=True, used=1, due_at=at(-900), eligible_at=at(60), first_tried_at=at(-600),
    doubt_since=at(-600), mandate=Mandate.REPLAY,
)  # fmt: skip
SENDING = Facts(
    S.SENDING, RESOLVE, owned=True, used=0, due_at=at(-100), eligible_at=at(60), first_tried_at=at(-5),
    attempt_started=at(-5),
)  # fmt: skip
REPLAYING = replace(SENDING, used=1, first_tried_at=at(-600), doubt_since=at(-600), mandate=Mandate.REPLAY)
AMBIGUOUS = Facts(
    S.AMBIGUOUS, RESOLVE, owned=True, used=1, due_at=at(-900), eligible_at=at(60), first_tried_at=at(-600),
    doubt_since=at(-600),
)  # fmt: skip
ACCEPTED = Facts(S.ACCEPTED, CHECK, owned=True, used=1, eligible_at=at(60), accepted_at=at(-100))
PENDING = replace(ACCEPTED, state=S.PENDING)
OVERDUE = replace(ACCEPTED, accepted_at=at(-3 * DAY))
DELIVERED = Facts(S.DELIVERED, used=1, accepted_at=at(-100), last_receipt=at(-50))
DEAD = Facts(S.DEAD_LETTER, used=3, first_tried_at=at(-4 * DAY))
DEAD_IN_DOUBT = replace(DEAD, doubt_since=at(-2 * DAY))
UNRESOLVED = Facts(S.UNRESOLVED, used=1, accepted_at=at(-4 * DAY))
EARLIER, LATER = at(-60), at(-40)  # provider times around DELIVERED.last_receipt


def move(
    facts: Facts, trigger: Trigger, lane: Lane = LANE, capabilities: Capabilities = BARE, **terms: Any
) -> Transition:
    return decide(facts, trigger, NOW, lane, capabilities, **({"jitter": 0.5} | terms))


# One line per way through the table: what is known, what happens (and terms), what must come of it.
# (facts, trigger, lane, capabilities, terms, state, step, seconds from now, further fields)
Row = tuple[Facts, Trigger, Lane, Capabilities, Mapping[str, Any], State, Step | None, float | None, Mapping[str, Any]]
NEW = Facts(None, due_at=at(50))
TOKEN = {"token_raised": True}
DONE: dict[str, Any] = {"settled": True, "mandate": None}
PERSON = {"needs_person": True}
UNTOUCHED = {"untouched": True, "token_raised": False, "release_owner": False}
ID = {"accepted_at": NOW, "doubt_since": None, "mandate": None, "trail": True}
LATE_NO = {"on_time": T.PERMANENT_FAILURE, "reason": "rejected"}
DUP = Mandate.DUPLICATE

TABLE: list[Row] = [
    # birth
    (NEW, T.INSERT, LANE, BARE, {}, S.QUEUED, SEND, 50, {"needs_person": False}),
    (replace(NEW, refusal="manual"), T.INSERT, LANE, BARE, {}, S.SUPPRESSED, NONE, None, DONE | {"reason": "manual"}),
    (NEW, T.INSERT, LANE, BARE, {"reason": "consent_revoked"}, S.SUPPRESSED, NONE, None, {"reason": "consent_revoked"}),
    # claimed
    (QUEUED, T.CLAIM, LANE, BARE, {}, S.QUEUED, SEND, 60, TOKEN | {"trail": False, "lease_recovered": False}),
    (replace(QUEUED, owned=True), T.CLAIM, LANE, BARE, {}, S.QUEUED, SEND, 60, TOKEN | {"lease_recovered": True}),
    (replace(QUEUED, state=S.TEMPORARY_FAILURE, tries=2), T.CLAIM, LANE, BARE, {}, S.TEMPORARY_FAILURE, SEND, 60,
     TOKEN | {"tries": 2}),
    (replace(DOUBTED, eligible_at=at(-1)), T.CLAIM, LANE, REPLAYS, {}, S.AMBIGUOUS, SEND, 60,
     TOKEN | {"mandate": Mandate.REPLAY, "doubt_since": at(-600)}),
    (CLAIMED, T.RELEASE, LANE, BARE, {"old_eligible_at": at(-100)}, S.QUEUED, SEND, -100,
     {"release_owner": True, "charged": False, "token_raised": False, "trail": False}),
    (DOUBTED, T.RELEASE, LANE, REPLAYS, {"old_eligible_at": at(90)}, S.AMBIGUOUS, SEND, 90,
     {"mandate": Mandate.REPLAY}),
    (CLAIMED, T.RENEW, LANE, BARE, {}, S.QUEUED, SEND, 60, {"release_owner": False, "token_raised": False}),
    (CLAIMED, T.POLICY, LANE, BARE, {"reason": "opted_out"}, S.SUPPRESSED, NONE, None,
     DONE | {"reason": "opted_out", "charged": False, "suppress": ""}),
    (CLAIMED, T.EXPIRY, LANE, BARE, {}, S.EXPIRED, NONE, None, DONE | {"reason": "expired", "charged": False}),
    (CLAIMED, T.CANNOT_HEAL, LANE, BARE, {"reason": "header_invalid"}, S.PERMANENT_FAILURE, NONE, None,
     DONE | PERSON | {"reason": "header_invalid", "charged": False, "used": 0}),
    (DOUBTED, T.POLICY, LANE, REPLAYS, {"reason": "manual"}, S.AMBIGUOUS, RESOLVE, DAY - 600,
     PERSON | {"held": True, "mandate": None, "doubt_since": at(-600), "reason": "manual", "trail": True}),
    (DOUBTED, T.EXPIRY, LANE, REPLAYS, {}, S.AMBIGUOUS, RESOLVE, DAY - 600, PERSON | {"mandate": None}),
    (DOUBTED, T.CANNOT_HEAL, LANE, REPLAYS, {"reason": "content_changed"}, S.AMBIGUOUS, RESOLVE, DAY - 600,
     PERSON | {"held": True, "reason": "content_changed", "mandate": None}),
    (replace(DOUBTED, doubt_since=at(-2 * DAY)), T.CANNOT_HEAL, LANE, REPLAYS, {}, S.AMBIGUOUS, RESOLVE, 0, {}),
    (CLAIMED, T.CAN_HEAL, LANE, BARE, {"reason": "topic_unknown"}, S.QUEUED, SEND, 5,
     {"tries": 1, "charged": False, "release_owner": True, "trail": False}),
    (replace(CLAIMED, tries=3), T.CAN_HEAL, LANE, BARE, {}, S.QUEUED, SEND, 40, {"tries": 4}),
    (DOUBTED, T.CAN_HEAL, LANE, BARE, {}, S.AMBIGUOUS, SEND, 5, {"mandate": Mandate.REPLAY}),
    (replace(CLAIMED, due_at=at(-3 * DAY)), T.CAN_HEAL, LANE, BARE, {}, S.DEAD_LETTER, NONE, None,
     DONE | PERSON | {"reason": "gave_up"}),
    (replace(CLAIMED, due_at=at(-9 * DAY), first_tried_at=at(-1)), T.CAN_HEAL, LANE, BARE, {}, S.QUEUED, SEND, 5, {}),
    (replace(DOUBTED, first_tried_at=at(-3 * DAY)), T.CAN_HEAL, LANE, BARE, {"reason": "object_store"},
     S.DEAD_LETTER, NONE, None, PERSON | {"reason": "object_store", "doubt_since": at(-600)}),
    (replace(CLAIMED, tries=2), T.BEGIN, LANE, BARE, {"margin": 7.0}, S.SENDING, RESOLVE, 67,
     {"first_tried_at": NOW, "release_owner": False, "tries": 2, "trail": True, "token_raised": False}),
    (replace(CLAIMED, first_tried_at=at(-9)), T.BEGIN, LANE, BARE, {}, S.SENDING, RESOLVE, 65,
     {"first_tried_at": at(-9)}),
    (DOUBTED, T.BEGIN, LANE, REPLAYS, {}, S.SENDING, RESOLVE, 65, {"doubt_since": at(-600)}),
    (replace(DOUBTED, mandate=DUP, same_bytes=False), T.BEGIN, LANE, BARE, {}, S.SENDING, RESOLVE, 65,
     {"doubt_since": at(-600)}),
    # an outcome in time
    (SENDING, T.ACCEPTED, LANE, LOOKUP, {}, S.ACCEPTED, CHECK, 15, ID | {"charged": True, "used": 1, "settled": False}),
    (SENDING, T.ACCEPTED, LANE, FEED, {}, S.ACCEPTED, CHECK, 15, ID),
    (REPLAYING, T.ACCEPTED, LANE, BOUNCES, {}, S.ACCEPTED, CHECK, 3 * DAY, ID | {"used": 2}),
    (SENDING, T.ACCEPTED, LANE, BARE, {"reason": "ok"}, S.ACCEPTED, NONE, None,
     ID | DONE | {"reason": "no_receipt_expected"}),
    (SENDING, T.TEMPORARY_FAILURE, LANE, BARE, {"reason": "greylisted"}, S.TEMPORARY_FAILURE, SEND, 5,
     {"used": 1, "charged": True, "reason": "greylisted", "doubt_since": None, "release_owner": True, "trail": True}),
    (replace(SENDING, used=1, tries=4), T.TEMPORARY_FAILURE, LANE, BARE, {}, S.TEMPORARY_FAILURE, SEND, 10,
     {"used": 2, "tries": 0}),
    (SENDING, T.TEMPORARY_FAILURE, LANE, BARE, {"retry_after": 120.0}, S.TEMPORARY_FAILURE, SEND, 120, {}),
    (SENDING, T.TEMPORARY_FAILURE, LANE, BARE, {"retry_after": 2.0}, S.TEMPORARY_FAILURE, SEND, 5, {}),
    (SENDING, T.TEMPORARY_FAILURE, LANE, BARE, {"retry_after": math.inf}, S.TEMPORARY_FAILURE, SEND, 3 * DAY, {}),
    (replace(SENDING, used=2), T.TEMPORARY_FAILURE, LANE, BARE, {}, S.DEAD_LETTER, NONE, None,
     DONE | PERSON | {"reason": "attempts_exhausted", "used": 3}),
    (replace(SENDING, first_tried_at=at(-3 * DAY)), T.TEMPORARY_FAILURE, LANE, BARE, {}, S.DEAD_LETTER, NONE, None,
     DONE | PERSON | {"reason": "gave_up"}),
    (SENDING, T.RATE_LIMITED, LANE, BARE, {"retry_after": 120.0}, S.QUEUED, SEND, 120,
     {"charged": False, "used": 0, "tries": 1}),
    (replace(SENDING, used=1, tries=2), T.UNAVAILABLE, LANE, BARE, {}, S.TEMPORARY_FAILURE, SEND, 20,
     {"charged": False, "used": 1, "tries": 3}),
    (replace(SENDING, used=2), T.RATE_LIMITED, LANE, BARE, {}, S.TEMPORARY_FAILURE, SEND, 5, {"used": 2}),
    (replace(SENDING, first_tried_at=at(-3 * DAY)), T.RATE_LIMITED, LANE, BARE, {}, S.DEAD_LETTER, NONE, None,
     PERSON | {"reason": "gave_up", "used": 0}),
    (replace(SENDING, first_tried_at=at(-3 * DAY)), T.UNAVAILABLE, LANE, BARE, {"reason": "dns"}, S.DEAD_LETTER, NONE,
     None, PERSON | {"reason": "dns"}),
    (SENDING, T.PERMANENT_FAILURE, LANE, BARE, {"reason": "too_large"}, S.PERMANENT_FAILURE, NONE, None,
     DONE | {"charged": True, "reason": "too_large", "suppress": ""}),
    (SENDING, T.INVALID, LANE, BARE, {"reason": "invalid_recipient"}, S.SUPPRESSED, NONE, None,
     DONE | {"suppress": "invalid_recipient", "doubt_since": None, "charged": True}),
    (REPLAYING, T.INVALID, LANE, REPLAYS, {"reason": "opted_out"}, S.SUPPRESSED, NONE, None,
     DONE | {"suppress": "opted_out", "doubt_since": at(-600)}),
    (REPLAYING, T.TEMPORARY_FAILURE, LANE, REPLAYS, {}, S.AMBIGUOUS, RESOLVE, 10,
     {"doubt_since": at(-600), "mandate": None, "used": 2, "held": False, "needs_person": False}),
    (REPLAYING, T.RATE_LIMITED, LANE, REPLAYS, {}, S.AMBIGUOUS, RESOLVE, 5,
     {"doubt_since": at(-600), "mandate": None, "used": 1}),
    (REPLAYING, T.UNAVAILABLE, LANE, REPLAYS, {}, S.AMBIGUOUS, RESOLVE, 5, {"doubt_since": at(-600), "mandate": None}),
    (replace(REPLAYING, used=2), T.PERMANENT_FAILURE, LANE, REPLAYS, {}, S.AMBIGUOUS, RESOLVE, 20,
     {"doubt_since": at(-600), "mandate": None, "used": 3}),
    (REPLAYING, T.TEMPORARY_FAILURE, LANE, SEARCHES, {}, S.AMBIGUOUS, RESOLVE, 30, {"doubt_since": at(-600)}),
    (REPLAYING, T.UNAVAILABLE, LANE, PROVES, {"settle_delay": 1.0}, S.AMBIGUOUS, RESOLVE, 5, {"mandate": None}),
    (REPLAYING, T.RATE_LIMITED, LANE, REPLAYS, {"retry_after": 90.0}, S.AMBIGUOUS, RESOLVE, 90, {"mandate": None}),
    (SENDING, T.AMBIGUOUS, LANE, SEARCHES, {"reason": "timeout"}, S.AMBIGUOUS, RESOLVE, 30,
     {"doubt_since": at(-5), "charged": True, "reason": "timeout", "held": False, "needs_person": False}),
    (REPLAYING, T.AMBIGUOUS, LANE, REPLAYS, {"settle_delay": 7.0}, S.AMBIGUOUS, RESOLVE, 7,
     {"doubt_since": at(-600), "mandate": None}),
    (SENDING, T.AMBIGUOUS, RESENDS, BARE, {}, S.AMBIGUOUS, RESOLVE, 30, {"held": False}),
    (SENDING, T.AMBIGUOUS, LANE, BARE, {"reason": "timeout"}, S.AMBIGUOUS, RESOLVE, DAY - 5,
     PERSON | {"held": True, "doubt_since": at(-5), "reason": "timeout"}),
    (REPLAYING, T.AMBIGUOUS, HOLDS, REPLAYS, {}, S.AMBIGUOUS, RESOLVE, DAY - 600,
     PERSON | {"held": True, "doubt_since": at(-600), "mandate": None}),
    (replace(SENDING, eligible_at=NOW, tries=3), T.LAPSE, LANE, SEARCHES, {"reason": "x"}, S.AMBIGUOUS, RESOLVE, 30,
     TOKEN | {"doubt_since": at(-5), "reason": "worker_lost", "charged": True, "release_owner": True, "tries": 0}),
    (replace(REPLAYING, owned=False, eligible_at=at(-1)), T.LAPSE, LANE, REPLAYS, {}, S.AMBIGUOUS, RESOLVE, 30,
     TOKEN | {"doubt_since": at(-600), "mandate": None, "held": False}),
    (replace(SENDING, eligible_at=NOW), T.LAPSE, LANE, BARE, {}, S.AMBIGUOUS, RESOLVE, DAY - 5,
     PERSON | {"held": True, "doubt_since": at(-5), "reason": "worker_lost", "token_raised": True}),
    (replace(REPLAYING, eligible_at=NOW), T.LAPSE, HOLDS, REPLAYS, {}, S.AMBIGUOUS, RESOLVE, DAY - 600,
     PERSON | {"held": True, "doubt_since": at(-600), "mandate": None, "token_raised": True}),
    # in doubt
    (replace(AMBIGUOUS, eligible_at=NOW), T.CLAIM, LANE, SEARCHES, {}, S.AMBIGUOUS, RESOLVE, 60, TOKEN),
    (AMBIGUOUS, T.RELEASE, LANE, SEARCHES, {"old_eligible_at": at(-3)}, S.AMBIGUOUS, RESOLVE, -3, {"trail": False}),
    (AMBIGUOUS, T.RENEW, LANE, SEARCHES, {}, S.AMBIGUOUS, RESOLVE, 60, {"trail": False}),
    (AMBIGUOUS, T.FOUND, LANE, replace(SEARCHES, receipts=Receipts.LOOKUP), {}, S.ACCEPTED, CHECK, 15,
     ID | {"used": 1, "charged": False}),
    (AMBIGUOUS, T.FOUND, LANE, BOUNCES, {}, S.ACCEPTED, CHECK, 3 * DAY, ID),
    (AMBIGUOUS, T.FOUND, LANE, SEARCHES, {}, S.ACCEPTED, NONE, None, ID | DONE),
    (replace(AMBIGUOUS, used=2), T.ABSENT, LANE, PROVES, {}, S.TEMPORARY_FAILURE, SEND, 10,
     {"doubt_since": None, "used": 2}),
    (replace(AMBIGUOUS, expires_at=NOW), T.ABSENT, LANE, PROVES, {}, S.EXPIRED, NONE, None,
     DONE | {"doubt_since": None}),
    (replace(AMBIGUOUS, used=3), T.ABSENT, LANE, PROVES, {}, S.DEAD_LETTER, NONE, None,
     PERSON | {"doubt_since": None, "reason": "attempts_exhausted"}),
    (replace(AMBIGUOUS, first_tried_at=at(-3 * DAY)), T.ABSENT, LANE, PROVES, {}, S.DEAD_LETTER, NONE, None,
     PERSON | {"doubt_since": None, "reason": "gave_up"}),
    (AMBIGUOUS, T.CANNOT_TELL, LANE, REPLAYS, {}, S.AMBIGUOUS, SEND, 0,
     {"mandate": Mandate.REPLAY, "doubt_since": at(-600), "trail": True, "needs_person": False}),
    (AMBIGUOUS, T.CANNOT_TELL, RESENDS, BARE, {}, S.AMBIGUOUS, SEND, 5, {"mandate": DUP, "doubt_since": at(-600)}),
    (AMBIGUOUS, T.CANNOT_TELL, LANE, BARE, {}, S.AMBIGUOUS, RESOLVE, DAY - 600,
     PERSON | {"held": True, "mandate": None}),
    (AMBIGUOUS, T.CANNOT_TELL, HOLDS, REPLAYS, {}, S.AMBIGUOUS, RESOLVE, DAY - 600, PERSON | {"held": True}),
    (replace(AMBIGUOUS, tries=1), T.CANNOT_TELL, LANE, SEARCHES, {}, S.AMBIGUOUS, RESOLVE, 10, PERSON | {"tries": 2}),
    (replace(AMBIGUOUS, held=True), T.CANNOT_TELL, LANE, SEARCHES, {}, S.AMBIGUOUS, RESOLVE, 5,
     {"needs_person": False, "held": True, "trail": False}),
    (replace(AMBIGUOUS, used=3), T.CANNOT_TELL, LANE, REPLAYS, {}, S.AMBIGUOUS, RESOLVE, DAY - 600, PERSON),
    (replace(AMBIGUOUS, refusal="manual"), T.CANNOT_TELL, LANE, REPLAYS, {}, S.AMBIGUOUS, RESOLVE, DAY - 600, PERSON),
    (replace(AMBIGUOUS, expires_at=NOW), T.CANNOT_TELL, RESENDS, BARE, {}, S.AMBIGUOUS, RESOLVE, DAY - 600, PERSON),
    (replace(AMBIGUOUS, doubt_since=at(-DAY + 60)), T.CANNOT_TELL, LANE, REPLAYS, {}, S.AMBIGUOUS, RESOLVE, 60, PERSON),
    (replace(AMBIGUOUS, doubt_since=at(-DAY)), T.CANNOT_TELL, LANE, SEARCHES, {}, S.DEAD_LETTER, NONE, None,
     PERSON | {"doubt_since": at(-DAY), "reason": "review_passed"}),
    (replace(AMBIGUOUS, doubt_since=at(-DAY)), T.REVIEW_PASSED, LANE, BARE, {}, S.DEAD_LETTER, NONE, None,
     PERSON | {"doubt_since": at(-DAY), "reason": "review_passed"}),
    (replace(AMBIGUOUS, tries=2), T.LOOKUP_ERROR, LANE, SEARCHES, {}, S.AMBIGUOUS, RESOLVE, 20,
     {"tries": 3, "doubt_since": at(-600), "needs_person": False}),
    (replace(AMBIGUOUS, first_tried_at=at(-3 * DAY), doubt_since=at(-3 * DAY)), T.LOOKUP_ERROR, LANE, SEARCHES, {},
     S.DEAD_LETTER, NONE, None, PERSON | {"doubt_since": at(-3 * DAY)}),
    # receipts
    (replace(ACCEPTED, eligible_at=NOW), T.CLAIM, LANE, LOOKUP, {}, S.ACCEPTED, CHECK, 60, TOKEN),
    (PENDING, T.RELEASE, LANE, LOOKUP, {"old_eligible_at": at(-1)}, S.PENDING, CHECK, -1, {"release_owner": True}),
    (PENDING, T.RENEW, LANE, LOOKUP, {}, S.PENDING, CHECK, 60, {"release_owner": False}),
    (ACCEPTED, T.RECEIPT_PENDING, LANE, LOOKUP, {}, S.PENDING, CHECK, 11.25,
     {"tries": 1, "trail": True, "token_raised": False, "accepted_at": at(-100)}),
    (replace(PENDING, tries=2), T.RECEIPT_PENDING, LANE, LOOKUP, {}, S.PENDING, CHECK, 45,
     {"tries": 3, "trail": False}),
    (replace(PENDING, owned=False, outsider=True), T.RECEIPT_PENDING, LANE, FEED, {}, S.PENDING, CHECK, 11.25, TOKEN),
    (replace(ACCEPTED, tries=99), T.RECEIPT_NOT_YET, LANE, LOOKUP, {}, S.ACCEPTED, CHECK, 720, {"tries": 100}),
    (PENDING, T.RECEIPT_ERROR, LANE, LOOKUP, {}, S.PENDING, CHECK, 11.25, {"tries": 1}),
    (replace(ACCEPTED, accepted_at=at(4 - 3 * DAY)), T.RECEIPT_ERROR, LANE, LOOKUP, {}, S.ACCEPTED, CHECK, 4, {}),
    (replace(ACCEPTED, tries=9), T.RECEIPT_ERROR, LANE, replace(LOOKUP, receipt_window=400.0), {}, S.ACCEPTED, CHECK,
     260, {}),
    (replace(ACCEPTED, owned=False, outsider=True), T.RECEIPT_PENDING, LANE, BOUNCES, {}, S.PENDING, CHECK,
     3 * DAY - 100, TOKEN),
    (ACCEPTED, T.RECEIPT_DELIVERED, LANE, LOOKUP, {}, S.DELIVERED, NONE, None,
     DONE | {"accepted_at": at(-100), "token_raised": False, "suppress": ""}),
    (OVERDUE, T.RECEIPT_DELIVERED, LANE, LOOKUP, {}, S.DELIVERED, NONE, None, DONE),
    (PENDING, T.RECEIPT_HARD, LANE, LOOKUP, {"reason": "invalid_recipient"}, S.SUPPRESSED, NONE, None,
     DONE | {"suppress": "invalid_recipient"}),
    (replace(ACCEPTED, owned=False, outsider=True), T.RECEIPT_HARD, LANE, BOUNCES, {}, S.SUPPRESSED, NONE, None,
     TOKEN | {"suppress": "hard_bounce"}),
    (Facts(S.ACCEPTED, accepted_at=at(-9)), T.RECEIPT_HARD, LANE, BOUNCES, {}, S.SUPPRESSED, NONE, None, TOKEN),
    (PENDING, T.RECEIPT_FAILED, LANE, LOOKUP, {"reason": "mailbox_full"}, S.PERMANENT_FAILURE, NONE, None,
     DONE | {"suppress": "", "reason": "mailbox_full"}),
    (PENDING, T.RECEIPT_GONE, LANE, LOOKUP, {}, S.UNRESOLVED, NONE, None, DONE | PERSON | {"accepted_at": at(-100)}),
    (OVERDUE, T.RECEIPT_DEADLINE, LANE, LOOKUP, {}, S.UNRESOLVED, NONE, None,
     DONE | PERSON | {"reason": "receipt_deadline"}),
    (OVERDUE, T.RECEIPT_PENDING, LANE, LOOKUP, {"reason": "queued"}, S.UNRESOLVED, NONE, None,
     PERSON | {"reason": "receipt_deadline"}),
    (replace(OVERDUE, state=S.PENDING), T.RECEIPT_NOT_YET, LANE, FEED, {}, S.UNRESOLVED, NONE, None, PERSON),
    (OVERDUE, T.RECEIPT_ERROR, LANE, FEED, {}, S.UNRESOLVED, NONE, None, PERSON),
    (replace(OVERDUE, receipts_from=at(-5)), T.RECEIPT_NOT_YET, LANE, LOOKUP, {}, S.ACCEPTED, CHECK, 11.25, {}),
    (OVERDUE, T.RECEIPT_DEADLINE, LANE, BOUNCES, {}, S.ACCEPTED, NONE, None,
     DONE | {"reason": "no_receipt_expected", "needs_person": False, "trail": False}),
    (replace(OVERDUE, state=S.PENDING), T.RECEIPT_DEADLINE, LANE, BOUNCES, {}, S.ACCEPTED, NONE, None, DONE),
    (ACCEPTED, T.RECEIPT_COMPLAINT, LANE, FEED, {}, S.ACCEPTED, CHECK, 60,
     UNTOUCHED | {"suppress": "complained", "trail": True}),
    (DELIVERED, T.RECEIPT_COMPLAINT, LANE, FEED, {}, S.DELIVERED, NONE, None, {"suppress": "complained"}),
    (DELIVERED, T.RECEIPT_FAILED, LANE, FEED, {"provider_time": LATER}, S.PERMANENT_FAILURE, NONE, None,
     TOKEN | {"trail": True}),
    (DELIVERED, T.RECEIPT_HARD, LANE, FEED, {"provider_time": LATER}, S.SUPPRESSED, NONE, None,
     {"suppress": "hard_bounce", "accepted_at": at(-100)}),
    (UNRESOLVED, T.RECEIPT_DELIVERED, LANE, FEED, {"provider_time": EARLIER}, S.DELIVERED, NONE, None, DONE),
    (DELIVERED, T.RECEIPT_DELIVERED, LANE, FEED, {"provider_time": LATER}, S.DELIVERED, NONE, None, {"trail": False}),
    (DELIVERED, T.RECEIPT_FAILED, LANE, FEED, {"provider_time": EARLIER}, S.DELIVERED, NONE, None, UNTOUCHED),
    (DELIVERED, T.RECEIPT_HARD, LANE, FEED, {}, S.DELIVERED, NONE, None, UNTOUCHED | {"suppress": ""}),
    (DELIVERED, T.RECEIPT_PENDING, LANE, FEED, {"provider_time": LATER}, S.DELIVERED, NONE, None, UNTOUCHED),
    (replace(AMBIGUOUS, verified=True), T.RECEIPT_BY_KEY, LANE, LOOKUP, {}, S.ACCEPTED, CHECK, 15, ID | TOKEN),
    (replace(DEAD, verified=True), T.RECEIPT_BY_KEY, LANE, BOUNCES, {}, S.ACCEPTED, CHECK, 3 * DAY, ID | TOKEN),
    (replace(AMBIGUOUS, verified=True), T.RECEIPT_BY_KEY, LANE, BARE, {}, S.ACCEPTED, NONE, None, ID | TOKEN),
    # late knowledge
    (replace(AMBIGUOUS, attempt_charged=True), T.LATE_ACCEPTED, LANE, LOOKUP, {}, S.ACCEPTED, CHECK, 15,
     ID | TOKEN | {"used": 1, "charged": False}),
    (SENDING, T.LATE_ACCEPTED, LANE, BOUNCES, {}, S.ACCEPTED, CHECK, 3 * DAY, ID | TOKEN | {"used": 1}),
    (DEAD_IN_DOUBT, T.LATE_ACCEPTED, LANE, BARE, {}, S.ACCEPTED, NONE, None, ID | TOKEN),
    (Facts(S.CANCELLED), T.LATE_ACCEPTED, LANE, LOOKUP, {}, S.ACCEPTED, CHECK, 15, ID | TOKEN),
    (replace(DOUBTED, owned=True), T.LATE_ACCEPTED, LANE, LOOKUP, {}, S.ACCEPTED, CHECK, 15, ID | TOKEN),
    (ACCEPTED, T.LATE_ACCEPTED, LANE, LOOKUP, {}, S.ACCEPTED, CHECK, 60,
     UNTOUCHED | {"reason": "duplicate_accepted", "trail": True, "accepted_at": at(-100)}),
    (replace(ACCEPTED, same_id=True), T.LATE_ACCEPTED, LANE, LOOKUP, {}, S.ACCEPTED, CHECK, 60,
     UNTOUCHED | {"trail": False}),
    (replace(AMBIGUOUS, attempt_charged=True), T.LATE_FAILURE, LANE, BARE, LATE_NO, S.PERMANENT_FAILURE, NONE, None,
     TOKEN | {"doubt_since": None, "reason": "rejected", "used": 1, "release_owner": True}),
    (replace(AMBIGUOUS, attempt_charged=True, used=2), T.LATE_FAILURE, LANE, BARE, {"on_time": T.TEMPORARY_FAILURE},
     S.TEMPORARY_FAILURE, SEND, 10, TOKEN | {"doubt_since": None, "used": 2, "charged": False}),
    (replace(AMBIGUOUS, attempt_charged=True, used=3), T.LATE_FAILURE, LANE, BARE, {"on_time": T.TEMPORARY_FAILURE},
     S.DEAD_LETTER, NONE, None, TOKEN | {"doubt_since": None}),
    (replace(AMBIGUOUS, attempt_charged=True), T.LATE_FAILURE, LANE, BARE,
     {"on_time": T.RATE_LIMITED, "retry_after": 9.0}, S.QUEUED, SEND, 9, TOKEN | {"doubt_since": None, "used": 0}),
    (replace(DOUBTED, attempt_charged=True), T.LATE_FAILURE, LANE, REPLAYS, {"on_time": T.TEMPORARY_FAILURE},
     S.TEMPORARY_FAILURE, SEND, 5, TOKEN | {"mandate": None, "doubt_since": None}),
    (AMBIGUOUS, T.LATE_FAILURE, LANE, BARE, {"on_time": T.INVALID, "reason": "invalid_recipient"}, S.SUPPRESSED, NONE,
     None, TOKEN | {"suppress": "invalid_recipient", "doubt_since": None}),
    (replace(AMBIGUOUS, other_doubt=at(-50)), T.LATE_FAILURE, LANE, BARE, LATE_NO, S.AMBIGUOUS, RESOLVE, 60,
     UNTOUCHED | {"doubt_since": at(-600)}),
    (SENDING, T.LATE_FAILURE, LANE, BARE, LATE_NO, S.PERMANENT_FAILURE, NONE, None,
     TOKEN | {"doubt_since": None, "reason": "rejected", "used": 1, "release_owner": True}),
    (SENDING, T.LATE_OTHER, LANE, BARE, {"on_time": T.AMBIGUOUS}, S.AMBIGUOUS, RESOLVE, DAY - 5,
     TOKEN | {"used": 1, "release_owner": True, "held": True}),
    (REPLAYING, T.LATE_FAILURE, LANE, BARE, LATE_NO, S.AMBIGUOUS, RESOLVE, 10,
     TOKEN | {"doubt_since": at(-600), "mandate": None, "release_owner": True}),
    (replace(REPLAYING, other_doubt=at(-5), attempt_charged=True), T.LATE_FAILURE, LANE, BARE, LATE_NO, S.SENDING,
     RESOLVE, 60,
     {"doubt_since": at(-5), "token_raised": False, "release_owner": False, "untouched": False}),
    (ACCEPTED, T.LATE_FAILURE, LANE, BARE, LATE_NO, S.ACCEPTED, CHECK, 60, UNTOUCHED),
    (DEAD_IN_DOUBT, T.LATE_FAILURE, LANE, BARE, LATE_NO, S.DEAD_LETTER, NONE, None, UNTOUCHED),
    (AMBIGUOUS, T.LATE_OTHER, LANE, BARE, {}, S.AMBIGUOUS, RESOLVE, 60, UNTOUCHED | {"doubt_since": at(-600)}),
    # people and sweeps
    (CLAIMED, T.CANCEL, LANE, BARE, {"reason": "mistake"}, S.CANCELLED, NONE, None,
     DONE | TOKEN | {"reason": "mistake"}),
    (QUEUED, T.SUPPRESSION_ADDED, LANE, BARE, {"reason": "manual"}, S.SUPPRESSED, NONE, None, TOKEN),
    (replace(QUEUED, state=S.TEMPORARY_FAILURE), T.ERASED, LANE, BARE, {}, S.SUPPRESSED, NONE, None,
     TOKEN | {"reason": "recipient_erased"}),
    (replace(QUEUED, expires_at=NOW), T.EXPIRY_SWEEP, LANE, BARE, {}, S.EXPIRED, NONE, None, TOKEN | DONE),
    (DEAD, T.REQUEUE, LANE, BARE, {}, S.QUEUED, SEND, 0,
     TOKEN | {"used": 2, "first_tried_at": NOW, "clear_pins": True, "settled": False, "tries": 0}),
    (DEAD, T.REQUEUE, LANE, BARE, {"reset_attempts": True}, S.QUEUED, SEND, 0, {"used": 0}),
    (Facts(S.PERMANENT_FAILURE, used=1), T.REQUEUE, LANE, BARE, {}, S.QUEUED, SEND, 0, {"used": 1}),
    (Facts(S.EXPIRED, expires_at=at(5)), T.REQUEUE, LANE, BARE, {}, S.QUEUED, SEND, 0, TOKEN),
    (DEAD_IN_DOUBT, T.REQUEUE_DUPLICATE, LANE, BARE, {}, S.AMBIGUOUS, SEND, 0,
     TOKEN | {"mandate": DUP, "doubt_since": at(-2 * DAY), "used": 2}),
    (AMBIGUOUS, T.REQUEUE_DUPLICATE, LANE, BARE, {}, S.AMBIGUOUS, SEND, 0, TOKEN | {"mandate": DUP, "trail": True}),
    (replace(AMBIGUOUS, has_remote_id=True), T.MARK_ACCEPTED, LANE, LOOKUP, {}, S.ACCEPTED, CHECK, 15, ID | TOKEN),
    (replace(AMBIGUOUS, has_remote_id=True), T.MARK_ACCEPTED, LANE, BOUNCES, {}, S.ACCEPTED, CHECK, 3 * DAY, ID),
    (replace(AMBIGUOUS, has_remote_id=True), T.MARK_ACCEPTED, LANE, BARE, {}, S.ACCEPTED, NONE, None, ID),
    (DEAD_IN_DOUBT, T.MARK_ACCEPTED, LANE, LOOKUP, {}, S.ACCEPTED, NONE, None, ID | TOKEN | DONE),
    (DEAD_IN_DOUBT, T.MARK_FAILED, LANE, LOOKUP, {}, S.PERMANENT_FAILURE, NONE, None, TOKEN | {"doubt_since": None}),
    (UNRESOLVED, T.RECHECK, LANE, LOOKUP, {}, S.PENDING, CHECK, 0,
     TOKEN | {"receipts_from": NOW, "accepted_at": at(-4 * DAY)}),
    (UNRESOLVED, T.REQUEUE, LANE, LOOKUP, {}, S.PENDING, CHECK, 0, TOKEN),
    (REPLAYING, T.TAKE_OVER, LANE, BARE, {}, S.SENDING, RESOLVE, 60,
     TOKEN | {"release_owner": True, "mandate": Mandate.REPLAY, "trail": False}),
    (CLAIMED, T.TAKE_OVER, LANE, BARE, {}, S.QUEUED, SEND, 60, TOKEN | {"release_owner": True}),
]  # fmt: skip


def _name(row: Row) -> str:
    return f"{row[0].state}-{row[1].name}-{row[5]}".lower()


@pytest.mark.parametrize("row", TABLE, ids=_name)
def test_each_way_through_the_table_ends_where_the_design_says(row: Row) -> None:
    facts, trigger, lane, capabilities, terms, state, step, seconds, further = row
    made = move(facts, trigger, lane, capabilities, **terms)
    assert (made.state, made.step) == (state, step)
    assert made.eligible_at == (None if seconds is None else at(seconds))
    assert {name: getattr(made, name) for name in further} == dict(further)


def test_the_expectation_fires_every_rule() -> None:
    fired = {move(f, t, lane, can, **terms).rule for f, t, lane, can, terms, *_ in TABLE}
    assert {rule.number for rule in RULES} - fired == set()


REFUSED: list[tuple[str, Facts, Trigger, Lane, Capabilities, Mapping[str, Any]]] = [
    ("a gate that is closed", replace(QUEUED, gate_open=False), T.CLAIM, LANE, BARE, {}),
    ("not due yet", replace(QUEUED, eligible_at=at(1)), T.CLAIM, LANE, BARE, {}),
    ("doubt without a mandate", replace(QUEUED, state=S.AMBIGUOUS, doubt_since=at(-1)), T.CLAIM, LANE, REPLAYS, {}),
    ("release by nobody", QUEUED, T.RELEASE, LANE, BARE, {}),
    ("begin without a claim", replace(CLAIMED, owned=False), T.BEGIN, LANE, BARE, {}),
    ("begin after the lease", replace(CLAIMED, eligible_at=NOW), T.BEGIN, LANE, BARE, {}),
    ("begin against policy", replace(CLAIMED, refusal="opted_out"), T.BEGIN, LANE, BARE, {}),
    ("begin after expiry", replace(CLAIMED, expires_at=NOW), T.BEGIN, LANE, BARE, {}),
    ("begin at a closed gate", replace(CLAIMED, gate_open=False), T.BEGIN, LANE, BARE, {}),
    ("begin of the accepted", replace(CLAIMED, accepted_at=at(-1)), T.BEGIN, LANE, BARE, {}),
    ("replay after the window", replace(DOUBTED, doubt_since=at(60 - DAY)), T.BEGIN, LANE, REPLAYS, {}),
    ("replay of other bytes", replace(DOUBTED, same_bytes=False), T.BEGIN, LANE, REPLAYS, {}),
    ("replay without a contract", DOUBTED, T.BEGIN, LANE, BARE, {}),
    ("an outcome by nobody", replace(SENDING, owned=False), T.ACCEPTED, LANE, BARE, {}),
    ("a lapse before the deadline", replace(SENDING, eligible_at=at(1)), T.LAPSE, LANE, BARE, {}),
    ("a find that is not unique", replace(AMBIGUOUS, id_free=False), T.FOUND, LANE, SEARCHES, {}),
    ("absence that proves nothing", AMBIGUOUS, T.ABSENT, LANE, SEARCHES, {}),
    ("absence before it settled", replace(AMBIGUOUS, lookup_settled=False), T.ABSENT, LANE, PROVES, {}),
    ("review before its time", AMBIGUOUS, T.REVIEW_PASSED, LANE, BARE, {}),
    ("a poll by nobody", replace(ACCEPTED, owned=False), T.RECEIPT_PENDING, LANE, LOOKUP, {}),
    ("a deadline before its time", ACCEPTED, T.RECEIPT_DEADLINE, LANE, LOOKUP, {}),
    ("a complaint of what was never accepted", DEAD, T.RECEIPT_COMPLAINT, LANE, FEED, {}),
    ("an unverified receipt", AMBIGUOUS, T.RECEIPT_BY_KEY, LANE, LOOKUP, {}),
    ("cancel while it is sent", SENDING, T.CANCEL, LANE, BARE, {}),
    ("cancel of doubt", DOUBTED, T.CANCEL, LANE, BARE, {}),
    ("a sweep of the claimed", replace(CLAIMED, expires_at=NOW), T.EXPIRY_SWEEP, LANE, BARE, {}),
    ("a sweep before expiry", replace(QUEUED, expires_at=at(1)), T.EXPIRY_SWEEP, LANE, BARE, {}),
    ("requeue of doubt", DEAD_IN_DOUBT, T.REQUEUE, LANE, BARE, {}),
    ("requeue of suppressed doubt", Facts(S.SUPPRESSED, doubt_since=at(-9)), T.REQUEUE, LANE, BARE, {}),
    ("requeue of the accepted", Facts(S.PERMANENT_FAILURE, accepted_at=at(-9)), T.REQUEUE, LANE, BARE, {}),
    ("requeue of the delivered", DELIVERED, T.REQUEUE, LANE, BARE, {}),
    ("requeue against policy", Facts(S.SUPPRESSED, refusal="manual"), T.REQUEUE, LANE, BARE, {}),
    ("requeue without a new expiry", Facts(S.EXPIRED, expires_at=at(-1)), T.REQUEUE, LANE, BARE, {}),
    ("requeue of erased content", replace(DEAD, content_present=False), T.REQUEUE, LANE, BARE, {}),
    ("a risk accepted where no doubt is", DEAD, T.REQUEUE_DUPLICATE, LANE, BARE, {}),
    ("a mark where no doubt is", DEAD, T.MARK_ACCEPTED, LANE, BARE, {}),
    ("take-over of what is settled", DEAD, T.TAKE_OVER, LANE, BARE, {}),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda c: c[0].replace(" ", "_"))
def test_what_the_table_does_not_allow_is_refused_naming_state_and_trigger(case: tuple[Any, ...]) -> None:
    _, facts, trigger, lane, capabilities, terms = case
    with pytest.raises(IllegalTransition) as refused:
        move(facts, trigger, lane, capabilities, **terms)
    assert str(facts.state) in str(refused.value)
    assert trigger.name in str(refused.value)


# -- who may do it, and with which work row -------------------------------------------------------------------------

OUTCOMES = {T.ACCEPTED, T.TEMPORARY_FAILURE, T.RATE_LIMITED, T.UNAVAILABLE, T.PERMANENT_FAILURE, T.INVALID, T.AMBIGUOUS}
PREPARING = {T.POLICY, T.EXPIRY, T.CANNOT_HEAL, T.CAN_HEAL, T.BEGIN}
LOOKING = {T.FOUND, T.ABSENT, T.CANNOT_TELL, T.LOOKUP_ERROR, T.REVIEW_PASSED}
POLLING = {
    T.RECEIPT_PENDING, T.RECEIPT_NOT_YET, T.RECEIPT_ERROR, T.RECEIPT_DELIVERED, T.RECEIPT_HARD, T.RECEIPT_FAILED,
    T.RECEIPT_GONE, T.RECEIPT_DEADLINE,
}  # fmt: skip
HELD_BY_ITS_OWNER = {T.RELEASE, T.RENEW}
BY_OTHERS = {
    T.CLAIM, T.LAPSE, T.RECEIPT_BY_KEY, T.LATE_ACCEPTED, T.LATE_FAILURE, T.CANCEL, T.SUPPRESSION_ADDED, T.ERASED,
    T.EXPIRY_SWEEP, T.REQUEUE, T.REQUEUE_DUPLICATE, T.MARK_ACCEPTED, T.MARK_FAILED, T.RECHECK, T.TAKE_OVER,
}  # fmt: skip


def rows(triggers: set[Trigger], *states: State) -> pytest.MarkDecorator:
    chosen = [r for r in TABLE if r[1] in triggers and (not states or r[0].state in states)]
    assert chosen
    return pytest.mark.parametrize("row", chosen, ids=_name)


def again(row: Row, **changed: Any) -> Transition:
    """The row's move with some facts changed."""
    facts, trigger, lane, capabilities, terms, *_ = row
    return move(replace(facts, **changed), trigger, lane, capabilities, **terms)


@rows(HELD_BY_ITS_OWNER | PREPARING | OUTCOMES | LOOKING)
def test_only_an_owner_may_do_what_owners_do(row: Row) -> None:
    with pytest.raises(IllegalTransition):
        again(row, owned=False)


@rows(POLLING, S.ACCEPTED, S.PENDING)
def test_a_receipt_that_no_owner_read_raises_the_token_and_one_from_nobody_is_refused(row: Row) -> None:
    assert again(row, owned=False, outsider=True).token_raised
    if row[0].step is CHECK:
        with pytest.raises(IllegalTransition):
            again(row, owned=False, outsider=False)


@rows(BY_OTHERS)
def test_whoever_is_not_the_owner_raises_the_token(row: Row) -> None:
    made = again(row)
    attempt_only = made.state is row[0].state and made.eligible_at == row[0].eligible_at
    assert made.token_raised or (attempt_only and row[1] in (T.LATE_FAILURE, T.LATE_ACCEPTED))


@rows(PREPARING | LOOKING | HELD_BY_ITS_OWNER | {T.CLAIM, T.CANCEL, T.SUPPRESSION_ADDED, T.ERASED, T.EXPIRY_SWEEP})
def test_a_work_row_of_another_step_is_refused(row: Row) -> None:
    for step in {None, *Step} - {row[0].step}:
        if row[0].state is S.AMBIGUOUS and row[1] in (T.CLAIM, T.RELEASE, T.RENEW) and step is not CHECK and step:
            continue  # both of its steps can be claimed
        with pytest.raises(IllegalTransition):
            again(row, step=step)


@rows({T.RECEIPT_PENDING, T.RECEIPT_NOT_YET, T.RECEIPT_ERROR, T.RECEIPT_GONE, T.RECEIPT_DEADLINE}, S.PENDING)
def test_a_poll_needs_a_check(row: Row) -> None:
    for step in (SEND, RESOLVE):
        with pytest.raises(IllegalTransition):
            again(row, step=step)


@rows({T.INSERT, T.LAPSE} | PREPARING | OUTCOMES | LOOKING)
def test_what_leads_to_a_send_or_judges_one_is_refused_once_it_was_accepted(row: Row) -> None:
    with pytest.raises(IllegalTransition):
        again(row, accepted_at=at(-1))


@rows({T.REQUEUE_DUPLICATE, T.MARK_ACCEPTED, T.MARK_FAILED})
def test_an_operator_settles_nothing_that_was_accepted(row: Row) -> None:
    with pytest.raises(IllegalTransition):
        again(row, accepted_at=at(-1))


@rows({T.ACCEPTED, T.FOUND, T.RECEIPT_BY_KEY, T.LATE_ACCEPTED, T.MARK_ACCEPTED})
def test_acceptance_clears_all_doubt_and_any_mandate(row: Row) -> None:
    if row[0].accepted_at is None:
        made = again(row, doubt_since=at(-600), mandate=Mandate.REPLAY)
        assert (made.state, made.doubt_since, made.mandate, made.accepted_at) == (S.ACCEPTED, None, None, NOW)


@rows(PREPARING | OUTCOMES | {T.RELEASE, T.LAPSE})
def test_the_row_is_free_again_after_all_but_begin(row: Row) -> None:
    assert again(row).release_owner is (row[1] is not T.BEGIN)


@rows({T.CANNOT_TELL})
def test_a_mandate_is_in_the_trail_under_its_name(row: Row) -> None:
    made = again(row)
    if made.mandate:
        assert (made.trail, made.reason) == (True, f"mandate_{made.mandate}")


# -- every (state, trigger) pair --------------------------------------------------------------------------------

WAITS = {S.QUEUED, S.TEMPORARY_FAILURE}
CLAIMABLE = {*WAITS, S.AMBIGUOUS}
TAKEN = {S.ACCEPTED, S.PENDING}
OVER = {S.DELIVERED, S.PERMANENT_FAILURE, S.SUPPRESSED, S.EXPIRED, S.CANCELLED, S.DEAD_LETTER, S.UNRESOLVED}
EVERY: set[State | None] = set(State)
LEGAL: dict[Trigger, set[State | None]] = {
    T.INSERT: {None},
    T.CLAIM: {*CLAIMABLE, *TAKEN},
    T.RELEASE: {*CLAIMABLE, *TAKEN},
    T.RENEW: {*CLAIMABLE, *TAKEN},
    T.POLICY: {*CLAIMABLE},
    T.EXPIRY: {*CLAIMABLE},
    T.CANNOT_HEAL: {*CLAIMABLE},
    T.CAN_HEAL: {*CLAIMABLE},
    T.BEGIN: {*CLAIMABLE},
    T.ACCEPTED: {S.SENDING},
    T.TEMPORARY_FAILURE: {S.SENDING},
    T.RATE_LIMITED: {S.SENDING},
    T.UNAVAILABLE: {S.SENDING},
    T.PERMANENT_FAILURE: {S.SENDING},
    T.INVALID: {S.SENDING},
    T.AMBIGUOUS: {S.SENDING},
    T.LAPSE: {S.SENDING},
    T.FOUND: {S.AMBIGUOUS},
    T.ABSENT: {S.AMBIGUOUS},
    T.CANNOT_TELL: {S.AMBIGUOUS},
    T.LOOKUP_ERROR: {S.AMBIGUOUS},
    T.REVIEW_PASSED: {S.AMBIGUOUS},
    T.RECEIPT_PENDING: {*TAKEN, *OVER},
    T.RECEIPT_NOT_YET: {*TAKEN, *OVER},
    T.RECEIPT_ERROR: {*TAKEN, *OVER},
    T.RECEIPT_DELIVERED: {*TAKEN, *OVER},
    T.RECEIPT_HARD: {*TAKEN, *OVER},
    T.RECEIPT_FAILED: {*TAKEN, *OVER},
    T.RECEIPT_GONE: {*TAKEN, *OVER},
    T.RECEIPT_DEADLINE: {*TAKEN},
    T.RECEIPT_COMPLAINT: EVERY,
    T.RECEIPT_BY_KEY: EVERY,
    T.LATE_ACCEPTED: EVERY,
    T.LATE_FAILURE: EVERY,
    T.LATE_OTHER: EVERY,
    T.CANCEL: {*WAITS},
    T.SUPPRESSION_ADDED: {*WAITS},
    T.ERASED: {*WAITS},
    T.EXPIRY_SWEEP: {*WAITS},
    T.REQUEUE: {S.DEAD_LETTER, S.PERMANENT_FAILURE, S.CANCELLED, S.EXPIRED, S.SUPPRESSED, S.UNRESOLVED},
    T.REQUEUE_DUPLICATE: {S.AMBIGUOUS, S.DEAD_LETTER},
    T.MARK_ACCEPTED: {S.AMBIGUOUS, S.DEAD_LETTER},
    T.MARK_FAILED: {S.AMBIGUOUS, S.DEAD_LETTER},
    T.RECHECK: {S.UNRESOLVED},
    T.TAKE_OVER: EVERY,
}
GRID = [
    {"step": step, "owned": owned, "doubt_since": doubt, "mandate": mandate, "accepted_at": accepted,
     "eligible_at": eligible, "expires_at": expires, "verified": True}
    for step, owned, doubt, mandate, accepted, eligible, expires in product(
        (None, *Step), (False, True), (None, at(-2 * DAY)), (None, Mandate.DUPLICATE), (None, at(-4 * DAY)),
        (at(-1), at(60)), (None, at(-1)),
    )
]  # fmt: skip


@pytest.mark.parametrize("trigger", Trigger)
def test_each_pair_of_state_and_trigger_is_legal_somehow_or_always_refused(trigger: Trigger) -> None:
    can = replace(PROVES, receipts=Receipts.LOOKUP)
    legal: set[State | None] = set()
    for state, known in product((None, *State), GRID):
        try:
            move(Facts(state, **known), trigger, LANE, can, on_time=T.PERMANENT_FAILURE)
        except IllegalTransition:
            continue
        legal.add(state)
    assert legal == LEGAL[trigger]


# -- the doors ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (Outcome(OutcomeKind.ACCEPTED), S.ACCEPTED),
        (Outcome(OutcomeKind.TEMPORARY_FAILURE), S.TEMPORARY_FAILURE),
        (Outcome(OutcomeKind.RATE_LIMITED), S.QUEUED),
        (Outcome(OutcomeKind.UNAVAILABLE), S.QUEUED),
        (Outcome(OutcomeKind.PERMANENT_FAILURE, "too_large"), S.PERMANENT_FAILURE),
        (Outcome(OutcomeKind.PERMANENT_FAILURE, "invalid_recipient"), S.SUPPRESSED),
        (Outcome(OutcomeKind.PERMANENT_FAILURE, "opted_out"), S.SUPPRESSED),
        (Outcome(OutcomeKind.AMBIGUOUS, "timeout"), S.AMBIGUOUS),
    ],
)
def test_an_outcome_in_time_is_judged_and_charged_as_its_kind_says(outcome: Outcome, state: State) -> None:
    made = after(SENDING, outcome, NOW, LANE, BARE)
    assert made.state is state
    assert made.charged is outcome.charged
    assert made.suppress == (outcome.reason if state is S.SUPPRESSED else "")


def test_the_wait_a_provider_asks_for_reaches_the_work_row() -> None:
    outcome = Outcome(OutcomeKind.RATE_LIMITED, "throttled", retry_after=120.0)
    assert after(SENDING, outcome, NOW, LANE, BARE).eligible_at == at(120)


@pytest.mark.parametrize("state", State)
def test_a_late_acceptance_is_never_lost(state: State) -> None:
    made = late(Facts(state, attempt_started=at(-5)), Outcome(OutcomeKind.ACCEPTED), NOW, LANE, LOOKUP)
    assert (made.state, made.step, made.accepted_at, made.token_raised) == (S.ACCEPTED, CHECK, NOW, True)


@pytest.mark.parametrize("kind", [k for k in OutcomeKind if k is not OutcomeKind.ACCEPTED])
def test_whatever_else_comes_late_never_moves_what_was_accepted(kind: OutcomeKind) -> None:
    assert late(ACCEPTED, Outcome(kind), NOW, LANE, LOOKUP).untouched


def test_a_late_failure_settles_the_only_doubt_as_if_it_had_come_in_time() -> None:
    lost = replace(AMBIGUOUS, attempt_charged=True)
    made = late(lost, Outcome(OutcomeKind.PERMANENT_FAILURE, "too_large"), NOW, LANE, BARE)
    assert (made.state, made.doubt_since, made.reason) == (S.PERMANENT_FAILURE, None, "too_large")
    assert late(AMBIGUOUS, Outcome(OutcomeKind.AMBIGUOUS), NOW, LANE, BARE).untouched


def test_doubt_as_old_as_the_attempt_itself_outlives_its_certain_failure() -> None:
    # a clock that stood still or stepped back between two attempts must not make the first one's doubt the second's
    same_instant = replace(SENDING, doubt_since=SENDING.attempt_started)
    made = after(same_instant, Outcome(OutcomeKind.TEMPORARY_FAILURE), NOW, LANE, BARE)
    assert (made.state, made.doubt_since) == (S.AMBIGUOUS, SENDING.attempt_started)


def test_a_look_up_that_proves_nothing_cannot_tell() -> None:
    taken = replace(AMBIGUOUS, id_free=False)
    assert looked_up(AMBIGUOUS, Found("r1"), NOW, LANE, PROVES).state is S.ACCEPTED
    assert looked_up(taken, Found("r1"), NOW, LANE, PROVES).held
    assert looked_up(AMBIGUOUS, Absent(), NOW, LANE, PROVES).state is S.TEMPORARY_FAILURE
    assert looked_up(AMBIGUOUS, Absent(), NOW, LANE, SEARCHES).held
    assert looked_up(AMBIGUOUS, CannotTell(), NOW, LANE, PROVES).held


@pytest.mark.parametrize(
    ("status", "state", "suppress"),
    [
        (ReceiptStatus.PENDING, S.PENDING, ""),
        (ReceiptStatus.DELIVERED, S.DELIVERED, ""),
        (ReceiptStatus.SOFT_FAILURE, S.PERMANENT_FAILURE, ""),
        (ReceiptStatus.FAILURE, S.PERMANENT_FAILURE, ""),
        (ReceiptStatus.HARD_BOUNCE, S.SUPPRESSED, "hard_bounce"),
        (ReceiptStatus.INVALID, S.SUPPRESSED, "invalid_recipient"),
        (ReceiptStatus.OPTED_OUT, S.SUPPRESSED, "opted_out"),
        (ReceiptStatus.COMPLAINED, S.ACCEPTED, "complained"),
        (ReceiptStatus.UNKNOWN_YET, S.ACCEPTED, ""),
        (ReceiptStatus.GONE, S.UNRESOLVED, ""),
    ],
)
def test_each_receipt_means_what_the_design_says(status: ReceiptStatus, state: State, suppress: str) -> None:
    made = receipt(ACCEPTED, Receipt(status, reason="raw_text"), NOW, LANE, LOOKUP)
    assert (made.state, made.suppress) == (state, suppress)


def test_the_documentation_has_one_line_for_every_rule_with_its_words() -> None:
    lines = markdown().splitlines()[2:]
    assert len(lines) == len(RULES)
    assert all(line.count(" | ") == 5 for line in lines)
    for rule, line in zip(RULES, lines, strict=True):
        assert all(word in line for word in (rule.source.text, rule.guard.text, rule.to.value, *rule.effects))


# -- properties -------------------------------------------------------------------------------------------------

INSTANTS = st.one_of(st.none(), st.floats(-6 * DAY, 2 * DAY).map(at))
FLAGS = ("owned", "gate_open", "same_bytes", "outsider", "id_free", "lookup_settled", "held", "has_remote_id",
         "verified", "same_id", "content_present", "attempt_charged")  # fmt: skip
TIMES = ("due_at", "eligible_at", "expires_at", "first_tried_at", "doubt_since", "accepted_at", "attempt_started",
         "other_doubt", "last_receipt", "receipts_from")  # fmt: skip
ANYTHING = st.builds(
    Facts, state=st.sampled_from([None, *State]), step=st.sampled_from([None, *Step]), used=st.integers(0, 12),
    tries=st.integers(0, 10_000), mandate=st.sampled_from([None, *Mandate]),
    refusal=st.sampled_from(["", "opted_out"]), **dict.fromkeys(FLAGS, st.booleans()), **dict.fromkeys(TIMES, INSTANTS),
)  # fmt: skip
LANES = st.sampled_from([LANE, HOLDS, RESENDS])
CAPABLE = st.sampled_from([
    replace(can, receipts=receipts) for can in (BARE, SEARCHES, PROVES, REPLAYS) for receipts in Receipts
])  # fmt: skip
JITTER = st.floats(0, 1, exclude_max=True)
CERTAIN = st.sampled_from([
    T.TEMPORARY_FAILURE, T.RATE_LIMITED, T.UNAVAILABLE, T.PERMANENT_FAILURE, T.INVALID,
])  # fmt: skip
WAITS_ASKED = st.one_of(st.none(), st.floats())


@settings(max_examples=1500, deadline=None)
@given(ANYTHING, st.sampled_from(Trigger), LANES, CAPABLE, JITTER, WAITS_ASKED, CERTAIN)
def test_no_trigger_breaks_an_invariant(
    facts: Facts, trigger: Trigger, lane: Lane, can: Capabilities, jitter: float, wait: float | None, on_time: Trigger
) -> None:
    try:
        made = move(facts, trigger, lane, can, jitter=jitter, retry_after=wait, on_time=on_time)
    except IllegalTransition:
        return
    assert (made.step is None) == made.settled
    if made.step is None:
        assert made.eligible_at is None or facts.eligible_at is not None
    if facts.accepted_at is not None:
        assert made.accepted_at == facts.accepted_at
        if not made.untouched and trigger is not T.TAKE_OVER:
            assert made.step is not SEND
            assert made.state not in (S.QUEUED, S.SENDING, S.TEMPORARY_FAILURE)
    schedules = trigger not in (T.INSERT, T.RELEASE, T.TAKE_OVER) and not made.untouched
    if schedules and made.step is SEND:
        assert made.eligible_at is not None
        assert NOW <= made.eligible_at <= at(max(lane.give_up_after, lane.backoff.cap))
        assert made.doubt_since is None or made.mandate is not None
    if made.state is S.SENDING and trigger is T.BEGIN:
        assert made.doubt_since is None or facts.mandate is not None
    if trigger in (T.TEMPORARY_FAILURE, T.RATE_LIMITED, T.UNAVAILABLE, T.PERMANENT_FAILURE, T.INVALID):
        started = facts.attempt_started
        if facts.doubt_since is not None and (started is None or facts.doubt_since < started):
            assert made.doubt_since == facts.doubt_since
            assert made.step is not SEND
    assert made.used <= facts.used + 1


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_whatever_transports_answer_attempts_are_bounded_and_it_comes_to_rest(data: st.DataObject) -> None:
    lane = replace(data.draw(LANES), give_up_after=3600.0, ambiguous_review_after=1800.0)
    can, jitter = data.draw(CAPABLE), data.draw(st.floats(0.2, 0.9))
    answers = data.draw(st.lists(st.sampled_from(
        [T.TEMPORARY_FAILURE, T.RATE_LIMITED, T.UNAVAILABLE, T.AMBIGUOUS, T.LAPSE, T.CAN_HEAL]
    ), min_size=1, max_size=6))  # fmt: skip
    findings = data.draw(st.lists(st.sampled_from([T.ABSENT, T.CANNOT_TELL, T.LOOKUP_ERROR]), min_size=1, max_size=4))
    facts, now, attempts = Facts(S.QUEUED, SEND, due_at=NOW, eligible_at=NOW), NOW, 0

    def step(trigger: Trigger, started: datetime | None = None) -> Facts:
        known = replace(facts, attempt_started=started)
        made = decide(known, trigger, now, lane, can, jitter=jitter)
        return replace(
            facts, state=made.state, step=made.step, eligible_at=made.eligible_at, used=made.used, tries=made.tries,
            doubt_since=made.doubt_since, mandate=made.mandate, first_tried_at=made.first_tried_at, held=made.held,
            owned=not made.release_owner,
        )  # fmt: skip

    for turn in range(10_000):  # an hour until it gives up, in waits of about a second at the shortest
        if facts.step is None:
            break
        assert facts.eligible_at is not None
        now = max(now, facts.eligible_at)
        facts = step(T.CLAIM)
        if facts.step is RESOLVE:
            finding = findings[turn % len(findings)]
            absent_unproved = finding is T.ABSENT and not can.absence_proves_unsent
            facts = step(T.CANNOT_TELL if absent_unproved else finding)
            continue
        answer = answers[turn % len(answers)]
        if answer is T.CAN_HEAL:
            facts = step(T.CAN_HEAL)
            continue
        try:
            facts = step(T.BEGIN)
        except IllegalTransition:  # the replay window closed while it waited
            facts = step(T.CANNOT_HEAL)
            continue
        attempts, started = attempts + (answer not in (T.RATE_LIMITED, T.UNAVAILABLE)), now
        assert facts.eligible_at is not None
        now = facts.eligible_at if answer is T.LAPSE else now + timedelta(seconds=1)
        facts = step(answer, started)
    assert facts.state is S.DEAD_LETTER
    assert attempts <= lane.max_attempts


@given(st.integers(-5, 10**9), JITTER)
def test_a_wait_is_a_second_at_least_the_cap_at_most_and_never_overflows(n: int, jitter: float) -> None:
    assert 1.0 <= backoff(Backoff(15.0, 960.0), n, jitter) <= 960.0


def test_waits_double_from_the_base_to_the_cap_with_full_jitter() -> None:
    policy = Backoff(15.0, 960.0)
    assert [backoff(policy, n, 0.5) for n in range(8)] == [7.5, 15, 30, 60, 120, 240, 480, 480]
    assert backoff(policy, 3, 0.0) == 1.0
    assert backoff(Backoff(0.1, 0.2), 5, 0.0) == 0.2  # a lane configured below a second stays there
