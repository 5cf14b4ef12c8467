"""The front door: a tick under cron with nothing due ends here, with only the configuration and the driver imported.

It reads the few options that decide which rows are asked about. Anything else on the command line, a terminal, and a
ledger that is not as expected take the long way, which judges and reports.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from notifyctl import configfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from notifyctl.ledger.database import Ledger

_EVERY = ("--config", "--lane", "--region", "--limit", "--max-seconds", "--log-level", "--log-format")
_TICKS = {
    "dispatch": (*_EVERY, "--channel", "--batch", "--concurrency"),
    "poll-receipts": (*_EVERY, "--transport"),
    "reconcile": _EVERY,
}
_REPEATABLE = ("--lane", "--transport")
_WORDS = {
    "--log-level": ("info", "warning", "error"),
    "--log-format": ("console", "json"),
    "--channel": ("email", "sms"),
}
_NUMBERS = ("--limit", "--max-seconds", "--batch", "--concurrency")


def is_tick(arguments: Sequence[str]) -> bool:
    """Whether one of the ticks is run where nobody watches."""
    return any(word in _TICKS for word in arguments) and not os.isatty(1)


def ask(arguments: Sequence[str]) -> tuple[bool, Ledger | None]:
    """(whether there is certainly nothing to do, the open Postgres ledger to go on with or None).

    Raises ConfigError, and LedgerUnavailable when Postgres cannot be reached: asking again would wait twice.
    """
    parsed = _parse(arguments)
    if parsed is None:
        return False, None
    command, options = parsed
    from notifyctl.transports.registry import KINDS

    path = configfile.find(next(iter(options.get("--config", ())), None), os.environ)
    document = configfile.read(path, environ=os.environ, kinds=KINDS)
    lanes = _lanes(document, options)
    unknown = set(options.get("--transport", ())) - set(document["transports"])
    if not lanes or unknown or document["log"]["level"] == "debug":
        return False, None
    url, region = document["ledger"]["url"], next(iter(options.get("--region", ())), document["region"])
    from notifyctl.ledger import front

    feeds = _feeds(document, options, lanes, KINDS) if command == "poll-receipts" else ()
    if url.startswith("sqlite:"):
        name = url.removeprefix("sqlite:///")
        asked = {"instance": document["instance"], "lanes": lanes, "region": region, "feeds": feeds}
        return front.ask_sqlite(name, command, **asked), None
    from notifyctl.ledger.database import Ledger

    ledger = Ledger(url, patience=document["ledger"]["patience"])
    if not front.ask_postgres(ledger, command, instance=document["instance"], lanes=lanes, region=region, feeds=feeds):
        return False, ledger
    ledger.close()
    return True, None


def _parse(arguments: Sequence[str]) -> tuple[str, dict[str, list[str]]] | None:
    """The command and its options by name; None for anything that is not plainly a quiet tick."""
    options: dict[str, list[str]] = {}
    command = ""
    words = iter(arguments)
    for word in words:
        if word in _TICKS and not command:
            command = word
            continue
        if word == "--quiet" and command:
            continue
        name, equals, value = word.partition("=")
        if name not in (_TICKS[command] if command else ("--config",)):
            return None
        if not equals:
            value = next(words, "")
        if not _plain(name, value) or (name in options and name not in _REPEATABLE):
            return None
        options.setdefault(name, []).append(value)
    return (command, options) if command else None


def _plain(name: str, value: str) -> bool:
    """Whether the option's value is certainly right as far as can be told without the configuration."""
    if name in _NUMBERS:
        return value.isascii() and value.isdigit() and int(value) > 0
    return value in _WORDS[name] if name in _WORDS else value != ""


def _lanes(document: dict[str, Any], options: dict[str, list[str]]) -> list[str]:
    """The configured lanes that this tick concerns; empty where a named one is unknown (the long way says so)."""
    lanes = document["lanes"]
    named, channels = options.get("--lane") or list(lanes), options.get("--channel")
    if any(name not in lanes for name in named):
        return []
    return [name for name in named if not channels or lanes[name]["channel"] in channels]


def _feeds(
    document: dict[str, Any], options: dict[str, list[str]], lanes: Sequence[str], kinds: dict[str, Any]
) -> list[str]:
    """The transports whose feed or mailbox this tick reads: those of its lanes, or those it names."""
    transports, feeds = document["transports"], []
    for name in options.get("--transport") or sorted({document["lanes"][lane]["transport"] for lane in lanes}):
        key = kinds[transports[name]["kind"]].feeds
        if key == "kind" or key in transports[name]["options"]:
            feeds.append(name)
    return feeds
