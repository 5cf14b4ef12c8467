"""The sockets below httpx: every wait ends with the exchange's deadline, every write moves its phase.

httpx and its engine httpcore bound single socket calls, so a server that drips one byte a second holds an exchange for
ever; and they do not say whether a byte of the request had left. Here a connection is opened, read and written by our
own rules (see `base`), which the engine allows: it takes its sockets from a `network_backend`. It retries nothing, and
a kept connection that the server has closed meanwhile is noticed before anything is written to it.
"""

from __future__ import annotations

import logging
import select
import socket
import ssl
import threading
from contextlib import suppress
from math import ceil
from typing import TYPE_CHECKING, Any

from notifyctl.transports.base import Exchange, Phase, Trouble
from notifyctl.transports.connect import connect

if TYPE_CHECKING:
    import httpx

_CHUNK = 1 << 16  # bytes per write: the deadline is looked at before each
_MOST = 8 << 20  # bytes of one answer, its head included: a page of 1,000 found messages has about one million
_SLICE = 1.0  # seconds after which a waiting exchange looks whether its deadline was brought forward
_KEEP = 15.0  # seconds an idle connection is kept: less than servers do, so that it is not closed while we write


class Wire:
    """The pool of connections to one provider, as the transport of an `httpx.Client`.

    A connection is opened only while all others are in use, so there are never more than exchanges at a time.
    """

    def __init__(self, context: ssl.SSLContext | None) -> None:
        import httpcore

        self._now = threading.local()  # the exchange of each thread
        self._pool = httpcore.ConnectionPool(
            ssl_context=context, max_connections=None, keepalive_expiry=_KEEP, retries=0,
            network_backend=_Backend(self._now),  # type: ignore[arg-type]  # by its methods; a base class must be imported
        )  # fmt: skip
        self._lost = (httpcore.NetworkError, httpcore.TimeoutException)
        self._nonsense = (httpcore.ProtocolError, httpcore.UnsupportedProtocol)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """One request and its whole answer. Raises Trouble; `extensions["exchange"]` says how far it had come."""
        import httpcore
        import httpx

        exchange: Exchange = request.extensions["exchange"]
        self._now.exchange, self._now.read, self._now.ended = exchange, 0, False
        url = request.url
        try:
            exchange.check()
            answer = self._pool.handle_request(
                httpcore.Request(
                    request.method,
                    httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
                    headers=request.headers.raw,
                    content=request.stream,
                )
            )
            try:
                body = b"".join(answer.iter_stream())
            finally:
                answer.close()
        except self._lost:
            raise Trouble("connection_lost") from None
        except self._nonsense:
            if exchange.phase is Phase.OPENING:
                raise Trouble("protocol_error") from None
            raise Trouble("connection_lost" if self._now.ended else "unreadable_reply") from None
        finally:
            self._now.exchange = None
        # what is encoded was not asked for, and could be unpacked to any size
        kept = [(name, value) for name, value in answer.headers if name.lower() != b"content-encoding"]
        return httpx.Response(answer.status, headers=kept, content=body if len(kept) == len(answer.headers) else b"")

    def close(self) -> None:
        """Close what is idle."""
        self._pool.close()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def silence() -> None:
    """Neither httpx nor its engine may log: they would write addresses in URLs, and at `debug` the credentials."""
    for name in ("httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)


class _Backend:
    """Where the engine gets its connections from. Timeouts that it passes are the deadline's business."""

    def __init__(self, now: threading.local) -> None:
        self._now = now

    def connect_tcp(self, host: str, port: int, **_: Any) -> _Stream:
        return _Stream(connect(host, port, self._now.exchange), self._now)


class _Stream:
    """A connection, serving the exchange of the calling thread."""

    def __init__(self, sock: socket.socket, now: threading.local) -> None:
        self._sock = sock
        self._now = now
        self._poll = select.poll()
        self._poll.register(sock.fileno(), 0)

    def start_tls(self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, **_: Any) -> _Stream:
        exchange: Exchange = self._now.exchange
        try:
            self._sock = ssl_context.wrap_socket(
                self._sock, server_hostname=server_hostname, do_handshake_on_connect=False
            )
            while True:
                exchange.check()
                try:
                    self._sock.do_handshake()
                except ssl.SSLWantReadError:
                    self._wait(select.POLLIN)
                except ssl.SSLWantWriteError:
                    self._wait(select.POLLOUT)
                else:
                    return self
        except ssl.SSLCertVerificationError:
            raise Trouble("certificate_invalid", config=True) from None
        except (OSError, ValueError):
            raise Trouble("tls_failed") from None

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002
        """Write all of it. Once its first byte may have left, a loss is doubt: an API may act on half a request."""
        import httpcore

        exchange: Exchange = self._now.exchange
        view = memoryview(buffer)
        while view:
            exchange.check()
            exchange.phase = Phase.WRITTEN
            try:
                view = view[self._sock.send(view[:_CHUNK]) :]
            except (BlockingIOError, ssl.SSLWantWriteError):
                self._wait(select.POLLOUT)
            except ssl.SSLWantReadError:
                self._wait(select.POLLIN)
            except OSError:
                raise httpcore.WriteError from None  # the engine then reads: an early refusal may have come

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002
        """What has come, waiting for the first byte; empty: the server has closed."""
        while True:
            try:
                data = self._sock.recv(max_bytes)
            except (BlockingIOError, ssl.SSLWantReadError):
                self._wait(select.POLLIN)
            except ssl.SSLWantWriteError:
                self._wait(select.POLLOUT)
            except OSError:
                raise Trouble("connection_lost") from None
            else:
                self._now.read += len(data)
                self._now.ended = not data
                if self._now.read > _MOST:
                    raise Trouble("unreadable_reply")
                return data

    def close(self) -> None:
        with suppress(OSError):
            self._sock.close()

    def get_extra_info(self, info: str) -> object:
        """`is_readable`: an idle connection that has something to read was closed by the server."""
        if info != "is_readable":
            return None
        if self._sock.fileno() < 0:
            return True
        looking = select.poll()  # its own: another thread may just have taken the connection, and wait with the other
        looking.register(self._sock.fileno(), select.POLLIN)
        return bool(looking.poll(0))

    def _wait(self, events: int) -> None:
        """Wait for `events`; what has already happened counts even when the deadline has passed."""
        self._poll.modify(self._sock.fileno(), events)
        deadline = self._now.exchange.deadline
        while True:
            left = deadline.remaining()
            if self._poll.poll(ceil(max(0.0, min(left, _SLICE)) * 1000)):
                return
            if left <= 0:
                raise Trouble("deadline")
