"""Record: what became of attempts and claimed rows, for a whole group at once. Fenced and safe to repeat.

A result whose owner still holds the row moves the delivery as its transition says. One whose lease was lost is never
thrown away (rule R2): it is written to its attempt, and `late` decides whether it settles the delivery after all, with
the token raised, so that whoever owns the row now finds its own write fenced off. Work rows are locked before
deliveries, both in order of id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from notifyctl.failpoints import reach
from notifyctl.ledger.database import Tx, ids
from notifyctl.lifecycle import Facts, Transition
from notifyctl.model import Mandate, Outcome, OutcomeKind, State, Step


@dataclass(frozen=True, slots=True)
class Move:
    """One delivery's change of state; `token` is the fencing token it has afterwards."""

    id: int
    token: int
    was: State
    to: Transition
    attempt: int | None = None
    remote_id: str | None = None
    fingerprint: str | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one attempt, and the transition it means while its owner still holds the row."""

    id: int
    number: int
    token: int
    was: State
    outcome: Outcome
    transition: Transition
    duration: float | None
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class LateRow:
    """What `late` needs to know of a delivery whose outcome comes from somebody who no longer owns it."""

    id: int
    lane: str
    transport: str
    facts: Facts


Late = Callable[[LateRow, Outcome], Transition]

_ATTEMPT = """UPDATE notify_attempt SET finished = :now, outcome = attempts.outcome, reason = attempts.reason,
    code = attempts.code, remote_id = attempts.remote_id, remote_ids = attempts.remote_ids,
    retry_after = attempts.retry_after,
    duration = COALESCE(attempts.duration, notify_attempt.duration)
  FROM {attempts: id bigint, number bigint, outcome text, reason text, code text, remote_id text, remote_ids jsonb,
    retry_after double precision, duration double precision}
  WHERE notify_attempt.delivery_id = attempts.id AND notify_attempt.number = attempts.number
    AND (notify_attempt.outcome IS NULL
      OR (notify_attempt.outcome = 'ambiguous' AND attempts.outcome <> 'ambiguous'))"""

_WRITTEN = "RETURNING notify_attempt.delivery_id"

OWNED = """SELECT w.delivery_id FROM {o: id bigint, token bigint} JOIN notify_work w ON w.delivery_id = o.id
  WHERE w.owner = :run AND w.fencing_token = o.token AND w.step = 'resolve' ORDER BY w.delivery_id {lock of w}"""


@dataclass(slots=True)
class Recorded:
    """What a record did: the moves made, and the ids whose result was already there."""

    moves: list[Move] = field(default_factory=list)
    repeated: set[int] = field(default_factory=set)


def record(tx: Tx, *, run: str, results: Sequence[Result], late: Late) -> Recorded:
    """Write outcomes to attempts, deliveries, trail and work rows."""
    done = Recorded()
    if not results:
        return done
    results = sorted(results, key=lambda r: (r.id, r.number))
    if len({r.id for r in results}) < len(results):  # a run that got a delivery back whose first exchange it still had
        return _one_by_one(tx, run, results, late)
    owned = {row[0] for row in tx.execute(OWNED, o=[(r.id, r.token) for r in results], run=run)}
    reach("record.owned")
    if len(owned) == len(results):  # an owned row's attempt has no outcome yet: that is what owning it means
        done.moves = [_move(r, r.was, r.transition, r.token) for r in results]
        _apply(tx, done.moves, run, False, [_ATTEMPT], attempts=[_attempt(r) for r in results])
        return done
    known = facts(tx, [(r.id, r.number) for r in results if r.id not in owned])  # before the outcome is written
    written = {row[0] for row in tx.execute(f"{_ATTEMPT} {_WRITTEN}", attempts=[_attempt(r) for r in results])}
    for result in results:
        if result.id in owned:
            done.moves.append(_move(result, result.was, result.transition, result.token))
        elif result.id not in written:
            done.repeated.add(result.id)  # the reply to an earlier COMMIT was lost, or better evidence is there
    done.moves += _late_moves([r for r in results if r.id in written and r.id not in owned], known, late)
    apply(tx, done.moves, actor=run)
    return done


def _one_by_one(tx: Tx, run: str, results: Sequence[Result], late: Late) -> Recorded:
    """Several attempts of one delivery: each is judged by what the one before it made of the delivery."""
    done, first = Recorded(), {r.id: r for r in reversed(results)}
    for some in ([*first.values()], [r for r in results if first[r.id] is not r]):
        recorded = record(tx, run=run, results=some, late=late)
        done.moves += recorded.moves
        done.repeated |= recorded.repeated
    return done


def _attempt(result: Result) -> tuple[Any, ...]:
    outcome = result.outcome
    remote = outcome.remote_ids
    return (
        result.id, result.number, outcome.kind, outcome.reason, outcome.code, remote[0] if remote else None,
        list(remote) if len(remote) > 1 else None, outcome.retry_after, result.duration,
    )  # fmt: skip


def _move(result: Result, was: State, transition: Transition, token: int) -> Move:
    accepted = result.outcome.kind is OutcomeKind.ACCEPTED
    return Move(
        result.id, token, was, transition, attempt=result.number, fingerprint=result.fingerprint,
        remote_id=result.outcome.remote_ids[0] if accepted and result.outcome.remote_ids else None,
    )  # fmt: skip


_LOCK_WORK = """SELECT w.delivery_id FROM {o: id bigint} JOIN notify_work w ON w.delivery_id = o.id
  ORDER BY w.delivery_id {lock of w}"""

_FACTS = """SELECT d.id, d.lane, d.transport, d.state, w.step, w.owner, d.attempts_used, COALESCE(w.tries, 0),
    d.due_at, w.eligible_at, d.expires_at, d.first_tried_at, d.doubt_since, d.accepted_at, w.mandate,
    COALESCE(w.fencing_token, d.fencing_token),
    (SELECT a.started FROM notify_attempt a WHERE a.delivery_id = d.id AND a.number = o.number),
    (SELECT a.outcome FROM notify_attempt a WHERE a.delivery_id = d.id AND a.number = o.number),
    (SELECT min(a.started) FROM notify_attempt a WHERE a.delivery_id = d.id AND a.number <> o.number
       AND (a.outcome IS NULL OR a.outcome = 'ambiguous')), d.receipts_from, w.held
  FROM {o: id bigint, number bigint} JOIN notify_delivery d ON d.id = o.id
  LEFT JOIN notify_work w ON w.delivery_id = d.id ORDER BY d.id {lock of d}"""


def facts(tx: Tx, numbers: Sequence[tuple[int, int]]) -> dict[int, tuple[LateRow, int]]:
    """What the ledger now knows of these (delivery, attempt)s and each delivery's token; rows are locked."""
    if not numbers:
        return {}
    tx.execute(_LOCK_WORK, o=ids(i for i, _ in numbers))
    at = tx.dialect.instant
    rows: dict[int, tuple[LateRow, int]] = {}
    for row in tx.execute(_FACTS, o=sorted(numbers)):
        known = Facts(
            state=State(row[3]), step=Step(row[4]) if row[4] else None, owned=row[5] is not None, used=row[6],
            tries=row[7], due_at=at(row[8]), eligible_at=at(row[9]), expires_at=at(row[10]),
            first_tried_at=at(row[11]), doubt_since=at(row[12]), accepted_at=at(row[13]),
            mandate=Mandate(row[14]) if row[14] else None, attempt_started=at(row[16]),
            attempt_charged=row[17] is not None, other_doubt=at(row[18]), receipts_from=at(row[19]),
            held=bool(row[20]),
        )  # fmt: skip
        rows[row[0]] = LateRow(row[0], row[1], row[2] or "", known), row[15]
    return rows


