"""One turn of a receipts run: a single transaction that keeps what was said, moves cursors, and takes slots.

It may be run again from its start (a deadlock, a lost connection), so it takes plain values in and gives plain values
back; the run's own state changes only after it has committed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from notifyctl.failpoints import reach
from notifyctl.ledger import claim as claiming
from notifyctl.ledger import pace
from notifyctl.ledger import receipts as ledger
from notifyctl.ledger import record as recording
from notifyctl.ledger.database import Tx
from notifyctl.ledger.receipts import Check, Feed, Known
from notifyctl.lifecycle import Trigger
from notifyctl.model import Capabilities, Lane, Rate, Receipt, Receipts, ReceiptStatus
from notifyctl.pacing import HORIZON, take
from notifyctl.ticks.hearing import Heard, Said, fresh, hear
from notifyctl.ticks.run import Run
from notifyctl.transports.base import FeedPage, Transport

# What is assumed of a transport that the configuration no longer names: its receipts cannot be asked for.
_UNKNOWN = Capabilities(channels=frozenset(), receipts=Receipts.LOOKUP)
_ANY_TIME = timedelta(days=3650)
_LONGEST = 200  # characters of a code or an id that are kept; what is longer is not one


@dataclass(frozen=True, slots=True)
class Answered:
    """A look-up that ended: what each of the check's remote ids is said to be. `fault`: why nothing was learnt, and
    `wait`: for how many seconds the provider asks to be left alone."""

    check: Check
    receipts: Mapping[str, Receipt]
    fault: str = ""
    config: bool = False
    broken: bool = False
    wait: float | None = None


@dataclass(frozen=True, slots=True)
class Read:
    """A page of a feed that was read. `page` None: it could not be, for the reason `fault`."""

    feed: Feed
    page: FeedPage | None
    fault: str = ""
    config: bool = False
    broken: bool = False


@dataclass(slots=True)
class Group:
    """What a turn is given."""

    answers: Sequence[Answered] = ()
    pages: Sequence[Read] = ()
    over: Sequence[Feed] = ()  # feeds whose last page has been marked over there: to be given back
    silent: Sequence[tuple[Check, Trigger]] = ()  # checks that end without having been looked up
    returning: Sequence[tuple[Check, datetime]] = ()  # checks to release, and when they are due again
    asking: Sequence[Check] = ()  # checks that want a slot

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write."""
        return not (self.answers or self.pages or self.over or self.silent or self.returning or self.asking)

    @property
    def known(self) -> bool:
        """Whether something was learnt that is to be kept: only then the run has a record."""
        said = any(read.page is None or read.page.receipts or read.page.unmatched for read in self.pages)
        return bool(self.answers or self.silent or said)


@dataclass(frozen=True, slots=True)
class Judged:
    """One delivery that a turn judged; `owned`: by its check's owner, `said`: receipts that were not known yet."""

    known: Known
    transport: str
    owned: bool
    error: bool
    said: int
    new: tuple[Receipt, ...]
    heard: Heard


@dataclass(slots=True)
class Done:
    """What a turn did. `slots`: when a look-up may go (taken), or when it is to try again (not taken)."""

    judged: list[Judged] = field(default_factory=list)
    unmatched: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, list[Receipt]] = field(default_factory=dict)  # by feed: receipts of no delivery here
    lost: set[str] = field(default_factory=set)  # feeds that somebody else reads now
    slots: dict[int, tuple[datetime, bool]] = field(default_factory=dict)
    now: datetime | None = None


class Policies:
    """What applies to a delivery: its lane, and what its transport can say."""

    def __init__(self, lanes: Mapping[str, Lane], transports: Mapping[str, Transport]) -> None:
        self.lanes = lanes
        self.transports = transports

    def of(self, known: Known) -> tuple[Lane, Capabilities]:
        """Defaults stand in for a lane or a transport that the configuration no longer names."""
        lane = self.lanes.get(known.lane) or Lane(known.lane, known.channel, known.transport)
        transport = self.transports.get(known.transport)
        return lane, transport.capabilities if transport else _UNKNOWN

    def status_rates(self, transport: str) -> tuple[Rate, ...]:
        """How fast the transport's receipts may be looked up."""
        known = self.transports.get(transport)
        return known.status_rates if known else ()


def turn(tx: Tx, run: Run, policies: Policies, group: Group) -> Done:
    """Move cursors, judge what was said, release, take slots: in this order, in one transaction."""
    reach("poll.begun")
    if group.known:
        run.open_record(tx)
    done = Done(now=tx.now)
    said = _from_feeds(tx, run, policies, group, done)
    tokens: dict[int, int] = {}
    for answer in group.answers:
        check = answer.check
        tokens[check.id] = check.token
        _add(said, check.id, check.transport, _in_parts(answer), _ends(answer), answer.wait)
    for check, ends in group.silent:
        tokens[check.id] = check.token
        _add(said, check.id, check.transport, (), ends)
    _judge(tx, run, policies, said, tokens, done)
    claiming.release(tx, run=run.id, rows=[(check.id, check.token, at) for check, at in group.returning])
    _pace(tx, policies, group.asking, done)
    reach("poll.kept")
    return done


