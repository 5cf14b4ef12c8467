"""What IMAP and POP3 share: where the server is, how it is spoken to, and a whole exchange that ends with its deadline.

The standard library's clients bound single socket calls only, so a server that drips bytes would hold one for ever.
Their sockets are of our own kind here: each read waits at most until the deadline. What goes wrong becomes a Trouble
with a reason code; no text of the server's is kept.
"""

from __future__ import annotations

import logging
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from notifyctl.clock import Deadline
from notifyctl.errors import ConfigError
from notifyctl.settings import TransportSettings
from notifyctl.transports.base import Exchange, Trouble
from notifyctl.transports.connect import connect, is_loopback

_MODES = ("none", "starttls", "implicit")


class _Timed(socket.socket):
    """A socket whose reads and writes wait no longer than its deadline."""

    deadline: Deadline | None = None

    def recv_into(self, *arguments: Any, **options: Any) -> int:
        _bound(self)
        return super().recv_into(*arguments, **options)

    def sendall(self, *arguments: Any, **options: Any) -> None:
        _bound(self)
        return super().sendall(*arguments, **options)


class _TimedTls(ssl.SSLSocket):
    """The same with TLS."""

    deadline: Deadline | None = None

    def recv_into(self, *arguments: Any, **options: Any) -> int:
        _bound(self)
        return super().recv_into(*arguments, **options)

    def sendall(self, *arguments: Any, **options: Any) -> None:
        _bound(self)
        return super().sendall(*arguments, **options)


def _bound(sock: Any) -> None:
    if sock.deadline is not None:
        left = sock.deadline.remaining()
        if left <= 0:
            raise TimeoutError
        sock.settimeout(left)


@dataclass(frozen=True, slots=True)
class Server:
    """A mail server and our login there. `mode`: `none`, `starttls` or `implicit`."""

    host: str
    port: int
    mode: str
    username: str = field(repr=False)
    password: str = field(repr=False)
    context: ssl.SSLContext | None = field(repr=False)

    def connect(self, deadline: Deadline) -> socket.socket:
        """A connected socket, encrypted where TLS is implicit, whose every wait ends with the deadline."""
        raw = connect(self.host, self.port, Exchange(deadline))
        sock: socket.socket = _Timed(raw.family, raw.type, raw.proto, raw.detach())
        try:
            sock.settimeout(max(0.001, deadline.remaining()))
            if self.mode == "implicit":
                assert self.context is not None
                sock = self.context.wrap_socket(sock, server_hostname=self.host)
        except BaseException:
            sock.close()
            raise
        extend(sock, deadline)
        return sock


def extend(sock: Any, deadline: Deadline | None) -> None:
    """From now on the socket waits until this deadline."""
    sock.deadline = deadline


def server(settings: TransportSettings, key: str, ports: tuple[int, int]) -> Server:
    """The server that `settings` (those of the mailbox) name under `key`, as HOST or HOST:PORT.

    `ports`: that of plain text and STARTTLS, and that of implicit TLS. Without `tls` it is `none` on loopback, else
    `implicit` (RFC 8314), except on the plain port, where it is `starttls`. Raises ConfigError.
    """
    host, port = _place(settings, key)
    loopback = is_loopback(host)
    usual = "starttls" if port == ports[0] else "implicit"
    mode = settings.text("tls", "none" if loopback else usual)
    if mode not in _MODES:
        raise settings.error("tls", "is unknown", 'it may be "none", "starttls" or "implicit"')
    if mode == "none" and not loopback:
        logging.getLogger(__name__).warning(
            "transports.%s.tls is none although the host is not this machine: the login travels in the clear",
            settings.name,
        )
    username, password = settings.secret("username"), settings.secret("password")
    for name, value in (("username", username), ("password", password)):
        if value is None:
            raise settings.error(name, "is missing", f"give {name}_env, {name}_file or {name}_command")
    assert username is not None
    assert password is not None
    return Server(
        host, port or ports[mode == "implicit"], mode, username, password,
        None if mode == "none" else _context(settings),
    )  # fmt: skip


def _place(settings: TransportSettings, key: str) -> tuple[str, int]:
    value = settings.text(key)
    found = re.fullmatch(r"([\w.-]+|\[[\w:.%]+\])(?::(\d{1,5}))?", value)
    if not found or int(found[2] or 0) > 65535:
        raise settings.error(key, "is no host, nor HOST:PORT", f'for example {key} = "{key}.example.com"')
    return found[1].strip("[]"), int(found[2] or 0)


def _context(settings: TransportSettings) -> ssl.SSLContext:
    path = settings.path("ca_file")
    try:
        context = ssl.create_default_context(cafile=str(path) if path else None)
    except (OSError, ValueError):
        raise settings.error("ca_file", "cannot be read", "it must hold certificates in PEM form") from None
    context.sslsocket_class = _TimedTls
    return context


@contextmanager
def troubles(refusals: tuple[type[Exception], ...]) -> Iterator[None]:
    """Turns what the standard library raises into Trouble; `refusals`: the protocol's own errors."""
    try:
        yield
    except (Trouble, ConfigError):
        raise
    except ssl.SSLCertVerificationError:
        raise Trouble("certificate_invalid", config=True) from None
    except TimeoutError:
        raise Trouble("deadline") from None
    except ssl.SSLError:
        raise Trouble("tls_failed") from None
    except OSError:
        raise Trouble("connection_lost") from None
    except refusals:
        raise Trouble("protocol_error") from None
    except (ValueError, IndexError, TypeError, AttributeError, UnicodeError):  # nonsense that was taken for an answer
        raise Trouble("protocol_error") from None


def quietly(work: Callable[[], Any]) -> None:
    """Say goodbye to a server that may be gone."""
    with suppress(Exception):
        work()
