"""One running reconcile, step by step: claims doubt, asks the provider, and decides in the tick's own turn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from notifyctl import lifecycle
from notifyctl.ledger import claim as claiming
from notifyctl.ledger import resolve
from notifyctl.ledger.database import Tx
from notifyctl.ledger.record import Move
from notifyctl.lifecycle import Trigger
from notifyctl.model import Absent, CannotTell, Found, OnAmbiguous
from notifyctl.ticks.lookups import Answer, Group, LookUp, Resolver
from notifyctl.ticks.receipts_turn import Group as Checks
from notifyctl.ticks.receipts_turn import Policies
from notifyctl.ticks.receipts_turn import turn as check_turn
from notifyctl.transports.base import Transport
from tests.model.owner import Owner

_NO_FAULT = ""


@dataclass
class Reader:
    """`asked`: what it has claimed, with the answers; nothing of it is written yet."""

    owner: Owner
    asked: dict[int, Answer] = field(default_factory=dict)

    def _transports(self) -> dict[str, Transport]:
        world = self.owner.world
        found = {name: world.transport(name) for name in self.owner.config.transports}
        return {name: one for name, one in found.items() if one is not None}

    def _resolver(self) -> Resolver:
        return Resolver(self.owner.run, self.owner.config.lanes, self._transports())

    def claim(self, lane: str) -> None:
        """Own what is due to be found out, and ask."""
        owner = self.owner
        owner.lapse()
        doubts, _ = resolve.claim_doubt(
            owner.ledger, run=owner.run.id, lane=lane, region="", limit=10, lease=60.0, after=claiming.Cursor(), but=[]
        )
        owner.world.check("claim resolve", actor=owner.run.id)
        assert owner.world.bench.idle(), "a transaction is open during a network call"
        resolver = self._resolver()
        for doubt in doubts:
            question = resolver.question(doubt)
            answer = Answer(doubt, CannotTell()) if question is None else LookUp(doubt, question)()
            self.asked[doubt.id] = answer

    def settle(self, *, repeat: bool = False) -> None:
        """Decide about everything that was answered."""
        answers = list(self.asked.values())
        self.asked.clear()
        self._turn(answers, repeat=repeat)

    def release(self) -> None:
        """Give back what was claimed, unasked."""
        answers = [Answer(answer.doubt, None, _NO_FAULT) for answer in self.asked.values()]
        self.asked.clear()
        self._turn(answers)

    def renew(self) -> None:
        """Half a lease is over."""
        if self.asked:
            tokens = {i: answer.doubt.token for i, answer in self.asked.items()}
            kept = claiming.renew(self.owner.ledger, run=self.owner.run.id, owned=tokens, lease=60.0)
            for lost in tokens.keys() - kept:
                del self.asked[lost]
            self.owner.world.check("renew", actor=self.owner.run.id)

    def _turn(self, answers: list[Answer], *, repeat: bool = False) -> None:
        owner, resolver = self.owner, self._resolver()
        if not answers:
            return

        def work(tx: Tx) -> list[Move]:
            return resolver.turn(tx, Group(answers))

        moves = owner.ledger.transact(work)
        owner.world.check("settle resolve", actor=owner.run.id, **self._allowed(answers, moves))
        if repeat:
            owner.ledger.transact(work)
            owner.world.check("settle resolve again", actor=owner.run.id, unchanged=True)

    def _allowed(self, answers: list[Answer], moves: list[Move]) -> dict[str, Any]:
        """What evidence and policy permit, in the words of whoever claimed it."""
        lanes = self.owner.config.lanes
        policy = {answer.doubt.id: lanes[answer.doubt.lane].on_ambiguous for answer in answers}
        made = {move.id for move in moves if move.to.accepted_at is not None}
        return {
            "absent": [a.doubt.id for a in answers if isinstance(a.finding, Absent) and self._proves(a)],
            "may_replay": [i for i, one in policy.items() if one is OnAmbiguous.AUTO],
            "may_duplicate": [i for i, one in policy.items() if one is OnAmbiguous.RESEND],
            "told_accepted": [a.doubt.id for a in answers if isinstance(a.finding, Found) and a.doubt.id in made],
        }

    def _proves(self, answer: Answer) -> bool:
        transport = self._transports().get(answer.doubt.transport)
        return transport is not None and transport.capabilities.absence_proves_unsent

    # -- what needs no evidence ---------------------------------------------------------------------------------------

    def expire(self) -> None:
        """Sends that are not worth sending any more, also behind closed gates."""
        owner, resolver = self.owner, self._resolver()
        pairs = [(name, "") for name in owner.config.lanes]

        def work(tx: Tx) -> None:
            found = resolve.expired(tx, pairs=pairs, limit=100)
            moves = [
                (one, lifecycle.decide(one.facts, Trigger.EXPIRY_SWEEP, tx.now,
                                       *resolver.policy(one.lane, one.channel, ""), reason="expired"))
                for one in found
            ]  # fmt: skip
            resolve.expire(tx, moves, actor=owner.run.id)

        owner.ledger.transact(work)
        owner.world.check("expire", actor=owner.run.id)

    def end_checks(self, lane: str) -> None:
        """Receipts that never came."""
        owner, policies = self.owner, Policies(self.owner.config.lanes, self._transports())
        checks = resolve.claim_overdue(
            owner.ledger, run=owner.run.id, lane=lane, region="", limit=10, lease=60.0,
            transports=sorted(owner.config.transports), older_than=owner.config.lanes[lane].receipt.deadline,
        )  # fmt: skip
        owner.world.check("claim check", actor=owner.run.id)
        if checks:
            group = Checks(silent=[(check, Trigger.RECEIPT_DEADLINE) for check in checks])
            owner.ledger.transact(lambda tx: check_turn(tx, owner.run, policies, group))
            owner.world.check("end checks", actor=owner.run.id)

    def take_over(self) -> None:
        """A region is taken over, and taken back: owners lose what they had, nothing else changes."""
        owner = self.owner
        for lost, region in (("", "west"), ("west", "")):

            def work(tx: Tx, lost: str = lost, region: str = region) -> int:
                return resolve.take_over(tx, lost=lost, region=region, run=owner.run.id, limit=100)

            owner.ledger.transact(work)
            owner.world.check("take over", actor=owner.run.id)
