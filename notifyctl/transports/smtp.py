"""Any SMTP relay: TLS modes, login, kept sessions, PIPELINING, SIZE, SMTPUTF8 (RFC 5321, 2920, 1870, 6531, 3207).

One recipient per message. The message's own Message-ID is the remote id;
the queue id in the server's prose is not kept. SMTP proves nothing afterwards: no search, no replay, and receipts only
where bounces are collected (`bounces`): then mails go out with a signed return path and, where the server offers DSN
(RFC 3461), with an envelope id.

`tls` defaults to `none` on loopback, `implicit` on port 465, else `starttls`. There is no way back to plain text.
"""

from __future__ import annotations

import logging
import re
import ssl
from collections.abc import Collection, Sequence
from dataclasses import replace

from notifyctl.clock import Deadline
from notifyctl.errors import InputError
from notifyctl.model import Capabilities, Channel, Mail, Message, Outcome, OutcomeKind, Receipt, Receipts, Request
from notifyctl.settings import TransportSettings
from notifyctl.transports.base import Checkup, Conversation, Exchange, FeedPage, Phase, Steps, Transport, Trouble
from notifyctl.transports.connect import is_loopback
from notifyctl.transports.smtp_codes import codes
from notifyctl.transports.smtp_pool import Pool
from notifyctl.transports.smtp_session import Session
from notifyctl.transports.smtp_transaction import END, Stale, transact

_MODES = ("none", "starttls", "implicit")
_PORTS = {"none": 25, "starttls": 587, "implicit": 465}

# What may stand between < and > without ending the command; syntax proper is checked when an address is taken in.
_PATH = re.compile(r'(?:"(?:\\[\x20-\x7e]|[^\\"\x00-\x1f\x7f])*"|[^\x00-\x20\x7f<>"@]+)@[^\x00-\x20\x7f<>"@]+\Z')


