"""Where a message goes: mail addresses and phone numbers in one canonical form each.

Canonical is what the ledger stores and fingerprints: a mail address keeps its local part as is and has a lowercase
IDNA-2008 A-label domain, optionally behind a quoted display name; a phone number is E.164. Syntax only: nothing is
looked up. No error text of this module holds any part of an address.
"""

from __future__ import annotations

import re
from functools import lru_cache

from notifyctl.errors import InputError
from notifyctl.model import Channel, Mailbox

_ATEXT = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
# What needs no library: a dot-atom at a hostname. `--` is left to the library (punycode, reserved labels).
_PLAIN = re.compile(rf"({_ATEXT}+(?:\.{_ATEXT}+)*)@({_LABEL}(?:\.{_LABEL})*)", re.ASCII)
_QUOTED_NAME = re.compile(r'"((?:[^"\\]|\\.)*)"[ \t]*')
_E164 = re.compile(r"\+[1-9][0-9]{6,14}")
# Characters that mean something to a mail header outside quotes; `@` unquoted in a name is how names forge addresses.
_AMBIGUOUS_IN_NAME = re.compile(r'["<>,;:@\\\[\]]')
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_MAX_OCTETS = 254  # RFC 5321 4.5.3.1.3 with erratum 1690
_MAX_DOMAIN = 253
_MAX_TEXT = 2000


def _refuse(why: str, hint: str = "") -> InputError:
    return InputError(f"the destination is not usable: {why}", reason="destination_invalid", field="to", hint=hint)


def email(text: str) -> Mailbox:
    """Read exactly one mail address: `jane@x`, `Jane <jane@x>`, `"Doe, Jane" <jane@x>`.

    The domain becomes a lowercase A-label, the local part stays as is. Reserved domains (RFC 2606) are
    addresses too; a domain without a dot is refused, as are quoted local parts and address literals, which relays read
    differently.
    Raises InputError(reason="destination_invalid").
    """
    text = text.strip(" \t")
    if len(text) > _MAX_TEXT:
        raise _refuse("it is far too long")
    if not text.endswith(">"):
        return Mailbox(_address(text))
    name, bracket, address = text[:-1].rpartition("<")
    if not bracket:
        raise _refuse("it ends with > but has no <")
    return Mailbox(_address(address), _display_name(name))


def _display_name(text: str) -> str:
    quoted = _QUOTED_NAME.fullmatch(text.lstrip(" \t"))
    if quoted:
        name = re.sub(r"\\(.)", r"\1", quoted[1])
    elif _AMBIGUOUS_IN_NAME.search(text):
        raise _refuse(
            "its display name holds a character that has a meaning in mail headers, or there is more than one address",
            hint='put the name in double quotes: "Doe, Jane" <address>; one address per delivery',
        )
    else:
        name = text
    if _UNPRINTABLE.search(name):
        raise _refuse("its display name holds a control character")
    return name.strip(" ")


@lru_cache(maxsize=64)  # composing reads the same address three times
def _address(text: str) -> str:
    plain = _PLAIN.fullmatch(text)
    if plain and "--" not in plain[2] and len(text) <= _MAX_OCTETS and len(plain[2]) <= _MAX_DOMAIN:
        local, domain = plain[1], plain[2].lower()
    else:
        local, domain = _by_library(text)
    if "." not in domain:
        raise _refuse("the part behind the @ has no dot", hint="write the whole domain, like name@example.com")
    if domain.rpartition(".")[2].isdigit():
        raise _refuse("the part behind the @ is a number", hint="addresses with an IP address are not supported")
    return f"{local}@{domain}"


def _by_library(text: str) -> tuple[str, str]:
    import email_validator

    # A documented switch of the library: reserved names (RFC 2606, RFC 6761) are what tests and demos send to.
    email_validator.SPECIAL_USE_DOMAIN_NAMES.clear()
    try:
        found = email_validator.validate_email(text, check_deliverability=False, globally_deliverable=False)
    except email_validator.EmailNotValidError:
        # The library's sentence quotes parts of the address, so it is dropped whole.
        raise _refuse(
            "it is not one syntactically valid mail address", hint='expected name@domain or "Name" <name@domain>'
        ) from None
    if not found.ascii_domain:
        raise _refuse("its domain has no ASCII form")
    # The library normalizes local parts (case of `info`, NFC); which mailbox is meant is the receiver's affair.
    local = text.rpartition("@")[0]
    if len(local.encode()) + 1 + len(found.ascii_domain) > _MAX_OCTETS:
        raise _refuse("it is longer than 254 octets")
    return local, found.ascii_domain.lower()


def phone(text: str, default_region: str | None) -> str:
    """Read a phone number as E.164: with `+`, or national with an explicit region (`GB`).

    A number that cannot exist is refused; one that is merely unknown to the numbering plan's data is taken (the data
    lags): see `is_assigned`. The country is never guessed. Raises InputError(reason="destination_invalid").
    """
    import phonenumbers

    text = text.strip()
    if len(text) > 250 or _UNPRINTABLE.search(text):
        raise _refuse("it is not a phone number")
    region = (default_region or "").upper() or None
    try:
        number = phonenumbers.parse(text, region)
    except phonenumbers.NumberParseException as error:
        if error.error_type == phonenumbers.NumberParseException.INVALID_COUNTRY_CODE and region is None:
            raise _refuse(
                "the phone number names no known country",
                hint="write it with + and the country code, or set [phone] default_region",
            ) from None
        raise _refuse("it is not a phone number") from None
    if not phonenumbers.is_possible_number(number):
        raise _refuse("no phone number of that country has this length", hint="check the digits and the country code")
    return phonenumbers.format_number(number, phonenumbers.PhoneNumberFormat.E164)


def is_assigned(number: str) -> bool:
    """Whether an E.164 number lies in a range that the numbering plan's data knows; False is worth a warning only."""
    import phonenumbers

    try:
        return phonenumbers.is_valid_number(phonenumbers.parse(number, None))
    except phonenumbers.NumberParseException:
        return False


def normalize(channel: Channel, text: str, default_region: str | None) -> str:
    """The stored form: E.164, a bare mail address, or `"Name" <address>`; reading it again gives the same text."""
    if channel is Channel.SMS:
        return phone(text, default_region)
    box = email(text)
    if not box.name:
        return box.address
    name = box.name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{name}" <{box.address}>'


def bare(channel: Channel, stored: str) -> str:
    """What is fingerprinted and written into an envelope: the address without its display name, or the E.164 number."""
    if channel is Channel.EMAIL:
        return email(stored).address
    return stored if _E164.fullmatch(stored) else phone(stored, None)


def mask(channel: Channel, stored: str) -> str:
    """What people may see: `a…@example.com`, `+49…89`. Never raises."""
    if channel is Channel.SMS:
        return f"{stored[:3]}…{stored[-2:]}" if _E164.fullmatch(stored) else "…"
    address = stored[:-1].rpartition("<")[2] if stored.endswith(">") else stored
    local, _, domain = address.rpartition("@")
    return f"{local[0]}…@{domain}" if local and not _UNPRINTABLE.search(address) else "…"
