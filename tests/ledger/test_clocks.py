"""SQLite: a host's clock that ran ahead is set right, and so is what it had written meanwhile."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from notifyctl import clock
from notifyctl.ledger import clocks, gate
from notifyctl.model import Outcome, OutcomeKind, Rate
from tests.cli.rig import Folder
from tests.ledger.workbench import Workbench, workbench

AHEAD = timedelta(days=40)
LATER = Outcome(OutcomeKind.TEMPORARY_FAILURE, "greylisted")


def at(text: Any) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.fixture
def ahead(tmp_path: Path, migrated_file: Path) -> Any:
    """A ledger on which a clock forty days ahead has sent, paced, closed a gate, and claimed."""
    path = tmp_path / "ledger.db"
    path.write_bytes(migrated_file.read_bytes())
    with workbench(f"sqlite:///{path}") as bench:
        bench.deliveries(1, prefix="planned", due_at=f"'{clock.wall() + timedelta(days=50):%Y-%m-%d %H:%M:%S}'")
        bench.deliveries(4)
        bench.ledger.wall = lambda: clock.wall() + AHEAD
        limits = (("lane:email", Rate(1, 60, "1/m")), ("lane:email", Rate(2, 3600, "2/h")))
        (first, second, *_) = bench.claim(4)
        begun = bench.begin([first], limits=limits)
        bench.record([bench.result(first, begun[first.id], LATER)])
        bench.ledger.transact(
            lambda tx: gate.close(
                tx, "transport", "relay", "breaker", until=tx.now + timedelta(seconds=30), level=1, reason="",
                actor="r",
            )
        )
        bench.deliveries(1, prefix="meanwhile")
        bench.execute("UPDATE notify_delivery SET created_at = :now, due_at = :now WHERE event_id = 'meanwhile0'")
        bench.execute("UPDATE notify_work SET due_at = :now, eligible_at = :now WHERE delivery_id = 6")
        bench.ledger.wall = clock.wall
        yield bench, first.id, second.id


def test_what_a_clock_ahead_has_written_is_brought_back(ahead: tuple[Workbench, int, int]) -> None:
    bench, retried, claimed = ahead
    connection, now = bench.ledger.connection, clock.wall()
    by, corrected = clocks.reset(connection, now)
    assert timedelta(days=39) < by <= AHEAD
    assert set(corrected) == {
        "due times", "retry and check times", "leases and deadlines", "gates", "limits", "first tries and doubts"
    }
    soon = now + timedelta(minutes=20)
    assert now <= at(connection.execute("SELECT until FROM notify_gate").fetchone()[0]) < now + timedelta(seconds=40)
    for tat, start in connection.execute("SELECT tat, window_start FROM notify_pace"):
        assert tat is None or at(tat) <= soon
        assert start is None or at(start) <= now
    rows = {row[0]: at(row[1]) for row in connection.execute("SELECT delivery_id, eligible_at FROM notify_work")}
    assert now - timedelta(seconds=1) <= rows[retried] < soon
    assert now - timedelta(seconds=1) <= rows[claimed] < soon
    assert rows[6] < soon
    assert rows[1] > now + timedelta(days=49), "what was planned stays planned"
    ((tried,),) = connection.execute("SELECT first_tried_at FROM notify_delivery WHERE id = ?", (retried,))
    assert abs(at(tried) - now) < timedelta(seconds=30)
    assert abs(bench.ledger.read(lambda tx: tx.now) - clock.wall()) < timedelta(seconds=5)


def test_a_clock_that_was_not_ahead_corrects_nothing(ahead: tuple[Workbench, int, int]) -> None:
    bench, *_ = ahead
    clocks.reset(bench.ledger.connection, clock.wall())
    assert clocks.reset(bench.ledger.connection, clock.wall()) == (timedelta(0), {})


def test_the_command_says_what_it_did(ahead: tuple[Workbench, int, int], tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    assert folder.run("dispatch", "--json").returncode == 75
    done = folder.run("migrate", "--reset-clock")
    assert done.returncode == 0, done.stderr
    assert "39 days" in done.stdout or "40 days" in done.stdout
    assert "1 gates" in done.stdout
