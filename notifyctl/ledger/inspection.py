"""What the ledger says when a person asks: the overview, one delivery with all that happened to it, lists of them.

Reads only, and nothing here walks over the history: the overview counts the work table and the states that wait for
somebody; each list takes the one index that its filters make narrow. Instants come back as datetimes, JSON columns
decoded, everything else as stored: addresses and variables too, which whoever shows them must mask.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from notifyctl.ledger.claim import CONSENT, SUPPRESSION
from notifyctl.ledger.database import Tx
from notifyctl.model import State, Step
from notifyctl.pacing import LimitKey, Meter

Row = dict[str, Any]

DELIVERY = (
    "id", "event_id", "recipient_id", "channel", "lane", "region", "topic", "template", "template_version", "locale",
    "variables", "attachments", "destination", "due_at", "expires_at", "content_digest", "idempotency_key", "wire_key",
    "state", "reason", "attempts_used", "first_tried_at", "doubt_since", "endpoint_id", "fingerprint", "transport",
    "sender", "message_date", "fencing_token", "remote_id", "accepted_at", "receipts_from", "settled_at",
    "created_at", "updated_at", "sensitive", "batch", "origin_id",
)  # fmt: skip
WORK = ("step", "lane", "region", "due_at", "eligible_at", "owner", "fencing_token", "tries", "mandate",
        "held")
_ATTEMPT = (
    "number", "run", "fencing_token", "transport", "started", "finished", "outcome", "reason", "code", "remote_id",
    "remote_ids", "retry_after", "request_digest", "fingerprint", "mandate", "locale", "encoding", "segments", "bytes",
    "duration", "late",
)  # fmt: skip
_TRANSITION = ("id", "at", "from", "to", "reason", "attempt", "actor", "note")
_RECEIPT = ("id", "at", "provider_time", "remote_id", "part", "status", "reason", "code")
_RUN = ("id", "command", "host", "pid", "version", "started", "finished", "exit_code", "counts")

_TIMES = frozenset({
    "due_at", "expires_at", "first_tried_at", "doubt_since", "message_date", "accepted_at", "receipts_from",
    "settled_at", "created_at", "updated_at", "eligible_at", "started", "finished", "at", "provider_time",
})  # fmt: skip
_DOCUMENTS = frozenset({"variables", "attachments", "remote_ids", "counts"})
_FLAGS = frozenset({"sensitive", "late", "held"})


def _columns(alias: str, names: Sequence[str]) -> str:
    return ", ".join(f'{alias}."{name}"' for name in names)


def _row(tx: Tx, names: Sequence[str], values: Sequence[Any]) -> Row:
    row: Row = {}
    for name, value in zip(names, values, strict=True):
        if value is not None and name in _TIMES:
            value = tx.dialect.instant(value)
        elif name in _DOCUMENTS:
            value = tx.dialect.document(value)
        elif name in _FLAGS:
            value = bool(value)
        row[name] = value
    return row


# -- the overview -----------------------------------------------------------------------------------------------

# One statement, so that the two counts are of one moment. Rows in the states named here are always live; `queued`
# and live `accepted` are what remains of their step, so that neither the backlog is joined nor the history read.
_LIVE = """SELECT w.lane, w.region, w.step, NULL, count(*) FROM notify_work w GROUP BY w.lane, w.region, w.step
  UNION ALL
  SELECT w.lane, w.region, w.step, d.state, count(*) FROM notify_delivery d JOIN notify_work w ON w.delivery_id = d.id
  WHERE d.state IN ('sending', 'temporary_failure', 'ambiguous', 'pending')
  GROUP BY w.lane, w.region, w.step, d.state"""
_REST = {Step.SEND: State.QUEUED, Step.CHECK: State.ACCEPTED, Step.RESOLVE: State.SENDING}

_OLDEST = """SELECT w.lane, w.region, min(w.due_at) FROM notify_work w WHERE w.step = 'send' AND w.due_at <= :now
  GROUP BY w.lane, w.region"""

_HELD = """SELECT count(*) FROM notify_delivery d JOIN notify_work w ON w.delivery_id = d.id AND w.step = 'resolve'
  WHERE d.state = 'ambiguous' AND w.held"""

_REVIEW = """SELECT d.state, count(*) FROM notify_delivery d WHERE d.state IN ('dead_letter', 'unresolved')
  GROUP BY d.state"""


# Refused by ourselves before a byte went out: what a provider refuses has been charged.
_REFUSED = """SELECT d.reason, count(*) FROM notify_delivery d
  WHERE d.state = 'permanent_failure' AND d.attempts_used = 0 GROUP BY d.reason"""

_DEFERRED = """SELECT d.reason, count(*) FROM notify_work w JOIN notify_delivery d ON d.id = w.delivery_id
  WHERE w.step = 'send' AND w.tries > 0 AND d.reason IN (SELECT m.reason FROM {m: reason text}) GROUP BY d.reason"""


@dataclass(slots=True)
class Overview:
    """Live rows by state per (lane, region); seconds since the oldest due send of each was due; what waits for a
    person: `held` in doubt, `review` by state, `refused` before anything was sent and `deferred` by reason."""

    live: dict[tuple[str, str], Counter[State]] = field(default_factory=dict)
    ages: dict[tuple[str, str], float] = field(default_factory=dict)
    held: int = 0
    review: dict[State, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    deferred: dict[str, int] = field(default_factory=dict)


def overview(tx: Tx, mendable: Iterable[str] = ()) -> Overview:
    """Where everything stands that is not over; `mendable`: the reasons for which `deferred` rows are counted."""
    at, seen = tx.dialect.instant, Overview()
    for lane, region, step, state, count in tx.execute(_LIVE):
        states = seen.live.setdefault((lane, region), Counter())
        if state is None:
            states[_REST[Step(step)]] += count
        else:
            states[State(state)] += count
            states[_REST[Step(step)]] -= count
    for lane, region, due_at in tx.execute(_OLDEST):
        due = at(due_at)
        assert due is not None
        seen.ages[lane, region] = round((tx.now - due).total_seconds(), 3)
    seen.held = tx.execute(_HELD)[0][0]
    seen.review = {State(state): count for state, count in tx.execute(_REVIEW)}
    seen.refused = dict(tx.execute(_REFUSED))
    reasons = [(reason,) for reason in mendable]
    seen.deferred = dict(tx.execute(_DEFERRED, m=reasons)) if reasons else {}
    return seen


# -- one delivery -----------------------------------------------------------------------------------------------

# What a begin would look at: the newest consent, a suppression of the pair or of the address as far as it is known.
_FINGERPRINT = "COALESCE(d.fingerprint, CASE WHEN d.destination IS NULL THEN e.fingerprint END)"
_ONE = f"""SELECT {_columns("d", DELIVERY)}, w.delivery_id, {_columns("w", WORK)}, e.address, {_FINGERPRINT}, {CONSENT},
    {SUPPRESSION % _FINGERPRINT}, EXISTS (SELECT 1 FROM notify_template t WHERE t.name = d.template
      AND (d.template_version IS NULL OR t.version = d.template_version))
  FROM notify_delivery d LEFT JOIN notify_work w ON w.delivery_id = d.id
  LEFT JOIN notify_endpoint e ON e.id = (SELECT max(n.id) FROM notify_endpoint n
    WHERE n.recipient_id = d.recipient_id AND n.channel = d.channel)
  WHERE """


@dataclass(frozen=True, slots=True)
class Found:
    """One delivery: its columns, its work row, what happened to it in order, and what a begin would look at now.

    `address` is the recipient's current one (None: none known; "": erased), `consent` None where never asked,
    `suppression` the reason of one in force, `fingerprint` that of the destination as far as it is known.
    """

    delivery: Row = field(repr=False)
    work: Row | None
    attempts: list[Row]
    transitions: list[Row]
    receipts: list[Row]
    address: str | None = field(repr=False)
    fingerprint: str | None
    consent: bool | None
    suppression: str | None
    template_published: bool


def delivery(tx: Tx, which: int | str) -> Found | None:
    """The delivery with this id (int) or idempotency key (str)."""
    condition = "d.id = :which" if isinstance(which, int) else "d.idempotency_key = :which"
    rows = tx.execute(_ONE + condition, which=which)
    if not rows:
        return None
    row, width = rows[0], len(DELIVERY)
    columns = _row(tx, DELIVERY, row[:width])
    has_work, work = row[width] is not None, row[width + 1 : width + 1 + len(WORK)]
    address, fingerprint, consent, suppression, published = row[width + 1 + len(WORK) :]
    return Found(
        delivery=columns,
        work=_row(tx, WORK, work) if has_work else None,
        attempts=_of(tx, "notify_attempt", _ATTEMPT, columns["id"]),
        transitions=_of(tx, "notify_transition", _TRANSITION, columns["id"]),
        receipts=_of(tx, "notify_receipt", _RECEIPT, columns["id"]),
        address=address,
        fingerprint=fingerprint,
        consent=None if consent is None else bool(consent),
        suppression=suppression,
        template_published=bool(published),
    )


def _of(tx: Tx, table: str, names: Sequence[str], delivery_id: int) -> list[Row]:
    sql = f"SELECT {_columns('x', names)} FROM {table} x WHERE x.delivery_id = :id ORDER BY x.{names[0]}"
    return [_row(tx, names, values) for values in tx.execute(sql, id=delivery_id)]


def pruned(tx: Tx, key: str) -> bool:
    """Whether this idempotency key was used once, by a delivery that retention has removed."""
    return bool(tx.execute("SELECT 1 FROM notify_key WHERE key = :key", key=key))


def meters(tx: Tx, keys: Sequence[LimitKey]) -> dict[LimitKey, Meter]:
    """The state of these limits as it is, locking and making none; what was never used is missing."""
    at = tx.dialect.instant
    rows = tx.execute(
        """SELECT p.key, p.rate, p.tat, p.window_start, p.count FROM {o: key text, rate text}
        JOIN notify_pace p ON p.key = o.key AND p.rate = o.rate""",
        o=sorted(set(keys)),
    )
    return {(key, rate): Meter(at(tat), at(start), count) for key, rate, tat, start, count in rows}


# -- events and runs --------------------------------------------------------------------------------------------

_EVENT = """SELECT d.channel, d.state, count(*), count(d.accepted_at), count(d.settled_at) FROM notify_delivery d
  WHERE d.event_id = :event GROUP BY d.channel, d.state ORDER BY d.channel, d.state"""


def event(tx: Tx, event_id: str) -> list[tuple[str, State, int, int, int]]:
    """(channel, state, deliveries, of them accepted, of them settled) of one event."""
    return [(channel, State(state), *counts) for channel, state, *counts in tx.execute(_EVENT, event=event_id)]


def runs(tx: Tx, limit: int, before: Mapping[str, Any] | None = None) -> list[Row]:
    """Runs, the newest first; `before`: those that follow this one in the list."""
    keyset = "WHERE (r.started, r.id) < (:started, :id)" if before else ""
    given = {"started": before["started"], "id": before["id"]} if before else {}
    sql = f"SELECT {_columns('r', _RUN)} FROM notify_run r {keyset} ORDER BY r.started DESC, r.id DESC LIMIT :limit"
    return [_row(tx, _RUN, values) for values in tx.execute(sql, limit=limit, **given)]


# -- lists of deliveries ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Filter:
    """Which deliveries: all that is given must hold. `since` (included) and `until` (excluded) are of `created_at`."""

    states: tuple[State, ...] = ()
    lane: str | None = None
    event: str | None = None
    recipient: str | None = None
    remote_id: str | None = None
    reason: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    @property
    def narrow(self) -> bool:
        """Whether one of the columns is given whose index leaves few rows."""
        return any(value is not None for value in (self.event, self.recipient, self.remote_id))

    @property
    def by_time(self) -> bool:
        """Whether the list follows `created_at`: where the states asked for hold the history, or none is named."""
        timed = self.since is not None or self.until is not None
        return timed and not self.narrow and not (self.states and _HISTORY.isdisjoint(self.states))


_HISTORY = frozenset({State.ACCEPTED, State.DELIVERED})  # where nearly everything ends
_CONDITIONS = {
    "lane": "d.lane = :lane", "event": "d.event_id = :event", "recipient": "d.recipient_id = :recipient",
    "remote_id": "d.remote_id = :remote_id", "reason": "d.reason = :reason", "since": "d.created_at >= :since",
    "until": "d.created_at < :until",
}  # fmt: skip

_PAGE = f"""WITH found AS ({{found}}) SELECT w.delivery_id, {_columns("d", DELIVERY)}, {_columns("w", WORK)}
  FROM found JOIN notify_delivery d ON d.id = found.id LEFT JOIN notify_work w ON w.delivery_id = d.id
  ORDER BY {{order}}"""


def page(tx: Tx, wanted: Filter, limit: int, before: Row | None = None) -> list[Row]:
    """Up to `limit` deliveries, the newest first, each with its `work` row or None; `before`: those that follow it.

    Ordered by id, or by (created_at, id) where that is what keeps the search short (`Filter.by_time`).
    """
    given: dict[str, Any] = {name: getattr(wanted, name) for name in _CONDITIONS if getattr(wanted, name) is not None}
    conditions = [_CONDITIONS[name] for name in given]
    given["limit"] = limit
    if before:
        given["before"] = before["id"]
        conditions.append("(d.created_at, d.id) < (:before_at, :before)" if wanted.by_time else "d.id < :before")
        if wanted.by_time:
            given["before_at"] = before["created_at"]
    order = "d.created_at DESC, d.id DESC" if wanted.by_time else "d.id DESC"
    states = list(dict.fromkeys(wanted.states))
    if states and not wanted.narrow and not wanted.by_time:
        found = _each_state(states, conditions)
        given.update({f"state_{n}": state.value for n, state in enumerate(states)})
    else:
        if states:  # an expression, so that no planner takes the states' index instead of the narrow one
            conditions.append("d.state || '' IN (SELECT s.state FROM {s: state text})")
            given["s"] = [(state.value,) for state in states]
        found = _newest(conditions, "d.id + 0 DESC" if wanted.narrow else order)
    rows = []
    for values in tx.execute(_PAGE.format(found=found, order=order), **given):
        row = _row(tx, DELIVERY, values[1 : 1 + len(DELIVERY)])
        row["work"] = None if values[0] is None else _row(tx, WORK, values[1 + len(DELIVERY) :])
        rows.append(row)
    return rows


def _newest(conditions: Sequence[str], order: str) -> str:
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    return f"SELECT d.id FROM notify_delivery d {where} ORDER BY {order} LIMIT :limit"


def _each_state(states: Sequence[State], conditions: Sequence[str]) -> str:
    """One walk down the index (state, id) for each state: `state IN (…)` would sort all rows of all of them."""
    walks = [_newest([f"d.state = :state_{n}", *conditions], "d.id DESC") for n in range(len(states))]
    union = " UNION ALL ".join(f"SELECT s{n}.id FROM ({walk}) AS s{n}" for n, walk in enumerate(walks))
    return f"SELECT u.id FROM ({union}) AS u ORDER BY u.id DESC LIMIT :limit"
