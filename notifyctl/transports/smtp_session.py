"""One SMTP session: the standard library's parsing of EHLO, over our own bounded reading and writing.

smtplib bounds single socket calls, so a server that drips one byte a second holds it for ever, and it writes again
after a pause of any length. Here every wait ends with the deadline of the exchange, every write is preceded by a
look at it, and replies are read with a cap. What is written goes through one method, which also knows when the final
dot may have left: only then does a loss become doubt.

What serves a message is written as steps (`transports.base.Steps`), so that a caller may advance many sessions in one
thread; opening one waits where it stands.
"""

from __future__ import annotations

import select
import smtplib
import socket
import ssl
import struct
from base64 import b64decode, b64encode
from contextlib import suppress
from math import ceil
from typing import TYPE_CHECKING

from notifyctl.transports.base import Exchange, Phase, Steps, T, Trouble
from notifyctl.transports.connect import connect, own_name
from notifyctl.transports.smtp_codes import codes

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


_CHUNK = 1 << 16  # bytes per write: the deadline is looked at before each
_LINE = 1000  # bytes kept of one line of a reply: RFC 5321 4.5.3.1.5 allows 512, the rest is read and dropped
_REPLY = 4 << 20  # bytes after which a reply is taken for nonsense
_LINES = 200  # lines kept of one reply
_SLICE = 1.0  # seconds after which a waiting exchange looks whether its deadline was brought forward
_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class EarlyReply(Exception):
    """The server answered while the message was still being written."""


