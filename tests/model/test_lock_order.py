"""Everybody locks work rows before deliveries, both in order of id: two at once wait, and never deadlock.

Two connections on Postgres lock the same group of deliveries while a third holds its first row: both must wait for it
without holding what the other needs. With the order reversed in one place of the shipped SQL the same meeting must end
in a deadlock, every time, or this test could not fail. Rounds without the third meet where they happen to.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import psycopg
import pytest

from notifyctl.errors import LedgerUnavailable
from notifyctl.ledger import operate, record
from notifyctl.ledger.database import Tx
from tests.ledger.workbench import Workbench
from tests.postgres import Cluster

ROUNDS = 40
ROWS = 400


REVERSED = {
    "ids downwards": [("_LOCK_WORK", "ORDER BY w.delivery_id", "ORDER BY w.delivery_id DESC")],
    "deliveries before work rows": [
        ("_LOCK_WORK", "{lock of w}", ""),
        ("_FACTS", "LEFT JOIN notify_work w", "JOIN notify_work w"),
        ("_FACTS", "{lock of d}", "FOR UPDATE"),
    ],
}


class _Meeting:
    """An operator's page and late outcomes that want the same rows at the same moment."""

    def __init__(self, url: str) -> None:
        self.one, self.other = Workbench(url, "one"), Workbench(url, "other")
        self.one.deliveries(ROWS)
        self.wanted = [row[0] for row in self.one.execute("SELECT id FROM notify_delivery ORDER BY id")]

    def page(self) -> bool:
        return _deadlocked(self.one, lambda tx: operate.candidates(tx, self.wanted))

    def late(self) -> bool:
        return _deadlocked(self.other, lambda tx: record.facts(tx, [(i, 1) for i in self.wanted]))

    def close(self) -> None:
        self.one.ledger.close()
        self.other.ledger.close()


def _deadlocked(bench: Workbench, work: Callable[[Tx], object]) -> bool:
    try:
        with bench.ledger.write() as tx:  # not run again by itself
            work(tx)
    except LedgerUnavailable as error:
        if not isinstance(error.__cause__, psycopg.errors.DeadlockDetected):
            raise
        return True
    return False


def _waiting(watch: psycopg.Connection, count: int) -> None:
    """Return when this many statements wait for a row that somebody else has locked."""
    for _ in range(6000):
        (found,) = watch.execute("""SELECT count(*) FROM pg_stat_activity
          WHERE datname = current_database() AND wait_event_type = 'Lock'""").fetchone() or (0,)
        if found >= count:
            return
        time.sleep(0.01)
    raise AssertionError(f"{count} statements never waited")


def _met_at_the_first_row(url: str) -> int:
    """The page waits for the first row, then the late outcomes do; the row is let go. How many met a deadlock."""
    meeting = _Meeting(url)
    with (
        psycopg.connect(url) as holder,
        psycopg.connect(url, autocommit=True) as watch,
        ThreadPoolExecutor(2) as pool,
    ):
        holder.execute("SELECT 1 FROM notify_work WHERE delivery_id = %s FOR UPDATE", [meeting.wanted[0]])
        page = pool.submit(meeting.page)
        _waiting(watch, 1)
        late = pool.submit(meeting.late)
        _waiting(watch, 2)
        holder.rollback()
        met = page.result(60) + late.result(60)
    meeting.close()
    return met


def _met_anywhere(url: str) -> int:
    """Both start together, again and again. How many met a deadlock."""
    meeting, barrier, met = _Meeting(url), Barrier(2, timeout=60), 0

    def together(work: Callable[[], bool]) -> bool:
        barrier.wait()
        return work()

    with ThreadPoolExecutor(2) as pool:
        for _ in range(ROUNDS):
            met += sum(done.result(60) for done in [pool.submit(together, w) for w in (meeting.page, meeting.late)])
    meeting.close()
    return met


@pytest.fixture
def url(postgres: Cluster, migrated_template: str) -> Iterator[str]:
    """A ledger whose server finds deadlocks at once."""
    made = postgres.create_database(template=migrated_template)
    with psycopg.connect(made, autocommit=True) as connection:
        connection.execute(f'ALTER DATABASE "{made.rpartition("/")[2]}" SET deadlock_timeout = 10')
    yield made
    postgres.drop_database(made)


def test_two_that_wait_for_the_same_row_never_deadlock(url: str) -> None:
    assert _met_at_the_first_row(url) == 0


def test_two_at_once_never_deadlock(url: str) -> None:
    assert _met_anywhere(url) == 0


@pytest.mark.parametrize("what", list(REVERSED))
def test_a_reversed_lock_order_is_caught(url: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, old, new in REVERSED[what]:
        shipped = getattr(record, name)
        assert old in shipped, f"{name} does not say {old!r} any more"
        monkeypatch.setattr(record, name, shipped.replace(old, new))
    assert _met_at_the_first_row(url) == 1
