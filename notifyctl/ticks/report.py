"""What a dispatch run counted, as its JSON document and its exit code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from notifyctl.errors import EXIT_BUG, EXIT_CONFIG, EXIT_OK, EXIT_PERSON, EXIT_TEMPORARY, worst
from notifyctl.ledger.record import Move
from notifyctl.lifecycle import INVALID_REASONS, Trigger
from notifyctl.model import OutcomeKind, State
from notifyctl.ticks.lane import LaneRun
from notifyctl.ticks.prepare import SENDER
from notifyctl.ticks.run import Run
from notifyctl.ticks.turn import Done, Group

COUNTS = (
    "claimed", "accepted", "temporary_failure", "rate_limited", "unavailable", "permanent_failure", "ambiguous",
    "suppressed", "expired", "deferred", "dead_letter", "held", "released", "leases_recovered",
)  # fmt: skip


class Report:
    """Counts of one run, per lane; what a person must know of it."""

    def __init__(self, lanes: Mapping[str, LaneRun], *, config_fault: bool = False) -> None:
        self.lanes = lanes
        self.drained = True
        self.ages: dict[str, float | None] = {}
        self._submitted = 0
        self._refused = 0  # certainly refused, not for the recipient's sake
        self._local = 0
        self._config = config_fault
        self._broken = False
        self._out: set[str] = set()
        self._used: set[str] = set()
        self.reasons: dict[str, int] = {}

    def add(self, group: Group, done: Done) -> None:
        """Count a turn that has committed."""
        lane_of = {}
        for submitted in group.finished:
            outcome, name = submitted.outcome, submitted.lane
            transport = submitted.flight.prepared.ready.transport
            lane_of[submitted.flight.prepared.ready.delivery.id] = name
            self.lanes[name].counts[outcome.kind] += 1
            self._submitted += 1
            self._config |= outcome.config
            self._broken |= submitted.broken
            if outcome.kind is OutcomeKind.UNAVAILABLE:
                self._out.add(transport)
            else:
                self._used.add(transport)
            if outcome.kind is OutcomeKind.PERMANENT_FAILURE and outcome.reason not in INVALID_REASONS:
                self._refused += 1
            if outcome.kind is not OutcomeKind.ACCEPTED and outcome.reason:
                self.reasons[outcome.reason] = self.reasons.get(outcome.reason, 0) + 1
        self._moves((lane_of[move.id], move) for move in done.recorded if move.id in lane_of)
        for refusal, move in done.refused:
            counts = self.lanes[refusal.delivery.lane].counts
            self.reasons[refusal.reason] = self.reasons.get(refusal.reason, 0) + 1
            if move.to.state in (State.SUPPRESSED, State.EXPIRED, State.PERMANENT_FAILURE):
                counts[move.to.state] += 1
            elif refusal.trigger is Trigger.CAN_HEAL and move.to.state is not State.DEAD_LETTER:
                counts["deferred"] += 1
            self._local += refusal.local
            self._config |= refusal.reason == SENDER
            self._moves([(refusal.delivery.lane, move)])
        for delivery, _ in group.returning:
            if delivery.id in done.released:
                self.lanes[delivery.lane].counts["released"] += 1

    def _moves(self, moves: Iterable[tuple[str, Move]]) -> None:
        for name, move in moves:
            if move.to.state is State.DEAD_LETTER:
                self.lanes[name].counts["dead_letter"] += 1
            elif move.to.needs_person:
                self.lanes[name].counts["held"] += 1

    def total(self, name: str) -> int:
        """One count over all lanes."""
        return sum(lane.counts[name] for lane in self.lanes.values())

    def exit_code(self) -> int:
        """The run's exit code: see errors.EXIT_PRECEDENCE."""
        person = self.total("dead_letter") or self.total("held") or self._local
        person = person or (self._submitted > 0 and self._refused == self._submitted)
        out = bool(self._out) and not self._used
        return worst(
            EXIT_BUG if self._broken else EXIT_OK,
            EXIT_CONFIG if self._config else EXIT_OK,
            EXIT_TEMPORARY if out or not self.drained else EXIT_OK,
            EXIT_PERSON if person else EXIT_OK,
        )

    def document(self, run: Run) -> dict[str, Any]:
        """The JSON of `dispatch`."""
        lanes = {
            name: {
                **{count: lane.counts[count] for count in COUNTS},
                "oldest_age_s": self.ages.get(name),
                "stopped": lane.stopped or "empty",
            }
            for name, lane in self.lanes.items()
        }
        return {
            "run": run.id if run.recorded else None,
            **{count: self.total(count) for count in COUNTS},
            "lanes": lanes,
            "drained": self.drained,
            "seconds": round(run.elapsed, 3),
        }
