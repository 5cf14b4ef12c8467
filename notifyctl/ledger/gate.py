"""Gates: a pause of a lane; a cool-down or breaker of a transport. A closed gate stops claims and begins.

A pause ends when a person resumes it (or at `until`, where an administrator has set one). A cool-down or breaker stays
closed until its `until`; then one conditional UPDATE elects one probe for all processes and hosts: a single attempt
that may begin. `until` becomes the probe's own deadline meanwhile, so to everybody else the gate is simply closed, and
a probe whose owner died is elected anew when that has passed. Only the probe's success opens the gate (its row goes);
its failure closes it for twice as long. Everything a gate does leaves a line in `notify_gate_trail`.

Locks: a transaction takes work rows before gates, and gates in the order of their names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from notifyctl.ledger.database import Tx

Key = tuple[str, str]  # (scope, name)

PAUSE, COOLDOWN, BREAKER = "pause", "cooldown", "breaker"

_LOOK = """SELECT scope, name, kind, until, level, probe_owner, reason, actor, at FROM notify_gate
  ORDER BY scope, name, kind"""

_SHUT = """INSERT INTO notify_gate (scope, name, kind, until, level, reason, actor, at)
  VALUES (:scope, :name, :kind, :until, :level, :reason, :actor, :now)
  ON CONFLICT (scope, name, kind) DO UPDATE SET until = excluded.until, level = excluded.level,
    reason = excluded.reason, actor = excluded.actor, at = excluded.at, probe_owner = NULL
  WHERE notify_gate.until IS NULL OR notify_gate.until < excluded.until OR notify_gate.probe_owner = :prober"""

_PAUSE = """INSERT INTO notify_gate (scope, name, kind, until, level, reason, actor, at)
  VALUES ('lane', :name, 'pause', NULL, 0, :reason, :actor, :now)
  ON CONFLICT (scope, name, kind) DO UPDATE SET until = NULL, reason = excluded.reason, actor = excluded.actor,
    at = excluded.at
  WHERE notify_gate.until IS NOT NULL"""

_RESUME = "DELETE FROM notify_gate WHERE scope = 'lane' AND name = :name AND kind = 'pause'"

_ELECT = """UPDATE notify_gate SET probe_owner = :run, until = :until
  WHERE scope = 'transport' AND name = :name AND kind <> 'pause' AND (until IS NULL OR until <= :now)"""

_OPEN = """DELETE FROM notify_gate WHERE scope = 'transport' AND kind <> 'pause' AND probe_owner = :run
    AND name IN (SELECT name FROM {o: name text})
  RETURNING name, kind, level"""

_TRAIL = """INSERT INTO notify_gate_trail (at, scope, name, kind, action, until, level, reason, actor)
  VALUES (:now, :scope, :name, :kind, :action, :until, :level, :reason, :actor)"""


@dataclass(frozen=True, slots=True)
class Gate:
    """One gate that is closed or waits for its probe.

    `until` None: until somebody opens it. `due`: its time is over and the next attempt is its probe. `prober`: the run
    whose probe is out, until when at most `until` says. `by`: the run or person that closed it, at `at`.
    """

    scope: str
    name: str
    kind: str
    until: datetime | None
    level: int
    reason: str
    by: str = ""
    at: datetime | None = None
    prober: str | None = None
    due: bool = False

    @property
    def state(self) -> str:
        """What it is in one word: `pause`, `cooldown`, `breaker`, or `probe` while one is out or due."""
        return "probe" if self.prober or self.due else self.kind


def look(tx: Tx) -> list[Gate]:
    """Every gate that is closed, or waits for its probe, in order of scope, name and kind."""
    gates = []
    for scope, name, kind, stored, level, prober, reason, actor, at in tx.execute(_LOOK):
        until = tx.dialect.instant(stored)
        over = kind != PAUSE if until is None else until <= tx.now
        if over and (kind == PAUSE or scope == "lane"):
            continue  # only transports are probed
        gates.append(
            Gate(scope, name, kind, until, level, reason, actor, tx.dialect.instant(at), None if over else prober, over)
        )
    return gates


def closed(tx: Tx) -> dict[Key, Gate]:
    """All gates that are closed now, by (scope, name); of several on one thing the one that ends last."""
    return strongest(gate for gate in look(tx) if not gate.due)


def strongest(gates: Iterable[Gate]) -> dict[Key, Gate]:
    """Of several gates on one thing the one that ends last; one whose time is over counts least."""
    found: dict[Key, Gate] = {}
    for gate in gates:
        other = found.get((gate.scope, gate.name))
        if other is None or _rank(gate) > _rank(other):
            found[gate.scope, gate.name] = gate
    return found


def _rank(gate: Gate) -> tuple[bool, bool, datetime | None]:
    return not gate.due, gate.until is None, gate.until


def of(gates: Mapping[Key, Gate], lane: str, transport: str | None) -> Gate | None:
    """The gate that stops this lane's sends; the lane's own before the transport's."""
    return gates.get(("lane", lane)) or (gates.get(("transport", transport)) if transport else None)


