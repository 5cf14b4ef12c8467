"""`inspect`: where everything stands, one delivery and why it has not gone, lists of deliveries, events and runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from notifyctl import units
from notifyctl.cli.inspect_text import show_delivery, show_overview
from notifyctl.cli.options import Session, command, family, overview
from notifyctl.cli.reveal import Reveal, leave_trace, mask
from notifyctl.errors import InputError, UsageError
from notifyctl.model import State

if TYPE_CHECKING:
    from notifyctl.ledger.inspection import Filter, Row

app = family(help="See what stands where, why it has not gone yet, and what needs a person.")

FIRST_PAGE, PAGE = 200, 2000  # rows: little for `| head`, more where all is read
_ID = re.compile(r"[0-9]{1,18}")
HIDDEN = "…"

Which = Annotated[str, typer.Argument(metavar="ID|KEY", help="A delivery's id, or its idempotency key.")]
EventId = Annotated[str, typer.Argument(metavar="ID", help="The event's id.")]
States = Annotated[
    list[str] | None, typer.Option("--state", metavar="STATE", help="Only in this state (repeatable).")
]
InLane = Annotated[str | None, typer.Option("--lane", metavar="LANE", help="Only of this lane.")]
OfEvent = Annotated[str | None, typer.Option("--event", metavar="ID", help="Only of this event.")]
OfRecipient = Annotated[str | None, typer.Option("--recipient", metavar="ID", help="Only to this recipient.")]
RemoteId = Annotated[str | None, typer.Option("--remote-id", metavar="ID", help="Only with this provider's id.")]
WithReason = Annotated[str | None, typer.Option("--reason", metavar="REASON", help="Only with this reason code.")]
Since = Annotated[str | None, typer.Option("--since", metavar="TIME", help="Only enqueued at or after this time.")]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Only enqueued before this time.")]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, help="At most this many, the newest.")]


@overview(app)
def everything(session: Session) -> None:
    """Live deliveries by state, oldest ages, gates, last runs, and what needs a person."""
    from notifyctl.ticks.overview import overview as look

    config = session.config
    document = session.ledger().read(lambda tx: look(tx, config))
    if session.out.json:
        session.out.document(document)
    else:
        show_overview(session.out, document)


@command(app, "delivery")
def one(session: Session, which: Which, reveal: Reveal = False) -> None:
    """Everything about one delivery: where it stands, why it has not gone, and its timeline."""
    from notifyctl.ledger import inspection
    from notifyctl.ticks import explain

    config, ledger = session.config, session.ledger()
    wanted = int(which) if _ID.fullmatch(which) else _text("ID|KEY", which)
    explained = ledger.read(lambda tx: explain.look(tx, wanted, config))
    if explained is not None and reveal:
        leave_trace(ledger, [explained.found.delivery["id"]], "inspect delivery")
        explained = ledger.read(lambda tx: explain.look(tx, wanted, config))
    if explained is None:
        gone = isinstance(wanted, str) and ledger.read(lambda tx: inspection.pruned(tx, wanted))
        raise InputError(
            "that delivery has been removed by retention" if gone else f"there is no delivery {_quoted(which)}",
            reason="unknown_delivery",
            field="id",
            hint="look for it: notifyctl inspect deliveries --event ID, or --recipient ID",
        )
    found = explained.found
    if session.out.json:
        session.out.document(
            {
                **public(found.delivery, reveal=reveal),
                "work": found.work,
                "why": [{"reason": one.reason, "until": one.until, "detail": one.detail} for one in explained.why],
                "attempts": found.attempts,
                "transitions": found.transitions,
                "receipts": found.receipts,
            }
        )
    else:
        shown = found.delivery["destination"] or found.address
        destination = mask(found.delivery["channel"], shown, reveal=reveal) if shown else None
        show_delivery(session.out, explained, destination)


@command(app, "deliveries")
def deliveries(
    session: Session,
    state: States = None,
    lane: InLane = None,
    event: OfEvent = None,
    recipient: OfRecipient = None,
    remote_id: RemoteId = None,
    reason: WithReason = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 100,
    reveal: Reveal = False,
) -> None:
    """List deliveries, the newest first; all filters given must hold."""
    from notifyctl.ledger import inspection

    wanted = _filter(state, lane, event, recipient, remote_id, reason, since, until)
    ledger, out = session.ledger(), session.out
    pages = _pages(lambda size, last: ledger.read(lambda tx: inspection.page(tx, wanted, size, last)), limit)
    columns = ("ID", "STATE", "REASON", "CHANNEL", "LANE", "EVENT", "RECIPIENT", "DESTINATION", "DUE", "ATTEMPTS")
    for number, page in enumerate(pages):
        if out.gone:
            break
        if reveal:
            leave_trace(ledger, [row["id"] for row in page], "inspect deliveries")
        if out.json:
            for row in page:
                out.line(public(row, reveal=reveal))
        elif page:
            out.table(columns, [_listed(row, reveal) for row in page])
        elif number == 0:
            out.text("no delivery matches")


@command(app, "event")
def event(session: Session, event_id: EventId) -> None:
    """What became of one event: how many deliveries were enqueued, accepted and settled."""
    from notifyctl.ledger import inspection

    wanted = _text("ID", event_id)
    counts = session.ledger().read(lambda tx: inspection.event(tx, wanted))
    if not counts:
        raise InputError(
            f"there is no delivery of event {_quoted(event_id)}",
            reason="unknown_event",
            field="event",
            hint="was it enqueued? see the last runs: notifyctl inspect runs",
        )
    if not session.out.json:
        session.out.table(("CHANNEL", "STATE", "ENQUEUED", "ACCEPTED", "SETTLED"), counts)
        return
    channels: dict[str, dict[str, int]] = {}
    totals = {"enqueued": 0, "accepted": 0, "settled": 0}
    for channel, state, enqueued, accepted, settled in counts:
        channels.setdefault(channel, {})[state] = enqueued
        totals["enqueued"] += enqueued
        totals["accepted"] += accepted
        totals["settled"] += settled
    session.out.document({"event": event_id, **totals, "channels": channels})


@command(app, "runs")
def runs(session: Session, limit: Limit = 20) -> None:
    """List runs, the newest first."""
    from notifyctl.ledger import inspection

    ledger, out = session.ledger(), session.out
    pages = _pages(lambda size, last: ledger.read(lambda tx: inspection.runs(tx, size, last)), limit)
    for number, page in enumerate(pages):
        if out.gone:
            break
        if out.json:
            for row in page:
                out.line(row)
        elif page:
            rows = [(r["started"], r["finished"], r["command"], r["exit_code"], r["host"], r["id"]) for r in page]
            out.table(("STARTED", "FINISHED", "COMMAND", "EXIT", "HOST", "RUN"), rows)
        elif number == 0:
            out.text("no run yet")


def public(row: Row, *, reveal: bool = False) -> Row:
    """A delivery as it may be shown: the address masked, unless revealed; of variables and attachments no value, key
    or file name."""
    masked = dict(row)
    if row["destination"]:
        masked["destination"] = mask(row["channel"], row["destination"], reveal=reveal)
    masked["variables"] = dict.fromkeys(row["variables"], HIDDEN)
    masked["attachments"] = [
        {name: value if name in ("sha256", "content_type") else HIDDEN for name, value in one.items()}
        for one in row["attachments"]
        if isinstance(one, dict)
    ]
    return masked


def _listed(row: Row, reveal: bool) -> tuple[Any, ...]:
    destination = mask(row["channel"], row["destination"], reveal=reveal) if row["destination"] else None
    return (
        row["id"], row["state"], row["reason"] or None, row["channel"], row["lane"], row["event_id"],
        row["recipient_id"], destination, row["due_at"], row["attempts_used"],
    )  # fmt: skip


def _pages(read: Callable[[int, Row | None], list[Row]], limit: int) -> Iterator[list[Row]]:
    """Pages until `limit` or the end, each a transaction of its own: nothing is held while a reader takes its time."""
    size, last = FIRST_PAGE, None
    while limit > 0:
        page = read(min(size, limit), last)
        yield page
        if len(page) < min(size, limit):
            return
        limit -= len(page)
        size, last = PAGE, page[-1]


def _filter(
    states: list[str] | None,
    lane: str | None,
    event: str | None,
    recipient: str | None,
    remote_id: str | None,
    reason: str | None,
    since: str | None,
    until: str | None,
) -> Filter:
    """The filters as the ledger takes them. Raises UsageError naming the option."""
    from notifyctl.ledger.inspection import Filter

    texts = {
        "lane": lane, "event": event, "recipient": recipient, "remote_id": remote_id, "reason": reason,
    }  # fmt: skip
    for name, value in texts.items():
        if value is not None:
            _text(f"--{name.replace('_', '-')}", value)
    begin, end = _instant("--since", since), _instant("--until", until)
    if begin and end and begin >= end:
        raise UsageError("--until is not after --since", hint="since is included, until is not")
    return Filter(states=tuple(_state(word) for word in states or ()), since=begin, until=end, **texts)


def _state(word: str) -> State:
    try:
        return State(word)
    except ValueError:
        from difflib import get_close_matches

        near = get_close_matches(word, list(State), n=1)
        hint = f"did you mean {near[0]}?" if near else f"it may be {', '.join(State)}"
        raise UsageError(f"--state {word!r} is not a state", hint=hint) from None


def _instant(option: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return units.instant(text)
    except InputError as error:
        raise UsageError(f"{option}: {error.message}", hint=error.hint) from None


def _quoted(identifier: str) -> str:
    """An identifier for a message; one that may be an address is not repeated."""
    return "with that id" if "@" in identifier else identifier


def _text(option: str, value: str) -> str:
    """`value`, unless it holds bytes that are no text in this locale: no database could be asked for them."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{option} is not a text in this locale's encoding") from None
    return value
