"""What `reconcile` decides about: doubt, overdue receipts, expired sends, and rows that nobody claims.

Doubt is a work row of step `resolve` whose delivery is `ambiguous`, claimed under a lease as any other; a begun attempt
stands at the same step, but becomes doubt only once its deadline has passed (`record.lapse`). Whoever decides writes
fenced by (owner, token), so a late acceptance that raised the token in between is never overruled.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from notifyctl.ledger import record
from notifyctl.ledger.claim import CONSENT, SUPPRESSION, Cursor, own
from notifyctl.ledger.database import Ledger, Tx, ids
from notifyctl.ledger.receipts import Check
from notifyctl.ledger.record import Move
from notifyctl.lifecycle import Facts, Transition, Trigger
from notifyctl.model import Channel, State, Step

Pairs = Sequence[tuple[str, str]]  # (lane, region)
STRANDED = timedelta(hours=1)  # work of another region that is overdue for so long: nobody seems to claim it

# -- doubt ------------------------------------------------------------------------------------------------------

_DOUBTFUL = """SELECT w.delivery_id, w.eligible_at, w.owner
  FROM notify_work w JOIN notify_delivery d ON d.id = w.delivery_id
  WHERE w.step = 'resolve' AND w.lane = :lane AND w.region = :region AND w.eligible_at <= :now
    AND (w.eligible_at, w.delivery_id) > (:after_at, :after_id) AND d.state = 'ambiguous'
    AND COALESCE(d.transport, '') NOT IN (SELECT t.name FROM {t: name text})
  ORDER BY w.eligible_at, w.delivery_id LIMIT :limit {lock of w skip}"""

# The attempts of unknown outcome: the first one's start, the last one's end, and the last one's number.
_UNKNOWN = "FROM notify_attempt a WHERE a.delivery_id = d.id AND (a.outcome IS NULL OR a.outcome = 'ambiguous')"

_LOAD = f"""SELECT d.id, d.event_id, d.channel, d.topic, d.transport, d.idempotency_key, w.fencing_token,
    o.was_eligible_at, o.was_owner, d.attempts_used, w.tries, d.due_at, d.expires_at, d.first_tried_at, d.doubt_since,
    w.held, {CONSENT}, {SUPPRESSION % "d.fingerprint"},
    (SELECT max(a.number) {_UNKNOWN}), (SELECT min(a.started) {_UNKNOWN}),
    (SELECT max(COALESCE(a.finished, a.started)) {_UNKNOWN}), COALESCE(d.destination, e.address),
    EXISTS (SELECT 1 {_UNKNOWN} AND a.transport <> COALESCE(d.transport, ''))
  FROM {{o: id bigint, was_eligible_at timestamptz, was_owner text}} JOIN notify_work w ON w.delivery_id = o.id
  JOIN notify_delivery d ON d.id = o.id LEFT JOIN notify_endpoint e ON e.id = d.endpoint_id
  ORDER BY o.was_eligible_at, d.id"""


@dataclass(frozen=True, slots=True)
class Doubt:
    """One claimed delivery whose outcome is unknown, and what a look-up needs to ask about it.

    `number`: its last attempt of unknown outcome; `since`, `until`: when those attempts were under way. `address` is
    what they were sent to, as stored. `elsewhere`: one of them went through another transport than the last did, and
    what this one says proves nothing of it. `consent` and `suppression` as in policy.check.
    """

    id: int
    event_id: str
    lane: str
    channel: Channel
    topic: str | None
    transport: str
    idempotency_key: str
    token: int
    was_eligible_at: datetime
    recovered: bool
    facts: Facts
    consent: bool | None
    suppression: str | None
    number: int | None
    since: datetime | None
    until: datetime | None
    address: str | None
    elsewhere: bool


def claim_doubt(
    ledger: Ledger, *, run: str, lane: str, region: str, limit: int, lease: float, after: Cursor, but: Sequence[str]
) -> tuple[list[Doubt], Cursor]:
    """Own up to `limit` deliveries of a lane whose doubt is due, except those of the transports `but`.

    Returns them in the order they became due, and where the next claim starts.
    """
    rows = own(
        ledger, _DOUBTFUL, _LOAD, run=run, lease=lease, lane=lane, region=region, limit=limit, after_at=after.at,
        after_id=after.id, t=[(name,) for name in but],
    )  # fmt: skip
    at = ledger.dialect.instant
    doubts = []
    for row in rows:
        was = at(row[7])
        assert was is not None
        facts = Facts(
            state=State.AMBIGUOUS, step=Step.RESOLVE, owned=True, used=row[9], tries=row[10], due_at=at(row[11]),
            eligible_at=was, expires_at=at(row[12]), first_tried_at=at(row[13]), doubt_since=at(row[14]),
            held=bool(row[15]),
        )  # fmt: skip
        doubts.append(Doubt(
            id=row[0], event_id=row[1], lane=lane, channel=Channel(row[2]), topic=row[3], transport=row[4] or "",
            idempotency_key=row[5], token=row[6], was_eligible_at=was, recovered=row[8] is not None, facts=facts,
            consent=None if row[16] is None else bool(row[16]), suppression=row[17], number=row[18], since=at(row[19]),
            until=at(row[20]), address=row[21], elsewhere=bool(row[22]),
        ))  # fmt: skip
    return doubts, Cursor(doubts[-1].was_eligible_at, doubts[-1].id) if doubts else after


_TRANSPORTS = """SELECT DISTINCT COALESCE(d.transport, '') FROM {p: lane text, region text} CROSS JOIN notify_work w
  JOIN notify_delivery d ON d.id = w.delivery_id
  WHERE w.step = 'resolve' AND w.lane = p.lane AND w.region = p.region AND w.eligible_at <= :now
    AND d.state = 'ambiguous'"""


def doubtful_transports(tx: Tx, pairs: Pairs) -> list[str]:
    """The transports of what is in doubt and due; "" stands for none."""
    return sorted(row[0] for row in tx.execute(_TRANSPORTS, p=list(pairs)))


_NOT_ACCEPTED = """UPDATE notify_attempt SET outcome = 'temporary_failure', reason = 'not_accepted',
    finished = COALESCE(finished, :now)
  WHERE (outcome IS NULL OR outcome = 'ambiguous') AND delivery_id IN (SELECT id FROM {o: id bigint})"""


def decide(tx: Tx, *, run: str, moves: Sequence[Move], absent: Sequence[int] = ()) -> list[Move]:
    """Carry out what was decided about doubt that is still ours; returns those moves.

    `absent`: deliveries that the provider certainly does not have: none of their attempts is of unknown outcome then.
    """
    if not moves:
        return []
    ours = {row[0] for row in tx.execute(record.OWNED, o=sorted((m.id, m.token) for m in moves), run=run)}
    kept = [move for move in moves if move.id in ours]
    settled = ours.intersection(absent)
    if settled:
        tx.execute(_NOT_ACCEPTED, o=ids(settled))
    record.apply(tx, kept, actor=run)
    return kept


_TAKEN_IDS = """SELECT o.id FROM {o: id bigint, transport text, remote_id text} WHERE EXISTS (
    SELECT 1 FROM notify_delivery d WHERE d.remote_id = o.remote_id AND d.transport = o.transport AND d.id <> o.id)
  OR EXISTS (SELECT 1 FROM notify_attempt a WHERE a.delivery_id = o.id AND a.remote_id = o.remote_id
    AND a.outcome <> 'ambiguous')"""


def taken_ids(tx: Tx, found: Sequence[tuple[int, str, str]]) -> set[int]:
    """Of these (delivery, transport, remote id), the deliveries whose id another attempt already has."""
    return {row[0] for row in tx.execute(_TAKEN_IDS, o=sorted(found))} if found else set()


# An attempt nobody knows the end of, at that time to that address. What became of its delivery since (a dead letter, or
# accepted by a second copy) says nothing of it; only a person's word that it failed does.
_BESIDE = """SELECT 1 FROM notify_delivery x JOIN notify_attempt a ON a.delivery_id = x.id
  WHERE %s AND x.id <> d.id AND x.reason <> 'marked_failed' AND a.outcome = 'ambiguous'
    AND a.fingerprint = d.fingerprint AND a.transport = d.transport AND a.started BETWEEN o.since AND o.until"""

_ALIKE = f"""SELECT d.id FROM {{o: id bigint, since timestamptz, until timestamptz}}
  JOIN notify_delivery d ON d.id = o.id
  WHERE EXISTS (SELECT 1 FROM notify_delivery x WHERE x.state IN ('ambiguous', 'sending')
      AND x.fingerprint = d.fingerprint AND x.transport = d.transport AND x.id <> d.id)
    OR EXISTS ({_BESIDE % "x.doubt_since IS NOT NULL AND x.fingerprint = d.fingerprint"})
    OR EXISTS ({_BESIDE % "x.recipient_id = d.recipient_id AND x.channel = d.channel"})"""


def alike(tx: Tx, found: Sequence[tuple[int, datetime, datetime]]) -> set[int]:
    """Of these (delivery, since, until), those beside which another of unknown outcome went to the same address, or one
    between these instants whatever became of it later: one message may be either of the two."""
    return {row[0] for row in tx.execute(_ALIKE, o=sorted(found))} if found else set()


# -- receipts whose deadline has passed -----------------------------------------------------------------------------

_LONG_DUE = """FROM notify_work w JOIN notify_delivery d ON d.id = w.delivery_id
  WHERE w.step = 'check' AND w.lane = :lane AND w.region = :region AND w.eligible_at <= :now
    AND COALESCE(d.receipts_from, d.accepted_at) <= :before"""

_OVERDUE = f"""SELECT w.delivery_id, w.eligible_at, w.owner {_LONG_DUE}
    AND COALESCE(d.transport, '') IN (SELECT t.name FROM {{t: name text}})
  ORDER BY w.eligible_at, w.delivery_id LIMIT :limit {{lock of w skip}}"""

_LOAD_CHECKS = """SELECT d.id, d.event_id, d.transport, w.fencing_token, o.was_eligible_at, o.was_owner
  FROM {o: id bigint, was_eligible_at timestamptz, was_owner text} JOIN notify_work w ON w.delivery_id = o.id
  JOIN notify_delivery d ON d.id = o.id ORDER BY d.id"""


def claim_overdue(
    ledger: Ledger, *, run: str, lane: str, region: str, limit: int, lease: float, transports: Sequence[str],
    older_than: float,
) -> list[Check]:  # fmt: skip
    """Own up to `limit` checks of these transports whose receipts have been waited for longer than so many seconds."""
    rows = own(
        ledger, _OVERDUE, _LOAD_CHECKS, run=run, lease=lease, lane=lane, region=region, limit=limit,
        older_than=older_than, t=[(name,) for name in transports],
    )  # fmt: skip
    checks = []
    for row in rows:
        was = ledger.dialect.instant(row[4])
        assert was is not None
        checks.append(Check(row[0], row[1], lane, row[2] or "", row[3], was, row[5] is not None, ()))
    return checks


_CHECKED_BY = f"SELECT DISTINCT COALESCE(d.transport, '') {_LONG_DUE}"


def overdue_transports(tx: Tx, *, lane: str, region: str, older_than: float) -> list[str]:
    """The transports that due checks older than so many seconds were sent through; "" stands for none."""
    before = tx.now - timedelta(seconds=older_than)
    return sorted(row[0] for row in tx.execute(_CHECKED_BY, lane=lane, region=region, before=before))


_COUNT_OVERDUE = f"SELECT count(*) {_LONG_DUE} AND COALESCE(d.transport, '') = :transport"


def overdue(tx: Tx, *, lane: str, region: str, transport: str, older_than: float) -> int:
    """How many checks `claim_overdue` would take, leases and limits aside."""
    before = tx.now - timedelta(seconds=older_than)
    return int(tx.execute(_COUNT_OVERDUE, lane=lane, region=region, transport=transport, before=before)[0][0])


# -- expired sends ----------------------------------------------------------------------------------------------

# Unowned, or its owner's lease has passed; claimed rows are their owner's to judge. Also behind closed gates. CROSS
# JOIN: from the few live deliveries that have expired, never from the backlog.
_GONE_BY = """FROM notify_delivery d CROSS JOIN notify_work w
  WHERE w.delivery_id = d.id AND d.expires_at <= :now AND d.expires_at IS NOT NULL AND d.accepted_at IS NULL
    AND d.settled_at IS NULL
    AND d.doubt_since IS NULL AND w.step = 'send' AND (w.owner IS NULL OR w.eligible_at <= :now)
    AND EXISTS (SELECT 1 FROM {p: lane text, region text} WHERE p.lane = w.lane AND p.region = w.region)"""

_EXPIRED = f"""SELECT w.delivery_id {_GONE_BY}
  ORDER BY w.delivery_id LIMIT :limit {{lock of w skip}}"""

_SEND = """SELECT d.id, d.lane, d.channel, d.state, d.attempts_used, w.tries, d.due_at, w.eligible_at, d.expires_at,
    d.first_tried_at, w.fencing_token
  FROM {o: id bigint} JOIN notify_delivery d ON d.id = o.id JOIN notify_work w ON w.delivery_id = d.id
  ORDER BY d.id {lock of d}"""


@dataclass(frozen=True, slots=True)
class Expired:
    """One unowned send whose expiry has passed."""

    id: int
    lane: str
    channel: Channel
    token: int
    facts: Facts


def expired(tx: Tx, *, pairs: Pairs, limit: int) -> list[Expired]:
    """Up to `limit` unowned sends of these lanes that are not worth sending any more; their rows are locked."""
    chosen = tx.execute(_EXPIRED, p=list(pairs), limit=limit)
    if not chosen:
        return []
    at = tx.dialect.instant
    return [
        Expired(row[0], row[1], Channel(row[2]), row[10], Facts(
            state=State(row[3]), step=Step.SEND, owned=False, used=row[4], tries=row[5], due_at=at(row[6]),
            eligible_at=at(row[7]), expires_at=at(row[8]), first_tried_at=at(row[9]),
        ))
        for row in tx.execute(_SEND, o=chosen)
    ]  # fmt: skip


def expire(tx: Tx, moves: Sequence[tuple[Expired, Transition]], *, actor: str) -> None:
    """Settle them; whoever may still own one finds its token gone."""
    record.apply(
        tx, [Move(one.id, one.token + 1, one.facts.state or State.QUEUED, to) for one, to in moves], actor=actor
    )


# -- a lost region, and rows that nobody claims -----------------------------------------------------------------------

_OF_REGION = """SELECT w.delivery_id FROM notify_work w WHERE w.region = :lost
  ORDER BY w.delivery_id LIMIT :limit {lock of w skip}"""

_TAKE_OVER = """UPDATE notify_work SET region = :region, owner = NULL, fencing_token = fencing_token + 1
  WHERE delivery_id IN (SELECT id FROM {o: id bigint})"""

_MOVE = "UPDATE notify_delivery SET region = :region, updated_at = :now WHERE id IN (SELECT id FROM {o: id bigint})"

_TRAIL = """INSERT INTO notify_transition (delivery_id, at, "from", "to", reason, actor, note)
  SELECT d.id, :now, d.state, d.state, 'taken_over', :run, :note
  FROM {o: id bigint} JOIN notify_delivery d ON d.id = o.id ORDER BY d.id"""


def take_over(tx: Tx, *, lost: str, region: str, run: str, limit: int) -> int:
    """Make up to `limit` work rows of the lost region this one's: ownership ends, times and states stay as they are."""
    chosen = tx.execute(_OF_REGION, lost=lost, limit=limit)
    if chosen:
        tx.execute(_TAKE_OVER, o=chosen, region=region)
        tx.execute(_MOVE, o=chosen, region=region)
        tx.execute(_TRAIL, o=chosen, run=run, note=f"region {lost or '(none)'} to {region or '(none)'}")
    return len(chosen)


