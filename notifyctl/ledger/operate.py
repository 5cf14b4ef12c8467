"""What a person does to deliveries: requeue, settle by hand, send anew, cancel. A page of them per transaction.

Rows are locked (work before delivery, by id), shown to a `Judge`, and moved as it decides; whatever run owned one finds
its token gone. Safe to run again whole: after a lost COMMIT reply, what the first run moved is recognised by its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from notifyctl.ledger import record
from notifyctl.ledger.claim import CONSENT, SUPPRESSION, readable_attachments
from notifyctl.ledger.database import Tx, ids
from notifyctl.lifecycle import Facts, Transition
from notifyctl.model import Attachment, Channel, State

MAX_EVENT = 200  # characters of an event id


@dataclass(frozen=True, slots=True)
class Candidate:
    """One delivery under lock. `consent` and `suppression` are in force for where it would go now."""

    id: int
    token: int
    lane: str
    transport: str
    facts: Facts
    event_id: str
    recipient_id: str
    channel: Channel
    topic: str | None
    reason: str
    batch: str | None
    sensitive: bool
    variables: Mapping[str, object] = field(repr=False)
    attachments: tuple[Attachment, ...] = field(repr=False)
    destination: str | None = field(repr=False)
    address: str | None = field(repr=False)
    content_digest: str | None
    consent: bool | None
    suppression: str | None
    receipt: str = ""  # what the provider said last

    @property
    def state(self) -> State:
        """Where it stands."""
        assert self.facts.state is not None
        return self.facts.state


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a delivery is left as it is: a reason code and the way out. `state` None: there is no such delivery."""

    id: int | str
    state: State | None
    reason: str
    hint: str


Judge = Callable[[Candidate, datetime], Transition | Refused]


@dataclass(frozen=True, slots=True)
class Action:
    """Who does what: stands in the trail of every delivery it concerns.

    `batch` names what was requeued together; where there is none, `goal` is the state that tells a delivery that an
    earlier run of the same transaction has moved. `expires_at`, `remote_id`: as the operator states them.
    """

    actor: str
    note: str
    batch: str | None = None
    goal: State | None = None
    expires_at: datetime | None = None
    remote_id: str | None = None

    def did(self, candidate: Candidate) -> bool:
        """Whether an earlier run of this transaction was committed and only its reply was lost."""
        return candidate.state is self.goal if self.batch is None else candidate.batch == self.batch


# Whom it would reach now: the named destination, else the current endpoint. A fingerprint is known once the address has
# been read by notifyctl; where it is not, nothing known of an address concerns this one.
_FINGERPRINT = """CASE WHEN d.destination IS NOT NULL THEN d.fingerprint
  WHEN e.id = d.endpoint_id THEN COALESCE(d.fingerprint, e.fingerprint) ELSE e.fingerprint END"""

_LOCK_WORK = """SELECT w.delivery_id FROM {o: id bigint} JOIN notify_work w ON w.delivery_id = o.id
  ORDER BY w.delivery_id {lock of w}"""

_LOCK_DELIVERY = """SELECT d.id FROM {o: id bigint} JOIN notify_delivery d ON d.id = o.id ORDER BY d.id {lock of d}"""

_CANDIDATES = f"""SELECT d.id, d.event_id, d.recipient_id, d.channel, d.topic, d.reason, d.batch, d.sensitive,
    d.variables, d.attachments, d.destination, e.address, d.content_digest, {CONSENT},
    {SUPPRESSION % f"({_FINGERPRINT})"},
    (SELECT r.status FROM notify_receipt r WHERE r.delivery_id = d.id ORDER BY r.id DESC LIMIT 1)
  FROM {{o: id bigint}} JOIN notify_delivery d ON d.id = o.id
  LEFT JOIN notify_endpoint e ON e.id = (SELECT max(n.id) FROM notify_endpoint n
    WHERE n.recipient_id = d.recipient_id AND n.channel = d.channel)"""


