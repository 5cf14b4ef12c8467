"""One running poll-receipts, step by step: claims due checks, asks, and keeps what was said in the tick's own turn."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from notifyctl.ledger import claim as claiming
from notifyctl.ledger import receipts as ledger
from notifyctl.ledger.receipts import Check
from notifyctl.lifecycle import Trigger
from notifyctl.model import Receipt, Receipts, ReceiptStatus
from notifyctl.ticks.receipts_turn import Answered, Group, Policies, Read, turn
from notifyctl.transports.base import FeedPage, Transport
from tests.model.owner import Owner


@dataclass
class Poller:
    """`group` is what it has learnt and not kept yet."""

    owner: Owner
    group: Group = field(default_factory=Group)
    owned: dict[int, Check] = field(default_factory=dict)

    def forget(self) -> None:
        """It dies."""
        self.group, self.owned = Group(), {}

    def _policies(self) -> Policies:
        world, config = self.owner.world, self.owner.config
        opened: dict[str, Transport] = {}
        for name in config.transports:
            one = world.transport(name)
            if one is not None:
                opened[name] = one
        return Policies(config.lanes, opened)

    def claim(self, lane: str) -> None:
        """Own due checks, and ask where one can ask."""
        owner, world = self.owner, self.owner.world
        checks, _ = ledger.claim_checks(
            owner.ledger, run=owner.run.id, lane=lane, region="", limit=10, lease=60.0, after=claiming.Cursor(),
            only=None,
        )  # fmt: skip
        world.check("claim check", actor=owner.run.id)
        assert world.bench.idle()
        for check in checks:
            self._drop(check.id)
            self.owned[check.id] = check
            transport = world.transport(check.transport)
            if transport is None:
                self._silent(check, Trigger.RECEIPT_ERROR)
            elif transport.capabilities.receipts is not Receipts.LOOKUP or not check.remote_ids:
                self._silent(check, Trigger.RECEIPT_NOT_YET)
            else:
                try:
                    answer = Answered(check, transport.receipts(check.remote_ids))
                except ConnectionError:
                    answer = Answered(check, {}, fault="unavailable")
                self.group.answers = [*self.group.answers, answer]

    def _silent(self, check: Check, ends: Trigger) -> None:
        self.group.silent = [*self.group.silent, (check, ends)]

    def _drop(self, delivery: int) -> None:
        """What it knew of an earlier claim of this delivery is overtaken."""
        self.group.answers = [a for a in self.group.answers if a.check.id != delivery]
        self.group.silent = [pair for pair in self.group.silent if pair[0].id != delivery]

    def settle(self, *, repeat: bool = False) -> None:
        """Keep what was said, and end the checks."""
        group, self.group, self.owned = self.group, Group(), {}
        if group.empty:
            return
        said = {a.check.id for a in group.answers} | {check.id for check, _ in group.silent}
        self._turn(group, "settle check", said=said, repeat=repeat)

    def release(self) -> None:
        """Give back what was claimed."""
        checks, self.group, self.owned = list(self.owned.values()), Group(), {}
        if checks:
            group = Group(returning=[(check, check.was_eligible_at) for check in checks])
            self._turn(group, "release check", said=set())

    def renew(self) -> None:
        """Half a lease is over."""
        if self.owned:
            tokens = {check.id: check.token for check in self.owned.values()}
            kept = claiming.renew(self.owner.ledger, run=self.owner.run.id, owned=tokens, lease=60.0)
            for lost in tokens.keys() - kept:
                self._drop(lost)
                del self.owned[lost]
            self.owner.world.check("renew", actor=self.owner.run.id)

    def hear(self, delivery: int, status: ReceiptStatus, age: float, *, by_key: bool, repeat: bool) -> None:
        """A feed speaks of a message that a provider has taken, by its id or by our own key."""
        world = self.owner.world
        key = world.oracle.wire[delivery]
        copies = world.providers.copies.get(key, [])
        row = world.seen.deliveries[delivery]
        if not copies or copies[-1].transport not in self._policies().transports:
            return
        remote = copies[-1].remote_id
        if not by_key and row.remote_id != remote:
            return
        name = copies[-1].transport
        at = world.clock.now() - timedelta(seconds=age)
        said = Receipt(status, remote, provider_time=at, key=key if by_key else "")
        world.database.execute("DELETE FROM notify_cursor")
        feeds = self.owner.ledger.transact(lambda tx: ledger.claim_feeds(tx, {name: 90.0}, run=self.owner.run.id))
        group = Group(pages=[Read(feed, FeedPage((said, said), cursor="1")) for feed in feeds])
        told = {delivery} if status is not ReceiptStatus.UNKNOWN_YET and (by_key or row.accepted_at) else set()
        self._turn(group, "feed", said={delivery}, told=told, actor="", repeat=repeat)

    def _turn(
        self, group: Group, name: str, *, said: set[int], told: set[int] | None = None, actor: str | None = None,
        repeat: bool = False,
    ) -> None:  # fmt: skip
        owner, policies = self.owner, self._policies()
        owner.ledger.transact(lambda tx: turn(tx, owner.run, policies, group))
        actor = owner.run.id if actor is None else actor
        owner.world.check(name, actor=actor, receipts=said, told_accepted=told or ())
        if repeat:
            owner.ledger.transact(lambda tx: turn(tx, owner.run, policies, group))
            owner.world.check(f"{name} again", actor=owner.run.id, unchanged=True)
