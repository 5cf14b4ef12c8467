"""From what a person, a file or a program states to validated intents: one for each channel."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

from notifyctl import units
from notifyctl.compose import attachments, destinations, message
from notifyctl.compose.templates import Renderer
from notifyctl.compose.variables import checked
from notifyctl.config import Config
from notifyctl.errors import InputError
from notifyctl.keys import Keys
from notifyctl.ledger.enqueue import Entry
from notifyctl.model import Attachment, Channel, ConsentMode, Intent, Lane, Sms, Template

T = TypeVar("T")

KEYS = frozenset({
    "event", "recipient", "channel", "template", "vars", "to", "locale", "at", "in", "expires_in", "expires_at",
    "topic", "lane", "region", "sensitive", "attach",
})  # fmt: skip

_IDENTIFIER = re.compile(r"[^@\x00-\x1f\x7f-\x9f]{1,200}")
# Where an address is not known yet (the ledger holds it), any valid one serves to try the rendering out.
_PLACEHOLDER = {Channel.EMAIL: "recipient@example.com", Channel.SMS: "+12025550123"}
_TRIAL_KEY = "k" * 32  # as long as a real one; nothing that can be refused depends on it


@dataclass(frozen=True, slots=True)
class Checked:
    """An intent fit for the ledger; `sms` is how its text will be encoded."""

    entry: Entry
    sms: tuple[str, int] | None


class Checker:
    """Validates intents against one configuration; renders each once, in memory, and discards the result."""

    def __init__(self, config: Config, keys: Keys, now: datetime) -> None:
        self.config = config
        self.keys = keys
        self.now = now
        self.renderer = Renderer(config.default_locale)
        self.objects = attachments.Objects(config.objects_root)

    def read(self, values: Mapping[str, Any]) -> list[Intent]:
        """The intents one row states, one for each of its channels. Raises InputError naming the field."""
        refuse_unknown(values, KEYS)
        event, recipient = identifier(values, "event"), identifier(values, "recipient")
        channels = _channels(values.get("channel"))
        name, _, version = _text(values, "template", required=True).partition("@")
        variables = values.get("vars", {})
        if not isinstance(variables, dict):
            raise InputError("vars is not an object", reason="invalid", field="vars")
        stated = {"template"} | ({"template_version"} if version else set())
        stated |= {column for key, column in _COLUMNS.items() if values.get(key) is not None}
        to = values.get("to", {})
        if not isinstance(to, dict):
            raise InputError("to is not an object of channel: address", reason="invalid", field="to")
        stray = sorted(set(to) - set(channels))
        if stray:
            raise InputError(f"to names the channel {stray[0]!r}, which is not asked for", reason="invalid", field="to")
        due_at, expires_at = self._times(values)
        sensitive = values.get("sensitive", False)
        if sensitive in ("true", "1", "false", "0", ""):
            sensitive = sensitive in ("true", "1")
        if not isinstance(sensitive, bool):
            raise InputError("sensitive is neither true nor false", reason="invalid", field="sensitive")
        topic = _text(values, "topic") or None
        attached = self._attachments(values.get("attach"), channels)
        return [
            Intent(
                event_id=event, recipient_id=recipient, channel=channel, template=name,
                template_version=version or None, variables=checked(variables), locale=_text(values, "locale") or None,
                lane=_text(values, "lane") or self.config.lane_for(channel, topic),
                region=_text(values, "region") or self.config.region, topic=topic,
                destination=self._destination(channel, to.get(channel)), due_at=due_at, expires_at=expires_at,
                attachments=attached if channel is Channel.EMAIL else (),
                sensitive=sensitive, stated=frozenset(stated | ({"destination"} if channel in to else set())),
            )
            for channel in channels
        ]  # fmt: skip

    def check(self, intent: Intent, template: Template | None) -> Checked:
        """What can be known before the ledger is asked: topic, lane, template, variables, address, size."""
        topic = self.config.topics.get(intent.topic) if intent.topic else None
        if intent.topic and topic is None:
            raise InputError(f"the topic {intent.topic!r} is not configured", reason="topic_unknown", field="topic")
        lane = self._lane(intent)
        if template is None:
            which = intent.template + (f"@{intent.template_version}" if intent.template_version else "")
            raise InputError(
                f"the template {which!r} is not published", reason="template_unknown", field="template",
                hint="notifyctl template list shows what is; publish it: notifyctl template publish",
            )  # fmt: skip
        settings = self.config.transports[lane.transport]
        composed = message.compose(
            channel=intent.channel, key=_TRIAL_KEY, template=template, renderer=self.renderer, locale=intent.locale,
            variables=intent.variables, sender=settings.sender,
            recipient=intent.destination or _PLACEHOLDER[intent.channel], reply_to=settings.reply_to or None,
            message_id=message.message_id(_TRIAL_KEY, settings.sender) if intent.channel is Channel.EMAIL else "",
            date=self.now, topic=topic, recipient_id=intent.recipient_id, max_bytes=lane.max_bytes,
            max_segments=lane.max_segments, transliterate=lane.transliterate,
            trial=True,
        )  # fmt: skip
        bare = destinations.bare(intent.channel, intent.destination) if intent.destination else None
        entry = Entry(
            intent, self.keys.content(intent.variables, intent.attachments, intent.destination),
            self.keys.fingerprint(intent.channel, bare) if bare else None,
            consent_required=topic is not None and topic.consent is ConsentMode.REQUIRED,
        )  # fmt: skip
        return Checked(entry, (composed.encoding, composed.segments) if isinstance(composed, Sms) else None)

    def _lane(self, intent: Intent) -> Lane:
        lane = self.config.lanes.get(intent.lane or "")
        if lane is None:
            raise InputError(f"the lane {intent.lane!r} is not configured", reason="lane_unknown", field="lane",
                             hint=f"configured are {', '.join(sorted(self.config.lanes)) or 'none'}")  # fmt: skip
        if lane.channel is not intent.channel:
            raise InputError(f"the lane {lane.name!r} serves {lane.channel}, not {intent.channel}",
                             reason="lane_serves_another_channel", field="lane")  # fmt: skip
        return lane

    def _destination(self, channel: Channel, address: Any) -> str | None:
        if address is None:
            return None
        if not isinstance(address, str):
            raise InputError("an address is not text", reason="destination_invalid", field="to")
        return destinations.normalize(channel, address, self.config.phone_region or None)

    def _attachments(self, given: Any, channels: list[Channel]) -> tuple[Attachment, ...]:
        """What a mail carries. A digest that is not stated is taken of the bytes as they are now, before any
        transaction is open."""
        texts = [given] if isinstance(given, str) else given or []
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise InputError("attach is not a list of KEY=SHA256;name=FILENAME", reason="invalid", field="attach")
        if texts and Channel.EMAIL not in channels:
            raise InputError("only a mail has attachments", reason="attachment_unsupported", field="attach")
        try:
            parsed = [attachments.parse(text) for text in texts]
            return tuple(a if a.sha256 else replace(a, sha256=self.objects.digest(a.key)) for a in parsed)
        except attachments.StoreUnavailable as error:
            raise InputError(
                f"the object store does not answer ({error})", reason="object_store_unavailable", field="attach",
                hint="try again, or state the SHA-256: KEY=SHA256",
            ) from None  # fmt: skip

    def _times(self, values: Mapping[str, Any]) -> tuple[datetime | None, datetime | None]:
        due_at = self._time(values, "at", "in")
        expires_at = self._time(values, "expires_at", "expires_in", since=due_at)
        field = "expires_at" if values.get("expires_at") else "expires_in"
        if expires_at is not None and expires_at <= self.now:
            raise InputError(f"{field} is already past", reason="expired", field=field)
        if expires_at is not None and due_at is not None and expires_at <= due_at:
            raise InputError(f"{field} is not after the time it is due", reason="expired", field=field)
        return due_at, expires_at

    def _time(
        self, values: Mapping[str, Any], instant: str, duration: str, since: datetime | None = None
    ) -> datetime | None:
        at, span = values.get(instant), values.get(duration)
        if at is not None and span is not None:
            raise InputError(f"{instant} and {duration} exclude each other", reason="invalid", field=instant)
        if at is not None:
            return _parsed(units.instant, at, instant)
        if span is None:
            return None
        try:
            return (since or self.now) + timedelta(seconds=_parsed(units.duration, span, duration))
        except OverflowError:
            raise InputError(f"{duration} lies outside the calendar", reason="time", field=duration) from None


# Which column of the ledger a key states; relative times state none, so that a rerun of them is no conflict.
_COLUMNS = {
    "vars": "variables", "locale": "locale", "at": "due_at", "expires_at": "expires_at", "topic": "topic",
    "lane": "lane", "region": "region", "sensitive": "sensitive", "attach": "attachments",
}  # fmt: skip


def refuse_unknown(values: Mapping[str, Any], known: Collection[str]) -> None:
    """Raises InputError for a key that is none of `known`; what does not look like a key is data, and not repeated."""
    unknown = sorted(set(values) - set(known))
    if unknown:
        name = unknown[0] if re.fullmatch(r"[a-z][a-z_]{0,30}", unknown[0]) else ""
        raise InputError(
            f"unknown key {name!r}" if name else "a key is not one of the known ones", reason="unknown_key",
            field=name, hint=f"known are {', '.join(sorted(known))}",
        )  # fmt: skip


def _parsed(parse: Callable[[str], T], value: Any, field: str) -> T:
    if not isinstance(value, str):
        raise InputError(f"{field} is not text", reason="invalid", field=field)
    try:
        return parse(value)
    except InputError as error:
        raise InputError(f"{field}: {error.message}", reason=error.reason, field=field, hint=error.hint) from None


def _text(values: Mapping[str, Any], key: str, *, required: bool = False) -> str:
    value = values.get(key)
    if value is None or value == "":
        if required:
            raise InputError(f"{key} is missing", reason="missing", field=key)
        return ""
    if not isinstance(value, str) or len(value) > 200 or not value.isprintable():
        raise InputError(f"{key} is not a short printable text", reason="invalid", field=key)
    return value


def identifier(values: Mapping[str, Any], key: str) -> str:
    """The event's or recipient's reference under `key`. Raises InputError naming it."""
    value = values.get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if value is None or value == "":
        raise InputError(f"{key} is missing", reason="missing", field=key)
    if not isinstance(value, str) or not _IDENTIFIER.fullmatch(value) or not value.isprintable():
        raise InputError(
            f"{key} is not an opaque reference", reason="invalid", field=key,
            hint="1 to 200 printable characters without @: an id of yours, never an address",
        )  # fmt: skip
    return value


def _channels(value: Any) -> list[Channel]:
    names = [value] if isinstance(value, str) else value
    if not names or not isinstance(names, list):
        raise InputError("channel is missing", reason="missing", field="channel", hint="email, sms or both")
    try:
        return [Channel(name) for name in dict.fromkeys(names)]
    except (ValueError, TypeError):
        raise InputError("a channel is neither email nor sms", reason="invalid", field="channel") from None
