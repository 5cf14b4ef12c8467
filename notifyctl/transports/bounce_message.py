"""One mail of a bounce mailbox, read: what it reports of whom, and by what its delivery may be known.

The machine-readable part comes first: message/delivery-status (RFC 3464), message/feedback-report (RFC 5965). Where a
bounce has none, its prose is asked with the tables of `bounce_words`. Whether it is a bounce is decided before
`Auto-Submitted` is looked at: bounces are auto-generated, too (RFC 3834). Never raises, whatever it is given.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from notifyctl.model import ReceiptStatus
from notifyctl.transports import bounce_codes as codes
from notifyctl.transports import bounce_words as words
from notifyctl.transports.bounce_mime import Fields, Part, every, first, report_type, split

_TEXT = 48_000  # characters of prose that are looked at


class Kind(StrEnum):
    """What a mail in the mailbox is."""

    REPORT = "report"  # a bounce, a delay, a success
    FEEDBACK = "feedback"  # a complaint, or what else a feedback loop says
    AUTO_REPLY = "auto_reply"  # information only
    OTHER = "other"  # not understood


@dataclass(frozen=True, slots=True)
class Report:
    """What is said of one recipient. `code` holds codes such as `550 5.1.1`, never prose."""

    status: ReceiptStatus
    reason: str
    code: str = ""
    recipients: tuple[str, ...] = field(default=(), repr=False)  # as reported: final, then original


@dataclass(frozen=True, slots=True)
class Bounce:
    """One mail: `reports` is empty unless it says something of a delivery.

    `addresses` are texts in which our return path may stand, `envelope_ids` what an ENVID came back as,
    `message_ids` (with angle brackets) those of the returned original, in the order of trust, `to` whom it was for.
    """

    kind: Kind
    reports: tuple[Report, ...] = ()
    addresses: tuple[str, ...] = field(default=(), repr=False)
    envelope_ids: tuple[str, ...] = field(default=(), repr=False)
    message_ids: tuple[str, ...] = field(default=(), repr=False)
    to: tuple[str, ...] = field(default=(), repr=False)
    date: datetime | None = None


def read(raw: bytes) -> Bounce:
    """What `raw` is; the first `bounce_mime.SIZE` bytes of it are looked at."""
    fields, parts = split(raw)
    seen = _Seen(fields, parts)
    kind, reports = seen.judge()
    return Bounce(
        kind,
        tuple(reports),
        seen.addresses(),
        seen.envelope_ids(),
        seen.message_ids(),
        tuple(seen.original_to()),
        _date(fields),
    )


_ADDRESS = r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,62})\.?){1,10}"
_MAIL = re.compile(rf'(?:"[^"@\s<>]{{1,64}}"@[\w.-]{{1,253}}|{_ADDRESS})')
_ID = re.compile(r"<([^<>\s]{1,250})>|(\S{1,250}@\S{1,250})")
_INLINE_ID = re.compile(
    r"^[> \t]{0,6}(?:x-)?message-id:[ \t]*(?:\n[> \t]{1,6})?(?:<([^<>\s]{1,250})>|(\S{1,250}))", re.I | re.M
)
_INLINE_TO = re.compile(r"^[> \t]{0,6}to:[ \t]*(\S[^\n]{0,300})", re.IGNORECASE | re.MULTILINE)


class _Seen:
    """The parts of one mail by what they are for."""

    def __init__(self, fields: Fields, parts: list[Part]) -> None:
        self.fields = fields
        self.originals = [part.fields for part in parts if part.type == "text/rfc822-headers"]
        self.statuses = [part for part in parts if part.type in _STATUS_TYPES and not part.original]
        self.feedback = [part for part in parts if part.type == "message/feedback-report" and not part.original]
        prose, room = [], _TEXT
        for part in parts:
            if part.original or part.type not in ("text/plain", "text/html") or room <= 0:
                continue
            text = part.text()[:room]
            prose.append(_untagged(text) if part.type == "text/html" else text)
            room -= len(text)
        self.prose = "\n".join(prose)
        copy = words.COPY.search(self.prose)
        self.said = self.prose[: copy.start()] if copy and copy.start() > 20 else self.prose
        self.copy = self.prose[len(self.said) :]

    # -- what it is --

    def judge(self) -> tuple[Kind, list[Report]]:
        if self.feedback:
            return Kind.FEEDBACK, self._complaints()
        reports = [report for part in self.statuses for report in self._groups(part.text())]
        if not reports and "inal-" in self.prose:  # the report's fields as plain text
            reports = self._groups(self.prose)
        if reports:
            return Kind.REPORT, reports
        subject, sender = _unencoded(first(self.fields, "subject")), first(self.fields, "from")
        if words.HOTMAIL.search(sender) and subject.strip().lower().startswith("complaint about message"):
            return Kind.FEEDBACK, [Report(ReceiptStatus.COMPLAINED, "feedback_abuse", "", tuple(self.original_to()))]
        automatic = first(self.fields, "auto-submitted").lower()
        failed = every(self.fields, "x-failed-recipients")
        bounced = bool(failed) or report_type(self.fields) == "delivery-status" or bool(self.statuses)
        prose = bool(words.PROSE.search(self.said) or words.DELAYED.search(self.said))
        named = bool(words.MAILER.search(sender)) or first(self.fields, "return-path").strip() == "<>"
        titled = bool(words.SUBJECT.search(subject))
        away = automatic.startswith("auto-replied") or bool(words.VACATION.search(subject))
        likely = (named and (titled or prose)) or (titled and prose)
        if bounced or likely:
            return Kind.REPORT, self._from_prose(failed)
        if away or automatic not in ("", "no") or first(self.fields, "x-autoreply"):
            return Kind.AUTO_REPLY, []
        return Kind.OTHER, []

    def _complaints(self) -> list[Report]:
        reports = []
        for part in self.feedback:
            group = dict(reversed(_fields(part.text())))
            said = group.get("feedback-type", "").strip().lower()
            if said not in codes.COMPLAINTS:
                continue
            named = [group.get("original-rcpt-to", ""), group.get("removal-recipient", "")]
            found = _addresses(" ".join(named)) or self.original_to()
            reports.append(Report(ReceiptStatus.COMPLAINED, f"feedback_{said.replace('-', '_')}", "", tuple(found)))
        return reports

    def _groups(self, text: str) -> list[Report]:
        """The recipients of a message/delivery-status; the first group is the message's own."""
        reports = []
        for block in re.split(r"\n[ \t]*\n", text)[:200]:
            group: dict[str, str] = {}
            for name, value in _fields(block):
                group.setdefault(name, value)
            named = _addresses(
                " ".join(group.get(name, "").partition(";")[2] or group.get(name, "") for name in _RECIPIENT)
            )
            action = group.get("action", "").strip().lower()
            if not any(name in group for name in _RECIPIENT) or not (action or group.get("status")):
                continue
            reports.append(self._report(action, group, tuple(named or self.original_to())))
        return reports

    def _report(self, action: str, group: dict[str, str], recipients: tuple[str, ...]) -> Report:
        diagnostic = group.get("diagnostic-code", "")
        status = codes.enhanced(group.get("status", ""))
        return _classified(action, status, diagnostic, self._said_of(recipients), recipients)

    def _said_of(self, recipients: tuple[str, ...]) -> str:
        """What the prose says of one recipient: from its address to the next one's."""
        for one in recipients:
            at = self.said.find(one)
            if at >= 0:
                end = next(
                    (m.start() for m in _MAIL.finditer(self.said, at + len(one)) if m[0].rstrip(".") != one), None
                )
                return self.said[at:end]
        return self.said

    def _from_prose(self, failed: list[str]) -> list[Report]:
        found = _addresses(" ".join(failed)) or self._spoken_of()
        several = len(found) > 1
        delayed = bool(words.DELAYED.search(self.said) or words.DELAYED.search(first(self.fields, "subject")))
        fatal = bool(words.FATAL.search(self.said))
        action = "delayed" if delayed and not fatal and not failed else ""
        reports = []
        for one in found or [""]:
            who = (one,) if one else ()
            text = self._said_of(who) if several else self.said
            reports.append(_classified(action, "", text, "" if several else self.said, who))
        return reports

    def _spoken_of(self) -> list[str]:
        """The addresses that the prose blames: those the original went to where they are known."""
        own = {one.lower() for name in ("from", "to", "reply-to", "delivered-to", "return-path", "sender")
               for one in _addresses(" ".join(every(self.fields, name)))}  # fmt: skip
        said = [one for one in _addresses(self.said[:8000]) if one.lower() not in own and not words.MAILER.match(one)]
        return said[:20] or self.original_to()[:1]

    def original_to(self) -> list[str]:
        """Whom the original was addressed to, as far as it came back."""
        told = " ".join(value for original in self.originals for value in every(original, "to", "x-original-to"))
        return (
            _addresses(told) or _addresses(" ".join(one[1] for one in _INLINE_TO.finditer(self.copy or self.prose)))[:1]
        )

    # -- by what it is known --

    def addresses(self) -> tuple[str, ...]:
        """Where our return path comes back: what the mail was sent to, then what the original says it came from."""
        found = every(self.fields, *_DELIVERED_TO)
        for part in self.feedback:
            found += [value for name, value in _fields(part.text()) if name == "original-mail-from"]
        for original in self.originals:
            found += every(original, "return-path", "x-envelope-from", "x-envelope-sender")
        return tuple(found[:40])

    def envelope_ids(self) -> tuple[str, ...]:
        """`Original-Envelope-Id` of a report (RFC 3464 2.2.1, RFC 5965 3.2)."""
        names = ("original-envelope-id",)
        found = [
            value for part in (*self.statuses, *self.feedback) for name, value in _fields(part.text()) if name in names
        ]
        return tuple(one.strip() for one in found[:10])

    def message_ids(self) -> tuple[str, ...]:
        """Those of the returned original, from its header, else from the copy in the prose."""
        told = [value for original in self.originals for value in every(original, "message-id")]
        for part in (*self.statuses, *self.feedback):
            told += [v for name, v in _fields(part.text()) if name in _MESSAGE_ID]
        told += every(self.fields, "x-original-message-id")
        ids = [f"<{one[1] or one[2]}>" for one in map(_ID.search, told) if one]
        ids += [f"<{one[1] or one[2]}>" for one in _INLINE_ID.finditer(self.prose)]
        return tuple(dict.fromkeys(ids))[:20]


