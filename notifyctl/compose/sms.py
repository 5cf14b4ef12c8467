"""What an SMS will be on the air: its text, encoding and number of segments (3GPP TS 23.038 and 23.040).

One segment holds 160 septets or 70 UTF-16 units; several hold 153 or 67 each, as the rest joins them. An extension
character costs two septets (escape and code); neither that pair nor a surrogate pair is split, so a segment may end
one short. National language tables are not used: handsets and providers rarely do.
"""

from __future__ import annotations

import re
import unicodedata

from notifyctl.errors import InputError

GSM7 = "gsm7"
UCS2 = "ucs2"

_BASIC = (
    "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?¡"
    "ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§¿abcdefghijklmnopqrstuvwxyzäöñüà"
)
_EXTENSION = "\f^{}\\[~]|€"
_GSM = frozenset(_BASIC + _EXTENSION)
_GSM_TEXT = re.compile(f"[{re.escape(_BASIC + _EXTENSION)}]*")
_EXTENDED = re.compile(f"[{re.escape(_EXTENSION)}]")
_ASTRAL = re.compile("[\U00010000-\U0010ffff]")
_SURROGATE = re.compile("[\ud800-\udfff]")
# A raw escape would change the meaning of the next character; the rest is invisible. Tab, LF and FF are text.
_CONTROL = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f]")

# What reads the same in GSM 03.38; written as escapes, as these characters are easily mistaken for one another.
_TYPOGRAPHY: dict[str, str] = {
    char: plain
    for plain, chars in {
        "'": "\u2018\u2019\u201a\u201b\u2032\u00b4\u0060\u02bc",
        '"': "\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb",
        "-": "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\u2022",
        " ": "\t\u00a0\u2002\u2003\u2007\u2008\u2009\u200a\u202f",
        "\n": "\u2028\u2029",
        "": "\u00ad\u200b\u200c\u200d\u2060\ufeff",
        "...": "\u2026",
        "<": "\u2039",
        ">": "\u203a",
        "No": "\u2116",
        "TM": "\u2122",
        "(R)": "\u00ae",
        "(C)": "\u00a9",
        "oe": "\u0153",
        "OE": "\u0152",
        "l": "\u0142",
        "L": "\u0141",
        "d": "\u0111\u00f0",
        "D": "\u0110\u00d0",
        "th": "\u00fe",
        "Th": "\u00de",
        "i": "\u0131",
    }.items()
    for char in chars
}


def prepare(text: str, *, transliterate: bool = False) -> tuple[str, str, int]:
    """The text as it goes out, its encoding (`gsm7` or `ucs2`) and its number of segments.

    Composed (NFC), line ends LF, control characters dropped. With `transliterate`, typographic characters and accents
    outside GSM 03.38 are replaced where that makes the whole text GSM-7; a text that cannot be saved stays as written.
    Raises InputError(reason="template_error") for what is not text.
    """
    if _SURROGATE.search(text):
        raise InputError("the SMS holds half of a character", reason="template_error", field="sms")
    text = unicodedata.normalize("NFC", text).replace("\r\n", "\n").replace("\r", "\n")
    text = _CONTROL.sub("", text)
    if transliterate and not _GSM_TEXT.fullmatch(text):
        text = _to_gsm(text) or text
    encoding, segments = measure(text)
    return text, encoding, segments


def measure(text: str) -> tuple[str, int]:
    """Encoding and number of segments of `text` exactly as given; an empty text takes one segment."""
    if _GSM_TEXT.fullmatch(text):
        return GSM7, _segments(text, _EXTENDED, single=160, joined=153)
    return UCS2, _segments(text, _ASTRAL, single=70, joined=67)


def _segments(text: str, double: re.Pattern[str], *, single: int, joined: int) -> int:
    doubles = [match.start() for match in double.finditer(text)]
    if len(text) + len(doubles) <= single:
        return 1
    segments, start, before = 1, 0, 0  # `start` and positions count units; `before` the double ones already passed
    for index in doubles:
        position = index + before
        before += 1
        segments += (position - start) // joined
        start += (position - start) // joined * joined
        if position - start == joined - 1:  # the pair would straddle the end: it opens the next segment
            segments += 1
            start = position
    return segments + max(0, len(text) + before - start - 1) // joined


def _to_gsm(text: str) -> str | None:
    pieces: list[str] = []
    for char in text:
        plain = char if char in _GSM else _TYPOGRAPHY.get(char)
        if plain is None:  # an accent on a letter that GSM knows without it
            parts = unicodedata.normalize("NFD", char)
            if parts[0] not in _GSM or len(parts) < 2 or not all(map(unicodedata.combining, parts[1:])):
                return None
            plain = parts[0]
        pieces.append(plain)
    return "".join(pieces)


_NUMBER = re.compile(r"\+[1-9][0-9]{6,14}")
_SHORT_CODE = re.compile(r"[0-9]{3,8}")
_ALPHANUMERIC = re.compile(r"(?=.*[A-Za-z])[A-Za-z0-9](?:[A-Za-z0-9 &._+-]{0,9}[A-Za-z0-9])?")


def check_sender(sender: str) -> str:
    """`sender` if it is an E.164 number, a short code, or a name of at most 11 characters with a letter in it.

    Raises InputError(reason="sender_invalid").
    """
    if _NUMBER.fullmatch(sender) or _SHORT_CODE.fullmatch(sender) or _ALPHANUMERIC.fullmatch(sender):
        return sender
    raise InputError(
        "the SMS sender is neither a number with +, a short code, nor a name of at most 11 letters and digits",
        reason="sender_invalid",
        field="from",
        hint="set `from` of the transport",
    )
