"""Recipients: endpoints, suppressions, consent. Append-only, the newest row counts; what is so already is not added.

A "no" settles what waits for that recipient, by the tables' triggers, in the same transaction, whoever adds it. What it
will settle is locked first, in order of id as everybody does, and counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from notifyctl.ledger.database import Tx
from notifyctl.model import FINGERPRINT_REASONS, Channel

Pair = tuple[str, Channel]  # recipient, channel


@dataclass(frozen=True, slots=True)
class Suppression:
    """One "do not contact"; `fingerprint` None: of the recipient's whole channel."""

    recipient_id: str
    channel: Channel
    reason: str
    note: str = ""
    fingerprint: str | None = None


@dataclass(frozen=True, slots=True)
class Consent:
    """A recipient's answer to a topic on a channel."""

    recipient_id: str
    channel: Channel
    topic: str
    granted: bool


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A normalized address on a channel, with its fingerprint."""

    recipient_id: str
    channel: Channel
    address: str = field(repr=False)
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class Changed:
    """Which of the rows said something new (by position), and how many waiting sends that settled."""

    positions: frozenset[int]
    settled: int = 0


# -- what a "no" settles: the same conditions as in the triggers ----------------------------------------------------

_WAITING = """SELECT w.delivery_id
  FROM {o: recipient_id text, channel text, topic text, fingerprint text}
  JOIN notify_delivery d ON d.recipient_id = o.recipient_id AND d.channel = o.channel
    AND d.state IN ('queued', 'temporary_failure')
    AND (o.topic IS NULL OR d.topic = o.topic) AND (o.fingerprint IS NULL OR d.fingerprint = o.fingerprint)
  JOIN notify_work w ON w.delivery_id = d.id AND w.step = 'send' ORDER BY w.delivery_id {lock of w}"""


def _lock_waiting(tx: Tx, rows: Sequence[tuple[str, str, str | None, str | None]]) -> int:
    return len(set(tx.execute(_WAITING, o=list(rows)))) if rows else 0


# -- suppressions ---------------------------------------------------------------------------------------------------

_ACTIVE = """NOT s.lifted AND s.id > COALESCE((SELECT max(l.id) FROM notify_suppression l
  WHERE l.recipient_id = s.recipient_id AND l.channel = s.channel AND l.lifted), 0)"""

_NEW_SUPPRESSION = f"""SELECT o.n FROM {{o: n bigint, recipient_id text, channel text, reason text, fingerprint text}}
  WHERE NOT EXISTS (SELECT 1 FROM notify_suppression s WHERE s.recipient_id = o.recipient_id AND s.channel = o.channel
    AND s.reason = o.reason AND COALESCE(s.fingerprint, '') = COALESCE(o.fingerprint, '') AND {_ACTIVE})"""

_SUPPRESS = """INSERT INTO notify_suppression (recipient_id, channel, reason, fingerprint, lifted, actor, note, at)
  SELECT o.recipient_id, o.channel, o.reason, o.fingerprint, o.lifted, :actor, o.note, :now
  FROM {o: recipient_id text, channel text, reason text, fingerprint text, lifted boolean, note text} WHERE true"""


def suppress(tx: Tx, rows: Sequence[Suppression], *, actor: str, dry_run: bool = False) -> Changed:
    """Add those that are not in force yet."""
    asked = [(n, r.recipient_id, r.channel, r.reason, r.fingerprint) for n, r in enumerate(rows)]
    new = _first(tx.execute(_NEW_SUPPRESSION, o=asked), [row[1:] for row in asked])
    settled = _lock_waiting(
        tx,
        [
            (r.recipient_id, r.channel, None, r.fingerprint if r.reason in FINGERPRINT_REASONS else None)
            for r in (rows[n] for n in new)
        ],
    )
    if new and not dry_run:
        chosen = [rows[n] for n in new]
        values = [(r.recipient_id, r.channel, r.reason, r.fingerprint, False, r.note) for r in chosen]
        tx.execute(_SUPPRESS, o=values, actor=actor)
    return Changed(frozenset(new), settled)


_IN_FORCE = f"""SELECT o.n FROM {{o: n bigint, recipient_id text, channel text}}
  WHERE EXISTS (SELECT 1 FROM notify_suppression s
    WHERE s.recipient_id = o.recipient_id AND s.channel = o.channel AND {_ACTIVE})"""


def lift(tx: Tx, pairs: Sequence[Pair], *, actor: str, note: str, dry_run: bool = False) -> Changed:
    """Lift all suppressions of these pairs; their history stays."""
    new = _first(tx.execute(_IN_FORCE, o=[(n, *pair) for n, pair in enumerate(pairs)]), list(pairs))
    if new and not dry_run:
        tx.execute(_SUPPRESS, o=[(*pairs[n], "lifted", None, True, note) for n in new], actor=actor)
    return Changed(frozenset(new))


_SUPPRESSIONS = f"""SELECT s.recipient_id, s.channel, s.reason, s.fingerprint IS NOT NULL, s.at, s.actor, s.note,
    s.source_delivery_id, s.remote_id FROM notify_suppression s WHERE {_ACTIVE}"""


def suppressions(tx: Tx, recipient: str | None = None, channel: Channel | None = None) -> list[dict[str, Any]]:
    """Those in force, oldest first; `scope` is `channel`, or `address` where only one address is meant."""
    where, given = _of("s", recipient, channel)
    return [
        {"recipient": row[0], "channel": row[1], "reason": row[2],
         "scope": "address" if row[3] and row[2] in FINGERPRINT_REASONS else "channel",
         "at": tx.dialect.instant(row[4]), "actor": row[5], "note": row[6],
         "source_delivery_id": row[7], "remote_id": row[8]}
        for row in tx.execute(f"{_SUPPRESSIONS}{where} ORDER BY s.id", **given)
    ]  # fmt: skip


# -- consent --------------------------------------------------------------------------------------------------------

_NEW_CONSENT = """SELECT o.n FROM {o: n bigint, recipient_id text, channel text, topic text, granted boolean}
  WHERE NOT EXISTS (SELECT 1 FROM notify_consent c WHERE c.granted = o.granted AND c.id = (SELECT max(n.id)
    FROM notify_consent n WHERE n.recipient_id = o.recipient_id AND n.channel = o.channel AND n.topic = o.topic))"""

_CONSENT = """INSERT INTO notify_consent (recipient_id, channel, topic, granted, actor, at)
  SELECT o.recipient_id, o.channel, o.topic, o.granted, :actor, :now
  FROM {o: recipient_id text, channel text, topic text, granted boolean} WHERE true"""


def answer(tx: Tx, rows: Sequence[Consent], *, actor: str, dry_run: bool = False) -> Changed:
    """Record answers that differ from the newest ones; of several in `rows` to one question the last counts."""
    last = {(r.recipient_id, r.channel, r.topic): n for n, r in enumerate(rows)}
    asked = [(n, *key, rows[n].granted) for key, n in last.items()]
    new = sorted(row[0] for row in tx.execute(_NEW_CONSENT, o=asked))
    chosen = [rows[n] for n in new]
    settled = _lock_waiting(tx, [(r.recipient_id, r.channel, r.topic, None) for r in chosen if not r.granted])
    if new and not dry_run:
        tx.execute(_CONSENT, o=[(r.recipient_id, r.channel, r.topic, r.granted) for r in chosen], actor=actor)
    return Changed(frozenset(new), settled)


_CONSENTS = """SELECT c.recipient_id, c.channel, c.topic, c.granted, c.at, c.actor, c.note FROM notify_consent c
  WHERE c.id = (SELECT max(n.id) FROM notify_consent n
    WHERE n.recipient_id = c.recipient_id AND n.channel = c.channel AND n.topic = c.topic)"""


def consents(tx: Tx, recipient: str, channel: Channel | None = None) -> list[dict[str, Any]]:
    """The newest answer to each topic."""
    where, given = _of("c", recipient, channel)
    return [
        {"recipient": row[0], "channel": row[1], "topic": row[2], "granted": bool(row[3]),
         "at": tx.dialect.instant(row[4]), "actor": row[5], "note": row[6]}
        for row in tx.execute(f"{_CONSENTS}{where} ORDER BY c.channel, c.topic", **given)
    ]  # fmt: skip


# -- endpoints ------------------------------------------------------------------------------------------------------

_NEW_ENDPOINT = """SELECT o.n FROM {o: n bigint, recipient_id text, channel text, address text}
  WHERE NOT EXISTS (SELECT 1 FROM notify_endpoint e WHERE e.address = o.address AND e.id = (SELECT max(n.id)
    FROM notify_endpoint n WHERE n.recipient_id = o.recipient_id AND n.channel = o.channel))"""

_ENDPOINT = """INSERT INTO notify_endpoint (recipient_id, channel, address, fingerprint, actor, at)
  SELECT o.recipient_id, o.channel, o.address, o.fingerprint, :actor, :now
  FROM {o: recipient_id text, channel text, address text, fingerprint text} WHERE true"""


def register(tx: Tx, rows: Sequence[Endpoint], *, actor: str, dry_run: bool = False) -> Changed:
    """Make these the current endpoints, one for each recipient and channel; what is current already stays."""
    asked = [(n, r.recipient_id, r.channel, r.address) for n, r in enumerate(rows)]
    new = sorted(row[0] for row in tx.execute(_NEW_ENDPOINT, o=asked))
    if new and not dry_run:
        chosen = [rows[n] for n in new]
        values = [(r.recipient_id, r.channel, r.address, r.fingerprint) for r in chosen]
        tx.execute(_ENDPOINT, o=values, actor=actor)
    return Changed(frozenset(new))


@dataclass(frozen=True, slots=True)
class Registered:
    """One row of the endpoints' history; `address` empty: erased."""

    channel: Channel
    address: str = field(repr=False)
    current: bool
    at: datetime
    actor: str


