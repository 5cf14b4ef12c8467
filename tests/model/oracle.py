"""The invariants, checked after every transaction against what is stored and what really happened.

Reads the ledger with plain SQL and knows nothing of the tool's own rules: neither `lifecycle` nor any statement of
`ledger` is imported here. Whoever drives the model says what it did (`Step`); the oracle compares the rows before and
after, keeps its own memory of what every party was told, and raises `Violation`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.ledger.databases import Database
from tests.model.truth import DEADLINE, WINDOW, Providers, Violation

WORKING = {"queued": "send", "temporary_failure": "send", "sending": "resolve", "pending": "check"}
TERMINAL = frozenset(
    {"delivered", "permanent_failure", "suppressed", "expired", "cancelled", "dead_letter", "unresolved"}
)
CERTAIN = frozenset({"accepted", "temporary_failure", "permanent_failure"})
ADDRESS_ONLY = frozenset({"invalid_recipient", "hard_bounce"})

_DELIVERY = (
    "id, event_id, recipient_id, topic, state, reason, attempts_used, doubt_since, accepted_at, remote_id, "
    "settled_at, fencing_token, expires_at, fingerprint, idempotency_key, due_at, lane, first_tried_at, origin_id"
)
_WORK = "delivery_id, step, lane, region, eligible_at, owner, fencing_token, tries, mandate"
_ATTEMPT = (
    "delivery_id, number, run, fencing_token, transport, started, outcome, reason, remote_id, request_digest, mandate, "
    "fingerprint"
)
_TIMES = frozenset({"doubt_since", "accepted_at", "settled_at", "expires_at", "eligible_at", "started", "until",
                    "due_at", "first_tried_at"})  # fmt: skip


class Row(dict[str, Any]):
    """One row by column name."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


def _rows(database: Database, table: str, columns: str, where: str = "") -> list[Row]:
    names = [name.strip() for name in columns.split(",")]
    quoted = ", ".join(f'"{name}"' for name in names)
    rows = [
        Row(zip(names, values, strict=True))
        for values in database.execute(f"SELECT {quoted} FROM notify_{table} {where}")
    ]
    if database.dialect == "sqlite":
        for row in rows:
            for name in _TIMES.intersection(names):
                if row[name] is not None:
                    row[name] = datetime.fromisoformat(row[name]).replace(tzinfo=UTC)
    return rows


@dataclass
class Snapshot:
    """Everything that is stored at one moment."""

    deliveries: dict[int, Row]
    work: dict[int, Row]
    attempts: dict[int, dict[int, Row]]
    gates: list[Row]

    @classmethod
    def of(cls, database: Database) -> Snapshot:
        """As it is now."""
        attempts: dict[int, dict[int, Row]] = {}
        for row in _rows(database, "attempt", _ATTEMPT):
            attempts.setdefault(row.delivery_id, {})[row.number] = row
        return cls(
            {row.id: row for row in _rows(database, "delivery", _DELIVERY)},
            {row.delivery_id: row for row in _rows(database, "work", _WORK)},
            attempts,
            _rows(database, "gate", "scope, name, kind, until"),
        )

    def token(self, delivery: int) -> int:
        """The fencing token in force."""
        row = self.work.get(delivery) or self.deliveries[delivery]
        return int(row.fencing_token)


@dataclass(frozen=True)
class Step:
    """What the driver of the model has just done, as far as the oracle must know."""

    name: str
    actor: str = ""
    told_accepted: frozenset[int] = frozenset()  # acceptances that were recorded, late ones included
    absent: frozenset[int] = frozenset()  # a look-up proved that nothing was accepted
    decided: frozenset[int] = frozenset()  # an operator has settled their doubt or taken them up again
    granted: frozenset[int] = frozenset()  # and with that given them more attempts
    may_replay: frozenset[int] = frozenset()
    may_duplicate: frozenset[int] = frozenset()
    receipts: frozenset[int] = frozenset()  # a provider said something of them
    unchanged: bool = False  # a repetition: nothing at all may change