def _late_moves(lost: Sequence[Result], known: dict[int, tuple[LateRow, int]], late: Late) -> list[Move]:
    moves = []
    for result in lost:
        row, token = known[result.id]
        assert row.facts.state is not None
        transition = late(row, result.outcome)
        moves.append(_move(result, row.facts.state, transition, token + 1 if transition.token_raised else token))
    return moves


# -- applying moves ---------------------------------------------------------------------------------------------

_DELIVERY = """UPDATE notify_delivery SET state = o.state, reason = o.reason, attempts_used = o.used,
    first_tried_at = o.first_tried_at, doubt_since = o.doubt_since,
    accepted_at = COALESCE(notify_delivery.accepted_at, o.accepted_at),
    receipts_from = COALESCE(o.receipts_from, notify_delivery.receipts_from),
    remote_id = COALESCE(o.remote_id, notify_delivery.remote_id), settled_at = CASE WHEN o.settled THEN :now END,
    updated_at = :now, fencing_token = o.token
  FROM {o: id bigint, state text, reason text, used bigint, first_tried_at timestamptz, doubt_since timestamptz,
    accepted_at timestamptz, receipts_from timestamptz, remote_id text, settled boolean, token bigint}
  WHERE notify_delivery.id = o.id"""

_UNPIN = """UPDATE notify_delivery SET endpoint_id = NULL, fingerprint = NULL, transport = NULL, sender = NULL,
    message_date = NULL WHERE id IN (SELECT id FROM {o: id bigint})"""

