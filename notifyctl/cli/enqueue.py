"""`enqueue`: one intent from options, or many from a file."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from notifyctl.cli.options import DryRun, Session, command, family
from notifyctl.errors import InputError, UsageError

app = family()


_TO = "For this delivery; kept as the recipient's endpoint only if there is none."


def _option(name: str, metavar: str, text: str) -> Any:
    return typer.Option(name, metavar=metavar, help=text)


@command(app, "enqueue")
def enqueue(
    session: Session,
    event: Annotated[str | None, _option("--event", "ID", "The business event; the same again is a duplicate.")] = None,
    recipient: Annotated[str | None, _option("--recipient", "ID", "An opaque reference to the person.")] = None,
    channel: Annotated[list[str] | None, _option("--channel", "CHANNEL", "email or sms (repeatable).")] = None,
    template: Annotated[str | None, _option("--template", "NAME[@VERSION]", "Without a version: the newest.")] = None,
    locale: Annotated[str | None, _option("--locale", "LOCALE", "Falls back de-AT, de, the default.")] = None,
    var: Annotated[list[str] | None, _option("--var", "K=V", "A template variable (repeatable).")] = None,
    variables: Annotated[str | None, _option("--vars", "JSON|@FILE", "All variables as one object.")] = None,
    to: Annotated[list[str] | None, _option("--to", "CHANNEL=ADDRESS", _TO)] = None,
    at: Annotated[str | None, _option("--at", "TIME", "Due then; with an offset or a named zone.")] = None,
    delay: Annotated[str | None, _option("--in", "DURATION", "Due so long from now.")] = None,
    expires_in: Annotated[str | None, _option("--expires-in", "DURATION", "Not sent after so long.")] = None,
    expires_at: Annotated[str | None, _option("--expires-at", "TIME", "Not sent after that.")] = None,
    attach: Annotated[
        list[str] | None, _option("--attach", "KEY[=SHA256][;name=FILENAME]", "An object to attach (repeatable).")
    ] = None,
    topic: Annotated[str | None, _option("--topic", "TOPIC", "What the recipient has consented to.")] = None,
    lane: Annotated[str | None, _option("--lane", "LANE", "Instead of the topic's or the channel's.")] = None,
    region: Annotated[str | None, _option("--region", "REGION", "The delivery's home region.")] = None,
    sensitive: Annotated[bool, typer.Option("--sensitive", help="Erase the variables once it is settled.")] = False,
    source: Annotated[str | None, _option("--from", "FILE|-", "Many: a file, or standard input.")] = None,
    format: Annotated[str | None, _option("--format", "FORMAT", "ndjson or csv; else by the file's name.")] = None,
    dry_run: DryRun = False,
) -> int:
    """Validate intents and put them into the ledger; what is there already is counted as a duplicate."""
    stated = _stated(
        event=event, recipient=recipient, channel=channel, template=template, locale=locale, at=at,
        expires_in=expires_in, expires_at=expires_at, topic=topic, lane=lane, region=region, attach=attach,
    ) | _stated(**{"in": delay})  # fmt: skip
    given = parse_variables(var or [], variables)
    if given:
        stated["vars"] = given
    addresses = parse_addresses(to or [])
    if addresses:
        stated["to"] = addresses
    if sensitive:
        stated["sensitive"] = True
    if source is None:
        if format is not None:
            raise UsageError("--format goes with --from")
        for name in ("event", "recipient", "channel", "template"):
            if name not in stated:
                raise UsageError(f"--{name} is missing", hint="see: notifyctl enqueue --help")
    return _run(session, stated, source, format, dry_run)


def _run(session: Session, stated: dict[str, Any], source: str | None, format: str | None, dry_run: bool) -> int:
    from notifyctl.ticks.bulk import Row
    from notifyctl.ticks.enqueue import Enqueue
    from notifyctl.ticks.intents import KEYS
    from notifyctl.ticks.run import Run

    config = session.config
    ledger = session.ledger()
    try:
        run = Run(config, ledger, "enqueue")
        tick = Enqueue(run, dry_run=dry_run)
        if source is None:
            code = tick([Row(1, stated)])
        else:
            with open_rows(source, format, stated, KEYS) as rows:
                code = tick(rows)
        if session.out.json:
            session.out.document(tick.document())
        _say(session, tick, single=source is None, dry_run=dry_run)
        return code
    finally:
        ledger.close()


def _say(session: Session, tick: Any, *, single: bool, dry_run: bool) -> None:
    out = session.out
    if single and tick.first_error is not None:
        if out.json:
            out.failure(tick.first_error)
            return
        raise tick.first_error
    for error in tick.errors[:10]:
        where = f" ({error['field']})" if error["field"] else ""
        out.complain(f"row {error['row']}: {error['reason']}{where}")
    for hint in list(tick.hints.values())[:3]:
        out.complain(f"  {hint}")
    if len(tick.errors) > 10:
        out.complain("… --json lists up to 100 of them")
    if tick.interrupted:
        out.complain("interrupted; run it again: what has been enqueued counts as a duplicate")
    counts = tick.counts
    parts = [f"{counts[name]} {name}" for name in ("enqueued", "duplicate", "conflict", "suppressed", "rejected")]
    verb = "would be: " if dry_run else ""
    said = ", ".join(part for part in parts if single or not part.startswith("0 "))
    ids = f", delivery {', '.join(map(str, tick.ids))}" if single and tick.ids else ""
    sms = f", {tick.sms[1]} segments {tick.sms[0]}" if single and tick.sms else ""
    out.summary(f"{counts['selected']} selected, {verb}{said or 'nothing'}{ids}{sms}")


def _stated(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None and value != []}


def parse_variables(pairs: list[str], document: str | None) -> dict[str, Any]:
    """The variables that --var and --vars state; --var wins. Raises UsageError or InputError."""
    variables: dict[str, Any] = {}
    if document is not None:
        text = document
        if document.startswith("@"):
            try:
                text = Path(document[1:]).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError):
                raise UsageError(
                    "the file that --vars names cannot be read", hint="a UTF-8 file with one JSON object"
                ) from None
        try:
            variables = json.loads(text)
        except (ValueError, RecursionError):
            raise InputError("--vars is not JSON", reason="invalid", field="vars") from None
        if not isinstance(variables, dict):
            raise InputError("--vars is not a JSON object", reason="invalid", field="vars")
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UsageError("--var is not NAME=VALUE")
        variables[name] = value
    return variables


def parse_addresses(pairs: list[str]) -> dict[str, str]:
    """The addresses that CHANNEL=ADDRESS options state, by channel. Raises UsageError."""
    addresses: dict[str, str] = {}
    for pair in pairs:
        channel, equals, address = pair.partition("=")
        if not equals or channel not in ("email", "sms"):
            raise UsageError("--to is not email=ADDRESS or sms=NUMBER")
        if channel in addresses:
            raise UsageError(f"--to {channel}= is given twice", hint="one intent has one address on each channel")
        addresses[channel] = address
    return addresses


@contextmanager
def open_rows(
    source: str, format: str | None, stated: dict[str, Any], columns: Collection[str]
) -> Iterator[Iterator[Any]]:
    """The rows of FILE or -, each on top of what the options state."""
    from notifyctl.ticks import bulk

    kind = format or ("csv" if source.lower().endswith(".csv") else "ndjson")
    if kind not in ("ndjson", "csv"):
        raise UsageError(f"--format is {format!r}; it may be ndjson or csv")
    with _stream(source) as stream:
        rows = bulk.csv_rows(stream, columns) if kind == "csv" else bulk.ndjson(stream)
        yield (bulk.Row(row.number, _merged(stated, row.values), row.error) for row in rows)


def _merged(stated: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """A row may override any option; variables and addresses are overridden one by one."""
    merged = {**stated, **values}
    for key in ("vars", "to"):
        if isinstance(stated.get(key), dict) and isinstance(values.get(key), dict):
            merged[key] = {**stated[key], **values[key]}
    return merged


@contextmanager
def _stream(source: str) -> Iterator[BinaryIO]:
    if source == "-":
        if sys.stdin is None:
            raise UsageError("standard input is closed")
        yield sys.stdin.buffer
        return
    try:
        stream = open(source, "rb")  # noqa: SIM115  (closed below; a bad name must be told apart from a bad row)
    except OSError as error:
        why = (error.strerror or "cannot be read").lower()
        raise InputError(f"{source}: {why}", reason="unreadable", hint="--from takes a readable file, or -") from None
    with stream:
        yield stream
