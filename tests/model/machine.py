"""The operations of the whole tool as rules of a hypothesis state machine."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import notifyctl
from notifyctl.ledger import enqueue as enqueueing
from notifyctl.ledger import people
from notifyctl.ledger.enqueue import Entry
from notifyctl.ledger.operate import Action
from notifyctl.ledger.people import Consent, Endpoint, Suppression
from notifyctl.model import Channel, Intent, OnAmbiguous, ReceiptStatus, State
from notifyctl.ticks.operate import Operator
from tests.model.bench import Bench
from tests.model.owner import Flight, Owner
from tests.model.poller import Poller
from tests.model.reader import Reader
from tests.model.scenes import SCENES, play
from tests.model.truth import PROFILES, REPLIES, Scripted
from tests.model.world import LANES, RECIPIENTS, World

OWNERS = st.integers(0, 1)
LANE = st.sampled_from(LANES)
WHO = st.sampled_from(RECIPIENTS)
PICK = st.integers(0, 11)
PROFILE = st.sampled_from(sorted(PROFILES))
WAITS = st.sampled_from([1.0, 5.0, 20.0, 36.0, 61.0, 100.0, 300.0, 700.0, 1900.0, 4000.0])
USUAL = ["accepted"] * 4 + ["lost_taken", "lost"] * 3 + ["temporary"] * 2 + sorted(REPLIES)
REPLY = st.sampled_from(USUAL)
POLICY = st.sampled_from([OnAmbiguous.AUTO] * 3 + [OnAmbiguous.RESEND] * 2 + [OnAmbiguous.HOLD])
SAID = st.sampled_from(list(ReceiptStatus))
MEANWHILE = [
    "", "lease", "lease", "usurped", "usurped", "bounced", "bounced", "opted_out", "revoked", "revoked", "moved",
    "paused", "cancelled", "expired", "sender", "renewed",
]  # fmt: skip


class Model(RuleBasedStateMachine):
    """One history; `bench` is set by whoever runs it."""

    bench: ClassVar[Bench]
    counted: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.bench)
        self.owners = [Owner(self.world, 0), Owner(self.world, 1)]
        self.readers = [Reader(owner) for owner in self.owners]
        self.pollers = [Poller(owner) for owner in self.owners]
        self.events = 0

    # -- the beginning ------------------------------------------------------------------------------------------------

    @initialize(profiles=st.tuples(PROFILE, PROFILE), policies=st.tuples(POLICY, POLICY), count=st.integers(1, 4))
    def begin(self, profiles: tuple[str, str], policies: tuple[OnAmbiguous, OnAmbiguous], count: int) -> None:
        """Two lanes of some kind, everybody reachable, something to send."""
        for name, profile, policy in zip(LANES, profiles, policies, strict=True):
            self.world.reconfigure(name, transport=profile, on_ambiguous=policy)
        for owner in self.owners:
            owner.restart()
        self.everybody_reachable()
        for number in range(count):
            self._enqueue(number, RECIPIENTS[number % 3], LANES[number % 2], topic="news" if number < 2 else None)

    def everybody_reachable(self) -> None:
        """An address for each."""
        rows = [self._endpoint(who, 0) for who in RECIPIENTS]
        self._write(lambda tx: people.register(tx, rows, actor="model"))

    def _endpoint(self, who: str, number: int) -> Endpoint:
        address = f"{who}{number}@example.com"
        return Endpoint(who, Channel.EMAIL, address, self.world.fingerprint(address))

    def _write(self, work: Any) -> Any:
        return self.bench.ledger(0).transact(work)

    def _some(self, pick: int, among: Any) -> Any:
        """One of these, or None."""
        known = sorted(among)
        return known[pick % len(known)] if known else None

    def _delivery(self, pick: int, *states: str) -> int | None:
        found = (i for i, d in self.world.seen.deliveries.items() if not states or d.state in states)
        return self._some(pick, found)

    # -- what applications do -----------------------------------------------------------------------------------------

    def _intent(self, event: int, who: str, lane: str, **changes: Any) -> Intent:
        intent = Intent(f"e{event}", who, Channel.EMAIL, "note", "1", {"n": 1}, lane=lane, due_at=self.world.now)
        return replace(intent, **changes, stated=frozenset({"template", "template_version", "variables"}))

    def _enqueue(self, event: int, who: str, lane: str, *, how: str = "cli", **changes: Any) -> None:
        world, intent = self.world, self._intent(event, who, lane, **changes)
        known = world.oracle.intents.get((intent.event_id, who))
        said = f"{intent.template} {intent.variables}"
        if how == "rollback":
            connection = world.database.connection
            world.database.begin()
            notifyctl.enqueue(connection, intent)
            world.database.execute("ROLLBACK")
            verdict = ""
        elif how == "sql":
            world.database.begin()
            verdict = notifyctl.enqueue(world.database.connection, intent).status
            world.database.execute("COMMIT")
        else:
            topic = world.config.topics.get(intent.topic or "")
            required = topic is not None and topic.consent == "required"
            digest = world.keys.content(intent.variables, intent.attachments, None)
            entry = Entry(intent, digest, None, required)
            verdict = self._write(lambda tx: enqueueing.enqueue(tx, [entry], run="model"))[0].kind
        if verdict:
            world.oracle.intents.setdefault((intent.event_id, who), said)
        if known is not None and verdict:
            expected = {"duplicate"} if known == said else {"conflict"}
            assert verdict in (expected if how == "cli" else {"duplicate", "conflict"}), verdict  # SQL states others
        world.check(f"enqueue {how} {verdict}")
        world.oracle.nothing_forbidden_waits(who)

    def enqueue_one(self, event: int, who: str, lane: str, expires: float | None, topic: str | None) -> None:
        """A new one."""
        until = None if expires is None else self.world.now + timedelta(seconds=expires)
        self._enqueue(event, who, lane, expires_at=until, topic=topic)

    @rule(event=st.integers(0, 5), who=WHO, lane=LANE, how=st.sampled_from(["cli", "sql", "cli", "sql", "rollback"]),
          topic=st.sampled_from([None, None, None, "news", "must"]), content=st.sampled_from([1, 1, 1, 2]),
          expires=st.sampled_from([None, None, None, 30.0, 200.0, 2000.0]),
          odd=st.sampled_from([""] * 8 + ["ghost", "empty", "unknown_topic"]))  # fmt: skip
    def enqueue(
        self, event: int, who: str, lane: str, how: str, topic: str | None, content: int, expires: float | None,
        odd: str,
    ) -> None:  # fmt: skip
        """An intent, perhaps one that is known already, perhaps one that cannot be sent."""
        until = None if expires is None else self.world.now + timedelta(seconds=expires)
        changes: dict[str, Any] = {"topic": topic, "variables": {"n": content}, "expires_at": until}
        if odd == "ghost":
            changes |= {"template": "ghost"}
        elif odd == "empty":
            changes |= {"variables": {}}
        elif odd == "unknown_topic":
            changes |= {"topic": "nobody_knows"}
        self._enqueue(event, who, lane, how=how, **changes)

    # -- dispatch, in its steps ---------------------------------------------------------------------------------------

    @precondition(lambda self: self._waits("send"))
    @rule(number=OWNERS, lane=LANE, limit=st.sampled_from([1, 2, 10]))
    def claim(self, number: int, lane: str, limit: int) -> None:
        """Own what is due."""
        self.owners[number].claim(lane, limit)

    @precondition(lambda self: any(owner.held for owner in self.owners))
    @rule(number=OWNERS)
    def compose(self, number: int) -> None:
        """Compose what is held."""
        self.owners[number].compose()

    @precondition(lambda self: any(owner.held or owner.ready for owner in self.owners))
    @rule(number=OWNERS, repeat=st.booleans())
    def begin_ready(self, number: int, repeat: bool) -> None:
        """Open attempts."""
        self.owners[number].compose()
        self.owners[number].turn(begin=True, repeat=repeat)

    @precondition(lambda self: any(f.outcome is None for owner in self.owners for f in owner.flying.values()))
    @rule(number=OWNERS, pick=PICK, reply=REPLY)
    def submit(self, number: int, pick: int, reply: str) -> None:
        """One exchange happens; its outcome is not yet recorded."""
        owner = self.owners[number]
        waiting = {key: f for key, f in owner.flying.items() if f.outcome is None}
        key = self._some(pick, waiting)
        if key is not None:
            owner.submit(waiting[key], reply)

    @precondition(lambda self: any(f.outcome is not None for owner in self.owners for f in owner.flying.values()))
    @rule(number=OWNERS, pick=PICK, every=st.booleans(), repeat=st.booleans())
    def record(self, number: int, pick: int, every: bool, repeat: bool) -> None:
        """Record one outcome that is known, or all."""
        owner = self.owners[number]
        done = {key: f for key, f in owner.flying.items() if f.outcome is not None}
        key = self._some(pick, done)
        flights = list(done.values()) if every else [done[key]] if key else []
        owner.turn(flights=flights, repeat=repeat)

    @precondition(lambda self: self._waits("send"))
    @rule(number=OWNERS, lane=LANE, replies=st.lists(REPLY, min_size=1, max_size=4))
    def dispatch(self, number: int, lane: str, replies: list[str]) -> None:
        """A whole tick."""
        self._dispatch(self.owners[number], lane, replies)

    @precondition(lambda self: self._waits("send"))
    @rule(number=OWNERS, lane=LANE, replies=st.lists(REPLY, min_size=1, max_size=4))
    def dispatch_more(self, number: int, lane: str, replies: list[str]) -> None:
        """A whole tick: what happens most."""
        self._dispatch(self.owners[number], lane, replies)

    @precondition(lambda self: self._waits("send"))
    @rule(number=OWNERS, lane=LANE, replies=st.lists(st.sampled_from(["lost", "lost_taken"]), min_size=1, max_size=2),
          then=st.sampled_from(["", "reconcile", "accept", "again", "again"]), reply=REPLY)  # fmt: skip
    def doubt(self, number: int, lane: str, replies: list[str], then: str, reply: str) -> None:
        """A tick whose replies are lost, and perhaps what is made of that: a look-up, a person's risk, another try."""
        self._dispatch(self.owners[number], lane, replies)
        if then == "reconcile" or (then == "again" and number):
            self._wait_for("resolve", lane)
            self.readers[number].claim(lane)
            self.readers[number].settle()
        elif then:
            for pick in range(2):
                self.accept_duplicate_of(pick)
        if then == "again":
            self._wait_for("send", lane)
            self._dispatch(self.owners[number], lane, [reply])

    @precondition(lambda self: self._waits("send"))
    @rule(number=OWNERS, lane=LANE, reply=REPLY, repeat=st.booleans(), mandate=st.booleans(),
          what=st.sampled_from(MEANWHILE))  # fmt: skip
    def meanwhile(self, number: int, lane: str, reply: str, repeat: bool, mandate: bool, what: str) -> None:
        """Something happens between a claim and its begin."""
        owner, other = self.owners[number], self.owners[1 - number]
        if mandate and self._doubted():
            self.accept_duplicate_of(0)
            lane = self.world.seen.deliveries[self._doubted()[0]].lane
        self._wait_for("send", lane)
        claimed = owner.claim(lane)
        owner.compose()
        for delivery in claimed[:1]:
            who = delivery.recipient_id
            if what == "bounced":
                self._suppress(who, "hard_bounce", plain=repeat)
            elif what == "opted_out":
                self._suppress(who, "opted_out", plain=repeat)
            elif what == "revoked":
                self._answer(who, delivery.topic or "news", granted=False)
            elif what == "moved":
                self.move_to(who)
            elif what == "cancelled":
                self.cancel_of(delivery.id)
        if what == "renewed":
            self.world.advance(31.0)
            owner.renew()
        if what in ("lease", "usurped"):
            self.world.advance(61.0)
        elif what == "expired":
            self.world.advance(31.0)
        if what == "usurped":
            other.claim(lane)
        elif what == "paused":
            self._pause(lane, "lane", 50.0)
        elif what == "sender":
            self.world.resend("store@example.com")
        owner.turn(begin=True, repeat=repeat)
        flights = [f for f in owner.flying.values() if f.outcome is None]
        for flight in flights:
            owner.submit(flight, reply)
        owner.turn(flights=flights, repeat=repeat)
        if what == "usurped":
            other.compose()
            other.turn(begin=True)

    @precondition(lambda self: self._waits("send"))
    @rule(number=OWNERS, lane=LANE, replies=st.lists(REPLY, min_size=1, max_size=3), then=st.integers(0, 3),
          repeat=st.booleans())  # fmt: skip
    def outlive(self, number: int, lane: str, replies: list[str], then: int, repeat: bool) -> None:
        """Exchanges outlive their deadline: somebody else calls them lost, perhaps settles them, then they answer."""
        owner, other = self.owners[number], self.owners[1 - number]
        owner.claim(lane)
        owner.compose()
        owner.turn(begin=True)
        flights = [f for f in owner.flying.values() if f.outcome is None]
        for position, flight in enumerate(flights):
            owner.submit(flight, replies[position % len(replies)])
        self.world.advance(36.0)
        other.lapse()
        if then == 1:
            self.world.advance(25.0)
            self.readers[1 - number].claim(lane)
            self.readers[1 - number].settle()
        elif then == 2:
            self._dispatch(other, lane, ["lost_taken", "accepted"])
        elif then == 3:
            self.accept_duplicate_of(0)
            other.claim(lane)
            other.compose()
            other.turn(begin=True)
        owner.turn(flights=flights, repeat=repeat)

    def _dispatch(self, owner: Owner, lane: str, replies: list[str]) -> None:
        owner.lapse()
        owner.claim(lane)
        owner.compose()
        owner.turn(begin=True)
        flights: list[Flight] = [f for f in owner.flying.values() if f.outcome is None]
        for position, flight in enumerate(flights):
            owner.submit(flight, replies[position % len(replies)])
        owner.turn(flights=flights, repeat=len(replies) == 1)
        owner.release()

    @precondition(lambda self: any(owner.held or owner.ready for owner in self.owners))
    @rule(number=OWNERS)
    def renew(self, number: int) -> None:
        """Half a lease is over."""
        self.owners[number].renew()

    @precondition(lambda self: any(owner.held or owner.ready or owner.returning for owner in self.owners))
    @rule(number=OWNERS)
    def release(self, number: int) -> None:
        """A run ends."""
        self.owners[number].release()

    @precondition(lambda self: any(owner.busy for owner in self.owners))
    @rule(number=OWNERS)
    def crash(self, number: int) -> None:
        """A process dies, another starts."""
        self.crash_one(number)

    def crash_one(self, number: int) -> None:
        """All it knew is forgotten."""
        self.owners[number].restart()
        self.readers[number].asked.clear()
        self.pollers[number].forget()

    @precondition(lambda self: any(o.config is not self.world.config and not o.busy for o in self.owners))
    @rule(number=OWNERS)
    def start(self, number: int) -> None:
        """The next run, with the present configuration."""
        if not self.owners[number].busy and not self.readers[number].asked and not self.pollers[number].owned:
            self.owners[number].restart()

    # -- time ---------------------------------------------------------------------------------------------------------

    @rule(seconds=WAITS)
    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.world.advance(seconds)

    @precondition(lambda self: self.world.seen.work)
    @rule(pick=PICK, more=st.sampled_from([0.0, 0.0, 1.0, 61.0]))
    def wait_until_due(self, pick: int, more: float) -> None:
        """Time passes until something is due, or its lease is over."""
        work = self.world.seen.work[self._some(pick, self.world.seen.work)]
        self.world.advance(max((work.eligible_at - self.world.now).total_seconds(), 0.0) + more)

    @rule(seconds=st.sampled_from([10.0, 120.0, 7200.0]))
    def step_back(self, seconds: float) -> None:
        """The host's clock is set back (after a write: the ledger's time is up to date)."""
        self._write(lambda tx: None)
        self.world.clock.skew -= seconds
        self.world.clock.skew = max(self.world.clock.skew, -20_000.0)

    @precondition(lambda self: self.world.clock.skew)
    @rule()
    def step_forward(self) -> None:
        """The host's clock is set right again."""
        self.world.clock.skew = 0.0

    @precondition(lambda self: any(d.state == "sending" for d in self.world.seen.deliveries.values()))
    @rule(number=OWNERS)
    def lapse(self, number: int) -> None:
        """What every tick does first."""
        self.owners[number].lapse()

    # -- reconcile and poll-receipts ----------------------------------------------------------------------------------

    @precondition(lambda self: self._waits("resolve"))
    @rule(number=OWNERS, lane=LANE)
    def look_up(self, number: int, lane: str) -> None:
        """Own what is in doubt, and ask."""
        self.readers[number].claim(lane)

    @precondition(lambda self: any(reader.asked for reader in self.readers))
    @rule(number=OWNERS, then=st.sampled_from(["settle", "settle", "repeat", "release", "renew"]))
    def settle(self, number: int, then: str) -> None:
        """Decide, or give back what was claimed."""
        if then in ("settle", "repeat"):
            self.readers[number].settle(repeat=then == "repeat")
        elif then == "release":
            self.readers[number].release()
        else:
            self.readers[number].renew()

    @precondition(lambda self: any(d.expires_at is not None for d in self.world.seen.deliveries.values()))
    @rule(number=OWNERS)
    def expire(self, number: int) -> None:
        """Sends that are not worth sending any more."""
        self.readers[number].expire()

    @precondition(lambda self: self._waits("check"))
    @rule(number=OWNERS, lane=LANE)
    def end_checks(self, number: int, lane: str) -> None:
        """Receipts that never came."""
        self.readers[number].end_checks(lane)

    @precondition(lambda self: self.world.seen.work)
    @rule(number=OWNERS)
    def take_over(self, number: int) -> None:
        """A region is taken over."""
        self.readers[number].take_over()

    @precondition(lambda self: self._waits("resolve"))
    @rule(number=OWNERS, lane=LANE, wait=st.booleans(), first=st.sampled_from(["", "", "renew", "release"]))
    def reconcile(self, number: int, lane: str, wait: bool, first: str) -> None:
        """Both at once, perhaps just when it is due."""
        if wait:
            self._wait_for("resolve", lane)
        reader = self.readers[number]
        reader.claim(lane)
        if first == "renew":
            self.world.advance(31.0)
            reader.renew()
        elif first == "release":
            reader.release()
        reader.settle()

    @precondition(lambda self: self._waits("check"))
    @rule(number=OWNERS, lane=LANE, said=SAID, wait=st.booleans())
    def poll(self, number: int, lane: str, said: ReceiptStatus, wait: bool) -> None:
        """Own what awaits a receipt, and ask."""
        if wait:
            self._wait_for("check", lane)
        Scripted.says = said
        self.pollers[number].claim(lane)

    @precondition(lambda self: any(poller.owned for poller in self.pollers))
    @rule(number=OWNERS, then=st.sampled_from(["settle", "settle", "repeat", "release", "renew"]))
    def heard(self, number: int, then: str) -> None:
        """Keep what was said, or give the checks back."""
        if then in ("settle", "repeat"):
            self.pollers[number].settle(repeat=then == "repeat")
        elif then == "release":
            self.pollers[number].release()
        else:
            self.pollers[number].renew()

    @precondition(lambda self: self._waits("check"))
    @rule(number=OWNERS, lane=LANE, said=SAID, first=st.sampled_from(["", "", "renew", "release"]))
    def poll_receipts(self, number: int, lane: str, said: ReceiptStatus, first: str) -> None:
        """Both at once, when it is due."""
        self._wait_for("check", lane)
        Scripted.says = said
        poller = self.pollers[number]
        poller.claim(lane)
        if first == "renew":
            self.world.advance(31.0)
            poller.renew()
        elif first == "release":
            poller.release()
        poller.settle()

    @precondition(lambda self: self._taken())
    @rule(pick=PICK, said=SAID, age=st.sampled_from([0.0, 50.0]), by_key=st.booleans(), repeat=st.booleans())
    def feed(self, pick: int, said: ReceiptStatus, age: float, by_key: bool, repeat: bool) -> None:
        """A receipt that nobody asked for, perhaps an old one, perhaps of what is not known to be accepted."""
        delivery = self._some(pick, self._taken())
        if delivery is not None:
            self.pollers[0].hear(delivery, said, age, by_key=by_key, repeat=repeat)

    def _taken(self) -> list[int]:
        return [i for i, key in self.world.oracle.wire.items() if self.world.providers.copies.get(key)]

    def _waits(self, step: str) -> bool:
        return any(work.step == step for work in self.world.seen.work.values())

    def _wait_for(self, step: str, lane: str) -> None:
        """Until the first such row of that lane is due."""
        due = [w.eligible_at for w in self.world.seen.work.values() if w.step == step and w.lane == lane]
        if due:
            self.world.advance(max((min(due) - self.world.now).total_seconds(), 0.0))

    @rule(broken=st.booleans())
    def break_endpoints(self, broken: bool) -> None:
        """Search and status do not answer, or do again."""
        Scripted.broken = broken

    # -- what people say ----------------------------------------------------------------------------------------------

    @rule(who=WHO, reason=st.sampled_from(["manual", "opted_out", "hard_bounce", "invalid_recipient", "complained"]),
          plain=st.booleans())  # fmt: skip
    def suppress(self, who: str, reason: str, plain: bool) -> None:
        """A "do not contact", by the tool or by SQL."""
        self._suppress(who, reason, plain=plain)

    def _suppress(self, who: str, reason: str, *, plain: bool) -> None:
        fingerprint = self._fingerprint(who) if reason in ("hard_bounce", "invalid_recipient") else None
        if plain:
            self.world.database.insert(
                "notify_suppression", recipient_id=who, channel="email", reason=reason, fingerprint=fingerprint
            )
        else:
            row = Suppression(who, Channel.EMAIL, reason, fingerprint=fingerprint)
            self._write(lambda tx: people.suppress(tx, [row], actor="op"))
        self.world.check("suppress", actor="op")
        self.world.oracle.nothing_forbidden_waits(who)

    def _fingerprint(self, who: str) -> str:
        where = "WHERE recipient_id = ? ORDER BY id DESC LIMIT 1"
        return str(self.world.database.one(f"SELECT fingerprint FROM notify_endpoint {where}", who))

    @rule(who=WHO)
    def lift(self, who: str) -> None:
        """And lifted."""
        self.lift_one(who)

    def lift_one(self, who: str) -> None:
        """All suppressions of this recipient."""
        self._write(lambda tx: people.lift(tx, [(who, Channel.EMAIL)], actor="op", note="asked"))
        self.world.check("lift", actor="op")

    @rule(who=WHO, topic=st.sampled_from(["news", "must"]), granted=st.booleans())
    def answer(self, who: str, topic: str, granted: bool) -> None:
        """Consent given or revoked."""
        self._answer(who, topic, granted=granted)

    def _answer(self, who: str, topic: str, *, granted: bool) -> None:
        row = Consent(who, Channel.EMAIL, topic, granted)
        self._write(lambda tx: people.answer(tx, [row], actor="op"))
        self.world.check("answer", actor="op")
        self.world.oracle.nothing_forbidden_waits(who)

    @rule(who=WHO)
    def move(self, who: str) -> None:
        """Another address."""
        self.move_to(who)

    def move_to(self, who: str) -> None:
        """A new one each time."""
        self.events += 1
        row = self._endpoint(who, self.events)
        self._write(lambda tx: people.register(tx, [row], actor="op"))
        self.world.check("move", actor="op")

    def _doubted(self) -> list[int]:
        states = ("ambiguous", "dead_letter")
        return [i for i, d in self.world.seen.deliveries.items() if d.doubt_since is not None and d.state in states]

    # -- what operators do --------------------------------------------------------------------------------------------

    def _operator(self, **options: Any) -> Operator:
        return Operator(self.world.config, self.bench.ledger(0), self.world.keys, **options)

    def _action(self, **stated: Any) -> Action:
        self.events += 1
        return Action("op", "asked", batch=f"b{self.events}", **stated)

    @precondition(lambda self: self.world.seen.deliveries)
    @rule(pick=PICK)
    def cancel(self, pick: int) -> None:
        """Withdraw."""
        delivery = self._delivery(pick)
        if delivery is not None:
            self.cancel_of(delivery)

    def cancel_of(self, delivery: int) -> None:
        """This one."""
        self._operator().cancel([delivery], Action("op", "asked", goal=State.CANCELLED))
        self.world.check("cancel", actor="op")

    @precondition(lambda self: self.world.seen.deliveries)
    @rule(pick=PICK, expiry=st.booleans(), reset=st.booleans(), ended=st.booleans())
    def requeue(self, pick: int, expiry: bool, reset: bool, ended: bool) -> None:
        """Once more."""
        over = ("dead_letter", "permanent_failure", "cancelled", "expired", "suppressed", "unresolved")
        delivery = self._delivery(pick, *(over if ended else ()))
        if delivery is not None:
            self.requeue_one(delivery, expiry=expiry, reset=reset)

    def requeue_one(self, delivery: int, *, expiry: bool = False, reset: bool = False) -> None:
        """This one."""
        until = self.world.now + timedelta(seconds=900) if expiry else None
        fresh = self.world.seen.deliveries[delivery].state != "unresolved"
        done = self._operator(reset_attempts=reset).requeue([delivery], self._action(expires_at=until))
        self.world.check("requeue", actor="op", decided=done.moved, granted=done.moved if fresh else ())

    @precondition(lambda self: self._doubted())
    @rule(pick=PICK)
    def accept_duplicate(self, pick: int) -> None:
        """Take the risk."""
        self.accept_duplicate_of(pick)

    def accept_duplicate_of(self, pick: int) -> None:
        """Of one that is in doubt."""
        delivery = self._some(pick, self._doubted())
        if delivery is not None:
            self.accept_one(delivery)

    def accept_one(self, delivery: int) -> None:
        """This one."""
        doubted = self.world.seen.deliveries[delivery].doubt_since is not None
        done = self._operator().requeue([delivery], self._action(), accept_duplicate=True)
        self.world.check(
            "accept duplicate", actor="op", decided=done.moved, granted=done.moved,
            may_duplicate=done.moved if doubted else (),
        )  # fmt: skip

    @precondition(lambda self: self._doubted())
    @rule(pick=PICK, accepted=st.booleans(), with_id=st.booleans())
    def mark(self, pick: int, accepted: bool, with_id: bool) -> None:
        """A person has found out. Of acceptance people are right; of failure they may be wrong."""
        delivery = self._some(pick, self._doubted())
        if delivery is not None:
            self.mark_one(delivery, accepted=accepted, with_id=with_id)

    def mark_one(self, delivery: int, *, accepted: bool, with_id: bool) -> None:
        """This one."""
        key = self.world.oracle.wire[delivery]
        self.events += 1
        remote = f"by-hand-{self.events}" if with_id and accepted else None
        goal = State.ACCEPTED if accepted else State.PERMANENT_FAILURE
        action = Action("op", "asked", goal=goal, remote_id=remote)
        if accepted:
            self.world.oracle.marked.add(delivery)
        else:
            self.world.providers.forgive(key)
        done = self._operator().mark([delivery], action, accepted=accepted)
        self.world.check("mark", actor="op", decided=done.moved)

    @precondition(lambda self: self.world.seen.deliveries)
    @rule(pick=PICK)
    def send_anew(self, pick: int) -> None:
        """A new event."""
        delivery = self._delivery(pick)
        if delivery is not None:
            self._operator().send_anew([delivery], self._action())
            self.world.check("send anew", actor="op")

    @rule(lane=LANE, scope=st.sampled_from(["lane", "transport"]), seconds=st.sampled_from([None, 50.0]))
    def pause(self, lane: str, scope: str, seconds: float | None) -> None:
        """A gate closes."""
        self._pause(lane, scope, seconds)

    def _pause(self, lane: str, scope: str, seconds: float | None) -> None:
        name = lane if scope == "lane" else self.world.config.lanes[lane].transport
        until = None if seconds is None else self.world.now + timedelta(seconds=seconds)
        where = "WHERE scope = ? AND name = ? AND kind = 'pause'"
        self.world.database.execute(f"DELETE FROM notify_gate {where}", scope, name)
        text = until if until is None or self.bench.dialect == "postgresql" else f"{until:%Y-%m-%d %H:%M:%S.%f}"
        self.world.database.insert(
            "notify_gate", scope=scope, name=name, kind="pause", until=text, reason="by hand", actor="op"
        )
        self.world.check("pause", actor="op")

    @precondition(lambda self: self.world.seen.gates)
    @rule()
    def resume(self) -> None:
        """All gates open."""
        self.world.database.execute("DELETE FROM notify_gate")
        self.world.check("resume", actor="op")

    @rule(lane=LANE, profile=PROFILE, policy=POLICY, most=st.sampled_from([1, 3, 3, 5]))
    def configure(self, lane: str, profile: str, policy: OnAmbiguous, most: int) -> None:
        """Another transport, another policy; runs under way keep theirs."""
        if profile in self.world.config.transports:
            self.world.reconfigure(lane, transport=profile, on_ambiguous=policy, max_attempts=most)

    @rule(lane=LANE, policy=POLICY)
    def another_policy(self, lane: str, policy: OnAmbiguous) -> None:
        """Only the policy for doubt changes."""
        self.world.reconfigure(lane, on_ambiguous=policy)

    @rule(profile=PROFILE)
    def vanish(self, profile: str) -> None:
        """A transport is no longer configured, or is again."""
        if profile not in {lane.transport for lane in self.world.config.lanes.values()}:
            self.world.vanish(profile)

    @rule(sender=st.sampled_from(["shop@example.com", "store@example.com"]))
    def another_sender(self, sender: str) -> None:
        """The sender changes."""
        self.world.resend(sender)

    # -- whole lives, so that what is rare happens often enough -----------------------------------------------------

    @rule(kind=st.sampled_from(SCENES), lane=LANE, profile=PROFILE, policy=POLICY, reply=REPLY, said=SAID, then=SAID)
    def scene(
        self, kind: str, lane: str, profile: str, policy: OnAmbiguous, reply: str, said: ReceiptStatus,
        then: ReceiptStatus,
    ) -> None:  # fmt: skip
        """One delivery's life among the others."""
        if profile in self.world.config.transports:
            play(self, kind, lane, profile, policy, reply, said, then)

    # -- the end ------------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """Normal operations bring everything to an end."""
        if sys.exc_info()[0] is not None:
            return  # it has failed already: let that be seen
        try:
            if self.world.seen.deliveries:
                self._drain()
            self.counted.update(d.state for d in self.world.seen.deliveries.values())
            self.counted["histories"] += 1
            self.counted["transactions"] += self.world.oracle.steps
            self.counted["attempts"] += sum(len(a) for a in self.world.seen.attempts.values())
            copies = self.world.providers.copies.values()
            self.counted["copies"] += sum(map(len, copies))
            self.counted["copies somebody allowed"] += sum(max(len(c) - 1, 0) for c in copies)
        finally:
            Scripted.broken = False

    def _drain(self) -> None:
        world = self.world
        world.database.execute("DELETE FROM notify_gate")
        world.clock.skew, Scripted.broken, Scripted.says = 0.0, False, ReceiptStatus.DELIVERED
        for seconds in (100.0, 700.0, 700.0, 2000.0, 2000.0, 4000.0, 4000.0, 4000.0, 100.0, 100.0):
            for owner, reader, poller in zip(self.owners, self.readers, self.pollers, strict=True):
                if not owner.busy:
                    owner.restart()
                for flight in owner.flying.values():
                    if flight.outcome is None:
                        owner.submit(flight, "accepted")
                owner.turn(flights=list(owner.flying.values()))
                owner.release()
                reader.settle()
                poller.settle()
            self.owners[0].restart()
            for lane in LANES:
                self._dispatch(self.owners[0], lane, ["accepted"])
                self.readers[0].claim(lane)
                self.readers[0].settle()
                self.pollers[0].claim(lane)
                self.pollers[0].settle()
            if not world.seen.work:
                return
            world.advance(seconds)
        world.oracle.all_over()
