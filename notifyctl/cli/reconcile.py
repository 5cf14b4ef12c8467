"""`reconcile`: what only evidence, a mandate or a deadline can settle, in one bounded run."""

from __future__ import annotations

from typing import Annotated

import typer

from notifyctl.cli.options import DryRun, Lanes, Limit, MaxSeconds, Region, Session, command, family
from notifyctl.cli.output import counted
from notifyctl.errors import EXIT_OK, UsageError

app = family()

TakeOver = Annotated[
    str | None, typer.Option("--take-over", metavar="REGION", help="First make the work of this lost region ours.")
]


@command(app, "reconcile")
def reconcile(
    session: Session,
    lane: Lanes = None,
    region: Region = None,
    limit: Limit = None,
    max_seconds: MaxSeconds = 50.0,
    take_over: TakeOver = None,
    dry_run: DryRun = False,
) -> int:
    """Settle what is in doubt by evidence, end what nobody waits for any more. Sends nothing."""
    from notifyctl.ticks import lanes as choosing
    from notifyctl.ticks.reconcile import Reconcile
    from notifyctl.ticks.reconcile_report import COUNTS
    from notifyctl.ticks.run import Run

    config = session.config
    chosen = choosing.chosen(config, lane or [], None)
    home = config.region if region is None else region
    if take_over is not None and take_over == home:
        raise UsageError(
            f"--take-over names the lost region, and {home or '(none)'!r} is the one that receives",
            hint="say with --region which region receives",
        )
    ledger = session.ledger()
    try:
        run = Run(config, ledger, "reconcile", max_seconds=max_seconds, limit=limit)
        tick = Reconcile(run, chosen, home, lost=take_over)
        if dry_run:
            document = tick.rehearse()
            if session.out.json:
                session.out.document(document)
            else:
                doubt = f"{document['in_doubt']} in doubt to be decided"
                said = filter(None, (counted(document, COUNTS), doubt))
                session.out.text(f"reconcile would begin with: {', '.join(said)}")
            return EXIT_OK
        code = tick()
        for fault in tick.faults.values():
            session.out.complain(f"{fault.message}; its deliveries wait{f': {fault.hint}' if fault.hint else ''}")
        document = tick.document()
        if take_over is not None and not document["taken_over"]:
            session.out.complain(f"region {take_over!r} holds no work that could be taken over; is that its name?")
        if session.out.json:
            session.out.document(document)
        else:
            session.out.ran("reconcile", document, COUNTS, tick.report.reasons, code)
        return code
    finally:
        ledger.close()
