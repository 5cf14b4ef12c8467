"""Enqueue a page of intents in one transaction: insert what is new, say of the rest what it is.

At most one delivery exists per (event, recipient, channel). Suppressed pairs and revoked consent are decided by the
insert triggers, which serve every writer alike; a topic that requires consent is decided here, because SQL alone does
not know the configuration.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from notifyctl.ledger.claim import readable_attachments
from notifyctl.ledger.database import Tx
from notifyctl.model import Channel, Intent


@dataclass(frozen=True, slots=True)
class Entry:
    """One validated intent with what the ledger stores beside it; `consent_required`: its topic demands a grant."""

    intent: Intent
    content_digest: str
    fingerprint: str | None
    consent_required: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one entry: `kind` is enqueued, duplicate, conflict, suppressed or rejected."""

    kind: str
    id: int | None = None
    reason: str = ""
    field: str = ""


_ENDPOINTS = """SELECT DISTINCT o.recipient_id, o.channel FROM {o: recipient_id text, channel text}
  WHERE EXISTS (SELECT 1 FROM notify_endpoint e WHERE e.recipient_id = o.recipient_id AND e.channel = o.channel)"""

_REGISTER = """INSERT INTO notify_endpoint (recipient_id, channel, address, fingerprint, actor, at)
  SELECT o.recipient_id, o.channel, o.address, o.fingerprint, :actor, :now
  FROM {o: recipient_id text, channel text, address text, fingerprint text} WHERE true"""

_CONSENT = """EXISTS (SELECT 1 FROM notify_consent c WHERE c.granted AND c.id = (SELECT max(n.id) FROM notify_consent n
  WHERE n.recipient_id = o.recipient_id AND n.channel = o.channel AND n.topic = o.topic))"""

_INSERT = f"""INSERT INTO notify_delivery (event_id, recipient_id, channel, lane, region, topic, template,
    template_version, locale, variables, attachments, destination, due_at, expires_at, content_digest, fingerprint,
    state, reason, settled_at, created_at, updated_at, sensitive, batch)
  SELECT o.event_id, o.recipient_id, o.channel, o.lane, o.region, o.topic, o.template, o.template_version, o.locale,
    o.variables, o.attachments, o.destination, COALESCE(o.due_at, :now), o.expires_at, o.content_digest,
    COALESCE(o.fingerprint, (SELECT e.fingerprint FROM notify_endpoint e WHERE e.id = (SELECT max(n.id)
      FROM notify_endpoint n WHERE n.recipient_id = o.recipient_id AND n.channel = o.channel))),
    CASE WHEN o.missing THEN 'suppressed' ELSE 'queued' END, CASE WHEN o.missing THEN 'consent_missing' ELSE '' END,
    CASE WHEN o.missing THEN :now END, :now, :now, o.sensitive, :batch
  FROM (SELECT o.*, o.required AND NOT {_CONSENT} AS missing
    FROM {{o: event_id text, recipient_id text, channel text, lane text, region text, topic text, template text,
      template_version text, locale text, variables json, attachments json, destination text,
      due_at timestamptz, expires_at timestamptz, content_digest text, fingerprint text, required boolean,
      sensitive boolean}}) AS o
  WHERE true ON CONFLICT DO NOTHING RETURNING idempotency_key"""

_STORED = """SELECT d.idempotency_key, d.id, d.state, d.reason, d.template, d.template_version, d.locale, d.lane,
    d.region, d.topic, d.variables, d.attachments, d.destination, d.due_at, d.expires_at, d.sensitive, d.content_digest,
    EXISTS (SELECT 1 FROM notify_transition t WHERE t.delivery_id = d.id AND t.reason = 'recipient_erased')
  FROM {o: key text} JOIN notify_delivery d ON d.idempotency_key = o.key"""


def idempotency_key(event_id: str, recipient_id: str, channel: Channel) -> str:
    """The delivery's stable identity, as the database generates it."""
    return f"{len(event_id)}:{event_id}:{recipient_id}:{channel}"


