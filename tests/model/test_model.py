"""Random histories of the whole tool, on both databases, and the check that the check can fail.

In CI a fixed seed, short. `pytest tests/model -s --hypothesis-profile=soak` goes on, seed after seed, until each row of
the lifecycle's table has been taken a hundred times on each database, and prints the counts.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from notifyctl.lifecycle import RULES, Trigger
from tests.model import oracle
from tests.model.bench import Bench
from tests.model.counting import Tally
from tests.model.machine import Model
from tests.model.mutants import MUTANTS, mutated
from tests.model.run import histories, lives
from tests.model.truth import registered

SEED = 1  # what the short run and the mutants share
COUNT = 60
LEAST = 100  # times that each row is taken in a soak
SEEDS = 400  # at most, in a soak
PAGE = 100  # histories of a seed

# Triggers that no operation of the tool pulls yet: recipients cannot be erased.
NOT_BUILT = {Trigger.ERASED}
# What even a short run takes.
USUAL = {
    Trigger.INSERT, Trigger.CLAIM, Trigger.RELEASE, Trigger.POLICY, Trigger.EXPIRY, Trigger.CANNOT_HEAL,
    Trigger.CAN_HEAL, Trigger.BEGIN, Trigger.ACCEPTED, Trigger.TEMPORARY_FAILURE, Trigger.RATE_LIMITED,
    Trigger.PERMANENT_FAILURE, Trigger.INVALID, Trigger.AMBIGUOUS, Trigger.LAPSE, Trigger.FOUND, Trigger.CANNOT_TELL,
    Trigger.RECEIPT_DELIVERED, Trigger.RECEIPT_PENDING, Trigger.RECEIPT_BY_KEY, Trigger.LATE_ACCEPTED,
    Trigger.LATE_FAILURE, Trigger.CANCEL, Trigger.SUPPRESSION_ADDED, Trigger.EXPIRY_SWEEP, Trigger.REQUEUE,
    Trigger.REQUEUE_DUPLICATE, Trigger.MARK_ACCEPTED, Trigger.MARK_FAILED, Trigger.TAKE_OVER,
}  # fmt: skip


@pytest.fixture
def bench(dialect: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    """A database for histories."""
    cluster = request.getfixturevalue("postgres") if dialect == "postgresql" else None
    made = Bench(dialect, tmp_path, cluster)
    with registered():
        yield made
    made.close()
    if cluster is not None:
        cluster.drop_database(made.url)


def _short(bench: Bench) -> None:
    lives(bench)
    histories(bench, SEED, COUNT)


def _soaking() -> bool:
    return settings.get_current_profile_name() == "soak"


def test_no_history_breaks_an_invariant(bench: Bench) -> None:
    began, seeds = time.monotonic(), 0
    Model.counted.clear()
    with Tally().listening() as tally:
        if not _soaking():
            _short(bench)
        else:
            lives(bench)
            for seeds in range(1, SEEDS + 1):
                histories(bench, seeds, PAGE, shrink=True)
                if not _seldom(tally, LEAST):
                    break
    print(tally.table())
    print(f"{bench.dialect}: {seeds or 1} seeds, {(time.monotonic() - began) / 60:.1f} minutes, {dict(Model.counted)}")
    if _soaking():
        assert _seldom(tally, LEAST) == []
    else:
        taken = {trigger for rule in RULES if tally.fired[rule.number] for trigger in rule.triggers}
        assert USUAL - taken == set()


def _seldom(tally: Tally, least: int) -> list[int]:
    """Rows taken less often, among those that can be."""
    built = {rule.number for rule in RULES if not NOT_BUILT.issuperset(rule.triggers)}
    return [number for number in tally.seldom(least) if number in built]


@pytest.mark.parametrize("name", list(MUTANTS))
def test_the_model_check_catches_each_mutant(bench: Bench, name: str) -> None:
    """With the seed that the tool as it is survives."""
    with mutated(name), pytest.raises(Exception) as caught:  # noqa: PT011 - what it breaks first differs
        _short(bench)
    print(f"{name}: {type(caught.value).__name__}: {caught.value}")


def test_the_oracle_knows_nothing_of_the_state_machine() -> None:
    tree = ast.parse(Path(oracle.__file__).read_text(encoding="utf-8"))
    modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    modules += [name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names]
    assert not [name for name in modules if name.startswith("notifyctl")]
