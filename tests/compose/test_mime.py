"""The mail writer, judged by Python's own parser and by the rules it does not check."""

import json
import re
from datetime import UTC, datetime, timedelta, timezone
from email import message_from_bytes, policy
from email.header import decode_header, make_header
from email.message import EmailMessage
from email.utils import getaddresses, parseaddr
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from notifyctl.compose.mime import Part, write
from notifyctl.errors import InputError
from notifyctl.model import Mailbox

CORPORA = Path(__file__).parents[2] / "../shared/corpora"
SENDER = Mailbox("no-reply@example.com", "Shop")
JANE = Mailbox("jane@example.net")
LINK = "<https://example.com/u/" + "a" * 120 + ">"


def corpus(name: str) -> list[dict]:
    path = CORPORA / name
    if not path.exists():
        pytest.skip(f"the test material {name} is not beside this checkout")
    return json.loads(path.read_text())


def raw(**given: Any) -> bytes:
    """A written mail that keeps to the rules every mail must keep to."""
    arguments: dict[str, Any] = {
        "sender": SENDER, "recipient": JANE, "subject": "Hello", "text": "Hi\n", "html": "",
        "message_id": "<k1@example.com>", "date": datetime(2026, 3, 1, 9, 5, 7, tzinfo=UTC), "reply_to": None,
        "headers": (), "boundary_seed": "k1", **given,
    }  # fmt: skip
    data, smtputf8 = write(**arguments)
    assert write(**arguments)[0] == data  # a replay is byte-identical
    assert smtputf8 != data.isascii()
    assert not re.search(rb"\r(?!\n)|(?<!\r)\n|\0", data)
    assert data.endswith(b"\r\n")
    head, _, _ = data.partition(b"\r\n\r\n")
    for line in data.split(b"\r\n"):
        assert len(line) <= 998
    for line in head.split(b"\r\n"):
        assert line.strip()
        assert b"=?utf-8?" not in line or len(line) <= 76
        for word in re.findall(rb"=\?utf-8\?\S*\?=", line):
            assert len(word) <= 75
            str(make_header(decode_header(word.decode())))  # each word is whole characters
    return data


def parse(data: bytes) -> EmailMessage:
    message = message_from_bytes(data, policy=policy.default)
    assert isinstance(message, EmailMessage)
    assert not message.defects
    return message


def decoded(value: str) -> str:
    return str(make_header(decode_header(value.replace("\r\n", ""))))


def to_of(data: bytes) -> list[tuple[str, str]]:
    """As a reader sees them: split into addresses first, encoded-words decoded after."""
    header = str(message_from_bytes(data)["To"]).replace("\r\n", "")
    return [(decoded(name), address) for name, address in getaddresses([header])]


def refused(**given: Any) -> InputError:
    with pytest.raises(InputError) as caught:
        raw(**given)
    return caught.value


def test_a_plain_mail_is_exactly_these_bytes() -> None:
    assert raw(recipient=Mailbox("jane@example.net", "Doe, Jane"), reply_to=Mailbox("help@example.com")) == (
        b"Date: Sun, 01 Mar 2026 09:05:07 +0000\r\n"
        b"From: Shop <no-reply@example.com>\r\n"
        b'To: "Doe, Jane" <jane@example.net>\r\n'
        b"Message-ID: <k1@example.com>\r\n"
        b"Subject: Hello\r\n"
        b"Reply-To: help@example.com\r\n"
        b"MIME-Version: 1.0\r\n"
        b"Auto-Submitted: auto-generated\r\n"
        b"Content-Type: text/plain; charset=utf-8\r\n"
        b"Content-Transfer-Encoding: 7bit\r\n"
        b"\r\n"
        b"Hi\r\n"
    )


def test_text_and_html_are_alternatives_in_that_order() -> None:
    message = parse(raw(text="Grüße", html="<p>Grüße</p>"))
    assert message.get_content_type() == "multipart/alternative"
    assert [part.get_content_type() for part in message.iter_parts()] == ["text/plain", "text/html"]
    assert [part.get_content().strip() for part in message.iter_parts()] == ["Grüße", "<p>Grüße</p>"]
    assert parse(raw(text="", html="<p>x</p>")).get_content_type() == "text/html"


