"""`fail` scripts of the `file` transport: outcomes to order, for rehearsals and tests without a provider.

    fail = [{ match = "*@bad.example", outcome = "permanent_failure", reason = "invalid_recipient", times = 1 }]

`match` is a shell pattern over the whole destination. `times`: how often, over all processes (absent: always).
`retry_after`: seconds, or a duration such as "2m". `scope`: `account` or `destination`. `after_accept = true` with
outcome `ambiguous`: the message is written, the answer is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Any

from notifyctl.errors import ConfigError, InputError
from notifyctl.model import Outcome, OutcomeKind, Scope
from notifyctl.settings import TransportSettings
from notifyctl.units import duration

_KEYS = ("match", "outcome", "reason", "times", "retry_after", "scope", "after_accept")
_OUTCOMES = tuple(kind.value for kind in OutcomeKind if kind is not OutcomeKind.ACCEPTED)


@dataclass(frozen=True, slots=True)
class Script:
    """One entry of `fail`; `name` names its counter and changes when the entry is edited."""

    name: str
    pattern: str = field(repr=False)
    kind: OutcomeKind
    reason: str
    times: int | None
    retry_after: float | None
    scope: Scope
    after_accept: bool

    def matches(self, destination: str) -> bool:
        """Whether this entry is for `destination`, whatever its case."""
        return fnmatchcase(destination.casefold(), self.pattern)

    def outcome(self) -> Outcome:
        """The outcome to order."""
        return Outcome(self.kind, self.reason, retry_after=self.retry_after, scope=self.scope)


def read_scripts(settings: TransportSettings) -> tuple[Script, ...]:
    """The scripts of `transports.NAME.fail`; raises ConfigError naming the entry and the key."""
    raw = settings.options.get("fail", [])
    if not isinstance(raw, list | tuple):
        raise settings.error("fail", "must be a list of tables", 'fail = [{ match = "*", outcome = "unavailable" }]')
    return tuple(_script(settings, number, entry) for number, entry in enumerate(raw))


def _script(settings: TransportSettings, number: int, entry: Any) -> Script:
    def wrong(key: str, problem: str, hint: str = "") -> ConfigError:
        return settings.error(f"fail[{number}]{key and '.' + key}", problem, hint)

    if not isinstance(entry, dict):
        raise wrong("", "must be a table", 'for example { match = "*@bad.example", outcome = "temporary_failure" }')
    for key in entry:
        if key not in _KEYS:
            raise wrong(str(key), "is unknown", f"the keys are {', '.join(_KEYS)}")
    pattern, outcome = entry.get("match"), entry.get("outcome")
    if not isinstance(pattern, str) or not pattern:
        raise wrong(
            "match", "is missing or not a text", 'a shell pattern over the destination, such as "*@bad.example"'
        )
    if outcome not in _OUTCOMES:
        raise wrong("outcome", "is missing or unknown", f"it may be {', '.join(_OUTCOMES)}")
    kind = OutcomeKind(outcome)
    reason = entry.get("reason", "scripted")
    if not isinstance(reason, str) or not reason.isidentifier() or reason != reason.lower():
        raise wrong("reason", "must be a reason code in snake_case", 'such as "invalid_recipient"')
    times = entry.get("times")
    if times is not None and (not isinstance(times, int) or isinstance(times, bool) or times < 1):
        raise wrong("times", "must be a whole number of at least 1")
    retry_after = entry.get("retry_after")
    if isinstance(retry_after, str):
        try:
            retry_after = duration(retry_after)
        except InputError as problem:
            raise wrong("retry_after", f"is wrong: {problem.message}", problem.hint) from None
    if retry_after is not None and (
        not isinstance(retry_after, int | float) or isinstance(retry_after, bool) or not 0 <= retry_after <= 1e9
    ):
        raise wrong("retry_after", "must be seconds or a duration", 'such as 120 or "2m"')
    account = kind is OutcomeKind.UNAVAILABLE
    scope = entry.get("scope", "account" if account else "destination")
    if scope not in tuple(Scope):
        raise wrong("scope", "is unknown", "it may be account or destination")
    after_accept = entry.get("after_accept", False)
    if not isinstance(after_accept, bool) or (after_accept and kind is not OutcomeKind.AMBIGUOUS):
        raise wrong("after_accept", 'must be true or false, and goes with outcome = "ambiguous" only')
    name = sha256(repr((number, sorted(entry.items(), key=str))).encode()).hexdigest()[:32]
    wait = None if retry_after is None else float(retry_after)
    return Script(name, pattern.casefold(), kind, reason, times, wait, Scope(scope), after_accept)
