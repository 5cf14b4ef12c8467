"""What worker threads do in a receipts run: look a status up, read a page of a feed, have a kept page marked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC
from typing import TypeVar

from notifyctl import clock
from notifyctl.failpoints import reach
from notifyctl.ledger.receipts import Check, Feed
from notifyctl.model import Receipt
from notifyctl.ticks.receipts_turn import Answered, Read
from notifyctl.transports.base import FeedPage, Transport, Trouble

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Marked:
    """A page that is marked over there, or (`fault`) could not be: the next reader of the feed sees it again."""

    feed: Feed
    more: bool
    fault: str = ""
    config: bool = False
    broken: bool = False


@dataclass(frozen=True, slots=True)
class _Fault:
    reason: str = ""
    config: bool = False
    broken: bool = False
    wait: float | None = None  # seconds that the provider asks for


def _tried(work: Callable[[], T]) -> T | _Fault:
    """What `work` gives, or why it gives nothing: reason codes and names of types, never a text from outside."""
    try:
        return work()
    except Trouble as trouble:
        return _Fault(trouble.reason, config=trouble.config, wait=trouble.wait)
    except OSError as error:
        return _Fault(f"unreachable:{type(error).__name__}")
    except Exception as error:  # a bug in the transport; nothing was learnt
        return _Fault(f"transport_failed:{type(error).__name__}", broken=True)


def _dated(said: Receipt) -> Receipt:
    """What was said, without a time that no ledger holds: before 1970, or past 9999 in UTC."""
    try:
        held = said.provider_time is None or said.provider_time.astimezone(UTC).year >= 1970
    except OverflowError:
        held = False
    return said if held else replace(said, provider_time=None)


@dataclass(frozen=True, slots=True)
class LookUp:
    """Ask what became of one delivery's parts, not before `slot` (monotonic)."""

    check: Check
    transport: Transport
    slot: float

    def __call__(self) -> Answered:
        clock.sleep_until(self.slot)
        found = _tried(lambda: self.transport.receipts(self.check.remote_ids))
        reach("poll.asked")
        if isinstance(found, _Fault):
            return Answered(self.check, {}, found.reason, found.config, found.broken, found.wait)
        return Answered(self.check, {part: _dated(said) for part, said in found.items()})


@dataclass(frozen=True, slots=True)
class Reading:
    """Read the next page of a feed."""

    feed: Feed
    transport: Transport
    limit: int

    def __call__(self) -> Read:
        deadline = clock.Deadline.after(self.transport.settings.deadline)
        page = _tried(lambda: self.transport.feed(self.feed.cursor, self.limit, deadline))
        reach("poll.read")
        if isinstance(page, _Fault):
            return Read(self.feed, None, page.reason, page.config, page.broken)
        return Read(self.feed, replace(page, receipts=tuple(map(_dated, page.receipts))))


@dataclass(frozen=True, slots=True)
class Marking:
    """Have a page marked or moved over there, now that its receipts are kept."""

    feed: Feed
    transport: Transport
    page: FeedPage
    unknown: tuple[Receipt, ...]

    def __call__(self) -> Marked:
        deadline = clock.Deadline.after(self.transport.settings.deadline)
        done = _tried(lambda: self.transport.fed(self.page, self.unknown, deadline))
        reach("poll.marked")
        if isinstance(done, _Fault):
            return Marked(self.feed, self.page.more, done.reason, done.config, done.broken)
        return Marked(self.feed if done is None else replace(self.feed, cursor=done), self.page.more)