_STATUS_TYPES = frozenset({"message/delivery-status", "message/global-delivery-status"})
_MESSAGE_ID = ("original-message-id", "x-original-message-id", "message-id")  # the last where a delimiter was lost
_RECIPIENT = ("final-recipient", "original-recipient")
_DELIVERED_TO = (
    "delivered-to", "x-original-to", "envelope-to", "x-envelope-to", "x-delivered-to", "x-rcpt-to", "to", "cc",
    "resent-to",
)  # fmt: skip


def _classified(action: str, status: str, diagnostic: str, prose: str, recipients: tuple[str, ...]) -> Report:
    """What action, status and diagnostic of one recipient mean together."""
    told = codes.enhanced(diagnostic)
    if codes.VAGUE.match(status) and told[:1] in ("5", "4") and (not status or not codes.VAGUE.match(told)):
        status = told
    number = codes.reply(diagnostic)
    shown = f"{number} {status}".strip()
    if action in ("delivered", "relayed", "expanded"):
        reached = ReceiptStatus.DELIVERED if action == "delivered" else ReceiptStatus.PENDING
        return Report(reached, action, shown, recipients)
    if action == "delayed" or status.startswith("2"):
        return Report(ReceiptStatus.PENDING, "delayed" if action == "delayed" else "reported", shown, recipients)
    kind, reason = codes.by_status(status) if status else codes.by_status(f"{number[:1] or '5'}.0.0")
    if kind is not ReceiptStatus.SOFT_FAILURE and codes.VAGUE.match(status) and not number.startswith("4"):
        told_more = words.meaning(diagnostic) or (words.meaning(prose) if diagnostic is not prose else None)
        kind, reason = told_more or (kind, reason)
    elif kind is ReceiptStatus.HARD_BOUNCE and words.FULL.search(diagnostic):
        kind, reason = ReceiptStatus.FAILURE, "mailbox_full"
    return Report(kind, reason, shown, recipients)


