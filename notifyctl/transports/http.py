"""What all HTTP providers share: configuration, the client, one exchange.

A provider's module declares its code table and says where in an answer the id and the code stand; what that proves is
decided in `http_answers`, and what a lost exchange proves in `base`, by the phase that `http_wire` keeps.
"""

from __future__ import annotations

import re
import ssl
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from notifyctl import __version__
from notifyctl.clock import Deadline
from notifyctl.errors import InputError
from notifyctl.model import Outcome, Receipt, Request
from notifyctl.settings import TransportSettings
from notifyctl.transports.base import Checkup, Exchange, Transport, Trouble
from notifyctl.transports.connect import is_loopback
from notifyctl.transports.http_answers import Reply, Table, judge
from notifyctl.units import duration

if TYPE_CHECKING:
    import httpx

_URL = re.compile(r"https?://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?(?:/[A-Za-z0-9._~/-]*)?")


class HttpTransport(Transport):
    """A provider reached by HTTPS, one message per request. `receipt_window` and `base_url` are every kind's keys."""

    URL: ClassVar[str]  # scheme and host, replaced by `base_url`
    CODES: ClassVar[Table]
    ACCOUNT: ClassVar[tuple[str, ...]]  # the path of a look-up that only a valid account answers; what of it is shown

    def __init__(self, settings: TransportSettings) -> None:
        super().__init__(settings)
        self._base = self._base_url(settings.text("base_url", self.URL))
        self._context = self._trust() if self._base.startswith("https:") else None
        window = self._duration("receipt_window", self.capabilities.receipt_window)
        self.capabilities = replace(self.capabilities, receipt_window=window)
        self._client: httpx.Client | None = None
        self._opening = Lock()
        self.account = ""  # stands for {account} in ACCOUNT
        self._head = [
            ("Accept", "application/json"), ("Accept-Encoding", "identity"), ("User-Agent", f"notifyctl/{__version__}"),
            *self.credentials(),
        ]  # fmt: skip

    # -- what a provider declares --

    @abstractmethod
    def credentials(self) -> Sequence[tuple[str, str]]:
        """The header fields that let us in."""

    def post(self, request: Request, validity: float | None, exchange: Exchange) -> Reply:  # noqa: ARG002
        """Send one prepared request, by `self.call`. Here: its body, to the path that its envelope begins with."""
        return self.call("POST", request.envelope[0], exchange, request.body)

    @abstractmethod
    def read(self, document: Any) -> tuple[str, str]:
        """(the message's id, the error's code) in the JSON of an answer; "" for what does not stand there."""

    def explain(self, outcome: Outcome, request: Request, deadline: Deadline) -> Outcome:  # noqa: ARG002
        """Called with each outcome: a provider that says elsewhere why it refused may be asked. Never raises."""
        return outcome

    def receipt(self, remote_id: str, deadline: Deadline) -> Receipt | None:  # noqa: ARG002
        """What became of one message; None: not known yet. Whatever cannot be read may raise what reading it raises."""
        return None

    # -- the boundary --

    def submit(self, requests: Sequence[Request], deadline: Deadline, validity: float | None) -> list[Outcome]:
        return [self.one(request, deadline, validity) for request in requests]

    def receipts(self, remote_ids: Iterable[str]) -> dict[str, Receipt]:
        return self.each(remote_ids, self.receipt)

    def check(self, deadline: Deadline) -> Checkup:
        exchange = Exchange(deadline)
        path, *names = self.ACCOUNT
        try:
            reply = self.call("GET", path.replace("{account}", self.account), exchange)
        except Trouble as trouble:
            return Checkup(exchange.outcome(trouble))
        said = reply.document if reply.status == 200 else None
        said = said.get("data", said) if isinstance(said, dict) else None
        if not isinstance(said, dict):
            return Checkup(self.proves(reply))
        return Checkup(facts={name: str(said[name])[:100] for name in names if name in said})

    def close(self) -> None:
        with self._opening:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    # -- for providers --

    def one(self, request: Request, deadline: Deadline, validity: float | None) -> Outcome:
        """One message in an exchange of its own."""
        exchange = Exchange(deadline)
        try:
            outcome = self.proves(self.post(request, validity, exchange))
        except Trouble as trouble:
            return exchange.outcome(trouble)
        return self.explain(outcome, request, deadline)

    def call(
        self, method: str, path: str, exchange: Exchange, body: bytes = b"", *headers: tuple[str, str],
        kind: str = "application/json",
    ) -> Reply:  # fmt: skip
        """One request and its answer, whatever that says; `kind` is its body's. Raises Trouble."""
        import httpx

        request = httpx.Request(
            method, self._base + path, content=body or None, extensions={"exchange": exchange},
            headers=[*self._head, *([("Content-Type", kind)] if body else ()), *headers],
        )  # fmt: skip
        answer = self._open().send(request)
        return Reply(answer.status_code, answer.headers, answer.content)  # their names compare without regard to case

    def get(self, path: str, deadline: Deadline) -> Any:
        """The JSON of a look-up, None where the provider does not know it. Raises Trouble for everything else."""
        reply = self.call("GET", path, Exchange(deadline))
        if 200 <= reply.status < 300 and isinstance(reply.document, dict):
            return reply.document
        if reply.status == 404 and isinstance(reply.document, dict):
            return None
        outcome = judge(reply, self.CODES, "", "")
        raise Trouble(outcome.reason, code=outcome.code, config=outcome.config, wait=outcome.retry_after)

    @staticmethod
    def about(wanted: str, document: Any, key: str) -> Any:
        """`document`, if it is of what was asked for; for use within `each`, where ValueError makes it unreadable."""
        if document is not None and str(document[key]) != wanted:
            raise ValueError("an answer about something else")
        return document

    def proves(self, reply: Reply, document: Any = None) -> Outcome:
        """What an answer proves; `document`: one item's part of it."""
        try:
            remote, code = self.read(reply.document if document is None else document)
        except (KeyError, IndexError, TypeError, AttributeError):
            remote, code = "", ""
        return judge(reply, self.CODES, remote, code)

    def each(self, remote_ids: Iterable[str], look_up: Callable[[str, Deadline], Receipt | None]) -> dict[str, Receipt]:
        """Receipts looked up one by one within one deadline; what was learnt besides trouble is worth keeping."""
        found: dict[str, Receipt] = {}
        deadline = Deadline.after(self.settings.deadline)
        unreadable = False
        for remote_id in remote_ids:
            try:
                receipt = look_up(remote_id, deadline)
            except Trouble:
                if not found:
                    raise
                break
            except (KeyError, IndexError, TypeError, AttributeError, ValueError):
                unreadable = True  # a matter of this message alone
                continue
            if receipt is not None:
                found[remote_id] = receipt
        if unreadable and not found:
            raise Trouble("unreadable_reply")
        return found

    def required(self, key: str, *, secret: bool = False) -> str:
        """An option that must be given. Raises ConfigError."""
        value = (self.settings.secret(key) if secret else self.settings.text(key)) or ""
        if not value:
            ways = f"give it as {key}_file, {key}_env or {key}_command" if secret else "your account's, as it shows it"
            raise self.settings.error(key, "is missing", ways)
        if not value.isascii() or not value.isprintable():
            raise self.settings.error(key, "holds a character that cannot stand in a header")
        return value

    def _duration(self, key: str, default: float) -> float:
        try:
            return duration(text) if (text := self.settings.text(key)) else default
        except InputError as error:
            raise self.settings.error(key, f"is wrong: {error.message}", error.hint) from None

    def _base_url(self, text: str) -> str:
        if not _URL.fullmatch(text):
            raise self.settings.error("base_url", "is not a URL of scheme and host", f'such as "{self.URL}"')
        if text.startswith("http:") and not is_loopback(urlsplit(text).hostname or ""):
            raise self.settings.error("base_url", "is not https", "the credentials would travel in the clear")
        return text.rstrip("/")

    def _open(self) -> httpx.Client:
        """The client, made with the first exchange; one for all threads."""
        with self._opening:
            if self._client is None:
                import httpx

                from notifyctl.transports.http_wire import Wire, silence

                silence()
                self._client = httpx.Client(
                    transport=Wire(self._context), trust_env=False, follow_redirects=False,  # type: ignore[arg-type]  # as in Wire
                )  # fmt: skip
            return self._client

    def _trust(self) -> ssl.SSLContext:
        """What TLS demands of the provider: a valid certificate for its host, by the system's authorities or ours."""
        path = self.settings.path("ca_file")
        try:
            return ssl.create_default_context(cafile=str(path) if path else None)
        except (OSError, ValueError):
            hint = "it must be readable and hold certificates in PEM form"
            raise self.settings.error("ca_file", f"names {path}, which is of no use", hint) from None
