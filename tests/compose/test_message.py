"""From template and stored destination to the Mail or Sms a transport gets."""

from datetime import UTC, datetime
from email import message_from_bytes
from typing import Any

import pytest

from notifyctl.compose.message import compose, message_id
from notifyctl.compose.templates import Renderer
from notifyctl.errors import InputError
from notifyctl.model import Channel, Mail, Mailbox, Sms, Template, Topic

PAID = Template(
    "order-paid",
    "1",
    {
        ("en", "subject"): "Order {{ order }} paid\n",
        ("en", "text"): "Thank you, {{ name }}.\n",
        ("en", "html"): "<p>Thank you, {{ name }}.</p>\n",
        ("en", "sms"): "Order {{ order }} paid. Thank you, {{ name }}!",
    },
)
RENDERER = Renderer("en")


def composed(channel: Channel, **given: Any) -> Mail | Sms:
    arguments: dict[str, Any] = {
        "channel": channel, "key": "k-1", "template": PAID, "renderer": RENDERER, "locale": "de",
        "variables": {"order": 4711, "name": "Zoë <3"}, "reply_to": None, "message_id": "<k-1@example.com>",
        "sender": "Shop <no-reply@example.com>" if channel is Channel.EMAIL else "+15005550006",
        "recipient": '"Größe, Zoë" <zoe@example.net>' if channel is Channel.EMAIL else "+447700900123",
        "date": datetime(2026, 3, 1, tzinfo=UTC), **given,
    }  # fmt: skip
    made = compose(**arguments)
    assert compose(**arguments) == made
    return made


def mail(**given: Any) -> Mail:
    made = composed(Channel.EMAIL, **given)
    assert isinstance(made, Mail)
    return made


def sms(**given: Any) -> Sms:
    made = composed(Channel.SMS, **given)
    assert isinstance(made, Sms)
    return made


def test_a_mail_carries_its_fields_and_its_bytes() -> None:
    made = mail()
    assert (made.subject, made.text, made.html) == (
        "Order 4711 paid",
        "Thank you, Zoë <3.",
        "<p>Thank you, Zoë &lt;3.</p>",
    )
    assert made.sender == Mailbox("no-reply@example.com", "Shop")
    assert made.recipient == Mailbox("zoe@example.net", "Größe, Zoë")
    assert (made.key, made.locale, made.smtputf8, made.eight_bit) == ("k-1", "en", False, False)
    message = message_from_bytes(made.raw)
    assert (message["Message-ID"], message["Subject"]) == ("<k-1@example.com>", "Order 4711 paid")
    assert message.get_content_type() == "multipart/alternative"


def test_an_sms_carries_its_text_encoding_and_segments() -> None:
    made = sms()
    assert made.text == "Order 4711 paid. Thank you, Zoë <3!"
    assert (made.recipient, made.sender, made.encoding, made.segments) == ("+447700900123", "+15005550006", "ucs2", 1)
    assert sms(transliterate=True).encoding == "gsm7"


def test_a_topic_adds_one_click_unsubscription_for_this_recipient() -> None:
    made = mail(topic=Topic("digest", list_unsubscribe="https://example.com/u?r={recipient}"), recipient_id="a/b c")
    message = message_from_bytes(made.raw)
    assert message["List-Unsubscribe"] == "<https://example.com/u?r=a%2Fb%20c>"
    assert message["List-Unsubscribe-Post"] == "List-Unsubscribe=One-Click"
    assert made.headers == (
        ("List-Unsubscribe", "<https://example.com/u?r=a%2Fb%20c>"),
        ("List-Unsubscribe-Post", "List-Unsubscribe=One-Click"),
    )
    by_mail = mail(topic=Topic("digest", list_unsubscribe="mailto:leave@example.com?subject={recipient}"))
    assert [name for name, _ in by_mail.headers] == ["List-Unsubscribe"]


def test_a_topics_reply_address_wins_over_the_transports() -> None:
    assert mail(reply_to="help@example.com").reply_to == Mailbox("help@example.com")
    made = mail(reply_to="help@example.com", topic=Topic("digest", reply_to="Digest <d@example.com>"))
    assert made.reply_to == Mailbox("d@example.com", "Digest")


@pytest.mark.parametrize(
    ("channel", "given", "reason"),
    [
        (Channel.EMAIL, {"variables": {"order": 1}}, "variable_missing"),
        (Channel.EMAIL, {"variables": {"order": "1\nBcc: x@example.org", "name": "n"}}, "header_invalid"),
        (Channel.EMAIL, {"recipient": "zoe"}, "destination_invalid"),
        (Channel.EMAIL, {"sender": "nobody"}, "sender_invalid"),
        (Channel.EMAIL, {"reply_to": "a@example.com, b@example.com"}, "sender_invalid"),
        (Channel.EMAIL, {"max_bytes": 100}, "too_large"),
        (Channel.EMAIL, {"message_id": "k-1"}, "header_invalid"),
        (Channel.EMAIL, {"topic": Topic("t", list_unsubscribe="https://example.com/ü")}, "header_invalid"),
        (Channel.EMAIL, {"topic": Topic("t", list_unsubscribe="https://a.example/>,<b")}, "header_invalid"),
        (Channel.EMAIL, {"template": Template("t", "1", {("", "sms"): "x"})}, "template_part_missing"),
        (Channel.SMS, {"template": Template("t", "1", {("", "sms"): " \n"})}, "template_error"),
        (Channel.SMS, {"template": Template("t", "1", {("", "sms"): "{{ 1/0 }}"})}, "template_error"),
        (Channel.SMS, {"variables": {"order": "1" * 300, "name": "n"}, "max_segments": 1}, "too_many_segments"),
        (Channel.SMS, {"recipient": "07700 900123"}, "destination_invalid"),
        (Channel.SMS, {"sender": "a name that is too long"}, "sender_invalid"),
    ],
)
def test_what_cannot_be_sent_is_refused_with_its_reason(channel: Channel, given: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError) as caught:
        composed(channel, **given)
    assert caught.value.reason == reason
    for secret in ("Zoë", "zoe", "900123", "nobody", "evil", "Bcc"):
        assert secret not in f"{caught.value!r}{caught.value.hint}"


def test_neither_a_mail_nor_an_sms_shows_its_address_or_text() -> None:
    for made in (mail(), sms()):
        assert not any(secret in repr(made) for secret in ("zoe", "Zoë", "900123", "4711"))


def test_a_message_id_is_the_key_at_the_senders_domain() -> None:
    assert message_id("k-1", "Shop <no-reply@BÜCHER.example>") == "<k-1@xn--bcher-kva.example>"
    odd = message_id("no id: <x>\n", "a@example.com")
    assert odd.endswith("@example.com>")
    assert len(odd) == 1 + 64 + len("@example.com>")
    assert odd == message_id("no id: <x>\n", "a@example.com") != message_id("no id: <y>\n", "a@example.com")
