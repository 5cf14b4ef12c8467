"""SIGKILL at every numbered point of the ticks, on both databases, alone and beside a second dispatcher.

Here a fixed sample: every point once, its database and company by turns. All of them, and every statement and COMMIT
of every command: `python -m pytest -m soak tests/crash`. Random kills under load: `python -m tests.soak`.
"""

from __future__ import annotations

import ast
from itertools import count
from pathlib import Path

import pytest

from notifyctl.failpoints import POINTS
from tests.crash.deaths import LIMIT, POLLS, TICKS, WAYS, episode
from tests.crash.test_polls import TRIED
from tests.crash.test_resolves import TRIED as RESOLVED

ROOT = Path(__file__).parents[2]
GENERIC = ("ledger.statement", "ledger.commit", "ledger.committed")
NAMED = [point for point in POINTS if point not in GENERIC and WAYS[point][0] not in POLLS]
DATABASES = ("sqlite", "postgresql")


def _called() -> set[str]:
    """The points that the code names: `reach("…")`, and tables of points by step."""
    found = set()
    for path in sorted((ROOT / "notifyctl").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "reach":
                found |= {one.value for one in ast.walk(node.args[0]) if isinstance(one, ast.Constant)}
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "_POINTS":
                assert isinstance(node.value, ast.Dict)
                found |= {one.value for one in node.value.values if isinstance(one, ast.Constant)}
    return {point for point in found if isinstance(point, str)}


def test_every_point_that_the_code_names_is_listed_and_tried() -> None:
    assert len(set(POINTS)) == len(POINTS)
    assert _called() == set(POINTS)
    assert set(WAYS) == set(POINTS)
    here = {point for database in DATABASES for point, _ in _sample(database)}
    assert here | {*GENERIC} | {point for _, point in TRIED} | {*RESOLVED} == set(POINTS)


def _sample(dialect: str) -> list[tuple[str, bool]]:
    """(point, whether a second dispatcher runs): half of the points on one database, half on the other."""
    turn = DATABASES.index(dialect)
    return [(point, number % 4 < 2) for number, point in enumerate(NAMED) if number % 2 == turn]


def test_a_death_at_each_point_loses_nothing_and_doubles_nothing(
    tmp_path: Path, migrated_url: str, dialect: str
) -> None:
    """One installation dies again and again; each victim also finds what the one before has left."""
    sample = _sample(dialect)
    with episode(tmp_path, migrated_url) as it:
        it.fill(CUSHION)
        it.die("exchange.begun")  # something for the first to find
        for point, companion in sample:
            it.fill(LIMIT)
            assert it.die(point, companion=companion), f"{point} was never reached"
        for number, point in enumerate(GENERIC):
            it.fill(LIMIT)
            assert it.die(point, 3 + 2 * number)
        it.finish()
        assert it.deaths == len(sample) + len(GENERIC) + 1


CUSHION = 2 * LIMIT  # more than one victim and its companion take, so that no run is ever without work


@pytest.mark.soak
@pytest.mark.parametrize("companion", [False, True], ids=["alone", "beside"])
@pytest.mark.parametrize("point", NAMED)
def test_a_death_at_one_point_is_healed_by_normal_ticks(
    point: str, companion: bool, tmp_path: Path, migrated_url: str
) -> None:
    with episode(tmp_path, migrated_url) as it:
        for nth in (1, 2, 3):
            it.fill(CUSHION)
            if WAYS[point][0] == "lapsed" and nth == 1:
                it.die("exchange.begun")
            died = it.die(point, nth, companion=companion)
            assert died or nth > 1, f"{point} was never reached"
        it.finish()


@pytest.mark.soak
@pytest.mark.parametrize("companion", [False, True], ids=["alone", "beside"])
@pytest.mark.parametrize("point", GENERIC)
@pytest.mark.parametrize("way", ["plain", "drained", "refused", "enqueue", *TICKS])
def test_a_death_at_every_statement_and_every_commit_is_healed(
    way: str, point: str, companion: bool, tmp_path: Path, migrated_url: str
) -> None:
    with episode(tmp_path, migrated_url) as it:
        it.fill(CUSHION)
        it.die("exchange.begun")
        for nth in count(1):
            it.fill(LIMIT if way != "enqueue" else 1)
            if not it.die(point, nth, way=way, companion=companion):
                break
        it.finish()
        assert it.deaths > 3