def endpoints(tx: Tx, recipient: str) -> list[Registered]:
    """A recipient's endpoints, the newest first."""
    found: list[Registered] = []
    sql = """SELECT channel, address, at, actor FROM notify_endpoint
      WHERE recipient_id = :recipient ORDER BY id DESC"""
    for channel, address, at, actor in tx.execute(sql, recipient=recipient):
        moment = tx.dialect.instant(at)
        assert moment is not None
        current = all(one.channel != channel for one in found)
        found.append(Registered(Channel(channel), address, current, moment, actor))
    return found


_CURRENT = """SELECT o.recipient_id, o.channel, e.address FROM {o: recipient_id text, channel text}
  JOIN notify_endpoint e ON e.id = (SELECT max(n.id) FROM notify_endpoint n
    WHERE n.recipient_id = o.recipient_id AND n.channel = o.channel)"""


def current_addresses(tx: Tx, pairs: Iterable[Pair]) -> dict[tuple[str, str], str]:
    """The current address of each pair that has one."""
    return {(row[0], row[1]): row[2] for row in tx.execute(_CURRENT, o=sorted(set(pairs))) if row[2]}


def _first(rows: Iterable[Sequence[int]], keys: Sequence[object]) -> list[int]:
    """Positions, each key's first only: a page may say the same twice."""
    seen: dict[object, int] = {}
    for (position,) in sorted(tuple(row) for row in rows):
        seen.setdefault(keys[position], position)
    return sorted(seen.values())


def _of(alias: str, recipient: str | None, channel: Channel | None) -> tuple[str, dict[str, Any]]:
    given = {name: value for name, value in (("recipient", recipient), ("channel", channel)) if value is not None}
    column = {"recipient": "recipient_id", "channel": "channel"}
    return "".join(f" AND {alias}.{column[name]} = :{name}" for name in given), given
