"""The bounce mailbox of an SMTP transport: each letter mapped to a delivery, or left where it is.

By the signed return path first, by the envelope id second, by the Message-ID of the returned original third, and never
by an address that stands in a text: a forged or foreign bounce suppresses nobody. A letter whose return path looks
like ours and is wrongly signed is left alone whatever else it says.

A page's cursor is kept with its receipts, but its letters are marked only afterwards. So that cursor also says where
the page began: whoever finds it does not know that the page was marked, and reads it again. `fed` gives the cursor
without that.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from threading import Lock

from notifyctl.clock import Deadline
from notifyctl.errors import ConfigError
from notifyctl.model import Receipt, ReceiptStatus
from notifyctl.settings import TransportSettings
from notifyctl.transports import verp
from notifyctl.transports.base import FeedPage
from notifyctl.transports.bounce_message import Bounce, Kind, Report, read
from notifyctl.transports.mailbox import Letter, Mailbox

_PAGE = 100  # letters at once: each may have a megabyte
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Marks:
    """A page's letters by name: those that are understood, each with the receipt it has, and those that stay."""

    done: tuple[tuple[str, Receipt | None], ...] = ()
    stay: tuple[str, ...] = ()


class Bounces:
    """`[transports.NAME.bounces]`: the return path that mails go out with, and the mailbox that it leads to."""

    def __init__(self, settings: TransportSettings, sign: verp.Sign | None) -> None:
        """`settings`: those of the table, named `NAME.bounces`. `sign`: the ledger's signature for return paths."""
        self._sign = sign
        self._domain = settings.text("return_path_domain").lower()
        self._user = settings.text("return_path_user", "bounces").lower()
        _check_return_path(settings, self._domain, self._user)
        self._mailbox = _mailbox(settings)
        self._lock = Lock()

    # -- on the way out --

    def return_path(self, key: str, sender: str) -> str:
        """The envelope sender of the mail with this wire key; `sender` where no return path is configured."""
        return verp.return_path(key, self._signature, self._user, self._domain) if self._domain else sender

    def envelope_id(self, key: str) -> str:
        """The ENVID of that mail."""
        return verp.signed(key, self._signature)

    # -- on the way back --

    def feed(self, cursor: str, limit: int, deadline: Deadline) -> FeedPage:
        """See `Transport.feed`."""
        with self._lock:
            start = cursor.partition("|")[2] if "|" in cursor else cursor
            batch = self._mailbox.read(start, min(limit, _PAGE), deadline)
            done: list[tuple[str, Receipt | None]] = []
            stay: list[str] = []
            for letter in batch.letters:
                understood, receipt = self._judge(letter)
                if understood:
                    done.append((letter.name, receipt))
                else:
                    stay.append(letter.name)
            receipts = tuple(receipt for _, receipt in done if receipt is not None)
            after = f"{batch.position}|{start}" if done else batch.position
            more = batch.more or (bool(done) and not receipts)  # else nobody would have it marked
            return FeedPage(receipts, after, len(stay), more, _Marks(tuple(done), tuple(stay)))

    def fed(self, page: FeedPage, unknown: Collection[Receipt], deadline: Deadline) -> str:
        """See `Transport.fed`."""
        with self._lock:
            marks = page.marks if isinstance(page.marks, _Marks) else _Marks()
            foreign = set(unknown)
            self._mailbox.settle([name for name, receipt in marks.done if receipt not in foreign], deadline)
            self._mailbox.remember([*marks.stay, *(name for name, receipt in marks.done if receipt in foreign)])
            return page.cursor.partition("|")[0]

    def check(self, deadline: Deadline) -> Mapping[str, str]:
        """What `doctor` shows of the mailbox."""
        with self._lock:
            return self._mailbox.check(deadline)

    def close(self) -> None:
        """Say goodbye to the server."""
        with self._lock:
            self._mailbox.close()

    def _signature(self, key: str) -> str:
        if self._sign is None:
            raise RuntimeError("a transport that signs return paths was opened without the ledger's keys")
        return self._sign(key)

    def _judge(self, letter: Letter) -> tuple[bool, Receipt | None]:
        """(whether the letter was understood and is of a mail of ours, its receipt if it has one)."""
        try:
            bounce = read(letter.raw)
            receipt = self._receipt(bounce)
        except Exception as error:  # one letter must never stop the others; what it holds belongs in no log
            _LOG.error("a letter of a bounce mailbox could not be read: %s", type(error).__name__)
            return False, None
        if bounce.kind is Kind.OTHER or receipt is None:
            return False, None
        return True, receipt if bounce.reports else None

    def _receipt(self, bounce: Bounce) -> Receipt | None:
        """What the letter says, under the name by which the delivery is known; None where it is none of ours."""
        key, forged = verp.named(bounce.addresses, self._signature)
        if forged:
            return None
        if not key:
            key, _ = verp.named(bounce.envelope_ids, self._signature)
        ids = bounce.message_ids
        remote_id = next((one for one in ids if key and one.startswith(f"<{key}@")), "")
        if not key:
            remote_id = next((one for one in ids if _OURS.match(one)), ids[0] if ids else "")
        if not key and not remote_id:
            return None
        said = _together(_concerned(bounce))
        return Receipt(said.status, remote_id, said.reason, said.code, bounce.date, key=key)