class Session(smtplib.SMTP):
    """A connection to one server, serving one exchange at a time. Raises Trouble, never OSError."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(local_hostname="localhost")  # none at all would cost a look-up; see `connect_to`
        self.exchange = exchange
        self.messages = 0  # transactions begun, for the cap
        self.unclean = False  # a transaction was left unfinished: RSET first
        self.broken = False  # not to be used again
        self._poll = select.poll()
        self.fd = -1
        self._input = bytearray()

    # -- opening --

    def connect_to(self, host: str, port: int) -> None:
        """Connect, and learn how to call ourselves."""
        self.sock = connect(host, port, self.exchange)
        self.fd = self.sock.fileno()
        self._poll.register(self.fd, 0)
        self.local_hostname = own_name(self.sock)

    def secure(self, context: ssl.SSLContext, host: str) -> None:
        """Begin TLS. Bytes that came before it are refused: they could be answers somebody slipped in."""
        if self._input:
            raise Trouble("tls_failed")
        try:
            self.sock = context.wrap_socket(self._connected(), server_hostname=host, do_handshake_on_connect=False)
            while True:
                self.exchange.check()
                try:
                    self.sock.do_handshake()
                except ssl.SSLWantReadError:
                    self._wait(select.POLLIN)
                except ssl.SSLWantWriteError:
                    self._wait(select.POLLOUT)
                else:
                    break
        except ssl.SSLCertVerificationError:
            raise Trouble("certificate_invalid", config=True) from None
        except (OSError, ValueError):
            raise Trouble("tls_failed") from None
        self.ehlo_resp = self.helo_resp = None  # RFC 3207 4.2: what was learnt in the clear is forgotten
        self.esmtp_features = {}
        self.does_esmtp = False

    def greet(self) -> None:
        """EHLO, or HELO where the server does not know it."""
        code, text = self.ehlo()
        if 500 <= code < 600:
            code, text = self.helo()
        if code != 250:
            raise Trouble("greeting_refused", code=codes(code, text))

    def log_in(self, username: str, password: str) -> None:
        """One attempt with the best mechanism that the server offers (UTF-8, RFC 4616); never a second one."""
        offered = self.esmtp_features.get("auth", "").upper().split()
        if "PLAIN" in offered:
            code, text = self.docmd("AUTH", f"PLAIN {_base64(f'{chr(0)}{username}{chr(0)}{password}')}")
        elif "LOGIN" in offered:
            code, text = self.docmd("AUTH", "LOGIN")
            for answer in (username, password):
                if code == 334:
                    code, text = self.docmd(_base64(answer))
        elif "CRAM-MD5" in offered:
            code, text = self.docmd("AUTH", "CRAM-MD5")
            if code == 334:
                code, text = self.docmd(_base64(f"{username} {_challenge_answer(text, password)}"))
        else:
            raise Trouble("login_unsupported", config=True)
        if 400 <= code < 500:
            raise Trouble("login_failed", code=codes(code, text))
        if not 200 <= code < 300:
            raise Trouble("credentials_rejected", code=codes(code, text), config=True)

    # -- using --

    def alive(self) -> bool:
        """Whether an idle session can still be used: a server that has said goodbye has left something to read."""
        if self.broken or self._input or self.sock is None:
            return False
        try:
            self.sock.recv(1)
        except _WOULD_BLOCK:
            return True
        except OSError:
            return False
        return False

    def send(self, s: ReadableBuffer | str) -> None:
        """What smtplib writes: commands."""
        self.write(s.encode(self.command_encoding) if isinstance(s, str) else bytes(s))

    def write(self, data: bytes) -> None:
        """Write all of `data`, waiting as long as the deadline allows."""
        self.finish(self.writing(data))

    def getreply(self) -> tuple[int, bytes]:
        """One reply: its code, and the text of its lines. Nonsense raises Trouble."""
        return self.finish(self.reading())

    def finish(self, steps: Steps[T]) -> T:
        """Take all steps, waiting between them."""
        try:
            events = next(steps)
            while True:
                events = steps.send(self._ready(events))
        except StopIteration as end:
            result: T = end.value
            return result

    def writing(self, data: bytes, last: int | None = None) -> Steps[None]:
        """Write all of `data`; `last` is the offset of the byte that completes the request.

        On a plain socket a failing call has taken nothing, so only there the phase can be taken back. With `last`
        given, an answer that comes while the server takes no more raises EarlyReply.
        """
        sock, exchange, view = self._connected(), self.exchange, memoryview(data)
        plain = not isinstance(sock, ssl.SSLSocket)
        at = 0
        while at < len(view):
            chunk = view[at : at + _CHUNK]
            completes = last is not None and at + len(chunk) > last
            exchange.check()
            if completes:
                exchange.phase = Phase.WRITTEN
            blocked: int | None = None
            try:
                at += sock.send(chunk)
            except (BlockingIOError, ssl.SSLWantWriteError):
                blocked = select.POLLOUT
            except ssl.SSLWantReadError:
                blocked = select.POLLIN
            except OSError:
                blocked = 0
            if completes and plain and last is not None and at <= last:
                exchange.phase = Phase.WRITING
            if blocked == 0:
                self._give_up(early=last is not None)
            elif blocked is not None:
                ready = yield blocked | (select.POLLIN if last is not None else 0)
                if not ready:
                    raise Trouble("deadline")
                if last is not None and ready & select.POLLIN and self._take():
                    raise EarlyReply

    def reading(self) -> Steps[tuple[int, bytes]]:
        """One reply, see `getreply`."""
        kept: list[bytes] = []
        spent = 0
        while True:
            while (end := self._input.find(b"\n")) < 0:
                excess = len(self._input) - _LINE
                if excess > 0:
                    spent += excess
                    del self._input[_LINE:]
                if spent > _REPLY:
                    raise self._nonsense()
                yield from self._fill()
            line = bytes(self._input[: min(end, _LINE)]).rstrip(b"\r")
            del self._input[: end + 1]
            spent += end + 1
            if not line[:3].isdigit() or line[3:4] not in (b"", b" ", b"-") or spent > _REPLY:
                raise self._nonsense()
            if len(kept) < _LINES:
                kept.append(line[4:].strip())
            if line[3:4] != b"-":
                return int(line[:3]), b"\n".join(kept)

    @property
    def unread(self) -> bool:
        """Whether the server said more than was asked."""
        return bool(self._input)

    def size_limit(self) -> int:
        """The largest message the server takes, in bytes, as it advertises (RFC 1870); 0: it does not say."""
        value = self.esmtp_features.get("size", "")
        return int(value) if value.isascii() and value.isdigit() else 0

    # -- ending --

    def goodbye(self) -> None:
        """Write QUIT if that can be done at once; the answer is not waited for, since nothing depends on it."""
        try:
            self._connected().send(b"QUIT\r\n")
        except (OSError, Trouble):
            self.broken = True

    def abort(self) -> None:
        """End now. What the system still holds of our bytes is discarded, so that none of them leaves later."""
        self.broken = True
        if self.sock is not None:
            with suppress(OSError):
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    # -- waiting --

    def _connected(self) -> socket.socket:
        if self.sock is None:
            raise Trouble("connection_lost")
        return self.sock

    def _nonsense(self) -> Trouble:
        self.broken = True
        return Trouble("unreadable_reply" if self.exchange.phase is Phase.WRITTEN else "protocol_error")

    def _wait(self, events: int) -> None:
        if not self._ready(events):
            raise Trouble("deadline")

    def _ready(self, events: int) -> int:
        """Wait for `events`; what has already happened counts even when the deadline has passed. 0: nothing did."""
        self._poll.modify(self._connected().fileno(), events)
        while True:
            left = self.exchange.deadline.remaining()
            ready = self._poll.poll(ceil(max(0.0, min(left, _SLICE)) * 1000))
            if ready:
                return ready[0][1]
            if left <= 0:
                return 0

    def _fill(self) -> Steps[None]:
        """Read what has come, waiting for the first byte."""
        sock = self._connected()
        plain = not isinstance(sock, ssl.SSLSocket)
        while True:
            if plain and not (yield select.POLLIN):
                raise Trouble("deadline")
            try:
                data = sock.recv(1 << 16)
            except ssl.SSLWantWriteError:
                if not (yield select.POLLOUT):
                    raise Trouble("deadline") from None
                continue
            except (BlockingIOError, ssl.SSLWantReadError):
                if not plain and not (yield select.POLLIN):
                    raise Trouble("deadline") from None
                continue
            except OSError:
                data = b""
            if not data:
                self.broken = True
                raise Trouble("connection_lost")
            self._input += data
            return

    def _take(self) -> bool:
        """Read without waiting; whether at least one whole line of a reply has come."""
        try:
            data = self._connected().recv(1 << 16)
        except _WOULD_BLOCK:
            return False
        except OSError:
            data = b""
        if not data:
            self.broken = True
            raise Trouble("connection_lost")
        self._input += data
        return b"\n" in self._input

    def _give_up(self, *, early: bool) -> None:
        """The server takes no more: with a refusal it sent before, or without a word."""
        self.broken = True
        if early and self._take():
            raise EarlyReply
        raise Trouble("connection_lost")


def _base64(text: str) -> str:
    return b64encode(text.encode()).decode()


def _challenge_answer(text: bytes, password: str) -> str:
    import hmac

    try:
        return hmac.new(password.encode(), b64decode(text), "md5").hexdigest()
    except ValueError:
        raise Trouble("protocol_error") from None
