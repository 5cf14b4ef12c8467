"""`requeue`: back to the queue what a person has looked at; or settle its doubt, or send it anew as another event."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from notifyctl.cli import operator
from notifyctl.cli.options import DryRun, Session, Yes, command, family
from notifyctl.errors import EXIT_DATA, EXIT_OK, InputError, UsageError

if TYPE_CHECKING:
    from notifyctl.ledger.database import Ledger
    from notifyctl.ledger.operate import Filter
    from notifyctl.ticks.operate import Outcome

app = family()


def _option(name: str, metavar: str, text: str) -> Any:
    return typer.Option(name, metavar=metavar, help=text)


@dataclass(frozen=True, slots=True)
class _Way:
    """What is to be done with what was chosen."""

    accept_duplicate: bool
    mark: str | None
    remote_id: str | None
    as_new_event: bool
    reset_attempts: bool
    expires_in: float | None

    def check(self) -> None:
        """Raises UsageError for what contradicts itself."""
        if self.mark not in (None, "accepted", "failed"):
            raise UsageError(f"--mark is {self.mark!r}; it may be accepted or failed")
        ways = [
            name
            for name, given in (
                ("--accept-duplicate", self.accept_duplicate),
                ("--mark", self.mark is not None),
                ("--as-new-event", self.as_new_event),
            )
            if given
        ]
        if len(ways) > 1:
            raise UsageError(f"{ways[0]} and {ways[1]} exclude each other")
        if self.remote_id is not None and self.mark == "failed":
            raise UsageError("--remote-id goes with --mark accepted: the id the provider gave it")
        if self.mark and (self.reset_attempts or self.expires_in is not None):
            raise UsageError("--mark sends nothing, so it goes with neither --reset-attempts nor --expires-in")

    @property
    def done(self) -> str:
        """What has been done, in a word."""
        if self.mark:
            return f"marked {self.mark}"
        return "sent anew" if self.as_new_event else "requeued"


@command(app, "requeue")
def requeue(
    session: Session,
    wanted: Annotated[
        list[str] | None, typer.Argument(metavar="[ID|KEY]…|-", help="Delivery ids or keys; -: from standard input.")
    ] = None,
    reason: Annotated[str | None, _option("--reason", "TEXT", "Required; kept in the trail.")] = None,
    state: Annotated[list[str] | None, _option("--state", "STATE", "All in this state (repeatable).")] = None,
    lane: Annotated[str | None, _option("--lane", "LANE", "All of this lane.")] = None,
    event: Annotated[str | None, _option("--event", "ID", "All of this event.")] = None,
    reason_code: Annotated[str | None, _option("--reason-code", "CODE", "All that ended for this reason.")] = None,
    recipient: Annotated[str | None, _option("--recipient", "ID", "All of this recipient.")] = None,
    since: Annotated[str | None, _option("--since", "TIME", "All created then or later.")] = None,
    until: Annotated[str | None, _option("--until", "TIME", "All created before.")] = None,
    accept_duplicate: Annotated[
        bool, typer.Option("--accept-duplicate", help="Send what is in doubt again, at the risk of a second copy.")
    ] = False,
    mark: Annotated[str | None, _option("--mark", "accepted|failed", "Settle what is in doubt as you found.")] = None,
    remote_id: Annotated[
        str | None,
        _option(
            "--remote-id", "ID", "The one the provider calls so; with --mark accepted: what the provider calls it."
        ),
    ] = None,
    as_new_event: Annotated[
        bool, typer.Option("--as-new-event", help="Make one new, linked delivery of each.")
    ] = False,
    expires_in: Annotated[str | None, _option("--expires-in", "DURATION", "A new expiry, from now.")] = None,
    reset_attempts: Annotated[
        bool, typer.Option("--reset-attempts", help="Grant all attempts again instead of one.")
    ] = False,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="At most so many.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All that match, also more than 100.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> int:
    """Send again what has ended and was never accepted; what is unresolved is checked again, never sent."""
    note = operator.stated(reason)
    way = _Way(accept_duplicate, mark, remote_id, as_new_event, reset_attempts, _seconds(expires_in))
    way.check()
    given_id = None if mark else remote_id
    chosen = _filter(state or [], lane, event, recipient, since, until, reason=reason_code, remote_id=given_id)
    if bool(wanted) == bool(chosen):
        raise UsageError(
            "requeue takes ids or a filter, not both" if wanted else "nothing says what to requeue",
            hint="name ids or keys, - for standard input, or a filter such as --state dead_letter; never all at once",
        )
    if limit is not None and every:
        raise UsageError("--limit and --all exclude each other")
    given = operator.references(wanted or [])
    ledger = session.ledger()
    try:
        return _run(session, ledger, given, chosen, way, note, limit, every=every, dry_run=dry_run, yes=yes)
    finally:
        ledger.close()


def _run(
    session: Session,
    ledger: Ledger,
    given: Sequence[str],
    chosen: Filter,
    way: _Way,
    note: str,
    limit: int | None,
    *,
    every: bool,
    dry_run: bool,
    yes: bool,
) -> int:
    from notifyctl.ledger import operate

    if given:
        ids, missing = ledger.read(lambda tx: operator.resolve(tx, given))
    else:
        ids, missing = ledger.read(lambda tx: operate.matching(tx, chosen, limit)), []
    ids = ids if limit is None else ids[:limit]
    if len(ids) > operator.MANY and limit is None and not every and not dry_run:
        raise UsageError(
            f"{len(ids)} deliveries match: more than {operator.MANY}",
            hint="say how many at most with --limit N, or mean all of them with --all; look first: --dry-run",
        )
    if way.mark and way.remote_id is not None and len(ids) != 1:
        raise UsageError("--remote-id belongs to one delivery", hint="mark one delivery at a time")
    if not dry_run and ids:
        _ask(session, len(ids), way, yes=yes)
    outcome, batch = _do(session, ledger, ids, way, note, dry_run=dry_run)
    refused = [*missing, *outcome.refused]
    if session.out.json:
        session.out.document(
            {"batch": batch, "matched": len(ids), "requeued": len(outcome.moved), "refused": len(refused),
             "refusals": operator.refusals(refused)}
        )  # fmt: skip
    else:
        operator.say_refusals(session.out, refused)
        would = "would be " if dry_run else ""
        named = f" (batch {batch})" if batch and outcome.moved else ""
        session.out.text(f"{len(outcome.moved)} {would}{way.done}, {len(refused)} refused{named}")
    return EXIT_DATA if refused else EXIT_OK


def _ask(session: Session, count: int, way: _Way, *, yes: bool) -> None:
    noun = "delivery" if count == 1 else "deliveries"
    if way.accept_duplicate:
        question = f"{count} {noun} may reach people a second time."
    elif count > operator.MANY:
        question = f"{count} {noun} would be {way.done}."
    else:
        return
    operator.confirm(session.out, question, yes=yes)


def _do(
    session: Session, ledger: Ledger, ids: Sequence[int], way: _Way, note: str, *, dry_run: bool
) -> tuple[Outcome, str | None]:
    from notifyctl.ledger import runs
    from notifyctl.ledger.operate import Action
    from notifyctl.model import State
    from notifyctl.ticks.operate import Operator

    settles = Operator(session.config, ledger, runs.keys(ledger), way.reset_attempts, dry_run)
    actor = operator.login()
    if way.mark:
        goal = State.ACCEPTED if way.mark == "accepted" else State.PERMANENT_FAILURE
        action = Action(actor, note, goal=goal, remote_id=way.remote_id)
        return settles.mark(ids, action, accepted=way.mark == "accepted"), None
    batch = f"requeue-{runs.new_id()}"
    expires_at = None if way.expires_in is None else ledger.now() + timedelta(seconds=way.expires_in)
    action = Action(actor, f"{note} [{batch}]", batch=batch, expires_at=expires_at)
    if way.as_new_event:
        outcome = settles.send_anew(ids, action)
    else:
        outcome = settles.requeue(ids, action, accept_duplicate=way.accept_duplicate)
    return outcome, None if dry_run else batch


def _seconds(text: str | None) -> float | None:
    from notifyctl import units

    if text is None:
        return None
    try:
        seconds = units.duration(text)
    except InputError as error:
        raise UsageError(f"--expires-in: {error.message}", hint=error.hint) from None
    if seconds <= 0:
        raise UsageError("--expires-in is no time at all", hint='such as "2h" or "3d"')
    return seconds


def _filter(
    states: list[str],
    lane: str | None,
    event: str | None,
    recipient: str | None,
    since: str | None,
    until: str | None,
    **texts: str | None,
) -> Filter:
    from notifyctl import units
    from notifyctl.ledger.operate import Filter
    from notifyctl.model import State

    unknown = sorted(set(states) - set(State))
    if unknown:
        raise UsageError(f"--state is {unknown[0]!r}; it may be {', '.join(State)}")
    texts |= {"lane": lane, "event": event, "recipient": recipient}
    for name, value in texts.items():
        if value is not None:
            operator.text(f"--{'reason-code' if name == 'reason' else name.replace('_', '-')}", value)
    times = {}
    for name, text in (("since", since), ("until", until)):
        try:
            times[name] = None if text is None else units.instant(text)
        except InputError as error:
            raise UsageError(f"--{name}: {error.message}", hint=error.hint) from None
    return Filter(
        states=tuple(dict.fromkeys(states)), since=times["since"], until=times["until"], **texts,
    )  # fmt: skip
