"""How bounces sound that report in prose only: phrases as data, each row with what it means; the first match decides.

They are what mail servers in use really write. Words are asked only where no code tells more, they never make a
failure of what is only delayed, and what is said of a full or a blocked mailbox is looked for before what says that
there is none.
"""

from __future__ import annotations

import re

from notifyctl.model import ReceiptStatus

HARD, FAILED = ReceiptStatus.HARD_BOUNCE, ReceiptStatus.FAILURE


def _any(*phrases: str) -> re.Pattern[str]:
    return re.compile("|".join(phrases), re.IGNORECASE)


FULL = _any(
    r"mailbox (is )?full", r"over ?quota", r"exceeded (the )?(\w+ )?(storage|quota|disk)", r"quota exceeded",
    r"mailbox size limit", r"insufficient (disk )?(space|system storage)", r"storage allocation",
)  # fmt: skip

REASONS: tuple[tuple[re.Pattern[str], ReceiptStatus, str], ...] = (
    # nothing lasting of the address, though these texts also say "user", "mailbox" or "unknown"
    (FULL, FAILED, "mailbox_full"),
    (_any(r"\b(spf|dkim|dmarc)\b"), FAILED, "authentication_rejected"),
    (_any(r"message (size|too)", r"too (large|big)", r"size limit"), FAILED, "too_large"),
    (
        _any(
            r"spam",
            r"blocked",
            r"blacklist",
            r"block ?list",
            r"reputation",
            r"virus",
            r"policy",
            r"\brbl\b",
            r"reverse dns",
            r"\bptr\b",
            r"unauthori[sz]ed",
            r"unable to relay",
            r"not allowed",
            r"relay(ing)? (access )?(is )?(denied|not permitted)",
            r"(permission|access) denied",
            r"restricted",
        ),
        FAILED,
        "policy_rejected",
    ),
    (
        _any(r"\b(disabled|suspended|inactive|deactivated|discontinued|locked)\b", r"not active"),
        FAILED,
        "mailbox_disabled",
    ),
    (_any(r"loop(ing| detected)", r"too many hops", r"hop count"), FAILED, "routing_failed"),
    (_any(r"sender (address )?(rejected|denied|unknown)", r"sender domain"), FAILED, "sender_rejected"),
    # there is no such address
    (
        _any(
            r"\b(user|recipient|mailbox|account|address|addressee|username|alias|destination( mailbox)?)( address)?"
            r"( \S{1,100})? (is |was |does |could )?(unknown|invalid"
            r"|not (be )?(found|known|exist|valid|listed|defined|recogni[sz]ed)"
            r"|unrecogni[sz]ed|rejected: user unknown|do(es)?n'?t exist)",
            r"(unknown|no such|invalid|non-?existent|bad destination) (\w+ )?"
            r"(user|recipient|mailbox|account|address|e-?mail|local ?part|alias|addressee|person)",
            r"user ?unknown",
            r"nobody here by that name",
            r"address not found",
            r"couldn'?t (find|be found)",
            r"no (mailbox|account|user|valid recipients?) (here|by that name|with that|named|found)",
            r"does(n'?t| not) have (an?|any) (\S+ ){0,2}account",
            r"unrouteable address",
            r"mailbox (unavailable or )?(not|does not) (found|exist|available)",
            r"this (user|account|address|mailbox) (\S+ ){0,2}(doesn'?t|does not) exist",
            r"not a valid (mailbox|user|recipient|address)",
            r"not listed in (domino|public name)",
            r"is no longer (with|at|valid|available)",
            r"no longer (on|in) (the )?server",
        ),
        HARD,
        "invalid_recipient",
    ),
    # there is no such domain, or one that takes no mail
    (
        _any(
            r"(host|domain)( name)?( \S{1,100})? (is )?(unknown|not found|does not exist)",
            r"unknown (host|domain)",
            r"no such (host|domain)",
            r"name or service not known",
            r"couldn'?t find any host named",
            r"illegal host/domain",
            r"null ?mx",
            r"indicated no smtp service",
            r"\b5\d\d \S{1,100} does not exist",
            r"does not accept mail",
            r"unrouteable mail domain",
        ),
        HARD,
        "invalid_recipient",
    ),
)

