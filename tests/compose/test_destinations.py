"""Addresses and numbers: one canonical form, nothing leaked, agreement with the library."""

import contextlib
import json
from pathlib import Path

import email_validator
import pytest
from hypothesis import given
from hypothesis import strategies as st

from notifyctl.compose import destinations
from notifyctl.errors import InputError
from notifyctl.model import Channel, Mailbox

CORPORA = Path(__file__).parents[2] / "../shared/corpora"


def corpus(name: str) -> list[dict]:
    path = CORPORA / name
    if not path.exists():
        pytest.skip(f"the test material {name} is not beside this checkout")
    return json.loads(path.read_text())


def refusal(text: str) -> InputError:
    with pytest.raises(InputError) as caught:
        destinations.email(text)
    assert (caught.value.reason, caught.value.field) == ("destination_invalid", "to")
    return caught.value


@pytest.mark.parametrize(
    ("text", "box"),
    [
        ("jane@example.com", Mailbox("jane@example.com")),
        (" jane@example.com ", Mailbox("jane@example.com")),
        ("<jane@example.com>", Mailbox("jane@example.com")),
        ("Jane <jane@example.com>", Mailbox("jane@example.com", "Jane")),
        ('"Doe, Jane" <jane@example.com>', Mailbox("jane@example.com", "Doe, Jane")),
        ("Dr. Zoë Größe <z@example.com>", Mailbox("z@example.com", "Dr. Zoë Größe")),
        ('"a \\"b\\" \\\\ <x@y.example>" <z@example.com>', Mailbox("z@example.com", 'a "b" \\ <x@y.example>')),
        ("Jane.Doe+Tag@EXAMPLE.Com", Mailbox("Jane.Doe+Tag@example.com")),
        ("INFO@example.com", Mailbox("INFO@example.com")),
        ("j@BÜCHER.example", Mailbox("j@xn--bcher-kva.example")),
        ("j@faß.example", Mailbox("j@xn--fa-hia.example")),
        ("jürgen@example.com", Mailbox("jürgen@example.com")),
        ("a@b.test", Mailbox("a@b.test")),
        ("a@b.invalid", Mailbox("a@b.invalid")),
        ("a@mail.localhost", Mailbox("a@mail.localhost")),
    ],
)
def test_one_address_is_read_with_its_name(text: str, box: Mailbox) -> None:
    assert destinations.email(text) == box


@pytest.mark.parametrize(
    "text",
    [
        "",
        "@",
        "jane",
        "jane@",
        "@example.com",
        "jane@localhost",
        "jane@10.0.0.1",
        "jane@[10.0.0.1]",
        '"jane doe"@example.com',
        '"jane@example.net"@example.com',
        "jane@example..com",
        "jane@-example.com",
        "jane@xn--a.example",
        "jane@example.com, bob@example.com",
        "Jane <jane@example.com>, Bob <bob@example.com>",
        "Team: jane@example.com;",
        "Doe, Jane <jane@example.com>",
        "bob@example.com <jane@example.com>",
        "jane@example.com>",
        "jane@example.com\r\nBcc: bob@example.com",
        '"Jane\r\nBcc: x" <jane@example.com>',
        '"Jane\u2028" <jane@example.com>',
        "\ud800@example.com",
        "jane@" + "a" * 64 + ".example",
        "a" * 250 + "@example.com",
        "jane@" + "x" * 100_000,
    ],
)
def test_anything_but_one_address_is_refused(text: str) -> None:
    refusal(text)


def test_a_refusal_never_repeats_the_address() -> None:
    for text in ("sec ret@hid den.example", "Secret, Hidden <secret@hidden.example>", "secret@hidden..example"):
        error = refusal(text)
        assert "secret" not in f"{error} {error.hint} {error!r}".lower()
        assert "hidden" not in f"{error} {error.hint} {error!r}".lower()
        assert error.__suppress_context__ or error.__context__ is None
    with pytest.raises(InputError) as caught:
        destinations.phone("+49 151 5555 12345678901", None)
    assert "5555" not in str(caught.value)


