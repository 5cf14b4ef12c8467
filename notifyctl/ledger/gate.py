"""Gates: a pause, cool-down or breaker on a lane or transport. A closed gate stops claims and begins."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from notifyctl.ledger.database import Tx

_CLOSED = """SELECT scope, name, kind, until, level, reason FROM notify_gate
  WHERE until > :now OR (until IS NULL AND kind = 'pause')"""

_CLOSE = """INSERT INTO notify_gate (scope, name, kind, until, level, reason, actor, at)
  VALUES (:scope, :name, :kind, :until, :level, :reason, :actor, :now)
  ON CONFLICT (scope, name, kind) DO UPDATE SET until = excluded.until, level = excluded.level,
    reason = excluded.reason, actor = excluded.actor, at = excluded.at
  WHERE notify_gate.until IS NULL OR notify_gate.until < excluded.until"""


@dataclass(frozen=True, slots=True)
class Gate:
    """One closed gate; `until` None: until somebody opens it."""

    scope: str
    name: str
    kind: str
    until: datetime | None
    level: int
    reason: str


def closed(tx: Tx) -> dict[tuple[str, str], Gate]:
    """All gates that are closed now, by (scope, name); of several on one thing the one that ends last."""
    gates: dict[tuple[str, str], Gate] = {}
    for scope, name, kind, until, level, reason in tx.execute(_CLOSED):
        gate = Gate(scope, name, kind, tx.dialect.instant(until), level, reason)
        other = gates.get((scope, name))
        if other is None or (other.until is not None and (gate.until is None or gate.until > other.until)):
            gates[scope, name] = gate
    return gates


def level(tx: Tx, scope: str, name: str, kind: str) -> int:
    """How often in a row this gate has closed; 0 where it never did."""
    rows = tx.execute(
        "SELECT level FROM notify_gate WHERE scope = :scope AND name = :name AND kind = :kind",
        scope=scope, name=name, kind=kind,
    )  # fmt: skip
    return rows[0][0] if rows else 0


def close(
    tx: Tx, scope: str, name: str, kind: str, *, until: datetime | None, level: int, reason: str, actor: str
) -> None:
    """Close a gate; one that is already closed for longer stays as it is."""
    tx.execute(
        _CLOSE, scope=scope, name=name, kind=kind, until=until, level=level, reason=reason, actor=actor
    )  # fmt: skip


def forget(tx: Tx, names: Iterable[str]) -> None:
    """A transport that works again: its breakers start from level 0."""
    tx.execute(
        """DELETE FROM notify_gate WHERE scope = 'transport' AND kind = 'breaker'
        AND name IN (SELECT name FROM {o: name text})""",
        o=[(name,) for name in sorted(names)],
    )
