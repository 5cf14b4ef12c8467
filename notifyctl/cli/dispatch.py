"""`dispatch`: one bounded run over the lanes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from notifyctl.cli.options import DryRun, Lanes, Limit, MaxSeconds, Region, Session, command, family
from notifyctl.errors import EXIT_OK, UsageError

if TYPE_CHECKING:
    from notifyctl.ledger.database import Ledger
    from notifyctl.model import Lane

app = family()

Channels = Annotated[str | None, typer.Option("--channel", metavar="CHANNEL", help="Only lanes of this channel.")]
Batch = Annotated[int | None, typer.Option("--batch", metavar="N", min=1, help="Rows per claim.")]
Concurrency = Annotated[int | None, typer.Option("--concurrency", metavar="N", min=1, help="Exchanges at once.")]


@command(app, "dispatch")
def dispatch(
    session: Session,
    lane: Lanes = None,
    channel: Channels = None,
    region: Region = None,
    limit: Limit = None,
    max_seconds: MaxSeconds = 50.0,
    batch: Batch = None,
    concurrency: Concurrency = None,
    dry_run: DryRun = False,
) -> int:
    """Claim what is due, submit it, record what happened, and exit."""
    from notifyctl.model import Channel
    from notifyctl.ticks import lanes as choosing
    from notifyctl.ticks.report import COUNTS
    from notifyctl.ticks.run import Run

    config = session.config
    if channel is not None and channel not in set(Channel):
        raise UsageError(f"--channel is {channel!r}; it may be email or sms")
    chosen = choosing.chosen(config, lane or [], Channel(channel) if channel else None)
    home = config.region if region is None else region
    ledger = session.ledger()
    try:
        if dry_run:
            return _dry_run(session, ledger, [(one.name, home) for one in chosen], limit)
        run = Run(config, ledger, "dispatch", max_seconds=max_seconds, limit=limit)
        tick = choosing.dispatch(run, chosen, home, batch=batch, concurrency=concurrency)
        for fault in tick.faults:
            session.out.complain(f"{fault.message}; its lanes wait{f': {fault.hint}' if fault.hint else ''}")
        code = tick()
        if session.out.json:
            session.out.document(tick.document())
        else:
            idle = partial(_next, ledger, chosen, home)
            session.out.ran("dispatch", tick.document(), COUNTS, tick.report.reasons, code, idle=idle)
        return code
    finally:
        ledger.close()


def _next(ledger: Ledger, lanes: Sequence[Lane], region: str) -> str:
    """When something is due next, for a run that found nothing."""
    from notifyctl.ledger import backlog
    from notifyctl.units import iso

    at = ledger.read(lambda tx: backlog.next_due(tx, [(one.name, region) for one in lanes]))
    return f"; next due {iso(at)}" if at else "; nothing waits"


def _dry_run(session: Session, ledger: Any, pairs: list[tuple[str, str]], limit: int | None) -> int:
    from notifyctl.cli.lane import words
    from notifyctl.ledger import backlog, gate
    from notifyctl.ticks import gates as standing

    waiting, gates = ledger.read(lambda tx: (backlog.waiting(tx, pairs), gate.look(tx)))
    lanes: dict[str, Any] = {}
    shut: dict[str, str] = {}
    would = 0
    for name, found in waiting.items():
        before = standing.before(gates, name, session.config.lanes[name].transport)
        free, held = standing.held_by(before, found.due)
        lanes[name] = {"due": found.due, "held_by": {**found.held_by, **held}}
        shut[name] = "; ".join(map(words, before))
        would += free
    would = would if limit is None else min(would, limit)
    if session.out.json:
        session.out.document({"would_claim": would, "lanes": lanes})
        return EXIT_OK
    session.out.text(f"would claim {would}")
    rows = [
        (name, one["due"], ", ".join(f"{n} {why}" for why, n in sorted(one["held_by"].items())) or None, shut[name])
        for name, one in lanes.items()
    ]
    session.out.table(("lane", "due", "waiting for", "closed by"), rows)
    return EXIT_OK
