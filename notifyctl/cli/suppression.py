"""`suppression add|lift|import|list`: who must not be contacted on which channel."""

from __future__ import annotations

from typing import Annotated

import typer

from notifyctl.cli import operator
from notifyctl.cli import register as registering
from notifyctl.cli.options import DryRun, Session, command, family
from notifyctl.cli.register import Format, OnChannel, Recipient, Source
from notifyctl.errors import EXIT_OK

app = family(no_args_is_help=True, help="Say who must not be contacted on which channel.")

Reason = Annotated[
    str | None,
    typer.Option(
        "--reason",
        metavar="TEXT",
        help="Required: opted_out, complained, hard_bounce, invalid_recipient (these two: only the current address), "
        "or a text.",
    ),
]
Why = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Required; kept in the history.")]


@command(app, "add")
def add(
    session: Session,
    recipient: Recipient = None,
    channel: OnChannel = None,
    reason: Reason = None,
    dry_run: DryRun = False,
) -> int:
    """Suppress a recipient on a channel; what waits for them is settled with it."""
    values = {**registering.pair(recipient, channel), "reason": operator.stated(reason)}
    with registering.register(session, dry_run=dry_run) as book:
        return registering.one(session, "suppressed", values, book.suppress, book)


@command(app, "lift")
def lift(
    session: Session,
    recipient: Recipient = None,
    channel: OnChannel = None,
    reason: Why = None,
    dry_run: DryRun = False,
) -> int:
    """Lift all suppressions of a recipient on a channel; the history stays."""
    values = registering.pair(recipient, channel)
    note = operator.stated(reason)
    with registering.register(session, dry_run=dry_run) as book:
        code = book.lift(values["recipient"], values["channel"], note)
        if session.out.json:
            session.out.document(book.document())
        elif book.counts["changed"]:
            session.out.text("would be lifted" if dry_run else "lifted; what it settled can go: notifyctl requeue")
        else:
            session.out.text("nothing is suppressed there")
        return code


@command(app, "import")
def bring(session: Session, source: Source = None, format: Format = None, dry_run: DryRun = False) -> int:
    """Suppress many: rows with recipient, channel and reason; safe to rerun."""
    with registering.register(session, dry_run=dry_run) as book:
        return registering.many(session, source, format, book.suppress, book)


@command(app, "list")
def listing(session: Session, recipient: Recipient = None, channel: OnChannel = None) -> int:
    """List the suppressions in force."""
    from notifyctl.ledger import people

    on = registering.one_channel(channel)
    if recipient is not None:
        operator.text("--recipient", recipient)
    ledger = session.ledger()
    try:
        found = ledger.read(lambda tx: people.suppressions(tx, recipient, on))
    finally:
        ledger.close()
    columns = {
        "RECIPIENT": "recipient", "CHANNEL": "channel", "REASON": "reason", "SCOPE": "scope", "SINCE": "at",
        "BY": "actor", "NOTE": "note",
    }  # fmt: skip
    registering.listed(session, found, columns, "nobody is suppressed")
    return EXIT_OK
