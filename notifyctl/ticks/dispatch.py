"""Dispatch: one bounded run over the lanes, a straight line.

Claim and compose; in one transaction record whatever has finished and begin whatever fits into the
freed slots; submit in worker threads; again. The main thread owns the database, so groups form by themselves: while
one transaction commits, results gather for the next. Lanes interleave and share nothing but that transaction, so a
slow one never delays another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from queue import Empty
from typing import Any

from notifyctl import clock
from notifyctl.errors import ConfigError, LedgerUnavailable
from notifyctl.failpoints import reach
from notifyctl.ledger import backlog
from notifyctl.ledger import claim as claiming
from notifyctl.ledger import gate as gates
from notifyctl.ledger import record as recording
from notifyctl.ledger.begin import Begun, Held
from notifyctl.ledger.database import Tx
from notifyctl.lifecycle import MARGIN
from notifyctl.model import Step
from notifyctl.pacing import HORIZON, LimitKey
from notifyctl.ticks.conversations import Conversations
from notifyctl.ticks.exchange import grouped
from notifyctl.ticks.intake import CHUNK, Intake
from notifyctl.ticks.journal import journal
from notifyctl.ticks.judge import Judge, transport_wide
from notifyctl.ticks.lane import Composed, InFlight, LaneRun, Late, Submitted
from notifyctl.ticks.prepare import Prepared
from notifyctl.ticks.report import COUNTS, Report
from notifyctl.ticks.run import Run
from notifyctl.ticks.share import taken
from notifyctl.ticks.turn import Done, Group, turn
from notifyctl.ticks.workers import PATIENCE, finished, unstick
from notifyctl.transports.base import CROWDED, Transport

LAPSE_LIMIT = 500
LOCKED_PAUSE = 0.05  # seconds until a row that somebody else has locked is tried again
CRAMPED_PAUSE = 0.01  # seconds until a transport is asked again how many exchanges it holds
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
        self.intake = Intake(run, self.lanes, transports)
        self.conversations = Conversations(run.wake, {name: lane.senders for name, lane in self.lanes.items()})
        self.late: dict[LimitKey, timedelta] = {}  # how late messages went, not yet told to the pace
        self.cramped = False  # a transport holds fewer exchanges than could have begun
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
                    self._collect(wait=not (worked or self.intake.compose(1 if self.conversations else CHUNK)))
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
            self.intake.fill()
            self.intake.feed()
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
                self.intake.unproven.add(lane.transport)
        if lapsed:
            for name, held in self.run.ledger.transact(lapse):
                self.lanes[name].counts["leases_recovered"] += 1
                self.lanes[name].counts["held"] += held
            reach("lapse.committed")
            self.run.recorded = True

    # -- the turn: one transaction ------------------------------------------------------------------------------

    def _turn(self) -> bool:
        """Record what has finished, begin what fits. Returns whether there was anything to do."""
        self._renew()
        if self.conversations.brisk:  # the results that are about to come are worth waiting for: one commit for all
            return False
        group = Group()
        ready: dict[int, Prepared] = {}
        taken = [(lane, *lane.take_done()) for lane in self.lanes.values()]
        group.finished = [s for _, finished, _, _ in taken for s in finished]
        group.refusals = [r for _, _, refused, _ in taken for r in refused]
        group.returning = [row for *_, returning in taken for row in returning]
        ready.update((p.ready.delivery.id, p) for p in self._going())
        group.ready = [p.ready for p in ready.values()]
        group.late = self.late
        if group.empty:
            return False
        sent = clock.monotonic()
        try:
            meanwhile = self._meanwhile if self.conversations or self.intake.light else None
            done = self.run.ledger.transact(lambda tx: turn(tx, self.run, self.judge, group), meanwhile)
        except (LedgerUnavailable, ConfigError):
            for lane, finished, refused, returning in taken:
                lane.put_back_done(finished, refused, returning)
            for prepared in ready.values():
                self.lanes[prepared.ready.delivery.lane].ready.append(prepared)
            raise
        reach("turn.committed")
        self.run.failure = None
        self.run.recorded = True
        self.late = {}
        self._account(group, done)
        begun: dict[str, list[InFlight]] = {}
        for delivery, result in done.begun.items():
            lane = self.lanes[ready[delivery].ready.delivery.lane]
            if isinstance(result, Begun):
                begun.setdefault(lane.lane.name, []).append(InFlight(ready[delivery], result))
                self.intake.unproven.discard(lane.transport)
                if result.probe:
                    for other in self.lanes.values():
                        if other.transport == lane.transport:
                            self._shut(other)
            else:
                self._hold(lane, ready[delivery], result)
        for name, flights in begun.items():
            self._submit(self.lanes[name], flights, sent)
        return True

    def _meanwhile(self) -> bool:
        """What is done while a turn is committed; nothing of it touches the ledger."""
        for ended in self.conversations.step(0.0):
            self._ended(ended)
        return self.intake.compose(1) or bool(self.conversations)

    def _going(self) -> list[Prepared]:
        """What may try to begin now."""
        self.cramped = False
        if self.run.over:
            return []
        now, lanes = clock.monotonic(), self.lanes.values()
        may = [lane for lane in lanes if lane.ready and lane.stopped != "gate" and now >= lane.not_before]
        found, self.cramped = taken(may, lanes, self.transports) if may else ([], False)
        return found

    def _submit(self, lane: LaneRun, flights: Sequence[InFlight], sent: float) -> None:
        lane.flying.update((flight.key, flight) for flight in flights)
        for exchange in grouped(lane, self.transports[lane.transport], flights, sent, self.run.ledger.moment):
            self.last_deadline = max(self.last_deadline, exchange.deadline.at + MARGIN)
            self.conversations.give(exchange)

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
            if held.why == "destination_pace":
                self.intake.claimed -= 1  # a crowded address must not use up what the run may do for others
                self._comes_again(lane, until)

    def _comes_again(self, lane: LaneRun, at: datetime | None) -> None:
        """A row that goes back is taken up in this run yet, if it is due soon."""
        wait = 0.0 if at is None else (at - self.run.ledger.now()).total_seconds()
        if at is not None and wait < min(lane.lane.lease / 2, self.run.max_seconds - self.run.elapsed):
            lane.comes_again(clock.monotonic() + max(0.0, wait))

    def _wait_for_slot(self, lane: LaneRun, slot: datetime) -> None:
        """Ready rows without a slot stay in memory; if it lies beyond half a lease or the run's end they go back."""
        wait = (slot - self.run.ledger.now()).total_seconds()
        if wait < min(lane.lane.lease / 2, self.run.max_seconds - self.run.elapsed):
            ahead = HORIZON.total_seconds() / 2  # in time to take it while it lies ahead
            lane.not_before = max(lane.not_before, clock.monotonic() + wait - ahead)
            return
        lane.stopped = "pace"
        lane.returning += [(delivery, slot) for delivery in lane.take_unbegun()]

    def _shut(self, lane: LaneRun) -> None:
        """A closed gate: nothing more of this lane is tried in this run, unless its own probe opens it."""
        lane.stopped = "gate"
        lane.returning += [(d, d.was_eligible_at or d.due_at) for d in lane.take_unbegun()]

    def _account(self, group: Group, done: Done) -> None:
        limited: dict[int, str] = {}
        for submitted in group.finished:
            transport = self.lanes[submitted.lane].transport
            sharing = [lane for lane in self.lanes.values() if lane.transport == transport]
            if transport in done.opened:
                self.intake.unproven.discard(transport)
                for lane in sharing:
                    lane.stopped = "" if lane.stopped == "gate" else lane.stopped
            elif transport_wide(submitted.outcome) or submitted.flight.begun.probe:
                for lane in sharing:
                    if lane.stopped != "gate":
                        self._shut(lane)
            elif submitted.outcome.reason in CROWDED:
                limited[submitted.flight.prepared.ready.delivery.id] = submitted.lane
        for move in done.recorded:
            if move.id in limited and move.to.step is Step.SEND:
                self._comes_again(self.lanes[limited[move.id]], move.to.eligible_at)
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
        pools = [workers for lane in self.lanes.values() for workers in (lane.senders, lane.composers)]
        unstick(pools)
        if self.conversations:
            short = [workers for workers in pools if workers.short] if wait else []
            found = self.conversations.step(min(self._pause(), PATIENCE if short else 1.0) if wait else 0.0)
            for ended in found:
                self._ended(ended)
            for workers in () if found or self.run.wake.qsize() else short:
                workers.grow()
            wait = False
        try:
            item = finished(self.run.wake, pools, self._pause()) if wait else self.run.wake.get_nowait()
            while True:
                self._take(item)
                item = self.run.wake.get_nowait()
        except Empty:
            pass

    def _ended(self, exchange: Sequence[Submitted]) -> None:
        reach("exchange.taken")
        lane = self.lanes[exchange[0].lane]
        lane.senders.busy -= 1
        for submitted in exchange:
            del lane.flying[submitted.flight.key]
            lane.loaded.discard(submitted.flight.key[0])
        lane.finished += exchange

    def _take(self, item: Any) -> None:
        if isinstance(item, list):
            self.conversations.returned(self.lanes[item[0].lane].transport)
            self._ended(item)
        elif isinstance(item, Late):
            self.late.update((key, max(item.late, self.late.get(key, item.late))) for key in item.limits)
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
        if self.cramped:
            times.append(now + CRAMPED_PAUSE)
        for lane in self.lanes.values():
            if lane.waiting:
                times.append(lane.renew_at)
            if not lane.stopped:
                times.append(lane.rests_until)
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
