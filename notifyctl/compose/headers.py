"""Header fields of a mail: encoding (RFC 2047, 2231), quoting and folding (RFC 5322 2.2.3), one field per function.

A value that needs encoding is encoded whole, spaces included, as one run of encoded-words: mixing encoded and plain
words is where spaces get lost. Text that merely looks like an encoded-word is encoded too, so that it is shown as
written. Nothing is ever encoded inside an address, an identifier or a link. Fields come without their last CRLF.
"""

from __future__ import annotations

import re
from binascii import b2a_base64

from notifyctl.errors import InputError
from notifyctl.model import Mailbox

MAX_LINE = 998  # RFC 5322 2.1.1, without CRLF
_WIDTH = 78
_ENCODED_WIDTH = 76  # RFC 2047 2: a line that holds an encoded-word
_MAX_WORD = 75
_WORD_OVERHEAD = len("=?utf-8?q??=")
# Unicode's line ends are among them: programs that use them as such have split headers there.
_FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_TOKEN = re.compile(" *[^ ]+")
_ATOMS = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?: [A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*")
_ATEXT = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~\x80-\U0010ffff-]"
_ADDRESS = re.compile(
    rf'(?:{_ATEXT}+(?:\.{_ATEXT}+)*|"(?:[ !#-\[\]-~\x80-\U0010ffff]|\\[ -~])*")@(?:[A-Za-z0-9.-]+|\[[!-Z^-~]+\])'
)
_IDENTIFIER = re.compile(r"<[!-;=?-~]+@[!-;=?-~]+>")
# What readers agree on inside quotes: no quote, no backslash, nothing they would trim or decode.
_PLAIN_FILENAME = re.compile(r"(?!.*(?:=\?|  | $))[!#-\[\]-~][ !#-\[\]-~]{0,59}")


def _table(plain: str, escape: str) -> list[str]:
    kept = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789" + plain.encode())
    return [chr(octet) if octet in kept else f"{escape}{octet:02X}" for octet in range(256)]


# RFC 2047 5 (3), the strictest of its three sets, serves all places; a space is an underscore.
_Q = _table("!*+-/", "=")
_Q[0x20] = "_"
_Q_PLAIN = bytes(octet for octet in range(256) if len(_Q[octet]) == 1)
_Q_CONTINUATION = ("=8", "=9", "=A", "=B")  # how the escape of a UTF-8 continuation octet begins
_PERCENT = _table("-._~", "%")


def invalid(name: str, why: str) -> InputError:
    """The refusal of one header field; the value is never in the text."""
    return InputError(f"the {name} header cannot be written: {why}", reason="header_invalid", field=name)


def _check(name: str, value: str) -> None:
    if _FORBIDDEN.search(value):
        raise invalid(name, "it holds a line break, a control character or half of a character")


def text_header(name: str, value: str) -> str:
    """A field that people read (Subject): plain where it can be, else encoded-words. Raises header_invalid."""
    _check(name, value)
    if value.isascii() and "=?" not in value and value == value.strip(" "):
        if len(name) + 2 + len(value) <= _WIDTH:
            return f"{name}: {value}"
        field = _fold(name, value)
        if max(map(len, field.split("\r\n"))) <= _WIDTH:
            return field
    return f"{name}: " + "\r\n ".join(_encoded_words(value, _ENCODED_WIDTH - len(name) - 2))


def opaque_header(name: str, value: str) -> str:
    """A field that machines read: ASCII, folded at its spaces only, never encoded. Raises header_invalid."""
    _check(name, value)
    value = value.strip(" ")
    if not value or not value.isascii():
        raise invalid(name, "it must be ASCII and not empty")
    if len(name) + 2 + len(value) <= _WIDTH:
        return f"{name}: {value}"
    field = _fold(name, value)
    if max(map(len, field.split("\r\n"))) > MAX_LINE:
        raise invalid(name, f"a part of it is longer than a line of {MAX_LINE} characters and must not be broken")
    return field


def identifier_header(name: str, value: str) -> str:
    """A message or content id with its angle brackets, on one line. Raises header_invalid."""
    if not _IDENTIFIER.fullmatch(value) or len(name) + 2 + len(value) > MAX_LINE:
        raise invalid(name, "it is not <something@domain> in ASCII")
    return f"{name}: {value}"


