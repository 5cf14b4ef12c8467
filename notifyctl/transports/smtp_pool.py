"""The sessions of one SMTP transport: opened when needed, kept between messages, used by one worker at a time.

Until one session has been opened (and logged in), only one worker tries and the others wait for what it learns: a
dead server or a changed password is met once, not once per worker. What a person must mend ends all further opening
for the life of the pool, so a wrong password is tried exactly once per run. Where the server allows fewer sessions
than there are workers, the refused worker waits for one of those that are open, for a small part of its deadline only:
the rest is for the exchange itself, since what is cut off in its midst is in doubt.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Condition

from notifyctl.clock import Deadline
from notifyctl.model import OutcomeKind
from notifyctl.transports.base import Exchange, Trouble
from notifyctl.transports.smtp_session import Session

_GOODBYE = 1.0  # seconds that the answers to QUIT are waited for
_PART = 0.1  # of what is left of its deadline: so long may an exchange wait for a session
_AGAIN = 0.5  # seconds until a message for which there was none is worth another try
_SLICE = 1.0  # seconds after which a waiting worker looks whether its deadline was brought forward


class Pool:
    """Sessions made by `opener`, each retired after `cap` messages (0: no cap)."""

    def __init__(self, opener: Callable[[Exchange], Session], cap: int) -> None:
        self._opener = opener
        self._cap = cap
        self._changed = Condition()
        self._idle: list[Session] = []
        self._leaving: list[Session] = []  # QUIT is written, the socket still open
        self._open = 0  # idle, in use, and being opened
        self._limit: int | None = None  # how many the server allows, once it has refused one
        self._proven = False
        self._opening = False
        self._failures = 0
        self._failure = Trouble("connect_failed")  # the last one, shared with those who waited for it
        self._mend: Trouble | None = None
        self._closed = False

    def take(self, exchange: Exchange, *, fresh: bool = False) -> Session:
        """An idle session, or a new one (`fresh`: in any case); raises Trouble where none can be had."""
        while True:
            session = self._reserve(exchange, fresh=fresh)
            if session is not None:
                session.exchange = exchange
                return session
            self._see_off()
            try:
                session = self._opener(exchange)
            except Trouble as trouble:
                if not self._failed(trouble):
                    raise
                continue
            except BaseException:
                self._failed(Trouble("connect_failed"))
                raise
            with self._changed:
                self._proven, self._opening = True, False
                self._changed.notify_all()
            return session

    def take_idle(self, exchange: Exchange) -> Session | None:
        """An open session that nobody uses, if there is one; never waits."""
        with self._changed:
            session = self._alive()
        if session is not None:
            session.exchange = exchange
        return session

    def capacity(self) -> int | None:
        """How many exchanges there are sessions for; None: the server has refused none so far."""
        with self._changed:
            return self._limit if self._proven else 1

    def give_back(self, session: Session) -> None:
        """A worker is done with its session: keep it, retire it, or end it."""
        worn = bool(self._cap) and session.messages >= self._cap
        if not session.broken and worn:
            session.goodbye()
        with self._changed:
            if session.broken or worn or self._closed:
                self._open -= 1
                if session.broken:
                    session.abort()
                else:
                    self._leaving.append(session)
            else:
                self._idle.append(session)
            self._changed.notify()

    def close(self) -> None:
        """Say goodbye on all idle sessions at once and wait shortly for the answers; those in use end later."""
        with self._changed:
            self._closed = True
            sessions, self._idle = self._idle, []
            self._open -= len(sessions)
            self._changed.notify_all()
        for session in sessions:
            session.goodbye()
        with self._changed:
            self._leaving += sessions
        self._see_off()

    def _see_off(self) -> None:
        """Let the sessions that were told goodbye end, so that the server no longer counts them."""
        with self._changed:
            leaving, self._leaving = self._leaving, []
        deadline = Deadline.after(_GOODBYE)
        for session in leaving:
            session.exchange = Exchange(deadline)
            with suppress(Trouble):
                session.getreply()
            session.close()

    def _reserve(self, exchange: Exchange, *, fresh: bool) -> Session | None:
        """An idle session; or None: the caller is to open one."""
        with self._changed:
            seen, patience = self._failures, Deadline.after(exchange.deadline.remaining() * _PART)
            while True:
                if self._closed:
                    raise Trouble("closed")
                if not fresh and (session := self._alive()) is not None:
                    return session
                if self._mend is not None:
                    raise _again(self._mend)
                if not self._proven and self._failures != seen:
                    raise _again(self._failure)
                if self._proven:
                    if self._limit is not None and self._open >= self._limit and self._idle:
                        self._retire()  # who needs a new one would wait for it for ever: nobody uses it
                    if self._limit is None or self._open < self._limit:
                        break
                elif not self._opening:
                    self._opening = True
                    break
                self._wait(exchange, patience)
            self._open += 1
            return None

    def _alive(self) -> Session | None:
        while self._idle:
            session = self._idle.pop()  # the one used last is the likeliest to live
            if session.alive():
                return session
            session.abort()
            self._open -= 1
        return None

    def _retire(self) -> None:
        """Say goodbye on an idle session, so that another may be opened."""
        session = self._idle.pop(0)
        session.goodbye()
        self._leaving.append(session)
        self._open -= 1

    def _wait(self, exchange: Exchange, patience: Deadline) -> None:
        if patience.passed or exchange.deadline.passed:
            # nothing is known to be wrong: the server allows no more sessions, or the first is still being opened
            reason = "connection_limit" if self._proven else "connecting"
            raise Trouble(reason, kind=OutcomeKind.RATE_LIMITED, wait=_AGAIN)
        self._changed.wait(max(0.0, min(exchange.deadline.remaining(), patience.remaining(), _SLICE)))

    def _failed(self, trouble: Trouble) -> bool:
        """Take note of a session that could not be opened; whether to wait for one of the others instead."""
        with self._changed:
            self._open -= 1
            self._opening = False
            self._failures += 1
            self._failure = trouble
            if trouble.config:
                self._mend = trouble
            others = self._proven and self._open > 0 and not trouble.config and trouble.reason != "deadline"
            if others:
                self._limit = self._open
            self._changed.notify_all()
            return others


def _again(trouble: Trouble) -> Trouble:
    """The same finding for another worker; an exception object carries the traceback of its own thread."""
    return Trouble(trouble.reason, code=trouble.code, config=trouble.config)
