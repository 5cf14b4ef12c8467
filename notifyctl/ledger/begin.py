"""Begin: the attempt is on disk before the first byte of it goes out (invariant I6).

Fenced by (owner, token) and set-based. Consent, suppression, expiry, gates and pace are decided here, in the
transaction that opens the attempt. Work rows are locked first: triggers of the suppression and consent tables lock
the same rows, so what an application commits before this statement is seen, and what it commits later waits.
SKIP LOCKED: an application's open transaction delays its own rows only. On SQLite whoever writes is alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from notifyctl.failpoints import reach
from notifyctl.ledger import gate, pace
from notifyctl.ledger.claim import CONSENT, SUPPRESSION
from notifyctl.ledger.database import Tx
from notifyctl.ledger.dialect import SQLITE
from notifyctl.model import ConsentMode, Delivery, Rate
from notifyctl.pacing import HORIZON, spacing, take, waiting
from notifyctl.policy import check


@dataclass(frozen=True, slots=True)
class Ready:
    """One composed delivery about to go out, with what is pinned and recorded of it.

    `deadline`: seconds until the exchange is over, margin included. `limits`: every (key, rate) it counts against.
    `replay_until`: a replay that begins no sooner is no repetition to the provider any more; None: not a replay.
    """

    delivery: Delivery
    transport: str
    sender: str
    message_date: datetime
    endpoint_id: int | None
    fingerprint: str
    content_digest: str
    request_digest: str
    deadline: float
    consent_mode: ConsentMode = ConsentMode.NONE
    limits: tuple[tuple[str, Rate], ...] = ()
    template_version: str | None = None
    locale: str = ""
    encoding: str | None = None
    segments: int | None = None
    bytes: int | None = None
    replay_until: datetime | None = None
    wire_key: str | None = None


@dataclass(frozen=True, slots=True)
class Begun:
    """The attempt is open; `slot` is when its first byte may go. `probe`: its outcome opens or closes the transport."""

    number: int
    started: datetime
    slot: datetime
    probe: bool = False


@dataclass(frozen=True, slots=True)
class Held:
    """Why a row did not begin: `lost`, `locked`, `moved` (the recipient has another address by now), `gate`, `pace`,
    `destination_pace`, or a policy's (state, reason)."""

    why: str
    until: datetime | None = None
    state: str = ""
    reason: str = ""


@dataclass(slots=True)
class _Group:
    run: str
    rows: dict[int, Ready]
    numbers: dict[int, int] = field(default_factory=dict)  # of the attempt that may be opened
    results: dict[int, Begun | Held] = field(default_factory=dict)
    behind: dict[int, gate.Gate] = field(default_factory=dict)  # gates whose time is over: rows that may probe them

    def pairs(self) -> list[tuple[int, int]]:
        return [(i, self.rows[i].delivery.token) for i in sorted(self.rows) if i not in self.results]


def begin(tx: Tx, *, run: str, ready: Sequence[Ready]) -> dict[int, Begun | Held]:
    """Open an attempt for each of `ready` that may go now; say of every other why not."""
    group = _Group(run, {r.delivery.id: r for r in ready})
    if tx.rerun:
        _find_begun(tx, group)
    _lock(tx, group)
    reach("begin.locked")
    _judge(tx, group)
    reach("begin.judged")
    probes = _probes(group)
    _pace(tx, group)
    _elect(tx, group, probes)
    reach("begin.paced")
    _open(tx, group, probes)
    reach("begin.opened")
    return group.results


_BEGUN = """SELECT a.delivery_id, a.number, a.started FROM {o: id bigint, token bigint}
  JOIN notify_work w ON w.delivery_id = o.id AND w.fencing_token = o.token AND w.owner = :run AND w.step = 'resolve'
  JOIN notify_attempt a ON a.delivery_id = o.id AND a.fencing_token = o.token AND a.run = :run
    AND a.finished IS NULL"""


def _find_begun(tx: Tx, group: _Group) -> None:
    """After a lost COMMIT reply: what that commit did begin is begun, not lost."""
    probing = gate.probing(tx, group.run)
    for delivery, number, started in tx.execute(_BEGUN, o=group.pairs(), run=group.run):
        at = tx.dialect.instant(started)
        assert at is not None
        group.results[delivery] = Begun(number, at, tx.now, group.rows[delivery].transport in probing)


_LOCK = """SELECT w.delivery_id FROM {o: id bigint, token bigint}
  JOIN notify_work w ON w.delivery_id = o.id
  WHERE w.owner = :run AND w.fencing_token = o.token AND w.step = 'send' AND w.eligible_at > :now
  ORDER BY w.delivery_id {lock of w skip}"""

_STILL_OURS = """SELECT w.delivery_id FROM {o: id bigint, token bigint}
  JOIN notify_work w ON w.delivery_id = o.id
  WHERE w.owner = :run AND w.fencing_token = o.token AND w.step = 'send' AND w.eligible_at > :now"""


