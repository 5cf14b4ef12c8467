"""One letter of a bounce mailbox, read: real ones, ours, and hostile ones."""

from __future__ import annotations

import base64
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from notifyctl.model import ReceiptStatus as S
from notifyctl.transports.bounce_codes import STATUS
from notifyctl.transports.bounce_message import Bounce, Kind, Report, read
from notifyctl.transports.bounce_mime import SIZE
from notifyctl.transports.bounce_words import REASONS
from tests.transports import letters

FAILED = (S.HARD_BOUNCE, S.FAILURE, S.SOFT_FAILURE)
RIGHT = {
    "hard": (S.HARD_BOUNCE,),
    "soft": (S.SOFT_FAILURE, S.FAILURE, S.PENDING),
    "permanent": FAILED,  # flufl.bounce's tests tell only that it is no delay
    "delayed": (S.PENDING,),
    "delivered": (S.DELIVERED,),
}
KINDS = {"feedback": Kind.FEEDBACK, "auto-reply": Kind.AUTO_REPLY}


def only(raw: bytes) -> Report:
    bounce = read(raw)
    assert bounce.kind is Kind.REPORT
    (report,) = bounce.reports
    return report


# -- the corpus --


def found(bounce: Bounce, names: list[str]) -> Report | None:
    wanted = {name.lower() for name in names}
    return next((one for one in bounce.reports if wanted & {name.lower() for name in one.recipients}), None)


def test_of_the_corpus_recipients_are_found_88_classes_90_and_message_ids_99_times_in_a_hundred() -> None:
    recipients, classes, message_ids = [], [], []
    for row in letters.corpus():
        bounce = read(row["raw"])
        if row["original_message_id"]:
            message_ids.append(any(f"<{one}>" in bounce.message_ids for one in row["original_message_id"]))
        for expected in row["expected"]:
            report = None
            if expected["recipient"]:
                report = found(bounce, [expected["recipient"], *expected["accept"]])
                recipients.append(report is not None)
            report = report or next(iter(bounce.reports), None)
            if expected["cls"] in KINDS:
                classes.append(bounce.kind is KINDS[expected["cls"]])
            elif expected["cls"] != "hard-or-soft":  # not scored, see the corpus' SOURCES.md
                classes.append(report is not None and report.status in RIGHT[expected["cls"]])
    assert len(recipients) > 500
    assert sum(recipients) / len(recipients) >= 0.94
    assert len(classes) > 300
    assert sum(classes) / len(classes) >= 0.91
    assert len(message_ids) > 400
    assert sum(message_ids) / len(message_ids) >= 0.99


def test_what_is_no_bounce_is_never_hard_and_what_is_soft_is_never_hard() -> None:
    for row in letters.corpus():
        hard = [one for one in read(row["raw"]).reports if one.status is S.HARD_BOUNCE]
        classes = {one["cls"] for one in row["expected"]}
        if not row["is_bounce"] or (classes and classes <= {"soft", "delayed", "auto-reply"}):
            assert hard == [], row["file"]


def test_line_ends_make_no_difference() -> None:
    for row in letters.corpus():
        lf = row["raw"].replace(b"\r\n", b"\n")
        assert read(lf) == read(lf.replace(b"\n", b"\r\n")), row["file"]


# -- codes --


@pytest.mark.parametrize("status", ["5.1.1", "5.1.2", "5.1.3", "5.1.6", "5.1.10"])
def test_an_address_that_does_not_exist_is_a_hard_bounce(status: str) -> None:
    report = only(letters.dsn(status))
    assert (report.status, report.reason, report.code) == (S.HARD_BOUNCE, "invalid_recipient", status)


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("5.2.1", "mailbox_disabled"), ("5.2.2", "mailbox_full"), ("5.3.4", "too_large"), ("5.2.3", "too_large"),
        ("5.7.26", "authentication_rejected"), ("5.7.515", "authentication_rejected"), ("5.7.1", "policy_rejected"),
        ("5.7.606", "policy_rejected"), ("5.6.0", "content_rejected"), ("5.4.4", "routing_failed"),
        ("5.0.0", "bounced"),
        ("5.1.8", "bounced"), ("5.1.4", "bounced"), ("5.5.4", "bounced"),
    ],
)  # fmt: skip
def test_any_other_permanent_status_ends_the_message_and_says_nothing_of_the_address(status: str, reason: str) -> None:
    report = only(letters.dsn(status))
    assert (report.status, report.reason) == (S.FAILURE, reason)


@pytest.mark.parametrize(
    ("status", "reason"), [("4.2.2", "mailbox_full"), ("4.4.7", "delivery_time_expired"), ("4.7.1", "given_up")]
)
def test_a_failure_with_a_temporary_status_is_final_and_never_hard(status: str, reason: str) -> None:
    report = only(letters.dsn(status, diagnostic="450 user unknown"))
    assert (report.status, report.reason) == (S.SOFT_FAILURE, reason)


