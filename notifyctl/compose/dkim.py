"""DKIM signatures (RFC 6376, 8301, 8463) over a finished mail: rsa-sha256, ed25519-sha256, or both.

The canonical forms are made here, and only the public-key operation is left to `cryptography`, each key parsed once.
The library dkimpy is not used: it does RSA in Python (22 times slower than OpenSSL), parses the key for every mail and
imports a DNS resolver that signing never needs; with all of that patched, its regular expressions still cost as much as
the RSA operation. What stands here costs about a quarter of one on a mail of 4 KB. Simple bodies would hardly be
cheaper, so that both canonicalizations are always `relaxed`, which survives more relays. None of this is its own judge:
the tests let foreign verifiers decide, on the bytes a server received.

- The same mail and date give the same bytes: `t=` is the mail's own date, both algorithms are deterministic, and there
  is no `x=`, which would let a mail waiting in a relay's queue expire.
- What is signed is an explicit list. The fields of `OVERSIGNED` are named once more than they occur, so that nobody on
  the way can add a second From or Subject that a reader would show instead.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from hashlib import sha256

from notifyctl.compose.headers import MAX_LINE
from notifyctl.errors import InputError

OVERSIGNED = ("from", "to", "subject", "date", "message-id", "reply-to", "content-type")
SIGNED = (
    *OVERSIGNED,
    "sender", "cc", "in-reply-to", "references", "mime-version", "content-transfer-encoding", "auto-submitted",
    "list-id", "list-unsubscribe", "list-unsubscribe-post", "list-help", "list-subscribe", "list-post", "list-owner",
    "list-archive", "feedback-id",
)  # fmt: skip

_WIDTH = 76
_CHUNK = 65536  # of a body at a time: a large attachment is not copied whole once more
_FIELD_END = re.compile(rb"\r\n(?![ \t])")
_NAME = re.compile(rb"[!-9;-~]+")
_LINE_END = re.compile(rb"\r\n|\r|\n")
_WHITE = re.compile(rb"[ \t\r\n]+")
_LATE_FOLD = re.compile(rb"([^\r\n]{600,990}?)([ \t]+)(?=[^ \t\r\n])")


@dataclass(frozen=True, slots=True)
class SigningKey:
    """One private key under one name in the DNS: `{selector}._domainkey.{domain}`, both as A-labels.

    `algorithm` is `rsa-sha256` or `ed25519-sha256`; `sign` takes the canonical header and gives the raw signature.
    `record` is the TXT record that must be published there.
    """

    domain: str
    selector: str
    algorithm: str
    record: str
    sign: Callable[[bytes], bytes] = field(repr=False)


class Signer:
    """Signs mails with every one of its keys; made once per run, safe to share between threads."""

    def __init__(
        self, keys: Sequence[SigningKey], *, extra_headers: Collection[str] = (), never: Collection[str] = ()
    ) -> None:
        """`extra_headers`: names to sign besides `SIGNED`; `never`: names a provider rewrites, left out altogether."""
        self.keys = tuple(keys)
        names = dict.fromkeys((*SIGNED, *(name.lower() for name in extra_headers)))
        excluded = frozenset(name.lower() for name in never)
        self._names = tuple(name.encode() for name in names if name not in excluded)

    def sign(self, raw: bytes, date: datetime) -> bytes:
        """`raw` with one DKIM-Signature per key before it, the first key's on top; `date` is aware.

        A mail that would not travel unchanged is mended where its meaning stays (line ends, a missing blank line, a
        header line over 998 octets) and else refused: InputError(reason="mail_malformed").
        """
        raw = _fit_to_travel(raw)
        cut = raw.find(b"\r\n\r\n")
        fields = _FIELD_END.split(raw[:cut])
        pairs = [field.partition(b":") for field in fields]
        names = tuple([name.rstrip(b" \t").lower() for name, _, _ in pairs])
        order, listed = _selection(names, self._names)
        canonical = b"".join([names[index] + b":" + _relaxed_value(pairs[index][2]) + b"\r\n" for index in order])
        body_hash = b64encode(_body_hash(raw, cut + 4))
        stamp = int(date.timestamp())
        return b"".join([*(_signature(key, stamp, listed, body_hash, canonical) for key in self.keys), raw])


def _signature(key: SigningKey, stamp: int, listed: bytes, body_hash: bytes, canonical: bytes) -> bytes:
    """One header field with its last CRLF. Only `b=` is missing from what it signs itself."""
    value = (
        f"v=1; a={key.algorithm}; c=relaxed/relaxed;\r\n d={key.domain}; s={key.selector}; t={stamp};\r\n h=".encode()
        + b"".join((listed, b";\r\n bh=", body_hash, b";\r\n b="))
    )
    own = b"dkim-signature:" + value.replace(b"\r\n", b"")
    signature = b64encode(key.sign(canonical + own))
    lines = [signature[start : start + _WIDTH - 3] for start in range(0, len(signature), _WIDTH - 3)]
    return b"DKIM-Signature: " + value + b"\r\n ".join(lines) + b"\r\n"


@lru_cache(maxsize=512)
def _selection(names: tuple[bytes, ...], wanted: tuple[bytes, ...]) -> tuple[tuple[int, ...], bytes]:
    """Which fields are hashed, in which order, and the folded `h=`; mails of one kind share their field names.

    Of several fields with one name the last comes first (RFC 6376 5.4.2).
    """
    for name in names:
        if not _NAME.fullmatch(name):
            raise _malformed("its header holds a line that is not a header field")
    if names.count(b"from") != 1:
        raise _malformed("it does not have exactly one From field")
    order: list[int] = []
    listed: list[bytes] = []
    for name in wanted:
        found = [index for index in reversed(range(len(names))) if names[index] == name]
        order += found
        listed += [name] * (len(found) + (name.decode() in OVERSIGNED))
    lines, line = [], b"h=" + listed[0]
    for name in listed[1:]:
        if len(line) + len(name) + 2 > _WIDTH:
            lines.append(line + b":")
            line = name
        else:
            line += b":" + name
    return tuple(order), b"\r\n ".join([*lines, line])[2:]


def _relaxed_value(value: bytes) -> bytes:
    """A field's value without line ends, runs of spaces and tabs being one space (RFC 6376 3.4.2)."""
    if b"\v" in value or b"\f" in value:  # white to Python, but not to the RFC
        return _WHITE.sub(b" ", value).strip(b" ")
    return b" ".join(value.split())


