"""Dispatch: one bounded run over the lanes, a straight line.

Claim; compose in worker threads; in one transaction record whatever has finished and begin whatever fits into the
freed slots; submit in worker threads; again. The main thread owns the database, so groups form by themselves: while
one transaction commits, results gather for the next. Lanes interleave and share nothing but that transaction, so a
slow one never delays another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from queue import Empty
from typing import Any

from notifyctl import clock
from notifyctl.errors import ConfigError, LedgerUnavailable
from notifyctl.failpoints import reach
from notifyctl.ledger import backlog, templates
from notifyctl.ledger import claim as claiming
from notifyctl.ledger import gate as gates
from notifyctl.ledger import record as recording
from notifyctl.ledger.begin import Begun, Held
from notifyctl.ledger.database import Tx
from notifyctl.lifecycle import MARGIN
from notifyctl.model import Delivery, Step, Template
from notifyctl.ticks.exchange import grouped
from notifyctl.ticks.journal import journal
from notifyctl.ticks.judge import Judge, transport_wide
from notifyctl.ticks.lane import Composed, InFlight, LaneRun
from notifyctl.ticks.prepare import Prepared
from notifyctl.ticks.report import COUNTS, Report
from notifyctl.ticks.run import Run
from notifyctl.ticks.turn import Done, Group, turn
from notifyctl.ticks.workers import PATIENCE
from notifyctl.transports.base import Transport

CHUNK = 10  # deliveries a composing job takes: a hand-over between threads costs as much as composing one
SLOW = 0.01  # seconds that composing one delivery may hold up everything else
SLOWS = 3  # such deliveries in a row, and a lane's go to a thread (the first of each template also compiles it)
LAPSE_LIMIT = 500
LOCKED_PAUSE = 0.05  # seconds until a row that somebody else has locked is tried again
AWAY_PAUSE = 0.2  # seconds until a ledger that is out of reach is tried again


class Dispatch:
    """One run of `dispatch` over `lanes`."""

    def __init__(
        self, run: Run, lanes: Sequence[LaneRun], transports: Mapping[str, Transport],
        faults: Sequence[ConfigError] = (),
    ) -> None:  # fmt: skip
        self.run = run
        self.lanes = {lane.lane.name: lane for lane in lanes}
        self.transports = transports
        self.judge = Judge({name: lane.lane for name, lane in self.lanes.items()}, transports)
        self.faults = faults  # transports that could not be opened; their lanes are not part of this run
        self.report = Report(self.lanes, config_fault=bool(faults))
        self.templates: dict[tuple[str, str | None], Template | None] = {}
        self.unproven: set[str] = set()  # transports whose gate waits for a probe: one row is enough to try
        self.claimed = 0
        self.signalled_at: float | None = None
        self.last_deadline = 0.0  # monotonic: when the last begun attempt counts as lost

    def __call__(self) -> int:
        """Run to the end of the budget or of the work; returns the exit code."""
        with self.run.draining():
            try:
                self._start()
                while True:
                    worked = self._step()
                    if self._finished():
                        break
                    self._collect(wait=not (worked or self._compose()))
                if self.run.failure:
                    raise self.run.failure
                self._release_rest()
            finally:
                for lane in self.lanes.values():
                    lane.composers.close()
                    lane.senders.close()
                for transport in self.transports.values():
                    transport.close()
        code = self.report.exit_code()
        self.run.close_record(code, {name: self.report.total(name) for name in COUNTS})
        return code

    def document(self) -> dict[str, Any]:
        """The JSON of `dispatch`, with the age of what is still due."""
        pairs = [(lane.lane.name, lane.region) for lane in self.lanes.values()]
        self.report.ages = dict(self.run.ledger.read(lambda tx: backlog.oldest_ages(tx, pairs)))
        return self.report.document(self.run)

    def _step(self) -> bool:
        """Claim, record, begin. Returns whether anything was written.

        While the ledger is out of reach nothing new begins, but what is known of begun attempts is kept, and written
        as soon as that is possible, until even the last of them counts as lost.
        """
        try:
            self._fill()
            self._feed()
            return self._turn()
        except (LedgerUnavailable, ConfigError) as error:  # a refused connection is a person's matter, but no less away
            self.run.failure = error
            if not any(lane.flying or lane.finished for lane in self.lanes.values()):
                raise
            return False

    # -- before the first claim ---------------------------------------------------------------------------------

    def _start(self) -> None:
        """Look at the gates, and turn attempts whose deadline has passed into doubt (rule R10)."""
        pairs = [(lane.lane.name, lane.region) for lane in self.lanes.values()]

        def look(tx: Tx) -> tuple[dict[str, int], Any, bool]:
            return gates.levels(tx, self.transports), gates.strongest(gates.look(tx)), recording.any_lapsed(tx, pairs)

        def lapse(tx: Tx) -> list[tuple[str, bool]]:
            self.run.open_record(tx)
            return recording.lapse(
                tx, pairs=pairs, limit=LAPSE_LIMIT, actor=self.run.id,
                judge=lambda row: self.judge.lapse(row, tx.now),
            )  # fmt: skip

        self.judge.levels, standing, lapsed = self.run.ledger.read(look)
        for lane in self.lanes.values():
            shut = gates.of(standing, lane.lane.name, lane.transport)
            if shut is not None and not shut.due:
                lane.stopped = "gate"
            elif shut is not None:
                self.unproven.add(lane.transport)
        if lapsed:
            for name, held in self.run.ledger.transact(lapse):
                self.lanes[name].counts["leases_recovered"] += 1
                self.lanes[name].counts["held"] += held
            reach("lapse.committed")
            self.run.recorded = True

    # -- claim and compose --------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Claim for every lane that runs low; lanes share the run's limit fairly."""
        if self.run.over:
            if not self.run.failure:
                for lane in self.lanes.values():
                    lane.stopped = lane.stopped or self.run.over
            return
        going = [lane for lane in self.lanes.values() if not lane.stopped]
        for lane in going:
            if lane.waiting > lane.lane.batch // 2:
                continue
            if self.run.limit is not None and self.claimed >= self.run.limit:
                lane.stopped = "limit"
                continue
            wanted = self._wanted(lane, len(going))
            if wanted > 0:
                self._claim(lane, wanted)

    def _feed(self) -> None:
        """Compose deliveries with attachments one by one, so that their bytes never pile up in memory."""
        for lane in self.lanes.values():
            while (delivery := lane.next_laden()) is not None:
                lane.composers.give(self._compose_job(lane, [delivery]))

    def _wanted(self, lane: LaneRun, sharers: int) -> int:
        wanted = lane.lane.batch if lane.transport not in self.unproven else 1 - lane.waiting
        if self.run.limit is not None:
            wanted = min(wanted, math.ceil((self.run.limit - self.claimed) / sharers))
        for rate in (*lane.lane.rates, *self.transports[lane.transport].settings.rates):
            if rate.seconds <= 60:  # no more than the pace will grant within half a lease
                granted = max(1, int(rate.count / rate.seconds * lane.lane.lease / 2))
                wanted = min(wanted, granted - lane.waiting)
        return wanted

    def _claim(self, lane: LaneRun, limit: int) -> None:
        sent = clock.monotonic()
        swept = lane.cursor == claiming.Cursor()
        rows, lane.cursor = claiming.claim(
            self.run.ledger, run=self.run.id, step=Step.SEND, lane=lane.lane.name, region=lane.region,
            limit=limit, lease=lane.lane.lease, after=lane.cursor,
        )  # fmt: skip
        if len(rows) < limit:
            lane.cursor = claiming.Cursor()  # one sweep from the beginning before the lane counts as empty
            if swept:
                lane.stopped = "empty"
        if not rows:
            return
        if not lane.waiting:
            lane.renew_at = sent + lane.lane.lease / 2
        self.claimed += len(rows)
        lane.counts["claimed"] += len(rows)
        lane.counts["leases_recovered"] += sum(row.recovered for row in rows)
        self._load_templates(rows)
        lane.composing.update((row.id, row) for row in rows)
        lane.laden.extend(row for row in rows if row.attachments)
        lane.light.extend(row for row in rows if not row.attachments)
        self._hand_over(lane)

    def _hand_over(self, lane: LaneRun) -> None:
        """Give what is not composed here to a composing thread."""
        while lane.light and not lane.inline:
            chunk = [lane.light.popleft() for _ in range(min(CHUNK, len(lane.light)))]
            lane.composers.give(self._compose_job(lane, chunk))

    def _compose(self) -> bool:
        """Compose a few rows here while the network is waited for; returns whether there were any.

        A thread of its own would take turns with this one at the interpreter's lock, which costs more than composing.
        A signature is computed without that lock, and a slow template would hold up the other lanes: those have one.
        """
        worked = False
        for lane in self.lanes.values():
            for _ in range(min(CHUNK, len(lane.light))):
                if lane.ready and self.run.wake.qsize() > len(lane.flying) // 2:
                    break
                began, delivery = clock.monotonic(), lane.light.popleft()
                lane.composed(lane.preparer.prepare(delivery, self.templates, self.run.ledger.now()))
                worked = True
                lane.slow = lane.slow + 1 if clock.monotonic() - began > SLOW else 0
                if lane.slow == SLOWS:
                    lane.inline = False
                    self._hand_over(lane)
                    break
        return worked

    def _load_templates(self, rows: Iterable[Delivery]) -> None:
        named = {(row.template, row.template_version) for row in rows if isinstance(row.template, str)}
        missing = {pair for pair in named if isinstance(pair[1], str | None)} - self.templates.keys()
        if missing:
            found = self.run.ledger.read(lambda tx: templates.load_many(tx, missing))
            self.templates.update({key: found.get(key) for key in missing})

    def _compose_job(self, lane: LaneRun, chunk: Sequence[Delivery]) -> Callable[[], Composed]:
        now, known, preparer, name = self.run.ledger.now(), self.templates, lane.preparer, lane.lane.name
        return lambda: Composed(name, [preparer.prepare(delivery, known, now) for delivery in chunk])

    # -- the turn: one transaction ------------------------------------------------------------------------------

    def _turn(self) -> bool:
        """Record what has finished, begin what fits. Returns whether there was anything to do."""
        self._renew()
        group = Group()
        ready: dict[int, Prepared] = {}
        group.finished = [s for lane in self.lanes.values() for s in lane.finished]
        group.refusals = [r for lane in self.lanes.values() for r in lane.refused]
        group.returning = [row for lane in self.lanes.values() for row in lane.returning]
        for lane in self.lanes.values():
            ready.update((p.ready.delivery.id, p) for p in self._going(lane))
        group.ready = [p.ready for p in ready.values()]
        if group.empty:
            return False
        sent = clock.monotonic()
        try:
            done = self.run.ledger.transact(lambda tx: turn(tx, self.run, self.judge, group))
        except (LedgerUnavailable, ConfigError):
            for prepared in ready.values():
                self.lanes[prepared.ready.delivery.lane].ready.append(prepared)
            raise
        reach("turn.committed")
        self.run.failure = None
        self.run.recorded = True
        for lane in self.lanes.values():
            lane.finished, lane.refused, lane.returning = [], [], []
        self._account(group, done)
        begun: dict[str, list[InFlight]] = {}
        for delivery, result in done.begun.items():
            lane = self.lanes[ready[delivery].ready.delivery.lane]
            if isinstance(result, Begun):
                begun.setdefault(lane.lane.name, []).append(InFlight(ready[delivery], result))
                self.unproven.discard(lane.transport)
                if result.probe:
                    for other in self.lanes.values():
                        if other.transport == lane.transport:
                            self._shut(other)
            else:
                self._hold(lane, ready[delivery], result)
        for name, flights in begun.items():
            self._submit(self.lanes[name], flights, sent)
        return True

    def _going(self, lane: LaneRun) -> list[Prepared]:
        """What of a lane may try to begin now."""
        if self.run.over or lane.stopped == "gate" or clock.monotonic() < lane.not_before:
            return []
        return lane.take_ready()

    def _submit(self, lane: LaneRun, flights: Sequence[InFlight], sent: float) -> None:
        lane.flying.update((flight.prepared.ready.delivery.id, flight) for flight in flights)
        for exchange in grouped(lane.lane.name, self.transports[lane.transport], flights, sent):
            self.last_deadline = max(self.last_deadline, exchange.deadline.at + MARGIN)
            lane.senders.give(exchange)

    def _hold(self, lane: LaneRun, prepared: Prepared, held: Held) -> None:
        """A row that did not begin: back to memory, back to the ledger, or gone to another owner."""
        delivery = prepared.ready.delivery
        until = held.until or delivery.was_eligible_at or delivery.due_at
        if held.why == "gate":
            until = delivery.was_eligible_at or delivery.due_at  # when it opens, the oldest go first
        if held.why in ("locked", "pace") and lane.stopped == "gate":  # shut in this very turn: nothing waits in memory
            lane.returning.append((delivery, until))
        elif held.why == "locked":
            if lane.put_back_locked(prepared):  # all others are tried first: an open transaction delays its rows only
                lane.not_before = clock.monotonic() + LOCKED_PAUSE
        elif held.why == "pace":
            lane.ready.append(prepared)
            self._wait_for_slot(lane, until)
        elif held.why == "gate":
            lane.returning.append((delivery, until))
            self._shut(lane)
        elif held.why in ("destination_pace", "moved"):  # moved: claimed again, it is composed for the new address
            lane.returning.append((delivery, until))

    def _wait_for_slot(self, lane: LaneRun, slot: datetime) -> None:
        """Ready rows without a slot stay in memory; if it lies beyond half a lease or the run's end they go back."""
        wait = (slot - self.run.ledger.now()).total_seconds()
        if wait < min(lane.lane.lease / 2, self.run.max_seconds - self.run.elapsed):
            lane.not_before = max(lane.not_before, clock.monotonic() + wait)
            return
        lane.stopped = "pace"
        lane.returning += [(delivery, slot) for delivery in lane.take_unbegun()]

    def _shut(self, lane: LaneRun) -> None:
        """A closed gate: nothing more of this lane is tried in this run, unless its own probe opens it."""
        lane.stopped = "gate"
        lane.returning += [(d, d.was_eligible_at or d.due_at) for d in lane.take_unbegun()]

    def _account(self, group: Group, done: Done) -> None:
        for submitted in group.finished:
            transport = self.lanes[submitted.lane].transport
            sharing = [lane for lane in self.lanes.values() if lane.transport == transport]
            if transport in done.opened:
                self.unproven.discard(transport)
                for lane in sharing:
                    lane.stopped = "" if lane.stopped == "gate" else lane.stopped
            elif transport_wide(submitted.outcome) or submitted.flight.begun.probe:
                for lane in sharing:
                    if lane.stopped != "gate":
                        self._shut(lane)
        self.report.add(group, done)
        journal(self.run, group)

    def _renew(self) -> None:
        """Keep what is claimed and not begun; what was lost meanwhile is somebody else's."""
        for lane in self.lanes.values():
            if lane.waiting and clock.monotonic() >= lane.renew_at:
                sent = clock.monotonic()
                owned = {row.id: row.token for row in lane.unbegun.values()}
                kept = claiming.renew(self.run.ledger, run=self.run.id, owned=owned, lease=lane.lane.lease)
                lane.drop(owned.keys() - kept)
                lane.renew_at = sent + lane.lane.lease / 2

    # -- waiting and ending -------------------------------------------------------------------------------------

    def _collect(self, *, wait: bool) -> None:
        """Take what the workers have finished; `wait`: until there is something, or something else falls due."""
        now = clock.monotonic()
        for lane in self.lanes.values():
            for workers in (lane.senders, lane.composers):
                if workers.stuck(now):
                    workers.grow()
        try:
            item = self._wait() if wait else self.run.wake.get_nowait()
            while True:
                self._take(item)
                item = self.run.wake.get_nowait()
        except Empty:
            pass

    def _wait(self) -> Any:
        """The next thing a worker has finished; raises Empty when something else falls due."""
        pause = self._pause()
        while short := [w for lane in self.lanes.values() for w in (lane.senders, lane.composers) if w.short]:
            try:
                return self.run.wake.get(timeout=min(pause, PATIENCE))
            except Empty:
                if pause <= PATIENCE:
                    raise
                pause -= PATIENCE
                for workers in short:
                    workers.grow()
        return self.run.wake.get(timeout=pause)

    def _take(self, item: Any) -> None:
        if isinstance(item, list):
            reach("exchange.taken")
            lane = self.lanes[item[0].lane]
            lane.senders.busy -= 1
            for submitted in item:
                delivery = submitted.flight.prepared.ready.delivery.id
                del lane.flying[delivery]
                lane.loaded.discard(delivery)
            lane.finished += item
        elif isinstance(item, Composed):
            lane = self.lanes[item.lane]
            lane.composers.busy -= 1
            for result in item.results:
                lane.composed(result)

    def _pause(self) -> float:
        if self.run.failure:
            return AWAY_PAUSE
        now = clock.monotonic()
        times = [self.run.began + self.run.max_seconds]
        if self.signalled_at is not None:
            times = [self.signalled_at + self._drain_time()]
        for lane in self.lanes.values():
            if lane.waiting:
                times.append(lane.renew_at)
            if lane.ready and lane.free and lane.not_before > now:
                times.append(lane.not_before)
        # A signal that comes just before the wait begins does not end it; the second one is to end the run at once.
        most = 0.1 if self.run.signalled else 1.0
        return max(0.001, min((most, *(t - now for t in times if t > now))))

    def _drain_time(self) -> float:
        return max((self.transports[lane.transport].settings.drain for lane in self.lanes.values() if lane.flying),
                   default=0.0)  # fmt: skip

    def _finished(self) -> bool:
        if self.run.signalled:
            reach("drain.begun")
            self.signalled_at = self.signalled_at or clock.monotonic()
            if clock.monotonic() >= self.signalled_at + self._drain_time() and any(
                lane.flying for lane in self.lanes.values()
            ):
                self.report.drained = False  # what still flies is on disk as begun: it will be found in doubt
                return True
        if self.run.failure and clock.monotonic() >= self.last_deadline:
            return True
        if any(lane.active for lane in self.lanes.values()):
            return False
        if self.run.over:
            return True
        return all(lane.stopped and not lane.waiting for lane in self.lanes.values())

    def _release_rest(self) -> None:
        """Give back at once what was claimed and not begun: unattempted, nothing charged."""
        reach("release.begun")
        for lane in self.lanes.values():
            rest = lane.take_unbegun()
            if rest:  # that nothing more was there to claim is not what ended it
                lane.stopped = self.run.over or lane.stopped
            lane.returning += [(d, d.was_eligible_at or d.due_at) for d in rest]
        self.run.max_seconds = 0.0  # nothing may begin any more
        self._turn()
        if self.run.ledger.reconnected:  # a claim whose COMMIT was not heard of left rows that nobody here knows
            pairs = [(lane.lane.name, lane.region) for lane in self.lanes.values()]
            claiming.release_run(self.run.ledger, run=self.run.id, step=Step.SEND, pairs=pairs)
