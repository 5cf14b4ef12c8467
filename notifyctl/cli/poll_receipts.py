"""`poll-receipts`: what became of what was accepted, in one bounded run."""

from __future__ import annotations

from typing import Annotated

import typer

from notifyctl.cli.options import Lanes, MaxSeconds, Region, Session, command, family
from notifyctl.errors import UsageError

app = family()

Transports = Annotated[
    list[str] | None, typer.Option("--transport", metavar="TRANSPORT", help="Only this transport (repeatable).")
]
Limit = Annotated[
    int | None, typer.Option("--limit", metavar="N", min=1, help="At most so many rows and receipts in this run.")
]


@command(app, "poll-receipts")
def poll_receipts(
    session: Session,
    lane: Lanes = None,
    transport: Transports = None,
    region: Region = None,
    limit: Limit = None,
    max_seconds: MaxSeconds = 50.0,
) -> int:
    """Ask what became of what was accepted: status look-ups, event feeds, bounce mailboxes. Sends nothing."""
    from notifyctl.ticks import lanes as choosing
    from notifyctl.ticks.receipts import Poll
    from notifyctl.ticks.receipts_report import COUNTS
    from notifyctl.ticks.run import Run

    config = session.config
    chosen = choosing.chosen(config, lane or [], None)
    unknown = sorted(set(transport or ()) - set(config.transports))
    if unknown:
        raise UsageError(
            f"there is no transport {unknown[0]!r}", hint=f"configured are {', '.join(sorted(config.transports))}"
        )
    ledger = session.ledger()
    try:
        run = Run(config, ledger, "poll-receipts", max_seconds=max_seconds, limit=limit)
        tick = Poll(run, chosen, config.region if region is None else region, only=transport or ())
        code = tick()
        for fault in tick.faults.values():
            session.out.complain(f"{fault.message}; its receipts wait{f': {fault.hint}' if fault.hint else ''}")
        document = tick.document()
        if session.out.json:
            session.out.document(document)
        else:
            session.out.ran("poll-receipts", document, COUNTS, tick.report.reasons, code)
        return code
    finally:
        ledger.close()