def candidates(tx: Tx, wanted: Iterable[int]) -> dict[int, Candidate]:
    """These deliveries, locked, as far as they exist."""
    chosen = ids(set(wanted))
    if not chosen:
        return {}
    # Both locks before the first look: a row that was settled or requeued while we waited is then seen as it is.
    tx.execute(_LOCK_WORK, o=chosen)
    tx.execute(_LOCK_DELIVERY, o=chosen)
    known = record.facts(tx, [(row[0], 0) for row in chosen])
    found = {}
    for row in tx.execute(_CANDIDATES, o=chosen):
        late, token = known[row[0]]
        found[row[0]] = Candidate(
            id=row[0], token=token, lane=late.lane, transport=late.transport, facts=late.facts, event_id=row[1],
            recipient_id=row[2], channel=Channel(row[3]), topic=row[4], reason=row[5], batch=row[6],
            sensitive=bool(row[7]), variables=tx.dialect.document(row[8]) or {},
            attachments=readable_attachments(tx.dialect.document(row[9])) or (), destination=row[10],
            address=row[11],
            content_digest=row[12], consent=None if row[13] is None else bool(row[13]), suppression=row[14],
            receipt=row[15] or "",
        )  # fmt: skip
    return found


@dataclass(slots=True)
class Done:
    """What became of a page."""

    moved: list[int] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)


def move(tx: Tx, wanted: Sequence[int], judge: Judge, action: Action, *, dry_run: bool = False) -> Done:
    """Carry out what `judge` decides of each delivery; `dry_run`: only say what it would be."""
    done, moves = Done(), []
    found = candidates(tx, wanted)
    for delivery in wanted:
        candidate = found.get(delivery)
        if candidate is None:
            done.refused.append(unknown(delivery))
            continue
        if tx.rerun and action.did(candidate):
            done.moved.append(delivery)
            continue
        decided = judge(candidate, tx.now)
        if isinstance(decided, Refused):
            done.refused.append(decided)
            continue
        token = candidate.token + 1 if decided.token_raised else candidate.token
        remote = action.remote_id if decided.accepted_at is not None else None
        moves.append(record.Move(delivery, token, candidate.state, decided, remote_id=remote, note=action.note))
        done.moved.append(delivery)
    if moves and not dry_run:
        _carry_out(tx, moves, action)
    return done


_STATED = """UPDATE notify_delivery SET batch = COALESCE(:batch, batch), expires_at = COALESCE(:expires_at, expires_at)
  WHERE id IN (SELECT id FROM {o: id bigint})"""

# Of several attempts in doubt nobody knows which one it was: the last, whose remote id a person most likely found.
_ATTEMPT = """UPDATE notify_attempt SET outcome = 'accepted', reason = 'marked_accepted',
    remote_id = COALESCE(:remote_id, remote_id), finished = COALESCE(finished, :now)
  FROM (SELECT a.delivery_id, max(a.number) AS number FROM {o: id bigint} JOIN notify_attempt a
      ON a.delivery_id = o.id AND (a.outcome IS NULL OR a.outcome = 'ambiguous') GROUP BY a.delivery_id) AS l
  WHERE notify_attempt.delivery_id = l.delivery_id AND notify_attempt.number = l.number"""


def _carry_out(tx: Tx, moves: Sequence[record.Move], action: Action) -> None:
    chosen = ids(m.id for m in moves)
    if action.batch is not None or action.expires_at is not None:
        tx.execute(_STATED, o=chosen, batch=action.batch, expires_at=action.expires_at)
    accepted = [m.id for m in moves if m.to.accepted_at is not None and m.was is not State.UNRESOLVED]
    if accepted:
        tx.execute(_ATTEMPT, o=ids(accepted), remote_id=action.remote_id)
    record.apply(tx, moves, actor=action.actor, new_work=True)


def unknown(given: int | str) -> Refused:
    """There is no such delivery."""
    return Refused(given, None, "not_found", "see which there are: notifyctl inspect deliveries")


# -- sending anew -------------------------------------------------------------------------------------------------

_ANEW = """INSERT INTO notify_delivery (event_id, recipient_id, channel, lane, region, topic, template,
    template_version, locale, variables, attachments, destination, due_at, expires_at, sensitive, batch, origin_id,
    created_at, updated_at)
  SELECT o.event_id, d.recipient_id, d.channel, d.lane, d.region, d.topic, d.template, d.template_version, d.locale,
    d.variables, d.attachments, d.destination, :now, o.expires_at, d.sensitive, :batch, d.id, :now, :now
  FROM {o: id bigint, event_id text, expires_at timestamptz} JOIN notify_delivery d ON d.id = o.id
  WHERE true ON CONFLICT DO NOTHING RETURNING origin_id, id"""

