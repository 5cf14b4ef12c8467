"""Every reported fault of the list has a test on each database, and none is forgotten when the list grows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIST = ROOT.parent / "shared" / "scenarios.md"
IDS = (
    "A1", "A2", "A4", "A6", "A7", "B1", "B2", "B4", "B5", "B7", "B9", "C1", "C2", "C3", "C4", "D1", "D2", "D3", "D4",
    "D7", "D8", "D9", "D11", "E1", "E2", "E4", "E5", "E7", "F1", "F3", "F4", "F6", "G1", "G2", "G3", "G5", "G6", "G8",
    "G11",
)  # fmt: skip


def test_every_scenario_has_a_test_on_each_database() -> None:
    collect = [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:cacheprovider", "tests/scenarios"]
    listed = subprocess.run(collect, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True).stdout
    found = set(re.findall(r"test_([A-G]\d+)_\w+\[(sqlite|postgresql)\b", listed))
    assert {(one, dialect) for one in IDS for dialect in ("sqlite", "postgresql")} - found == set()
    assert {one for one, _ in found} - set(IDS) == set(), "an id that is on no list"


@pytest.mark.skipif(not LIST.exists(), reason="the list of scenarios is not beside this checkout")
def test_the_ids_are_those_of_the_list() -> None:
    assert re.findall(r"(?m)^\*\*([A-G]\d+)\.\*\*", LIST.read_text(encoding="utf-8")) == list(IDS)
