"""Receipts: which checks and feeds are due, whom they concern, and what was said, for a whole page at once.

A check is a work row of step `check`, claimed under a lease as any other. A feed or a mailbox is one row of
notify_cursor, claimed the same way: its cursor moves in the transaction that keeps its receipts, fenced by (owner,
token), so a page counts once whoever reads it and wherever the reader is killed. What is said twice is kept once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from notifyctl.ledger.claim import Cursor, own
from notifyctl.ledger.database import Ledger, Tx, ids
from notifyctl.lifecycle import Facts
from notifyctl.model import Channel, Mandate, Receipt, ReceiptStatus, State, Step

# -- due checks -------------------------------------------------------------------------------------------------

_PICK = """SELECT w.delivery_id, w.eligible_at, w.owner
  FROM notify_work w JOIN notify_delivery d ON d.id = w.delivery_id
  WHERE w.step = 'check' AND w.lane = :lane AND w.region = :region AND w.eligible_at <= :now
    AND (w.eligible_at, w.delivery_id) > (:after_at, :after_id)
    AND COALESCE(d.transport, '') {which} (SELECT t.name FROM {t: name text})
  ORDER BY w.eligible_at, w.delivery_id LIMIT :limit {lock of w skip}"""

# The ids of all parts stand with the attempt that was accepted.
_PARTS = """(SELECT a.remote_ids FROM notify_attempt a WHERE a.delivery_id = d.id AND a.outcome = 'accepted'
    AND a.remote_id = d.remote_id AND a.remote_ids IS NOT NULL ORDER BY a.number LIMIT 1)"""

_LOAD = f"""SELECT d.id, d.event_id, d.transport, w.fencing_token, o.was_eligible_at, o.was_owner, d.remote_id, {_PARTS}
  FROM {{o: id bigint, was_eligible_at timestamptz, was_owner text}} JOIN notify_work w ON w.delivery_id = o.id
  JOIN notify_delivery d ON d.id = o.id ORDER BY o.was_eligible_at, d.id"""


@dataclass(frozen=True, slots=True)
class Check:
    """One claimed delivery whose receipt is due; `recovered`: taken over from an owner whose lease had passed.

    `remote_ids` are those of its parts, in their order; empty where the provider gave none.
    """

    id: int
    event_id: str
    lane: str
    transport: str
    token: int
    was_eligible_at: datetime
    recovered: bool
    remote_ids: tuple[str, ...]


def claim_checks(
    ledger: Ledger, *, run: str, lane: str, region: str, limit: int, lease: float, after: Cursor,
    only: Sequence[str] | None, but: Iterable[str] = (),
) -> tuple[list[Check], Cursor]:  # fmt: skip
    """Own up to `limit` due checks of a lane: those of the transports `only` (None: of all) `but` these.

    Returns them in the order they became due, and where the next claim starts.
    """
    refused = set(but)
    names = sorted(refused if only is None else set(only) - refused)
    pick = _PICK.replace("{which}", "NOT IN" if only is None else "IN")
    rows = own(
        ledger, pick, _LOAD, run=run, lease=lease, lane=lane, region=region, limit=limit, after_at=after.at,
        after_id=after.id, t=[(name,) for name in names],
    )  # fmt: skip
    at, document = ledger.dialect.instant, ledger.dialect.document
    checks = []
    for row in rows:
        was = at(row[4])
        assert was is not None
        parts = document(row[7])
        remote = tuple(str(one) for one in parts) if isinstance(parts, list) else ()
        checks.append(
            Check(row[0], row[1], lane, row[2] or "", row[3], was, row[5] is not None,
                  remote or ((row[6],) if row[6] else ()))
        )  # fmt: skip
    return checks, Cursor(checks[-1].was_eligible_at, checks[-1].id) if checks else after


# -- feeds and mailboxes ------------------------------------------------------------------------------------------

_DUE = """SELECT o.name, c.owner, c.transport IS NULL OR c.eligible_at <= :now
  FROM {o: name text} LEFT JOIN notify_cursor c ON c.transport = o.name ORDER BY o.name"""

_KNOW = """INSERT INTO notify_cursor (transport, eligible_at) SELECT o.name, :now FROM {o: name text} WHERE true
  ON CONFLICT DO NOTHING"""

_READ = """UPDATE notify_cursor SET owner = :run, fencing_token = fencing_token + 1, eligible_at = o.until, at = :now
  FROM {o: name text, until timestamptz} WHERE notify_cursor.transport = o.name AND notify_cursor.eligible_at <= :now
  RETURNING notify_cursor.transport, notify_cursor.cursor, notify_cursor.fencing_token"""

_ADVANCE = """UPDATE notify_cursor SET cursor = o.cursor, eligible_at = o.eligible_at, at = :now,
    owner = CASE WHEN o.done THEN NULL ELSE notify_cursor.owner END
  FROM {o: name text, cursor text, token bigint, eligible_at timestamptz, done boolean}
  WHERE notify_cursor.transport = o.name AND notify_cursor.owner = :run AND notify_cursor.fencing_token = o.token
  RETURNING notify_cursor.transport"""


@dataclass(frozen=True, slots=True)
class Feed:
    """A feed that this run reads, from `cursor` on; `token` fences its writes."""

    transport: str
    cursor: str
    token: int


@dataclass(frozen=True, slots=True)
class Advance:
    """Where a feed now stands, and until when it is ours (`done`: when it is to be read next, by anybody)."""

    feed: Feed
    cursor: str
    wait: float  # seconds
    done: bool


def due_feeds(tx: Tx, names: Iterable[str]) -> tuple[dict[str, bool], set[str]]:
    """Which of these transports' feeds are to be read now, and whether somebody left the last reading unfinished;
    and which of them somebody is reading."""
    rows = tx.execute(_DUE, o=[(name,) for name in sorted(names)])
    return {name: owner is not None for name, owner, due in rows if due}, {
        name for name, owner, due in rows if owner is not None and not due
    }


def claim_feeds(tx: Tx, leases: Mapping[str, float], *, run: str) -> list[Feed]:
    """Own those of these feeds (name → seconds) that are due: nobody else reads them meanwhile."""
    tx.execute(_KNOW, o=[(name,) for name in sorted(leases)])
    until = [(name, tx.now + timedelta(seconds=lease)) for name, lease in sorted(leases.items())]
    return [Feed(*row) for row in tx.execute(_READ, o=until, run=run)]


def advance(tx: Tx, moved: Sequence[Advance], *, run: str) -> set[str]:
    """Move the cursors of feeds that are still ours, and say which those are; the others' pages are not to count."""
    rows = [
        (m.feed.transport, m.cursor, m.feed.token, tx.now + timedelta(seconds=m.wait), m.done)
        for m in sorted(moved, key=lambda m: m.feed.transport)
    ]
    return {row[0] for row in tx.execute(_ADVANCE, o=rows, run=run)} if rows else set()


