"""Letters of a bounce mailbox, written for the tests, and the corpus of real ones beside the checkout."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

CORPUS = Path(__file__).parents[2] / "../shared/corpora/bounces"
ORIGINAL = "<original@shop.example>"


def dsn(
    status: str = "5.1.1",
    action: str = "failed",
    diagnostic: str = "",
    *,
    recipients: tuple[str, ...] = ("reader@example.org",),
    to: str = "bounces@bounce.example",
    message_id: str = ORIGINAL,
    envelope_id: str = "",
    headers: str = "",
    date: str = "Fri, 1 Mar 2024 12:00:00 +0000",
) -> bytes:
    """A report as RFC 3464 wants it; several recipients get the same."""
    diagnostic = f"Diagnostic-Code: smtp; {diagnostic}\n" if diagnostic else ""
    groups = "\n".join(
        f"Final-Recipient: rfc822; {one}\nAction: {action}\nStatus: {status}\n{diagnostic}" for one in recipients
    )
    return report(groups, to=to, message_id=message_id, envelope_id=envelope_id, headers=headers, date=date)


def report(
    groups: str,
    *,
    to: str = "bounces@bounce.example",
    message_id: str = ORIGINAL,
    envelope_id: str = "",
    headers: str = "",
    date: str = "Fri, 1 Mar 2024 12:00:00 +0000",
) -> bytes:
    """A report about recipients whose groups of fields are given."""
    envelope_id = f"Original-Envelope-Id: {envelope_id}\n" if envelope_id else ""
    return f"""From: MAILER-DAEMON@mx.example.net (Mail Delivery System)
To: <{to}>
Subject: Undelivered Mail Returned to Sender
Date: {date}
Message-ID: <report@mx.example.net>
Auto-Submitted: auto-replied
{headers}MIME-Version: 1.0
Content-Type: multipart/report; report-type=delivery-status; boundary="b1"

--b1
Content-Type: text/plain; charset=us-ascii

This is the mail system at host mx.example.net.
--b1
Content-Type: message/delivery-status

Reporting-MTA: dns; mx.example.net
{envelope_id}
{groups}
--b1
Content-Type: text/rfc822-headers

From: Shop <shop@shop.example>
To: reader@example.org
Message-ID: {message_id}
Subject: Your note

--b1--
""".replace("\n", "\r\n").encode()


def prose(text: str, *, subject: str = "failure notice", sender: str = "MAILER-DAEMON@mx.example.net") -> bytes:
    """A bounce that says everything in words."""
    return f"""From: {sender}
To: bounces@bounce.example
Subject: {subject}
Date: Fri, 1 Mar 2024 12:00:00 +0000

{text}

--- Below this line is a copy of the message.

Return-Path: <bounces@bounce.example>
Message-ID: {ORIGINAL}
To: reader@example.org
Subject: Your note

Hello, user unknown.
""".encode()


def complaint(kind: str = "abuse", *, to: str = "bounces@bounce.example", message_id: str = ORIGINAL) -> bytes:
    """A report of a feedback loop (RFC 5965)."""
    return f"""From: <feedback@isp.example>
To: <{to}>
Subject: FW: Your note
Date: Fri, 1 Mar 2024 12:00:00 +0000
MIME-Version: 1.0
Content-Type: multipart/report; report-type=feedback-report; boundary=b1

--b1
Content-Type: text/plain

This is an email abuse report.
--b1
Content-Type: message/feedback-report

Feedback-Type: {kind}
User-Agent: SomeGenerator/1.0
Version: 1
Original-Rcpt-To: <reader@example.org>

--b1
Content-Type: message/rfc822

From: Shop <shop@shop.example>
Message-ID: {message_id}

Hello
--b1--
""".encode()


def vacation(*, to: str = "bounces@bounce.example", subject: str = "Out of office: Your note") -> bytes:
    """What a vacation responder answers (RFC 3834)."""
    return f"""From: reader@example.org
To: <{to}>
Subject: {subject}
Auto-Submitted: auto-replied
In-Reply-To: {ORIGINAL}
Date: Fri, 1 Mar 2024 12:00:00 +0000

I am away until Monday.
""".encode()


def note(to: str = "bounces@bounce.example") -> bytes:
    """A mail that somebody wrote."""
    return f"From: reader@example.org\nTo: <{to}>\nSubject: Re: Your note\n\nThank you, it did arrive.\n".encode()


@cache
def corpus() -> list[dict[str, Any]]:
    """The labelled letters, each with its bytes as `raw`; skips where they are not there."""
    if not CORPUS.is_dir():
        pytest.skip(f"{CORPUS} is not beside this checkout")
    lines = (CORPUS / "expectations.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return [{**row, "raw": (CORPUS / row["file"]).read_bytes()} for row in rows]


def plant() -> Callable[..., bytes | None]:
    """The corpus' own way to turn a letter into one about a message of ours."""
    if not CORPUS.is_dir():
        pytest.skip(f"{CORPUS} is not beside this checkout")
    spec = importlib.util.spec_from_file_location("plant", CORPUS / "plant.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: Callable[..., bytes | None] = module.plant
    return made
