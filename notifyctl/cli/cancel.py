"""`cancel`: withdraw what has not begun."""

from __future__ import annotations

from typing import Annotated

import typer

from notifyctl.cli import operator
from notifyctl.cli.options import DryRun, Session, Yes, command, family
from notifyctl.errors import EXIT_DATA, EXIT_OK, InputError, UsageError

app = family()


@command(app, "cancel")
def cancel(
    session: Session,
    wanted: Annotated[
        list[str] | None, typer.Argument(metavar="[ID|KEY]…|-", help="Delivery ids or keys; -: from standard input.")
    ] = None,
    event: Annotated[str | None, typer.Option("--event", metavar="ID", help="All of this event.")] = None,
    batch: Annotated[
        str | None, typer.Option("--batch", metavar="NAME", help="All of this batch: of a requeue, a run, an insert.")
    ] = None,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Required; kept in the trail.")] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> int:
    """Withdraw what has not begun, also what a run has claimed; what a provider has is beyond recall."""
    note = operator.stated(reason)
    if sum((bool(wanted), event is not None, batch is not None)) != 1:
        raise UsageError("cancel takes ids, --event or --batch: one of them", hint="see: notifyctl cancel --help")
    for option, value in (("--event", event), ("--batch", batch)):
        if value is not None:
            operator.text(option, value)
    given = operator.references(wanted or [])
    from notifyctl.ledger import operate, runs
    from notifyctl.model import State
    from notifyctl.ticks.operate import Operator

    ledger = session.ledger()
    try:
        if wanted:
            ids, missing = ledger.read(lambda tx: operator.resolve(tx, given))
        else:
            chosen = operate.Filter(event=event, batch=batch)
            ids, missing = ledger.read(lambda tx: operate.matching(tx, chosen)), []
            if not ids:
                raise _unknown(event, batch)
        if not dry_run and len(ids) > operator.MANY:
            operator.confirm(session.out, f"{len(ids)} deliveries would be cancelled.", yes=yes)
        settles = Operator(session.config, ledger, runs.keys(ledger), dry_run=dry_run)
        outcome = settles.cancel(ids, operate.Action(operator.login(), note, goal=State.CANCELLED))
    finally:
        ledger.close()
    refused = [*missing, *outcome.refused]
    if session.out.json:
        session.out.document(
            {"matched": len(ids), "cancelled": len(outcome.moved), "refused": len(refused),
             "refusals": operator.refusals(refused)}
        )  # fmt: skip
    else:
        operator.say_refusals(session.out, refused)
        would = "would be " if dry_run else ""
        session.out.text(f"{len(outcome.moved)} {would}cancelled, {len(refused)} refused")
    return EXIT_DATA if refused else EXIT_OK


def _unknown(event: str | None, batch: str | None) -> InputError:
    what, name = ("event", event) if event is not None else ("batch", batch)
    shown = "with that name" if name and "@" in name else name  # it may be an address
    return InputError(
        f"there is no delivery of {what} {shown}; nothing has been cancelled", reason=f"unknown_{what}", field=what,
        hint="look for it: notifyctl inspect deliveries --recipient ID, or notifyctl inspect runs",
    )  # fmt: skip
