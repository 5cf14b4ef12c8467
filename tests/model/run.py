"""How the histories are run: by seed, so that what one run finds the next finds too."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from notifyctl.model import OnAmbiguous, ReceiptStatus
from tests.model.bench import Bench
from tests.model.machine import Model
from tests.model.scenes import SCENES, play
from tests.model.truth import PROFILES, REPLIES
from tests.model.world import LANES

STEPS = 60


def lives(bench: Bench) -> None:
    """Every life once for every kind of transport, without chance."""
    replies, said, policies = sorted(REPLIES), list(ReceiptStatus), list(OnAmbiguous)
    number = 0
    for profile in sorted(PROFILES):
        model = type("Lives", (Model,), {"bench": bench})()
        model.everybody_reachable()
        for kind in dict.fromkeys(SCENES):
            number += 1
            play(
                model, kind, LANES[number % 2], profile, policies[number % 3], replies[number % len(replies)],
                said[number % len(said)], said[(number + 3) % len(said)],
            )  # fmt: skip
        model.teardown()


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
