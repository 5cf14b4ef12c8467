"""Claim, renew, release: time-limited ownership of work rows. Nothing is sent and no state changes here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from notifyctl.failpoints import reach
from notifyctl.ledger.database import Ledger, Tx, ids
from notifyctl.ledger.dialect import SQLITE, Dialect
from notifyctl.model import Attachment, Channel, Delivery, Mandate, State, Step

# The newest suppression of the pair that is in force and concerns this address. `{fingerprint}` is an expression.
SUPPRESSION = """(SELECT s.reason FROM notify_suppression s
  WHERE s.recipient_id = d.recipient_id AND s.channel = d.channel AND NOT s.lifted
    AND s.id > COALESCE((SELECT max(l.id) FROM notify_suppression l
                         WHERE l.recipient_id = d.recipient_id AND l.channel = d.channel AND l.lifted), 0)
    AND (s.reason NOT IN ('invalid_recipient', 'hard_bounce') OR s.fingerprint IS NULL
         OR s.fingerprint = %s)
  ORDER BY s.id DESC LIMIT 1)"""

CONSENT = """(SELECT c.granted FROM notify_consent c
  WHERE c.recipient_id = d.recipient_id AND c.channel = d.channel AND c.topic = d.topic ORDER BY c.id DESC LIMIT 1)"""

_PICK = """SELECT w.delivery_id, w.eligible_at AS was_eligible_at, w.owner AS was_owner
  FROM notify_work w
  WHERE w.step = :step AND w.lane = :lane AND w.region = :region AND w.eligible_at <= :now
    AND (w.eligible_at, w.delivery_id) > (:after_at, :after_id)
  ORDER BY w.eligible_at, w.delivery_id LIMIT :limit {lock of w skip}"""

_COLUMNS = """d.id, d.event_id, d.recipient_id, d.channel, d.lane, d.region, d.topic, d.template, d.template_version,
  d.locale, d.variables, d.attachments, d.destination, d.due_at, d.expires_at, d.content_digest, d.idempotency_key,
  d.state, d.attempts_used, d.first_tried_at, d.doubt_since, d.accepted_at, d.endpoint_id, d.fingerprint,
  d.transport, d.sender, d.message_date"""

_LOADED = f"""{_COLUMNS}, t.fencing_token, t.tries, t.mandate, t.was_eligible_at, t.was_owner,
  e.id, e.address, {CONSENT}, {SUPPRESSION % "d.fingerprint"},
  CASE WHEN d.doubt_since IS NULL THEN NULL ELSE
    (SELECT a.request_digest FROM notify_attempt a WHERE a.delivery_id = d.id
       AND (a.outcome IS NULL OR a.outcome = 'ambiguous') ORDER BY a.number LIMIT 1) END
  FROM {{taken}} t JOIN notify_delivery d ON d.id = t.delivery_id
  LEFT JOIN notify_endpoint e ON e.id = (SELECT max(n.id) FROM notify_endpoint n
    WHERE n.recipient_id = d.recipient_id AND n.channel = d.channel)
  ORDER BY t.was_eligible_at, d.id"""

# MATERIALIZED: an inlined subquery with LIMIT and SKIP LOCKED may be run again and take more than its limit.
_CLAIM_POSTGRES = f"""WITH pick AS MATERIALIZED ({_PICK}),
  taken AS (UPDATE notify_work w SET owner = :run, fencing_token = w.fencing_token + 1, eligible_at = :until
    FROM pick WHERE w.delivery_id = pick.delivery_id
    RETURNING w.delivery_id, w.fencing_token, w.tries, w.mandate, pick.was_eligible_at, pick.was_owner)
  SELECT {_LOADED.replace("{taken}", "taken")}"""

TAKE = """UPDATE notify_work SET owner = :run, fencing_token = fencing_token + 1, eligible_at = :until
  WHERE delivery_id IN (SELECT id FROM {o: id bigint})"""

_LOAD_SQLITE = f"""WITH taken AS (SELECT w.delivery_id, w.fencing_token, w.tries, w.mandate,
    o.was_eligible_at, o.was_owner FROM {{o: id bigint, was_eligible_at timestamptz, was_owner text}}
    JOIN notify_work w ON w.delivery_id = o.id)
  SELECT {_LOADED.replace("{taken}", "taken")}"""


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a run's last claim of a lane ended: the next starts there and not at the dead rows before it."""

    at: datetime = datetime(1, 1, 1, tzinfo=UTC)
    id: int = 0