def test_every_row_of_the_table_of_codes_is_tried_here() -> None:
    assert len(STATUS) == 11


def test_a_vague_status_is_explained_by_the_diagnostic_code() -> None:
    report = only(letters.dsn("5.0.0", diagnostic="550 5.1.1 <reader@example.org>: no"))
    assert (report.status, report.code) == (S.HARD_BOUNCE, "550 5.1.1")
    assert only(letters.dsn("5.7.1", diagnostic="550 5.1.1 unknown user")).status is S.FAILURE  # not vague at all


def test_a_full_mailbox_under_the_wrong_status_is_not_gone() -> None:
    assert only(letters.dsn("5.1.1", diagnostic="552 5.1.1 Mailbox is full")).status is S.FAILURE


def test_an_address_in_the_diagnostic_is_taken_for_no_code() -> None:
    report = only(letters.dsn("5.0.0", diagnostic="host 192.0.2.5.1.1 said: 554 no"))
    assert (report.status, report.code) == (S.FAILURE, "554 5.0.0")


@pytest.mark.parametrize(
    ("action", "status", "expected"),
    [
        ("delayed", "4.4.1", S.PENDING), ("Delayed", "5.1.1", S.PENDING), ("delivered", "2.0.0", S.DELIVERED),
        ("relayed", "2.0.0", S.PENDING), ("expanded", "2.0.0", S.PENDING), ("failed", "2.1.5", S.PENDING),
        ("FAILED", "5.1.1", S.HARD_BOUNCE), ("failed", "nonsense", S.FAILURE), ("failed", "", S.FAILURE),
    ],
)  # fmt: skip
def test_the_action_comes_before_the_status(action: str, status: str, expected: S) -> None:
    assert only(letters.dsn(status, action)).status is expected


# -- words --

SAID = {
    "mailbox_full": ["The user's mailbox is full", "552 over quota", "exceeded storage", "quota exceeded",
                     "mailbox size limit", "insufficient disk space", "insufficient system storage",
                     "552 storage allocation"],
    "authentication_rejected": ["failed SPF", "bad DKIM", "DMARC says no"],
    "too_large": ["message size", "message too long", "too large", "too big", "size limit"],
    "policy_rejected": ["looks like spam", "blocked", "on a blacklist", "a block list", "poor reputation", "a virus",
                        "by policy", "the RBL", "no reverse DNS", "no PTR", "unauthorized", "unable to relay",
                        "not allowed", "relaying denied", "relay not permitted", "permission denied", "access denied",
                        "restricted"],
    "mailbox_disabled": ["account disabled", "user suspended", "mailbox inactive", "deactivated", "discontinued",
                         "locked", "user not active"],
    "routing_failed": ["mail looping", "loop detected", "too many hops", "hop count"],
    "sender_rejected": ["sender rejected", "sender address denied", "sender domain"],
    "invalid_recipient": ["user unknown", "userunknown", "recipient <x> not found", "unknown user", "no such mailbox",
                          "invalid recipient", "nobody here by that name", "address not found",
                          "couldn't find it", "no mailbox here", "doesn't have a yahoo.example account",
                          "does not have any account", "unrouteable address", "mailbox not available",
                          "this user does not exist", "not a valid mailbox", "not listed in domino",
                          "is no longer with", "no longer on server", "host unknown", "domain x.example not found",
                          "unknown host", "no such domain", "name or service not known",
                          "couldn't find any host named", "illegal host/domain", "null MX", "does not accept mail",
                          "unrouteable mail domain", "recipient name is not recognized",
                          "an MX record indicated no SMTP service", "553 x.example does not exist"],
}  # fmt: skip


@pytest.mark.parametrize(("reason", "said"), [(reason, one) for reason, said in SAID.items() for one in said])
def test_words_are_asked_where_no_code_tells(reason: str, said: str) -> None:
    text = f"Sorry, this could not be delivered.\n<reader@example.org>:\n{said}"
    report = only(letters.prose(text))
    assert report.reason == reason
    assert report.status is (S.HARD_BOUNCE if reason == "invalid_recipient" else S.FAILURE)
    assert report.recipients == ("reader@example.org",)
    assert only(letters.dsn("5.0.0", diagnostic=f"550 {said}")).reason == reason


def test_every_reason_that_words_can_give_is_tried_here() -> None:
    assert {reason for _, _, reason in REASONS} == set(SAID)


def test_words_in_our_own_mail_count_for_nothing() -> None:
    """The copy of the original says `user unknown`."""
    report = only(letters.prose("Your message could not be delivered.\n<reader@example.org>:\nwe did not like it"))
    assert (report.status, report.reason) == (S.FAILURE, "bounced")