_PLACES = "SELECT w.lane, w.region, count(*), min(w.eligible_at) FROM notify_work w GROUP BY w.lane, w.region"

# Whoever is at it owns rows until some time ahead; asked of suspicious places only, as the index has no owner.
_AT_IT = """SELECT DISTINCT p.lane, p.region FROM {p: lane text, region text} CROSS JOIN notify_work w
  WHERE w.step IN ('send', 'check', 'resolve') AND w.lane = p.lane AND w.region = p.region AND w.eligible_at > :now
    AND w.owner IS NOT NULL"""


def unclaimed(tx: Tx, *, lanes: Collection[str], region: str) -> list[tuple[str, str, int]]:
    """(lane, region, rows) of work that nobody seems to claim: of no configured lane, or of another region, where it
    has been due for `STRANDED` and nobody is at any of it."""
    lost, late = {}, {}
    for lane, home, count, oldest in tx.execute(_PLACES):
        due = tx.dialect.instant(oldest)
        if lane not in lanes:
            lost[lane, home] = count
        elif home != region and due is not None and due < tx.now - STRANDED:
            late[lane, home] = count
    if late:
        for lane, home in tx.execute(_AT_IT, p=sorted(late)):
            del late[lane, home]
    return [(*place, count) for place, count in sorted({**lost, **late}.items())]