TEXT = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("\n\r\t .=-ü中😀"), max_size=400)
LINE = st.text(
    st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="\u2028\u2029") | st.sampled_from(' =?_,"\\<>@ü'),
    max_size=160,
)


def unified(text: str) -> str:
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text if text.endswith("\n") else text + "\n"


def content_of(part: Any) -> str:
    return part.get_payload(decode=True).decode().replace("\r\n", "\n")


@settings(max_examples=300, deadline=None)
@given(TEXT, TEXT.filter(bool))
def test_any_text_and_html_come_back_as_given(text: str, html: str) -> None:
    message = message_from_bytes(raw(text=text, html=html))
    parts = [part for part in message.walk() if not part.is_multipart()]
    assert [content_of(part) for part in parts] == [unified(text), unified(html)][-len(parts) :]
    assert len(parts) == 2 if text else 1
    assert all(len(line) <= 76 for part in parts if part["Content-Transfer-Encoding"] != "7bit"
               for line in part.get_payload().splitlines())  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(LINE)
def test_any_subject_comes_back_as_given(subject: str) -> None:
    header = str(message_from_bytes(raw(subject=subject))["Subject"])
    assert decoded(header) == subject
    if subject.strip() == subject:
        assert parse(raw(subject=subject))["Subject"].replace("\r\n", "") == subject


@settings(max_examples=400, deadline=None)
@given(LINE.map(lambda name: name.strip(" ")))
def test_any_display_name_stays_one_recipient(name: str) -> None:
    data = raw(recipient=Mailbox("jane@example.net", name))
    header = str(message_from_bytes(data)["To"]).replace("\r\n", "")
    assert [address for _, address in getaddresses([header])] == ["jane@example.net"]
    found = parseaddr(header)[0]
    assert (decoded(found) if "=?utf-8?" in header else found) == name
    assert [box.addr_spec for box in parse(data)["To"].addresses] == ["jane@example.net"]


@settings(max_examples=200, deadline=None)
@given(LINE.filter(bool))
@example('""')
@example("<a>")
def test_any_file_name_comes_back_as_given(name: str) -> None:
    data = raw(files=[Part(b"%PDF", "application/pdf", name)])
    (attached,) = parse(data).iter_attachments()
    # not get_filename(): it trims, and takes quotes and angle brackets around a name for its delimiters
    assert attached["Content-Disposition"].params["filename"].strip() == name.strip()
    assert attached.get_content() == b"%PDF"


def test_a_comma_in_a_name_stays_one_recipient() -> None:
    for name in ("Doe, Jane", "Doe, Jane, " + "of a very long house " * 4, "Müller, Jörg", "a <b@c.example>, d"):
        assert to_of(raw(recipient=Mailbox("jane@example.net", name.strip()))) == [(name.strip(), "jane@example.net")]


def test_a_text_that_looks_encoded_is_shown_as_written() -> None:
    for text in ("=?utf-8?q?hi?=", "x =?utf-8?q?a=0D=0ABcc:_b@c.example?= y"):
        data = raw(subject=text, recipient=Mailbox("jane@example.net", text), headers=[("X-Note", text)])
        message = message_from_bytes(data)
        assert decoded(message["Subject"]) == text
        assert to_of(data) == [(text, "jane@example.net")]
        assert decoded(message["X-Note"]) == text
        assert "Bcc" not in message


def test_long_links_and_ids_are_neither_encoded_nor_broken() -> None:
    data = raw(
        message_id="<" + "m" * 120 + "@example.com>",
        headers=[
            ("List-Unsubscribe", LINK),
            ("List-Unsubscribe-Post", "List-Unsubscribe=One-Click"),
            ("X-Token", "k" * 900),
            ("References", " ".join(f"<{n}{'x' * 30}@example.com>" for n in range(8))),
        ],
    )
    lines = data.split(b"\r\n")
    assert b"List-Unsubscribe: " + LINK.encode() in lines
    assert b"Message-ID: <" + b"m" * 120 + b"@example.com>" in lines
    assert b"X-Token: " + b"k" * 900 in lines
    assert max(len(line) for line in lines if b"@example.com>" in line and b"mm" not in line) <= 78