@dataclass
class Oracle:
    """What must be true."""

    database: Database
    providers: Providers
    required: frozenset[str]  # topics that demand a grant
    intents: dict[tuple[str, str], str] = field(default_factory=dict)  # (event, recipient) → what was asked for
    suppressed: dict[str, list[tuple[str, str | None]]] = field(default_factory=dict)  # committed and in force
    consent: dict[tuple[str, str], bool] = field(default_factory=dict)  # committed, the newest
    told: set[int] = field(default_factory=set)
    marked: set[int] = field(default_factory=set)  # accepted because an operator or a receipt said so
    wire: dict[int, str] = field(default_factory=dict)  # wire keys
    cleared: dict[int, int] = field(default_factory=dict)  # attempts up to this number are in doubt no more
    base: dict[int, tuple[int, int]] = field(default_factory=dict)  # (attempts_used, attempts) at the last requeue
    learnt_late: set[int] = field(default_factory=set)  # an attempt in doubt turned out to have failed
    chains: dict[int, str] = field(default_factory=dict)  # last state in the trail
    last_transition: int = 0
    last_suppression: int = 0
    last_consent: int = 0
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    steps: int = 0

    def __post_init__(self) -> None:
        self.before = Snapshot.of(self.database)

    # -- one step -------------------------------------------------------------------------------------------------

    def check(self, step: Step, now: datetime) -> Snapshot:
        """Compare with the step before; returns what is stored now."""
        self.now, self.steps = now, self.steps + 1
        before, after = self.before, Snapshot.of(self.database)
        self.told |= step.told_accepted
        self._nothing_lost(before, after)
        if step.unchanged:
            changed = _difference(before, after)  # (a gate may be closed for longer: that delays, it decides nothing)
            _demand(not changed, f"a repetition changed something: {changed}")
        for delivery, row in after.deliveries.items():
            old = before.deliveries.get(delivery)
            self._whole(row, after)
            if step.name == "take over" and row.state == "sending":
                self.learnt_late.add(delivery)  # whoever sends it learns its outcome as an outsider
            if old is not None:
                self._moved(step, old, row, before, after)
            self._attempts(step, delivery, before, after)
            self._doubt(step, row, after)
            self._truth(row, after)
            self._used(step, row, after)
        self._probed(before, after)
        last = self.last_transition
        self._trail(after)
        _demand(not step.unchanged or last == self.last_transition, "a repetition wrote to the trail")
        self._learn()
        for delivery, row in after.deliveries.items():
            was = before.deliveries.get(delivery)
            if was is not None and was.state in ("sending", "accepted", "pending") and row.state == "suppressed":
                _demand(bool(self.suppressed.get(row.recipient_id)), f"delivery {delivery} suppressed nobody")
        self.before = after
        return after

    def _nothing_lost(self, before: Snapshot, after: Snapshot) -> None:
        _demand(before.deliveries.keys() <= after.deliveries.keys(), "a delivery has vanished")
        named = [(d.event_id, d.recipient_id) for d in after.deliveries.values()]
        _demand(len(named) == len(set(named)), "one event has two deliveries for one recipient")
        anew = {(d.event_id, d.recipient_id) for d in after.deliveries.values() if d.origin_id is not None}
        _demand(set(named) == set(self.intents) | anew, "deliveries are not those that were committed")
        keys = dict(self.database.execute("SELECT key, delivery_id FROM notify_key"))
        _demand(keys == {d.idempotency_key: d.id for d in after.deliveries.values()}, "keys and deliveries differ")
        _demand(after.work.keys() <= after.deliveries.keys(), "work without a delivery")

    def _whole(self, row: Row, after: Snapshot) -> None:
        """Exactly one of: one work row, settled; and the work fits the state."""
        work = after.work.get(row.id)
        where = f"delivery {row.id} ({row.state}, {work and work.step}, settled {row.settled_at})"
        _demand((work is None) == (row.settled_at is not None), f"neither live nor settled: {where}")
        if row.state in WORKING:
            _demand(work is not None and work.step == WORKING[row.state], f"state and work differ: {where}")
        elif row.state == "ambiguous":
            fits = work is not None and (work.step == "resolve" or (work.step == "send" and work.mandate is not None))
            _demand(fits, f"in doubt without the work for it: {where}")
        elif row.state == "accepted":
            _demand(work is None or work.step == "check", f"accepted with work to send: {where}")
        else:
            _demand(work is None, f"settled with work: {where}")
        if row.state in ("accepted", "pending", "delivered", "unresolved"):
            _demand(row.accepted_at is not None, f"accepted without a time: {where}")
        if row.state in ("suppressed", "expired", "cancelled", "dead_letter", "unresolved"):
            _demand(bool(row.reason), f"ended without a reason: {where}")
        if work is not None and work.mandate is not None:
            _demand(work.step == "send" and row.doubt_since is not None, f"a mandate without doubt: {where}")
        _demand(row.accepted_at is None or row.doubt_since is None, f"accepted and in doubt: {where}")
        _demand(row.id not in self.told or row.accepted_at is not None, f"an acceptance was lost: {where}")

    def _moved(self, step: Step, old: Row, row: Row, before: Snapshot, after: Snapshot) -> None:
        where = f"delivery {row.id}: {old.state} → {row.state} by {step.name}"
        _demand(after.token(row.id) >= before.token(row.id), f"a token went down, {where}")
        if old.accepted_at is not None:
            _demand(row.accepted_at == old.accepted_at, f"the acceptance changed, {where}")
        if old.state != row.state:
            if old.state in TERMINAL:
                again = row.id in step.decided or row.id in step.told_accepted or row.id in step.receipts
                _demand(again, f"what had ended moved, {where}")
            _demand(
                row.state not in ("queued", "temporary_failure") or row.accepted_at is None,
                f"accepted and waiting to be sent, {where}",
            )
        was, work = before.work.get(row.id), after.work.get(row.id)
        if was is not None and (old.state != row.state or (work is not None and was.step != work.step)):
            foreign = was.owner is not None and was.owner != step.actor
            _demand(
                not foreign or after.token(row.id) > before.token(row.id),
                f"moved behind its owner's back with the old token, {where}",
            )
        if was is None or work is None:
            return
        if work.owner is not None and work.owner != was.owner:
            _demand(work.fencing_token > was.fencing_token, f"claimed without a new token, {where}")
            _demand(was.eligible_at <= self.now, f"claimed before it was eligible, {where}")
            if was.step == "send":
                free = old.state in ("queued", "temporary_failure") and old.doubt_since is None
                _demand(free or was.mandate is not None, f"claimed to be sent while in doubt, {where}")
        if was.mandate is None and work.mandate is not None:
            allowed = step.may_replay if work.mandate == "replay" else step.may_duplicate
            _demand(row.id in allowed, f"a mandate that nobody gave ({work.mandate}), {where}")

    # -- attempts -------------------------------------------------------------------------------------------------

    def _attempts(self, step: Step, delivery: int, before: Snapshot, after: Snapshot) -> None:
        old, new = before.attempts.get(delivery, {}), after.attempts.get(delivery, {})
        _demand(old.keys() <= new.keys(), "an attempt has vanished")
        _demand(list(new) == list(range(1, len(new) + 1)) or sorted(new) == list(range(1, len(new) + 1)), "a gap")
        for number, attempt in new.items():
            known = old.get(number)
            if known is None:
                self._begun(step, attempt, before, after)
                continue
            if known.outcome not in (None, "ambiguous"):
                _demand(known.outcome == attempt.outcome, f"attempt {delivery}/{number}: its outcome was rewritten")
            if attempt.outcome != known.outcome and (known.outcome == "ambiguous" or step.name == "turn"):
                later = attempt.outcome in ("temporary_failure", "rate_limited", "unavailable", "permanent_failure")
                own = before.work.get(delivery)
                outsider = own is None or own.owner != attempt.run
                if later and delivery not in step.absent and (known.outcome == "ambiguous" or outsider):
                    self.learnt_late.add(delivery)
            _demand(known.request_digest == attempt.request_digest, "an attempt's digest changed")

    def _begun(self, step: Step, attempt: Row, before: Snapshot, after: Snapshot) -> None:
        """A submission is about to go out: whatever forbids it was committed before."""
        delivery, work = before.deliveries[attempt.delivery_id], before.work.get(attempt.delivery_id)
        where = f"attempt {attempt.delivery_id}/{attempt.number} by {step.name}"
        if work is None:
            raise Violation(f"begun without work: {where}")
        _demand(after.deliveries[delivery.id].state == "sending", f"begun and not sending: {where}")
        owned = work.step == "send" and work.owner == attempt.run and work.fencing_token == attempt.fencing_token
        _demand(owned and work.eligible_at > self.now, f"begun without owning it: {where}")
        _demand(delivery.accepted_at is None, f"begun though accepted: {where}")
        _demand(delivery.expires_at is None or delivery.expires_at > self.now, f"begun though expired: {where}")
        self._allowed(delivery, attempt, where)
        for gate in before.gates:
            shut = gate.until > self.now if gate.until is not None else gate.kind == "pause"
            meant = (gate.scope, gate.name) in (("lane", delivery.lane), ("transport", attempt.transport))
            _demand(not (shut and meant), f"begun behind a closed gate: {where}")
        if delivery.doubt_since is None:
            return
        _demand(work.mandate is not None and work.mandate == attempt.mandate, f"begun in doubt: {where}")
        if attempt.mandate == "replay":
            unknown = self._unknown(delivery.id, before)
            _demand(unknown[0].request_digest == attempt.request_digest, f"a replay that differs: {where}")
            end = delivery.doubt_since + timedelta(seconds=WINDOW)
            _demand(self.now + timedelta(seconds=DEADLINE) < end, f"a replay behind its window: {where}")

    def _probed(self, before: Snapshot, after: Snapshot) -> None:
        """Behind a gate whose time is over one probe goes, not the backlog."""
        waiting = {g.name for g in before.gates if g.scope == "transport" and g.kind != "pause"}
        going = [
            attempt.transport
            for delivery, attempts in after.attempts.items()
            for number, attempt in attempts.items()
            if number not in before.attempts.get(delivery, {}) and attempt.transport in waiting
        ]
        _demand(len(going) == len(set(going)), "more than one probe")

    def _allowed(self, delivery: Row, attempt: Row, where: str) -> None:
        for reason, fingerprint in self.suppressed.get(delivery.recipient_id, ()):
            meant = reason not in ADDRESS_ONLY or fingerprint is None or fingerprint == attempt.fingerprint
            _demand(not meant, f"begun though suppressed ({reason}): {where}")
        answer = self.consent.get((delivery.recipient_id, delivery.topic)) if delivery.topic else None
        _demand(answer is not False, f"begun though consent is revoked: {where}")
        _demand(delivery.topic not in self.required or answer is True, f"begun without consent: {where}")

    def _unknown(self, delivery: int, snapshot: Snapshot) -> list[Row]:
        """Attempts of unknown outcome that nothing has cleared, oldest first."""
        attempts = snapshot.attempts.get(delivery, {})
        return [
            attempts[n] for n in sorted(attempts)
            if attempts[n].outcome in (None, "ambiguous") and n > self.cleared.get(delivery, 0)
        ]  # fmt: skip

    # -- doubt ----------------------------------------------------------------------------------------------------

    def _doubt(self, step: Step, row: Row, after: Snapshot) -> None:
        delivery = row.id
        settled = delivery in step.absent or delivery in step.decided
        if row.accepted_at is not None or (settled and row.doubt_since is None):
            self.cleared[delivery] = max(after.attempts.get(delivery, {}), default=0)
        unknown = self._unknown(delivery, after)
        if row.state == "sending" and unknown and unknown[-1].number == max(after.attempts[delivery]):
            unknown = unknown[:-1]  # the one under way: its deadline makes it doubt, whoever owned it
        where = f"delivery {delivery} ({row.state}) after {step.name}"
        if unknown:
            _demand(row.doubt_since is not None, f"doubt was forgotten: {where}")
            began = unknown[0].started  # it may count from one that turned out, late, to have failed: never later
            holds = row.doubt_since < began if delivery in self.learnt_late else row.doubt_since == began
            _demand(holds or row.doubt_since == began, f"doubt begins at another time: {where}")
        elif delivery not in self.learnt_late:
            _demand(row.doubt_since is None, f"doubt where every outcome is known: {where}")

    def _truth(self, row: Row, after: Snapshot) -> None:
        """What is certain in the ledger is what really happened."""
        key = self.wire[row.id]
        copies = self.providers.copies.get(key, [])
        taken = len(copies) - self.providers.forgiven.get(key, 0)
        if row.accepted_at is not None:
            _demand(bool(copies) or row.id in self.marked, f"delivery {row.id} counts as accepted, nobody took it")
            return
        if taken and row.doubt_since is None:
            attempts = after.attempts.get(row.id, {})
            under_way = row.state == "sending" and attempts[max(attempts)].outcome in (None, "ambiguous")
            _demand(under_way and copies[-1].attempt[1] == max(attempts), f"delivery {row.id} ({row.state}) was taken")

    def _used(self, step: Step, row: Row, after: Snapshot) -> None:
        attempts = after.attempts.get(row.id, {})
        if row.id in step.granted:
            self.base[row.id] = (row.attempts_used, max(attempts, default=0))
        used, number = self.base.get(row.id, (0, 0))
        counted = [a for n, a in attempts.items() if n > number and a.outcome is not None]
        most = used + len(counted)
        least = used + sum(a.outcome in CERTAIN for a in counted)
        if row.accepted_at is not None or row.id in self.learnt_late:
            least = 0  # nothing depends on it any more; what failed late may be taken back
        _demand(least <= row.attempts_used <= most, f"delivery {row.id} counts {row.attempts_used} attempts")

    def _trail(self, after: Snapshot) -> None:
        where = f"WHERE id > {self.last_transition} ORDER BY id"
        for row in _rows(self.database, "transition", "id, delivery_id, from, to, reason, note, actor", where):
            self.last_transition = row.id
            known = self.chains.get(row.delivery_id)
            told = f"{known}, then {row['from']} → {row.to} ({row.reason})"
            _demand(known == row["from"], f"the trail of {row.delivery_id} has a gap: {told}")
            self.chains[row.delivery_id] = row.to
            _demand("@" not in f"{row.reason}{row.note}{row.actor}", "an address in the trail")
        for delivery, row in after.deliveries.items():
            _demand(self.chains.get(delivery) == row.state, f"the trail of {delivery} ends elsewhere")

    def _learn(self) -> None:
        """What has been committed of suppressions and consent: it forbids whatever begins from now on."""
        where = f"WHERE id > {self.last_suppression} ORDER BY id"
        for row in _rows(self.database, "suppression", "id, recipient_id, reason, lifted, fingerprint", where):
            self.last_suppression = row.id
            known = self.suppressed.setdefault(row.recipient_id, [])
            known.clear() if row.lifted else known.append((row.reason, row.fingerprint))
        where = f"WHERE id > {self.last_consent} ORDER BY id"
        for row in _rows(self.database, "consent", "id, recipient_id, topic, granted", where):
            self.last_consent = row.id
            self.consent[row.recipient_id, row.topic] = bool(row.granted)

    # -- what people say ------------------------------------------------------------------------------------------

    def nothing_forbidden_waits(self, recipient: str) -> None:
        """Right after a "no": nothing of that recipient that it forbids waits to be sent."""
        for delivery, row in self.before.deliveries.items():
            work = self.before.work.get(delivery)
            if row.recipient_id != recipient or work is None or work.step != "send" or work.mandate is not None:
                continue
            for reason, fingerprint in self.suppressed.get(recipient, ()):
                meant = reason not in ADDRESS_ONLY or fingerprint in (None, row.fingerprint)
                _demand(not meant, f"delivery {delivery} waits though suppressed ({reason})")
            answer = self.consent.get((recipient, row.topic)) if row.topic else None
            _demand(answer is not False, f"delivery {delivery} waits though consent is revoked")

    def submitted(self, delivery: int, number: int, digest: str, run: str) -> None:
        """The first byte goes out: its attempt is on disk, with the digest of what is sent."""
        rows = self.database.execute(
            "SELECT run, request_digest FROM notify_attempt WHERE delivery_id = ? AND number = ?", delivery, number
        )
        _demand(bool(rows), f"attempt {delivery}/{number} is sent and not on disk")
        _demand(tuple(rows[0]) == (run, digest), f"attempt {delivery}/{number} is sent by another, or other bytes")

    def all_over(self) -> None:
        """The end of a history: after every deadline has passed nothing is left to be done."""
        left = {i: (w.step, self.before.deliveries[i].state) for i, w in self.before.work.items()}
        _demand(not left, f"still not over: {left}")


def _difference(before: Snapshot, after: Snapshot) -> str:
    """The rows that differ."""
    found = []
    for name in ("deliveries", "work", "attempts"):
        old, new = getattr(before, name), getattr(after, name)
        differ = [i for i in old.keys() | new.keys() if old.get(i) != new.get(i)]
        found += [f"{name} {i}: {old.get(i)} → {new.get(i)}" for i in differ]
    return "; ".join(found)


def _demand(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Violation(otherwise)
