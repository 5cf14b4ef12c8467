"""The parts of a mail that may be hostile: a bounded reading that never raises and takes time linear in what it reads.

Not the standard library's parser: that one recurses into nested parts and looks at every line once per level. Here
what is deeper than `_DEPTH` or comes after `_PARTS` parts stays unread, and so does what lies behind `SIZE` bytes:
a report stands at the beginning of a bounce (RFC 6522), and what follows is our own mail.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

SIZE = 1 << 20  # bytes of a mail that are read
_DEPTH = 8
_PARTS = 60
_FIELDS = 500
_VALUE = 4000  # characters kept of one field

_WORD = r'"([^"\n]{1,200})"|([^\s;"]{1,200})'
_BOUNDARY = re.compile(rf"boundary\s*=\s*(?:{_WORD})", re.IGNORECASE)
_CHARSET = re.compile(rf"charset\s*=\s*(?:{_WORD})", re.IGNORECASE)
_REPORT_TYPE = re.compile(rf"report-type\s*=\s*(?:{_WORD})", re.IGNORECASE)

_DELIMITER = re.compile(rb"^--[^\s-]\S{5,199}()(?=\nContent-[A-Z-]{2,30}:)", re.IGNORECASE | re.MULTILINE)

Fields = list[tuple[str, str]]  # names in lower case, values unfolded


@dataclass(frozen=True, slots=True)
class Part:
    """One part that holds no further parts; `original`: it belongs to a mail that is enclosed in this one."""

    type: str
    fields: Fields = field(repr=False)
    content: bytes = field(repr=False)
    original: bool = False

    def text(self) -> str:
        """The content as text; what cannot be decoded is replaced."""
        return _text(self.content, _parameter(_CHARSET, first(self.fields, "content-type")))


def split(raw: bytes) -> tuple[Fields, list[Part]]:
    """The header fields of a mail, and its parts in their order; an enclosed mail's header is a part of its own."""
    raw = raw[:SIZE].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if raw.startswith((b"From ", b">From ")):  # the first line of an mbox
        raw = raw.partition(b"\n")[2]
    fields, body = head(raw)
    budget = [_PARTS]
    return fields, list(_parts(fields, body, 0, budget, original=False))


def head(raw: bytes) -> tuple[Fields, bytes]:
    """The header fields at the beginning of `raw` (LF line ends), and what follows them."""
    above, _, body = raw.partition(b"\n\n") if not raw.startswith(b"\n") else (b"", b"", raw[1:])
    fields: Fields = []
    for line in above.split(b"\n"):
        if line[:1] in (b" ", b"\t") and fields:
            name, value = fields[-1]
            if len(value) < _VALUE:
                fields[-1] = (name, f"{value} {_text(line[:_VALUE], '').strip()}")
            continue
        title, colon, rest = line.partition(b":")
        if colon and len(fields) < _FIELDS and title.strip() and b" " not in title.strip():
            fields.append((_text(title.strip()[:100], "").lower(), _text(rest[:_VALUE], "").strip()))
    return fields, body


def first(fields: Fields, name: str) -> str:
    """The value of the first field of that name, else an empty text."""
    return next((value for title, value in fields if title == name), "")


def every(fields: Fields, *names: str) -> list[str]:
    """The values of all fields of these names."""
    return [value for title, value in fields if title in names]


def report_type(fields: Fields) -> str:
    """What a multipart/report says it reports, in lower case; empty for any other mail."""
    value = first(fields, "content-type")
    return _parameter(_REPORT_TYPE, value).lower() if value.lower().startswith("multipart/report") else ""


def _parts(fields: Fields, body: bytes, depth: int, budget: list[int], *, original: bool) -> Iterator[Part]:
    if budget[0] <= 0:
        return
    content_type = first(fields, "content-type")
    kind = content_type.partition(";")[0].strip().lower() or "text/plain"
    if kind.startswith("multipart/") and depth < _DEPTH:
        pieces = _pieces(body, _parameter(_BOUNDARY, content_type).strip())
        for piece in pieces:
            inner, content = head(piece)
            yield from _parts(inner, content, depth + 1, budget, original=original)
        if pieces:
            return
        kind = "text/plain"  # a boundary that is nowhere: all of it is what can be read
    budget[0] -= 1
    if depth and not original and first(fields, "message-id"):  # enclosed without a word that it is a mail
        yield Part("text/rfc822-headers", fields, b"", original=True)
        original = True
    content = _decoded(body, first(fields, "content-transfer-encoding"))
    if kind in ("message/rfc822", "message/global", "text/rfc822", "message/partial"):
        inner, content = head(content.lstrip(b"\n"))
        yield Part("text/rfc822-headers", inner, b"", original=True)
        if depth < _DEPTH:
            yield from _parts(inner, content, depth + 1, budget, original=True)
        return
    if kind in ("text/rfc822-headers", "text/rfc822-header", "message/global-headers", "message/rfc822-headers"):
        yield Part("text/rfc822-headers", head(content.lstrip(b"\n"))[0], b"", original=True)
        return
    yield Part(kind, fields, content, original=original)


def _pieces(body: bytes, boundary: str) -> list[bytes]:
    """What stands between the delimiter lines; a missing closing one closes at the end.

    Some gateways rewrite delimiters and not the header: where none is as it should be, a line that looks like one and
    has a part's header behind it is taken for one.
    """
    own = re.escape(boundary.encode("utf-8", "replace"))
    marks = list(re.finditer(rb"^--" + own + rb"(--)?[ \t]*$", body, re.MULTILINE)) if own else []
    marks = marks or list(_DELIMITER.finditer(body))
    pieces: list[bytes] = []
    for number, mark in enumerate(marks[: _PARTS + 1]):
        if mark[1]:
            break
        end = marks[number + 1].start() - 1 if number + 1 < len(marks) else len(body)
        pieces.append(body[mark.end() + 1 : max(end, mark.end() + 1)])
    return pieces


def _decoded(body: bytes, encoding: str) -> bytes:
    encoding = encoding.strip().lower()
    try:
        if encoding == "base64":
            return binascii.a2b_base64(body).replace(b"\r\n", b"\n")
        if encoding == "quoted-printable":
            return binascii.a2b_qp(body).replace(b"\r\n", b"\n")
    except (binascii.Error, ValueError):
        pass
    return body


def _parameter(pattern: re.Pattern[str], value: str) -> str:
    found = pattern.search(value)
    return (found[1] or found[2] or "") if found else ""


def _text(data: bytes, charset: str) -> str:
    for name in (charset, "utf-8"):
        try:
            if name and (made := data.decode(name)) is not None and isinstance(made, str):
                return made
        except (LookupError, ValueError):  # an unknown charset, one that makes no text (base64), an embedded NUL
            continue
    return data.decode("latin-1")
