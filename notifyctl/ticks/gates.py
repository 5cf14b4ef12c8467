"""What an operator does with lanes, and what stands in their way: pauses, cool-downs, breakers and probes, as shown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from notifyctl.config import Config
from notifyctl.errors import ConfigError, UsageError
from notifyctl.ledger import backlog, gate
from notifyctl.ledger.database import Ledger, Tx
from notifyctl.ledger.gate import Gate
from notifyctl.model import Lane


@dataclass(frozen=True, slots=True)
class Standing:
    """One configured lane: how many of its sends are due, and every gate of its own and of its transport."""

    lane: Lane
    due: int
    gates: Sequence[Gate] = field(default_factory=list)

    @property
    def document(self) -> dict[str, Any]:
        """One entry of `lane list`."""
        lane = self.lane
        return {
            "lane": lane.name, "channel": lane.channel.value, "transport": lane.transport, "due": self.due,
            "gates": [shown(one) for one in self.gates],
        }  # fmt: skip


def configured(config: Config, name: str) -> Lane:
    """The lane of that name. Raises UsageError naming the configured ones."""
    if not config.lanes:
        raise ConfigError(f"{config.path} configures no lane", hint="add a [lanes.NAME] with channel and transport")
    if name not in config.lanes:
        raise UsageError(
            f"there is no lane {name!r}; nothing has been changed",
            hint=f"configured are {', '.join(sorted(config.lanes))}",
        )
    return config.lanes[name]


def standing(tx: Tx, config: Config, lanes: Iterable[Lane]) -> list[Standing]:
    """These lanes as they stand in the configured region."""
    chosen = list(lanes)
    gates, waiting = gate.look(tx), backlog.waiting(tx, [(lane.name, config.region) for lane in chosen])
    return [Standing(lane, waiting[lane.name].due, before(gates, lane.name, lane.transport)) for lane in chosen]


def before(gates: Iterable[Gate], lane: str, transport: str | None) -> list[Gate]:
    """Those of the gates that concern a lane: its own, then its transport's."""
    return [one for one in gates if (one.scope, one.name) in (("lane", lane), ("transport", transport))]


def shown(one: Gate) -> dict[str, Any]:
    """A gate in JSON. `state`: `pause`, `cooldown`, `breaker`, or `probe` while one is out or due."""
    return {
        "scope": one.scope, "name": one.name, "kind": one.kind, "state": one.state, "until": one.until,
        "level": one.level, "reason": one.reason, "by": one.by,
    }  # fmt: skip


def held_by(gates: Iterable[Gate], due: int) -> tuple[int, dict[str, int]]:
    """Of `due` sends behind these gates, how many a dispatch would claim, and what holds the others."""
    strongest = gate.strongest(gates)
    closed = [one for one in strongest.values() if not one.due]
    if not due or not strongest:
        return due, {}
    if closed:
        first = next((one for one in closed if one.scope == "lane"), closed[0])
        return 0, {first.state: due}
    return 1, {"probe": due - 1} if due > 1 else {}


def pause(ledger: Ledger, config: Config, lane: Lane, *, reason: str, actor: str, dry_run: bool) -> tuple[bool, Any]:
    """Pause a lane until it is resumed. Returns whether that changed something, and how the lane stands then.

    A dispatch that runs begins nothing more of it: what it has claimed goes back as it was.
    """

    def work(tx: Tx) -> tuple[bool, Standing]:
        return gate.pause(tx, lane.name, reason=reason, actor=actor), standing(tx, config, [lane])[0]

    return ledger.read(lambda tx: _foreseen(tx, config, lane, paused=False)) if dry_run else ledger.transact(work)


def resume(ledger: Ledger, config: Config, lane: Lane, *, reason: str, actor: str, dry_run: bool) -> tuple[bool, Any]:
    """End a lane's pause. Returns whether there was one, and how the lane stands then."""

    def work(tx: Tx) -> tuple[bool, Standing]:
        return gate.resume(tx, lane.name, reason=reason, actor=actor), standing(tx, config, [lane])[0]

    return ledger.read(lambda tx: _foreseen(tx, config, lane, paused=True)) if dry_run else ledger.transact(work)


def _foreseen(tx: Tx, config: Config, lane: Lane, *, paused: bool) -> tuple[bool, Standing]:
    now = standing(tx, config, [lane])[0]
    return any(one.scope == "lane" and one.until is None for one in now.gates) is paused, now
