"""The delivery in a return path: signed, and found again after what relays do to addresses."""

from __future__ import annotations

import pytest

from notifyctl.keys import Keys
from notifyctl.transports.verp import named, return_path, signed

KEYS = Keys("11" * 32)
SIGN = KEYS.return_path
KEY = KEYS.wire("4:note:r-1:email")
PATH = return_path(KEY, SIGN, "bounces", "bounce.example")


def test_a_return_path_is_lower_case_fits_and_is_the_same_each_time() -> None:
    local, _, domain = PATH.partition("@")
    assert len(local) <= 64
    assert (local, domain) == (local.lower(), "bounce.example")
    assert return_path(KEY, SIGN, "a" * 14, "bounce.example").index("@") <= 64
    assert return_path(KEY, SIGN, "bounces", "bounce.example") == PATH


@pytest.mark.parametrize(
    "text",
    [
        PATH, f"<{PATH}>", PATH.upper(), f'"{PATH}" <{PATH}>', f"Bounces <{PATH}>",
        f"<SRS0=HHH=TT=bounce.example={PATH.partition('@')[0]}@forwarder.example>",
        f"prvs=1234567890={PATH}", f"rfc822; {PATH}", PATH.replace("bounce.example", "renamed.example"),
    ],
)  # fmt: skip
def test_it_is_found_in_what_relays_make_of_it(text: str) -> None:
    assert named([text], SIGN) == (KEY, False)


@pytest.mark.parametrize(
    "text",
    [
        PATH.replace(KEY, KEYS.wire("another")),
        return_path(KEY, Keys("22" * 32).return_path, "bounces", "bounce.example"),
        PATH.replace(SIGN(KEY), "a" * 16),
    ],
)  # fmt: skip
def test_what_is_wrongly_signed_is_a_forgery(text: str) -> None:
    assert named([text], SIGN) == ("", True)


@pytest.mark.parametrize(
    "text", ["", "bounces@bounce.example", "r1@example.org", "a.b@example.org", f"{KEY}@bounce.example", SIGN(KEY)]
)
def test_other_addresses_are_just_other_addresses(text: str) -> None:
    assert named([text], SIGN) == ("", False)


def test_a_right_one_counts_also_behind_a_wrong_one() -> None:
    assert named([PATH.replace(SIGN(KEY), "a" * 16), PATH], SIGN) == (KEY, False)


def test_every_character_of_key_and_signature_counts() -> None:
    token = signed(KEY, SIGN)
    for at, character in enumerate(token):
        if character != ".":
            changed = token[:at] + ("b" if character == "a" else "a") + token[at + 1 :]
            assert named([f"<bounces+{changed}@bounce.example>"], SIGN)[0] == ""


def test_what_is_no_wire_key_cannot_be_signed() -> None:
    for key in ("", "a b", "a@b", "A", "a" * 33):
        with pytest.raises(ValueError, match="wire key"):
            signed(key, SIGN)
