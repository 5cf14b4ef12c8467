"""The bytes of a mail (RFC 5322, 2045 to 2047, 2231), written by hand.

`email.message` is not used: it breaks long one-click links, turns a quoted name into a second recipient, puts
encoded-words into addresses, and costs more than the SMTP exchange. What this writer promises:

- CRLF line ends, no line over 998 octets, header lines of at most 78 where a space allows it, never an 8-bit body;
- the same input gives the same bytes (boundaries come from `boundary_seed`), so that a replay is byte-identical;
- a newline, control character or half a character in any header value refuses the mail;
- identifiers and links (Message-ID, List-Unsubscribe) are never encoded or broken.
"""

from __future__ import annotations

import re
from binascii import b2a_base64, b2a_qp
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import blake2b

from notifyctl.compose.headers import (
    MAX_LINE,
    address_header,
    file_headers,
    identifier_header,
    invalid,
    opaque_header,
    text_header,
)
from notifyctl.errors import InputError
from notifyctl.model import Mailbox

# What a 7-bit line may hold besides its end; the rest (NUL, controls, 8-bit) needs an encoding.
_SEVEN_BIT = bytes(range(0x20, 0x7F)) + b"\t\n"
_CONTENT_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,64}/[A-Za-z0-9!#$&^_.+-]{1,64}")
_HEADER_NAME = re.compile(r"[!-9;-~]{1,50}")
_TEXT_HEAD = {
    (kind, encoding): (
        f"Content-Type: text/{kind}; charset=utf-8\r\nContent-Transfer-Encoding: {encoding}\r\n\r\n".encode()
    )
    for kind in ("plain", "html")
    for encoding in ("7bit", "quoted-printable", "base64")
}
_BLOCK = 57 * 2048  # bytes that are encoded at once: whole lines
# Written here, or able to add a recipient or a structure: nobody may pass them in.
_RESERVED = re.compile(
    r"(?:resent-)?(?:from|to|cc|bcc|sender|reply-to|date|message-id)|subject|mime-version|auto-submitted"
    r"|return-path|received|dkim-signature|content-.*",
    re.IGNORECASE,
)
# Machines read these: what is not ASCII in them is a mistake, not something to encode.
_STRUCTURED = re.compile(r"list-.*|references|in-reply-to|feedback-id|precedence|importance", re.IGNORECASE)

_sender_header = lru_cache(maxsize=256)(address_header)  # a run has few senders and very many mails


@dataclass(frozen=True, slots=True)
class Part:
    """A loaded file: with a `content_id` it is shown inside the HTML (`cid:`), without one it is attached."""

    content: bytes = field(repr=False)
    content_type: str
    filename: str = field(default="", repr=False)
    content_id: str = ""  # with its angle brackets


def write(
    *,
    sender: Mailbox,
    recipient: Mailbox,
    subject: str,
    text: str,
    html: str,
    message_id: str,
    date: datetime,
    reply_to: Mailbox | None,
    headers: Sequence[tuple[str, str]],
    boundary_seed: str,
    files: Sequence[Part] = (),
) -> tuple[bytes, bool]:
    """Write one mail; the second value tells that an address in it needs SMTPUTF8.

    `message_id` comes with its angle brackets, `date` is aware. An empty `text` or `html` is left out; a text ends in
    a line end whether or not the input does. Raises InputError: header_invalid (`field` names the header), or
    template_error for a body that is not text.
    """
    first, smtputf8 = head(
        sender=sender, recipient=recipient, subject=subject, message_id=message_id, date=date, reply_to=reply_to,
        headers=headers,
    )  # fmt: skip
    return with_body(first, text, html, boundary_seed=boundary_seed, files=files), smtputf8


def head(
    *,
    sender: Mailbox,
    recipient: Mailbox,
    subject: str,
    message_id: str,
    date: datetime,
    reply_to: Mailbox | None,
    headers: Sequence[tuple[str, str]],
) -> tuple[bytes, bool]:
    """What `write` begins with: every header that says something of this mail, and whether it needs SMTPUTF8."""
    fields = [
        f"Date: {_date(date)}",
        _sender_header("From", sender),
        address_header("To", recipient),
        identifier_header("Message-ID", message_id),
        text_header("Subject", subject),
    ]
    if reply_to is not None:
        fields.append(_sender_header("Reply-To", reply_to))
    fields.append("MIME-Version: 1.0\r\nAuto-Submitted: auto-generated")
    fields.extend([_extra_header(name, value) for name, value in headers])
    lines = "\r\n".join((*fields, ""))
    return lines.encode(), not lines.isascii()


def with_body(first: bytes, text: str, html: str, *, boundary_seed: str, files: Sequence[Part]) -> bytes:
    """The whole mail behind its `head`; put together once, for an attachment may be large."""
    return b"".join((first, *_entity(text, html, files, boundary_seed)))


def _date(date: datetime) -> str:
    if date.tzinfo is None:
        raise ValueError("the date of a mail must be aware")
    text = (
        date if date.tzinfo is UTC else date.astimezone(UTC)
    ).ctime()  # `Fri Jan  2 03:04:05 2026`, in English whatever the locale
    return f"{text[:3]}, {text[8:10].replace(' ', '0')} {text[4:7]} {text[20:]} {text[11:19]} +0000"


def _extra_header(name: str, value: str) -> str:
    if not _HEADER_NAME.fullmatch(name):
        raise InputError("a header has an impossible name", reason="header_invalid", field="headers")
    if _RESERVED.fullmatch(name):
        raise invalid(name, "this field is written by the program itself")
    if (value.isascii() and "=?" not in value) or _STRUCTURED.fullmatch(name):
        return opaque_header(name, value)
    return text_header(name, value)


def _entity(text: str, html: str, files: Sequence[Part], seed: str) -> list[bytes]:
    """Content headers, blank line and body: mixed(alternative(text, related(html, inline files)), attached files)."""
    inline = [_file(part) for part in files if part.content_id]
    attached = [_file(part) for part in files if not part.content_id]
    bodies = [[_text("plain", text)]] if text or not html else []
    if html:
        bodies.append([_text("html", html)])
    boundary = _boundary(seed, [body for (body,) in bodies])
    if inline:
        bodies[-1] = _multipart(
            'related; type="text/html"' if html else "related", boundary + "r", bodies[-1:] + inline
        )
    entity = bodies[0] if len(bodies) == 1 else _multipart("alternative", boundary + "a", bodies)
    return _multipart("mixed", boundary + "m", [entity, *attached]) if attached else entity


def _boundary(seed: str, bodies: Sequence[bytes]) -> str:
    """A boundary that the seed fixes and no part holds (`=_` cannot occur in quoted-printable or base64)."""
    key = seed.encode("utf-8", "surrogatepass")
    while True:
        boundary = "=_" + blake2b(key, digest_size=12).hexdigest()
        if not any(boundary.encode() in body for body in bodies):
            return boundary
        key += b"+"


def _multipart(kind: str, boundary: str, entities: Sequence[list[bytes]]) -> list[bytes]:
    delimiter = f"--{boundary}".encode()
    pieces = [f'Content-Type: multipart/{kind};\r\n boundary="{boundary}"\r\n'.encode()]
    for entity in entities:
        pieces += (b"\r\n", delimiter, b"\r\n", *entity)
    pieces += (b"\r\n", delimiter, b"--\r\n")
    return pieces


def _text(kind: str, text: str) -> bytes:
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise InputError(
            "the body holds half of a character (a lone surrogate)", reason="template_error", field=kind
        ) from None
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if not data.endswith(b"\n"):
        data += b"\n"
    encoding, body = _encode(data)
    return _TEXT_HEAD[kind, encoding] + body


def _encode(data: bytes) -> tuple[str, bytes]:
    """7bit where it survives every relay, else the shorter of quoted-printable and base64 (by a close estimate)."""
    # Mailbox files quote a line that begins with "From ", which would break a signature over the body.
    from_line = data.startswith(b"From ") or b"\nFrom " in data
    special = len(data.translate(None, _SEVEN_BIT))
    if not special and not from_line and not _has_long_line(data):
        return "7bit", data.replace(b"\n", b"\r\n")
    expanded = len(data) + 2 * (special + data.count(b"="))
    if expanded * 77 // 75 > len(data) * 4 * 78 // (3 * 76):
        return "base64", b"".join(_base64(data.replace(b"\n", b"\r\n")))
    quoted = b2a_qp(data)
    if from_line:
        quoted = quoted.replace(b"\nFrom ", b"\n=46=\nrom ")
        if quoted.startswith(b"From "):
            quoted = b"=46=\nrom " + quoted[5:]
    return "quoted-printable", quoted.replace(b"\n", b"\r\n")


def _has_long_line(data: bytes) -> bool:
    """Whether a line is longer than allowed: from the last line end within reach to the next."""
    start = 0
    while len(data) - start > MAX_LINE:
        start = data.rfind(b"\n", start, start + MAX_LINE + 1) + 1
        if start == 0:
            return True
    return False


def _base64(data: bytes) -> list[bytes]:
    """In lines of 76, some thousands at a time: a line for itself takes up twice its length."""
    pieces: list[bytes] = []
    for at in range(0, len(data), _BLOCK):
        flat = b2a_base64(memoryview(data)[at : at + _BLOCK], newline=False)
        lines = [flat[start : start + 76] for start in range(0, len(flat), 76)]
        pieces += (b"\r\n".join(lines), b"\r\n")
    return pieces


def _file(part: Part) -> list[bytes]:
    kind = part.content_type.lower() or "application/octet-stream"
    if not _CONTENT_TYPE.fullmatch(kind):
        raise invalid("Content-Type", "it is not type/subtype")
    if kind.startswith(("message/", "multipart/")):  # RFC 2046 5: these may not be base64
        kind = "application/octet-stream"
    fields = [
        f"Content-Type: {kind}",
        "Content-Transfer-Encoding: base64",
        file_headers("inline" if part.content_id else "attachment", part.filename),
    ]
    if part.content_id:
        fields.append(identifier_header("Content-ID", part.content_id))
    return ["\r\n".join((*fields, "", "")).encode(), *_base64(part.content)]
