"""A ledger with two owners and deliveries made by plain SQL: what the contract tests of claim, begin, record need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from notifyctl import lifecycle
from notifyctl.ledger import begin as beginning
from notifyctl.ledger import claim as claiming
from notifyctl.ledger import record as recording
from notifyctl.ledger.begin import Begun, Held, Ready
from notifyctl.ledger.database import Ledger
from notifyctl.ledger.record import LateRow, Result
from notifyctl.lifecycle import Facts, Transition, Trigger
from notifyctl.model import Capabilities, Channel, Delivery, Lane, Outcome, Receipts, State, Step

LANE = Lane("email", Channel.EMAIL, "relay", max_attempts=3)
PLAIN = Capabilities(channels=frozenset({Channel.EMAIL}))
WITH_LOOKUP = replace(PLAIN, receipts=Receipts.LOOKUP)
DEADLINE = 30.0


class Workbench:
    """One process's view of a ledger; `capabilities` are its transport's."""

    def __init__(self, url: str, run: str = "run-1", capabilities: Capabilities = PLAIN) -> None:
        self.ledger = Ledger(url)
        self.run = run
        self.capabilities = capabilities

    def execute(self, sql: str, **parameters: Any) -> list[Any]:
        """One statement in a transaction of its own."""
        return self.ledger.transact(lambda tx: tx.execute(sql, **parameters))

    def deliveries(self, count: int, *, prefix: str = "e", lane: str = "email", **columns: str) -> None:
        """Insert so many due deliveries, each to a recipient of its own."""
        names = ["event_id", "recipient_id", "channel", "template", "lane", *columns]
        values = ["o.event", "o.recipient", "'email'", "'welcome'", f"'{lane}'", *columns.values()]
        self.execute(
            f"INSERT INTO notify_delivery ({', '.join(names)}) SELECT {', '.join(values)} "
            "FROM {o: event text, recipient text} WHERE true",
            o=[(f"{prefix}{n}", f"{prefix}{n}") for n in range(count)],
        )

    def claim(self, limit: int = 100, *, lease: float = 60.0, lane: str = "email", region: str = "") -> list[Delivery]:
        """Claim from the beginning of a lane."""
        return claiming.claim(
            self.ledger, run=self.run, step=Step.SEND, lane=lane, region=region, limit=limit, lease=lease,
            after=claiming.Cursor(),
        )[0]  # fmt: skip

    def begin(self, deliveries: Sequence[Delivery], **changes: Any) -> dict[int, Begun | Held]:
        """Begin these in one transaction."""
        ready = [ready_for(d, self.ledger.now(), **changes) for d in deliveries]
        return self.ledger.transact(lambda tx: beginning.begin(tx, run=self.run, ready=ready))

    def result(self, delivery: Delivery, begun: Begun | Held, outcome: Outcome) -> Result:
        """The outcome of a begun attempt as its owner would record it."""
        assert isinstance(begun, Begun)
        facts = Facts(
            state=State.SENDING, step=Step.RESOLVE, owned=True, used=delivery.attempts_used,
            first_tried_at=delivery.first_tried_at or begun.started, doubt_since=delivery.doubt_since,
            attempt_started=begun.started, due_at=delivery.due_at,
        )  # fmt: skip
        transition = lifecycle.after(facts, outcome, self.ledger.now(), LANE, self.capabilities)
        return Result(delivery.id, begun.number, delivery.token, State.SENDING, outcome, transition, 0.01, "f")

    def record(self, results: Sequence[Result]) -> recording.Recorded:
        """Record in one transaction."""
        return self.ledger.transact(lambda tx: recording.record(tx, run=self.run, results=results, late=self.late))

    def late(self, row: LateRow, outcome: Outcome) -> Transition:
        """What a late outcome means."""
        return lifecycle.late(row.facts, outcome, self.ledger.now(), LANE, self.capabilities)

    def lapse(self) -> list[str]:
        """Mark what has lapsed in the email lane."""
        return self.ledger.transact(
            lambda tx: recording.lapse(
                tx, pairs=[("email", "")], limit=1000, actor=self.run,
                judge=lambda row: lifecycle.decide(
                    row.facts, Trigger.LAPSE, tx.now, LANE, self.capabilities, reason="worker_lost"
                ),
            )
        )  # fmt: skip

    def send(self, deliveries: Sequence[Delivery], outcome: Outcome) -> recording.Recorded:
        """Begin these and record one outcome for all."""
        begun = self.begin(deliveries)
        return self.record([self.result(d, begun[d.id], outcome) for d in deliveries])

    def state(self, delivery: int) -> str:
        """The state of one delivery."""
        return str(self.execute("SELECT state FROM notify_delivery WHERE id = :id", id=delivery)[0][0])

    def states(self) -> dict[str, int]:
        """How many deliveries are in each state."""
        return dict(self.execute("SELECT state, count(*) FROM notify_delivery GROUP BY state"))

    def work(self, delivery: int) -> dict[str, Any] | None:
        """The work row of one delivery."""
        names = ("step", "lane", "region", "eligible_at", "owner", "fencing_token", "tries", "mandate")
        rows = self.execute(f"SELECT {', '.join(names)} FROM notify_work WHERE delivery_id = :id", id=delivery)
        return dict(zip(names, rows[0], strict=True)) if rows else None

    def pass_leases(self) -> None:
        """Let every lease and deadline pass (rule R11: stored instants are honoured)."""
        self.execute("UPDATE notify_work SET eligible_at = :past", past=self.ledger.now() - timedelta(seconds=1))

    def sound(self) -> None:
        """Assert that a live delivery has exactly one work row and a settled one none, and that the trail is whole."""
        wrong = self.execute(
            """SELECT d.id, d.state, w.step FROM notify_delivery d LEFT JOIN notify_work w ON w.delivery_id = d.id
            WHERE (w.delivery_id IS NULL
                AND d.state IN ('queued', 'sending', 'temporary_failure', 'ambiguous', 'pending'))
               OR (w.delivery_id IS NOT NULL AND d.settled_at IS NOT NULL)"""
        )
        assert wrong == []
        broken = self.execute(
            """SELECT d.id, d.state, t."to" FROM notify_delivery d JOIN notify_transition t ON t.id =
              (SELECT max(n.id) FROM notify_transition n WHERE n.delivery_id = d.id) WHERE t."to" <> d.state"""
        )
        assert broken == []


def ready_for(delivery: Delivery, now: datetime, **changes: Any) -> Ready:
    """A composed delivery with invented pins."""
    ready = Ready(
        delivery=delivery, transport="relay", sender="no-reply@example.com", message_date=now.replace(microsecond=0),
        endpoint_id=None, fingerprint=f"f{delivery.id}", content_digest="c", request_digest=f"r{delivery.id}",
        deadline=DEADLINE,
    )  # fmt: skip
    return replace(ready, **changes)


@contextmanager
def workbench(url: str, run: str = "run-1", capabilities: Capabilities = PLAIN) -> Iterator[Workbench]:
    """A workbench that closes its connection."""
    bench = Workbench(url, run, capabilities)
    try:
        yield bench
    finally:
        bench.ledger.close()