def test_words_in_a_part_of_our_own_mail_count_for_nothing_either() -> None:
    returned = (
        b"--b1\r\nContent-Type: message/rfc822\r\n\r\nMessage-ID: <original@shop.example>\r\nContent-Type: "
        b"multipart/mixed; boundary=inner77\r\n\r\n--inner77\r\nContent-Type: text/plain\r\n\r\n550 5.1.1 user unknown"
        b"\r\n--inner77--\r\n\r\n--b1--\r\n"
    )
    raw = letters.dsn("5.0.0").partition(b"--b1\r\nContent-Type: text/rfc822-headers")[0] + returned
    assert only(raw).status is S.FAILURE
    assert read(raw).message_ids == (letters.ORIGINAL,)


@pytest.mark.parametrize(
    "said",
    ["Delivery has been delayed", "temporary problem, will continue trying", "no action is required on your part"],
)
def test_a_delay_in_words_is_pending_whatever_else_it_says(said: str) -> None:
    assert only(letters.prose(f"{said}\n<reader@example.org>: user unknown")).status is S.PENDING


def test_each_recipient_is_judged_by_what_is_said_behind_it() -> None:
    text = "could not be delivered\n<a@example.org>:\n550 5.1.1 user unknown\n<b@example.org>:\n552 mailbox full"
    first, second = read(letters.prose(text)).reports
    assert (first.recipients, first.status) == (("a@example.org",), S.HARD_BOUNCE)
    assert (second.recipients, second.status) == (("b@example.org",), S.FAILURE)


# -- what it is --


def test_a_bounce_that_calls_itself_auto_replied_is_a_bounce() -> None:
    raw = letters.dsn()
    assert b"Auto-Submitted: auto-replied" in raw
    assert read(raw).kind is Kind.REPORT


@pytest.mark.parametrize("subject", ["Out of office: Your note", "Automatic reply: Your note", "Re: Your note"])
def test_an_auto_reply_reports_nothing(subject: str) -> None:
    bounce = read(letters.vacation(subject=subject))
    assert (bounce.kind, bounce.reports) == (Kind.AUTO_REPLY, ())


def test_what_somebody_wrote_is_not_understood() -> None:
    assert read(letters.note()).kind is Kind.OTHER
    assert read(letters.note().replace(b"it did arrive", b"550 5.1.1 user unknown")).reports == ()


@pytest.mark.parametrize("kind", ["abuse", "fraud", "virus", "other", "opt-out"])
def test_a_complaint_is_one(kind: str) -> None:
    bounce = read(letters.complaint(kind))
    (report,) = bounce.reports
    assert (bounce.kind, report.status) == (Kind.FEEDBACK, S.COMPLAINED)
    assert report.recipients == ("reader@example.org",)
    assert bounce.message_ids == (letters.ORIGINAL,)


@pytest.mark.parametrize("kind", ["not-spam", "auth-failure", "dmarc", "nonsense", ""])
def test_feedback_that_objects_to_nothing_is_no_complaint(kind: str) -> None:
    bounce = read(letters.complaint(kind))
    assert (bounce.kind, bounce.reports) == (Kind.FEEDBACK, ())


# -- by what it is known --


def test_the_message_id_is_the_originals_and_never_the_bounces_own() -> None:
    assert read(letters.dsn()).message_ids == (letters.ORIGINAL,)
    assert read(letters.prose("could not be delivered")).message_ids == (letters.ORIGINAL,)
    assert read(letters.vacation()).message_ids == ()


def test_the_envelope_id_and_the_return_path_come_back() -> None:
    bounce = read(letters.dsn(envelope_id="abc.def", to="bounces+x.y@bounce.example"))
    assert bounce.envelope_ids == ("abc.def",)
    assert "<bounces+x.y@bounce.example>" in bounce.addresses


def test_a_date_is_the_letters_own_or_none() -> None:
    assert read(letters.dsn(date="Tue, 1 Dec 2020 00:00:00 +0100")).date == datetime(2020, 11, 30, 23, tzinfo=UTC)
    for nonsense in ("yesterday", "Tue, 1 Dec 9999 00:00:00 +0000", "Fri, 1 Jan 1904 00:00:00 +2359", ""):
        assert read(letters.dsn(date=nonsense)).date is None


def test_no_address_is_in_a_repr() -> None:
    assert "example" not in repr(read(letters.dsn()))


# -- hostile letters --


