"""The documented keys of the configuration: for each its check and its default.

A check turns what TOML holds into what the program uses (durations become seconds, rates (count, seconds, text), paths
absolute ones) or raises `Bad`. Imports nothing heavy, see `configfile`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from notifyctl import units
from notifyctl.errors import InputError

Check = Callable[[Any], Any]
Keys = Mapping[str, "tuple[Check, Any] | Keys"]  # a table in a table stands as its keys

LEAST_LEASE = 2.0  # seconds: below it, two hosts' clocks and one slow commit are enough to lose a lease


class Bad(Exception):
    """A value is wrong: what, and what would be right."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise Bad(f"must be a text, not {kind_of(value)}")
    if any(ord(character) < 32 for character in value):
        raise Bad("holds a control character")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Bad(f"must be true or false, not {kind_of(value)}")
    return value


def _whole(least: int) -> Check:
    def check(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise Bad(f"must be a whole number, not {kind_of(value)}")
        if value < least:
            raise Bad(f"is {value}; the least is {least}")
        return value

    return check


def _duration(value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise Bad(f"is the bare number {value}", f'give a unit, such as "{value}s"')
    try:
        return units.duration(text(value))
    except InputError as error:
        raise Bad(f"is wrong: {error.message}", error.hint) from None


def _positive(value: Any) -> float:
    seconds = _duration(value)
    if seconds <= 0:
        raise Bad("must be longer than nothing")
    return seconds


def _lease(value: Any) -> float:
    seconds = _duration(value)
    if seconds < LEAST_LEASE:
        raise Bad(f'is "{value}"; the least is "{LEAST_LEASE:g}s"', "a lease must outlast a slow commit; 60s is usual")
    return seconds


def _rates(value: Any) -> tuple[tuple[int, int, str], ...]:
    try:
        return tuple(units.rate(text(one)) for one in (value if isinstance(value, list) else [value]))
    except InputError as error:
        raise Bad(f"is wrong: {error.message}", error.hint) from None


def _one_of(*words: str) -> Check:
    def check(value: Any) -> str:
        if value not in words or not isinstance(value, str):
            shown = repr(value) if isinstance(value, str) else kind_of(value)
            raise Bad(f"is {shown}; it may be {either(words)}")
        return value

    return check


def anything(value: Any) -> Any:
    return value


def _path(folder: str) -> Check:
    return lambda value: os.path.join(folder, text(value)) if value else ""


def _location(folder: str) -> Check:
    return lambda value: value if "://" in text(value) else _path(folder)(value)


def _url(folder: str) -> Check:
    def check(value: Any) -> str:
        scheme, separator, rest = text(value).partition("://")
        if separator and scheme == "sqlite" and rest.startswith("/") and rest not in ("/", "/:memory:"):
            return "sqlite:///" + os.path.join(folder, rest[1:])
        if separator and scheme in ("postgresql", "postgres", "postgresql+psycopg") and rest:
            return "postgresql://" + rest
        raise Bad(  # never the value: it may hold a password
            "is not the address of a ledger",
            "write sqlite:///notifyctl.db, sqlite:////var/lib/notifyctl/ledger.db or postgresql://user@host/database",
        )

    return check


# -- the keys, with their defaults --------------------------------------------------------------------------------

_LEVELS = _one_of("debug", "info", "warning", "error")
_BACKOFF: Keys = {"base": (_positive, 15.0), "cap": (_positive, 960.0)}
_RECEIPT: Keys = {
    "first": (_positive, 15.0),
    "cap": (_positive, 960.0),
    "deadline": (_positive, 72 * 3600.0),
    "soft_bounces": (_whole(0), 0),
}
LANE: Keys = {
    "channel": (_one_of("email", "sms"), ""),
    "transport": (text, ""),
    "batch": (_whole(1), 100),
    "concurrency": (_whole(1), 10),
    "rate": (_rates, ()),
    "per_destination": (_rates, ()),
    "lease": (_lease, 60.0),
    "max_attempts": (_whole(1), 8),
    "give_up_after": (_positive, 3 * 86400.0),
    "ambiguous_review_after": (_positive, 86400.0),
    "backoff": _BACKOFF,
    "on_ambiguous": (_one_of("auto", "hold", "resend"), "auto"),
    "receipt": _RECEIPT,
    "objective": {"oldest_age": (_positive, 300.0)},
    "max_segments": (_whole(0), 0),
    "max_bytes": (_whole(0), 0),
    "transliterate": (_flag, False),
}
TOPIC: Keys = {
    "consent": (_one_of("required", "opt_out", "none"), "none"),
    "lane": (text, ""),
    "list_unsubscribe": (text, ""),
    "reply_to": (text, ""),
}
TRANSPORT: Keys = {
    "kind": (text, ""),
    "from": (text, ""),
    "reply_to": (text, None),
    "deadline": (_positive, 60.0),
    "drain": (_duration, 10.0),
    "cooldown": (_positive, 30.0),
    "settle_delay": (_duration, None),
    "rate": (_rates, ()),
    "status_rate": (_rates, None),
    "poll_every": (_positive, 50.0),
}


def top(folder: str) -> Keys:
    """The keys outside transports, lanes and topics; relative paths start at `folder`."""
    return {
        "instance": (text, ""),
        "region": (text, ""),
        "ledger": {"url": (_url(folder), ""), "patience": (_positive, 10.0)},
        "templates": {"path": (_path(folder), _path(folder)("templates")), "default_locale": (text, "en")},
        "objects": {"root": (_location(folder), "")},
        "log": {"file": (_path(folder), ""), "level": (_LEVELS, "info"), "format": (_one_of("console", "json"), "")},
        "phone": {"default_region": (text, "")},
        "dns": {"resolver": (text, "")},
        "retention": {
            "terminal": (_positive, 400 * 86400.0),
            "sensitive_variables": (_one_of("on_terminal"), "on_terminal"),
        },
        "transports": (anything, {}),
        "lanes": (anything, {}),
        "topics": (anything, {}),
    }


def either(words: Sequence[str]) -> str:
    return " or ".join((", ".join(words[:-1]), words[-1])) if len(words) > 1 else "".join(words)


def kind_of(value: Any) -> str:
    names = {str: "a text", bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "a table"}
    return names.get(type(value), "a date or time")
