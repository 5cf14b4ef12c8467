"""From what was said of a delivery to what becomes of it: receipts in, moves out. Pure; `lifecycle` decides.

Receipts come twice, late, out of order, before the acceptance was recorded, and for each part of a message of its own.
One that is kept already changes nothing, except that the owner of a check always ends it. A message of several parts
is delivered once all of them are, and failed as soon as one is: the last word of each part counts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from notifyctl import lifecycle
from notifyctl.ledger.receipts import Known
from notifyctl.ledger.record import Move
from notifyctl.lifecycle import Facts, IllegalTransition, Transition, Trigger
from notifyctl.model import Capabilities, Lane, Receipt, ReceiptStatus, State, Step

S = ReceiptStatus
SAYS_NOTHING = frozenset({S.UNKNOWN_YET})
HARD = (S.INVALID, S.HARD_BOUNCE, S.OPTED_OUT)  # the first of these that a part has is what the message has
FAILED = (S.FAILURE, S.SOFT_FAILURE)
_NO_NEWS = frozenset({S.UNKNOWN_YET, S.COMPLAINED})
TERMINAL = frozenset({S.DELIVERED, *HARD, *FAILED})
_STATE = {S.DELIVERED: State.DELIVERED, **dict.fromkeys(HARD, State.SUPPRESSED),
          **dict.fromkeys(FAILED, State.PERMANENT_FAILURE)}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Said:
    """All that a turn has to say of one delivery.

    `ends`: what it means to the check's owner if no receipt ended the check (not yet, an error, the deadline).
    `wait`: for how many seconds the provider asks to be left alone.
    """

    receipts: tuple[Receipt, ...] = ()
    ends: Trigger = Trigger.RECEIPT_NOT_YET
    wait: float | None = None


@dataclass(slots=True)
class Heard:
    """What becomes of one delivery: its moves in order, and what is to be noted beside them."""

    moves: list[Move] = field(default_factory=list)
    accepted: tuple[int, str | None] | None = None  # the attempt that a receipt proved accepted, and its remote id
    complained: int = 0
    state: State | None = None  # where it stands afterwards
    at_rest: bool = False


def fresh(known: Known, said: Said) -> list[Receipt]:
    """Those of the receipts that are new and say something, each once."""
    seen = {_identity(one) for one in known.heard}
    new = []
    for one in said.receipts:
        if one.status not in SAYS_NOTHING and _identity(one) not in seen:
            seen.add(_identity(one))
            new.append(one)
    return new


def hear(known: Known, said: Said, now: datetime, lane: Lane, capabilities: Capabilities, soft_run: int = 0) -> Heard:
    """What these receipts make of the delivery. `soft_run`: failures in a row at its address, this one's included."""
    hearer = _Hearer(known, now, lane, capabilities)
    new = fresh(known, said)
    if new and hearer.facts.accepted_at is None:
        hearer.accept(new[0])
    if lane.receipt.soft_bounces and soft_run >= lane.receipt.soft_bounces:
        hearer.note = f"soft_bounces:{soft_run}"
    told = new
    if hearer.facts.owned:  # whoever looked something up must conclude from it, also when it is no news
        told = [one for one in dict.fromkeys(said.receipts) if one in new or one.status not in _NO_NEWS]
    if known.parts > 1:
        hearer.parts([one for one in told if one.status is not S.COMPLAINED])
        told = [one for one in told if one.status is S.COMPLAINED]
    for one in told:
        hearer.one(one)
    hearer.end(said.ends, said.wait)
    hearer.heard.state, hearer.heard.at_rest = hearer.facts.state, hearer.facts.step is None
    return hearer.heard