# -- what runs learn of transports ------------------------------------------------------------------------------


def levels(tx: Tx, transports: Iterable[str]) -> dict[str, int]:
    """How often in a row these transports have been closed; those that were not are left out."""
    rows = tx.execute(
        """SELECT g.name, max(g.level) FROM {o: name text} JOIN notify_gate g ON g.name = o.name
        WHERE g.scope = 'transport' AND g.kind <> 'pause' GROUP BY g.name""",
        o=[(name,) for name in sorted(set(transports))],
    )
    return dict(rows)


def close(
    tx: Tx, scope: str, name: str, kind: str, *, until: datetime | None, level: int, reason: str, actor: str,
    probe: bool = False,
) -> None:  # fmt: skip
    """Close a gate. One that is closed for longer stays as it is, unless it is `actor`'s own probe that has failed: it
    was closed until the probe's deadline only."""
    parameters = {"scope": scope, "name": name, "kind": kind, "until": until, "level": level, "reason": reason}
    if tx.affected(_SHUT, actor=actor, prober=actor if probe else "", **parameters):
        tx.execute(_TRAIL, action="closed", actor=actor, **parameters)


def elect(tx: Tx, transport: str, *, run: str, until: datetime) -> bool:
    """Make one attempt of `run` the probe of a transport whose gate's time is over; False: somebody else was first."""
    if not tx.affected(_ELECT, name=transport, run=run, until=until):
        return False
    tx.execute(
        _TRAIL, scope="transport", name=transport, kind=BREAKER, action="probed", until=until, level=0, reason="",
        actor=run,
    )  # fmt: skip
    return True


def probing(tx: Tx, run: str) -> set[str]:
    """The transports whose probe this run has out."""
    rows = tx.execute("SELECT name FROM notify_gate WHERE probe_owner = :run AND until > :now", run=run)
    return {row[0] for row in rows}


def reopen(tx: Tx, transports: Iterable[str], *, run: str) -> set[str]:
    """The probe succeeded: open these transports, unless the probe was lost to another. Returns those opened."""
    names = sorted(set(transports))
    rows = tx.execute(_OPEN, o=[(name,) for name in names], run=run) if names else []
    for name, kind, level in rows:
        tx.execute(
            _TRAIL, scope="transport", name=name, kind=kind, action="opened", until=None, level=level, reason="",
            actor=run,
        )  # fmt: skip
    return {row[0] for row in rows}


# -- what people do with lanes ----------------------------------------------------------------------------------


def pause(tx: Tx, lane: str, *, reason: str, actor: str) -> bool:
    """Pause a lane until it is resumed; False: it is paused already, and stays as it was."""
    if not tx.affected(_PAUSE, name=lane, reason=reason, actor=actor):
        return False
    tx.execute(
        _TRAIL, scope="lane", name=lane, kind=PAUSE, action="closed", until=None, level=0, reason=reason, actor=actor
    )
    return True


def resume(tx: Tx, lane: str, *, reason: str, actor: str) -> bool:
    """End a lane's pause; False: it was not paused."""
    if not tx.affected(_RESUME, name=lane):
        return False
    tx.execute(
        _TRAIL, scope="lane", name=lane, kind=PAUSE, action="opened", until=None, level=0, reason=reason, actor=actor
    )
    return True