# -- whom a receipt concerns --------------------------------------------------------------------------------------

_BY_KEY = """SELECT o.n, d.id FROM {o: n bigint, key text} JOIN notify_delivery d ON d.wire_key = o.key"""

_BY_ID = """SELECT o.n, d.id FROM {o: n bigint, remote_id text} JOIN notify_delivery d ON d.remote_id = o.remote_id
  WHERE d.transport = :transport"""


def match(tx: Tx, transport: str, said: Sequence[Receipt]) -> list[int | None]:
    """The delivery that each of these receipts is of: by our own key, else by the transport's remote id.

    None: there is no such delivery here, or several share the id and nothing tells which is meant.
    """
    found: dict[int, set[int]] = {}
    by_key = [(n, one.key) for n, one in enumerate(said) if one.key]
    by_id = [(n, one.remote_id) for n, one in enumerate(said) if one.remote_id and not one.key]
    rows = tx.execute(_BY_KEY, o=by_key) if by_key else []
    rows += tx.execute(_BY_ID, o=by_id, transport=transport) if by_id else []
    for n, delivery in rows:
        found.setdefault(n, set()).add(delivery)
    return [next(iter(one)) if len(one := found.get(n, set())) == 1 else None for n in range(len(said))]


# -- what is known of those deliveries ------------------------------------------------------------------------------

_LOCK = """SELECT w.delivery_id FROM {o: id bigint} JOIN notify_work w ON w.delivery_id = o.id
  ORDER BY w.delivery_id {lock of w}"""

_KNOWN = f"""SELECT d.id, d.event_id, d.lane, d.channel, d.transport, d.state, w.step, w.owner, d.attempts_used,
    COALESCE(w.tries, 0), d.due_at, w.eligible_at, d.expires_at, d.first_tried_at, d.doubt_since, d.accepted_at,
    w.mandate, COALESCE(w.fencing_token, d.fencing_token), d.receipts_from, d.reason, d.remote_id, d.fingerprint,
    CASE WHEN d.accepted_at IS NULL THEN COALESCE(
      (SELECT max(a.number) FROM notify_attempt a WHERE a.delivery_id = d.id AND a.outcome = 'ambiguous'),
      (SELECT max(a.number) FROM notify_attempt a WHERE a.delivery_id = d.id AND a.outcome IS NULL)) END, {_PARTS}
  FROM {{o: id bigint}} JOIN notify_delivery d ON d.id = o.id LEFT JOIN notify_work w ON w.delivery_id = d.id
  ORDER BY d.id {{lock of d}}"""

_HEARD = """SELECT r.delivery_id, r.status, r.remote_id, r.reason, r.code, r.provider_time, r.part
  FROM {o: id bigint} JOIN notify_receipt r ON r.delivery_id = o.id ORDER BY r.id"""


@dataclass(frozen=True, slots=True)
class Known:
    """One delivery under lock, with what has been said of it before, oldest first.

    `facts.owned`: this run holds its work row under the token it claimed it with. `parts`: receipts it needs to be
    delivered as a whole. `doubtful`: its last attempt of unknown outcome, while it is not accepted.
    """

    id: int
    event_id: str
    lane: str
    channel: Channel
    transport: str
    token: int
    facts: Facts
    reason: str
    remote_id: str | None
    fingerprint: str | None
    doubtful: int | None
    parts: int
    heard: tuple[Receipt, ...]


