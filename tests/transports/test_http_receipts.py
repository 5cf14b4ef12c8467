"""What became of a message, and whether one of unknown outcome was accepted: row by row of each provider's tables."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from notifyctl.model import Absent, CannotTell, Found, Receipt, ReceiptStatus
from notifyctl.transports import postmark_codes, telnyx, twilio_codes
from notifyctl.transports.base import Transport, Trouble
from notifyctl.transports.registry import open_transport
from tests.transports import contract as expected
from tests.transports.material import mail, settings, sms, submit
from tests.transports.servers import Answer, Asked, Provider, Server
from tests.transports.servers.postmark import Postmark
from tests.transports.servers.telnyx import Telnyx
from tests.transports.servers.twilio import Twilio

NOON = datetime(2027, 3, 1, 12, tzinfo=UTC)
NUMBER = "+447700900123"


class Open:
    """A provider and the transport that uses it."""

    def __init__(self, provider: Provider, transport: Transport) -> None:
        self.provider: Any = provider
        self.transport = transport

    def accepted(self, number: int = 1) -> str:
        """The id of one accepted message."""
        outcome = submit(self.transport, (mail if self.provider.kind == "postmark" else sms)(number))
        return outcome.remote_ids[0]

    def receipt(self, remote: str) -> Receipt | None:
        return self.transport.receipts([remote]).get(remote)

    def breaks(self, answer: Answer) -> None:
        """Look-ups get this from now on."""
        self.provider.tell = lambda asked: answer


@pytest.fixture
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    provider = request.param()
    with Server(provider) as server:
        transport = open_transport(settings(provider.kind, tmp_path, **server.options()))
        yield Open(provider, transport)
        transport.close()


with_twilio = pytest.mark.parametrize("opened", [Twilio], indirect=True)
with_telnyx = pytest.mark.parametrize("opened", [Telnyx], indirect=True)
with_postmark = pytest.mark.parametrize("opened", [Postmark], indirect=True)
with_each = pytest.mark.parametrize("opened", [Twilio, Telnyx, Postmark], indirect=True)


@with_twilio
def test_a_status_of_twilio_means_what_its_page_says(opened: Open) -> None:
    remote = opened.accepted()
    assert twilio_codes.STATUSES.keys() == expected.TWILIO_STATUSES.keys() - {"something new"}
    for status, (meaning, reason) in expected.TWILIO_STATUSES.items():
        opened.provider.messages[remote]["status"] = status
        said = opened.receipt(remote)
        assert said is not None
        assert (said.status, said.reason, said.remote_id) == (meaning, reason, remote)


@with_twilio
def test_a_failure_of_twilio_is_told_by_its_code_and_a_code_of_one_that_lives_on_is_not_asked(opened: Open) -> None:
    remote = opened.accepted()
    message = opened.provider.messages[remote]
    assert twilio_codes.REASONS.keys() == expected.TWILIO_REASONS.keys() - {"30008", "39999"}
    for code, (meaning, reason) in expected.TWILIO_REASONS.items():
        message.update(status="undelivered", error_code=int(code))
        said = opened.receipt(remote)
        assert said is not None
        assert (said.status, said.reason, said.code) == (meaning, reason, code)
    message.update(status="sent", error_code=30005)
    said = opened.receipt(remote)
    assert said is not None
    assert said.status is ReceiptStatus.PENDING


@with_telnyx
def test_a_status_of_telnyx_means_what_its_page_says(opened: Open) -> None:
    remote = opened.accepted()
    assert telnyx._STATUSES.keys() == expected.TELNYX_STATUSES.keys() - {"something new"}
    for status, (meaning, reason) in expected.TELNYX_STATUSES.items():
        opened.provider.messages[remote]["to"][0]["status"] = status
        opened.provider.messages[remote]["completed_at"] = "2027-03-01T12:00:00.000+00:00"
        said = opened.receipt(remote)
        assert said is not None
        assert (said.status, said.reason, said.provider_time) == (meaning, reason, NOON)


@with_telnyx
def test_a_failure_of_telnyx_is_told_by_its_code(opened: Open) -> None:
    remote = opened.accepted()
    message = opened.provider.messages[remote]
    message["to"][0]["status"] = "delivery_failed"
    assert telnyx._REASONS.keys() == expected.TELNYX_REASONS.keys() - {"49999"}
    for code, (meaning, reason) in expected.TELNYX_REASONS.items():
        message["errors"] = [{"code": code, "title": NUMBER}]
        said = opened.receipt(remote)
        assert said is not None
        assert (said.status, said.reason, said.code) == (meaning, reason, code)


@with_postmark
def test_a_bounce_of_postmark_means_what_its_type_says(opened: Open) -> None:
    assert postmark_codes.TYPES.keys() == expected.BOUNCES.keys()
    for number, (kind, (meaning, reason)) in enumerate(expected.BOUNCES.items(), start=1):
        remote = opened.accepted(number)
        opened.provider.bounces[str(number)] = kind
        opened.provider.happens(remote, "Bounced", 2, BounceID=str(number), Summary="r1@example.org")
        said = opened.receipt(remote)
        assert said is not None
        assert (said.status, said.reason, said.code) == (meaning, reason, kind)


@with_postmark
def test_postmark_tells_of_delivery_and_of_a_bounce_that_comes_after_it(opened: Open) -> None:
    remote = opened.accepted()
    assert opened.receipt(remote) is None
    opened.provider.happens(remote, "Transient", 1)
    opened.provider.happens(remote, "Opened", 3)
    said = opened.receipt(remote)
    assert said is not None
    assert said.status is ReceiptStatus.PENDING
    opened.provider.happens(remote, "Delivered", 2, DeliveryMessage="smtp;250 r1@example.org")
    said = opened.receipt(remote)
    assert said is not None
    assert (said.status, said.provider_time) == (ReceiptStatus.DELIVERED, datetime(2027, 3, 1, 17, 0, 2, tzinfo=UTC))
    opened.provider.bounces["9"] = "HardBounce"
    opened.provider.happens(remote, "Bounced", 5, BounceID="9")
    said = opened.receipt(remote)
    assert said is not None
    assert said.status is ReceiptStatus.HARD_BOUNCE


@with_postmark
@pytest.mark.parametrize("kind", expected.NO_NEWS)
def test_an_automatic_answer_is_no_news_of_the_delivery(opened: Open, kind: str) -> None:
    remote = opened.accepted()
    opened.provider.happens(remote, "Delivered", 1)
    opened.provider.bounces["4"] = kind
    opened.provider.happens(remote, "Bounced", 2, BounceID="4")
    opened.provider.happens(remote, "LinkClicked", 3)
    said = opened.receipt(remote)
    assert said is not None
    assert said.status is ReceiptStatus.DELIVERED


@with_postmark
@pytest.mark.parametrize("details", [{}, {"BounceID": "77"}, {"BounceID": "../server"}])
def test_a_bounce_that_cannot_be_found_is_a_failure_of_this_mail_alone(opened: Open, details: dict[str, str]) -> None:
    remote = opened.accepted()
    opened.provider.happens(remote, "Delivered", 1)
    opened.provider.happens(remote, "Bounced", 2, **details)
    said = opened.receipt(remote)
    assert said is not None
    assert (said.status, said.reason, said.code) == (ReceiptStatus.FAILURE, "failed", "")


@with_each
def test_an_id_that_is_not_known_ends_nothing_but_where_it_was_deleted(opened: Open) -> None:
    said = opened.receipt("unknown")
    assert said is None if opened.provider.kind != "twilio" else said == Receipt(ReceiptStatus.GONE, "unknown")


@with_each
@pytest.mark.parametrize(
    ("answer", "reason", "config"),
    [
        (Answer(500, body=b"<html>"), "server_error", False),
        (Answer(503, {}), "service_unavailable", False),
        (Answer(429, {}), "throttled", False),
        (Answer(401, {}), "credentials_rejected", True),
        (Answer(404, body=b"<html>"), "endpoint_not_found", True),
        (Answer(302, headers={"Location": "https://other.example/"}), "redirected_to:other.example", True),
        (Answer(200, body=b"<html>"), "unreadable_reply", False),
        (Answer(200, {"data": [], "MessageEvents": [{}]}), "unreadable_reply", False),
        (Answer(fault="reset"), "connection_lost", False),
    ],
)
def test_a_look_up_that_fails_says_why_and_nothing_of_the_message(
    opened: Open, answer: Answer, reason: str, config: bool
) -> None:
    remote = opened.accepted()
    opened.breaks(answer)
    with pytest.raises(Trouble) as caught:
        opened.transport.receipts([remote])
    assert (caught.value.reason, caught.value.config) == (reason, config)


@with_twilio
def test_what_was_learnt_before_a_failure_is_kept(opened: Open) -> None:
    first, second = opened.accepted(1), opened.accepted(2)
    tell = opened.provider.tell
    opened.provider.tell = lambda asked: tell(asked) if first in asked.path else Answer(500)
    assert opened.transport.receipts([first, second]).keys() == {first}


@with_each
@pytest.mark.parametrize("named", ["another", "nobody"])
def test_what_is_said_of_another_message_is_not_believed(opened: Open, named: str) -> None:
    first, second = opened.accepted(1), opened.accepted(2)
    if opened.provider.kind == "postmark":
        opened.provider.happens(second, "Delivered", 1)
    tell = opened.provider.tell

    def lie(asked: Asked) -> Answer:
        answer: Answer = tell(replace(asked, path=asked.path.replace(first, second)))
        if named == "nobody" and first in asked.path:
            answer = replace(answer, document=json.loads(json.dumps(answer.document).replace(second, "")))
        return answer

    opened.provider.tell = lie
    with pytest.raises(Trouble, match="unreadable_reply"):
        opened.transport.receipts([first])
    assert opened.transport.receipts([first, second]).keys() == {second}


@with_postmark
def test_a_bounce_of_another_number_says_no_more_than_that_it_bounced(opened: Open) -> None:
    remote = opened.accepted()
    opened.provider.happens(remote, "Bounced", 1, BounceID="7")
    opened.provider.bounces["8"] = "HardBounce"
    tell = opened.provider.tell
    opened.provider.tell = lambda asked: tell(replace(asked, path=asked.path.replace("/bounces/7", "/bounces/8")))
    with pytest.raises(Trouble, match="unreadable_reply"):
        opened.transport.receipts([remote])


# -- was it accepted? -------------------------------------------------------------------------------------------------


@with_postmark
def test_postmark_finds_a_message_by_our_key(opened: Open) -> None:
    remote = opened.accepted(1)
    opened.accepted(2)
    assert opened.transport.find("key-1") == Found(remote)
    assert opened.transport.find("key-3") == Absent()
    opened.accepted(1)
    assert opened.transport.find("key-1") == CannotTell()


@with_postmark
@pytest.mark.parametrize(
    "answer",
    [
        Answer(200, {"TotalCount": 1, "Messages": [{"MessageID": "b", "Metadata": {}}]}),
        Answer(200, {"TotalCount": 1, "Messages": [{"MessageID": "b", "Metadata": {"notifyctl": "key-9"}}]}),
        Answer(200, {"TotalCount": 7, "Messages": []}),
        Answer(200, {}),
        Answer(404, {"ErrorCode": 701}),
    ],
)
def test_an_answer_that_was_not_filtered_by_our_key_tells_nothing(opened: Open, answer: Answer) -> None:
    opened.breaks(answer)
    assert opened.transport.find("key-1") == CannotTell()


@with_twilio
def test_twilio_finds_the_only_message_to_a_number_at_that_time_and_never_proves_absence(opened: Open) -> None:
    provider = opened.provider

    def found(since: int, until: int, to: str = NUMBER) -> object:
        ends = (NOON + timedelta(seconds=since), NOON + timedelta(seconds=until))
        return opened.transport.find("key-1", to, *ends)

    provider.now = NOON
    first = opened.accepted(1)
    assert found(-5, 5) == Found(first)
    assert found(10, 20) == CannotTell()
    assert found(-5, 5, "+447700900999") == CannotTell()
    provider.messages["inbound"] = {**provider.messages[first], "sid": "inbound", "direction": "inbound"}
    assert found(-5, 5) == Found(first)
    tell = provider.tell
    provider.tell = lambda asked: Answer(200, {"messages": [{**provider.messages[first], "to": "+447700900555"}]})
    assert found(-5, 5) == CannotTell(), "not asked for: the list was not filtered"
    provider.tell = tell
    provider.now = NOON + timedelta(seconds=4)
    second = opened.accepted(2)
    assert found(-5, 5) == CannotTell(), "two look alike"
    assert found(-5, 0) == Found(first)
    assert found(8, 8) == CannotTell()
    assert found(4, 8) == Found(second)
    assert opened.transport.find("key-1", NUMBER) == CannotTell()
    provider.messages[first]["date_created"] = "yesterday"
    assert found(4, 8) == CannotTell(), "one that could be it"
    assert found(-900, -800) == CannotTell(), "and alone proves nothing"


@with_twilio
def test_a_list_that_goes_on_tells_nothing(opened: Open) -> None:
    remote = opened.accepted(1)
    page = {"messages": [opened.provider.messages[remote]], "next_page_uri": "/2010-04-01/…"}
    opened.breaks(Answer(200, page))
    now = datetime.now(UTC)
    assert opened.transport.find("key-1", NUMBER, now - timedelta(minutes=1), now) == CannotTell()


@with_telnyx
def test_telnyx_cannot_be_searched(opened: Open) -> None:
    opened.accepted(1)
    asked = len(opened.provider.asked)
    assert opened.transport.find("key-1", NUMBER, NOON, NOON) == CannotTell()
    assert len(opened.provider.asked) == asked


@with_each
def test_a_search_that_fails_is_no_finding(opened: Open) -> None:
    opened.breaks(Answer(500))
    if opened.provider.kind != "telnyx":
        with pytest.raises(Trouble):
            opened.transport.find("key-1", NUMBER, NOON, NOON)


# -- what is written --------------------------------------------------------------------------------------------------


@with_twilio
@pytest.mark.parametrize(
    ("validity", "stated"), [(None, None), (0.3, "1"), (90.9, "90"), (35999.0, "35999"), (36000.0, None), (1e9, None)]
)
def test_twilio_is_told_how_long_a_message_is_worth_sending(
    opened: Open, validity: float | None, stated: str | None
) -> None:
    from notifyctl.clock import Deadline

    opened.transport.submit([opened.transport.prepare(sms())], Deadline.after(5.0), validity)
    form = opened.provider.submissions[0].form
    assert form == {
        "To": NUMBER, "From": "Shop", "Body": "Grüße €", "SmartEncoded": "false",
        **({"ValidityPeriod": stated} if stated else {}),
    }  # fmt: skip


def test_a_messaging_service_chooses_the_sender(tmp_path: Path) -> None:
    with Server(Twilio()) as server:
        options = server.options(messaging_service_sid="MG" + "1" * 32)
        submit(open_transport(settings("twilio", tmp_path, **options)), sms())
        form = server.provider.submissions[0].form
    assert form["MessagingServiceSid"] == "MG" + "1" * 32
    assert "From" not in form


def test_telnyx_is_told_the_encoding_and_the_profile_and_a_shorter_window(tmp_path: Path) -> None:
    with Server(Telnyx()) as server:
        options = server.options(messaging_profile_id="abc", replay_window="1h")
        transport = open_transport(settings("telnyx", tmp_path, **options))
        submit(transport, sms())
        said = server.provider.submissions[0].document
    assert said == {
        "from": "Shop", "to": NUMBER, "text": "Grüße €", "encoding": "gsm7", "messaging_profile_id": "abc",
    }  # fmt: skip
    assert transport.capabilities.replay_window == 3600.0
    longer = open_transport(settings("telnyx", tmp_path, **server.options(replay_window="9d")))
    assert longer.capabilities.replay_window == 86400.0, "more than the provider grants"
