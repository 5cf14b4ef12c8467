"""The keys of every JSON result, pinned: scripts outside the project rely on them.

Written by hand, never from the code. `a.b` are the keys of the object `a`'s member `b`, `[]` one of a list, `*` a
name of the user's. README.md prints this table, tests/test_json_contract.py holds every command to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_COUNTS = (
    "claimed accepted temporary_failure rate_limited unavailable permanent_failure ambiguous suppressed expired "
    "deferred dead_letter held released leases_recovered"
)

KEYS: dict[str, dict[str, str]] = {
    "enqueue": {
        "": "run selected enqueued duplicate conflict suppressed rejected sms ids errors",
        "sms": "encoding segments",
        "errors[]": "row reason field",
    },
    "dispatch": {
        "": f"run {_COUNTS} lanes drained seconds",
        "lanes.*": f"{_COUNTS} oldest_age_s stopped",
    },
    "dispatch --dry-run": {
        "": "would_claim lanes",
        "lanes.*": "due held_by",
    },
    "template publish": {
        "": "dry_run published unchanged errors",
        "errors[]": "template reason message",
    },
    "template list": {
        "[]": "name version newest published_at parts",
        "[].parts[]": "locale part sha256",
    },
    "template show": {
        "": "name version parts",
        "parts[]": "locale part sha256 body",
    },
    "init": {"": "dry_run config instance written kept applied crontab"},
    "migrate": {"": "dry_run instance version applied pending adopted_from clock_reset"},
    "migrate --sql": {"": "dialect since sql"},
}

ERROR = {"": "error", "error": "code message hint"}


def found(document: Any, keys: Mapping[str, str]) -> dict[str, set[str]]:
    """The keys that `document` really has at each place that `keys` names; a place that it lacks is left out."""
    places = {place: list(_at(document, place)) for place in keys}
    return {
        place: set().union(*(set(one) for one in objects)) for place, objects in places.items() if objects
    }  # fmt: skip


def wanted(keys: Mapping[str, str], places: Mapping[str, Any]) -> dict[str, set[str]]:
    """What `keys` pins at these places."""
    return {place: set(keys[place].split()) for place in places}


def _at(value: Any, place: str) -> list[dict[str, Any]]:
    values = [value]
    for step in place.replace("[]", ".[]").split("."):
        if step == "[]":
            values = [inner for one in values if isinstance(one, list) for inner in one]
        elif step == "*":
            values = [inner for one in values if isinstance(one, dict) for inner in one.values()]
        elif step:
            values = [one[step] for one in values if isinstance(one, dict) and step in one]
    return [one for one in values if isinstance(one, dict)]