_SETTLE = "DELETE FROM notify_work WHERE delivery_id IN (SELECT settled.id FROM {settled: id bigint})"

_WORK = """UPDATE notify_work SET step = w.step, eligible_at = w.eligible_at, mandate = w.mandate, tries = w.tries,
    owner = CASE WHEN w.released THEN NULL ELSE notify_work.owner END, fencing_token = w.token, held = w.held
  FROM {w: id bigint, step text, eligible_at timestamptz, mandate text, tries bigint, token bigint, released boolean,
    held boolean}
  WHERE notify_work.delivery_id = w.id"""

_NEW_WORK = """INSERT INTO notify_work (delivery_id, step, lane, region, due_at, eligible_at, fencing_token, tries,
    mandate, held)
  SELECT d.id, w.step, d.lane, d.region, d.due_at, w.eligible_at, w.token, w.tries, w.mandate, w.held
  FROM {w: id bigint, step text, eligible_at timestamptz, mandate text, tries bigint, token bigint, released boolean,
    held boolean}
  JOIN notify_delivery d ON d.id = w.id WHERE true ON CONFLICT (delivery_id) DO NOTHING"""

_TRAIL = """INSERT INTO notify_transition (delivery_id, at, "from", "to", reason, attempt, actor, note)
  SELECT t.id, :now, t.was, t.state, t.reason, t.attempt, :actor, t.note
  FROM {t: id bigint, was text, state text, reason text, attempt bigint, note text} WHERE true"""

_SUPPRESS = """INSERT INTO notify_suppression (recipient_id, channel, reason, fingerprint, source_delivery_id,
    remote_id, actor, at)
  SELECT d.recipient_id, d.channel, o.reason, o.fingerprint, d.id, o.remote_id, :actor, :now
  FROM {o: id bigint, reason text, fingerprint text, remote_id text}
  JOIN notify_delivery d ON d.id = o.id ORDER BY d.id"""


def apply(tx: Tx, moves: Iterable[Move], *, actor: str, new_work: bool = False) -> None:
    """Carry out transitions whose rows the caller holds; `new_work`: also for deliveries that had none (requeue)."""
    _apply(tx, moves, actor, new_work, [])


def _apply(tx: Tx, moves: Iterable[Move], actor: str, new_work: bool, statements: list[str], **parameters: Any) -> None:
    """The writes of `apply` behind `statements`, whose parameters are given too."""
    every = sorted(moves, key=lambda m: m.id)
    moves = [m for m in every if not m.to.untouched]  # of the others only the attempt and the trail say something
    if moves:
        statements.append(_DELIVERY)
        parameters["o"] = [_delivery(m) for m in moves]
    settled = [(m.id,) for m in moves if m.to.step is None]
    if settled:
        statements.append(_SETTLE)
        parameters["settled"] = settled
    works = [
        (m.id, m.to.step, m.to.eligible_at, m.to.mandate, m.to.tries, m.token, m.to.release_owner, m.to.held)
        for m in moves if m.to.step
    ]  # fmt: skip
    if works:
        statements.append(_WORK)
        parameters["w"] = works
    trail = [(m.id, m.was, m.to.state, m.to.reason, m.attempt, m.note) for m in every if m.to.trail]
    if trail:
        statements.append(_TRAIL)
        parameters["t"] = trail
    tx.execute_all(statements, actor=actor, **parameters)
    unpinned = [(m.id,) for m in moves if m.to.clear_pins]
    if unpinned:
        tx.execute(_UNPIN, o=unpinned)
    if works and (new_work or any(m.was in _MAY_LACK_WORK for m in moves if m.to.step)):
        tx.execute(_NEW_WORK, w=works)
    suppress = [(m.id, m.to.suppress, m.fingerprint, m.remote_id) for m in every if m.to.suppress]
    if suppress:  # last, by itself: its trigger settles other deliveries of the same pair
        tx.execute(_SUPPRESS, o=suppress, actor=actor)
    reach("record.written")