class Smtp(Transport):
    """Kind `smtp`; its keys are listed in the registry."""

    CAPABILITIES = Capabilities(
        channels=frozenset({Channel.EMAIL}), raw_mime=True, invalid_distinct=True, smtputf8=True
    )

    def __init__(self, settings: TransportSettings) -> None:
        super().__init__(settings)
        self._host = settings.text("host")
        if not self._host or not re.fullmatch(r"[\w.:%-]+", self._host):
            raise settings.error("host", "is missing or not a host name", 'for example host = "smtp.example.com"')
        loopback = is_loopback(self._host)
        port = settings.whole("port", 0, 0, 65535)
        mode = "none" if loopback else "implicit" if port == 465 else "starttls"
        self._mode = settings.text("tls", mode)
        if self._mode not in _MODES:
            raise settings.error("tls", "is unknown", 'it may be "none", "starttls" or "implicit"')
        self._port = port or _PORTS[self._mode]
        if self._mode == "none" and not loopback:
            logging.getLogger(__name__).warning(
                "transports.%s.tls is none although the host is not this machine: mails%s travel in the clear",
                settings.name,
                " and the login" if "password" in "".join(settings.options) else "",
            )
        self._tls = self._context()
        username, password = settings.secret("username"), settings.secret("password")
        if (username is None) != (password is None):
            missing = "username" if username is None else "password"
            raise settings.error(missing, "is missing", "a login needs both username and password")
        self._login = (username, password) if username is not None and password is not None else None
        cap = settings.whole("max_messages_per_connection", 100, 1, 1_000_000)
        self._pool = Pool(self._open, cap)
        self._bounces = None
        if "bounces" in settings.options:  # else its modules are not even imported
            from notifyctl.transports.bounces import configured

            self._bounces = configured(settings)
            self.capabilities = replace(self.capabilities, receipts=Receipts.BOUNCES_ONLY)

    def prepare(self, message: Message) -> Request:
        """Envelope: sender, recipient, Message-ID, and `utf8`, `8bit` or `7bit`. Body: what follows DATA, dot included.

        Where bounces are collected, the sender is the return path, and the envelope id stands behind the rest.

        Raises InputError: `channel_unsupported`, `invalid_address`, `bare_newline` (RFC 5321 2.3.8 forbids CR or LF
        alone, and servers that tolerate them can be made to see two messages in one).
        """
        if not isinstance(message, Mail):
            raise InputError("an SMTP relay takes mail only", reason="channel_unsupported")
        sender, recipient, raw = message.sender.address, message.recipient.address, message.raw
        for field, address in (("sender", sender), ("recipient", recipient)):
            if not _PATH.match(address):
                raise InputError(f"the {field} cannot stand in an SMTP envelope", reason="invalid_address", field=field)
        bare = raw.replace(b"\r\n", b"")
        if b"\n" in bare or b"\r" in bare:
            raise InputError("the mail holds a CR or LF alone", reason="bare_newline")
        body = raw.replace(b"\r\n.", b"\r\n..")
        if body.startswith(b"."):
            body = b"." + body
        utf8 = message.smtputf8 or not (sender.isascii() and recipient.isascii())
        form = "utf8" if utf8 else "8bit" if message.eight_bit else "7bit"
        end = END if body.endswith(b"\r\n") or not body else b"\r\n" + END
        envelope: tuple[str, ...] = (sender, recipient, message.message_id, form)
        if self._bounces is not None:
            back, envid = self._bounces.return_path(message.key, sender), self._bounces.envelope_id(message.key)
            envelope = (back, *envelope[1:], envid)
        return Request(message.key, envelope, body + end)

    def submit(
        self,
        requests: Sequence[Request],
        deadline: Deadline,
        validity: float | None,  # noqa: ARG002 - SMTP has no time to live
    ) -> list[Outcome]:
        """One transaction per request; the deadline is for all of them."""
        return [self._submit(request, Exchange(deadline)) for request in requests]

    @property
    def converses(self) -> bool:
        """Kept sessions are."""
        return True

    def converse(self, requests: Sequence[Request], deadline: Deadline) -> Conversation | None:
        """One transaction on an idle session."""
        if len(requests) != 1 or deadline.passed:
            return None
        exchange = Exchange(deadline)
        session = self._pool.take_idle(exchange)
        return None if session is None else Conversation(session.fd, self._talk(session, requests[0], exchange))

    def capacity(self) -> int | None:
        """One until a session has been opened, so that a dead server or a wrong login is met once; then as many as the
        server has turned out to allow."""
        return self._pool.capacity()

    @property
    def feeds(self) -> bool:
        """Whether bounces are collected."""
        return self._bounces is not None

    def feed(self, cursor: str, limit: int, deadline: Deadline) -> FeedPage:
        """The next letters of the bounce mailbox."""
        return self._bounces.feed(cursor, limit, deadline) if self._bounces else super().feed(cursor, limit, deadline)

    def fed(self, page: FeedPage, unknown: Collection[Receipt], deadline: Deadline) -> str | None:
        """Mark the letters of a page whose receipts are committed; those of nobody's deliveries stay as they are."""
        return self._bounces.fed(page, unknown, deadline) if self._bounces else None

    def check(self, deadline: Deadline) -> Checkup:
        """Open a session (TLS and login included) and say what the server offers."""
        exchange = Exchange(deadline)
        try:
            session = self._pool.take(exchange, fresh=True)
        except Trouble as trouble:
            return Checkup(exchange.outcome(trouble))
        facts = {name.upper(): value.strip() for name, value in session.esmtp_features.items()}
        self._pool.give_back(session)
        if self._bounces is not None:
            try:
                facts |= {f"BOUNCES {name}": value for name, value in self._bounces.check(deadline).items()}
            except Trouble as trouble:
                reason = f"bounces_{trouble.reason}"
                return Checkup(Outcome(OutcomeKind.UNAVAILABLE, reason, config=trouble.config), facts)
        return Checkup(facts=facts)

    def close(self) -> None:
        """Say goodbye on kept sessions."""
        self._pool.close()
        if self._bounces is not None:
            self._bounces.close()

    # -- opening --

    def _context(self) -> ssl.SSLContext | None:
        """What TLS demands of the server: a valid certificate for the configured host."""
        path = self.settings.path("ca_file")
        if self._mode == "none":
            return None
        try:
            return ssl.create_default_context(cafile=str(path) if path else None)
        except (OSError, ValueError) as problem:
            said = (
                getattr(problem, "strerror", None) if isinstance(problem, FileNotFoundError | PermissionError) else None
            )
            hint = "it must hold certificates in PEM form"
            raise self.settings.error("ca_file", f"names {path}: {said or 'no certificate found'}", hint) from None

    def _open(self, exchange: Exchange) -> Session:
        """A session that is ready for MAIL: connected, encrypted as configured, logged in."""
        session = Session(exchange)
        try:
            self._establish(session)
        except BaseException:
            session.abort()
            raise
        return session

    def _establish(self, session: Session) -> None:
        session.connect_to(self._host, self._port)
        if self._mode == "implicit":
            self._secure(session)
        code, text = session.getreply()
        if code != 220:
            raise Trouble("greeting_refused", code=codes(code, text))
        session.greet()
        if self._mode == "starttls":
            if not session.has_extn("starttls"):
                raise Trouble("starttls_missing", config=True)
            code, text = session.docmd("STARTTLS")
            if code != 220:
                raise Trouble("starttls_refused", code=codes(code, text), config=code >= 500)
            self._secure(session)
            session.greet()
        if self._login is not None:
            session.log_in(*self._login)

    def _secure(self, session: Session) -> None:
        assert self._tls is not None
        session.secure(self._tls, self._host)

    # -- one message --

    def _submit(self, request: Request, exchange: Exchange) -> Outcome:
        if exchange.deadline.passed:  # nothing was tried, and nothing is wrong with the transport
            return Outcome(OutcomeKind.TEMPORARY_FAILURE, "deadline")
        try:
            session = self._pool.take(exchange)
            try:
                return self._use(session, request)
            except Stale:
                exchange.phase = Phase.OPENING  # nothing of the message reached anybody: once more, on a new session
                return self._use(self._pool.take(exchange, fresh=True), request, replaced=True)
        except Trouble as trouble:
            return exchange.outcome(trouble)

    def _talk(self, session: Session, request: Request, exchange: Exchange) -> Steps[list[Outcome] | None]:
        try:
            return [(yield from self._using(session, request))]
        except Stale:
            return None
        except Trouble as trouble:
            return [exchange.outcome(trouble)]

    def _use(self, session: Session, request: Request, *, replaced: bool = False) -> Outcome:
        return session.finish(self._using(session, request, replaced=replaced))

    def _using(self, session: Session, request: Request, *, replaced: bool = False) -> Steps[Outcome]:
        """One transaction on `session`, which goes back to the pool whatever happens."""
        try:
            return (yield from transact(session, request, kept=session.messages > 0 and not replaced))
        except BaseException:
            session.broken = True
            raise
        finally:
            self._pool.give_back(session)
