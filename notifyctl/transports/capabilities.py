"""What every kind of transport can do and prove, as one table out of the declared data: for `doctor` and the README.

It is what to read before choosing a provider. A key of a transport can change what is declared (a shorter window, a
bounce mailbox); what one configured transport really has is shown by `doctor` for that transport.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

from notifyctl.model import Capabilities
from notifyctl.transports.registry import KINDS
from notifyctl.units import short

# The fields of `Capabilities`, in the order in which they are shown, and their words.
WORDS: Mapping[str, str] = {
    "channels": "channels",
    "raw_mime": "takes our exact MIME bytes",
    "max_batch": "messages in one request",
    "durable_id": "names what it accepted by a lasting id",
    "replay_window": "honours an idempotency key for",
    "search": "finds a message of unknown outcome by",
    "settle_delay": "a look-up can be trusted after",
    "absence_proves_unsent": "not found proves not sent",
    "receipts": "receipts",
    "terminal_distinct": "tells delivered from handed on",
    "invalid_distinct": "names an invalid recipient by a code, not in prose",
    "optout_distinct": "tells an opt-out from other refusals",
    "landline_distinct": "tells a landline from an unknown number",
    "receipt_window": "keeps statuses for",
    "status_rate": "status look-ups at most",
    "max_bytes": "largest message",
    "max_segments": "most SMS segments",
    "smtputf8": "addresses in any script",
}
DOUBT = "an unknown outcome can be settled"


def declared() -> dict[str, Capabilities]:
    """What each kind declares; imports the modules of all of them."""
    found = {}
    for kind, entry in KINDS.items():
        module, _, name = entry.module.partition(":")
        found[kind] = getattr(import_module(f"notifyctl.transports.{module}"), name).CAPABILITIES
    return found


def table(kinds: Iterable[str] | None = None) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """(heading, rows) of the table, one column for each kind; `kinds` None: all there are."""
    chosen = {kind: one for kind, one in declared().items() if kinds is None or kind in set(kinds)}
    rows = [_row(words, chosen, lambda one, name=name: said(getattr(one, name))) for name, words in WORDS.items()]  # type: ignore[misc]
    return ("", *chosen), [*rows, _row(DOUBT, chosen, _settled)]


def document(capabilities: Capabilities) -> dict[str, Any]:
    """The same for machines: plain values by the names of the fields, durations in seconds."""
    values = {name: getattr(capabilities, name) for name in WORDS}
    plain = {name: sorted(value) if isinstance(value, frozenset) else value for name, value in values.items()}
    return {**plain, "can_settle_doubt": capabilities.can_settle_doubt}


def said(value: Any) -> str:
    """One value in words; "-" where there is nothing."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, frozenset):
        return ", ".join(sorted(value))
    if isinstance(value, float):
        return short(value) if value else "-"
    return str(value).replace("_", " ") if value not in ("", 0) else "-"


def _settled(one: Capabilities) -> str:
    return "yes" if one.can_settle_doubt else "no: a person decides"


def _row(
    words: str, chosen: Mapping[str, Capabilities], value: Callable[[Capabilities], str]
) -> tuple[str, ...]:  # fmt: skip
    return (words, *(value(one) for one in chosen.values()))