def enqueue(tx: Tx, entries: Sequence[Entry], *, run: str, dry_run: bool = False) -> list[Verdict]:
    """Insert the entries; one verdict for each, in order. `dry_run`: say what would happen, write nothing."""
    keys = [idempotency_key(e.intent.event_id, e.intent.recipient_id, e.intent.channel) for e in entries]
    first: dict[str, int] = {}
    for position, key in enumerate(keys):
        first.setdefault(key, position)
    known = _endpoints(tx, entries)
    unreachable = {
        i for i, e in enumerate(entries)
        if e.intent.destination is None and (e.intent.recipient_id, e.intent.channel) not in known
    }  # fmt: skip
    new = [entries[i] for i in first.values() if i not in unreachable]
    inserted: set[str] = set()
    if not dry_run:
        _register(tx, new, known, run)
        inserted = {row[0] for row in tx.execute(_INSERT, o=[_row(e) for e in new], batch=run)}
    known_rows = stored(tx, list(first))
    verdicts = []
    for position, (key, entry) in enumerate(zip(keys, entries, strict=True)):
        row = known_rows.get(key)
        if row is None and position in unreachable:
            verdicts.append(Verdict("rejected", reason="destination_missing", field="to"))
        elif row is None:  # a key whose delivery was pruned, or a dry run
            verdicts.append(Verdict("enqueued" if dry_run and first[key] == position else "duplicate"))
        elif key in inserted and first[key] == position:
            verdicts.append(Verdict("suppressed" if row[1] == "suppressed" else "enqueued", row[0], row[2]))
        else:
            field = differs(tx, entry.intent, row, entry.content_digest)
            verdicts.append(Verdict("conflict" if field else "duplicate", row[0], "conflict" if field else "", field))
    return verdicts


def _endpoints(tx: Tx, entries: Sequence[Entry]) -> set[tuple[str, str]]:
    pairs = sorted({(e.intent.recipient_id, e.intent.channel) for e in entries})
    return {(row[0], row[1]) for row in tx.execute(_ENDPOINTS, o=list(pairs))}


def _register(tx: Tx, entries: Sequence[Entry], known: set[tuple[str, str]], run: str) -> None:
    """An address given with an intent becomes the recipient's endpoint only if there is none."""
    fresh = {
        (e.intent.recipient_id, e.intent.channel): (e.intent.destination, e.fingerprint)
        for e in reversed(entries)
        if e.intent.destination and (e.intent.recipient_id, e.intent.channel) not in known
    }
    if fresh:
        tx.execute(_REGISTER, o=[(*pair, *address) for pair, address in sorted(fresh.items())], actor=run)


def _row(entry: Entry) -> tuple[Any, ...]:
    i = entry.intent
    return (
        i.event_id, i.recipient_id, i.channel, i.lane or "", i.region or "", i.topic, i.template, i.template_version,
        i.locale, json.dumps(dict(i.variables)), json.dumps(documents(i)), i.destination, i.due_at, i.expires_at,
        entry.content_digest, entry.fingerprint, entry.consent_required, i.sensitive,
    )  # fmt: skip


def documents(intent: Intent) -> list[dict[str, str]]:
    """The attachments column of an intent."""
    return [
        {"key": a.key, "sha256": a.sha256, "filename": a.filename, "content_type": a.content_type}
        for a in intent.attachments
    ]


def stored(tx: Tx, keys: Sequence[str]) -> dict[str, Sequence[Any]]:
    """What the ledger holds under these idempotency keys: id, state, reason, and what `differs` compares."""
    return {row[0]: row[1:] for row in tx.execute(_STORED, o=[(key,) for key in keys])}


def differs(tx: Tx, intent: Intent, row: Sequence[Any], digest: str | None = None) -> str:
    """The first column the caller stated that differs from what is stored; "" if none does.

    `digest`, the intent's own, tells whether its content is the same also when what is stored has been erased; without
    one on both sides, what was erased is not compared.
    """
    at, document = tx.dialect.instant, tx.dialect.document
    held: dict[str, Any] = {
        "template": row[3], "template_version": row[4], "locale": row[5], "lane": row[6], "region": row[7],
        "topic": row[8], "variables": document(row[9]), "attachments": readable_attachments(document(row[10])),
        "destination": row[11], "due_at": at(row[12]), "expires_at": at(row[13]), "sensitive": bool(row[14]),
    }  # fmt: skip
    stated: dict[str, Any] = {name: getattr(intent, name) for name in held}
    stated["variables"] = json.loads(json.dumps(dict(intent.variables)))
    unknown = None in (digest, row[15])
    if (digest == row[15] and not unknown) or (row[16] and unknown):  # also where the content has been erased
        stated |= {name: held[name] for name in ("variables", "attachments", "destination")}
    elif held["sensitive"] and not held["variables"] and unknown:
        stated["variables"] = held["variables"]
    for name, value in held.items():
        if name in intent.stated and _same_time(value) != _same_time(stated[name]):
            return name
    return ""


def _same_time(value: Any) -> Any:
    return value.replace(microsecond=value.microsecond // 1000 * 1000) if isinstance(value, datetime) else value
