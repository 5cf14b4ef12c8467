"""A desk whose provider is a Prover."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from notifyctl.model import Search
from tests.ticks.prover import Bench, Prover


@pytest.fixture
def provable(monkeypatch: pytest.MonkeyPatch) -> None:
    """`kind = "scripted"` is a Prover here."""
    monkeypatch.setattr(sys.modules["tests.scripted"], "Scripted", Prover)
    for name, value in {"search": Search.OWN_KEY, "window": 0.0, "absence": True, "takes": True, "finds": None}.items():
        monkeypatch.setattr(Prover, name, value)


@pytest.fixture
def bench(tmp_path: Path, migrated_url: str, provable: None) -> Iterator[Bench]:
    desk = Bench(tmp_path / "site", migrated_url)
    with desk:
        yield desk