_EARLIER = """SELECT d.id, n.id, n.batch FROM {o: id bigint, event_id text} JOIN notify_delivery d ON d.id = o.id
  JOIN notify_delivery n ON n.event_id = o.event_id AND n.recipient_id = d.recipient_id AND n.channel = d.channel"""

_TRAIL = """INSERT INTO notify_transition (delivery_id, at, "from", "to", reason, actor, note)
  SELECT d.id, :now, d.state, d.state, o.reason, :actor, o.note
  FROM {o: id bigint, reason text, note text} JOIN notify_delivery d ON d.id = o.id ORDER BY d.id"""

Anew = Callable[[Candidate, datetime], Refused | None]


def send_anew(tx: Tx, wanted: Sequence[int], judge: Anew, action: Action, *, dry_run: bool = False) -> Done:
    """Make one new, linked delivery of each that `judge` does not refuse; asked twice, it is made once."""
    done = Done()
    found = candidates(tx, wanted)
    going: dict[int, Candidate] = {}
    for delivery in wanted:
        candidate = found.get(delivery)
        refused = unknown(delivery) if candidate is None else judge(candidate, tx.now)
        if refused is not None:
            done.refused.append(refused)
        elif candidate is not None:
            going[delivery] = candidate
    names = {i: _event_anew(c) for i, c in going.items()}
    for delivery, new, batch in tx.execute(_EARLIER, o=sorted(names.items())):
        candidate = going.pop(delivery)
        if tx.rerun and batch == action.batch:
            done.moved.append(delivery)
        else:
            hint = f"look at it: notifyctl inspect delivery {new}; to send once more, requeue that one"
            done.refused.append(Refused(delivery, candidate.state, "already_sent_anew", hint))
    if going and not dry_run:
        rows = [(i, names[i], action.expires_at or c.facts.expires_at) for i, c in sorted(going.items())]
        made = tx.execute(_ANEW, o=rows, batch=action.batch)
        links = [(old, "sent_anew", f"{action.note}; as delivery {new}") for old, new in made]
        links += [(new, "new_event", f"{action.note}; of delivery {old}") for old, new in made]
        tx.execute(_TRAIL, o=links, actor=action.actor)
    done.moved += going
    return done


def _event_anew(candidate: Candidate) -> str:
    suffix = f":anew-{candidate.id}"
    return candidate.event_id[: MAX_EVENT - len(suffix)] + suffix


# -- choosing -----------------------------------------------------------------------------------------------------

_KEYS = "SELECT o.key, d.id FROM {o: key text} JOIN notify_delivery d ON d.idempotency_key = o.key"


def by_key(tx: Tx, keys: Iterable[str]) -> dict[str, int]:
    """The ids of the deliveries with these idempotency keys."""
    return dict(tx.execute(_KEYS, o=[(key,) for key in sorted(set(keys))]))


@dataclass(frozen=True, slots=True)
class Filter:
    """Which deliveries are meant; all that is given must hold. Times are those of creation."""

    states: tuple[str, ...] = ()
    lane: str | None = None
    event: str | None = None
    recipient: str | None = None
    reason: str | None = None
    remote_id: str | None = None
    batch: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    def __bool__(self) -> bool:
        return self != Filter()


_CONDITIONS = {
    "lane": "d.lane = :lane", "event": "d.event_id = :event", "recipient": "d.recipient_id = :recipient",
    "reason": "d.reason = :reason", "remote_id": "d.remote_id = :remote_id", "batch": "d.batch = :batch",
    "since": "d.created_at >= :since", "until": "d.created_at < :until",
}  # fmt: skip


def matching(tx: Tx, wanted: Filter, limit: int | None = None) -> list[int]:
    """The ids that match, oldest first; a filter that says nothing matches nothing."""
    if not wanted:
        return []
    given: dict[str, Any] = {name: getattr(wanted, name) for name in _CONDITIONS if getattr(wanted, name) is not None}
    where = [_CONDITIONS[name] for name in given]
    if wanted.states:
        where.append("d.state IN (SELECT state FROM {s: state text})")
        given["s"] = [(state,) for state in wanted.states]
    bound = "" if limit is None else f" LIMIT {int(limit)}"
    sql = f"SELECT d.id FROM notify_delivery d WHERE {' AND '.join(where)} ORDER BY d.id{bound}"
    return [row[0] for row in tx.execute(sql, **given)]
