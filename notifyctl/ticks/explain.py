"""Why has it not gone yet, and when can it next? From the facts of one delivery to a list of reasons; pure but `look`.

The words are those of `dispatch --dry-run` (`leased`, `scheduled`, `retry`, `deferred`), of begin (`gate`, `pace`,
`destination_pace`) and the reason codes with which a delivery is refused or deferred. All that holds is listed, not
only the first, so that mending one thing shows no second surprise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from notifyctl import pacing
from notifyctl.config import Config
from notifyctl.errors import InputError
from notifyctl.ledger import gate, inspection
from notifyctl.ledger.database import Tx
from notifyctl.ledger.gate import Gate
from notifyctl.ledger.inspection import Found, Row
from notifyctl.model import Channel, ConsentMode, Rate, State, Step
from notifyctl.pacing import LimitKey, Meter
from notifyctl.policy import check

DUE = "due"


@dataclass(frozen=True, slots=True)
class Why:
    """One reason; `until`: when it ends by itself, None: not by itself, or (`due`) it is the next tick's."""

    reason: str
    until: datetime | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Explained:
    """One delivery and why it has not gone, as of `now` (the ledger's time)."""

    found: Found
    why: list[Why]
    now: datetime


def look(tx: Tx, which: int | str, config: Config) -> Explained | None:
    """The delivery with this id or idempotency key, explained."""
    found = inspection.delivery(tx, which)
    if found is None:
        return None
    keys = [(key, rate.text) for key, rate in limits(found, config)]
    meters = inspection.meters(tx, keys) if keys else {}
    return Explained(found, explain(found, config, gate.closed(tx), meters, tx.now), tx.now)


def explain(
    found: Found, config: Config, gates: Mapping[tuple[str, str], Gate], meters: Mapping[LimitKey, Meter], now: datetime
) -> list[Why]:
    """Every reason why it has not gone (or, once accepted, what is waited for); empty: nothing more is to happen."""
    delivery, work = found.delivery, found.work
    state = State(delivery["state"])
    if work is None:
        gone = delivery["accepted_at"] is not None or state is State.ACCEPTED
        return [] if gone else [Why(state, None, delivery["reason"])]
    step = Step(work["step"])
    if step is Step.CHECK:
        return _leased(work, now) or [Why("waiting_for_receipt", work["eligible_at"])]
    if step is Step.RESOLVE:
        return _unsettled(found, now)
    reasons = [
        *_waiting(delivery, work, state, now),
        *_configured(found, config),
        *_refused(found, config, now),
        *_gated(delivery, config, gates),
        *_paced(found, config, meters, now),
    ]
    if reasons:
        return reasons
    if delivery["region"] != config.region:
        return [Why("other_region", None, f"waits for a dispatch of region {delivery['region'] or '(none)'}")]
    return [Why(DUE, None, f"the lease of run {work['owner']} has passed" if work["owner"] else "")]


def known_as(delivery: Mapping[str, Any]) -> str:
    """What the provider's log knows a delivery as: its Message-ID, or the key that a text message carries."""
    key = delivery["wire_key"]
    if not key or delivery["channel"] != Channel.EMAIL:
        return key or "(unknown)"
    from notifyctl.compose.message import message_id

    try:
        return f"Message-ID {message_id(key, delivery['sender'] or '')}"
    except InputError:  # nothing is pinned any more
        return f"Message-ID <{key}@...>"


def can_go_at(why: list[Why], now: datetime) -> datetime | None:
    """When it can next go; None: not before somebody acts, or it has gone."""
    ends = [now if one.reason == DUE else one.until for one in why]
    return None if not ends or None in ends else max(end for end in ends if end is not None)


def limits(found: Found, config: Config) -> Sequence[tuple[str, Rate]]:
    """Every limit the delivery counts against, while it waits to be sent."""
    lane = config.lanes.get(found.delivery["lane"])
    if lane is None or found.work is None or found.work["step"] != Step.SEND:
        return ()
    transport = config.transports.get(lane.transport)
    return pacing.limits(lane, transport.rates if transport else (), found.fingerprint)


