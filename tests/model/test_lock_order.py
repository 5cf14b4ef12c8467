"""Everybody locks work rows before deliveries, both in order of id: two at once wait, and never deadlock.

Two connections on Postgres lock the same groups of deliveries again and again, and the server finds deadlocks. With the
order reversed in one place of the shipped SQL the same rounds must deadlock, or this test could not fail.
"""

from __future__ import annotations

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


def _rounds(url: str) -> int:
    """An operator's page and late outcomes lock the same rows at the same moment; how often one was a deadlock."""
    barrier, again = Barrier(2, timeout=60), 0
    one, other = Workbench(url, "one"), Workbench(url, "other")
    one.deliveries(ROWS)
    wanted = [row[0] for row in one.execute("SELECT id FROM notify_delivery ORDER BY id")]

    def page(tx: Tx) -> None:
        operate.candidates(tx, wanted)

    def late(tx: Tx) -> None:
        record.facts(tx, [(i, 1) for i in wanted])

    def once(bench: Workbench, work: Callable[[Tx], None]) -> int:
        barrier.wait()
        try:
            with bench.ledger.write() as tx:  # not run again by itself
                work(tx)
        except LedgerUnavailable as error:
            if not isinstance(error.__cause__, psycopg.errors.DeadlockDetected):
                raise
            return 1
        return 0

    with ThreadPoolExecutor(2) as pool:
        for _ in range(ROUNDS):
            ended = [pool.submit(once, one, page), pool.submit(once, other, late)]
            again += sum(done.result(60) for done in ended)
    one.ledger.close()
    other.ledger.close()
    return again


@pytest.fixture
def url(postgres: Cluster, migrated_template: str) -> Iterator[str]:
    """A ledger whose server finds deadlocks at once."""
    made = postgres.create_database(template=migrated_template)
    with psycopg.connect(made, autocommit=True) as connection:
        connection.execute(f'ALTER DATABASE "{made.rpartition("/")[2]}" SET deadlock_timeout = 10')
    yield made
    postgres.drop_database(made)


def test_two_at_once_never_deadlock(url: str) -> None:
    assert _rounds(url) == 0


@pytest.mark.parametrize("what", list(REVERSED))
def test_a_reversed_lock_order_is_caught(url: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, old, new in REVERSED[what]:
        shipped = getattr(record, name)
        assert old in shipped, f"{name} does not say {old!r} any more"
        monkeypatch.setattr(record, name, shipped.replace(old, new))
    assert _rounds(url) > 0
