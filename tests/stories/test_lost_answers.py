"""An answer that is lost, at three providers that stand for all kinds of evidence: one that finds our key, one that
replays under it, and one that has neither. By the installed command, on both databases."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.stage import Stage, text
from tests.transports.servers import Answer, Asked, Server
from tests.transports.servers.postmark import Postmark
from tests.transports.servers.telnyx import Telnyx
from tests.transports.servers.twilio import Twilio

LOST = Answer(fault="reset", after=True)  # the provider had accepted
GONE = Answer(fault="reset")  # it had not


@pytest.fixture
def stage(tmp_path: Path, migrated_url: str) -> Iterator[Stage]:
    with Stage(tmp_path / "site", migrated_url) as made:
        made.publish()
        yield made


def use(stage: Stage, server: Server) -> None:
    """Let this provider serve its channel."""
    kind = server.provider.kind
    name = "relay" if kind == "postmark" else "texts"
    sender = "no-reply@shop.example" if kind == "postmark" else "+15005550006"
    stage.settings[f"transports.{name}"] = {"kind": kind, "from": sender, "settle_delay": "1ms", **server.options()}
    stage.configure()


def reconciled(stage: Stage, code: int = 0) -> Any:
    stage.later()
    return stage.asked("reconcile", code=code)


@pytest.mark.parametrize(("answer", "sent"), [(LOST, 1), (GONE, 2)])
def test_postmark_is_asked_for_our_key(stage: Stage, answer: Answer, sent: int) -> None:
    """Found: accepted, and not sent again. Absent: it goes again, as a new attempt of the same delivery."""
    with Server(Postmark()) as server:
        use(stage, server)
        server.provider.script.append(answer)
        stage.enqueue(1)
        stage.dispatched(ambiguous=1)
        document = reconciled(stage)
        assert (document["found"], document["absent"]) == ((1, 0) if sent == 1 else (0, 1))
        if sent == 2:
            stage.later()
            stage.dispatched("--lane", "email", accepted=1)
        assert stage.delivery(1) == "accepted"
        assert len(server.provider.submissions) == sent
        assert len(server.provider.messages) == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("answer", [LOST, GONE])
def test_telnyx_replays_under_our_key(stage: Stage, answer: Answer) -> None:
    """The same bytes go out once more, and whatever had happened, there is one message."""
    with Server(Telnyx()) as server:
        use(stage, server)
        server.provider.script.append(answer)
        stage.bulk(text(1))
        stage.dispatched("--lane", "sms", ambiguous=1)
        assert reconciled(stage)["mandated"] == 1
        stage.dispatched("--lane", "sms", accepted=1)
        first, second = server.provider.submissions
        assert first.body == second.body
        assert first.headers["idempotency-key"] == second.headers["idempotency-key"]
        assert len(server.provider.messages) == 1  # type: ignore[attr-defined]
        assert stage.delivery(1) == "accepted"


@pytest.mark.parametrize("answer", [LOST, GONE])
def test_twilio_finds_the_only_message_to_the_number_or_asks_a_person(stage: Stage, answer: Answer) -> None:
    """A list without it proves nothing: a person decides, and nothing is sent again."""
    with Server(Twilio()) as server:
        use(stage, server)
        server.provider.script.append(answer)
        stage.bulk(text(1))
        stage.dispatched("--lane", "sms", ambiguous=1)
        if answer is LOST:
            assert reconciled(stage)["found"] == 1
            assert stage.delivery(1) == "accepted"
        else:
            assert reconciled(stage, code=3)["held"] == 1
            assert stage.delivery(1) == "ambiguous"
        stage.later()
        stage.dispatched("--lane", "sms", claimed=0)
        assert len(server.provider.submissions) == 1


def test_a_batch_whose_process_dies_is_settled_item_by_item(stage: Stage) -> None:
    """Killed while Postmark, which took three of five, had not answered: three are found, two go again, none twice."""
    taken = threading.Event()
    with Server(Postmark()) as server:
        provider = server.provider
        assert isinstance(provider, Postmark)
        use(stage, server)

        def three(asked: Asked) -> Answer:
            for mail in asked.document[:3]:
                provider.item(mail)
            taken.set()
            return Answer(fault="hang")

        provider.script.append(three)
        stage.enqueue(5)
        process = stage.start("dispatch")
        assert taken.wait(60)
        process.kill()
        server.ended.set()
        assert stage.sql("SELECT count(*) FROM notify_delivery WHERE state = 'sending'") == [(5,)]
        document, again = reconciled(stage), reconciled(stage)  # it may look them up in the run that finds them lost
        assert document["leases_recovered"] == 5
        assert (document["found"] + again["found"], document["absent"] + again["absent"]) == (3, 2)
        stage.later()
        stage.dispatched("--lane", "email", claimed=2, accepted=2)
        assert {row[0] for row in stage.sql("SELECT state FROM notify_delivery")} == {"accepted"}
        sent = [message["mail"]["To"] for message in provider.messages.values()]
        assert len(sent) == len(set(sent)) == 5
