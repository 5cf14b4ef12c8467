"""The independent auditor: compares what a mail server was given with what the ledger says, by plain SQL.

    assert auditor.faults(url, server.messages, at_rest=True) == []

No code of the tool is believed: statements run through the raw drivers, and the rules are written down here once more,
each with its reason. A fault is a sentence; an empty list means that nothing was lost, that nobody got a second copy
outside the declared window, and that every attempt is accounted for. It may be asked whenever no process of the tool
runs; `at_rest` adds what must hold once normal ticks find nothing more to do.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tests.ledger.databases import Database
from tests.smtp_server import Received

LIVE = ("queued", "sending", "temporary_failure", "ambiguous", "pending")  # and `accepted` while a receipt is awaited
ACCEPTED = ("accepted", "pending", "delivered", "unresolved")  # a provider has it; a bounce may follow
AFTER_ACCEPTANCE = (*ACCEPTED, "permanent_failure")
UNTRIED = ("queued", "sending", "temporary_failure")  # what a tick still has to do something about
MANDATED = ("replay", "duplicate")
WORK = {"queued": {"send"}, "temporary_failure": {"send"}, "sending": {"resolve"}, "ambiguous": {"resolve", "send"},
        "pending": {"check"}, "accepted": {"check"}}  # fmt: skip


@dataclass
class _Delivery:
    id: int
    event: str
    state: str
    used: int
    doubt: bool
    wire_key: str
    works: list[tuple[str, str | None, str | None]] = field(default_factory=list)  # (step, mandate, owner)
    attempts: list[tuple[Any, ...]] = field(default_factory=list)  # (number, outcome, mandate, started, remote id)
    trail: list[tuple[str | None, str]] = field(default_factory=list)
    copies: list[tuple[float, str, str]] = field(default_factory=list)  # (at, sha256, message id)


def faults(
    url: str,
    messages: Iterable[Mapping[str, Any] | Received],
    *,
    at_rest: bool = False,
    events: Iterable[str] = (),
    same_host: bool = True,
    by_remote: bool = False,
) -> list[str]:
    """What is wrong, as sentences. `events`: those that must be in the ledger (all that were ever enqueued).

    `same_host`: the server's clock is the ledger's, so that the times of copies and attempts can be compared.
    `by_remote`: a message's id is what the provider calls it, not made of the delivery's key.
    """
    known, found = _read(url)
    by_key = {one.wire_key: one for one in known.values() if one.wire_key}
    if by_remote:
        by_key = {attempt[4]: one for one in known.values() for attempt in one.attempts if attempt[4]}
    for message in messages:
        at, sha, name = (_of(message, key) for key in ("at", "sha256", "message_id"))
        key = str(name) if by_remote else str(name).strip("<>").partition("@")[0]
        delivery = by_key.get(key)
        if delivery is None:
            found.append(f"the server has {name}, which no begun delivery explains")
        else:
            delivery.copies.append((float(at), str(sha), str(name)))
    lost = set(events) - {one.event for one in known.values()}
    found += [f"{event} was enqueued and is in no ledger" for event in sorted(lost)]
    for delivery in known.values():
        said = [*_copies(delivery, same_host), *_work(delivery), *_doubt(delivery), *_trail(delivery)]
        said += _rest(delivery) if at_rest else ()
        found += [f"{delivery.event} ({delivery.state}): {one}" for one in said]
    return found


def counts(url: str, messages: Iterable[Mapping[str, Any] | Received]) -> dict[str, int]:
    """What a soak reports: `second` copies within the declared window, and deliveries by how they ended."""
    copies = Counter(str(_of(message, "message_id")) for message in messages)
    with Database(url) as database:
        states = dict(database.execute("SELECT state, count(*) FROM notify_delivery GROUP BY state"))
    return {"copies": sum(copies.values()), "second": sum(count - 1 for count in copies.values()), **states}


def _read(url: str) -> tuple[dict[int, _Delivery], list[str]]:
    """All deliveries with what belongs to them, and the rows that belong to none."""
    with Database(url) as database:
        known = {
            row[0]: _Delivery(row[0], row[1], row[2], row[3], row[4] is not None, row[5] or "")
            for row in database.execute(
                "SELECT id, event_id, state, attempts_used, doubt_since, wire_key FROM notify_delivery"
            )
        }
        orphans: dict[str, list[int]] = defaultdict(list)
        for table, columns, order in (
            ("work", "step, mandate, owner", "delivery_id"),
            ("attempt", "number, outcome, mandate, started, remote_id", "number"),
            ("transition", '"from", "to"', "id"),
        ):
            rows = database.execute(f"SELECT delivery_id, {columns} FROM notify_{table} ORDER BY {order}")
            for delivery, *row in rows:
                if delivery not in known:
                    orphans[table].append(delivery)
                    continue
                one = known[delivery]
                lists: dict[str, list[Any]] = {"work": one.works, "attempt": one.attempts, "transition": one.trail}
                lists[table].append(tuple(row))
    return known, [f"rows of notify_{table} belong to no delivery: {ids}" for table, ids in orphans.items()]


def _copies(it: _Delivery, same_host: bool) -> Iterable[str]:
    """What the server got, and what the attempts know of it."""
    accepted = [a for a in it.attempts if a[1] == "accepted"]
    doubtful = [a for a in it.attempts if a[1] in (None, "ambiguous")]
    if len(accepted) > len(it.copies):
        yield "the ledger calls accepted what the server never got"
    if len(it.copies) > len(accepted) + len(doubtful):
        yield f"{len(it.copies)} copies, but only {len(accepted)} accepted and {len(doubtful)} doubtful attempts"
    mandated = [a for a in it.attempts if a[2] in MANDATED]
    if len(it.copies) > 1 + len(mandated):
        yield f"{len(it.copies)} copies, and only {len(mandated)} of the attempts were allowed to be a second one"
    if len({sha for _, sha, _ in it.copies}) > 1 and all(a[2] == "replay" for a in mandated):
        yield "two copies differ in their bytes"
    remote = {a[4] for a in accepted}
    if not remote <= {name for *_, name in it.copies}:
        yield "the remote id is none that the server has seen"
    if same_host and it.copies and it.attempts:
        first = min(_seconds(a[3]) for a in it.attempts)
        if min(at for at, *_ in it.copies) < first:
            yield "a copy arrived before any attempt was on disk"
    if [a[0] for a in it.attempts] != list(range(1, len(it.attempts) + 1)):
        yield f"attempts are numbered {[a[0] for a in it.attempts]}"
    if it.used > len(it.attempts):
        yield f"{it.used} attempts are charged and {len(it.attempts)} were made"


def _work(it: _Delivery) -> Iterable[str]:
    """A live delivery has exactly one work row, of a step that fits its state; a settled one has none."""
    most = 1 if it.state in (*LIVE, "accepted") else 0
    least = 1 if it.state in LIVE else 0
    if not least <= len(it.works) <= most:
        yield f"it has {len(it.works)} work rows"
    for step, mandate, _ in it.works:
        if step not in WORK.get(it.state, set()):
            yield f"its work row says {step}"
        if it.state == "ambiguous" and step == "send" and mandate is None:
            yield "in doubt, and dispatch may send it without a mandate"


def _doubt(it: _Delivery) -> Iterable[str]:
    """What a server may have, and nobody knows of, is in doubt until somebody knows or decides."""
    outcomes = [a[1] for a in it.attempts]
    if "accepted" in outcomes and it.state not in AFTER_ACCEPTANCE:
        yield "an acceptance was lost"
    unknown = None in outcomes or "ambiguous" in outcomes
    if it.state in ACCEPTED and "accepted" not in outcomes and not unknown:
        yield "called accepted without any attempt that could be"
    if unknown and not it.doubt and it.state != "sending" and it.state not in AFTER_ACCEPTANCE:
        yield "a doubt was forgotten"
    if it.doubt and not unknown:
        yield "in doubt without a doubtful attempt"
    if it.state == "sending" and None not in outcomes:
        yield "sending without an open attempt"
    if None in outcomes and it.state != "sending":
        yield "an attempt is open that nobody is making"


def _trail(it: _Delivery) -> Iterable[str]:
    """Every change of state is on record, each going on from the one before."""
    if not it.trail:
        yield "it has no trail"
        return
    if it.trail[-1][1] != it.state:
        yield f"its trail ends with {it.trail[-1][1]}"
    for (_, before), (after, _) in zip(it.trail, it.trail[1:], strict=False):
        if after != before:
            yield f"its trail goes from {before} on with {after}"
            break


def _rest(it: _Delivery) -> Iterable[str]:
    """After normal ticks nothing is under way any more, and what is owned is owned by nobody alive."""
    if it.state in UNTRIED:
        yield "no tick has done anything about it"
    if any(owner for *_, owner in it.works):
        yield "somebody still owns it"
    if it.state == "ambiguous" and not it.doubt:
        yield "ambiguous without doubt"


def _seconds(started: Any) -> float:
    if isinstance(started, datetime):
        return started.timestamp()
    return datetime.fromisoformat(started).replace(tzinfo=UTC).timestamp()


def _of(message: Mapping[str, Any] | Received, name: str) -> Any:
    return message[name] if isinstance(message, Mapping) else getattr(message, name)