# A late acceptance may bring a settled delivery back to its receipt check, so its work row is made anew.
_MAY_LACK_WORK = frozenset(State) - {
    State.QUEUED, State.SENDING, State.TEMPORARY_FAILURE, State.AMBIGUOUS, State.PENDING,
}  # fmt: skip


def _delivery(move: Move) -> tuple[Any, ...]:
    to = move.to
    return (
        move.id, to.state, to.reason, to.used, to.first_tried_at, to.doubt_since, to.accepted_at, to.receipts_from,
        move.remote_id, to.step is None, move.token,
    )  # fmt: skip


# -- claimed rows that are refused or deferred before an attempt --------------------------------------------------

_OWNED_SEND = """SELECT w.delivery_id FROM {o: id bigint, token bigint} JOIN notify_work w ON w.delivery_id = o.id
  WHERE w.owner = :run AND w.fencing_token = o.token AND w.step = 'send' ORDER BY w.delivery_id {lock of w skip}"""


def refuse(tx: Tx, *, run: str, moves: Sequence[Move]) -> list[Move]:
    """Settle or defer claimed, unbegun rows (policy, expiry, what cannot be composed). Returns those still owned."""
    owned = {row[0] for row in tx.execute(_OWNED_SEND, o=sorted((m.id, m.token) for m in moves), run=run)}
    kept = [m for m in moves if m.id in owned]
    apply(tx, kept, actor=run)
    return kept


# -- lapsed attempts (rule R10) ----------------------------------------------------------------------------------

_LAPSED = """SELECT w.delivery_id FROM {p: lane text, region text} CROSS JOIN notify_work w
  JOIN notify_delivery d ON d.id = w.delivery_id
  WHERE w.step = 'resolve' AND w.lane = p.lane AND w.region = p.region AND w.eligible_at <= :now AND d.state = 'sending'
  ORDER BY w.delivery_id LIMIT :limit {lock of w skip}"""

_OPEN = """SELECT a.delivery_id, max(a.number) FROM {o: id bigint} JOIN notify_attempt a ON a.delivery_id = o.id
  GROUP BY a.delivery_id"""

_LOST = """UPDATE notify_attempt SET outcome = 'ambiguous',
    reason = CASE WHEN reason = '' THEN 'worker_lost' ELSE reason END
  WHERE outcome IS NULL AND delivery_id IN (SELECT id FROM {o: id bigint})"""


def any_lapsed(tx: Tx, pairs: Sequence[tuple[str, str]]) -> bool:
    """Whether there is something for `lapse` to do."""
    return bool(tx.execute(_LAPSED.replace("{lock of w skip}", ""), p=list(pairs), limit=1))


def lapse(
    tx: Tx, *, pairs: Sequence[tuple[str, str]], limit: int, actor: str,
    judge: Callable[[LateRow], Transition],
) -> list[tuple[str, bool]]:  # fmt: skip
    """Turn attempts whose deadline passed without an outcome into doubt, visible to everybody.

    Returns the lane of each delivery concerned, and whether a person is needed for it.
    """
    lapsed = tx.execute(_LAPSED, p=list(pairs), limit=limit)
    if not lapsed:
        return []
    numbers: dict[int, int] = dict(tx.execute(_OPEN, o=lapsed))
    known = facts(tx, list(numbers.items()))
    moves = [
        Move(delivery, token + 1, row.facts.state or State.SENDING, judge(row), attempt=numbers[delivery])
        for delivery, (row, token) in known.items()
    ]
    tx.execute(_LOST, o=lapsed)
    apply(tx, moves, actor=actor)
    reach("lapse.done")
    return [(known[move.id][0].lane, move.to.needs_person) for move in moves]
