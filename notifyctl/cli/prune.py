"""`prune`: remove what ended long ago."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from notifyctl.cli import operator
from notifyctl.cli.options import DryRun, Session, Yes, command, family
from notifyctl.errors import InputError, UsageError

app = family()


@command(app, "prune")
def prune(
    session: Session,
    older_than: Annotated[
        str | None, typer.Option("--older-than", metavar="DURATION", help="Instead of retention.terminal.")
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Remove deliveries that ended long ago; what is due, in doubt or a person's stays, and every key is remembered."""
    from notifyctl.ledger import retention

    age = session.config.retention_terminal if older_than is None else _seconds(older_than)
    ledger = session.ledger()
    try:
        before = ledger.read(lambda tx: tx.now) - timedelta(seconds=age)
        states = ledger.read(lambda tx: retention.count(tx, before))
        if not dry_run:
            count = sum(states.values())
            if count > operator.MANY:
                operator.confirm(session.out, f"{count} deliveries would be removed for good.", yes=yes)
            states = retention.prune(ledger, before)
    finally:
        ledger.close()
    count = sum(states.values())
    if session.out.json:
        session.out.document({"dry_run": dry_run, "before": before, "pruned": count, "states": states})
        return
    by_state = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
    line = f"{count} {'would be ' if dry_run else ''}removed{f': {by_state}' if by_state else ''}"
    if dry_run:
        session.out.text(line)
    else:
        session.out.summary(line)


def _seconds(text: str) -> float:
    from notifyctl import units

    try:
        seconds = units.duration(text)
    except InputError as error:
        raise UsageError(f"--older-than: {error.message}", hint=error.hint) from None
    if seconds <= 0:
        raise UsageError("--older-than is no time at all", hint='such as "400d" or "12w"')
    return seconds
