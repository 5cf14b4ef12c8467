"""`reconcile`: what only evidence, a mandate or a deadline can settle, in one bounded run."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from notifyctl.cli.options import DryRun, Lanes, Region, Session, command, family
from notifyctl.errors import EXIT_OK, UsageError

app = family()

Limit = Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="At most so many rows in this run.")]
MaxSeconds = Annotated[
    float, typer.Option("--max-seconds", metavar="S", min=0.0, help="Claim nothing more after so long.")
]
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
            _rehearsed(session, tick.rehearse())
            return EXIT_OK
        code = tick()
        for fault in tick.faults.values():
            session.out.complain(f"{fault.message}; its deliveries wait{f': {fault.hint}' if fault.hint else ''}")
        document = tick.document()
        if session.out.json:
            session.out.document(document)
        else:
            _say(session, document, tick.report.reasons, code)
        return code
    finally:
        ledger.close()


def _say(session: Session, document: dict[str, Any], reasons: dict[str, int], code: int) -> None:
    """A line for a terminal; under cron only where a person is needed."""
    line = f"reconcile: {_counts(document) or 'nothing due'} in {document['seconds']:.1f} s"
    if code == EXIT_OK:
        session.out.summary(line)
        return
    why = ", ".join(f"{reason} ({count})" for reason, count in sorted(reasons.items(), key=lambda r: -r[1])[:5])
    session.out.complain(f"{line}{f'; {why}' if why else ''}; see: notifyctl inspect")


def _rehearsed(session: Session, document: dict[str, Any]) -> None:
    if session.out.json:
        session.out.document(document)
    else:
        doubt = f"{document['in_doubt']} in doubt to be decided"
        session.out.text(f"reconcile would begin with: {', '.join(filter(None, (_counts(document), doubt)))}")


def _counts(document: dict[str, Any]) -> str:
    from notifyctl.ticks.reconcile_report import COUNTS

    return ", ".join(f"{document[name]} {name.replace('_', ' ')}" for name in COUNTS if document[name])
