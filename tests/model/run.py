"""How the histories are run: by seed, so that what one run finds the next finds too."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.bench import Bench
from tests.model.machine import Model

STEPS = 60


def histories(bench: Bench, number: int, count: int, *, shrink: bool = False) -> type[Model]:
    """Run `count` histories of this seed; raises what the first that fails raises (`shrink`: made small)."""
    machine = seed(number)(type("Histories", (Model,), {"bench": bench}))
    phases: Any = [Phase.generate, *([Phase.shrink] if shrink else [])]
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=count, stateful_step_count=STEPS, deadline=None, phases=phases, database=None,
            report_multiple_bugs=False, suppress_health_check=list(HealthCheck), print_blob=False,
            verbosity=Verbosity.normal,
        ),
    )  # fmt: skip
    return machine
