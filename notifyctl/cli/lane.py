"""`lane pause|resume|list`: stop and start what goes out, and see what stops it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from notifyctl.cli import operator
from notifyctl.cli.options import DryRun, Session, command, family
from notifyctl.errors import EXIT_OK

if TYPE_CHECKING:
    from notifyctl.ledger.gate import Gate
    from notifyctl.ticks.gates import Standing

app = family(no_args_is_help=True, help="Pause and resume lanes, and see what stops them.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="A lane of the configuration.")]
Reason = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Required; kept in the history.")]


@command(app, "pause")
def pause(session: Session, name: Name, reason: Reason = None, dry_run: DryRun = False) -> int:
    """Let nothing more of a lane go out until it is resumed; what is already on its way ends as it will."""
    changed, lane = _change(session, "pause", name, reason, dry_run=dry_run)
    if session.out.json:
        _document(session, changed, lane, dry_run=dry_run)
    elif changed:
        would = "would be paused" if dry_run else "is paused"
        session.out.text(f"lane {name} {would}; {_due(lane)}. To go on: notifyctl lane resume {name} --reason TEXT")
    else:
        held = next(one for one in lane.gates if one.scope == "lane")
        session.out.text(f"lane {name} is paused already, by {held.by or 'somebody'}{_because(held)}")
    return EXIT_OK


@command(app, "resume")
def resume(session: Session, name: Name, reason: Reason = None, dry_run: DryRun = False) -> int:
    """End the pause of a lane; the next dispatch takes what is due."""
    changed, lane = _change(session, "resume", name, reason, dry_run=dry_run)
    if session.out.json:
        _document(session, changed, lane, dry_run=dry_run)
        return EXIT_OK
    if changed:
        session.out.text(f"lane {name} {'would be' if dry_run else 'is'} resumed; {_due(lane)}")
    else:
        session.out.text(f"lane {name} is not paused: nothing to resume")
    for one in lane.gates:
        if one.scope == "transport":
            session.out.text(f"but its {words(one)}")
    return EXIT_OK


@command(app, "list")
def listing(session: Session) -> int:
    """List the configured lanes: what is due, and which pause, cool-down, breaker or probe stands before it."""
    from notifyctl.ticks import gates

    config, ledger = session.config, session.ledger()
    try:
        found = ledger.read(lambda tx: gates.standing(tx, config, config.lanes.values()))
    finally:
        ledger.close()
    if session.out.json:
        session.out.document([one.document for one in found])
        return EXIT_OK
    rows = [
        (one.lane.name, one.lane.channel.value, one.lane.transport, one.due, "; ".join(map(words, one.gates)) or None)
        for one in found
    ]
    session.out.table(("LANE", "CHANNEL", "TRANSPORT", "DUE", "CLOSED BY"), rows)
    return EXIT_OK


def _change(session: Session, what: str, name: str, reason: str | None, *, dry_run: bool) -> tuple[bool, Standing]:
    from notifyctl.ticks import gates

    said, actor, config = operator.stated(reason), operator.login(), session.config
    lane = gates.configured(config, name)
    ledger = session.ledger()
    try:
        act = gates.pause if what == "pause" else gates.resume
        return act(ledger, config, lane, reason=said, actor=actor, dry_run=dry_run)
    finally:
        ledger.close()


def _document(session: Session, changed: bool, lane: Standing, *, dry_run: bool) -> None:
    document: dict[str, Any] = {"dry_run": dry_run, "changed": changed, **lane.document}
    session.out.document(document)


def _due(lane: Standing) -> str:
    return f"{lane.due} due"


def _because(one: Gate) -> str:
    return f" ({one.reason})" if one.reason else ""


def words(one: Gate) -> str:
    """What a gate closes, how, until when, and who closed it why."""
    from notifyctl import units

    if one.due:
        return f"{one.scope} {one.name}: {one.kind} over, the next attempt is its probe{_because(one)}"
    until = f"until {units.iso(one.until.replace(microsecond=0))}" if one.until else "until resumed"
    state = f"{one.kind}, a probe is out" if one.prober else one.kind
    by = f" by {one.by}" if one.kind == "pause" and one.by else ""
    level = f", level {one.level}" if one.level else ""
    return f"{one.scope} {one.name}: {state} {until}{by}{_because(one)}{level}"
