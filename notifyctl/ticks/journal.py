"""The log of a dispatch run."""

from __future__ import annotations

import logging

from notifyctl import telemetry
from notifyctl.ticks.run import Run
from notifyctl.ticks.turn import Group


def journal(run: Run, group: Group) -> None:
    """One line for each attempt that ended and each row that was refused: ids and codes, nothing of the content."""
    log = telemetry.logger("dispatch")
    if not log.isEnabledFor(logging.INFO):
        return
    for submitted in group.finished:
        ready, outcome = submitted.flight.prepared.ready, submitted.outcome
        log.info("attempt", extra={
            "run": run.id, "delivery": ready.delivery.id, "event": ready.delivery.event_id,
            "lane": submitted.lane, "attempt": submitted.flight.begun.number, "transport": ready.transport,
            "remote_id": next(iter(outcome.remote_ids), None), "outcome": outcome.kind, "reason": outcome.reason,
            "code": outcome.code, "seconds": round(submitted.duration, 3),
        })  # fmt: skip
    for refusal in group.refusals:
        log.info("refused", extra={
            "run": run.id, "delivery": refusal.delivery.id, "event": refusal.delivery.event_id,
            "lane": refusal.delivery.lane, "reason": refusal.reason,
        })  # fmt: skip
