"""`consent grant|revoke|import|show`: what recipients have agreed to, by topic and channel."""

from __future__ import annotations

from typing import Annotated

import typer

from notifyctl.cli import operator
from notifyctl.cli import register as registering
from notifyctl.cli.options import DryRun, Session, command, family
from notifyctl.cli.register import Format, OnChannel, Recipient, Source
from notifyctl.errors import EXIT_OK, UsageError

app = family(no_args_is_help=True, help="Record what recipients have agreed to.")

Topic = Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="A configured topic.")]


@command(app, "grant")
def grant(
    session: Session,
    recipient: Recipient = None,
    channel: OnChannel = None,
    topic: Topic = None,
    dry_run: DryRun = False,
) -> int:
    """Record that a recipient agrees to a topic on a channel."""
    return _answer(session, recipient, channel, topic, granted=True, dry_run=dry_run)


@command(app, "revoke")
def revoke(
    session: Session,
    recipient: Recipient = None,
    channel: OnChannel = None,
    topic: Topic = None,
    dry_run: DryRun = False,
) -> int:
    """Record that a recipient refuses a topic; what waits of it is settled, other topics are not touched."""
    return _answer(session, recipient, channel, topic, granted=False, dry_run=dry_run)


@command(app, "import")
def bring(session: Session, source: Source = None, format: Format = None, dry_run: DryRun = False) -> int:
    """Record many: rows with recipient, channel, topic and granted (true if left out); safe to rerun."""
    with registering.register(session, dry_run=dry_run) as book:
        return registering.many(session, source, format, book.answer, book)


@command(app, "show")
def show(session: Session, recipient: Recipient = None, channel: OnChannel = None) -> int:
    """Show a recipient's newest answers."""
    from notifyctl.ledger import people

    if recipient is None:
        raise UsageError("--recipient is missing")
    who, on = operator.text("--recipient", recipient), registering.one_channel(channel)
    ledger = session.ledger()
    try:
        found = ledger.read(lambda tx: people.consents(tx, who, on))
    finally:
        ledger.close()
    columns = {"TOPIC": "topic", "CHANNEL": "channel", "GRANTED": "granted", "SINCE": "at", "BY": "actor"}
    registering.listed(session, found, columns, "nothing has been asked of this recipient")
    return EXIT_OK


def _answer(
    session: Session, recipient: str | None, channel: str | None, topic: str | None, *, granted: bool, dry_run: bool
) -> int:
    values = registering.pair(recipient, channel)
    if topic is None:
        raise UsageError("--topic is missing")
    values |= {"topic": topic, "granted": granted}
    with registering.register(session, dry_run=dry_run) as book:
        return registering.one(session, "granted" if granted else "revoked", values, book.answer, book)
