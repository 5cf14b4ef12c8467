"""Reconcile: what only evidence, a mandate or a deadline can settle, in one bounded run. It decides and never submits.

Lapsed attempts become doubt; doubt that is due is looked up in worker threads, where its transport can be searched,
and decided; checks whose receipts never came end; expired sends end, also behind closed gates. The main thread owns
the database, and each turn of its loop is one transaction. Dispatch alone acts on the mandates given here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from queue import Empty
from typing import Any

from notifyctl import clock, lifecycle
from notifyctl.failpoints import reach
from notifyctl.ledger import claim as claiming
from notifyctl.ledger import record as recording
from notifyctl.ledger import resolve
from notifyctl.ledger.database import Tx
from notifyctl.lifecycle import Trigger
from notifyctl.model import CannotTell, Lane, Receipts
from notifyctl.ticks.judge import Judge
from notifyctl.ticks.lookups import Answer, Group, LookUp, Resolver
from notifyctl.ticks.opened import Opened
from notifyctl.ticks.receipts_turn import Group as Checks
from notifyctl.ticks.receipts_turn import Policies
from notifyctl.ticks.receipts_turn import turn as check_turn
from notifyctl.ticks.reconcile_report import COUNTS, Report
from notifyctl.ticks.run import Run
from notifyctl.ticks.workers import Workers, finished

PAGE = 200  # rows that one transaction lapses, expires or takes over


class Reconcile:
    """One run of `reconcile` over `lanes`; `lost`: a region whose work this one takes over first."""

    def __init__(self, run: Run, lanes: Sequence[Lane], region: str, *, lost: str | None = None) -> None:
        self.run = run
        self.lanes = {lane.name: lane for lane in lanes}
        self.region = region
        self.lost = lost
        self.pairs = [(lane.name, region) for lane in lanes]
        self.opened = Opened(run)
        self.transports, self.faults = self.opened.transports, self.opened.faults
        self.report = Report()
        self.judge = Judge(self.lanes, self.transports)
        self.resolver = Resolver(run, self.lanes, self.transports)
        self.workers: dict[str, Workers] = {}
        self.cursors = {name: claiming.Cursor() for name in self.lanes}
        self.empty: set[str] = set()
        self.flying: dict[int, str] = {}  # delivery → its lane
        self.answers: list[Answer] = []
        self.decided = 0
        self.signalled_at: float | None = None

    def __call__(self) -> int:
        """Run to the end of the budget or of the work; returns the exit code."""
        with self.run.draining():
            try:
                self._take_over()
                self._lapse()
                self._expire()
                self._end_checks()
                self._resolve()
            finally:
                for workers in self.workers.values():
                    workers.close()
                self.opened.close()
        self.report.counts["unroutable"] = self.run.ledger.read(self._unroutable)
        code = self.report.exit_code(config=bool(self.faults))
        self.run.close_record(code, {name: self.report.counts[name] for name in COUNTS})
        return code

    def document(self) -> dict[str, Any]:
        """The JSON of `reconcile`."""
        return self.report.document(self.run)

    def rehearse(self) -> dict[str, Any]:
        """The same for `--dry-run`: what a run would begin with. What a look-up would say nobody can tell."""

        def look(tx: Tx) -> dict[Trigger, int]:
            self.report.counts["unroutable"] = self._unroutable(tx)
            if self.lost is not None:
                self.report.counts["taken_over"] = resolve.in_region(tx, self.lost)
            return resolve.due(tx, self.pairs)

        due = self.run.ledger.read(look)
        for lane in self.lanes.values():
            self.report.counts["unresolved"] += self._overdue_receipts(lane)
        self.report.counts["leases_recovered"] = due[Trigger.LAPSE]
        self.report.counts["expired"] = due[Trigger.EXPIRY_SWEEP]
        return {**self.document(), "in_doubt": due[Trigger.CANNOT_TELL]}

    # -- what needs no evidence -------------------------------------------------------------------------------------

    @property
    def _room(self) -> int:
        """Rows that may still be decided about in this run."""
        if self.run.over:
            return 0
        return PAGE if self.run.limit is None else max(0, min(PAGE, self.run.limit - self.decided))

    def _take_over(self) -> None:
        while self.lost is not None and (room := self._room):
            lost = self.lost

            def work(tx: Tx, lost: str = lost, room: int = room) -> int:
                moved = resolve.take_over(tx, lost=lost, region=self.region, run=self.run.id, limit=room)
                if moved:
                    self.run.open_record(tx)
                return moved

            moved = self._done(self.run.ledger.transact(work))
            self.report.counts["taken_over"] += moved
            if moved < room:
                break

    def _lapse(self) -> None:
        """Turn attempts whose deadline has passed into doubt (rule R10)."""
        if not self.run.ledger.read(lambda tx: recording.any_lapsed(tx, self.pairs)):
            return
        pairs = [(name, self.region) for name, lane in self.lanes.items() if self._judgeable(lane.transport)]
        while room := self._room:

            def work(tx: Tx, room: int = room) -> list[tuple[str, bool]]:
                self.run.open_record(tx)
                return recording.lapse(
                    tx, pairs=pairs, limit=room, actor=self.run.id, judge=lambda row: self.judge.lapse(row, tx.now)
                )

            lapsed = self.run.ledger.transact(work)
            self._done(len(lapsed))
            for _, held in lapsed:
                self.report.lapsed(held=held)
            if len(lapsed) < room:  # the rest is locked by somebody who is at it
                break

    def _expire(self) -> None:
        while room := self._room:

            def work(tx: Tx, room: int = room) -> int:
                found = resolve.expired(tx, pairs=self.pairs, limit=room)
                if found:
                    self.run.open_record(tx)
                    moves = [
                        (one, lifecycle.decide(
                            one.facts, Trigger.EXPIRY_SWEEP, tx.now, *self.resolver.policy(one.lane, one.channel, ""),
                            reason="expired",
                        ))
                        for one in found
                    ]  # fmt: skip
                    resolve.expire(tx, moves, actor=self.run.id)
                reach("reconcile.expired")
                return len(found)

            gone = self._done(self.run.ledger.transact(work))
            self.report.counts["expired"] += gone
            if gone < room:
                break

    def _end_checks(self) -> None:
        """Receipts that never came: `poll-receipts` looks once more at the deadline, and has a while for it."""
        policies = Policies(self.run.config.lanes, self.transports)
        for lane in self.lanes.values():
            for name, older_than in self._overdue(lane).items():
                while room := self._room:
                    checks = resolve.claim_overdue(
                        self.run.ledger, run=self.run.id, lane=lane.name, region=self.region, limit=room,
                        lease=lane.lease, transports=[name], older_than=older_than,
                    )  # fmt: skip
                    self._done(len(checks))
                    self.report.counts["leases_recovered"] += sum(check.recovered for check in checks)
                    if checks:
                        group = Checks(silent=[(check, Trigger.RECEIPT_DEADLINE) for check in checks])
                        done = self.run.ledger.transact(
                            lambda tx, group=group: check_turn(tx, self.run, policies, group)  # type: ignore[misc]
                        )
                        for judged in done.judged:
                            self.report.add(judged.heard.moves)
                    if len(checks) < room:
                        break

    def _overdue(self, lane: Lane) -> dict[str, float]:
        """The transports with overdue checks in this lane, and after how many seconds those end."""
        deadline = lane.receipt.deadline
        names = self.run.ledger.read(
            lambda tx: resolve.overdue_transports(tx, lane=lane.name, region=self.region, older_than=deadline)
        )
        ends = {}
        for name in names:
            transport = self.opened.get(name)
            if name in self.faults:
                continue
            asked = transport is not None and (transport.feeds or transport.capabilities.receipts is Receipts.LOOKUP)
            ends[name] = deadline + (lane.receipt.cap if asked else 0.0)
        return ends

    def _overdue_receipts(self, lane: Lane) -> int:
        """How many checks of a lane would end as unresolved: of transports that only bounce none does."""
        silent = (Receipts.NONE, Receipts.BOUNCES_ONLY)
        ends = {
            name: older_than for name, older_than in self._overdue(lane).items()
            if (known := self.transports.get(name)) is None or known.capabilities.receipts not in silent
        }  # fmt: skip
        return self.run.ledger.read(
            lambda tx: sum(
                resolve.overdue(tx, lane=lane.name, region=self.region, transport=name, older_than=older_than)
                for name, older_than in ends.items()
            )
        )

    def _unroutable(self, tx: Tx) -> int:
        """Rows of no configured lane, and those of another region that have long been due."""
        found = resolve.unclaimed(tx, lanes=self.run.config.lanes, region=self.region)
        return sum(count for _, _, count in found)

    # -- doubt --------------------------------------------------------------------------------------------------------

    def _resolve(self) -> None:
        for name in self.run.ledger.read(lambda tx: resolve.doubtful_transports(tx, self.pairs)):
            self.opened.get(name)
        while True:
            self._fill()
            worked = self._turn()
            if self._finished():
                break
            self._collect(wait=not worked)

    def _fill(self) -> None:
        """Claim no more than can be looked up at once: what is claimed is asked about right away."""
        going = [lane for lane in self.lanes.values() if lane.name not in self.empty]
        for lane in going:
            room = self._room
            if not room:
                return
            wanted = min(lane.concurrency - sum(name == lane.name for name in self.flying.values()), room)
            if self.run.limit is not None:
                wanted = min(wanted, math.ceil(room / len(going)))
            if wanted > 0:
                self._claim(lane, wanted)

    def _claim(self, lane: Lane, limit: int) -> None:
        doubts, self.cursors[lane.name] = resolve.claim_doubt(
            self.run.ledger, run=self.run.id, lane=lane.name, region=self.region, limit=limit,
            lease=max(lane.lease, self._longest() + 30.0), after=self.cursors[lane.name], but=[*self.faults],
        )  # fmt: skip
        reach("reconcile.claimed")
        if len(doubts) < limit:
            self.empty.add(lane.name)
        for doubt in doubts:
            self.opened.get(doubt.transport)
            if doubt.transport in self.faults:  # came in just now: it waits, as the others of its transport do
                self.answers.append(Answer(doubt, None))
                continue
            self._done(1)
            self.report.counts["leases_recovered"] += doubt.recovered
            question = self.resolver.question(doubt)
            if question is None:
                self.answers.append(Answer(doubt, CannotTell()))
                continue
            self.flying[doubt.id] = lane.name
            self._pool(doubt.transport, lane.concurrency).give(LookUp(doubt, question))

    def _longest(self) -> float:
        """Seconds that the slowest look-up may take."""
        return max((settings.deadline for settings in self.run.config.transports.values()), default=60.0)

    def _turn(self) -> bool:
        """Decide about what was looked up. Returns whether there was anything to do."""
        group, self.answers = Group(self.answers), []
        if not group.answers:
            return False
        moves = self.run.ledger.transact(lambda tx: self.resolver.turn(tx, group))
        reach("reconcile.committed")
        self.run.recorded = self.run.recorded or group.decides
        self.report.add(moves)
        for answer in group.answers:
            self.flying.pop(answer.doubt.id, None)
            self.report.answered(answer)
        return True

    def _judgeable(self, name: str) -> bool:
        """Whether it is known what the transport can prove; one that is configured no more can prove nothing."""
        self.opened.get(name)
        return name not in self.faults

    def _pool(self, name: str, size: int) -> Workers:
        if name not in self.workers:
            self.workers[name] = Workers(f"find-{name}", size, self.run.wake)
        return self.workers[name]

    def _done(self, rows: int) -> int:
        self.decided += rows
        self.run.recorded = self.run.recorded or rows > 0
        return rows

    # -- waiting and ending -------------------------------------------------------------------------------------------

    def _collect(self, *, wait: bool) -> None:
        """Take what the workers have found; `wait`: until there is something, but not for long: a signal may come."""
        try:
            item = finished(self.run.wake, [*self.workers.values()], 0.1) if wait else self.run.wake.get_nowait()
            while True:
                if isinstance(item, Answer):
                    self.workers[item.doubt.transport].busy -= 1
                    self.answers.append(item)
                item = self.run.wake.get_nowait()
        except Empty:
            pass

    def _finished(self) -> bool:
        if self.run.signalled:
            self.signalled_at = self.signalled_at or clock.monotonic()
            drain = max((t.settings.drain for t in self.transports.values()), default=0.0)
            if self.flying and clock.monotonic() >= self.signalled_at + drain:
                self.report.drained = False  # what is still looked up comes back when its lease has passed
                return True
        if self.flying or self.answers:
            return False
        return not self._room or self.empty >= self.lanes.keys()

