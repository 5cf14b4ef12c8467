"""D: what a message says and to whom, and what must not be able to change either."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from email import message_from_bytes, policy
from email.header import decode_header
from email.utils import getaddresses
from quopri import decodestring
from typing import Any

from tests.scenarios.stage import NUMBER, Stage, at, text
from tests.site import DOMAIN, intent, reached
from tests.smtp_server import Received, Rule, SmtpServer

CYRILLIC = "Ваш отчёт готов и ждёт"
EMOJI = "\N{PARTY POPPER}" * 10
SUBJECTS = (
    f"{CYRILLIC} {EMOJI} {CYRILLIC} ещё раз и снова",
    " ".join(["слово"] * 40),
    "два  пробела   и ещё  " + "ё" * 60,
    f"{CYRILLIC} order 42 {EMOJI} shipped {CYRILLIC}",
    "\N{MAN}\u200d\N{WOMAN}\u200d\N{GIRL}" * 12,
    "=?utf-8?b?SGVsbG8=?= как есть " + "ж" * 50,
    "word " * 60 + "end",
    "ы" * 300,
)


def test_D1_a_long_subject_arrives_as_it_was_written(stage: Stage) -> None:
    """Relatives: spaces at every seam, emoji that are joined, ASCII between, text that looks encoded, one long word."""
    stage.publish("2", subject="{{ s }}")
    with SmtpServer() as server:
        stage.to(server)
        numbered = dict(enumerate(SUBJECTS, start=1))
        stage.rows(*(intent(number, vars={"name": "x", "s": subject}) for number, subject in numbered.items()))
        stage.dispatched(accepted=len(numbered))
        for message in server.messages:
            subject = numbered[reached([message])[0]]
            assert message_from_bytes(message.raw, policy=policy.default)["Subject"] == subject
            raw = _header(message.raw, b"Subject")
            assert all(len(line) <= 78 for line in raw.split(b"\r\n")), raw
            words = re.findall(rb"=\?([^?]+)\?([bBqQ])\?([^?]*)\?=", raw)
            assert words or subject.isascii()
            decoded = [_word(*word) for word in words]  # raises where a character was cut in two
            assert all(len(b"".join(word)) <= 75 - 6 for word in words)
            assert not re.search(rb"\?==\?", raw), "two encoded words without whitespace between them"
            assert all(word in subject for word in decoded)
        stage.audit(server)


def _header(raw: bytes, name: bytes) -> bytes:
    found = re.search(rb"(?im)^" + name + rb":((?:.*\r\n[ \t])*.*)\r\n", raw)
    assert found
    return name + b":" + found[1]


def _word(charset: bytes, how: bytes, data: bytes) -> str:
    raw = b64decode(data, validate=True) if how in b"bB" else decodestring(data.replace(b"_", b" "), header=True)
    return raw.decode(charset.decode())


SEGMENTS = (
    ("\N{PARTY POPPER}" * 35, "UCS-2", 1),
    ("\N{PARTY POPPER}" * 36, "UCS-2", 2),
    ("a" * 100 + "ж", "UCS-2", 2),
    ("a" * 160, "GSM-7", 1),
    ("a" * 161, "GSM-7", 2),
    ("€" * 80, "GSM-7", 1),
    ("€" * 81, "GSM-7", 2),
    ("a" * 66 + "\N{PARTY POPPER}" * 3, "UCS-2", 2),
)


def test_D2_the_parts_of_a_text_are_known_before_it_is_sent(stage: Stage) -> None:
    """Relatives: the limits of both alphabets, the GSM extension table, an emoji at the seam of two parts."""
    stage.publish("2", sms="{{ s }}")
    numbered = dict(enumerate(SEGMENTS, start=1))
    for number in (1, 2, 3):
        body, encoding, parts = numbered[number]
        said = stage.asked("enqueue", "--event", f"e{number}", "--recipient", f"r-{number}", "--channel", "sms",
                           "--template", "note", "--vars", json.dumps({"s": body}), "--to",
                           f"sms=+44770090020{number}")["sms"]  # fmt: skip
        assert (said["encoding"], said["segments"]) == (_named(encoding), parts)
    stage.bulk(*(text(n, f"+44770090020{n}", vars={"s": body}) for n, (body, _, _) in numbered.items() if n > 3))
    stage.dispatched(accepted=len(numbered))
    lines = {int(line["to"][-1]): (line["text"], line["encoding"], line["segments"]) for line in stage.texts()}
    assert lines == {n: (body, _named(encoding), parts) for n, (body, encoding, parts) in numbered.items()}
    attempts = dict(stage.sql("SELECT delivery_id, segments FROM notify_attempt"))
    assert attempts == {stage.delivery(n, "id"): parts for n, (_, _, parts) in numbered.items()}


def _named(encoding: str) -> str:
    return {"UCS-2": "ucs2", "GSM-7": "gsm7"}[encoding]


EVIL = "x\r\nBcc: victim@elsewhere.example"
ENDS = ("\r\n", "\n", "\r", "\u2028", "\x0b", "\x85", "\x1c")


def test_D3_a_line_end_in_a_value_adds_no_header(stage: Stage) -> None:
    """In the subject, the display name and the name of a file (the sender's names come from the configuration, which
    refuses them: below). Relatives: every character that some reader takes for a line end; by plain SQL too."""
    (stage.path / "reports").mkdir()
    (stage.path / "reports" / "one.txt").write_text("x")
    stage.put("objects", root="reports/")
    with SmtpServer() as server:
        stage.to(server)
        rows = [intent(99)]
        for number, end in enumerate(ENDS):
            evil = EVIL.replace("\r\n", end)
            rows += [
                intent(10 + number, vars={"name": evil}),
                intent(20 + number, to={"email": f'"{evil}" <r{20 + number}@{DOMAIN}>'}),
                intent(30 + number, attach=[f"one.txt;filename={evil}"]),
            ]
            stage.sql(
                "INSERT INTO notify_delivery (event_id, recipient_id, channel, template, variables, destination) "
                "VALUES (?, 'r-x', 'email', 'note', ?, ?)",
                f"e{40 + number}", json.dumps({"name": evil}), f"r{40 + number}@{DOMAIN}",
            )  # fmt: skip
        stage.bulk(*rows, code=65)
        stage.run("dispatch", "--json")
        assert 99 in reached(server.messages), "the normal row was sent"
        for message in server.messages:
            _plain(message)
        assert "victim" not in "\n".join(server.commands)
        assert not stage.numbers("d.state NOT IN ('accepted', 'permanent_failure')")
        assert not stage.numbers("d.state = 'permanent_failure' AND d.reason = ''")
        stage.audit(server)


def _plain(message: Received) -> None:
    """Only the headers that a normal mail has, none of them with a line end inside."""
    parsed = message_from_bytes(message.raw)
    assert {name.lower() for name in parsed} <= {
        "from", "to", "subject", "date", "message-id", "mime-version", "content-type", "content-transfer-encoding",
        "auto-submitted", "content-disposition",
    }  # fmt: skip
    assert message.recipients == (message.recipient,)
    for part in parsed.walk():
        assert "bcc" not in {name.lower() for name in part}
        for value in part.values():
            for piece, charset in decode_header(value):
                shown = piece.decode(charset or "latin-1", "replace") if isinstance(piece, bytes) else piece
                assert not re.search(r"[\r\n]Bcc", re.sub(r"\r?\n[ \t]", " ", shown)), "a header after a line end"


def test_D3_a_line_end_in_a_senders_name_is_a_fault_of_the_configuration(stage: Stage) -> None:
    with SmtpServer() as server:
        stage.enqueue(1)
        for key in ("reply_to", "from"):
            stage.to(server, **{key: f'"{EVIL}" <no-reply@shop.example>'})
            error = stage.refused(stage.told("dispatch", "--json", code=78))
            assert key in error["message"]
            stage.to(server, reply_to="desk@shop.example")
        assert server.connections == []


NAMES = (
    ('"Doe, Jane"', "Doe, Jane"),
    (r'"Jane \"JJ\" Doe"', 'Jane "JJ" Doe'),
    ('"Doe (Sales); Jane: <x>"', "Doe (Sales); Jane: <x>"),
    ('"jane@work"', "jane@work"),
    ('"Döe, Jané"', "Döe, Jané"),
)


def test_D4_a_comma_in_a_name_stays_one_recipient(stage: Stage) -> None:
    """Relatives: quotes, brackets, an at sign and accents in a name."""
    numbered = dict(enumerate(NAMES, start=1))
    with SmtpServer() as server:
        stage.to(server)
        stage.rows(*(intent(n, to={"email": f"{given} <r{n}@{DOMAIN}>"}) for n, (given, _) in numbered.items()))
        stage.dispatched(accepted=len(numbered))
        for message in server.messages:
            (number,) = reached([message])
            name = numbered[number][1]
            (address,) = message_from_bytes(message.raw, policy=policy.default)["To"].addresses
            assert (address.display_name, address.addr_spec) == (name, f"r{number}@{DOMAIN}")
            if name.isascii():
                told = str(message_from_bytes(message.raw)["To"])
                assert getaddresses([told]) == [(name, f"r{number}@{DOMAIN}")]


LISTS = (
    "Doe, Jane <jane@rcpt.example>", "jane@rcpt.example, joe@rcpt.example", "jane@rcpt.example; joe@rcpt.example",
    "team: jane@rcpt.example;", "<jane@rcpt.example> <joe@rcpt.example>",
)  # fmt: skip


def test_D4_a_list_where_one_address_belongs_is_refused(stage: Stage) -> None:
    """By the command; and forced into the ledger by plain SQL, which the dispatch refuses."""
    with SmtpServer() as server:
        stage.to(server)
        said = stage.bulk(*(intent(n, to={"email": one}) for n, one in enumerate(LISTS, start=1)), code=65)
        assert (said["enqueued"], said["rejected"]) == (0, len(LISTS))
        stage.enqueue(len(LISTS))
        for number, one in enumerate(LISTS, start=1):
            stage.sql("UPDATE notify_delivery SET destination = ? WHERE event_id = ?", one, f"e{number}")
        stage.dispatched(permanent_failure=len(LISTS), accepted=0, code=3)
        assert server.messages == []


def test_D7_what_is_too_large_is_tried_once_and_not_uploaded_where_that_is_known(stage: Stage) -> None:
    """A sink that says how much it takes, and one that hides it and answers 552. Relatives: at MAIL, and at the end."""
    (stage.path / "reports").mkdir()
    (stage.path / "reports" / "big.bin").write_bytes(bytes(range(256)) * 9000)
    stage.put("objects", root="reports/")
    with SmtpServer(extensions=("PIPELINING", "SIZE 1048576", "8BITMIME")) as told:
        stage.to(told)
        stage.rows(intent(1, attach=["big.bin"]), intent(2))
        stage.dispatched(accepted=1, permanent_failure=1)
        assert stage.delivery(1, "state, reason") == ("permanent_failure", "too_large")
        assert sum(len(data) for one in told.connections for data in one.reads) < 100_000, "it was uploaded"
    for number, phase in ((3, "mail"), (4, "dot")):
        with SmtpServer(Rule(phase, reply="552 5.3.4 too big"), extensions=("PIPELINING", "8BITMIME")) as mute:
            stage.to(mute)
            stage.rows(intent(number, attach=["big.bin"]))
            stage.run("dispatch", "--json")
            assert stage.delivery(number, "state, reason, attempts_used") == ("permanent_failure", "too_large", 1)
            tried = len(mute.commands)
            stage.later()
            stage.dispatched(claimed=0)
            assert (len(mute.commands), mute.messages) == (tried, [])


def test_D8_what_waits_keeps_the_words_it_was_enqueued_with(stage: Stage) -> None:
    """Relatives: other words, a newly required variable, the folder's own files gone, an insert by plain SQL; a
    published version whose words were changed is refused."""
    with SmtpServer() as server:
        stage.to(server)
        stage.enqueue(1)
        stage.publish("2", subject="Second for {{ name }}")
        stage.enqueue(1, first=2)
        stage.rows(intent(3))
        stage.publish("3", subject="{{ name }} {{ needed_now }}")
        assert [stage.seen(number)["template_version"] for number in (1, 2, 3)] == ["1", "2", "2"]
        for file in (stage.path / "templates" / "note" / "1").iterdir():
            file.unlink()
        stage.dispatched(accepted=3)
        subjects = {message.recipient: message_from_bytes(message.raw)["Subject"] for message in server.messages}
        assert [subjects[f"r{n}@{DOMAIN}"] for n in (1, 2, 3)] == [
            "Note for Reader 1", "Second for Reader 2", "Second for Reader 3",
        ]  # fmt: skip
        assert stage.bulk(intent(4), code=65)["enqueued"] == 0
        (stage.path / "templates" / "note" / "2" / "subject.txt").write_text("Changed under its number")
        stage.told("template", "publish", "note@2", code=65)
        stage.audit(server)


def test_D9_no_blank_and_no_none_reaches_anybody(stage: Stage) -> None:
    """Refused at enqueue with all that is missing; an insert that nobody could check is refused before it is sent.
    Relatives: missing, null, all missing, a null inside an object, an empty object."""
    stage.publish("2", subject="Code for {{ name }}", body="Dear {{ name }}: {{ code }} {{ of.shop }}\n")
    lacking: list[dict[str, Any]] = [
        {"name": "Reader 1", "of": {"shop": "x"}}, {"name": "Reader 1", "code": None, "of": {"shop": "x"}}, {},
        {"name": "Reader 1", "code": "7", "of": {"shop": None}}, {"name": "Reader 1", "code": "7", "of": {}},
    ]  # fmt: skip
    with SmtpServer() as server:
        stage.to(server)
        for given, names in ((lacking[1], ("code",)), (lacking[2], ("name", "code", "of"))):
            done = stage.told("enqueue", "--event", "e1", "--recipient", "r-1", "--channel", "email", "--template",
                              "note", "--vars", json.dumps(given), "--to", f"email=r1@{DOMAIN}", code=65)  # fmt: skip
            assert all(re.search(rf"\b{name}\b", done.err) for name in names), done
        said = stage.bulk(*(intent(n, vars=given) for n, given in enumerate(lacking, start=1)), code=65)
        assert (said["enqueued"], said["rejected"]) == (0, len(lacking))
        assert stage.sql("SELECT count(*) FROM notify_delivery") == [(0,)]
        stage.enqueue(len(lacking))
        for number, given in enumerate(lacking, start=1):
            stage.sql("UPDATE notify_delivery SET variables = ? WHERE event_id = ?", json.dumps(given), f"e{number}")
        stage.dispatched(permanent_failure=len(lacking), code=3)
        assert server.messages == []


PHONES: dict[str, dict[str, str | None]] = {  # by default region: as written, and what it means; None: refused
    "": {
        "2025550143": None, "+44 7700 900123": "+447700900123", "tel:+44-7700-900123": "+447700900123",
        "+44 7700 900123 ext 5": "+447700900123", "CALL ME": None,
    },
    "GB": {
        "07700 900123": "+447700900123", "0044 7700 900123": "+447700900123", "(07700) 900-123": "+447700900123",
        "12": None, "LETTERS": None, "+44": None, "07700 900123, 07700 900124": None,
    },
}  # fmt: skip


def test_D11_a_number_means_one_phone_or_is_refused(stage: Stage) -> None:
    """Relatives: brackets, dashes, an international prefix, an extension, too short a number, a URL, two numbers."""
    first = 1
    for region, given in PHONES.items():
        stage.put("phone", default_region=region)
        stage.bulk(*(text(first + n, one) for n, one in enumerate(given)), code=65)
        for number, (one, stored) in enumerate(given.items(), start=first):
            found = stage.sql("SELECT destination FROM notify_delivery WHERE event_id = ?", f"e{number}")
            assert found == ([] if stored is None else [(stored,)]), one
        first += len(given)
    refused = {"match": NUMBER, "outcome": "permanent_failure", "reason": "invalid_recipient", "times": 1}
    stage.put("transports.texts", fail=[refused])
    stage.sql("UPDATE notify_work SET eligible_at = ?", at(3600))
    ways = ("07700 900123", "+44 7700 900123", "0044 7700 900123")
    stage.bulk(*(text(100 + n, one, recipient="same") for n, one in enumerate(ways)))
    stage.dispatched("--batch", "1", "--concurrency", "1")
    states = dict(stage.sql("SELECT state, count(*) FROM notify_delivery WHERE recipient_id = 'same' GROUP BY state"))
    assert states == {"suppressed": 3}, "one address for suppression, however it was written"
    assert stage.texts() == []