def claim(
    ledger: Ledger, *, run: str, step: Step, lane: str, region: str, limit: int, lease: float, after: Cursor,
    meanwhile: Callable[[], bool] | None = None,
) -> tuple[list[Delivery], Cursor]:
    """Own up to `limit` eligible rows of one step and lane for `lease` seconds; `meanwhile`: see `Ledger.transact`.

    Returns them in the order they became eligible, and where the next claim starts.
    """

    def work(tx: Tx) -> list[Any]:
        reach("claim.begun")
        parameters: dict[str, Any] = {
            "step": step, "lane": lane, "region": region, "limit": limit,
            "after_at": after.at, "after_id": after.id,
        }  # fmt: skip
        until = tx.now + timedelta(seconds=lease)
        if tx.dialect is not SQLITE:
            rows = tx.execute(_CLAIM_POSTGRES, run=run, until=until, **parameters)
            reach("claim.taken")
            return rows
        picked = tx.execute(_PICK, **parameters)
        if not picked:
            return []
        tx.execute(TAKE, o=[(row[0],) for row in picked], run=run, until=until)
        reach("claim.taken")
        return tx.execute(_LOAD_SQLITE, o=picked)

    taken = [_delivery(row, ledger.dialect) for row in ledger.transact(work, meanwhile)]
    reach("claim.committed")
    if not taken:
        return taken, after
    last = taken[-1]
    return taken, Cursor(last.was_eligible_at or after.at, last.id)


def own(
    ledger: Ledger, pick: str, load: str, *, run: str, lease: float, older_than: float | None = None, **parameters: Any
) -> list[Any]:  # fmt: skip
    """Own the rows that `pick` names (delivery, eligible_at, owner) for `lease` seconds; what `load` reads of them.

    `older_than`: what `pick` calls `:before` is so many seconds ago.
    """

    def work(tx: Tx) -> list[Any]:
        before = {} if older_than is None else {"before": tx.now - timedelta(seconds=older_than)}
        picked = tx.execute(pick, **before, **parameters)
        if not picked:
            return []
        tx.execute(TAKE, o=ids(row[0] for row in picked), run=run, until=tx.now + timedelta(seconds=lease))
        return tx.execute(load, o=picked)

    return ledger.transact(work)


def _delivery(row: Sequence[Any], dialect: Dialect) -> Delivery:
    at = dialect.instant
    due_at = at(row[13])
    assert due_at is not None
    variables, defect = dialect.document(row[10]), ""
    files: tuple[Attachment, ...] = ()
    try:
        files = () if row[11] == "[]" else attachments(dialect.document(row[11]))
        defect = "" if isinstance(variables, dict) else "variables_unreadable"
    except (TypeError, KeyError, AttributeError):  # stored by plain SQL: it must not stop the rows beside it
        defect = "attachments_unreadable"
    return Delivery(
        id=row[0], event_id=row[1], recipient_id=row[2], channel=Channel(row[3]), lane=row[4], region=row[5],
        topic=row[6], template=row[7], template_version=row[8], locale=row[9], variables=variables or {},
        attachments=files, defect=defect, destination=row[12],
        due_at=due_at, expires_at=at(row[14]),
        content_digest=row[15], idempotency_key=row[16], state=State(row[17]), attempts_used=row[18],
        first_tried_at=at(row[19]), doubt_since=at(row[20]), accepted_at=at(row[21]), endpoint_id=row[22],
        fingerprint=row[23], transport=row[24], sender=row[25], message_date=at(row[26]), token=row[27],
        tries=row[28], mandate=Mandate(row[29]) if row[29] else None, was_eligible_at=at(row[30]),
        recovered=row[31] is not None, current_endpoint_id=row[32], address=row[33],
        consent=None if row[34] is None else bool(row[34]), suppression=row[35], doubtful_digest=row[36],
    )  # fmt: skip


