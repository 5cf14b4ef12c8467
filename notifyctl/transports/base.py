"""What all transports share: the boundary towards the rest of the program, and what an exchange proves.

What a loss proves depends on how far the exchange had come, and is decided here, once, for every provider:

| phase | a loss, a timeout, an unreadable answer proves |
|---|---|
| OPENING: nothing of the message was written | `unavailable`: it concerns the whole transport |
| WRITING: the request is not complete | `temporary_failure`: it certainly was not accepted |
| WRITTEN: its last byte may have gone out | `ambiguous`: it may have been accepted |

A deadline covers the whole exchange. It is checked immediately before every write, and nothing is written after it,
also not by a process that was stopped meanwhile. Reading is allowed after it: an answer that has come is worth more
than doubt. `Deadline.at` may be brought forward while an exchange runs (a drain); that is noticed within a second.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import IntEnum
from typing import ClassVar, TypeVar

from notifyctl.clock import Deadline
from notifyctl.model import (
    CannotTell,
    Capabilities,
    Finding,
    Message,
    Outcome,
    OutcomeKind,
    Rate,
    Receipt,
    Receipts,
    Request,
    Scope,
)
from notifyctl.settings import TransportSettings
from notifyctl.units import rate

T = TypeVar("T")


class Phase(IntEnum):
    """How far an exchange has come; see the table above."""

    OPENING = 0
    WRITING = 1
    WRITTEN = 2


# Nobody was asked: the transport had no room for the exchange just then, or its slot had passed.
SLOT_MISSED = "slot_missed"
CROWDED = frozenset({"connection_limit", "connecting", SLOT_MISSED})


class Trouble(Exception):
    """Why an exchange ended without an answer to the message: a reason code, never a text from outside.

    `code` is the server's own machine-readable code. `config`: a person must mend the configuration. `kind`: the
    outcome, where it is certain whatever the phase. `wait`: seconds after which it is worth another try.
    """

    def __init__(
        self, reason: str, *, code: str = "", config: bool = False, kind: OutcomeKind | None = None,
        wait: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__(reason)
        self.reason = reason
        self.code = code
        self.config = config
        self.kind = kind
        self.wait = wait


_WHEN_LOST = {
    Phase.OPENING: OutcomeKind.UNAVAILABLE,
    Phase.WRITING: OutcomeKind.TEMPORARY_FAILURE,
    Phase.WRITTEN: OutcomeKind.AMBIGUOUS,
}


class Exchange:
    """One submission under way: its deadline, and the phase that decides what a loss proves."""

    __slots__ = ("deadline", "phase")

    def __init__(self, deadline: Deadline) -> None:
        self.deadline = deadline
        self.phase = Phase.OPENING

    def check(self) -> None:
        """To be called immediately before every write: raises Trouble once the deadline has passed."""
        if self.deadline.passed:
            raise Trouble("deadline")

    def outcome(self, trouble: Trouble) -> Outcome:
        """What `trouble` proves in the present phase."""
        kind = trouble.kind or _WHEN_LOST[self.phase]
        reason = trouble.reason
        if reason == "connection_lost" and kind is OutcomeKind.AMBIGUOUS:
            reason = "reply_lost"
        scope = Scope.ACCOUNT if kind is OutcomeKind.UNAVAILABLE else Scope.DESTINATION
        return Outcome(
            kind, reason, scope=scope, code=trouble.code, config=trouble.config, retry_after=trouble.wait
        )


# What an exchange does step by step: it yields the poll events it waits for, and is sent those that happened, or 0 once
# its deadline has passed without any.
Steps = Generator[int, int, T]


@dataclass(frozen=True, slots=True)
class Conversation:
    """An exchange on a connection that is open already, for a caller who advances it beside others (see `Steps`).

    It ends with the outcomes, or with None where the connection has turned out to be gone before anything of the
    messages had reached anybody: then they are to be submitted. `fd` is what to poll.
    """

    fd: int
    steps: Steps[list[Outcome] | None]


@dataclass(frozen=True, slots=True)
class Checkup:
    """What `doctor` shows of a transport: `outcome` None when it answered and let us in."""

    outcome: Outcome | None = None
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FeedPage:
    """What a feed or a bounce mailbox said next; every read of the same cursor may give the same again.

    `receipts` are in the order they are to take effect, each with the `key` it was verified by, else its `remote_id`.
    `cursor`: where the next read starts once these are in the ledger ("": the feed has none). `unmatched`: what of the
    page cannot belong to anything of ours, or cannot be read. `more`: the next page is there already. `marks` is the
    transport's own: what its `fed` needs to know.
    """

    receipts: tuple[Receipt, ...] = ()
    cursor: str = ""
    unmatched: int = 0
    more: bool = False
    marks: object = field(default=None, repr=False)


class Transport(ABC):
    """One configured way out. All methods may be called from several threads at once.

    The constructor reads the configuration and its secrets (ConfigError) and opens no connection.
    """

    CAPABILITIES: ClassVar[Capabilities]

    def __init__(self, settings: TransportSettings) -> None:
        self.settings = settings
        self.capabilities = self.CAPABILITIES
        if settings.settle_delay is not None:
            self.capabilities = replace(self.CAPABILITIES, settle_delay=settings.settle_delay)

    @property
    def status_rates(self) -> tuple[Rate, ...]:
        """How many remote ids may be looked up in a time: as configured (`status_rate`), else as declared."""
        if self.settings.status_rates is not None:
            return self.settings.status_rates
        declared = self.capabilities.status_rate
        return (Rate(*rate(declared)),) if declared else ()

    @abstractmethod
    def prepare(self, message: Message) -> Request:
        """Everything that will be written for `message`, credentials excluded. Pure.

        Raises InputError where the message can never be written in this transport's format.
        """

    @abstractmethod
    def submit(self, requests: Sequence[Request], deadline: Deadline, validity: float | None) -> list[Outcome]:
        """Send, and say per request what that proved; network trouble is an outcome, never an exception.

        At most `capabilities.max_batch` requests. `validity`: seconds during which the message is worth delivering,
        for providers that take a time to live; None: no limit.
        """

    @property
    def converses(self) -> bool:
        """Whether an open connection can be used through `converse`."""
        return False

    def converse(self, requests: Sequence[Request], deadline: Deadline) -> Conversation | None:  # noqa: ARG002
        """The same without waiting, where a connection for it is open and idle; None: `submit` is the way."""
        return None

    def capacity(self) -> int | None:
        """How many exchanges it can hold at once, as far as it knows by now; None: any number.

        More than that are not begun: they would wait for one another with their deadlines running.
        """
        return None

    def receipts(self, remote_ids: Iterable[str]) -> dict[str, Receipt]:  # noqa: ARG002 - part of the boundary
        """What became of accepted messages, by remote id. Only for transports whose receipts are looked up.

        An id that is missing from the answer is as one that is not known yet. Raises Trouble or OSError where nothing
        could be learnt: the ids are asked for again later.
        """
        return {}

    def find(
        self,
        key: str,  # noqa: ARG002
        recipient: str = "",  # noqa: ARG002
        since: datetime | None = None,  # noqa: ARG002
        until: datetime | None = None,  # noqa: ARG002
    ) -> Finding:
        """Whether the request written under `key`, to `recipient` between the two instants, was accepted."""
        return CannotTell()

    @property
    def feeds(self) -> bool:
        """Whether there is a feed or a mailbox to be read: with receipts by feed, or where bounces are collected."""
        return self.capabilities.receipts is Receipts.FEED

    def feed(self, cursor: str, limit: int, deadline: Deadline) -> FeedPage:  # noqa: ARG002
        """Up to `limit` receipts that arrived since `cursor` ("": from the beginning). Changes nothing over there.

        One process at a time reads a transport's feed. Raises Trouble or OSError where it cannot be read.
        """
        return FeedPage(cursor=cursor)

    def fed(self, page: FeedPage, unknown: Collection[Receipt], deadline: Deadline) -> str | None:  # noqa: ARG002
        """Called once the page's receipts are committed: a mailbox marks or moves its messages now, never earlier.

        `unknown` are those of them that belong to no delivery here. A run that dies before this call reads the same
        page again, which changes nothing in the ledger. Returns the cursor for the next read where it is not the
        page's own: one that says that this page is marked. Raises Trouble or OSError, which is the next reader's
        matter.
        """
        return None

    def check(self, deadline: Deadline) -> Checkup:  # noqa: ARG002
        """Whether the transport answers and lets us in; sends no message."""
        return Checkup()

    def close(self) -> None:  # noqa: B027 - most transports keep nothing open
        """Give back what is kept open; may be called twice. Never raises."""
