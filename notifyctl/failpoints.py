"""Numbered points at which a process can be made to die: for the crash tests, and inert in every other run.

`NOTIFYCTL_FAILPOINT=NAME` or `NAME:COUNT`, read once at import, makes the process send itself SIGKILL when it comes to
that point for the COUNT-th time (default 1). Without it `reach` is an empty function, and the ledger's connection is
the driver's own. The points are all named here; a test compares this list with the calls and with what was tried.
"""

from __future__ import annotations

import os
import signal
from typing import Any

# In the order of a tick. The three of the ledger exist for every transaction of every command: COUNT numbers them.
POINTS = (
    "ledger.statement",  # before a statement other than BEGIN and COMMIT
    "ledger.commit",  # before a COMMIT
    "ledger.committed",  # after a COMMIT, before its reply is acted on
    "lapse.done",  # lapsed attempts are in doubt, uncommitted
    "lapse.committed",
    "claim.begun",  # in the transaction, before its first statement
    "claim.taken",  # rows are owned, uncommitted
    "claim.committed",
    "compose.begun",
    "compose.done",
    "turn.begun",
    "turn.recorded",  # outcomes are written, uncommitted
    "turn.gated",
    "turn.released",
    "begin.locked",
    "begin.judged",
    "begin.paced",
    "begin.opened",  # attempts are open, uncommitted
    "turn.begins",  # the same, seen from the turn
    "turn.done",  # all of a turn is written, uncommitted
    "turn.committed",
    "exchange.begun",  # before the first byte
    "smtp.opened",  # a session is there, nothing of the message has been said
    "smtp.rset",  # the reply to RSET was read: the transaction before had been refused
    "smtp.mail",  # the reply to MAIL was read
    "smtp.rcpt",
    "smtp.data",
    "smtp.written",  # the final dot has been written
    "smtp.replied",  # the answer to it was read
    "exchange.done",  # the outcome is known to the worker
    "exchange.taken",  # and to the run, but not to the ledger
    "record.owned",
    "record.written",
    "renew.done",
    "renew.committed",
    "drain.begun",  # a signal has been seen
    "release.begun",  # what is claimed and unbegun is about to be given back
    "release.done",
    "run.ended",  # before the run's row is completed
    "run.closed",
    "poll.claimed",  # due checks are owned
    "poll.asked",  # a look-up was answered
    "poll.read",  # a page of a feed was read
    "poll.begun",
    "poll.kept",  # what was said is written and the cursor has moved, uncommitted
    "poll.committed",
    "poll.marked",  # the page is marked over there
    "reconcile.expired",  # expired sends have ended, uncommitted
    "reconcile.claimed",  # due doubt is owned
    "reconcile.looked",  # a look-up was answered
    "reconcile.decided",  # what it means is written, uncommitted
    "reconcile.committed",
    "enqueue.page",  # a page is written, uncommitted
    "enqueue.committed",
)

_ARMED, _, _count = os.environ.get("NOTIFYCTL_FAILPOINT", "").partition(":")
_left = int(_count) if _count.isdigit() else 1


def _nothing(point: str) -> None:
    """Where no point is named, none is reached."""


def _reach(point: str) -> None:
    """Die here if this is the point, and the time."""
    global _left
    if point == _ARMED:
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


reach = _reach if _ARMED else _nothing


class _Watched:
    """A driver's connection whose statements are points."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, sql: str, *parameters: Any, **options: Any) -> Any:
        """As the driver's."""
        if sql.startswith(("BEGIN", "ROLLBACK")):
            return self._connection.execute(sql, *parameters, **options)
        commit = sql == "COMMIT"
        reach("ledger.commit" if commit else "ledger.statement")
        cursor = self._connection.execute(sql, *parameters, **options)
        if commit:
            reach("ledger.committed")
        return cursor


def watched(connection: Any) -> Any:
    """The connection itself; in a run with a point its statements are points too."""
    return _Watched(connection) if _ARMED else connection
