"""Lives that the model check found the tool to get wrong, each kept as a life of its own, judged by the same oracle."""

from __future__ import annotations

import pytest

from notifyctl.model import OnAmbiguous, ReceiptStatus
from tests.model import scenes
from tests.model.bench import Bench
from tests.model.machine import Model
from tests.model.test_model import bench

__all__ = ["bench"]


@pytest.fixture
def model(bench: Bench) -> Model:
    """A history with nothing in it but reachable recipients."""
    made = type("Lives", (Model,), {"bench": bench})()
    made.everybody_reachable()
    return made


def test_an_absence_at_one_transport_proves_nothing_of_an_attempt_through_another(model: Model) -> None:
    delivery = scenes.in_doubt_elsewhere(model, "first", "plain", "quiet")
    model.world.advance(60.0)
    model.readers[0].claim("first")
    model.readers[0].settle()
    row = model.world.seen.deliveries[delivery]
    assert row.state == "ambiguous"
    assert row.doubt_since == model.world.seen.attempts[delivery][1].started


def test_no_replay_goes_through_a_transport_that_the_doubtful_attempt_did_not_take(model: Model) -> None:
    delivery = scenes.in_doubt_elsewhere(model, "first", "plain", "replay")
    model.world.advance(60.0)
    model.readers[0].claim("first")
    model.readers[0].settle()
    assert model.world.seen.work[delivery].mandate is None


def test_a_run_that_gets_back_what_it_still_has_in_flight_records_both_exchanges(model: Model) -> None:
    world, owner, other = model.world, model.owners[0], model.owners[1]
    delivery = scenes.enqueue(model, "first", "bounces", OnAmbiguous.HOLD, 3, None)
    owner.claim("first")
    owner.compose()
    owner.turn(begin=True)
    world.advance(36.0)
    other.lapse()
    model.accept_one(delivery)
    model._dispatch(owner, "first", ["lost"])  # both at once: the first, hung for so long, fails, the second is lost
    assert world.seen.deliveries[delivery].state == "ambiguous"
    outcomes = {number: attempt.outcome for number, attempt in world.seen.attempts[delivery].items()}
    assert outcomes == {1: "unavailable", 2: "ambiguous"}


def test_doubt_outlives_a_failure_of_the_same_instant(model: Model) -> None:
    delivery = scenes.enqueue(model, "first", "plain", OnAmbiguous.AUTO, 5, None)
    model._dispatch(model.owners[0], "first", ["lost_taken"])
    model.accept_one(delivery)
    model._dispatch(model.owners[0], "first", ["permanent"])
    assert model.world.seen.deliveries[delivery].state == "ambiguous"


def test_a_receipt_is_kept_once_however_often_it_is_read(model: Model) -> None:
    delivery = scenes.enqueue(model, "first", "replay", OnAmbiguous.AUTO, 3, None)
    model._dispatch(model.owners[0], "first", ["lost_taken"])
    for _ in range(2):
        model.pollers[0].hear(delivery, ReceiptStatus.DELIVERED, 0.0, by_key=True, repeat=True)
    assert model.world.seen.deliveries[delivery].state == "delivered"
    assert model.world.database.one("SELECT count(*) FROM notify_receipt") == 1