@given(st.from_regex(r"[A-Za-z0-9.!+_'-]{1,12}@[A-Za-z0-9-]{1,8}(\.[A-Za-z0-9-]{1,8}){0,2}", fullmatch=True))
def test_the_short_way_agrees_with_the_library(text: str) -> None:
    try:
        local, domain = destinations._by_library(text)
    except InputError:
        local, domain = "", ""
    refused = not local or "." not in domain or domain.rpartition(".")[2].isdigit()
    if refused:
        refusal(text)
    else:
        assert destinations.email(text).address == f"{local}@{domain}"


@given(st.text(max_size=40))
def test_the_stored_form_of_any_name_is_read_back(name: str) -> None:
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    try:
        stored = destinations.normalize(Channel.EMAIL, f'"{quoted}" <jane@example.com>', None)
    except InputError:
        return
    assert destinations.email(stored) == Mailbox("jane@example.com", name.strip(" "))
    assert destinations.normalize(Channel.EMAIL, stored, None) == stored
    assert destinations.bare(Channel.EMAIL, stored) == "jane@example.com"
    assert destinations.mask(Channel.EMAIL, stored) == "j…@example.com"


@given(st.text(max_size=30))
def test_no_text_makes_reading_or_masking_crash(text: str) -> None:
    destinations.mask(Channel.EMAIL, text)
    destinations.mask(Channel.SMS, text)
    for read in (destinations.email, lambda given: destinations.phone(given, "GB")):
        with contextlib.suppress(InputError):
            read(text)


def test_every_address_of_the_corpus_is_judged_as_labelled() -> None:
    wrong = []
    for case in corpus("addresses/addresses.json"):
        try:
            accepted = bool(destinations.email(case["address"]))
        except InputError:
            accepted = False
        if case["verdict"] != "policy" and accepted != (case["verdict"] == "accept"):
            wrong.append(case["address"])
    assert wrong == []


def test_no_injection_of_the_corpus_becomes_an_address_with_a_break_in_it() -> None:
    for case in corpus("addresses/injection.json"):
        try:
            address = destinations.email(case["value"]).address
        except InputError:
            continue
        assert address.count("@") == 1
        assert not any(char in address for char in ' \r\n\t<>,;\0"')


@pytest.mark.parametrize(
    ("text", "region", "number"),
    [
        ("+49 (0)151 555 12345", None, "+4915155512345"),
        ("07700 900123", "GB", "+447700900123"),  # a fictional range: not assigned, and taken all the same
        ("07700 900123", "gb", "+447700900123"),
        ("(201) 555-0123", "US", "+12015550123"),
    ],
)
def test_a_number_becomes_e164(text: str, region: str | None, number: str) -> None:
    assert destinations.phone(text, region) == number
    assert destinations.normalize(Channel.SMS, number, None) == number
    assert destinations.bare(Channel.SMS, number) == number


@pytest.mark.parametrize(
    ("text", "region"),
    [("07700 900123", None), ("07700 900123", "US"), ("911", "US"), ("+1", None), ("", "GB"), ("x" * 500, "GB"),
     ("+1201555\n0123", None), ("07700 900123", "XX")],
)  # fmt: skip
def test_a_number_that_cannot_be_or_has_no_country_is_refused(text: str, region: str | None) -> None:
    with pytest.raises(InputError) as caught:
        destinations.phone(text, region)
    assert caught.value.reason == "destination_invalid"


def test_every_number_of_the_corpus_is_read_or_known_to_be_unassigned() -> None:
    for case in corpus("phone/phone.json"):
        expected = case["expected"]["e164"] if case["expected"] else None
        region = None if case["region"] == "ZZ" else case["region"]
        try:
            number = destinations.phone(case["input"], region)
        except InputError:
            assert expected is None, case
            continue
        if expected is None:
            assert not destinations.is_assigned(number), case
        else:
            assert number == expected, case


def test_masks_show_what_tells_people_apart_and_no_more() -> None:
    assert destinations.mask(Channel.EMAIL, "anna@example.com") == "a…@example.com"
    assert destinations.mask(Channel.EMAIL, '"Anna, X" <anna@example.com>') == "a…@example.com"
    assert destinations.mask(Channel.SMS, "+4915155512389") == "+49…89"
    assert destinations.mask(Channel.SMS, "no number") == "…"
    assert destinations.mask(Channel.EMAIL, "no address") == "…"


def test_the_library_is_the_version_whose_switches_are_used() -> None:
    assert isinstance(email_validator.SPECIAL_USE_DOMAIN_NAMES, list)
