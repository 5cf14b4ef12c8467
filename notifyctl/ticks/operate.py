"""A person's decisions about deliveries, judged by the lifecycle; what it refuses is reported with the way out."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import TypeVar

from notifyctl import lifecycle, units
from notifyctl.config import Config
from notifyctl.keys import Keys
from notifyctl.ledger import erase, operate
from notifyctl.ledger.database import Ledger, Tx
from notifyctl.ledger.operate import Action, Candidate, Done, Refused
from notifyctl.lifecycle import IllegalTransition, Transition, Trigger
from notifyctl.model import Capabilities, ConsentMode, Lane, State
from notifyctl.policy import check
from notifyctl.transports.registry import open_transport

T = TypeVar("T")

PAGE = 500  # deliveries per transaction
_DOUBTFUL = frozenset({State.AMBIGUOUS, State.DEAD_LETTER, State.SENDING})  # their doubt can still be settled

_NOTHING = Capabilities(channels=frozenset())


@dataclass(slots=True)
class Outcome:
    """What became of all pages, in the order asked for."""

    moved: list[int] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)

    def add(self, done: Done) -> None:
        """Take a page's outcome."""
        self.moved += done.moved
        self.refused += done.refused


@dataclass(slots=True)
class Erased:
    """What an erasure did: addresses and deliveries emptied, sends withdrawn, and what is being sent just now."""

    addresses: int = 0
    emptied: int = 0
    withdrawn: int = 0
    left: int = 0