def test_a_long_plain_subject_is_folded_at_spaces_only() -> None:
    subject = "two  spaces   and words " * 12 + "end"
    data = raw(subject=subject)
    assert b"=?" not in data
    assert str(message_from_bytes(data)["Subject"]).replace("\r\n", "") == subject
    assert max(map(len, data.split(b"\r\n"))) <= 78


@pytest.mark.parametrize(
    "break_", ["\n", "\r", "\r\n", "\r\n ", "\0", "\t", "\v", "\f", "\x1c", "\x7f", "\x85", "\u2028", "\ud800"]
)
def test_a_break_in_any_header_value_refuses_the_mail(break_: str) -> None:
    bad = f"hello{break_}Bcc: evil@example.org"
    for field, changed in {
        "Subject": {"subject": bad},
        "To": {"recipient": Mailbox("jane@example.net", bad)},
        "From": {"sender": Mailbox(f"a{break_}b@example.com")},
        "Reply-To": {"reply_to": Mailbox("a@example.com", bad)},
        "X-Note": {"headers": [("X-Note", bad)]},
        "List-Unsubscribe": {"headers": [("List-Unsubscribe", bad)]},
        "Message-ID": {"message_id": f"<a{break_}b@example.com>"},
        "filename": {"files": [Part(b"", "text/csv", bad)]},
    }.items():
        error = refused(**changed)
        assert (error.reason, error.field) == ("header_invalid", field)
        assert "evil" not in f"{error!r}{error.hint}"


@pytest.mark.parametrize(
    ("name", "value"),
    [("Bcc", "a@example.com"), ("to", "a@example.com"), ("Content-Type", "text/html"), ("Subject", "x"),
     ("Resent-To", "a@example.com"), ("X Note", "x"), ("X-Note:", "x"), ("X-Nöte", "x"), ("", "x"),
     ("X-Note\r\nBcc", "x"), ("List-Id", "Grüße"), ("X-Token", "k" * 1200), ("X-Empty", " ")],
)  # fmt: skip
def test_a_header_that_adds_recipients_or_cannot_be_written_is_refused(name: str, value: str) -> None:
    assert refused(headers=[(name, value)]).reason == "header_invalid"


@pytest.mark.parametrize(
    "address",
    [
        "jane",
        "jane@",
        "a@b.example, c@d.example",
        "a@b.example> <c@d.example",
        "j@bücher.example",
        "a b@c.example",
        "a..b@c.example",
    ],
)
def test_what_is_not_one_normalized_address_is_refused(address: str) -> None:
    assert refused(recipient=Mailbox(address)).field == "To"


def test_a_non_ascii_local_part_needs_smtputf8_and_stays_raw() -> None:
    data = raw(recipient=Mailbox("jürgen@xn--bcher-kva.example", "Jürgen"))
    assert "To: =?utf-8?q?J=C3=BCrgen?= <jürgen@xn--bcher-kva.example>\r\n".encode() in data


def test_a_quoted_local_part_is_written_as_it_is() -> None:
    assert b'To: "a b"@example.net\r\n' in raw(recipient=Mailbox('"a b"@example.net'))


def test_the_body_is_7bit_where_it_can_be_else_the_shorter_encoding() -> None:
    def encoding(text: str) -> str:
        return str(message_from_bytes(raw(text=text))["Content-Transfer-Encoding"])

    assert encoding("plain\n.\n..\n" + "x" * 998) == "7bit"
    assert encoding("x" * 999) == "quoted-printable"
    assert encoding("mostly plain text with an ü in it, " * 10) == "quoted-printable"
    assert encoding("確認コード" * 50) == "base64"
    assert encoding("a\0b" * 40) != "7bit"


def test_no_line_begins_with_from_so_that_mailboxes_leave_the_body_alone() -> None:
    text = "From me\nFrom you " + "and a longer line of words " * 5 + "\n" + "x" * 75 + "From \n"
    data = raw(text=text)
    assert not re.search(rb"\r\nFrom ", data.partition(b"\r\n\r\n")[2])
    assert content_of(message_from_bytes(data)) == text


def test_a_lone_surrogate_in_a_body_is_refused() -> None:
    assert refused(text="x\ud800").reason == "template_error"


