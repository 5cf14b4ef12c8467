"""The world outside the ledger: time as it passes, and providers that remember what they really took.

Nothing here is told by the ledger. A provider's evidence is truthful: what it calls absent it never took, unless it is
asked before its settle delay is over.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from notifyctl.clock import Deadline
from notifyctl.model import (
    Absent,
    CannotTell,
    Capabilities,
    Channel,
    Finding,
    Found,
    Mail,
    Message,
    Outcome,
    OutcomeKind,
    Receipt,
    Receipts,
    ReceiptStatus,
    Request,
    Scope,
    Search,
)
from notifyctl.settings import TransportSettings
from notifyctl.transports.base import Transport
from notifyctl.transports.registry import KINDS, Kind

START = datetime(2031, 3, 3, 9, 0, tzinfo=UTC)
DEADLINE = 30.0  # seconds, of every exchange
WINDOW = 600.0  # seconds a replay is honoured
SETTLE = 20.0

_MAIL = Capabilities(channels=frozenset({Channel.EMAIL}), raw_mime=True)
PROFILES: dict[str, Capabilities] = {
    "plain": _MAIL,
    "bounces": replace(_MAIL, receipts=Receipts.BOUNCES_ONLY),
    "replay": replace(_MAIL, replay_window=WINDOW, receipts=Receipts.LOOKUP),
    "search": replace(
        _MAIL, search=Search.OWN_KEY, settle_delay=SETTLE, absence_proves_unsent=True, receipts=Receipts.LOOKUP
    ),
    "weak": replace(_MAIL, search=Search.OWN_KEY, settle_delay=SETTLE, receipts=Receipts.FEED),
    "both": replace(
        _MAIL, search=Search.OWN_KEY, settle_delay=SETTLE, replay_window=WINDOW, receipts=Receipts.LOOKUP,
        receipt_window=3000.0,
    ),
    "quiet": replace(_MAIL, search=Search.OWN_KEY, settle_delay=SETTLE, absence_proves_unsent=True),
    "mailbox": replace(_MAIL, search=Search.OWN_KEY, settle_delay=SETTLE, receipts=Receipts.BOUNCES_ONLY),
}  # fmt: skip

# What a provider may answer, and whether it takes the message when it answers so.
REPLIES: dict[str, tuple[bool, Outcome]] = {
    "accepted": (True, Outcome(OutcomeKind.ACCEPTED)),
    "temporary": (False, Outcome(OutcomeKind.TEMPORARY_FAILURE, "busy")),
    "temporary_wait": (False, Outcome(OutcomeKind.TEMPORARY_FAILURE, "busy", retry_after=90.0)),
    "permanent": (False, Outcome(OutcomeKind.PERMANENT_FAILURE, "rejected")),
    "invalid": (False, Outcome(OutcomeKind.PERMANENT_FAILURE, "invalid_recipient")),
    "opted_out": (False, Outcome(OutcomeKind.PERMANENT_FAILURE, "opted_out")),
    "slow_down": (False, Outcome(OutcomeKind.RATE_LIMITED, "rate", retry_after=40.0, scope=Scope.ACCOUNT)),
    "slow_him": (False, Outcome(OutcomeKind.RATE_LIMITED, "rate", scope=Scope.DESTINATION)),
    "down": (False, Outcome(OutcomeKind.UNAVAILABLE, "refused", scope=Scope.ACCOUNT)),
    "lost_taken": (True, Outcome(OutcomeKind.AMBIGUOUS, "reply_lost")),
    "lost": (False, Outcome(OutcomeKind.AMBIGUOUS, "reply_lost")),
}
TOO_LATE = Outcome(OutcomeKind.UNAVAILABLE, "deadline", scope=Scope.ACCOUNT)  # its worker wrote nothing any more


@dataclass
class Clock:
    """Time as it passes, and what a host's wall clock says of it."""

    passed: float = 0.0
    skew: float = 0.0  # of the wall clock

    def now(self) -> datetime:
        """True time."""
        return START + timedelta(seconds=self.passed)

    def wall(self) -> datetime:
        """What the host believes."""
        return START + timedelta(seconds=self.passed + self.skew)


