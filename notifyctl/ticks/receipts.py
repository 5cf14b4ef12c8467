"""Poll receipts: what became of what was accepted, in one bounded run; a straight line.

Due feeds and due checks are claimed; worker threads look statuses up and read feeds and mailboxes; the main thread
owns the database, and each turn of its loop is one transaction that keeps whatever has been learnt, moves the feeds'
cursors and takes slots for the next look-ups. Nothing is ever sent here, and a receipt that does not come causes
another look, never another send.

Checks of transports that cannot be asked (a feed, a mailbox, none at all) only wait for their feed to have been read
to its end in this run, and are then due again later, or end with their deadline.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from datetime import datetime, timedelta
from queue import Empty
from typing import Any

from notifyctl import clock
from notifyctl.failpoints import reach
from notifyctl.ledger import claim as claiming
from notifyctl.ledger import receipts as ledger
from notifyctl.ledger import record as recording
from notifyctl.ledger.database import Tx
from notifyctl.ledger.receipts import Check
from notifyctl.lifecycle import MARGIN, Trigger
from notifyctl.model import Lane, Receipts, Step
from notifyctl.ticks.judge import Judge
from notifyctl.ticks.opened import Opened
from notifyctl.ticks.receipts_feeds import ELSEWHERE, FAILED, READING, Feeds
from notifyctl.ticks.receipts_report import COUNTS, Report, journal
from notifyctl.ticks.receipts_turn import Answered, Done, Group, Policies, Read, turn
from notifyctl.ticks.receipts_work import LookUp, Marked
from notifyctl.ticks.run import Run
from notifyctl.ticks.workers import Workers, finished, unstick

LAPSE_LIMIT = 500
AHEAD = 4  # look-ups that wait for each worker of a transport whose rate is not limited
FAULTS = 5  # failed look-ups of a transport in a row, and the rest of its checks wait for the next run
ALONE = 3600.0  # seconds for which the rest of a provider's checks rest at most where it asks to be left alone
AWAY = 30.0  # seconds until a check is looked at again whose feed somebody else is reading


class LaneChecks:
    """One lane of a run: what it owns. `waiting`: to be looked up; `parked`: until the feed has been read."""

    def __init__(self, lane: Lane, region: str) -> None:
        self.lane = lane
        self.region = region
        self.cursor = claiming.Cursor()
        self.empty = False
        self.owned: dict[int, Check] = {}
        self.waiting: deque[Check] = deque()
        self.parked: list[Check] = []
        self.renew_at = 0.0  # monotonic


class Poll:
    """One run of `poll-receipts` over `lanes`; `only`: of these transports alone."""

    def __init__(self, run: Run, lanes: Sequence[Lane], region: str, *, only: Sequence[str] = ()) -> None:
        self.run = run
        self.lanes = {lane.name: LaneChecks(lane, region) for lane in lanes}
        self.only = list(only) or None
        self.opened = Opened(run)
        self.transports, self.faults = self.opened.transports, self.opened.faults
        self.policies = Policies(run.config.lanes, self.transports)
        self.report = Report()
        self.workers: dict[str, Workers] = {}
        self.faulted: dict[str, int] = {}  # failed look-ups in a row
        self.alone: dict[str, datetime] = {}  # transports that asked for time, and until when they have it
        self.not_before: dict[str, float] = {}  # monotonic: when a transport's status rate allows the next look-up
        self.flying: dict[int, Check] = {}
        self.flying_until: dict[int, float] = {}  # monotonic
        self.group = Group()
        self.feeds = Feeds(run, self.transports, self.report, self._pool)
        self.signalled_at: float | None = None

    def __call__(self) -> int:
        """Run to the end of the budget or of the work; returns the exit code."""
        with self.run.draining():
            try:
                self._lapse()
                self.feeds.claim(self._sources())
                while True:
                    self._fill()
                    worked = self._turn()
                    if self._finished():
                        break
                    self._collect(wait=not worked)
                self._release_rest()
            finally:
                for workers in self.workers.values():
                    workers.close()
                self.opened.close()
        code = self.report.exit_code(config=bool(self.faults))
        self.run.close_record(code, {name: self.report.total(name) for name in COUNTS})
        return code

    def document(self) -> dict[str, Any]:
        """The JSON of `poll-receipts`."""
        return self.report.document(self.run)

    # -- before the first look --------------------------------------------------------------------------------------

    def _lapse(self) -> None:
        """Turn attempts whose deadline has passed into doubt (rule R10), in lanes whose transport can be judged."""
        pairs = [(name, one.region) for name, one in self.lanes.items()]
        if not self.run.ledger.read(lambda tx: recording.any_lapsed(tx, pairs)):
            return
        pairs = [(name, one.region) for name, one in self.lanes.items() if self.opened.get(one.lane.transport)]
        judge = Judge({name: one.lane for name, one in self.lanes.items()}, self.transports)

        def lapse(tx: Tx) -> list[tuple[str, bool]]:
            self.run.open_record(tx)
            return recording.lapse(
                tx, pairs=pairs, limit=LAPSE_LIMIT, actor=self.run.id, judge=lambda row: judge.lapse(row, tx.now)
            )

        for name, held in self.run.ledger.transact(lapse):
            self.report.lapsed(self.lanes[name].lane.transport, held=held)
        self.run.recorded = True

    def _sources(self) -> list[str]:
        """The transports of this run that have a feed or a mailbox."""
        names = self.only or sorted({one.lane.transport for one in self.lanes.values()})
        return [name for name in names if (transport := self.opened.get(name)) is not None and transport.feeds]

    def _pool(self, name: str, size: int) -> Workers:
        if name not in self.workers:
            self.workers[name] = Workers(name, size, self.run.wake)
        return self.workers[name]

    # -- claim ------------------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Claim for every lane that runs low; lanes share the run's limit fairly."""
        going = [one for one in self.lanes.values() if not one.empty]
        for one in going:
            if self.run.over or len(one.waiting) + len(one.parked) > one.lane.batch // 2:
                continue
            wanted = self._wanted(one, len(going))
            if wanted > 0:
                self._claim(one, wanted)

    def _wanted(self, one: LaneChecks, sharers: int) -> int:
        wanted = one.lane.batch
        if self.run.limit is not None:
            left = self.run.limit - self.feeds.taken
            one.empty = left <= 0
            wanted = min(wanted, math.ceil(left / sharers))
        self.opened.get(one.lane.transport)
        for rate in self.policies.status_rates(one.lane.transport):
            granted = max(1, int(rate.count / rate.seconds * one.lane.lease / 2))
            wanted = min(wanted, granted - len(one.waiting))
        return wanted

    def _claim(self, one: LaneChecks, limit: int) -> None:
        sent = clock.monotonic()
        tired = [name for name, faults in self.faulted.items() if faults >= FAULTS]
        checks, one.cursor = ledger.claim_checks(
            self.run.ledger, run=self.run.id, lane=one.lane.name, region=one.region, limit=limit,
            lease=one.lane.lease, after=one.cursor, only=self.only, but=[*self.faults, *tired],
        )  # fmt: skip
        reach("poll.claimed")
        one.empty = len(checks) < limit
        if checks and not one.owned:
            one.renew_at = sent + one.lane.lease / 2
        self.feeds.taken += len(checks)
        for check in checks:
            one.owned[check.id] = check
            self.report.count(check.transport, "leases_recovered", int(check.recovered))
            transport = self.opened.get(check.transport)
            if check.transport in self.faults:
                self._return(one, check)
            elif transport is None:
                self._silent(check, Trigger.RECEIPT_ERROR)  # not configured any more
            elif transport.capabilities.receipts is Receipts.LOOKUP:
                if check.remote_ids:
                    one.waiting.append(check)
                else:
                    self._silent(check, Trigger.RECEIPT_NOT_YET)  # there is nothing to ask by
            else:
                one.parked.append(check)

    def _silent(self, check: Check, ends: Trigger) -> None:
        self.group.silent = [*self.group.silent, (check, ends)]

    def _return(self, one: LaneChecks, check: Check, at: datetime | None = None) -> None:
        one.owned.pop(check.id, None)
        self.group.returning = [*self.group.returning, (check, at or check.was_eligible_at)]

    def _unpark(self) -> None:
        """Checks that wait for their feed: end them once it has been read."""
        for one in self.lanes.values():
            parked, one.parked = one.parked, []
            for check in parked:
                state = self.feeds.state(check.transport)
                if state == READING:
                    one.parked.append(check)
                elif state == ELSEWHERE:
                    self._return(one, check, self.run.ledger.now() + timedelta(seconds=AWAY))
                else:
                    self._silent(check, Trigger.RECEIPT_ERROR if state == FAILED else Trigger.RECEIPT_NOT_YET)

    # -- the turn: one transaction ------------------------------------------------------------------------------------

    def _turn(self) -> bool:
        """Keep what was learnt, take slots for what is next. Returns whether there was anything to do."""
        self._renew()
        self._unpark()
        self.group.asking, self.group.over = self._asking(), self.feeds.take_over()
        group, self.group = self.group, Group()
        if group.empty:
            return False
        sent = clock.monotonic()
        done = self.run.ledger.transact(lambda tx: turn(tx, self.run, self.policies, group))
        reach("poll.committed")
        self.run.recorded = self.run.recorded or group.known
        for check in [*(answer.check for answer in group.answers), *(check for check, _ in group.silent)]:
            self.lanes[check.lane].owned.pop(check.id, None)
        self.report.add(group, done)
        journal(self.run, done)
        self.feeds.go_on(group, done)
        self._look_up(group, done, sent)
        return True

    def _asking(self) -> list[Check]:
        """The next checks to be looked up, as many as there are free workers and slots."""
        chosen: list[Check] = []
        if self.run.over:
            return chosen
        now = clock.monotonic()
        for one in self.lanes.values():
            for _ in range(len(one.waiting)):
                check = one.waiting[0]
                if self.faulted.get(check.transport, 0) >= FAULTS:
                    self._return(one, one.waiting.popleft(), self.alone.get(check.transport))
                    continue
                under_way = sum(other.transport == check.transport for other in (*self.flying.values(), *chosen))
                if under_way >= self._ahead(check.transport) or now < self.not_before.get(check.transport, 0.0):
                    break
                chosen.append(one.waiting.popleft())
        return chosen

    def _size(self, transport: str) -> int:
        """How many look-ups of a transport may be under way at once."""
        return max((one.lane.concurrency for one in self.lanes.values() if one.lane.transport == transport), default=1)

    def _ahead(self, transport: str) -> int:
        """How many look-ups of a transport are given to its workers: a few for each, so that answers come in groups."""
        return self._size(transport) * (1 if self.policies.status_rates(transport) else AHEAD)

    def _look_up(self, group: Group, done: Done, sent: float) -> None:
        for check in group.asking:
            slot, taken = done.slots[check.id]
            assert done.now is not None
            wait = (slot - done.now).total_seconds()
            if taken:
                self.flying[check.id] = check
                transport = self.transports[check.transport]
                each = transport.settings.deadline * len(check.remote_ids)
                self.flying_until[check.id] = sent + max(wait, 0.0) + AHEAD * each + MARGIN
                self._pool(f"status-{check.transport}", self._size(check.transport)).give(
                    LookUp(check, transport, sent + max(wait, 0.0))
                )
                continue
            one = self.lanes[check.lane]
            if wait < min(one.lane.lease / 2, self.run.max_seconds - self.run.elapsed):
                one.waiting.appendleft(check)
                self.not_before[check.transport] = max(self.not_before.get(check.transport, 0.0), sent + wait)
            else:
                self._return(one, check, slot)

    def _renew(self) -> None:
        """Keep what is claimed and not answered; what was lost meanwhile is somebody else's."""
        for one in self.lanes.values():
            if one.owned and clock.monotonic() >= one.renew_at:
                sent = clock.monotonic()
                owned = {check.id: check.token for check in one.owned.values()}
                kept = claiming.renew(self.run.ledger, run=self.run.id, owned=owned, lease=one.lane.lease)
                one.renew_at = sent + one.lane.lease / 2
                one.owned = {i: check for i, check in one.owned.items() if i in kept}
                one.waiting = deque(check for check in one.waiting if check.id in kept)
                one.parked = [check for check in one.parked if check.id in kept]

    # -- waiting and ending -------------------------------------------------------------------------------------------

    def _collect(self, *, wait: bool) -> None:
        """Take what the workers have finished; `wait`: until there is something, or something else falls due."""
        pools = list(self.workers.values())
        unstick(pools)
        try:
            item = finished(self.run.wake, pools, self._pause()) if wait else self.run.wake.get_nowait()
            while True:
                self._take(item)
                item = self.run.wake.get_nowait()
        except Empty:
            pass

    def _pause(self) -> float:
        """Seconds until something else falls due."""
        now = clock.monotonic()
        times = [self.run.began + self.run.max_seconds, *self.not_before.values()]
        times += [one.renew_at for one in self.lanes.values() if one.owned]
        # A signal that comes just before the wait begins does not end it; the second one is to end the run at once.
        return max(0.001, min((0.1 if self.run.signalled else 1.0, *(at - now for at in times if at > now))))

    def _take(self, item: Any) -> None:
        if isinstance(item, Answered):
            name = item.check.transport
            self.workers[f"status-{name}"].busy -= 1
            self.flying.pop(item.check.id, None)
            self.flying_until.pop(item.check.id, None)
            self.faulted[name] = self.faulted.get(name, 0) + 1 if item.fault else 0
            if item.wait:
                self.faulted[name] = FAULTS
                self.alone[name] = self.run.ledger.now() + timedelta(seconds=min(item.wait, ALONE))
            self.group.answers = [*self.group.answers, item]
        elif isinstance(item, Read):
            self.workers[f"feed-{item.feed.transport}"].busy -= 1
            self.group.pages = [*self.group.pages, item]
        elif isinstance(item, Marked):
            self.workers[f"feed-{item.feed.transport}"].busy -= 1
            self.feeds.marked(item)

    def _finished(self) -> bool:
        if self.run.signalled:
            self.signalled_at = self.signalled_at or clock.monotonic()
            drain = max((one.settings.drain for one in self.transports.values()), default=0.0)
            if clock.monotonic() >= self.signalled_at + drain and (self.flying or self.feeds.reading):
                self.report.drained = False
                return True
        if self.group.empty and clock.monotonic() >= self._hopeless():
            self.report.drained = False  # whatever is asked keeps no deadline; what is claimed is left to its lease
            return True
        if self.flying or self.feeds.reading or not self.group.empty:
            return False
        if self.run.over:
            return True
        return all(one.empty and not one.waiting and not one.parked for one in self.lanes.values())

    def _hopeless(self) -> float:
        """When (monotonic) nothing that is under way can be expected to end any more; infinity while nothing is."""
        ends = [*self.flying_until.values(), *self.feeds.until.values()]
        return max(ends, default=math.inf)

    def _release_rest(self) -> None:
        """Give back at once what was claimed and not asked for; what still flies is left to its lease."""
        for one in self.lanes.values():
            for check in [*one.waiting, *one.parked]:
                self._return(one, check)
            one.waiting.clear()
            one.parked.clear()
        self.run.max_seconds = 0.0
        self._turn()
        if self.run.ledger.reconnected:  # a claim whose COMMIT was not heard of left rows that nobody here knows
            pairs = [(name, one.region) for name, one in self.lanes.items()]
            claiming.release_run(self.run.ledger, run=self.run.id, step=Step.CHECK, pairs=pairs)