def nested(depth: int, inner: bytes = b"Content-Type: text/plain\n\nx\n") -> bytes:
    for level in range(depth):
        inner = b'Content-Type: multipart/mixed; boundary="b%d"\n\n--b%d\n%s\n--b%d--\n' % (level, level, inner, level)
    return inner


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"\n", b"\r\n\r\n", b"\0" * 1000, b"From ", b":" * 100_000, b"\xff\xfe" * 5000,
        nested(3000), nested(5, letters.dsn()),
        b"Content-Type: multipart/mixed; boundary=\"\"\n\n----\n" * 1000,
        b"Content-Type: multipart/mixed; boundary=b\n\n" + b"--b\n" * 200_000,
        b"Content-Type: multipart/mixed; boundary=b\n\n" + b"--b\nContent-Type: text/plain\n\nx@y.example\n" * 20_000,
        b"Subject: " + b"=?utf-8?b?" * 50_000 + b"\n\n",
        b"Subject: =?no-such-charset?q?x?= =?utf-8?b?!!!?=\nFrom: mailer-daemon@x\n\nundeliverable",
        b"X: y\n" * 200_000, b"X: " + b"y" * SIZE, b"X:\n" + b" y\n" * 300_000,
        b"Content-Type: text/plain; charset=base64\n\nx", b"Content-Type: text/plain; charset=\"a\0b\"\n\nx",
        b"Content-Type: text/plain; charset=idna\n\n" + b"\xff" * 100,
        b"Content-Transfer-Encoding: base64\n\n" + b"=" * 10_000,
        b"From: mailer-daemon@x\nSubject: failure notice\n\n" + b"<" * SIZE,
        b"From: mailer-daemon@x\nSubject: failure notice\n\n" + b"a@" * (SIZE // 2),
        b"From: mailer-daemon@x\nSubject: failure notice\n\n" + b"a." * (SIZE // 2),
        b"From: mailer-daemon@x\nSubject: failure notice\n\n" + b"user " * (SIZE // 5),
        b"From: mailer-daemon@x\nSubject: failure notice\n\n" + b"temporary " * (SIZE // 10),
        b"From: mailer-daemon@x\nSubject: failure notice\n\n" + b"Message-ID: <" * (SIZE // 13),
        letters.report("Final-Recipient: rfc822;a@b.example\nAction: failed\nStatus: 5.1.1\n\n" * 50_000),
        letters.report("Final-Recipient: rfc822;" + "a@b.example," * 50_000 + "\nAction: failed\nStatus: 5.1.1\n"),
        letters.report("Final-Recipient: rfc822;a@b.example\nAction: failed\nStatus: " + "5.1." * 50_000),
    ],
)  # fmt: skip
def test_no_letter_makes_the_reader_fail_or_hang(raw: bytes) -> None:
    assert isinstance(read(raw), Bounce)
    assert isinstance(read(raw.replace(b"\n", b"\r\n")), Bounce)


def test_a_report_in_base64_is_read() -> None:
    raw = letters.dsn("5.1.1").replace(b"\r\n", b"\n")
    above, mark, rest = raw.partition(b"Content-Type: message/delivery-status\n\n")
    body, close, rest = rest.partition(b"--b1\nContent-Type: text/rfc822-headers")
    raw = above + mark[:-1] + b"Content-Transfer-Encoding: base64\n\n" + base64.encodebytes(body) + close + rest
    assert only(raw).status is S.HARD_BOUNCE


def test_a_report_behind_the_first_megabyte_is_not_read() -> None:
    above, _, below = letters.dsn().partition(b"--b1\r\nContent-Type: message/delivery-status")
    raw = above + b"x" * SIZE + b"\r\n--b1\r\nContent-Type: message/delivery-status" + below
    assert S.HARD_BOUNCE not in {one.status for one in read(raw).reports}


_PIECES = st.sampled_from(
    [b"\n", b"\r\n", b"--b1", b"--b1--", b"Content-Type: ", b"multipart/report; boundary=b1",
     b"message/delivery-status",
     b"Final-Recipient: rfc822; a@b.example", b"Action: failed", b"Status: 5.1.1", b"message/rfc822", b"text/html",
     b"Message-ID: <a@b>", b"<br>", b"&lt;", b"=?utf-8?q?=C3?=", b"charset=", b"utf-16", b"utf-7", b"punycode",
     b"Content-Transfer-Encoding: quoted-printable", b"Content-Transfer-Encoding: base64", b"From: mailer-daemon@x",
     b"Subject: failure notice", b"550 5.1.1 user unknown", b"Date: ", b"Fri, 1 Mar 2024 12:00:00 +9999", b"\t", b" "]
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(_PIECES, st.binary(max_size=30)), max_size=60))
def test_whatever_is_put_together_is_read(pieces: list[bytes]) -> None:
    raw = b"".join(pieces)
    assert read(raw) == read(raw)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2000), st.binary(max_size=12), st.integers(0, 40))
def test_a_damaged_report_is_read(at: int, put: bytes, cut: int) -> None:
    raw = letters.dsn("5.1.1", diagnostic="550 5.1.1 user unknown")
    assert isinstance(read(raw[:at] + put + raw[at + cut :]), Bounce)