def known(tx: Tx, wanted: Iterable[int], *, run: str, tokens: Mapping[int, int]) -> dict[int, Known]:
    """Lock these deliveries and say what is known of them; `tokens`: those that this run claimed."""
    chosen = ids(set(wanted))
    if not chosen:
        return {}
    tx.execute(_LOCK, o=chosen)
    at = tx.dialect.instant
    rows = tx.execute(_KNOWN, o=chosen)
    heard: dict[int, list[Receipt]] = {}
    for delivery, status, remote_id, reason, code, provider_time, part in tx.execute(_HEARD, o=chosen):
        if status in _STATUSES:
            one = Receipt(ReceiptStatus(status), remote_id or "", reason, code, at(provider_time), part)
            heard.setdefault(delivery, []).append(one)
    found = {}
    for row in rows:
        owned = row[7] == run and tokens.get(row[0]) == row[17]
        facts = Facts(
            state=State(row[5]), step=Step(row[6]) if row[6] else None, owned=owned, used=row[8], tries=row[9],
            due_at=at(row[10]), eligible_at=at(row[11]), expires_at=at(row[12]), first_tried_at=at(row[13]),
            doubt_since=at(row[14]), accepted_at=at(row[15]), mandate=Mandate(row[16]) if row[16] else None,
            receipts_from=at(row[18]), outsider=not owned, verified=True,
        )  # fmt: skip
        parts = tx.dialect.document(row[23])
        found[row[0]] = Known(
            id=row[0], event_id=row[1], lane=row[2], channel=Channel(row[3]), transport=row[4] or "", token=row[17],
            facts=facts, reason=row[19], remote_id=row[20], fingerprint=row[21], doubtful=row[22],
            parts=len(parts) if isinstance(parts, list) and parts else 1, heard=tuple(heard.get(row[0], ())),
        )  # fmt: skip
    return found


_STATUSES = frozenset(ReceiptStatus)

# -- what was said ------------------------------------------------------------------------------------------------

_KEEP = """INSERT INTO notify_receipt (delivery_id, at, provider_time, remote_id, part, status, reason, code)
  SELECT r.id, :now, r.provider_time, r.remote_id, r.part, r.status, r.reason, r.code
  FROM {r: id bigint, provider_time timestamptz, remote_id text, part bigint, status text, reason text, code text}
  WHERE true ON CONFLICT DO NOTHING"""

_ACCEPTED = """UPDATE notify_attempt SET outcome = 'accepted', reason = 'receipt', finished = COALESCE(finished, :now),
    remote_id = COALESCE(a.remote_id, notify_attempt.remote_id)
  FROM {a: id bigint, number bigint, remote_id text}
  WHERE notify_attempt.delivery_id = a.id AND notify_attempt.number = a.number
    AND (notify_attempt.outcome IS NULL OR notify_attempt.outcome = 'ambiguous')"""

# Soft failures of an address in a row, this one's included: since anything else got through, or a person lifted.
_RUNS = """SELECT o.id, count(DISTINCT p.id) FROM {o: id bigint} JOIN notify_delivery d ON d.id = o.id
  JOIN notify_delivery p ON p.recipient_id = d.recipient_id AND p.channel = d.channel
    AND p.fingerprint = d.fingerprint AND p.id <= d.id
  JOIN notify_receipt r ON r.delivery_id = p.id AND r.status = 'soft_failure'
  WHERE p.id > COALESCE((SELECT max(q.id) FROM notify_delivery q
      WHERE q.recipient_id = d.recipient_id AND q.channel = d.channel AND q.fingerprint = d.fingerprint AND q.id < d.id
        AND (q.state = 'delivered' OR (q.state = 'accepted' AND q.settled_at IS NOT NULL))), 0)
    AND NOT EXISTS (SELECT 1 FROM notify_suppression l WHERE l.recipient_id = d.recipient_id
      AND l.channel = d.channel AND l.lifted AND l.at >= r.at)
  GROUP BY o.id"""


def keep(tx: Tx, said: Iterable[tuple[int, Receipt]]) -> None:
    """Keep what was said of these deliveries; what is there already is not kept again."""
    rows = [
        (delivery, one.provider_time, one.remote_id or None, one.part, one.status, one.reason, one.code)
        for delivery, one in said
    ]
    if rows:
        tx.execute(_KEEP, r=rows)


def attempts_accepted(tx: Tx, accepted: Sequence[tuple[int, int, str | None]]) -> None:
    """A receipt proved that these attempts (delivery, number, remote id) were accepted."""
    if accepted:
        tx.execute(_ACCEPTED, a=sorted(accepted))


def soft_runs(tx: Tx, deliveries: Iterable[int]) -> dict[int, int]:
    """How many deliveries in a row, up to each of these, failed softly at the same address of the same recipient."""
    chosen = ids(set(deliveries))
    return dict(tx.execute(_RUNS, o=chosen)) if chosen else {}