def readable_attachments(documents: Any) -> tuple[Attachment, ...] | None:
    """The same, None where plain SQL stored something else."""
    try:
        return attachments(documents)
    except (TypeError, KeyError, AttributeError):
        return None


def attachments(documents: Sequence[Mapping[str, Any]]) -> tuple[Attachment, ...]:
    """The attachments column as values."""
    return tuple(
        Attachment(a["key"], a.get("sha256") or "", a.get("filename") or "", a.get("content_type") or "")
        for a in documents
    )


_RENEW = """UPDATE notify_work SET eligible_at = :until
  WHERE delivery_id IN (SELECT w.delivery_id FROM {o: id bigint, token bigint} JOIN notify_work w
      ON w.delivery_id = o.id AND w.fencing_token = o.token
    WHERE w.owner = :run AND w.eligible_at > :now ORDER BY w.delivery_id {lock of w skip})
  RETURNING delivery_id"""


def renew(ledger: Ledger, *, run: str, owned: Mapping[int, int], lease: float) -> set[int]:
    """Prolong the lease of claimed rows (delivery id → token). Returns the ids that are still owned.

    A row whose lease has already passed is not renewed: somebody else may be about to take it.
    """

    def work(tx: Tx) -> set[int]:
        until = tx.now + timedelta(seconds=lease)
        kept = {row[0] for row in tx.execute(_RENEW, o=sorted(owned.items()), run=run, until=until)}
        reach("renew.done")
        return kept

    kept = ledger.transact(work) if owned else set()
    reach("renew.committed")
    return kept


_RELEASE = """UPDATE notify_work SET owner = NULL, eligible_at = r.eligible_at
  FROM (SELECT w.delivery_id, o.eligible_at
      FROM {o: id bigint, token bigint, eligible_at timestamptz} JOIN notify_work w
        ON w.delivery_id = o.id AND w.fencing_token = o.token
      WHERE w.owner = :run AND w.step <> 'resolve' ORDER BY w.delivery_id {lock of w skip}) AS r
  WHERE notify_work.delivery_id = r.delivery_id RETURNING notify_work.delivery_id"""


def release(tx: Tx, *, run: str, rows: Sequence[tuple[int, int, datetime]]) -> set[int]:
    """Give claimed, unbegun rows back (id, token, eligible again at): unattempted, nothing charged.

    One that somebody else has locked is left to its lease: what this transaction records must not wait for it.
    """
    if not rows:
        return set()
    released = {row[0] for row in tx.execute(_RELEASE, o=sorted(rows), run=run)}
    reach("release.done")
    return released


def release_run(ledger: Ledger, *, run: str, step: Step, pairs: Sequence[tuple[str, str]]) -> int:
    """Give back whatever this run still owns, also rows of a claim whose COMMIT reply was lost."""

    def work(tx: Tx) -> int:
        return len(
            tx.execute(
                """UPDATE notify_work SET owner = NULL, eligible_at = :now
                WHERE delivery_id IN (SELECT w.delivery_id FROM {o: lane text, region text} JOIN notify_work w
                    ON w.step = :step AND w.lane = o.lane AND w.region = o.region
                  WHERE w.owner = :run ORDER BY w.delivery_id {lock of w}) RETURNING delivery_id""",
                o=list(pairs), step=step, run=run,
            )
        )  # fmt: skip

    return ledger.transact(work)