def address_header(name: str, box: Mailbox) -> str:
    """A field with exactly one mailbox; a non-ASCII local part stays as it is (SMTPUTF8). Raises header_invalid."""
    _check(name, box.address)
    if not _ADDRESS.fullmatch(box.address):
        raise invalid(name, "its address is not one normalized mail address")
    if not box.name:
        return f"{name}: {box.address}"
    phrase = _phrase(name, box.name)
    last = f"{name}: {phrase}".rpartition("\r\n")[2]
    room = (_ENCODED_WIDTH if "=?" in last else _WIDTH) - len(last)
    separator = " " if len(box.address) + 3 <= room else "\r\n "
    return f"{name}: {phrase}{separator}<{box.address}>"


def _phrase(name: str, text: str) -> str:
    """A display name as atoms, a quoted-string or encoded-words; a quoted-string is never folded, readers differ."""
    _check(name, text)
    if text.isascii() and "=?" not in text:
        quoted = text
        if not _ATOMS.fullmatch(text):
            quoted = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
        if len(name) + 2 + len(quoted) <= _WIDTH:
            return quoted
    return "\r\n ".join(_encoded_words(text, _ENCODED_WIDTH - len(name) - 2))


def file_headers(disposition: str, filename: str) -> str:
    """Content-Disposition with its filename; what is not plain or short is percent-encoded in pieces (RFC 2231)."""
    start = f"Content-Disposition: {disposition}"
    _check("filename", filename)
    if not filename:
        return start
    if _PLAIN_FILENAME.fullmatch(filename):
        return f'{start};\r\n filename="{filename}"'
    # Cut between characters: some readers decode each piece on its own.
    pieces, piece = [], "UTF-8''"
    for char in filename:
        coded = "".join([_PERCENT[octet] for octet in char.encode()])
        if len(piece) + len(coded) > 60:
            pieces.append(piece)
            piece = ""
        piece += coded
    pieces.append(piece)
    if len(pieces) == 1:
        return f"{start};\r\n filename*={piece}"
    return start + "".join([f";\r\n filename*{number}*={piece}" for number, piece in enumerate(pieces)])


def _fold(name: str, value: str) -> str:
    """Break before spaces so that lines keep to 78 where they can; unfolding gives back exactly the value."""
    lines, line = [], f"{name}:"
    for token in _TOKEN.findall(" " + value):
        if len(line) + len(token) > _WIDTH and len(line) > len(name) + 1:
            lines.append(line)
            line = ""
        line += token
    lines.append(line)
    return "\r\n".join(lines)


def _encoded_words(text: str, first: int) -> list[str]:
    """Encoded-words of at most 75 characters, the first of at most `first`; none splits a character."""
    data = text.encode()
    q_length = len(data) + 2 * len(data.translate(None, _Q_PLAIN))
    cut = _cut_q if q_length <= (len(data) + 2) // 3 * 4 else _cut_base64
    words: list[str] = []
    room = min(first, _MAX_WORD) - _WORD_OVERHEAD
    while data:
        word, data = cut(data, room)
        words.append(word)
        room = _MAX_WORD - _WORD_OVERHEAD
    return words


def _cut_q(data: bytes, room: int) -> tuple[str, bytes]:
    """One Q word of at most `room` characters between its markers, and the octets left over."""
    coded = "".join([_Q[octet] for octet in data[:room]])
    if len(data) <= room and len(coded) <= room:
        return f"=?utf-8?q?{coded}?=", b""
    end = room
    if (inside := coded.rfind("=", end - 2, end)) >= 0:  # never inside an escape
        end = inside
    while coded[end : end + 2] in _Q_CONTINUATION:  # nor inside a character
        end -= 3
    taken = end - 2 * coded.count("=", 0, end)
    return f"=?utf-8?q?{coded[:end]}?=", data[taken:]


def _cut_base64(data: bytes, room: int) -> tuple[str, bytes]:
    """The same as a B word."""
    end = min(len(data), room // 4 * 3)
    while end < len(data) and data[end] & 0xC0 == 0x80:
        end -= 1
    return "=?utf-8?b?" + b2a_base64(data[:end], newline=False).decode() + "?=", data[end:]
