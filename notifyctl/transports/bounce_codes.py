"""What a bounce's codes mean, as data: the first row that matches decides.

Sources: RFC 3463 and the IANA registry of enhanced status codes, RFC 7505 (5.1.10: null MX), RFC 3464 2.3.3 (Action),
RFC 5965 7.3 and the IANA registry of feedback types. Only a status that says "there is no such address" makes a hard
bounce; an unknown one is a failure of its class and suppresses nobody.
"""

from __future__ import annotations

import re

from notifyctl.model import ReceiptStatus

HARD, FAILED, SOFT = ReceiptStatus.HARD_BOUNCE, ReceiptStatus.FAILURE, ReceiptStatus.SOFT_FAILURE

STATUS: tuple[tuple[str, ReceiptStatus, str], ...] = (
    (r"5\.1\.(1|2|3|6|10)$", HARD, "invalid_recipient"),
    (r"5\.2\.1$", FAILED, "mailbox_disabled"),
    (r"[45]\.2\.2$", FAILED, "mailbox_full"),
    (r"5\.(3\.4|2\.3)$", FAILED, "too_large"),
    (r"5\.7\.(2[0-79]|509|515)$", FAILED, "authentication_rejected"),  # RFC 7372; 509, 515: Microsoft
    (r"5\.7\.", FAILED, "policy_rejected"),
    (r"5\.6\.", FAILED, "content_rejected"),
    (r"5\.4\.", FAILED, "routing_failed"),
    (r"5\.", FAILED, "bounced"),
    (r"4\.4\.7$", FAILED, "delivery_time_expired"),
    (r"4\.", FAILED, "given_up"),
)  # what is told as failed with a 4.x.x is at its end, and says nothing lasting of the address

# Statuses that leave open what was wrong: words may say more. The others are what they are.
VAGUE = re.compile(r"(5\.[01235]\.0|5\.2\.1|5\.5\.4|5\.1\.\d{3}|4\.0\.0|)$")

COMPLAINTS = frozenset({"abuse", "fraud", "virus", "other", "opt-out", "opt-out-list", "complaint"})
"""Feedback types by which a recipient objects; `not-spam`, `auth-failure` (RFC 6591) and the like are none."""

_STATUS = tuple((re.compile(pattern), status, reason) for pattern, status, reason in STATUS)
_ENHANCED = re.compile(r"(?<![\d.])([245]\.[0-7]\.\d{1,3})(?!\.?\d)")
_REPLY = re.compile(r"(?<![\d.\w])([45][0-7]\d)(?=[ \-#:,;]|$)")


def enhanced(text: str) -> str:
    """The first enhanced status code that stands in `text`, preferring one that is not vague; empty: none."""
    found = [one[1] for one in _ENHANCED.finditer(text)]
    return next((one for one in found if not VAGUE.match(one)), found[0] if found else "")


def reply(text: str) -> str:
    """The first three-digit SMTP reply code in `text`."""
    found = _REPLY.search(text)
    return found[1] if found else ""


def by_status(status: str) -> tuple[ReceiptStatus, str]:
    """What an enhanced status code means where the action was a failure; an unknown one is a failure of its class."""
    for pattern, kind, reason in _STATUS:
        if pattern.match(status):
            if status.startswith("4"):
                return SOFT, reason
            return kind, reason
    return FAILED, "bounced"
