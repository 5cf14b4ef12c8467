"""The delivery in a return path (VERP) and in an envelope id: its wire key, signed with the ledger's own key.

`bounces+KEY.SIGNATURE@DOMAIN`: lower case only, because some relays lower-case local parts, and at most 64 characters
(RFC 5321 4.5.3.1.1). Whoever has not seen the mail cannot make one, so a bounce that carries one is of that mail.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Iterable

Sign = Callable[[str], str]

USER = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,12}[a-z0-9])?")
_KEY = re.compile(r"[a-z0-9-]{1,32}")
_SIGNED = re.compile(r"(?<![a-z0-9-])([a-z0-9-]{1,32})\.([a-z2-7]{16})(?![a-z0-9.])", re.IGNORECASE)
_LONGEST = 2000  # characters of a header value that are searched


def signed(key: str, sign: Sign) -> str:
    """`KEY.SIGNATURE`, which also is the envelope id (RFC 3461 4.4). Raises ValueError for what is no wire key."""
    if not _KEY.fullmatch(key):
        raise ValueError("not a wire key")
    return f"{key}.{sign(key)}"


def return_path(key: str, sign: Sign, user: str, domain: str) -> str:
    """The address that a bounce of this delivery's mail comes back to."""
    return f"{user}+{signed(key, sign)}@{domain}"


def named(texts: Iterable[str], sign: Sign) -> tuple[str, bool]:
    """(the first key that is rightly signed, else ""; whether something looked signed and was not)."""
    forged = False
    for text in texts:
        for found in _SIGNED.finditer(text[:_LONGEST]):
            key, signature = found[1].lower(), found[2].lower()
            if hmac.compare_digest(signature, sign(key)):
                return key, False
            forged = forged or "@" in text[found.end() : found.end() + 1]
    return "", forged