@dataclass(slots=True)
class Operator:
    """One person's command: what it is about, and the policies it is judged by."""

    config: Config
    ledger: Ledger
    keys: Keys
    reset_attempts: bool = False
    dry_run: bool = False

    def requeue(self, wanted: Sequence[int], action: Action, *, accept_duplicate: bool = False) -> Outcome:
        """Back to the queue; what is unresolved back to its receipt check. In doubt only with `accept_duplicate`."""

        def judge(candidate: Candidate, now: datetime) -> Transition | Refused:
            if candidate.state is not State.UNRESOLVED and candidate.facts.accepted_at is not None:
                return _refused(candidate, "already_accepted")
            if candidate.state is State.SENDING:
                return _refused(candidate, "sending")
            if _in_doubt(candidate):
                if not accept_duplicate or candidate.state not in _DOUBTFUL:
                    return _doubted(candidate)
                return self._decide(candidate, Trigger.REQUEUE_DUPLICATE, now)
            facts = replace(
                candidate.facts, refusal=self._refusal(candidate, now), content_present=self._content(candidate),
                expires_at=action.expires_at or candidate.facts.expires_at,
            )  # fmt: skip
            return self._decide(replace(candidate, facts=facts), Trigger.REQUEUE, now)

        return self._paged(wanted, lambda tx, page: operate.move(tx, page, judge, action, dry_run=self.dry_run))

    def mark(self, wanted: Sequence[int], action: Action, *, accepted: bool) -> Outcome:
        """Settle doubt by hand, as a person has found out."""
        trigger = Trigger.MARK_ACCEPTED if accepted else Trigger.MARK_FAILED

        def judge(candidate: Candidate, now: datetime) -> Transition | Refused:
            if candidate.facts.accepted_at is not None or not _in_doubt(candidate):
                return _refused(candidate, "not_in_doubt")
            if candidate.state not in _DOUBTFUL:
                return _doubted(candidate)
            facts = replace(candidate.facts, has_remote_id=action.remote_id is not None)
            return self._decide(replace(candidate, facts=facts), trigger, now)

        return self._paged(wanted, lambda tx, page: operate.move(tx, page, judge, action, dry_run=self.dry_run))

    def send_anew(self, wanted: Sequence[int], action: Action) -> Outcome:
        """One new, linked delivery for each that has been accepted or is at rest."""

        def judge(candidate: Candidate, now: datetime) -> Refused | None:
            facts = candidate.facts
            if facts.accepted_at is None and _in_doubt(candidate) and candidate.state in _DOUBTFUL:
                return _doubted(candidate)
            if facts.accepted_at is None and facts.step is not None:
                return _refused(candidate, "not_sent_yet")
            if not self._content(candidate):
                return _refused(candidate, "content_erased")
            refusal = self._refusal(candidate, now)
            if refusal:
                return _refused(candidate, refusal)
            expires_at = action.expires_at or facts.expires_at
            return _refused(candidate, "expired") if expires_at is not None and expires_at <= now else None

        return self._paged(wanted, lambda tx, page: operate.send_anew(tx, page, judge, action, dry_run=self.dry_run))

    def cancel(self, wanted: Sequence[int], action: Action) -> Outcome:
        """Withdraw what has not begun; a run that has claimed it finds its token gone."""

        def judge(candidate: Candidate, now: datetime) -> Transition | Refused:
            try:
                return self._transition(candidate, Trigger.CANCEL, now)
            except IllegalTransition:
                return _uncancellable(candidate)

        return self._paged(wanted, lambda tx, page: operate.move(tx, page, judge, action, dry_run=self.dry_run))

    def erase(self, recipient: str, action: Action) -> Erased:
        """Withdraw what has not begun, and empty all that was said to a recipient and where. What is being sent at this
        moment is left whole, and counted: erase again once it has ended."""
        erased = Erased()

        def judge(candidate: Candidate, now: datetime) -> Transition | Refused:
            try:
                return self._transition(candidate, Trigger.ERASED, now)
            except IllegalTransition:
                return _refused(candidate, candidate.state)

        def work(tx: Tx, wanted: Sequence[int]) -> tuple[int, int, int]:
            done = operate.move(tx, wanted, judge, action, dry_run=self.dry_run)
            left = sum(one.state is State.SENDING for one in done.refused)
            if self.dry_run:
                return len(done.moved), len(wanted) - left, left
            return len(done.moved), erase.empty(tx, wanted, actor=action.actor, note=action.note), left

        run = self.ledger.read if self.dry_run else self.ledger.transact
        # First, so that nothing goes to an address that is gone: begin looks for it under its lock.
        erased.addresses = run(lambda tx: erase.addresses(tx, recipient, dry_run=self.dry_run))
        wanted = self.ledger.read(lambda tx: erase.page(tx, recipient, 0, PAGE))
        while wanted:
            withdrawn, emptied, left = run(partial(_call, work, wanted))
            erased.withdrawn, erased.emptied, erased.left = (
                erased.withdrawn + withdrawn, erased.emptied + emptied, erased.left + left,
            )  # fmt: skip
            wanted = self.ledger.read(partial(erase.page, recipient=recipient, after=wanted[-1], size=PAGE))
        return erased

    # -- judging ------------------------------------------------------------------------------------------------

    def _decide(self, candidate: Candidate, trigger: Trigger, now: datetime) -> Transition | Refused:
        try:
            return self._transition(candidate, trigger, now)
        except IllegalTransition:
            facts = candidate.facts
            reason = "" if facts.content_present else "content_erased"
            expired = facts.expires_at is not None and facts.expires_at <= now
            return _refused(candidate, reason or facts.refusal or ("expired" if expired else candidate.state))

    def _transition(self, candidate: Candidate, trigger: Trigger, now: datetime) -> Transition:
        lane = self.config.lanes.get(candidate.lane) or Lane(candidate.lane, candidate.channel, "")
        # Only what is marked with its remote id goes on to receipts, so only then the transport matters.
        capabilities = self._proves(candidate.transport) if candidate.facts.has_remote_id else _NOTHING
        return lifecycle.decide(candidate.facts, trigger, now, lane, capabilities, reset_attempts=self.reset_attempts)

    def _proves(self, transport: str) -> Capabilities:
        """How the transport speaks of receipts; one that is not configured any more says nothing."""
        settings = self.config.transports.get(transport)
        if settings is None:
            return _NOTHING
        opened = open_transport(settings)
        try:
            return opened.capabilities
        finally:
            opened.close()

    def _refusal(self, candidate: Candidate, now: datetime) -> str:
        topic = self.config.topics.get(candidate.topic) if candidate.topic else None
        refusal = check(
            consent_mode=topic.consent if topic else ConsentMode.NONE, consent=candidate.consent,
            suppression=candidate.suppression, expires_at=None, now=now,
        )  # fmt: skip
        return refusal.reason if refusal else ""

    def _content(self, candidate: Candidate) -> bool:
        """Whether what was to be said, and to whom, is still there: an erasure leaves nothing but its digest."""
        c = candidate
        if c.reason == "recipient_erased" or (c.destination is None and c.address == ""):
            return False
        if c.variables:
            return True
        if c.content_digest is None:
            return not c.sensitive
        return self.keys.content(c.variables, c.attachments, c.destination) == c.content_digest

    def _paged(self, wanted: Sequence[int], work: Callable[[Tx, Sequence[int]], Done]) -> Outcome:
        outcome = Outcome()
        run = self.ledger.read if self.dry_run else self.ledger.transact
        for page in _pages(sorted(set(wanted))):
            outcome.add(run(partial(_call, work, page)))
        return outcome


