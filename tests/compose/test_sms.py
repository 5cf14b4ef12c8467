"""Encoding and segments of an SMS, against known vectors and by packing septets for real."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notifyctl.compose import sms
from notifyctl.errors import InputError

CORPORA = Path(__file__).parents[2] / "../shared/corpora"
BASIC = "".join(sorted(set(sms._BASIC)))


@pytest.mark.parametrize(
    ("text", "encoding", "segments"),
    [
        ("a" * 160, "gsm7", 1),
        ("a" * 161, "gsm7", 2),
        ("a" * 306, "gsm7", 2),
        ("a" * 307, "gsm7", 3),
        ("€" * 80, "gsm7", 1),
        ("€" * 153, "gsm7", 3),  # 306 septets, but 76 pairs a segment
        ("a" * 152 + "€" + "a" * 152, "gsm7", 3),  # the pair opens the second segment, 151 more fit behind it
        ("ç", "ucs2", 1),
        ("中" * 70, "ucs2", 1),
        ("中" * 71, "ucs2", 2),
        ("中" * 66 + "😀" + "中" * 65, "ucs2", 2),
        ("中" * 66 + "😀" + "中" * 66, "ucs2", 3),
        ("😀" * 67, "ucs2", 3),
        ("Hi\tthere", "ucs2", 1),
    ],
)
def test_neither_an_escape_pair_nor_a_surrogate_pair_is_split(text: str, encoding: str, segments: int) -> None:
    assert sms.prepare(text) == (text, encoding, segments)


def packed(sizes: list[int], single: int, joined: int) -> int:
    """Segments by filling one after the other."""
    if sum(sizes) <= single:
        return 1
    segments, used = 1, 0
    for size in sizes:
        if used + size > joined:
            segments, used = segments + 1, 0
        used += size
    return segments


@given(st.lists(st.sampled_from([*"aé\n€^[", "b" * 7, "c" * 50, "d" * 152]), max_size=30).map("".join))
def test_segments_equal_those_of_filling_one_after_the_other(text: str) -> None:
    assert sms.measure(text) == ("gsm7", packed([2 if char in sms._EXTENSION else 1 for char in text], 160, 153))
    wide = "中" + text.replace("€", "😀")
    assert sms.measure(wide) == ("ucs2", packed([2 if ord(char) > 0xFFFF else 1 for char in wide], 70, 67))


def test_every_character_of_the_alphabet_is_gsm_and_costs_what_the_standard_says() -> None:
    assert len(BASIC) == 127  # 128 places, one of them the escape
    for char in BASIC:
        assert sms.measure(char * 160) == ("gsm7", 1)
    for char in sms._EXTENSION:
        assert sms.measure(char * 80) == ("gsm7", 1)
        assert sms.measure(char * 81)[1] == 2


def test_text_is_composed_and_its_line_ends_unified() -> None:
    assert sms.prepare("cafe\u0301\r\nx\ry") == ("café\nx\ny", "gsm7", 1)


def test_control_characters_never_reach_the_air() -> None:
    assert sms.prepare("a\x1b(b\x00c\x07") == ("a(bc", "gsm7", 1)


def test_half_a_character_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        sms.prepare("x\ud800")
    assert caught.value.reason == "template_error"


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("\u201eGr\u00fc\u00dfe\u201c \u2013 it\u2019s \u00e7a\u2026", '"Grüße" - it\'s ca...'),
        ("Ze\u0161\u00edt\u00a0\u0141\u00f3d\u017a\u200b", "Zesit Lodz"),
        ("Xin ch\u00e0o Vi\u1ec7t Nam", "Xin chào Viet Nam"),
    ],
)
def test_transliteration_saves_a_text_that_only_looks_beyond_gsm(text: str, plain: str) -> None:
    assert sms.prepare(text, transliterate=True)[:2] == (plain, "gsm7")
    assert sms.prepare(text)[1] == "ucs2"


def test_a_text_that_cannot_be_saved_is_left_as_written() -> None:
    text = "\u041c\u0438\u0440 \u2013 \u201c\u0436\u201d"
    assert sms.prepare(text, transliterate=True) == (text, "ucs2", 1)


def test_a_gsm_text_is_not_touched_by_transliteration() -> None:
    assert sms.prepare("Ö€ñ`"[:3], transliterate=True) == ("Ö€ñ", "gsm7", 1)


@pytest.mark.parametrize("sender", ["+15005550006", "60777", "Shop", "My Shop 24", "ABCDEFGHIJK", "3M"])
def test_a_number_a_short_code_or_a_short_name_may_send(sender: str) -> None:
    assert sms.check_sender(sender) == sender


@pytest.mark.parametrize("sender", ["", "12", "ABCDEFGHIJKL", "Größe", "+0123456789", "a\nb", " Shop", "15005550006"])
def test_any_other_sender_is_refused(sender: str) -> None:
    with pytest.raises(InputError) as caught:
        sms.check_sender(sender)
    assert caught.value.reason == "sender_invalid"


def test_every_text_of_the_corpus_has_its_encoding_and_segments() -> None:
    path = CORPORA / "sms/sms_vectors.json"
    if not path.exists():
        pytest.skip("the test material sms/sms_vectors.json is not beside this checkout")
    names = {"GSM-7": "gsm7", "UCS-2": "ucs2"}
    for case in json.loads(path.read_text()):
        if case["text"]:
            expected = (names[case["encoding"]], case["segments"])
            assert sms.measure(case["text"]) == expected, case["id"]
            text, *measured = sms.prepare(case["text"])
            assert text != case["text"] or tuple(measured) == expected, case["id"]