def _leased(work: Mapping[str, Any], now: datetime) -> list[Why]:
    owned = work["owner"] is not None and work["eligible_at"] > now
    return [Why("leased", work["eligible_at"], f"run {work['owner']}")] if owned else []


def _waiting(delivery: Row, work: Row, state: State, now: datetime) -> list[Why]:
    """The row's one clock: `eligible_at`, and what it stands for."""
    until = work["eligible_at"]
    if until <= now or work["owner"] is not None:
        return _leased(work, now)
    if work["due_at"] > now:
        return [Why("scheduled", until)]
    return [Why("retry" if state is State.TEMPORARY_FAILURE else "deferred", until, delivery["reason"])]


def _unsettled(found: Found, now: datetime) -> list[Why]:
    delivery, work = found.delivery, found.work
    assert work is not None
    until: datetime = work["eligible_at"]
    if delivery["state"] == State.SENDING:
        if until > now:
            return [Why("sending", until, f"run {work['owner']}")]
        return [Why("attempt_lapsed", None, "the next tick marks it as in doubt")]
    if leased := _leased(work, now):
        return leased
    if work["held"]:
        return [Why("held", until, "it may have been accepted; a person decides, else it becomes a dead letter")]
    return [Why("in_doubt", until if until > now else None, "it may have been accepted; reconcile looks it up")]


def _configured(found: Found, config: Config) -> list[Why]:
    """What prepare would defer or refuse: each heals as soon as it is mended."""
    delivery, reasons = found.delivery, []
    lane = config.lanes.get(delivery["lane"])
    if lane is None:
        reasons.append(Why("lane_unknown", None, delivery["lane"]))
    elif lane.channel != delivery["channel"]:
        reasons.append(Why("lane_serves_another_channel", None, f"{lane.name} serves {lane.channel}"))
    if delivery["topic"] and delivery["topic"] not in config.topics:
        reasons.append(Why("topic_unknown", None, delivery["topic"]))
    if not found.template_published:
        version = delivery["template_version"]
        reasons.append(Why("template_unknown", None, delivery["template"] + (f"@{version}" if version else "")))
    if not (delivery["destination"] or found.address):
        reasons.append(Why("destination_missing"))
    return reasons


def _refused(found: Found, config: Config, now: datetime) -> list[Why]:
    """Consent, suppression and expiry, asked one by one."""
    topic = config.topics.get(found.delivery["topic"] or "")
    mode = topic.consent if topic else ConsentMode.NONE
    asked = (
        check(consent_mode=ConsentMode.NONE, consent=None, suppression=found.suppression, expires_at=None, now=now),
        check(consent_mode=mode, consent=found.consent, suppression=None, expires_at=None, now=now),
        check(
            consent_mode=ConsentMode.NONE, consent=None, suppression=None, expires_at=found.delivery["expires_at"],
            now=now,
        ),
    )  # fmt: skip
    suppressed, consent, expired = asked
    reasons = [Why("suppressed", None, suppressed.reason)] if suppressed else []
    return reasons + [Why(refusal.reason) for refusal in (consent, expired) if refusal]


def _gated(delivery: Row, config: Config, gates: Mapping[tuple[str, str], Gate]) -> list[Why]:
    lane = config.lanes.get(delivery["lane"])
    scopes = [("lane", delivery["lane"]), *([("transport", lane.transport)] if lane else [])]
    return [Why("gate", shut.until, describe(shut)) for scope in scopes if (shut := gates.get(scope))]


def describe(shut: Gate) -> str:
    """A gate in words: what is closed, how and why."""
    probe = f", the probe of run {shut.prober} is out" if shut.prober else ""
    return f"{shut.scope} {shut.name}: {shut.kind}{f' ({shut.reason})' if shut.reason else ''}{probe}"


def _paced(found: Found, config: Config, meters: Mapping[LimitKey, Meter], now: datetime) -> list[Why]:
    reasons = []
    for key, rate in limits(found, config):
        meter = meters.get((key, rate.text))
        free = meter.free_at(rate, now) if meter else now
        if free > now:
            scope, _, name = key.partition(":")
            destination = scope == "destination"
            detail = f"{rate.text} per destination" if destination else f"{rate.text} of {scope} {name}"
            reasons.append(Why("destination_pace" if destination else "pace", free, detail))
    return reasons
