"""What a dispatch run takes in: due rows, claimed for lanes that run low, and composed.

Rows are composed by the main thread while it waits for the network: a thread of its own would take turns with it at
the interpreter's lock, which costs more than composing. What is signed, what needs attachments, and what has proved
slow is composed in threads, so that it holds nobody up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from notifyctl import clock
from notifyctl.ledger import claim as claiming
from notifyctl.ledger import templates
from notifyctl.model import Delivery, Step, Template
from notifyctl.ticks.lane import Composed, LaneRun
from notifyctl.ticks.run import Run
from notifyctl.transports.base import Transport

CHUNK = 10  # deliveries a composing job takes: a hand-over between threads costs as much as composing one
SLOW = 0.01  # seconds that composing one delivery may hold up everything else
SLOWS = 3  # such deliveries in a row, and a lane's go to a thread (the first of each template also compiles it)


class Intake:
    """Claims and composes for the lanes of one run; only the main thread uses it."""

    def __init__(self, run: Run, lanes: Mapping[str, LaneRun], transports: Mapping[str, Transport]) -> None:
        self.run = run
        self.lanes = lanes
        self.transports = transports
        self.templates: dict[tuple[str, str | None], Template | None] = {}
        self.unproven: set[str] = set()  # transports whose gate waits for a probe: one row is enough to try
        self.claimed = 0

    def fill(self) -> None:
        """Claim for every lane that runs low; lanes share the run's limit fairly."""
        if self.run.over:
            if not self.run.failure:
                for lane in self.lanes.values():
                    lane.stopped = lane.stopped or self.run.over
            return
        going = [lane for lane in self.lanes.values() if not lane.stopped]
        now = clock.monotonic()
        for lane in going:
            if lane.waiting > lane.lane.batch // 2 or now < lane.rests_until:
                continue
            if self.run.limit is not None and self.claimed >= self.run.limit:
                if not any(other.waiting for other in self.lanes.values()):  # some may yet go back, and not count
                    lane.stopped = "limit"
                continue
            wanted = self._wanted(lane, len(going))
            if wanted > 0:
                self._claim(lane, wanted)

    def feed(self) -> None:
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
            meanwhile=(lambda: self.compose(1)) if self.light else None,
        )  # fmt: skip
        if len(rows) < limit:
            lane.cursor = claiming.Cursor()  # one sweep from the beginning before the lane counts as empty
            if swept:
                lane.swept(sent)
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

    @property
    def light(self) -> bool:
        """Whether there is something to compose here."""
        return any(lane.light for lane in self.lanes.values())

    def compose(self, most: int) -> bool:
        """Compose up to `most` rows of each lane while the network is waited for; returns whether there were any."""
        worked = False
        for lane in self.lanes.values():
            for _ in range(min(most, len(lane.light))):
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
