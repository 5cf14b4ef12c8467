"""The feeds and mailboxes of a receipts run: claimed, read page by page, marked over there once a page is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from notifyctl import clock
from notifyctl.ledger import receipts as ledger
from notifyctl.ledger.receipts import Feed
from notifyctl.lifecycle import MARGIN
from notifyctl.ticks.receipts_report import Report
from notifyctl.ticks.receipts_turn import Done, Group, lease_of
from notifyctl.ticks.receipts_work import Marked, Marking, Reading
from notifyctl.ticks.run import Run
from notifyctl.ticks.workers import Workers
from notifyctl.transports.base import Transport

PAGE = 200  # receipts of a feed that one transaction keeps

READING = "reading"
READ = "read"  # to its end, in this run or a moment ago
FAILED = "failed"
ELSEWHERE = "elsewhere"  # not read to its end by us: nothing may be concluded from what it did not say


class Feeds:
    """Where each feed of a run stands; only the main thread touches it. `taken`: rows and receipts of the run."""

    def __init__(
        self, run: Run, transports: Mapping[str, Transport], report: Report, pool: Callable[[str, int], Workers]
    ) -> None:
        self.run = run
        self.transports = transports
        self.report = report
        self.pool = pool
        self.reading: dict[str, Feed] = {}
        self.until: dict[str, float] = {}  # monotonic: when what is under way with a feed must have ended
        self.taken = 0
        self._states: dict[str, str] = {}
        self._over: list[Feed] = []

    def state(self, transport: str) -> str:
        """Where its feed stands; one that has none has nothing more to say."""
        return self._states.get(transport, READ)

    def claim(self, names: Iterable[str]) -> None:
        """Own those of these transports' feeds that are due, and begin to read them."""
        leases = {name: lease_of(self.transports[name].settings.deadline) for name in names}
        if not leases or self.run.over:
            return
        due, held = self.run.ledger.read(lambda tx: ledger.due_feeds(tx, leases))
        asked = {name: leases[name] for name in due}
        claimed = self.run.ledger.transact(lambda tx: ledger.claim_feeds(tx, asked, run=self.run.id)) if asked else []
        self._states = {name: ELSEWHERE if name in due or name in held else READ for name in leases}
        for feed in claimed:
            self.report.count(feed.transport, "leases_recovered", int(due[feed.transport]))
            self._read(feed)

    def go_on(self, group: Group, done: Done) -> None:
        """Have kept pages marked over there; feeds that are read to their end are not ours any more."""
        for read in group.pages:
            name, page = read.feed.transport, read.page
            if name in done.lost:
                self._leave(name, ELSEWHERE)
            elif page is None:
                self._leave(name, FAILED)
            elif page.receipts or page.more or page.unmatched:
                self.taken += len(page.receipts)
                feed = self.reading[name] = replace(read.feed, cursor=page.cursor)
                self._expect(name)
                job = Marking(feed, self.transports[name], page, tuple(done.unknown.get(name, ())))
                self.pool(f"feed-{name}", 1).give(job)
            else:
                self._leave(name, READ)
        for feed in group.over:
            self._leave(feed.transport, READ)

    def marked(self, item: Marked) -> None:
        """A kept page has been marked over there: read the next, or give the feed back."""
        name = item.feed.transport
        if item.fault:
            self.report.fault(name, item.fault, config=item.config, broken=item.broken)
            self._states[name] = FAILED
        spent = self.run.limit is not None and self.taken >= self.run.limit
        if item.more and not item.fault:
            if not self.run.over and not spent:
                self._read(item.feed)
                return
            self._states[name] = ELSEWHERE
        self._over.append(item.feed)

    def take_over(self) -> list[Feed]:
        """The feeds to be given back, once."""
        over, self._over = self._over, []
        return over

    def _read(self, feed: Feed) -> None:
        self._states[feed.transport] = READING
        self.reading[feed.transport] = feed
        self._expect(feed.transport)
        limit = PAGE if self.run.limit is None else max(1, min(PAGE, self.run.limit - self.taken))
        self.pool(f"feed-{feed.transport}", 1).give(Reading(feed, self.transports[feed.transport], limit))

    def _expect(self, name: str) -> None:
        self.until[name] = clock.monotonic() + self.transports[name].settings.deadline + MARGIN

    def _leave(self, name: str, state: str) -> None:
        self.reading.pop(name, None)
        self.until.pop(name, None)
        if self._states.get(name) == READING:
            self._states[name] = state