@dataclass(frozen=True)
class Copy:
    """One message that a provider really took."""

    remote_id: str
    digest: str
    transport: str
    at: float
    visible: float  # when a look-up can see it
    attempt: tuple[int, int]


class Violation(AssertionError):
    """An invariant does not hold."""


@dataclass
class Providers:
    """All accounts; `copies` by wire key, whichever account took them."""

    clock: Clock
    copies: dict[str, list[Copy]] = field(default_factory=dict)
    forgiven: dict[str, int] = field(default_factory=dict)  # copies that an operator said were none
    seen: dict[tuple[str, str], tuple[float, str, str]] = field(default_factory=dict)
    last_number: int = 0

    def take(
        self, transport: Scripted, request: Request, digest: str, attempt: tuple[int, int], mandate: str | None
    ) -> str | None:
        """Take one message. Returns its id; None where the key is known with other bytes.

        A second copy under one key is a violation, unless somebody decided to accept it.
        """
        window, at = transport.capabilities.replay_window, self.clock.passed
        known = self.seen.get((transport.settings.name, request.key))
        if window and known and at - known[0] < window:
            if known[1] != digest:
                if mandate == "replay":
                    raise Violation("a replay is not byte-identical")
                return None
            return known[2]
        copies = self.copies.setdefault(request.key, [])
        unflagged = len(copies) - self.forgiven.get(request.key, 0)
        if unflagged and mandate != "duplicate":
            raise Violation(f"a second copy of {attempt} that nobody allowed (mandate {mandate})")
        self.last_number += 1
        visible = at + (transport.capabilities.settle_delay if self.last_number % 2 else 0.0)
        copy = Copy(f"m{self.last_number}", digest, transport.settings.name, at, visible, attempt)
        copies.append(copy)
        self.seen[transport.settings.name, request.key] = (at, digest, copy.remote_id)
        return copy.remote_id

    def forgive(self, key: str) -> None:
        """An operator has said that nothing was taken."""
        self.forgiven[key] = len(self.copies.get(key, ()))

    def find(self, transport: str, key: str) -> Finding:
        """A look-up by our own key."""
        visible = [c for c in self.copies.get(key, ()) if c.transport == transport and c.visible <= self.clock.passed]
        if not visible:
            return Absent()
        return Found(visible[0].remote_id) if len(visible) == 1 else CannotTell()


class Scripted(Transport):
    """A transport of one of the profiles; submitting is done by the model, step by step."""

    world: Providers  # of the history that runs
    says: ReceiptStatus = ReceiptStatus.PENDING
    broken = False  # status and search endpoints do not answer

    def __init__(self, settings: TransportSettings, *more: Any) -> None:
        self.CAPABILITIES = PROFILES[settings.text("profile")]  # type: ignore[misc]
        super().__init__(settings, *more)

    def prepare(self, message: Message) -> Request:
        """The bytes as composed."""
        assert isinstance(message, Mail)
        return Request(message.key, (message.sender.address, message.recipient.address), message.raw)

    def submit(self, requests: object, deadline: Deadline, validity: float | None) -> list[Outcome]:
        """Not used: the model decides when bytes are written and when the answer is heard."""
        raise NotImplementedError

    def find(
        self, key: str, recipient: str = "", since: datetime | None = None, until: datetime | None = None
    ) -> Finding:
        """What a look-up says now."""
        if self.broken:
            raise ConnectionError
        if self.capabilities.search is Search.NONE:
            return CannotTell()
        return self.world.find(self.settings.name, key)

    def receipts(self, remote_ids: Iterable[str]) -> dict[str, Receipt]:
        """What the provider says of these now."""
        if self.broken:
            raise ConnectionError
        return {one: Receipt(self.says, one, provider_time=self.world.clock.now()) for one in remote_ids}


@contextmanager
def registered() -> Iterator[None]:
    """Known to the registry meanwhile, like any other kind, so that the tool's own code opens it."""
    KINDS["modelled"] = Kind("modelled:Scripted", frozenset({"email"}), frozenset({"profile"}))
    sys.modules["notifyctl.transports.modelled"] = sys.modules[__name__]
    try:
        yield
    finally:
        del KINDS["modelled"], sys.modules["notifyctl.transports.modelled"]
