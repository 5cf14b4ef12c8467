"""The overview that `inspect` shows: every lane and region with work or configuration, and what needs a person."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from notifyctl.config import Config
from notifyctl.ledger import gate, inspection, resolve
from notifyctl.ledger.database import Tx
from notifyctl.ledger.gate import Gate
from notifyctl.ledger.inspection import Overview
from notifyctl.model import State
from notifyctl.ticks.gates import before, shown

LAST_RUNS = 10
# What waits until a person mends the template, the topic, the lane or the sender it needs.
MENDABLE = ("template_unknown", "topic_unknown", "lane_serves_another_channel", "sender_invalid")
# Refusals in which nobody made a mistake.
_NO_MISTAKE = frozenset({"smtputf8_unsupported", "destination_changed"})
LIVE = (State.QUEUED, State.SENDING, State.TEMPORARY_FAILURE, State.AMBIGUOUS, State.ACCEPTED, State.PENDING)


def overview(tx: Tx, config: Config) -> dict[str, Any]:
    """The JSON document of `inspect`. A lane that is not configured has no objective."""
    seen, gates = inspection.overview(tx, MENDABLE), gate.look(tx)
    elsewhere = Counter[str]()
    for lane, region, count in resolve.unclaimed(tx, lanes=config.lanes, region=config.region):
        elsewhere[region] += count if lane in config.lanes else 0  # the others are listed by their lane
    places = seen.live.keys() | {(lane, config.region) for lane in config.lanes}
    return {
        "lanes": [_lane(seen, config, gates, place) for place in sorted(places)],
        "needs_person": _needs_person(seen, config, gates, elsewhere),
        "runs": inspection.runs(tx, LAST_RUNS),
    }


def _lane(
    seen: Overview, config: Config, gates: Sequence[Gate], place: tuple[str, str]
) -> dict[str, Any]:
    name, region = place
    lane = config.lanes.get(name)
    states = seen.live.get(place, Counter())
    return {
        "lane": name,
        "region": region,
        "states": {state.value: states[state] for state in LIVE},
        "oldest_age_s": seen.ages.get(place),
        "objective_s": lane.oldest_age if lane else None,
        "gates": [shown(one) for one in before(gates, name, lane.transport if lane else None)],
    }


def _needs_person(
    seen: Overview, config: Config, gates: Sequence[Gate], elsewhere: Mapping[str, int]
) -> list[dict[str, Any]]:
    """What no tick settles by itself, each with the command that lists it. Doubt that reconcile still looks up is not
    among it."""
    found = [
        _entry("dead_letter", seen.review.get(State.DEAD_LETTER, 0), "--state dead_letter"),
        _entry("held_ambiguous", seen.held, "--state ambiguous"),
        _entry("unresolved", seen.review.get(State.UNRESOLVED, 0), "--state unresolved"),
    ]
    unclaimed: dict[str, Counter[State]] = {}
    for (lane, _), states in sorted(seen.live.items()):
        if lane not in config.lanes:
            unclaimed.setdefault(lane, Counter()).update(states)
    for lane, states in unclaimed.items():
        # with its states, so that the list follows their index and not the whole history
        filters = " ".join(f"--state {state}" for state in LIVE if states[state])
        found.append(_entry("unroutable", states.total(), f"--lane {shlex.quote(lane)} {filters}"))
    for reason, count in sorted(seen.refused.items()):
        if reason not in _NO_MISTAKE:
            found.append(_entry("refused", count, f"--state permanent_failure --reason {shlex.quote(reason)}"))
    for reason, count in sorted(seen.deferred.items()):
        waiting = " ".join(f"--state {state}" for state in (State.QUEUED, State.TEMPORARY_FAILURE, State.AMBIGUOUS))
        found.append(_entry("deferred", count, f"{waiting} --reason {shlex.quote(reason)}"))
    for region, count in sorted(elsewhere.items()):
        command = f"notifyctl reconcile --take-over {shlex.quote(region)} --dry-run"
        found.append({"what": "stranded", "count": count, "command": command})
    broken = sum(one.kind == "breaker" and one.scope == "transport" for one in gates)
    found.append({"what": "breaker_open", "count": broken, "command": "notifyctl lane list"})
    return [entry for entry in found if entry["count"]]


def _entry(what: str, count: int, filters: str) -> dict[str, Any]:
    return {"what": what, "count": count, "command": f"notifyctl inspect deliveries {filters}"}
