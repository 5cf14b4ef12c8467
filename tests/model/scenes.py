"""Short lives of single deliveries in the midst of a history: what would be rare by chance alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from notifyctl.model import OnAmbiguous, ReceiptStatus
from tests.model.truth import Scripted
from tests.model.world import RECIPIENTS

if TYPE_CHECKING:
    from tests.model.machine import Model

SCENES = [
    "exhausted", "old", "one_try", "expired", "broken", "mandate", "mandate", "marked", "late", "late", "overtaken",
    "receipts", "receipts", "silence", "by_key", "held", "swept", "forgotten", "moved", "usurped",
    "stale", "revoked",
]  # fmt: skip


def play(
    model: Model, kind: str, lane: str, profile: str, policy: OnAmbiguous, reply: str, said: ReceiptStatus,
    then: ReceiptStatus,
) -> None:  # fmt: skip
    """A process starts afresh, something new is enqueued, and its life takes this course."""
    world, owner, reader, poller = model.world, model.owners[0], model.readers[0], model.pollers[0]
    most = {"one_try": 1, "broken": 5}.get(kind, 3)
    delivery = enqueue(
        model, lane, profile, policy, most, 30.0 if kind in ("expired", "swept") else None, news=kind == "revoked"
    )

    def send(*replies: str) -> None:
        _until_due(model, delivery)
        model._dispatch(owner, lane, list(replies))

    def resolve() -> None:
        _until_due(model, delivery)
        reader.claim(lane)
        reader.settle()

    def check(status: ReceiptStatus) -> None:
        _until_due(model, delivery)
        Scripted.says = status
        poller.claim(lane)
        poller.settle()

    def hear(status: ReceiptStatus, age: float) -> None:
        poller.hear(delivery, status, age, by_key=True, repeat=True)

    if kind == "moved":
        in_doubt_elsewhere(model, lane, profile, "quiet" if said < then else "replay")
        world.advance(60.0)
        reader.claim(lane)
        reader.settle()
    elif kind == "exhausted":
        for _ in range(3):
            send("temporary")
    elif kind == "old":
        first = "temporary" if reply < "p" else "slow_him"
        send(first)
        world.advance(4000.0)
        send(first)
    elif kind in ("one_try", "expired"):
        send("lost")
        world.advance(36.0)
        resolve()
    elif kind == "broken":
        send("lost_taken")
        Scripted.broken = True
        world.advance(4000.0)
        resolve()
        Scripted.broken = False
    elif kind == "mandate":
        send("lost" if reply < "p" else "lost_taken")
        resolve()
        send(reply)
    elif kind == "revoked":
        send("lost_taken")
        if delivery in model._doubted():  # what has a mandate is not swept: begin alone says no
            model.accept_one(delivery)
            owner.claim(lane)
            owner.compose()
            model._answer(world.seen.deliveries[delivery].recipient_id, "news", granted=False)
            owner.turn(begin=True)
    elif kind in ("usurped", "stale"):
        owner.claim(lane)
        owner.compose()
        world.advance(61.0)
        model.crash_one(1)
        if kind == "usurped":
            model.owners[1].claim(lane)
        owner.turn(begin=True)
    elif kind == "swept":
        world.advance(31.0)
        reader.expire()
    elif kind == "forgotten":
        send("lost_taken")
        world.advance(4000.0)
        resolve()
    elif kind == "held":
        send("lost_taken")
        for _ in range(3):
            resolve()
    elif kind == "marked":
        send("lost_taken")
        if delivery in model._doubted():
            model.mark_one(delivery, accepted=reply < "p", with_id=said < then)
    elif kind in ("late", "overtaken"):
        _late(model, delivery, lane, reply, both=kind == "overtaken")
    elif kind == "receipts":
        send("accepted")
        check(said)
        hear(then, 0.0)
        world.advance(5.0)
        hear(said, 0.0)
        hear(then, 60.0)
    elif kind == "silence":
        send("accepted")
        world.advance(500.0)
        check(ReceiptStatus.UNKNOWN_YET)
        if world.seen.deliveries[delivery].state == "unresolved":
            model.requeue_one(delivery)
            check(said)
    elif kind == "by_key":
        send("lost_taken")
        hear(said, 0.0)


def in_doubt_elsewhere(model: Model, lane: str, first: str, then: str) -> int:
    """Taken by one transport, unheard; then, at a person's risk, lost on its way to another."""
    delivery = enqueue(model, lane, first, OnAmbiguous.AUTO, 5, None)
    model._dispatch(model.owners[0], lane, ["lost_taken"])
    if then in model.world.config.transports and delivery in model._doubted():
        model.world.reconfigure(lane, transport=then)
        model.crash_one(0)
        model.accept_one(delivery)
        model._dispatch(model.owners[0], lane, ["lost"])
    return delivery


def enqueue(
    model: Model, lane: str, profile: str, policy: OnAmbiguous, most: int, expires: float | None, *, news: bool = False
) -> int:  # fmt: skip
    """A new delivery on a lane of this kind, for a process that starts afresh."""
    world = model.world
    world.database.execute("DELETE FROM notify_gate")
    world.check("resume")
    world.reconfigure(lane, transport=profile, on_ambiguous=policy, max_attempts=most)
    model.crash_one(0)
    model.events += 1
    who = RECIPIENTS[model.events % len(RECIPIENTS)]
    model.lift_one(who)
    if news:
        model._answer(who, "news", granted=True)
    model.enqueue_one(100 + model.events, who, lane, expires, "news" if news else None)
    return max(world.seen.deliveries)


def _until_due(model: Model, delivery: int) -> None:
    work = model.world.seen.work.get(delivery)
    if work is not None:
        model.world.advance(max((work.eligible_at - model.world.now).total_seconds(), 0.0))


def _late(model: Model, delivery: int, lane: str, reply: str, *, both: bool) -> None:
    """An exchange outlives its deadline, a person takes the risk, and another process sends meanwhile."""
    owner, other = model.owners[0], model.owners[1]
    _until_due(model, delivery)
    owner.claim(lane)
    owner.compose()
    owner.turn(begin=True)
    flights = [f for f in owner.flying.values() if f.outcome is None]
    for flight in flights:
        owner.submit(flight, "lost_taken" if both and reply == "lost" else reply)
    model.world.advance(36.0)
    model.crash_one(1)
    other.lapse()
    if delivery in model._doubted():
        model.accept_one(delivery)
        other.claim(lane)
        other.compose()
        other.turn(begin=True)
        if both:
            mine = [f for f in other.flying.values() if f.outcome is None]
            for flight in mine:
                other.submit(flight, "accepted")
            other.turn(flights=mine)
    owner.turn(flights=flights, repeat=True)
