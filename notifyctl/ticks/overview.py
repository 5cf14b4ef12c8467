"""The overview that `inspect` shows: every lane and region with work or configuration, and what needs a person."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from typing import Any

from notifyctl.config import Config
from notifyctl.ledger import gate, inspection
from notifyctl.ledger.database import Tx
from notifyctl.ledger.gate import Gate
from notifyctl.ledger.inspection import Overview
from notifyctl.model import State
from notifyctl.ticks.gates import before, shown

LAST_RUNS = 10
LIVE = (State.QUEUED, State.SENDING, State.TEMPORARY_FAILURE, State.AMBIGUOUS, State.ACCEPTED, State.PENDING)


def overview(tx: Tx, config: Config) -> dict[str, Any]:
    """The JSON document of `inspect`. A lane that is not configured has no objective."""
    seen, gates = inspection.overview(tx), gate.look(tx)
    places = seen.live.keys() | {(lane, config.region) for lane in config.lanes}
    return {
        "lanes": [_lane(seen, config, gates, place) for place in sorted(places)],
        "needs_person": _needs_person(seen, config, gates),
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


def _needs_person(seen: Overview, config: Config, gates: Sequence[Gate]) -> list[dict[str, Any]]:
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
    broken = sum(one.kind == "breaker" and one.scope == "transport" for one in gates)
    found.append({"what": "breaker_open", "count": broken, "command": "notifyctl lane list"})
    return [entry for entry in found if entry["count"]]


def _entry(what: str, count: int, filters: str) -> dict[str, Any]:
    return {"what": what, "count": count, "command": f"notifyctl inspect deliveries {filters}"}