class _Hearer:
    """One delivery being judged, step by step; each step sees what the one before it made."""

    def __init__(self, known: Known, now: datetime, lane: Lane, capabilities: Capabilities) -> None:
        self.known = known
        self.facts = replace(known.facts, last_receipt=_newest(known.heard))
        self.token = known.token
        self.reason = known.reason
        self.policy = (now, lane, capabilities)
        self.note = ""
        self.heard = Heard()

    def accept(self, said: Receipt) -> None:
        """The provider speaks of a message whose acceptance is not on record: it was accepted."""
        now, lane, capabilities = self.policy
        remote_id = said.remote_id or None
        done = self._step(
            lambda facts: lifecycle.decide(facts, Trigger.RECEIPT_BY_KEY, now, lane, capabilities, jitter=_jitter()),
            attempt=self.known.doubtful, remote_id=remote_id,
        )  # fmt: skip
        if done and self.known.doubtful is not None:
            self.heard.accepted = (self.known.doubtful, remote_id)

    def one(self, said: Receipt) -> None:
        """A receipt of a message in one part, or a complaint: that suppresses and leaves the state as it is."""
        self.heard.complained += said.status is S.COMPLAINED
        if self._hear(said) and said.status in TERMINAL and said.provider_time is not None:
            newest = self.facts.last_receipt
            self.facts = replace(self.facts, last_receipt=max(newest or said.provider_time, said.provider_time))

    def parts(self, told: Sequence[Receipt]) -> None:
        """Receipts of a message in several parts: they are one receipt once each part's last word is known."""
        latest: dict[int, Receipt] = {}
        for one in self.known.heard:
            if one.status is not S.COMPLAINED:
                latest[one.part] = _later(latest.get(one.part), one)
        changed = None
        for one in told:
            before = latest.get(one.part)
            latest[one.part] = _later(before, one)
            if latest[one.part] is one:
                changed = (one, before)
        if changed is None and not (self.facts.owned and latest):
            return
        whole = combined(latest, self.known.parts)
        if self.facts.step is None and (changed is None or _STATE.get(whole.status) is self.facts.state):
            return
        if changed is not None:
            newest, before = changed
            whole = replace(whole, provider_time=newest.provider_time)
            terminal_before = before is not None and before.status in TERMINAL
            self.facts = replace(
                self.facts, last_receipt=before.provider_time if before is not None and terminal_before else None
            )
        if whole.status is S.UNKNOWN_YET:
            return
        self._hear(whole)

    def end(self, ends: Trigger, wait: float | None) -> None:
        """The owner of a check lets go of it, whatever it has learnt."""
        if self.facts.owned and self.facts.step is Step.CHECK:
            now, lane, capabilities = self.policy
            self._step(
                lambda facts: lifecycle.decide(
                    facts, ends, now, lane, capabilities, jitter=_jitter(), reason=self.reason, retry_after=wait
                )
            )

    def _hear(self, said: Receipt) -> bool:
        now, lane, capabilities = self.policy
        note = ""
        if self.note and said.status is S.SOFT_FAILURE:  # the last of a run: as if it had been a hard one
            said, note = replace(said, status=S.HARD_BOUNCE), self.note
        return self._step(
            lambda facts: lifecycle.receipt(facts, said, now, lane, capabilities, jitter=_jitter()), note=note
        )

    def _step(
        self, decide: Callable[[Facts], Transition], *, attempt: int | None = None, remote_id: str | None = None,
        note: str = "",
    ) -> bool:  # fmt: skip
        """Make one move; False where the table has none for this: the receipt is kept, and that is all."""
        facts = self.facts
        try:
            to = decide(facts)
        except IllegalTransition:
            return False
        assert facts.state is not None
        self.token += 1 if to.token_raised else 0
        if to.untouched and not to.trail and not to.suppress:
            return True
        known = self.known
        self.heard.moves.append(
            Move(known.id, self.token, facts.state, to, attempt=attempt, fingerprint=known.fingerprint,
                 remote_id=remote_id or known.remote_id, note=note)
        )  # fmt: skip
        if not to.untouched:
            owned = facts.owned and not to.release_owner
            self.reason = to.reason
            self.facts = replace(
                facts, state=to.state, step=to.step, owned=owned, outsider=not owned, used=to.used, tries=to.tries,
                eligible_at=to.eligible_at, first_tried_at=to.first_tried_at, doubt_since=to.doubt_since,
                accepted_at=to.accepted_at, mandate=to.mandate, receipts_from=to.receipts_from,
            )  # fmt: skip
        return True


def combined(latest: dict[int, Receipt], parts: int) -> Receipt:
    """What is to be said of a whole message whose parts' last words are these."""
    by_status = {one.status: one for one in latest.values()}
    for status in (*HARD, *FAILED):
        if status in by_status:
            return by_status[status]
    if len(latest) == parts and set(by_status) == {S.DELIVERED}:
        return by_status[S.DELIVERED]
    if len(latest) == parts and set(by_status) <= {S.DELIVERED, S.GONE}:
        return by_status[S.GONE]
    if not latest:
        return Receipt(S.UNKNOWN_YET)
    return replace(by_status.get(S.PENDING) or next(iter(latest.values())), status=S.PENDING)


def _later(before: Receipt | None, one: Receipt) -> Receipt:
    """The last word of a part: what is terminal outlasts what is not; of two terminal ones the newer counts."""
    if before is None or before.status not in TERMINAL:
        return one
    if one.status not in TERMINAL or one.provider_time is None:
        return before
    return one if before.provider_time is None or one.provider_time > before.provider_time else before


def _newest(heard: Sequence[Receipt]) -> datetime | None:
    """Provider time of the newest terminal receipt so far: only a newer one revises a settled delivery."""
    return max((one.provider_time for one in heard if one.status in TERMINAL and one.provider_time), default=None)


def _identity(one: Receipt) -> tuple[object, ...]:
    return one.part, one.status, one.remote_id, one.provider_time, one.reason, one.code


def _jitter() -> float:
    return random.random()  # noqa: S311 - spreads checks, protects nothing