# -- what is due, for --dry-run ---------------------------------------------------------------------------------------

_DUE_DOUBT = """SELECT count(*) FROM {p: lane text, region text} CROSS JOIN notify_work w
  JOIN notify_delivery d ON d.id = w.delivery_id
  WHERE w.step = 'resolve' AND w.lane = p.lane AND w.region = p.region AND w.eligible_at <= :now AND d.state = :state"""

_DUE_EXPIRY = f"SELECT count(*) {_GONE_BY}"


def due(tx: Tx, pairs: Pairs) -> dict[Trigger, int]:
    """How many deliveries a run would decide about, by what would be decided; nothing is locked or written."""
    lapsed = tx.execute(_DUE_DOUBT, p=list(pairs), state=State.SENDING)[0][0]
    doubt = tx.execute(_DUE_DOUBT, p=list(pairs), state=State.AMBIGUOUS)[0][0]
    gone = tx.execute(_DUE_EXPIRY, p=list(pairs))[0][0]
    return {Trigger.LAPSE: lapsed, Trigger.CANNOT_TELL: doubt, Trigger.EXPIRY_SWEEP: gone}


_OF_REGION_COUNT = "SELECT count(*) FROM notify_work w WHERE w.region = :lost"


def in_region(tx: Tx, lost: str) -> int:
    """How many rows a take-over would move."""
    return int(tx.execute(_OF_REGION_COUNT, lost=lost)[0][0])
