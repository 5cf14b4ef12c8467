"""Requeue, cancel and settling by hand, against the states the rest of the program makes, on both databases."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from notifyctl.config import Config
from notifyctl.ledger import begin as beginning
from notifyctl.ledger import claim as claiming
from notifyctl.ledger import operate, runs
from notifyctl.ledger.begin import Begun, Held, Ready
from notifyctl.ledger.database import Ledger, Tx
from notifyctl.ledger.operate import Action, Refused
from notifyctl.model import Channel, ConsentMode, Delivery, Lane, State, Step, Topic
from notifyctl.ticks.operate import Operator
from tests.conftest import INSTANCE
from tests.ledger.databases import Database

LANE = Lane("email", Channel.EMAIL, "out", max_attempts=3)
ACTION = Action("ada", "relay was down [b-1]", batch="b-1")
CANCEL = Action("ada", "wrong price", goal=State.CANCELLED)


@pytest.fixture
def ledger(migrated_url: str) -> Iterator[Ledger]:
    """The ledger as the program opens it."""
    opened = runs.open_ledger(migrated_url, INSTANCE)
    yield opened
    opened.close()


@pytest.fixture
def database(migrated_url: str) -> Iterator[Database]:
    """The same one, through the raw driver."""
    with Database(migrated_url) as opened:
        yield opened


@pytest.fixture
def operator(ledger: Ledger) -> Operator:
    """A person with one lane and one topic that needs consent."""
    config = Config(
        Path("notifyctl.toml"), INSTANCE, ledger.url, Path("templates"), lanes={"email": LANE},
        topics={"digest": Topic("digest", ConsentMode.REQUIRED)},
    )  # fmt: skip
    return Operator(config, ledger, runs.keys(ledger))


def settled(database: Database, event: str, state: str, **columns: Any) -> int:
    """A delivery that ended as `state`."""
    database.intend(event, state=state, **columns)
    return int(database.delivery(event, "id"))


def queued(database: Database, event: str, **columns: Any) -> int:
    database.intend(event, **columns)
    return int(database.delivery(event, "id"))


def now(database: Database, seconds: float = 0) -> str:
    moment = datetime.now(UTC) + timedelta(seconds=seconds)
    return moment.isoformat() if database.dialect == "postgresql" else moment.strftime("%Y-%m-%d %H:%M:%S.%f")


def claim(ledger: Ledger, run: str = "run-1") -> list[Delivery]:
    taken, _ = claiming.claim(
        ledger, run=run, step=Step.SEND, lane="email", region="", limit=10, lease=60, after=claiming.Cursor()
    )
    return taken


def begin(ledger: Ledger, delivery: Delivery, run: str = "run-1") -> Begun | Held:
    ready = Ready(
        delivery=delivery, transport="out", sender="a@example.com", message_date=datetime.now(UTC), endpoint_id=None,
        fingerprint="f", content_digest="c", request_digest="r", deadline=65,
    )  # fmt: skip
    return ledger.transact(lambda tx: beginning.begin(tx, run=run, ready=[ready]))[delivery.id]


def refusals(refused: list[Refused]) -> list[tuple[int | str, str]]:
    return [(one.id, one.reason) for one in refused]


@pytest.mark.parametrize("state", ["dead_letter", "permanent_failure", "cancelled", "suppressed", "expired"])
def test_what_ended_without_doubt_goes_back_to_the_queue_with_one_more_attempt(
    operator: Operator, database: Database, ledger: Ledger, state: str
) -> None:
    old = now(database, -9 * 86400)
    delivery = settled(
        database, "e-1", state, attempts_used=3, first_tried_at=old, transport="gone", sender="x", fingerprint="f",
        fencing_token=7,
    )  # fmt: skip
    done = operator.requeue([delivery], ACTION)
    assert (done.moved, done.refused) == ([delivery], [])
    assert database.delivery("e-1", "state, reason, batch, attempts_used, transport, fingerprint, settled_at") == (
        "queued", "requeued", "b-1", 2, None, None, None,
    )  # fmt: skip
    assert database.one("SELECT step, owner, fencing_token FROM notify_work") == ("send", None, 8)
    trail = database.execute('SELECT "from", "to", actor, note FROM notify_transition ORDER BY id')
    assert trail[-1] == (state, "queued", "ada", "relay was down [b-1]")
    first_tried = database.one("SELECT count(*) FROM notify_delivery WHERE first_tried_at > ?", old)
    assert first_tried == 1  # give_up_after counts anew
    (taken,) = claim(ledger)
    assert isinstance(begin(ledger, taken), Begun)


def test_reset_attempts_grants_all_of_them_again(operator: Operator, database: Database) -> None:
    delivery = settled(database, "e-1", "dead_letter", attempts_used=3)
    operator.reset_attempts = True
    operator.requeue([delivery], ACTION)
    assert database.delivery("e-1", "attempts_used") == 0


@pytest.mark.parametrize("state", ["accepted", "delivered"])
def test_what_was_accepted_is_never_queued_again(operator: Operator, database: Database, state: str) -> None:
    delivery = settled(database, "e-1", state)
    done = operator.requeue([delivery], ACTION, accept_duplicate=True)
    assert refusals(done.refused) == [(delivery, "already_accepted")]
    assert "--as-new-event" in done.refused[0].hint
    assert database.delivery("e-1") == state
    assert database.one("SELECT count(*) FROM notify_work") == 0


def test_a_bounce_after_acceptance_is_not_queued_again_either(operator: Operator, database: Database) -> None:
    delivery = settled(database, "e-1", "permanent_failure", accepted_at=now(database))
    assert refusals(operator.requeue([delivery], ACTION).refused) == [(delivery, "already_accepted")]


def test_what_waits_or_is_being_sent_is_refused_with_its_state(
    operator: Operator, database: Database, ledger: Ledger
) -> None:
    waiting = queued(database, "e-1")
    sending = queued(database, "e-2")
    begin(ledger, next(d for d in claim(ledger) if d.id == sending))
    done = operator.requeue([waiting, sending, 999], ACTION, accept_duplicate=True)
    assert done.moved == []
    assert [(r.id, r.state, r.reason) for r in done.refused] == [
        (waiting, "queued", "queued"), (sending, "sending", "sending"), (999, None, "not_found"),
    ]  # fmt: skip
    assert all(refused.hint for refused in done.refused)


def test_an_expired_one_needs_a_new_expiry(operator: Operator, database: Database) -> None:
    delivery = settled(database, "e-1", "expired", expires_at=now(database, -60))
    assert refusals(operator.requeue([delivery], ACTION).refused) == [(delivery, "expired")]
    later = Action("ada", "x", batch="b-2", expires_at=datetime.now(UTC) + timedelta(hours=1))
    assert operator.requeue([delivery], later).moved == [delivery]
    assert database.one("SELECT count(*) FROM notify_delivery WHERE expires_at > ?", now(database, 3000)) == 1


def test_a_suppressed_one_is_queued_only_once_policy_passes(operator: Operator, database: Database) -> None:
    database.insert("notify_suppression", recipient_id="r-1", channel="email", reason="opted_out")
    delivery = queued(database, "e-1")
    assert database.delivery("e-1") == "suppressed"
    done = operator.requeue([delivery], ACTION)
    assert refusals(done.refused) == [(delivery, "opted_out")]
    assert "suppression lift --recipient r-1 --channel email" in done.refused[0].hint
    database.insert("notify_suppression", recipient_id="r-1", channel="email", lifted=True)
    assert operator.requeue([delivery], ACTION).moved == [delivery]


def test_a_bad_address_blocks_the_requeue_until_there_is_another(operator: Operator, database: Database) -> None:
    database.insert("notify_endpoint", recipient_id="r-1", channel="email", address="a@example.com", fingerprint="f-a")
    endpoint = database.one("SELECT max(id) FROM notify_endpoint")
    delivery = settled(database, "e-1", "suppressed", fingerprint="f-a", endpoint_id=endpoint)
    database.insert("notify_suppression", recipient_id="r-1", channel="email", reason="hard_bounce", fingerprint="f-a")
    assert refusals(operator.requeue([delivery], ACTION).refused) == [(delivery, "hard_bounce")]
    database.insert("notify_endpoint", recipient_id="r-1", channel="email", address="b@example.com")
    assert operator.requeue([delivery], ACTION).moved == [delivery]


def test_a_topic_that_needs_consent_blocks_the_requeue_without_it(operator: Operator, database: Database) -> None:
    delivery = settled(database, "e-1", "suppressed", topic="digest")
    done = operator.requeue([delivery], ACTION)
    assert refusals(done.refused) == [(delivery, "consent_missing")]
    assert "consent grant --recipient r-1 --channel email --topic digest" in done.refused[0].hint
    database.insert("notify_consent", recipient_id="r-1", channel="email", topic="digest", granted=True)
    assert operator.requeue([delivery], ACTION).moved == [delivery]


def test_what_has_been_erased_cannot_be_sent(operator: Operator, database: Database) -> None:
    delivery = settled(database, "e-1", "cancelled", variables="{}", content_digest="of what there was")
    assert refusals(operator.requeue([delivery], ACTION).refused) == [(delivery, "content_erased")]


def test_doubt_goes_back_only_as_a_knowingly_risked_duplicate(
    operator: Operator, database: Database, ledger: Ledger
) -> None:
    delivery = settled(database, "e-1", "dead_letter", doubt_since=now(database, -60), attempts_used=3)
    done = operator.requeue([delivery], ACTION)
    assert refusals(done.refused) == [(delivery, "in_doubt")]
    assert "--accept-duplicate" in done.refused[0].hint
    assert operator.requeue([delivery], ACTION, accept_duplicate=True).moved == [delivery]
    assert database.delivery("e-1", "state, reason") == ("ambiguous", "mandate_duplicate")
    assert database.one("SELECT step, mandate FROM notify_work") == ("send", "duplicate")
    (taken,) = claim(ledger)
    assert (taken.mandate, taken.doubt_since is not None) == ("duplicate", True)


def lost_attempt(database: Database, delivery: int) -> None:
    database.insert(
        "notify_attempt", delivery_id=delivery, number=1, run="r", fencing_token=1, transport="out",
        started=now(database, -60), outcome="ambiguous",
    )  # fmt: skip


def test_marked_accepted_is_final_and_its_attempt_says_so(operator: Operator, database: Database) -> None:
    delivery = settled(database, "e-1", "dead_letter", doubt_since=now(database, -60))
    lost_attempt(database, delivery)
    action = Action("ada", "seen in the provider's console", goal=State.ACCEPTED, remote_id="pm-1")
    assert operator.mark([delivery], action, accepted=True).moved == [delivery]
    assert database.delivery("e-1", "state, remote_id, doubt_since") == ("accepted", "pm-1", None)
    assert database.one("SELECT outcome, remote_id FROM notify_attempt") == ("accepted", "pm-1")
    assert refusals(operator.requeue([delivery], ACTION, accept_duplicate=True).refused) == [
        (delivery, "already_accepted")
    ]


def test_marked_failed_may_be_requeued_and_later_evidence_still_counts(operator: Operator, database: Database) -> None:
    delivery = settled(database, "e-1", "dead_letter", doubt_since=now(database, -60))
    lost_attempt(database, delivery)
    action = Action("ada", "the provider does not know it", goal=State.PERMANENT_FAILURE)
    assert operator.mark([delivery], action, accepted=False).moved == [delivery]
    assert database.delivery("e-1", "state, reason, doubt_since") == ("permanent_failure", "marked_failed", None)
    assert database.one("SELECT outcome FROM notify_attempt") == "ambiguous"
    assert operator.requeue([delivery], ACTION).moved == [delivery]


def test_only_doubt_is_settled_by_hand(operator: Operator, database: Database) -> None:
    delivery = settled(database, "e-1", "dead_letter")
    assert refusals(operator.mark([delivery], ACTION, accepted=True).refused) == [(delivery, "not_in_doubt")]


def test_what_is_unresolved_goes_back_to_a_check_and_never_to_a_send(operator: Operator, database: Database) -> None:
    delivery = settled(database, "e-1", "unresolved", remote_id="pm-1")
    assert operator.requeue([delivery], ACTION).moved == [delivery]
    assert database.delivery("e-1") == "pending"
    assert database.one("SELECT step FROM notify_work") == "check"
    assert database.delivery("e-1", "receipts_from") is not None


def test_a_new_event_is_made_once_and_both_name_each_other(operator: Operator, database: Database) -> None:
    delivery = settled(database, "e-1", "delivered", variables='{"name": "Ada"}', template_version="1")
    done = operator.send_anew([delivery], ACTION)
    assert (done.moved, done.refused) == ([delivery], [])
    new = database.one("SELECT id FROM notify_delivery WHERE origin_id = ?", delivery)
    event = f"e-1:anew-{delivery}"
    assert database.delivery(event, "state, template_version, batch") == ("queued", "1", "b-1")
    notes = dict(database.execute("SELECT delivery_id, note FROM notify_transition WHERE note <> ''"))
    assert notes == {delivery: f"relay was down [b-1]; as delivery {new}",
                     new: f"relay was down [b-1]; of delivery {delivery}"}  # fmt: skip
    again = operator.send_anew([delivery], Action("ada", "x", batch="b-2"))
    assert refusals(again.refused) == [(delivery, "already_sent_anew")]
    assert f"notifyctl inspect delivery {new}" in again.refused[0].hint
    assert database.one("SELECT count(*) FROM notify_delivery") == 2


def test_what_is_still_to_be_sent_makes_no_new_event(operator: Operator, database: Database) -> None:
    waiting = queued(database, "e-1")
    doubtful = settled(database, "e-2", "dead_letter", doubt_since=now(database))
    done = operator.send_anew([waiting, doubtful], ACTION)
    assert refusals(done.refused) == [(waiting, "not_sent_yet"), (doubtful, "in_doubt")]


def test_a_dry_run_says_the_same_and_changes_nothing(operator: Operator, database: Database) -> None:
    ended = settled(database, "e-1", "dead_letter")
    gone = settled(database, "e-2", "delivered")
    waiting = queued(database, "e-3")
    before = database.execute("SELECT * FROM notify_delivery ORDER BY id")
    operator.dry_run = True
    assert operator.requeue([ended, gone], ACTION).moved == [ended]
    assert operator.cancel([waiting], CANCEL).moved == [waiting]
    assert operator.send_anew([gone], ACTION).moved == [gone]
    assert database.execute("SELECT * FROM notify_delivery ORDER BY id") == before


def test_a_requeued_batch_can_be_cancelled_as_a_whole(operator: Operator, database: Database, ledger: Ledger) -> None:
    ended = [settled(database, f"e-{n}", "dead_letter") for n in range(3)]
    operator.requeue(ended, ACTION)
    begin(ledger, claim(ledger)[0])
    wanted = ledger.read(lambda tx: operate.matching(tx, operate.Filter(batch="b-1")))
    done = operator.cancel(wanted, CANCEL)
    assert done.moved == ended[1:]
    assert [(r.id, r.state) for r in done.refused] == [(ended[0], "sending")]
    said = 'SELECT "to", actor, note FROM notify_transition WHERE delivery_id = ? ORDER BY id'
    assert database.execute(said, ended[1])[-1] == ("cancelled", "ada", "wrong price")
    assert operator.requeue([ended[1]], ACTION).moved == [ended[1]]


def test_a_claimed_delivery_can_be_cancelled_and_its_owner_cannot_begin(
    operator: Operator, database: Database, ledger: Ledger
) -> None:
    delivery = queued(database, "e-1")
    (taken,) = claim(ledger)
    assert operator.cancel([delivery], CANCEL).moved == [delivery]
    assert begin(ledger, taken) == Held("lost")
    assert database.delivery("e-1", "state, fencing_token") == ("cancelled", taken.token + 1)
    assert operator.requeue([delivery], ACTION).moved == [delivery]
    assert begin(ledger, taken) == Held("lost")  # not after a requeue either: the token goes on from there
    (again,) = claim(ledger, "run-2")
    assert again.token > taken.token
    assert isinstance(begin(ledger, again, "run-2"), Begun)


def test_cancel_against_dispatch_each_delivery_goes_one_way_only(
    operator: Operator, database: Database, migrated_url: str
) -> None:
    wanted = [queued(database, f"e-{n}") for n in range(40)]
    begun: set[int] = set()
    barrier = threading.Barrier(2)

    def dispatch() -> None:
        own = runs.open_ledger(migrated_url, INSTANCE)
        barrier.wait()
        while taken := claim(own):
            begun.update(d.id for d in taken if isinstance(begin(own, d), Begun))
        own.close()

    worker = threading.Thread(target=dispatch)
    worker.start()
    barrier.wait()
    cancelled: set[int] = set()
    for delivery in reversed(wanted):
        cancelled.update(operator.cancel([delivery], CANCEL).moved)
    worker.join()
    assert begun.isdisjoint(cancelled)
    assert begun | cancelled == set(wanted)
    states = dict(database.execute("SELECT state, count(*) FROM notify_delivery GROUP BY state"))
    assert states == {k: v for k, v in (("sending", len(begun)), ("cancelled", len(cancelled))) if v}


def test_two_operators_requeue_one_delivery_once(operator: Operator, database: Database, migrated_url: str) -> None:
    ended = [settled(database, f"e-{n}", "dead_letter") for n in range(30)]
    results: list[list[int]] = []
    barrier = threading.Barrier(2)

    def requeue() -> None:
        own = runs.open_ledger(migrated_url, INSTANCE)
        mine = Operator(operator.config, own, operator.keys)
        barrier.wait()
        results.append([i for one in ended for i in mine.requeue([one], ACTION).moved])
        own.close()

    workers = [threading.Thread(target=requeue) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(results[0] + results[1]) == ended
    trail = database.one("SELECT count(*) FROM notify_transition WHERE actor = 'ada'")
    assert (trail, database.one("SELECT count(*) FROM notify_work")) == (30, 30)


@pytest.mark.parametrize("what", ["requeue", "cancel", "mark", "anew"])
def test_a_lost_commit_reply_counts_what_was_done_once_and_refuses_nothing(
    operator: Operator, database: Database, ledger: Ledger, what: str
) -> None:
    if what == "cancel":
        delivery = queued(database, "e-1")
    elif what == "anew":
        delivery = settled(database, "e-1", "delivered")
    else:
        delivery = settled(database, "e-1", "dead_letter", doubt_since=now(database) if what == "mark" else None)
    transact = ledger.transact

    def twice(work: Any) -> Any:
        """What a transaction does whose COMMIT reply was lost: it is run again on a new connection."""

        def again(tx: Tx) -> Any:
            tx.rerun = True
            return work(tx)

        transact(work)
        return transact(again)

    ledger.transact = twice  # type: ignore[method-assign]
    done = {
        "requeue": lambda: operator.requeue([delivery], ACTION),
        "cancel": lambda: operator.cancel([delivery], CANCEL),
        "mark": lambda: operator.mark([delivery], Action("ada", "x", goal=State.PERMANENT_FAILURE), accepted=False),
        "anew": lambda: operator.send_anew([delivery], ACTION),
    }[what]()
    assert (done.moved, done.refused) == ([delivery], [])
    trail = database.one("SELECT count(*) FROM notify_transition WHERE actor = 'ada'")
    assert trail == (2 if what == "anew" else 1)  # there the old and the new one name each other


def test_keys_name_deliveries_and_an_empty_filter_names_none(ledger: Ledger, database: Database) -> None:
    delivery = settled(database, "e-1", "dead_letter")
    assert ledger.read(lambda tx: operate.by_key(tx, ["3:e-1:r-1:email", "3:e-2:r-1:email"])) == {
        "3:e-1:r-1:email": delivery
    }
    assert ledger.read(lambda tx: operate.matching(tx, operate.Filter())) == []
    for chosen in (
        operate.Filter(states=("dead_letter",)), operate.Filter(lane="email"), operate.Filter(event="e-1"),
        operate.Filter(recipient="r-1"), operate.Filter(since=datetime(2000, 1, 1, tzinfo=UTC)),
    ):  # fmt: skip
        assert matching(ledger, chosen) == [delivery]
    assert matching(ledger, operate.Filter(lane="sms", event="e-1")) == []


def matching(ledger: Ledger, chosen: operate.Filter) -> list[int]:
    return ledger.read(lambda tx: operate.matching(tx, chosen))
