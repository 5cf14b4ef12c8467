"""What a receipts run counted, as its JSON document, its exit code and its log."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

from notifyctl import telemetry
from notifyctl.errors import EXIT_BUG, EXIT_CONFIG, EXIT_OK, EXIT_PERSON, EXIT_TEMPORARY, worst
from notifyctl.model import State
from notifyctl.ticks.receipts_turn import Done, Group, Judged
from notifyctl.ticks.run import Run

COUNTS = (
    "checked", "delivered", "pending", "permanent_failure", "suppressed", "unresolved", "complained",
    "no_receipt_expected", "errors", "unmatched", "leases_recovered",
)  # fmt: skip
_ENDS = frozenset({State.DELIVERED, State.PERMANENT_FAILURE, State.SUPPRESSED, State.UNRESOLVED})


class Report:
    """Counts of one run, per transport; what a person must know of it."""

    def __init__(self) -> None:
        self.transports: dict[str, Counter[str]] = {}
        self.drained = True
        self.reasons: Counter[str] = Counter()
        self.out: set[str] = set()  # transports that could not be asked at least once
        self._used: set[str] = set()
        self._config = False
        self._broken = False
        self._person = False

    def count(self, transport: str, name: str, more: int = 1) -> None:
        """Add to one transport's count."""
        if more:
            self.transports.setdefault(transport, Counter())[name] += more

    def lapsed(self, transport: str, *, held: bool) -> None:
        """An attempt whose deadline had passed is in doubt now."""
        self.count(transport, "leases_recovered")
        self._person |= held

    def fault(self, transport: str, reason: str, *, config: bool, broken: bool, counted: bool = False) -> None:
        """A transport could not be asked, read or marked; `counted`: among its checks' errors already."""
        if not counted:
            self.count(transport, "errors")
        self.reasons[reason] += 1
        self.out.add(transport)
        self._config |= config
        self._broken |= broken

    def add(self, group: Group, done: Done) -> None:
        """Count a turn that has committed."""
        for answer in group.answers:
            name = answer.check.transport
            if answer.fault:
                self.fault(name, answer.fault, config=answer.config, broken=answer.broken, counted=True)
            else:
                self._used.add(name)
        for read in group.pages:
            name = read.feed.transport
            if read.page is None:
                self.fault(name, read.fault, config=read.config, broken=read.broken)
            else:
                self._used.add(name)
        for name, number in done.unmatched.items():
            self.count(name, "unmatched", number)
        for judged in done.judged:
            self._judged(judged)

    def _judged(self, judged: Judged) -> None:
        name, heard = judged.transport, judged.heard
        self.count(name, "checked", 1 if judged.owned else judged.said)
        self.count(name, "complained", heard.complained)
        self._person |= any(move.to.needs_person for move in heard.moves)
        if judged.error:
            self.count(name, "errors")
        moved = [move for move in heard.moves if not move.to.untouched]
        if not moved:
            return
        if heard.state in _ENDS:
            self.count(name, heard.state)
        elif heard.state is State.ACCEPTED and heard.at_rest:
            self.count(name, "no_receipt_expected")
        elif heard.state in (State.ACCEPTED, State.PENDING) and not judged.error:
            self.count(name, "pending")
        if heard.state in _ENDS - {State.DELIVERED} and moved[-1].to.reason:
            self.reasons[moved[-1].to.reason] += 1

    def total(self, name: str) -> int:
        """One count over all transports."""
        return sum(counts[name] for counts in self.transports.values())

    def exit_code(self, *, config: bool) -> int:
        """The run's exit code: see errors.EXIT_PRECEDENCE."""
        return worst(
            EXIT_BUG if self._broken else EXIT_OK,
            EXIT_CONFIG if self._config or config else EXIT_OK,
            EXIT_TEMPORARY if (self.out and not self._used) or not self.drained else EXIT_OK,
            EXIT_PERSON if self._person else EXIT_OK,
        )

    def document(self, run: Run) -> dict[str, Any]:
        """The JSON of `poll-receipts`."""
        return {
            "run": run.id if run.recorded else None,
            **{name: self.total(name) for name in COUNTS},
            "transports": {
                transport: {name: counts[name] for name in COUNTS}
                for transport, counts in sorted(self.transports.items())
            },
            "drained": self.drained,
            "seconds": round(run.elapsed, 3),
        }


def journal(run: Run, done: Done) -> None:
    """One line for each receipt that was new: ids and codes, nothing of the content."""
    log = telemetry.logger("receipts")
    if not log.isEnabledFor(logging.INFO):
        return
    for judged in done.judged:
        for one in judged.new:
            log.info("receipt", extra={
                "run": run.id, "delivery": judged.known.id, "event": judged.known.event_id, "lane": judged.known.lane,
                "transport": judged.transport, "remote_id": one.remote_id or None, "outcome": one.status,
                "reason": one.reason, "code": one.code,
            })  # fmt: skip