def _lock(tx: Tx, group: _Group) -> None:
    if tx.dialect is SQLITE:
        return  # nobody else writes now; what is no longer ours `_judge` does not find
    pairs = group.pairs()
    locked = {row[0] for row in tx.execute(_LOCK, o=pairs, run=group.run)}
    missing = [pair for pair in pairs if pair[0] not in locked]
    if missing:
        ours = {row[0] for row in tx.execute(_STILL_OURS, o=missing, run=group.run)}
        for delivery, _ in missing:
            group.results[delivery] = Held("locked" if delivery in ours else "lost")


_JUDGE = f"""SELECT d.id, d.expires_at, d.accepted_at, {CONSENT}, {SUPPRESSION % "o.fingerprint"},
    EXISTS (SELECT 1 FROM notify_gate g WHERE (g.until > :now OR g.until IS NULL OR g.kind <> 'pause')
      AND ((g.scope = 'lane' AND g.name = d.lane) OR (g.scope = 'transport' AND g.name = o.transport))),
    1 + COALESCE((SELECT max(a.number) FROM notify_attempt a WHERE a.delivery_id = d.id), 0),
    CASE WHEN o.endpoint IS NOT NULL THEN
      (SELECT CASE WHEN n.address <> '' THEN n.id END FROM notify_endpoint n
       WHERE n.recipient_id = d.recipient_id AND n.channel = d.channel ORDER BY n.id DESC LIMIT 1) END
  FROM {{o: id bigint, token bigint, fingerprint text, transport text, endpoint bigint}}
  JOIN notify_delivery d ON d.id = o.id
  JOIN notify_work w ON w.delivery_id = o.id
  WHERE w.owner = :run AND w.fencing_token = o.token AND w.step = 'send' AND w.eligible_at > :now"""


def _judge(tx: Tx, group: _Group) -> None:
    chosen = [(i, token, group.rows[i]) for i, token in group.pairs()]
    rows = [(i, token, r.fingerprint, r.transport, r.endpoint_id) for i, token, r in chosen]
    if not rows:
        return
    known = tx.execute(_JUDGE, o=rows, run=group.run)
    gates = gate.strongest(gate.look(tx)) if any(row[6] for row in known) else {}
    for delivery, expires_at, accepted_at, consent, suppression, gated, number, endpoint in known:
        ready = group.rows[delivery]
        group.numbers[delivery] = number
        refusal = check(
            consent_mode=ready.consent_mode, consent=None if consent is None else bool(consent),
            suppression=suppression, expires_at=tx.dialect.instant(expires_at), now=tx.now,
        )  # fmt: skip
        if accepted_at is not None:
            group.results[delivery] = Held("lost")
        elif refusal is not None:
            group.results[delivery] = Held("policy", state=refusal.state, reason=refusal.reason)
        elif endpoint != ready.endpoint_id:  # composed for an address that is not the recipient's any more
            group.results[delivery] = Held("moved")
        elif ready.replay_until is not None and tx.now >= ready.replay_until:
            group.results[delivery] = Held("policy", reason="replay_window_closed")
        elif gated and (shut := gate.of(gates, ready.delivery.lane, ready.transport)) is not None:
            if shut.due:
                group.behind[delivery] = shut
            else:
                group.results[delivery] = Held("gate", until=None if shut.prober else shut.until, reason=shut.reason)
    for delivery, *_ in rows:
        if delivery not in group.numbers:
            group.results[delivery] = Held("lost")


def _probes(group: _Group) -> dict[str, int]:
    """Of the rows behind gates whose time is over, one for each transport: the one that has waited longest."""
    probes: dict[str, int] = {}
    for delivery, ready in group.rows.items():
        shut = group.behind.get(delivery)
        if shut is not None and probes.setdefault(ready.transport, delivery) != delivery:
            group.results[delivery] = Held("gate", reason=shut.reason)
    return probes


def _elect(tx: Tx, group: _Group, probes: dict[str, int]) -> None:
    """Let each of them be the probe, unless another process's is; what its pace holds back probes nothing."""
    for transport, delivery in sorted(probes.items()):
        ready, held = group.rows[delivery], group.results.get(delivery)
        if isinstance(held, Held):
            del probes[transport]
        elif not gate.elect(tx, transport, run=group.run, until=tx.now + timedelta(seconds=ready.deadline)):
            del probes[transport]
            group.results[delivery] = Held("gate", reason=group.behind[delivery].reason)