def _concerned(bounce: Bounce) -> tuple[Report, ...]:
    """The reports of whom our mail was addressed to; all of them where that cannot be told (an alias has expanded)."""
    to = {one.lower() for one in bounce.to}
    return tuple(one for one in bounce.reports if to & {name.lower() for name in one.recipients}) or bounce.reports


def _together(reports: tuple[Report, ...]) -> Report:
    """What several recipients of one mail make of it: an address that stands for many is gone only if they all are."""
    if not reports:
        return Report(ReceiptStatus.PENDING, "information")
    failed = [one for one in reports if one.status in _FAILED]
    if not failed or len({one.status for one in failed}) == 1 == len({one.status in _FAILED for one in reports}):
        return (failed or sorted(reports, key=lambda one: _ORDER.index(one.status)))[0]
    return next((one for one in failed if one.status is not ReceiptStatus.HARD_BOUNCE), _PARTLY)


_FAILED = frozenset({ReceiptStatus.HARD_BOUNCE, ReceiptStatus.FAILURE, ReceiptStatus.SOFT_FAILURE})
_ORDER = (ReceiptStatus.COMPLAINED, ReceiptStatus.DELIVERED, ReceiptStatus.PENDING)
_PARTLY = Report(ReceiptStatus.FAILURE, "partly_failed")
_OURS = re.compile(r"<[a-z2-7]{32}@")
_DOMAIN = re.compile(r"(?=.{1,190}\Z)(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")


def _check_return_path(settings: TransportSettings, domain: str, user: str) -> None:
    if domain and not _DOMAIN.fullmatch(domain):
        hint = 'write its ASCII form, such as return_path_domain = "bounce.example.com"'
        raise settings.error("return_path_domain", "is no domain", hint)
    if not verp.USER.fullmatch(user):
        raise settings.error("return_path_user", "must be 1 to 14 of a-z, 0-9, dot, hyphen, underscore")
    if "return_path_user" in settings.options and not domain:
        raise settings.error("return_path_domain", "is missing", "without it return_path_user means nothing")


def _mailbox(settings: TransportSettings) -> Mailbox:
    """The one mailbox that the table names; its module is imported only now."""
    kinds = [kind for kind in ("maildir", "imap", "pop3") if kind in settings.options]
    if not kinds:
        hint = 'say where the bounces are: maildir = "/var/mail/bounces", imap = "imap.example.com" or pop3 = …'
        raise ConfigError(f"transports.{settings.name} names no mailbox", hint=hint)
    if len(kinds) > 1:
        raise settings.error(kinds[0], f"and {kinds[1]} are both given", "keep the one mailbox that bounces come to")
    kind = kinds[0]
    for key in sorted(settings.options):
        known = {"maildir": (), "pop3": _LOGIN, "imap": (*_LOGIN, "folder")}[kind]
        plain = key.removesuffix("_env").removesuffix("_file").removesuffix("_command") if key != "ca_file" else key
        if key not in _ALWAYS and plain != kind and plain not in known:
            raise settings.error(key, f"means nothing beside {kind}", "remove it")
    delete = settings.options.get("delete", False)
    if not isinstance(delete, bool):
        raise settings.error("delete", "must be true or false")
    if kind == "maildir":
        from notifyctl.transports.mailbox_maildir import Maildir

        path = settings.path("maildir")
        if path is None:
            raise settings.error("maildir", "is empty", "name the folder that holds new/ and cur/")
        return Maildir(path, delete=delete)
    from notifyctl.transports.mail_client import server

    if kind == "imap":
        from notifyctl.transports import mailbox_imap

        folder = settings.text("folder", "INBOX")
        if not folder or not folder.isascii() or not folder.isprintable():
            raise settings.error("folder", "must be a folder's name in ASCII", "for others write its modified UTF-7")
        return mailbox_imap.Imap(server(settings, "imap", mailbox_imap.PORTS), folder, delete=delete)
    from notifyctl.transports import mailbox_pop3

    return mailbox_pop3.Pop3(server(settings, "pop3", mailbox_pop3.PORTS), delete=delete)


_ALWAYS = frozenset({"return_path_domain", "return_path_user", "delete"})
_LOGIN = ("tls", "ca_file", "username", "password")


def configured(settings: TransportSettings) -> Bounces | None:
    """What the key `bounces` of a transport says; None without it. Raises ConfigError."""
    table = settings.options.get("bounces")
    if table is None:
        return None
    if not isinstance(table, Mapping):
        raise settings.error("bounces", "must be a table", 'for example bounces = { maildir = "/var/mail/bounces" }')
    return Bounces(replace(settings, name=f"{settings.name}.bounces", options=table), settings.sign)
