"""What a reconcile run counted, as its JSON document and its exit code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from notifyctl.errors import EXIT_BUG, EXIT_CONFIG, EXIT_OK, EXIT_PERSON, EXIT_TEMPORARY, worst
from notifyctl.ledger.record import Move
from notifyctl.model import State, Step
from notifyctl.ticks.lookups import Answer
from notifyctl.ticks.run import Run

COUNTS = (
    "leases_recovered", "found", "absent", "mandated", "held", "unresolved", "expired", "dead_letter", "taken_over",
    "unroutable",
)  # fmt: skip


class Report:
    """Counts of one run; what a person must know of it."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.drained = True
        self._asked: set[str] = set()
        self._out: set[str] = set()  # transports that could not be asked at least once
        self._config = False
        self._broken = False
        self._person = False

    def lapsed(self, *, held: bool) -> None:
        """An attempt whose deadline had passed is in doubt now."""
        self.counts["leases_recovered"] += 1
        self.counts["held"] += held
        self._person |= held

    def answered(self, answer: Answer) -> None:
        """A look-up ended, or could not be made."""
        if answer.fault:
            self._out.add(answer.doubt.transport)
            self.reasons[answer.fault] += 1
        else:
            self._asked.add(answer.doubt.transport)
        self._config |= answer.config
        self._broken |= answer.broken

    def add(self, moves: Iterable[Move]) -> None:
        """Count what was decided and has committed."""
        for move in moves:
            to = move.to
            self._person |= to.needs_person
            if name := _name(move):
                self.counts[name] += 1
            if to.needs_person and to.reason:
                self.reasons[to.reason] += 1

    def exit_code(self, *, config: bool) -> int:
        """The run's exit code: see errors.EXIT_PRECEDENCE."""
        return worst(
            EXIT_BUG if self._broken else EXIT_OK,
            EXIT_CONFIG if self._config or config else EXIT_OK,
            EXIT_TEMPORARY if (self._out and not self._asked) or not self.drained else EXIT_OK,
            EXIT_PERSON if self._person else EXIT_OK,
        )

    def document(self, run: Run) -> dict[str, Any]:
        """The JSON of `reconcile`."""
        return {
            "run": run.id if run.recorded else None,
            **{name: self.counts[name] for name in COUNTS},
            "drained": self.drained,
            "seconds": round(run.elapsed, 3),
        }


def _name(move: Move) -> str:
    """The count that a decision belongs to; "" for one that only waits on."""
    to = move.to
    if move.was is State.AMBIGUOUS and to.accepted_at is not None:
        return "found"
    if to.state is State.DEAD_LETTER:
        return "dead_letter"
    if to.state is State.EXPIRED:
        return "expired"
    if to.state is State.UNRESOLVED:
        return "unresolved"
    if to.state is State.TEMPORARY_FAILURE:
        return "absent"
    if to.state is State.AMBIGUOUS and to.step is Step.SEND:
        return "mandated"
    return "held" if to.held and to.needs_person else ""