def _body_hash(raw: bytes, start: int) -> bytes:
    """SHA-256 of the relaxed body (RFC 6376 3.4.4): no trailing blank lines, runs of spaces and tabs one space."""
    end = len(raw)
    while end > start and raw[end - 1] in b" \t\r\n":
        end -= 1
    digest = sha256()
    while start < end:
        # after a line end: there is one within any thousand octets
        cut = end if end - start <= _CHUNK else raw.rfind(b"\n", start, start + _CHUNK) + 1
        chunk = raw[start:cut]
        if b"\t" in chunk:
            chunk = chunk.replace(b"\t", b" ")
        if b" " in chunk:  # one octet is found forty times faster than two; base64 has none
            while b"  " in chunk:
                chunk = chunk.replace(b"  ", b" ")
            chunk = chunk.replace(b" \r\n", b"\r\n")
        digest.update(chunk)
        start = cut
        if start == end:
            digest.update(b"\r\n")
    return digest.digest()


def _fit_to_travel(raw: bytes) -> bytes:
    """`raw` itself where it is a mail that no server on the way has a reason to change, else a mended one."""
    if b"\0" in raw:
        raise _malformed("it holds a NUL")
    if not raw.count(b"\n") == raw.count(b"\r\n") == raw.count(b"\r"):
        raw = _LINE_END.sub(b"\r\n", raw)
    if not raw.endswith(b"\r\n"):  # SMTP ends every line, so that is what will be received
        raw += b"\r\n"
    if b"\r\n\r\n" not in raw:
        raw += b"\r\n"
    if _has_long_line(raw):
        head, blank, body = raw.partition(b"\r\n\r\n")
        raw = _LATE_FOLD.sub(rb"\1\r\n\2", head) + blank + body
        if _has_long_line(raw):
            raise _malformed(f"it has a line of more than {MAX_LINE} octets")
    return raw


def _has_long_line(raw: bytes) -> bool:
    """Whether a line is over the limit; looks at one place in about a thousand octets."""
    start = 0
    while len(raw) - start > MAX_LINE + 2:
        start = raw.rfind(b"\n", start, start + MAX_LINE + 2) + 1
        if not start:
            return True
    return False


def _malformed(why: str) -> InputError:
    return InputError(f"the mail cannot be signed: {why}", reason="mail_malformed")
