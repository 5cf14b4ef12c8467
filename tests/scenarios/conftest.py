"""The stage on each database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scenarios.stage import Stage


@pytest.fixture
def stage(tmp_path: Path, migrated_url: str) -> Iterator[Stage]:
    """An installation whose template is published."""
    with Stage(tmp_path / "site", migrated_url) as made:
        made.publish()
        yield made
