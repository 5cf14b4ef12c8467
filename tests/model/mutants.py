"""Ways to break the tool, each a change of what is shipped: a word of its SQL, or a rule.

`apply` fails where the text it changes is no longer there, so that no mutant silently stops being one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from notifyctl.ledger import begin, claim, record
from notifyctl.lifecycle_facts import CERTAIN_FAILURES, Case


@dataclass(frozen=True)
class Change:
    """In `module`, the constant `name` has `old` replaced by `new`."""

    module: Any
    name: str
    old: str
    new: str


@dataclass(frozen=True)
class Rule:
    """In `owner`, the attribute `name` becomes `value`."""

    owner: Any
    name: str
    value: Any


def _forgetful(case: Case) -> Any:
    return None if case.trigger in CERTAIN_FAILURES else case.facts.doubt_since


_OURS = "w.owner = :run AND w.fencing_token = o.token AND "
_KNOWN = """
    AND (notify_attempt.outcome IS NULL
      OR (notify_attempt.outcome = 'ambiguous' AND attempts.outcome <> 'ambiguous'))"""

MUTANTS: dict[str, tuple[Change | Rule, ...]] = {
    "fencing removed from record": (Change(record, "OWNED", _OURS, ""),),
    "fencing removed from begin": (
        Change(begin, "_JUDGE", _OURS, ""), Change(begin, "_LOCK", _OURS, ""), Change(begin, "_STILL_OURS", _OURS, ""),
    ),
    "begin skipped": (Change(begin, "_ATTEMPT", "WHERE true", "WHERE false"),),
    "record not idempotent": (Change(record, "_ATTEMPT", _KNOWN, ""),),
    "suppression check dropped in begin": (
        Change(begin, "_JUDGE", claim.SUPPRESSION % "o.fingerprint", "CAST(NULL AS text)"),
    ),
    "consent check dropped in begin": (Change(begin, "_JUDGE", claim.CONSENT, "CAST(NULL AS boolean)"),),
    "gate ignored in begin": (Change(begin, "_JUDGE", "EXISTS (SELECT 1 FROM notify_gate g WHERE",
                                     "EXISTS (SELECT 1 FROM notify_gate g WHERE 1 = 0 AND"),),
    "lease ignored in begin": (
        Change(begin, "_JUDGE", " AND w.eligible_at > :now", ""),
        Change(begin, "_LOCK", " AND w.eligible_at > :now", ""),
        Change(begin, "_STILL_OURS", " AND w.eligible_at > :now", ""),
    ),
    "doubt cleared by a later failure": (Rule(Case, "doubt", property(_forgetful)),),
    "resolve claimable by dispatch": (
        Change(claim, "_PICK", "w.step = :step", "(w.step = :step OR w.step = 'resolve')"),
        Change(claim, "_CLAIM_POSTGRES", "w.step = :step", "(w.step = :step OR w.step = 'resolve')"),
    ),
    "claim without a new token": (
        Change(claim, "TAKE", "fencing_token = fencing_token + 1", "fencing_token = fencing_token"),
        Change(claim, "_CLAIM_POSTGRES", "fencing_token = w.fencing_token + 1", "fencing_token = w.fencing_token"),
    ),
    "a lapse leaves the attempt open": (Change(record, "_LOST", "outcome IS NULL", "outcome = 'none'"),),
    "a settled delivery keeps its work": (Change(record, "_SETTLE", "WHERE", "WHERE 1 = 0 AND"),),
}  # fmt: skip


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """The tool with this mutant's changes."""
    before: list[tuple[Any, str, Any]] = []
    try:
        for change in MUTANTS[name]:
            owner = change.module if isinstance(change, Change) else change.owner
            original = getattr(owner, change.name)
            if isinstance(change, Change):
                assert change.old in original, f"{change.name} does not say {change.old!r} any more"
                value = original.replace(change.old, change.new)
            else:
                value = change.value
            before.append((owner, change.name, original))
            setattr(owner, change.name, value)
        yield
    finally:
        for owner, attribute, original in reversed(before):
            setattr(owner, attribute, original)
