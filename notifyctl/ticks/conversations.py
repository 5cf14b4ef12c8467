"""Exchanges on open connections, advanced by the run's main thread while it waits for something else.

A thread takes turns with the main thread at the interpreter's lock, several times per exchange, which costs more than
the exchange. So threads only open connections (`Workers`); where one is open already, the main thread takes the steps
of its exchanges itself, beside any number of others. None of them ever makes it wait.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil

from notifyctl import clock
from notifyctl.model import Outcome
from notifyctl.ticks.exchange import Exchange
from notifyctl.ticks.lane import Submitted
from notifyctl.ticks.wake import Wake
from notifyctl.ticks.workers import PATIENCE, STUCK, Workers
from notifyctl.transports.base import Conversation

GATHER = 0.001  # seconds without a result until those that have come are recorded: a commit takes as long
WORTH = 10  # exchanges while others waited that make a further connection worth opening


@dataclass(slots=True)
class _Line:
    """The exchanges of one transport."""

    waiting: deque[Exchange] = field(default_factory=deque)
    open: int = 0  # conversations
    opening: int = 0  # exchanges that threads have
    served: int = 0  # conversations that have ended while others waited, since the last further connection
    moved: float = 0.0  # monotonic: when a waiting exchange was last taken up


class Conversations:
    """The conversations of one run, and the exchanges that wait for a connection; only the main thread uses it.

    A waiting exchange takes the next connection that becomes idle. One goes to a thread, which opens another, for
    every `WORTH` that have ended meanwhile; and as many as there are conversations, if none was taken up for
    `PATIENCE` while the run had nothing else to do (`STUCK`: although it had).
    """

    def __init__(self, wake: Wake, senders: Mapping[str, Workers]) -> None:
        self._wake = wake
        self._senders = senders  # by lane
        self._lines: dict[str, _Line] = {}  # by transport
        self._poll = select.poll()
        self._open: dict[int, tuple[Exchange, Conversation]] = {}  # by file descriptor
        self._ended: list[list[Submitted]] = []
        self._last = 0.0  # monotonic: when the last one ended

    def __bool__(self) -> bool:
        return bool(self._open or self._ended or any(line.waiting for line in self._lines.values()))

    @property
    def brisk(self) -> bool:
        """Whether more results are about to come."""
        return bool(self._open) and clock.monotonic() < self._last + GATHER

    def give(self, exchange: Exchange) -> None:
        """Begin to converse, or let it wait for a connection, or give it to a thread."""
        self._senders[exchange.lane].busy += 1
        line = self._line(exchange)
        if exchange.paced or not exchange.transport.converses:
            self._hand(exchange)
        elif not self._start(exchange):
            if not (line.open or line.opening):
                self._hand(exchange)
                return
            if not line.waiting:
                line.moved = clock.monotonic()
            line.waiting.append(exchange)

    def returned(self, transport: str) -> None:
        """A thread has finished what it was given."""
        self._lines[transport].opening -= 1

    def step(self, pause: float) -> list[list[Submitted]]:
        """Take all steps that can be taken, waiting up to `pause` seconds for the first; what has ended."""
        happened = self._poll.poll(ceil(self._listen(pause) * 1000)) if self._open or pause > 0 else []
        self._wake.listening = False
        heard = set()
        for fd, events in happened:
            if fd in self._open:
                heard.add(fd)
                self._advance(fd, events)
            else:
                self._wake.heard()
        # What has come counts although the deadline has passed: of those that were heard, the next step looks again.
        for fd in [fd for fd, (exchange, _) in self._open.items() if exchange.deadline.passed and fd not in heard]:
            self._advance(fd, 0)
        for line in self._lines.values():
            if line.waiting:
                self._take_up(line, idle=pause > 0 and not happened)
        ended, self._ended = self._ended, []
        return ended

    def _listen(self, pause: float) -> float:
        """For how long to poll; from now on, whatever threads finish ends it."""
        if pause <= 0 or self._ended:
            return 0.0
        self._poll.register(self._wake.fd, select.POLLIN)
        self._wake.listening = True
        if self._wake.qsize():  # looked at after `listening`, so nothing is missed
            return 0.0
        if any(line.waiting for line in self._lines.values()):
            pause = min(pause, PATIENCE)
        return max(0.0, min([pause, *(exchange.deadline.remaining() for exchange, _ in self._open.values())]))

    def _take_up(self, line: _Line, *, idle: bool) -> None:
        now = clock.monotonic()
        while line.waiting and self._start(line.waiting[0]):
            line.waiting.popleft()
            line.moved = now
        further = 0
        if now >= line.moved + (PATIENCE if idle else STUCK):
            further, line.moved = max(1, line.open), now
        elif line.served >= WORTH:
            further = 1
        for _ in range(min(further, len(line.waiting))):
            line.served = 0
            self._hand(line.waiting.popleft())

    def _hand(self, exchange: Exchange) -> None:
        self._line(exchange).opening += 1
        self._senders[exchange.lane].hand(exchange)

    def _line(self, exchange: Exchange) -> _Line:
        return self._lines.setdefault(exchange.transport.settings.name, _Line())

    def _start(self, exchange: Exchange) -> bool:
        conversation = exchange.converse()
        if conversation is None:
            return False
        self._line(exchange).open += 1
        self._open[conversation.fd] = exchange, conversation
        self._advance(conversation.fd, None)
        return True

    def _advance(self, fd: int, happened: int | None) -> None:
        """The next step; `happened`: poll events, None: there was none before."""
        exchange, conversation = self._open[fd]
        outcomes: list[Outcome] | Exception | None
        try:
            events = next(conversation.steps) if happened is None else conversation.steps.send(happened)
        except StopIteration as end:
            outcomes = end.value
        except Exception as error:  # a bug; what it had written nobody knows
            outcomes = error
        else:
            self._poll.register(fd, events)
            return
        if happened is not None:
            self._poll.unregister(fd)
        del self._open[fd]
        line = self._line(exchange)
        line.open -= 1
        line.served += bool(line.waiting)
        if outcomes is None:
            self._hand(exchange)
            return
        self._ended.append(exchange.ended(outcomes))
        self._last = clock.monotonic()
