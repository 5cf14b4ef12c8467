"""What a dispatch run does with rows that could not begin."""

from __future__ import annotations

from pathlib import Path

import pytest

from notifyctl import config
from notifyctl.ledger import runs, templates
from notifyctl.ledger.begin import Held
from notifyctl.ticks import lanes
from notifyctl.ticks.prepare import Prepared
from notifyctl.ticks.run import Run
from notifyctl.transports.registry import KINDS
from tests.site import Site


@pytest.mark.parametrize("why", ["locked", "pace"])
def test_behind_a_gate_that_shut_meanwhile_no_row_waits_in_memory(tmp_path: Path, migrated_url: str, why: str) -> None:
    with Site(tmp_path / "site", migrated_url) as site:
        site.publish()
        site.enqueue(1)
        loaded = config.load(site.config, environ={}, kinds=KINDS)
        ledger = runs.open_ledger(migrated_url, "test")
        run = Run(loaded, ledger, "dispatch")
        tick = lanes.dispatch(run, list(loaded.lanes.values()), "", batch=None, concurrency=None)
        lane = tick.lanes["email"]
        tick.intake._claim(lane, 1)
        (delivery,) = lane.take_unbegun()
        known = ledger.read(lambda tx: templates.load_many(tx, {("note", "1")}))
        prepared = lane.preparer.prepare(delivery, known, ledger.now())
        assert isinstance(prepared, Prepared)
        lane.stopped = "gate"
        tick._hold(lane, prepared, Held(why, until=ledger.now()))
        assert lane.waiting == 0
        assert [row.id for row, _ in lane.returning] == [delivery.id]
        tick._release_rest()
        ledger.close()
        assert site.sql("SELECT owner, step FROM notify_work") == [(None, "send")]