def _pace(tx: Tx, group: _Group) -> None:
    going = [i for i, _ in group.pairs() if group.rows[i].limits]
    if not going:
        return
    meters = pace.read(tx, ((key, rate.text) for i in going for key, rate in group.rows[i].limits))
    crowded: dict[int, datetime] = {}
    for delivery in group.rows:  # in the order they became ready, not by id: the oldest takes the first slot
        limits = group.rows[delivery].limits
        if delivery in group.results or not limits:
            continue
        slot, taken = take(meters, limits, tx.now, HORIZON)
        if taken:
            group.results[delivery] = Begun(0, tx.now, slot)
            continue
        shared = [limit for limit in limits if not limit[0].startswith("destination:")]
        free = max((meters[key, rate.text].free_at(rate, tx.now) for key, rate in shared), default=tx.now)
        if free > tx.now + HORIZON:
            group.results[delivery] = Held("pace", until=slot)
        else:
            crowded[delivery] = slot
    pace.write(tx, meters)
    _line_up(tx, group, crowded)


def _line_up(tx: Tx, group: _Group, crowded: Mapping[int, datetime]) -> None:
    """Tell each row whose address has had enough for now a time of its own, so that they do not all come at once.

    Who comes for the first time goes behind all who were told a time before; who has waited already does not.
    """
    limits = {
        delivery: [x for x in group.rows[delivery].limits if x[0].startswith("destination:")]
        for delivery in crowded
    }
    lines = pace.read(tx, (waiting(*limit) for own in limits.values() for limit in own))
    again: dict[str, datetime] = {}
    for delivery, slot in crowded.items():
        known = group.rows[delivery].delivery
        waited = known.was_eligible_at is not None and known.was_eligible_at > known.due_at
        for key, rate in limits[delivery]:
            start = max(slot, again.get(key, slot)) if waited else slot
            slot = max(slot, lines[waiting(key, rate)].line_up(rate, start, last=not waited))
            if waited:
                again[key] = max(slot + spacing(rate), again.get(key, slot))
        group.results[delivery] = Held("destination_pace", until=slot)
    pace.write(tx, lines)


_ATTEMPT = """INSERT INTO notify_attempt (delivery_id, number, run, fencing_token, transport, started, request_digest,
    fingerprint, mandate, locale, encoding, segments, bytes)
  SELECT a.id, a.number, :run, a.token, a.transport, :now, a.request_digest, a.fingerprint, a.mandate, a.locale,
    a.encoding, a.segments, a.bytes
  FROM {a: id bigint, number bigint, token bigint, transport text, request_digest text, fingerprint text,
    mandate text, locale text, encoding text, segments bigint, bytes bigint} WHERE true"""

_WORK = """UPDATE notify_work SET step = 'resolve', eligible_at = w.deadline, mandate = NULL
  FROM {w: id bigint, deadline timestamptz} WHERE notify_work.delivery_id = w.id"""

_TRAIL = """INSERT INTO notify_transition (delivery_id, at, "from", "to", attempt, actor)
  SELECT t.id, :now, t.state, 'sending', t.number, :run FROM {t: id bigint, state text, number bigint} WHERE true"""

_DELIVERY = """UPDATE notify_delivery SET state = 'sending', reason = '', updated_at = :now,
    first_tried_at = COALESCE(notify_delivery.first_tried_at, :now), transport = o.transport, sender = o.sender,
    message_date = o.message_date, endpoint_id = o.endpoint_id, fingerprint = o.fingerprint,
    content_digest = COALESCE(notify_delivery.content_digest, o.content_digest),
    template_version = COALESCE(notify_delivery.template_version, o.template_version),
    wire_key = COALESCE(notify_delivery.wire_key, o.wire_key)
  FROM {o: id bigint, transport text, sender text, message_date timestamptz, endpoint_id bigint, fingerprint text,
    content_digest text, template_version text, wire_key text} WHERE notify_delivery.id = o.id"""


def _open(tx: Tx, group: _Group, probes: Mapping[str, int]) -> None:
    going: Mapping[int, datetime] = {
        i: result.slot if isinstance(result, Begun) else tx.now
        for i in sorted(group.numbers)
        if (result := group.results.get(i)) is None or (isinstance(result, Begun) and result.number == 0)
    }
    if not going:
        return
    ready = [(group.rows[i], group.numbers[i]) for i in going]
    tx.execute_all(
        (_ATTEMPT, _WORK, _TRAIL, _DELIVERY),
        run=group.run,
        a=[
            (r.delivery.id, number, r.delivery.token, r.transport, r.request_digest, r.fingerprint,
             r.delivery.mandate, r.locale, r.encoding, r.segments, r.bytes)
            for r, number in ready
        ],
        w=[(r.delivery.id, tx.now + timedelta(seconds=r.deadline)) for r, _ in ready],
        t=[(r.delivery.id, r.delivery.state, number) for r, number in ready],
        o=[
            (r.delivery.id, r.transport, r.sender, r.message_date, r.endpoint_id, r.fingerprint, r.content_digest,
             r.template_version, r.wire_key)
            for r, _ in ready
        ],
    )  # fmt: skip
    for i, slot in going.items():
        group.results[i] = Begun(group.numbers[i], tx.now, slot, probes.get(group.rows[i].transport) == i)