def test_no_boundary_occurs_in_a_part() -> None:
    found = re.search(rb'boundary="([^"]+)"', raw(html="<p>x</p>"))
    assert found
    boundary = found[1].decode()
    message = parse(raw(text=f"--{boundary}\nhello\n--{boundary}--\n", html="<p>x</p>"))
    assert [part.get_content_type() for part in message.iter_parts()] == ["text/plain", "text/html"]
    assert boundary not in str(message["Content-Type"])
    assert raw(html="<p>x</p>", boundary_seed="other").count(boundary.encode()) == 0


def test_files_are_attached_and_inline_ones_go_with_the_html() -> None:
    logo = Part(bytes(range(256)) * 20, "image/png", "logo.png", "<logo@example.com>")
    bill = Part(b"%PDF-1.7", "application/pdf", "Rechnung März.pdf")
    nested = Part(b"From: x\r\n\r\ny", "message/rfc822", "mail.eml")
    message = parse(raw(text="t", html='<img src="cid:logo@example.com">', files=[bill, logo, nested]))
    assert [part.get_content_type() for part in message.walk()] == [
        "multipart/mixed", "multipart/alternative", "text/plain", "multipart/related", "text/html", "image/png",
        "application/pdf", "application/octet-stream",
    ]  # fmt: skip
    parts = list(message.walk())
    assert parts[5].get_content() == logo.content
    assert (parts[5]["Content-ID"], parts[5].get_content_disposition()) == ("<logo@example.com>", "inline")
    assert (parts[6].get_filename(), parts[6].get_content()) == (bill.filename, bill.content)


def test_a_date_is_written_in_utc_and_must_be_aware() -> None:
    date = datetime(2026, 12, 31, 23, 30, tzinfo=timezone(timedelta(hours=-2)))
    assert raw(date=date).startswith(b"Date: Fri, 01 Jan 2027 01:30:00 +0000\r\n")
    with pytest.raises(ValueError, match="aware"):
        raw(date=datetime(2026, 1, 1))


def test_every_case_of_the_corpus_is_written_right() -> None:
    for case in corpus("mime/cases.json"):
        want = case["want"]
        if "subject" in want:
            assert decoded(message_from_bytes(raw(subject=want["subject"]))["Subject"]) == want["subject"], case["name"]
        for name, address in want.get("to", ()):
            local, _, domain = address.rpartition("@")
            address = f"{local}@{domain.encode('idna').decode()}"
            data = raw(recipient=Mailbox(address, name))
            if address.isascii():
                assert to_of(data) == [(name, address)], case["name"]
            else:
                assert f"<{address}>\r\n".encode() in data, case["name"]
        if "filename" in want:
            (part,) = parse(raw(files=[Part(b"x", "text/csv", want["filename"])])).iter_attachments()
            assert part.get_filename() == want["filename"], case["name"]
        if "rawheader" in want:
            name, value = want["rawheader"]
            data = raw(message_id=value) if name == "message-id" else raw(headers=[(name, value)])
            assert message_from_bytes(data)[name] == value, case["name"]
        if "body" in want:
            assert content_of(message_from_bytes(raw(text=want["body"]))) == want["body"] + "\n", case["name"]


def test_no_injection_of_the_corpus_adds_a_header_or_a_recipient() -> None:
    places = {
        "subject": lambda value: {"subject": value},
        "to_name": lambda value: {"recipient": Mailbox("jane@example.net", value)},
        "header_value": lambda value: {"headers": [("X-Note", value)]},
        "list_unsubscribe": lambda value: {"headers": [("List-Unsubscribe", value)]},
        "filename": lambda value: {"files": [Part(b"", "text/csv", value)]},
        "to": lambda value: {"recipient": Mailbox(value)},
        "from": lambda value: {"sender": Mailbox(value)},
        "reply_to": lambda value: {"reply_to": Mailbox(value)},
    }
    for case in corpus("addresses/injection.json"):
        try:
            data = raw(**places[case["field"]](case["value"]))
        except InputError:
            continue
        message = message_from_bytes(data)
        assert {name.lower() for name in message.keys()} <= {  # noqa: SIM118
            "date", "from", "to", "message-id", "subject", "reply-to", "mime-version", "auto-submitted", "x-note",
            "list-unsubscribe", "content-type", "content-transfer-encoding",
        }, case  # fmt: skip
        assert len(message.get_all("To") or ()) == 1
        assert len(getaddresses([str(message["To"]).replace("\r\n", "")])) == 1, case