def _fields(block: str) -> Fields:
    fields: Fields = []
    for line in block.split("\n")[:2000]:
        if line[:1] in (" ", "\t") and fields:
            name, value = fields[-1]
            if len(value) < 2000:
                fields[-1] = (name, f"{value} {line.strip()[:2000]}")
            continue
        title, colon, rest = line.partition(":")
        if colon:
            fields.append((title.strip()[:60].lower(), rest.strip()[:2000]))
    return fields


def _addresses(text: str) -> list[str]:
    return list(dict.fromkeys(one.rstrip(".") for one in _MAIL.findall(text[:20_000])))[:50]


def _unencoded(text: str) -> str:
    """A subject whose words may be encoded (RFC 2047)."""
    from email.errors import HeaderParseError
    from email.header import decode_header, make_header

    try:
        return str(make_header(decode_header(text[:500])))
    except (HeaderParseError, LookupError, ValueError):
        return text


def _untagged(text: str) -> str:
    text = re.sub(r"<(?:br|/p|/tr|/div|/h\d)[^<>]{0,200}>", "\n", text, flags=re.IGNORECASE)
    text = re.sub(r"</?[a-zA-Z!][^<>@]{0,2000}>", " ", text)
    for name, character in (("&lt;", "<"), ("&gt;", ">"), ("&nbsp;", " "), ("&#64;", "@"), ("&amp;", "&")):
        text = text.replace(name, character)
    return text


def _date(fields: Fields) -> datetime | None:
    """When the bounce says that it was written: the same at every reading; None where it says nonsense."""
    from email.utils import parsedate_to_datetime

    try:
        said = parsedate_to_datetime(first(fields, "date")[:100])
        said = said.replace(tzinfo=UTC) if said.tzinfo is None else said.astimezone(UTC)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return said if said.year >= 1990 and said <= datetime.now(UTC) + timedelta(days=1) else None
