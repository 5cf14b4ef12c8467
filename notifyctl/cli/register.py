"""What the commands about recipients share: their options, one row or a file of them, and what is said afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from notifyctl.cli import operator
from notifyctl.cli.options import Session
from notifyctl.errors import UsageError

if TYPE_CHECKING:
    from notifyctl.model import Channel
    from notifyctl.ticks.people import Register

Recipient = Annotated[str | None, typer.Option("--recipient", metavar="ID", help="The reference to the person.")]
OnChannel = Annotated[str | None, typer.Option("--channel", metavar="CHANNEL", help="email or sms.")]
Source = Annotated[str | None, typer.Option("--from", metavar="FILE|-", help="A file, or standard input.")]
Format = Annotated[str | None, typer.Option("--format", metavar="FORMAT", help="ndjson or csv; else by its name.")]


@contextmanager
def register(session: Session, *, dry_run: bool) -> Iterator[Register]:
    """The open ledger, ready to be told of recipients by this operator."""
    from notifyctl.ledger import runs
    from notifyctl.ticks.people import Register

    config, ledger = session.config, session.ledger()
    try:
        yield Register(config, ledger, runs.keys(ledger), operator.login(), dry_run)
    finally:
        ledger.close()


def one(session: Session, say: str, values: Mapping[str, Any], write: Callable[[Any], int], book: Register) -> int:
    """Write one row; its refusal is the command's failure. `say`: what has been done, in a word."""
    from notifyctl.ticks.bulk import Row

    code = write([Row(1, dict(values))])
    if book.first_error is not None:
        raise book.first_error
    report(session, say, book)
    return code


def many(session: Session, source: str | None, format: str | None, write: Callable[[Any], int], book: Register) -> int:
    """Write all rows of a file."""
    from notifyctl.cli.enqueue import open_rows

    if source is None:
        raise UsageError("--from is missing", hint="name a file, or - for NDJSON on standard input")
    with open_rows(source, format, {}, ("recipient", "channel", "reason", "note", "topic", "granted")) as rows:
        code = write(rows)
    if not session.out.json:
        for error in book.errors[:10]:
            where = f" ({error['field']})" if error["field"] else ""
            session.out.complain(f"row {error['row']}: {error['reason']}{where}")
        if book.counts["rejected"] > 10:
            session.out.complain("… --json lists up to 100 of them")
    report(session, "added", book)
    return code


def report(session: Session, say: str, book: Register) -> None:
    """Say what has changed."""
    if session.out.json:
        session.out.document(book.document())
        return
    counts = book.counts
    would = "would be " if book.dry_run else ""
    parts = [f"{counts['changed']} {would}{say}", *(["1 was so already"] if counts["unchanged"] == 1 else [])]
    parts += [f"{counts['unchanged']} were so already"] if counts["unchanged"] > 1 else []
    parts += [f"{counts['rejected']} rejected"] if counts["rejected"] else []
    waiting = "waiting delivery" if counts["settled"] == 1 else "waiting deliveries"
    parts += [f"{counts['settled']} {waiting} {would}suppressed"] if counts["settled"] else []
    session.out.text(", ".join(parts))


def pair(recipient: str | None, channel: str | None) -> dict[str, Any]:
    """The row that --recipient and --channel begin. Raises UsageError for what is missing."""
    for name, value in (("recipient", recipient), ("channel", channel)):
        if value is None:
            raise UsageError(f"--{name} is missing")
    return {"recipient": recipient, "channel": one_channel(channel)}


def one_channel(channel: str | None) -> Channel | None:
    """--channel as a value. Raises UsageError for what is none."""
    from notifyctl.model import Channel

    if channel is None:
        return None
    if channel not in set(Channel):
        raise UsageError(f"--channel is {channel!r}; it may be email or sms")
    return Channel(channel)


def listed(session: Session, rows: Iterable[Mapping[str, Any]], columns: Mapping[str, str], empty: str) -> None:
    """A list: one JSON document, or a table of `columns` (heading → key)."""
    found = list(rows)
    if session.out.json:
        session.out.document(found)
    elif not found:
        session.out.text(empty)
    else:
        session.out.table(tuple(columns), [[row[key] for key in columns.values()] for row in found])
