"""What an SMTP reply means, as data: the first row of `TABLE` that matches decides.

Sources: RFC 5321 section 4.2 (reply codes), RFC 3463 and the IANA registry of enhanced status codes, RFC 7372
(5.7.20-26: authentication), RFC 7505 (5.1.10, 5.7.27: null MX), RFC 6531 (5.6.7: SMTPUTF8), RFC 4954 (530-538).
Codes of single operators carry a remark. The enhanced code is read first: a bare 550 is permanent, but says nothing
lasting of the address. A reply's class comes from its basic code: an enhanced 5.x.x behind a 4yz is temporary.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from notifyctl.model import Outcome, OutcomeKind, Scope

MAIL, RCPT, DATA, DOT = "M", "R", "D", "."  # the steps of one message: three commands, then its final dot

_TEMPORARY, _PERMANENT = OutcomeKind.TEMPORARY_FAILURE, OutcomeKind.PERMANENT_FAILURE
_UNAVAILABLE, _LIMITED = OutcomeKind.UNAVAILABLE, OutcomeKind.RATE_LIMITED
_ANY = "MRD."


@dataclass(frozen=True, slots=True)
class Row:
    """Replies at `steps` whose codes match `code` ("550 5.1.1", "550 " without one) and whose text has `words`."""

    steps: str
    code: re.Pattern[str]
    words: re.Pattern[str] | None
    kind: OutcomeKind
    reason: str
    scope: Scope = Scope.DESTINATION
    config: bool = False


def _row(
    steps: str, code: str, kind: OutcomeKind, reason: str, words: str = "", *, account: bool = False, mend: bool = False
) -> Row:
    pattern = re.compile(words, re.IGNORECASE) if words else None
    return Row(steps, re.compile(code), pattern, kind, reason, Scope.ACCOUNT if account else Scope.DESTINATION, mend)


_AUTHENTICATION = r"\b(DMARC|SPF|DKIM)\b"
_LOGIN_FIRST = r"authentication (is )?required|must (first )?authenticate|not authenticated"
_NO_RELAY = r"relay(ing)? (access )?(is )?(denied|not (permitted|allowed)|prohibited)|unable to relay"

TABLE = (
    # who we are was not believed: never lasting for an address, and to be seen in health
    _row(_ANY, r"5\d\d 5\.7\.(2[0-79]|509|515)$", _PERMANENT, "authentication_rejected"),  # 509, 515: Microsoft
    _row(_ANY, r"4\d\d 4\.7\.(2[0-79]|509|515)$", _TEMPORARY, "authentication_rejected"),
    _row(_ANY, r"5\d\d (5\.7\.\d+)?$", _PERMANENT, "authentication_rejected", _AUTHENTICATION),
    _row(_ANY, r"4\d\d (4\.7\.\d+)?$", _TEMPORARY, "authentication_rejected", _AUTHENTICATION),
    # the server wants a login (530 5.5.1 is Gmail's)
    _row(_ANY, r"(530|534|535|538) ", _UNAVAILABLE, "authentication_required", account=True, mend=True),
    _row(_ANY, r"5\d\d 5\.7\.(8|9|11)$", _UNAVAILABLE, "authentication_required", account=True, mend=True),
    _row(_ANY, r"5\d\d ", _UNAVAILABLE, "authentication_required", _LOGIN_FIRST, account=True, mend=True),
    # the session ends
    _row(_ANY, r"421 ", _TEMPORARY, "service_closing"),
    # the message itself, also when told at MAIL
    _row(_ANY, r"5\d\d 5\.(3\.4|2\.3)$", _PERMANENT, "too_large"),
    _row(_ANY, r"552 $", _PERMANENT, "too_large"),
    _row(_ANY, r"5\d\d 5\.6\.[789]$", _PERMANENT, "smtputf8_unsupported"),
    # the sender: concerns every message of this transport
    _row("M", r"(500|502|503|504|555) ", _UNAVAILABLE, "protocol_error", account=True),
    _row("M", r"5", _UNAVAILABLE, "sender_rejected", account=True, mend=True),
    # the recipient
    _row("RD.", r"5\d\d 5\.1\.(1|2|3|6|10)$", _PERMANENT, "invalid_recipient"),
    _row("RD.", r"5\d\d 5\.2\.1$", _PERMANENT, "mailbox_disabled"),
    _row("RD.", r"5\d\d 5\.2\.2$", _PERMANENT, "mailbox_full"),
    _row(_ANY, r"4\d\d 4\.2\.2$", _TEMPORARY, "mailbox_full"),
    _row(_ANY, r"450 4\.2\.1$", _LIMITED, "destination_rate"),  # Gmail: this user receives mail too quickly
    # pace of the account: 454 without an enhanced code is SES's "Throttling failure"
    _row(_ANY, r"454 $", _LIMITED, "throttled", account=True),
    # policy and content
    _row("R", r"5\d\d ", _PERMANENT, "relay_denied", _NO_RELAY),
    _row("RD.", r"5\d\d 5\.7\.", _PERMANENT, "policy_rejected"),
    _row("RD.", r"5\d\d 5\.6\.", _PERMANENT, "content_rejected"),
    _row(_ANY, r"4\d\d 4\.7\.", _TEMPORARY, "policy_deferred"),  # greylisting, reputation, "too many"
    _row(_ANY, r"4\d\d 4\.3\.", _TEMPORARY, "server_busy"),
    # everything else: a failure of its class
    _row("R", r"5", _PERMANENT, "recipient_rejected"),
    _row("D.", r"5", _PERMANENT, "message_rejected"),
    _row(_ANY, r"4", _TEMPORARY, "deferred"),
)

_ENHANCED = re.compile(rb"([245]\.\d{1,3}\.\d{1,3})(?!\S)")


def codes(code: int, text: bytes) -> str:
    """The machine-readable codes of a reply, such as `550 5.1.1`; never its prose, which may hold addresses."""
    enhanced = _ENHANCED.match(text)
    return f"{code} {enhanced[1].decode() if enhanced else ''}".rstrip()


def classify(step: str, code: int, text: bytes) -> Outcome | None:
    """What a refusal at `step` means; None where the reply makes no sense there (not 4yz or 5yz)."""
    shown = codes(code, text)
    padded = shown if " " in shown else shown + " "
    prose = text.decode("utf-8", "replace")
    for row in TABLE:
        if step in row.steps and row.code.match(padded) and (row.words is None or row.words.search(prose)):
            return Outcome(row.kind, row.reason, scope=row.scope, code=shown, config=row.config)
    return None