# -- what kind of mail it is --

MAILER = _any(
    r"mailer-?daemon", r"mail ?delivery", r"post[-_]?master", r"delivery (sub)?system", r"mdaemon", r"mailsweep",
    r"smtp gateway", r"system administrator", r"mail (administrator|server)", r"auto-?reply", r"bounce", r"mrmailer",
)  # fmt: skip
SUBJECT = _any(
    r"undeliver", r"non[- ]?deliver", r"returned (e-?)?mail", r"failure notice", r"dsn:", r"bounced", r"rejected",
    r"delivery (status|report|failure|has failed|problem|error|notification|delayed|unsuccessful)",
    r"deliver(y|ed).{0,20}fail", r"fail(ure|ed).{0,20}(deliver|notice)", r"mail (delivery|system|failure|error|status)",
    r"message status", r"unable to deliver", r"could not (send|deliver)", r"error sending", r"unzustellbar",
    r"warning: (could|message)", r"user unknown", r"wasn't delivered", r"returned to sender", r"mail not delivered",
    r"problem delivering", r"not be delivered", r"message (could|not)",
)  # fmt: skip
PROSE = _any(
    r"(could|can|was|were|has|have)( not|n't|n.t) (be|been) (delivered|sent|relayed)", r"undeliver",
    r"permanent(ly)? (fatal )?(error|failure|failed)", r"delivery (to the following|has failed|failed|error)",
    r"unable to deliver", r"did(n't| not) reach", r"addresses had", r"failed address", r"not delivered",
    r"returned (message|mail|to sender)", r"retry time(out)? (not|exceeded)", r"requested action not taken",
    r"rejected recipient", r"error occurred while trying to deliver", r"returning (your|a copy)",
    r"message (was|is) (rejected|refused|not)", r"failed recipients?", r"delivery fail",
)  # fmt: skip
DELAYED = _any(
    r"delivery (is |of your message |has been |was )*delayed", r"delayed mail", r"has not yet been",
    r"(temporar\w{1,10}|transient)[^.\n]{0,40}(problem|fail|non-fatal)", r"still being retried", r"will be retried",
    r"will (continue|keep) (trying|to try|to be retried|re-?try)", r"not yet been delivered",
    r"no action is required on your part", r"warning( message)? only", r"do not need to resend",
    r"warning: (could|message)",
)  # fmt: skip
FATAL = _any(r"permanent", r"fatal", r"giv(ing|en) up", r"gave up", r"too long")
VACATION = _any(
    r"out of( the)? office", r"auto(matic|mated)?[- ]?(reply|response)", r"vacation", r"away from", r"on leave",
    r"abwesend",
)  # fmt: skip
HOTMAIL = _any(r"staff@(hotmail|outlook)\.")  # its complaints before RFC 5965

COPY = re.compile(
    r"^[-=_* ]{0,40}(the )?(body of your|below (this line )?is a copy|this is a copy of|here is a copy|copy of"
    r"|included is a copy|original (message|e-?mail)|returned message|text of your message|unsent message"
    r"|message header|message as originally|forwarded|your (original )?message (follows|reads))[^\n]{0,80}$"
    r"|^(return-path|received|x-original-message): ",
    re.IGNORECASE | re.MULTILINE,
)
"""Where in the prose the copy of the original begins."""


def meaning(text: str) -> tuple[ReceiptStatus, str] | None:
    """What prose says of an address; None where no phrase of the table stands in it."""
    return next(((kind, reason) for pattern, kind, reason in REASONS if pattern.search(text)), None)