def _call(work: Callable[[Tx, Sequence[int]], T], page: Sequence[int], tx: Tx) -> T:
    return work(tx, page)


def _pages(wanted: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(wanted), PAGE):
        yield wanted[start : start + PAGE]


def _in_doubt(candidate: Candidate) -> bool:
    return candidate.state is State.AMBIGUOUS or candidate.facts.doubt_since is not None


# -- the way out --------------------------------------------------------------------------------------------------

_ACCEPTED = "a provider took it at {accepted}{receipt}; "
_ANEW = (
    "it is never sent twice under one event; to send it again as a new one: "
    "notifyctl requeue {id} --as-new-event --reason TEXT"
)
_REFUSALS = {
    "already_accepted": _ACCEPTED + _ANEW,
    "in_doubt": (
        "it may have been accepted; look, then: notifyctl requeue {id} --reason TEXT with --mark accepted, "
        "--mark failed, or --accept-duplicate"
    ),
    "not_in_doubt": "only what may have been accepted is settled by hand; requeue it without --mark",
    "not_sent_yet": "it is still to be sent; when: notifyctl inspect delivery {id}",
    "content_erased": "what it said has been erased; enqueue a new event",
    "expired": "give it a new expiry: --expires-in DURATION",
    "consent_missing": "first: notifyctl consent grant --recipient {recipient} --channel {channel} --topic {topic}",
    "consent_revoked": "first: notifyctl consent grant --recipient {recipient} --channel {channel} --topic {topic}",
    "queued": "it goes by itself when it is due; why not yet: notifyctl inspect delivery {id}",
    "temporary_failure": "it is tried again by itself; when: notifyctl inspect delivery {id}",
    "sending": "an attempt is open; its outcome, or its deadline, decides: notifyctl inspect delivery {id}",
}
_SUPPRESSED = "first: notifyctl suppression lift --recipient {recipient} --channel {channel} --reason TEXT"


def _doubted(candidate: Candidate) -> Refused:
    """In doubt; what ended otherwise meanwhile (suppressed, say) can neither be replayed nor settled any more."""
    if candidate.state in _DOUBTFUL:
        return _refused(candidate, "in_doubt")
    return Refused(candidate.id, candidate.state, "in_doubt", _ANEW.format(id=candidate.id))


def _refused(candidate: Candidate, reason: str) -> Refused:
    hint = _REFUSALS.get(reason, _SUPPRESSED).format(
        id=candidate.id, recipient=shlex.quote(candidate.recipient_id), channel=candidate.channel,
        topic=shlex.quote(candidate.topic or ""), accepted=_at(candidate),
        receipt=f" and then said {candidate.receipt}" if candidate.receipt else "",
    )  # fmt: skip
    return Refused(candidate.id, candidate.state, reason, hint)


def _at(candidate: Candidate) -> str:
    accepted = candidate.facts.accepted_at
    return units.iso(accepted) if accepted else "an unknown time"


_PAST = {
    State.SENDING: "an attempt is open: it is beyond recall",
    State.AMBIGUOUS: (
        "it may have been accepted; what was found out: notifyctl requeue {id} --reason TEXT --mark accepted or failed"
    ),
    State.CANCELLED: "it is cancelled already",
}


def _uncancellable(candidate: Candidate) -> Refused:
    accepted = candidate.facts.accepted_at is not None
    hint = "the provider has it: it is beyond recall" if accepted else _PAST.get(candidate.state, "it is over already")
    reason = "already_accepted" if accepted else candidate.state.value
    return Refused(candidate.id, candidate.state, reason, hint.format(id=candidate.id))
