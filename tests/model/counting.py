"""How often each row of the lifecycle's table was taken, and whether what SQL alone does is what the table says.

The tool decides most moves in Python: those are counted where they are decided. Claim, release, renewal, begin, birth
and the triggers' sweeps are statements: here the table is asked what it would have said, and compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from notifyctl import lifecycle
from notifyctl.lifecycle import RULES, Facts, Transition, Trigger
from notifyctl.model import Capabilities, Channel, Lane, Mandate, State, Step
from tests.model.oracle import Row, Snapshot
from tests.model.truth import Violation

_CAPABILITIES = Capabilities(channels=frozenset({Channel.EMAIL}))


class Tally:
    """Counts by the number of the rule."""

    def __init__(self) -> None:
        self.fired: Counter[int] = Counter()

    @contextmanager
    def listening(self) -> Iterator[Tally]:
        """Count whatever is decided meanwhile."""
        original = lifecycle.decide

        def decide(*arguments: Any, **options: Any) -> Transition:
            made = original(*arguments, **options)
            self.fired[made.rule] += 1
            return made

        lifecycle.decide = decide
        try:
            yield self
        finally:
            lifecycle.decide = original

    def table(self) -> str:
        """One line per rule."""
        return "\n".join(
            f"{self.fired[rule.number]:7d}  {rule.number:3d}  {rule.source.text} · "
            f"{'/'.join(rule.triggers)} · {rule.guard.text} → {rule.to}"
            for rule in RULES
        )

    def seldom(self, least: int) -> list[int]:
        """The rules that were taken less often than that."""
        return [rule.number for rule in RULES if self.fired[rule.number] < least]


def follow(before: Snapshot, after: Snapshot, name: str, now: datetime, lanes: dict[str, Lane]) -> None:
    """What statements alone have done in this step, held against the table."""
    for delivery, row in after.deliveries.items():
        was, old, new = before.deliveries.get(delivery), before.work.get(delivery), after.work.get(delivery)
        lane = lanes[row.lane]
        if was is None:
            facts = Facts(None, due_at=row.due_at, refusal="" if row.state == "queued" else "refused")
            _same(lifecycle.decide(facts, Trigger.INSERT, now, lane, _CAPABILITIES), row, new, 0, "insert")
            continue
        facts = _facts(was, old, before.gates, now)
        trigger = None
        if old is not None and name in ("suppress", "answer") and was.state != row.state:
            trigger = Trigger.SUPPRESSION_ADDED
        elif old is not None and name == "take over":
            trigger = Trigger.TAKE_OVER
        elif old is not None and new is not None and was.state == row.state:
            trigger = _ownership(old, new, name)
        elif (
            old is not None
            and name == "turn"
            and len(after.attempts.get(delivery, ())) > len(before.attempts.get(delivery, ()))
        ):
            trigger = Trigger.BEGIN
        if trigger is None or old is None:
            continue
        made = lifecycle.decide(
            facts, trigger, now, lane, _CAPABILITIES if trigger is not Trigger.BEGIN else _replayable(),
            deadline=30.0, margin=5.0, old_eligible_at=new.eligible_at if new else None,
        )  # fmt: skip
        _same(made, row, new, old.fencing_token, trigger)


def _replayable() -> Capabilities:
    return Capabilities(channels=frozenset({Channel.EMAIL}), replay_window=600.0)


def _ownership(old: Row, new: Row, name: str) -> Trigger | None:
    if new.owner is not None and new.fencing_token == old.fencing_token + 1 and name.startswith("claim"):
        return Trigger.CLAIM
    if old.step != new.step or old.fencing_token != new.fencing_token:
        return None
    if old.owner is not None and new.owner is None and name in ("turn", "release check") and old.tries == new.tries:
        return Trigger.RELEASE
    if name == "renew" and old.eligible_at != new.eligible_at:
        return Trigger.RENEW
    return None


def _facts(row: Row, work: Row | None, gates: list[Row], now: datetime) -> Facts:
    return Facts(
        State(row.state), Step(work.step) if work else None, owned=bool(work and work.owner), used=row.attempts_used,
        tries=work.tries if work else 0, due_at=row.due_at, eligible_at=work.eligible_at if work else None,
        expires_at=row.expires_at, first_tried_at=row.first_tried_at, doubt_since=row.doubt_since,
        accepted_at=row.accepted_at, mandate=Mandate(work.mandate) if work and work.mandate else None,
    )  # fmt: skip


def _same(made: Transition, row: Row, work: Row | None, token: int, what: str) -> None:
    mandate = None if what is Trigger.BEGIN else made.mandate  # from then on it stands on the attempt
    told = (made.state, made.step, mandate, token + made.token_raised)
    stored = (row.state, work and work.step, work and work.mandate, int((work or row).fencing_token))
    if told != stored:
        raise Violation(f"{what}: the table says {told}, the ledger {stored} of delivery {row.id}")
    if work is not None and made.eligible_at != work.eligible_at:
        raise Violation(f"{what}: the table says due {made.eligible_at}, the ledger {work.eligible_at}")