def _from_feeds(tx: Tx, run: Run, policies: Policies, group: Group, done: Done) -> dict[int, tuple[str, Said]]:
    """Move the cursors, and sort the pages' receipts by delivery."""
    moved = []
    for read in group.pages:
        settings = policies.transports[read.feed.transport].settings
        page = read.page
        nothing = page is None or not (page.receipts or page.more or page.unmatched)
        cursor = read.feed.cursor if page is None else page.cursor
        wait = settings.poll_every if nothing else lease_of(settings.deadline)
        moved.append(ledger.Advance(read.feed, cursor, wait, nothing))
    for feed in group.over:
        wait = policies.transports[feed.transport].settings.poll_every
        moved.append(ledger.Advance(feed, feed.cursor, wait, True))
    ours = ledger.advance(tx, moved, run=run.id)
    done.lost = {one.feed.transport for one in moved} - ours
    said: dict[int, tuple[str, Said]] = {}
    for read in group.pages:
        name, page = read.feed.transport, read.page
        if page is None or name not in ours:
            continue
        done.unmatched[name] = page.unmatched
        receipts = [clean(one) for one in page.receipts]
        for number, delivery in enumerate(ledger.match(tx, name, receipts)):
            if delivery is None:
                done.unmatched[name] += 1
                done.unknown.setdefault(name, []).append(page.receipts[number])
            else:
                _add(said, delivery, name, (receipts[number],), Trigger.RECEIPT_NOT_YET)
    return said


def lease_of(deadline: float) -> float:
    """Seconds a feed is ours for one page: to read it, to keep it and to have it marked over there."""
    return 2 * deadline + 30.0


def _add(
    said: dict[int, tuple[str, Said]], delivery: int, transport: str, receipts: tuple[Receipt, ...], ends: Trigger,
    wait: float | None = None,
) -> None:
    before = said.get(delivery)
    earlier = before[1].receipts if before else ()
    said[delivery] = (transport, Said((*earlier, *receipts), ends, wait))


def _in_parts(answer: Answered) -> tuple[Receipt, ...]:
    """What was said of each remote id, as receipts of the message's parts."""
    ids = answer.check.remote_ids
    found = [(part, answer.receipts[one]) for part, one in enumerate(ids) if one in answer.receipts]
    return tuple(clean(replace(one, remote_id=ids[part], part=part)) for part, one in found)


def _ends(answer: Answered) -> Trigger:
    return Trigger.RECEIPT_ERROR if answer.fault else Trigger.RECEIPT_NOT_YET


def _judge(
    tx: Tx, run: Run, policies: Policies, said: Mapping[int, tuple[str, Said]], tokens: Mapping[int, int], done: Done
) -> None:
    known = ledger.known(tx, said, run=run.id, tokens=tokens)
    new = {delivery: fresh(one, said[delivery][1]) for delivery, one in known.items()}
    ledger.keep(tx, [(delivery, one) for delivery in sorted(new) for one in new[delivery]])
    runs = ledger.soft_runs(
        tx,
        (
            delivery
            for delivery, some in new.items()
            if policies.of(known[delivery])[0].receipt.soft_bounces
            and any(one.status is ReceiptStatus.SOFT_FAILURE for one in some)
        ),
    )
    for delivery, one in known.items():
        transport, what = said[delivery]
        lane, capabilities = policies.of(one)
        heard = hear(one, what, tx.now, lane, capabilities, runs.get(delivery, 0))
        error = what.ends is Trigger.RECEIPT_ERROR and not what.receipts
        done.judged.append(
            Judged(one, transport, one.facts.owned, error, len(what.receipts), tuple(new[delivery]), heard)
        )
    ledger.attempts_accepted(
        tx, [(one.known.id, *one.heard.accepted) for one in done.judged if one.heard.accepted is not None]
    )
    rounds = max((len(one.heard.moves) for one in done.judged), default=0)
    for number in range(rounds):  # one of them, nearly always
        moves = [one.heard.moves[number] for one in done.judged if number < len(one.heard.moves)]
        recording.apply(tx, moves, actor=run.id)


def _pace(tx: Tx, policies: Policies, asking: Sequence[Check], done: Done) -> None:
    """Slots for look-ups, under the limits that all processes share."""
    limits = {name: status_limits(policies, name) for name in {check.transport for check in asking}}
    keys = {(key, rate.text) for several in limits.values() for key, rate in several}
    meters = pace.read(tx, keys) if keys else {}
    for check in asking:
        mine = limits[check.transport]
        slot, taken = take(meters, mine, tx.now, HORIZON)
        for _ in check.remote_ids[1:] if taken else ():  # asked for together: once the last of them may be
            slot = take(meters, mine, tx.now, _ANY_TIME)[0]
        done.slots[check.id] = (slot, taken)
    pace.write(tx, meters)


def status_limits(policies: Policies, transport: str) -> tuple[tuple[str, Rate], ...]:
    """The limits that a look-up counts against, by the key under which they are metered."""
    return tuple((f"status:{transport}", rate) for rate in policies.status_rates(transport))


def clean(one: Receipt) -> Receipt:
    """The receipt as both databases take it: no text from outside may stop the rows beside it."""
    texts = (one.remote_id, one.reason, one.code, one.key)
    if all(text.isascii() and text.isprintable() and len(text) <= _LONGEST for text in texts):
        return one
    remote_id, reason, code, key = ("".join(c if c.isprintable() else "?" for c in t[:_LONGEST]) for t in texts)
    return replace(one, remote_id=remote_id, reason=reason, code=code, key=key)
