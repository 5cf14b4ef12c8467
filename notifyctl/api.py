"""The public Python API: an intent committed, or rolled back, with the caller's own transaction (invariant I1)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any, overload

from notifyctl.compose import destinations, variables
from notifyctl.errors import InputError
from notifyctl.ledger import application
from notifyctl.model import Channel, Intent


@dataclass(frozen=True, slots=True)
class Enqueued:
    """What became of one intent.

    `status` is "enqueued", "duplicate" (the same event again: nothing changed), "conflict" (the same event with
    another `field`: nothing changed) or "suppressed" (`reason` says why it will not be sent). `id` is the delivery's,
    None where the database role may not read it.
    """

    status: str
    id: int | None = None
    reason: str = ""
    field: str = ""


@overload
def enqueue(connection: Any, intent: Intent, /, *, phone_region: str | None = None) -> Enqueued: ...
@overload
def enqueue(connection: Any, intent: Iterable[Intent], /, *, phone_region: str | None = None) -> list[Enqueued]: ...
def enqueue(
    connection: Any, intent: Intent | Iterable[Intent], /, *, phone_region: str | None = None
) -> Enqueued | list[Enqueued]:
    """Put one intent, or many, into the ledger in the transaction that `connection` has open. Never commits.

    `connection`: an sqlite3 or psycopg 3 connection, or an SQLAlchemy Connection or Session, to the database that holds
    the ledger. `phone_region` ("GB") is assumed for numbers without `+`. Raises InputError, naming the field, before
    anything is written; what only the ledger knows (template, variables, topic, lane) is judged when it is due.
    """
    intents = [intent] if isinstance(intent, Intent) else list(intent)
    verdicts = application.insert(connection, [_checked(one, phone_region) for one in intents])
    done = [Enqueued(v.kind, v.id, v.reason if v.kind == "suppressed" else "", v.field) for v in verdicts]
    return done[0] if isinstance(intent, Intent) else done


def _checked(intent: Intent, phone_region: str | None) -> Intent:
    for name in ("event_id", "recipient_id"):
        value = getattr(intent, name)
        if not isinstance(value, str) or not 1 <= len(value) <= 200 or "@" in value or not value.isprintable():
            raise InputError(
                f"{name} is not an opaque reference", reason="invalid", field=name,
                hint="1 to 200 printable characters without @: an id of yours, never an address",
            )  # fmt: skip
    if not intent.template:
        raise InputError("template is missing", reason="missing", field="template")
    try:
        channel = Channel(intent.channel)
    except ValueError:
        raise InputError("channel is neither email nor sms", reason="invalid", field="channel") from None
    variables.checked(intent.variables)
    for name in ("due_at", "expires_at"):
        moment = getattr(intent, name)
        if moment is not None and (not isinstance(moment, datetime) or moment.tzinfo is None):
            raise InputError(f"{name} has no time zone", reason="time", field=name, hint="pass an aware datetime")
    destination = intent.destination
    if destination is not None:
        destination = destinations.normalize(channel, destination, phone_region)
    defaults = {f.name: f.default for f in fields(Intent)}
    stated = {
        name for name in defaults
        if name not in ("event_id", "recipient_id", "channel", "stated")
        and getattr(intent, name) not in (defaults[name], {}, ())
    }  # fmt: skip
    return replace(intent, channel=channel, destination=destination, stated=frozenset(stated))
