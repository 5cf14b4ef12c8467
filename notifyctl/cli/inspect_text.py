"""How `inspect` looks to people: the overview's tables and one delivery as a timeline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from notifyctl import units
from notifyctl.cli.output import Output

if TYPE_CHECKING:
    from notifyctl.ticks.explain import Explained, Why

WHAT = {
    "dead_letter": "dead letters: attempts or time exhausted",
    "held_ambiguous": "in doubt: may have been accepted, nothing can tell",
    "unresolved": "accepted, but the receipt deadline passed",
    "unroutable": "of a lane that is not configured",
    "refused": "refused before anything was sent: mend and requeue",
    "deferred": "waiting until somebody mends what they need",
    "stranded": "due for an hour in another region, and nobody is at it",
    "breaker_open": "transports that do not answer, or refuse this configuration",
}
Event = tuple[datetime, int, str, str]  # time, rank among those of the same instant, what, details


# -- the overview -----------------------------------------------------------------------------------------------


def show_overview(out: Output, document: Mapping[str, Any]) -> None:
    """Lanes, then what needs a person, then the last runs."""
    lanes = document["lanes"]
    # only what is somewhere: a narrow terminal has no room for columns of zeros
    states = [s for s in (lanes[0]["states"] if lanes else ()) if s == "queued" or any(x["states"][s] for x in lanes)]
    columns = ["LANE", "REGION", *(state.upper() for state in states), "OLDEST", "OBJECTIVE", "NOTES"]
    rows = [_lane(out, lane, states) for lane in lanes]
    if not any(lane["region"] for lane in lanes):
        columns, rows = [columns[0], *columns[2:]], [[row[0], *row[2:]] for row in rows]
    out.table(columns, rows)
    out.text()
    if document["needs_person"]:
        out.text(out.bold("needs a person"))
        waiting = [(one["count"], WHAT[one["what"]], one["command"]) for one in document["needs_person"]]
        out.table(("COUNT", "WHAT", "SEE"), waiting)
    else:
        out.text("nothing needs a person")
    if document["runs"]:
        out.text()
        out.text(out.bold("last runs"))
        ran = [(_second(r["started"]), r["command"], r["exit_code"], r["host"], r["id"]) for r in document["runs"]]
        out.table(("STARTED", "COMMAND", "EXIT", "HOST", "RUN"), ran)


def _lane(out: Output, lane: Mapping[str, Any], states: Sequence[str]) -> list[Any]:
    age, objective = lane["oldest_age_s"], lane["objective_s"]
    notes = ["not configured"] if objective is None else []
    if age is not None and objective is not None and age > objective:
        notes.append("over its objective")
    for gate in lane["gates"]:
        until = f"until {_second(gate['until'])}" if gate["until"] else "until resumed"
        reason = f" ({gate['reason']})" if gate["reason"] else ""
        state = f"{gate['kind']}, probe" if gate["state"] == "probe" else gate["kind"]
        notes.append(f"{gate['scope']} {gate['name']}: {state} {until}{reason}")
    counts = [lane["states"][state] for state in states]
    return [lane["lane"], lane["region"] or None, *counts, _age(out, age), _age(out, objective), "; ".join(notes)]


def _age(out: Output, seconds: float | None) -> str | None:
    """In words on a terminal, else plain seconds."""
    if seconds is None:
        return None
    if not out.is_tty:
        return f"{seconds:.0f}s"
    whole = int(seconds)
    for size, unit, smaller, below in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size}{unit}" + (f" {rest}{below}" if rest else "")
    return f"{whole}s"


def _second(moment: datetime) -> str:
    return units.iso(moment.replace(microsecond=0))


# -- one delivery -----------------------------------------------------------------------------------------------


def show_delivery(out: Output, explained: Explained, destination: str | None) -> None:
    """What it is; enqueued, claimed and accepted as the three facts they are; why not yet; what happened when."""
    found = explained.found
    delivery = found.delivery
    state = delivery["state"] + (f" ({delivery['reason']})" if delivery["reason"] else "")
    out.text(out.bold(f"delivery {delivery['id']}: {state}"))
    template = delivery["template"] + (f"@{delivery['template_version']}" if delivery["template_version"] else "")
    address = None if destination is None else destination + ("" if delivery["destination"] else " (endpoint)")
    facts = {
        "event": delivery["event_id"],
        "recipient": delivery["recipient_id"],
        "channel": delivery["channel"],
        "destination": address,
        "lane": delivery["lane"] + (f", region {delivery['region']}" if delivery["region"] else ""),
        "topic": delivery["topic"],
        "template": template + (f", locale {delivery['locale']}" if delivery["locale"] else ""),
        "key": delivery["idempotency_key"],
        "due": delivery["due_at"],
        "expires": delivery["expires_at"],
        "attempts": delivery["attempts_used"],
        "in doubt": delivery["doubt_since"] and f"since {units.iso(delivery['doubt_since'])}",
        "batch": delivery["batch"],
        "sent anew": delivery["origin_id"] and f"of delivery {delivery['origin_id']}",
        "enqueued": _enqueued(explained),
        "claimed": _claimed(explained),
        "accepted": _accepted(explained),
        "settled": delivery["settled_at"],
    }
    for name, value in facts.items():
        if value is not None:
            _fact(out, name, value)
    _why(out, explained)
    _doubt(out, delivery)
    out.text()
    out.text(out.bold("timeline"))
    rows = [(units.iso(at), what, details) for at, _, what, details in _timeline(explained)]
    out.table(("TIME", "WHAT", "DETAILS"), rows)


def _doubt(out: Output, delivery: Mapping[str, Any]) -> None:
    """How a person finds out, and what they then do."""
    if delivery["doubt_since"] is None or delivery["accepted_at"] is not None:
        return
    from notifyctl.ticks.explain import known_as

    out.text()
    out.text(out.bold("it may have been accepted: ask the provider, whose log knows it as"))
    out.text(f"  {known_as(delivery)}")
    for what, option in (("it was accepted", "--mark accepted"), ("it was not", "--mark failed"),
                         ("nobody can tell, and a second copy does no harm", "--accept-duplicate")):  # fmt: skip
        out.text(f"  {what}:")
        out.text(f"    notifyctl requeue {delivery['id']} {option} --reason TEXT")


def _fact(out: Output, name: str, value: Any) -> None:
    text = units.iso(value) if isinstance(value, datetime) else str(value)
    shown = "".join(character if character.isprintable() else "?" for character in text)
    out.text(f"  {name:<12} {shown}")


def _enqueued(explained: Explained) -> str:
    birth = next((one for one in explained.found.transitions if one["from"] is None), None)
    return units.iso(explained.found.delivery["created_at"]) + (f" by {birth['actor']}" if birth else "")


def _claimed(explained: Explained) -> str:
    work = explained.found.work
    if work is None:
        return f"no: nothing is left to do (token {explained.found.delivery['fencing_token']})"
    step = f"step {work['step']}, token {work['fencing_token']}"
    if work["owner"] is None:
        return f"no ({step})"
    passed = "" if work["eligible_at"] > explained.now else ", which has passed"
    return f"by run {work['owner']} until {units.iso(work['eligible_at'])}{passed} ({step})"


def _accepted(explained: Explained) -> str:
    delivery = explained.found.delivery
    if delivery["accepted_at"] is None:
        return "no"
    remote = f", remote id {delivery['remote_id']}" if delivery["remote_id"] else ""
    by = f" by {delivery['transport']}" if delivery["transport"] else ""
    return units.iso(delivery["accepted_at"]) + by + remote


def _why(out: Output, explained: Explained) -> None:
    from notifyctl.ticks.explain import DUE, can_go_at

    why = explained.why
    if not why:
        return
    out.text()
    out.text(out.bold("what it waits for" if explained.found.delivery["accepted_at"] else "why it has not gone"))
    for one in why:
        _fact(out, one.reason, _line(one))
    if explained.found.work is None or explained.found.work["step"] != "send":
        return
    at = can_go_at(why, explained.now)
    if at is None:
        _fact(out, "next", "not before somebody acts")
    else:
        _fact(out, "next", "the next dispatch takes it" if why[0].reason == DUE else f"can go at {units.iso(at)}")


def _line(why: Why) -> str:
    until = f"until {units.iso(why.until)}" if why.until else ""
    return ": ".join(part for part in (until, why.detail) if part) or "-"


def _timeline(explained: Explained) -> list[Event]:
    """Transitions, attempts and receipts in time order; what shares an instant: evidence first, then its effect."""
    found = explained.found
    events = [*_attempts(found.attempts), *_transitions(found.transitions)]
    for receipt in found.receipts:
        said = [receipt["reason"], receipt["code"], _named("remote id", receipt["remote_id"])]
        if receipt["provider_time"]:
            said.append(f"provider time {units.iso(receipt['provider_time'])}")
        events.append((receipt["at"], 1, f"receipt {receipt['status']}", _joined(said)))
    return sorted(events, key=lambda event: event[:2])


def _attempts(attempts: Iterable[Mapping[str, Any]]) -> Iterable[Event]:
    for one in attempts:
        number, owner = one["number"], f"run {one['run']}, token {one['fencing_token']}"
        begun = [one["transport"], owner, _named("mandate", one["mandate"])]
        yield one["started"], 0, f"attempt {number} begun", _joined(begun)
        if one["outcome"] is None:
            continue
        said = [one["reason"], one["code"], _named("remote id", one["remote_id"]), "late" if one["late"] else ""]
        # an attempt that was lost has an outcome, but nobody saw it end
        yield one["finished"] or one["started"], 0, f"attempt {number} {one['outcome']}", _joined(said)


def _transitions(transitions: Iterable[Mapping[str, Any]]) -> Iterable[Event]:
    """In the order written, also where a trigger's clock is coarser than the tool's."""
    latest: datetime | None = None
    for one in transitions:
        latest = one["at"] if latest is None or one["at"] > latest else latest
        what = one["to"] if one["from"] in (None, one["to"]) else f"{one['from']} -> {one['to']}"
        yield latest, 2, what, _joined([one["reason"], f"by {one['actor']}", one["note"]])


def _named(name: str, value: Any) -> str:
    return f"{name} {value}" if value else ""


def _joined(parts: Iterable[str | None]) -> str:
    return ", ".join(part for part in parts if part)
