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
_RECEIPT_COUNTS = (
    "checked delivered pending permanent_failure suppressed unresolved complained no_receipt_expected errors "
    "unmatched leases_recovered"
)

_DELIVERY = (
    "id event_id recipient_id channel lane region topic template template_version locale variables attachments "
    "destination due_at expires_at content_digest idempotency_key wire_key state reason attempts_used first_tried_at "
    "doubt_since endpoint_id fingerprint transport sender message_date fencing_token remote_id accepted_at "
    "receipts_from settled_at created_at updated_at sensitive batch origin_id"
)
_WORK = "step lane region due_at eligible_at owner fencing_token tries mandate held"
_SUPPRESSION = "recipient channel reason scope at actor note source_delivery_id remote_id"
_CONSENT = "recipient channel topic granted at actor note"
_REGISTERED = {"": "dry_run selected changed unchanged rejected settled errors"}
_REGISTERED_MANY = {**_REGISTERED, "errors[]": "row reason field"}
_GATE = "scope name kind state until level reason by"
_RUN = "id command host pid version started finished exit_code counts"

_CAPABILITIES = (
    "channels raw_mime max_batch durable_id replay_window search settle_delay absence_proves_unsent receipts "
    "terminal_distinct invalid_distinct optout_distinct landline_distinct receipt_window status_rate max_bytes "
    "max_segments smtputf8 can_settle_doubt"
)

KEYS: dict[str, dict[str, str]] = {
    "doctor": {
        "": "healthy checks lanes transports test",
        "checks[]": "what name ok detail hint",
        "lanes[]": "lane channel transport on_ambiguous in_doubt doubt_ends receipts receipt_style receipt_window_s "
        "receipt_deadline_s poll_every_s",
        "transports[]": "transport kind ok reason facts capabilities",
        "transports[].capabilities": _CAPABILITIES,
        "test": "lane transport outcome reason code remote_id",
    },
    "doctor --kinds": {
        "": "kinds",
        "kinds.*": _CAPABILITIES,
    },
    "enqueue": {
        "": "run selected enqueued duplicate conflict suppressed rejected sms ids errors",
        "sms": "encoding segments",
        "errors[]": "row reason field",
    },
    "dispatch": {
        "": f"run {_COUNTS} lanes drained seconds",
        "lanes.*": f"{_COUNTS} oldest_age_s stopped",
    },
    "poll-receipts": {
        "": f"run {_RECEIPT_COUNTS} transports drained seconds",
        "transports.*": _RECEIPT_COUNTS,
    },
    "reconcile": {
        "": "run leases_recovered found absent mandated held unresolved expired dead_letter taken_over unroutable "
        "drained seconds",
    },
    "reconcile --dry-run": {
        "": "run leases_recovered found absent mandated held unresolved expired dead_letter taken_over unroutable "
        "drained seconds in_doubt",
    },
    "dispatch --dry-run": {
        "": "would_claim lanes",
        "lanes.*": "due held_by",
    },
    "inspect": {
        "": "lanes needs_person runs",
        "lanes[]": "lane region states oldest_age_s objective_s gates",
        "lanes[].states": "queued sending temporary_failure ambiguous accepted pending",
        "lanes[].gates[]": _GATE,
        "needs_person[]": "what count command",
        "runs[]": _RUN,
    },
    "inspect delivery": {
        "": f"{_DELIVERY} work why attempts transitions receipts",
        "work": _WORK,
        "why[]": "reason until detail",
        "attempts[]": "number run fencing_token transport started finished outcome reason code remote_id remote_ids "
        "retry_after request_digest fingerprint mandate locale encoding segments bytes duration late",
        "transitions[]": "id at from to reason attempt actor note",
        "receipts[]": "id at provider_time remote_id part status reason code",
    },
    "inspect deliveries": {"": f"{_DELIVERY} work", "work": _WORK},
    "inspect event": {"": "event enqueued accepted settled channels"},
    "inspect runs": {"": _RUN},
    "requeue": {
        "": "batch matched requeued refused refusals",
        "refusals[]": "id state reason hint",
    },
    "cancel": {
        "": "matched cancelled refused refusals",
        "refusals[]": "id state reason hint",
    },
    "prune": {"": "dry_run before pruned states"},
    "lane pause": {"": "dry_run changed lane channel transport due gates", "gates[]": _GATE},
    "lane resume": {"": "dry_run changed lane channel transport due gates"},
    "lane list": {"[]": "lane channel transport due gates", "[].gates[]": _GATE},
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
    "template preview": {
        "": "name version source channel locale subject text html sms",
        "sms": "encoding segments",
    },
    "template diff": {
        "": "from to source same parts",
        "parts[]": "locale part diff",
    },
    "recipient set": {"": "dry_run recipient set unchanged"},
    "recipient erase": {"": "dry_run recipient addresses emptied withdrawn left"},
    "recipient show": {
        "": "recipient endpoints suppressions consents",
        "endpoints[]": "channel address current at actor",
        "suppressions[]": _SUPPRESSION,
        "consents[]": _CONSENT,
    },
    "consent grant": _REGISTERED,
    "consent revoke": _REGISTERED,
    "consent import": _REGISTERED_MANY,
    "consent show": {"[]": _CONSENT},
    "suppression add": _REGISTERED,
    "suppression lift": _REGISTERED,
    "suppression import": _REGISTERED_MANY,
    "suppression list": {"[]": _SUPPRESSION},
    "init": {"": "dry_run config instance written kept applied crontab"},
    "migrate": {"": "dry_run instance version applied pending adopted_from clock_reset restored_from in_doubt paused"},
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
