"""A TCP proxy in front of Postgres that cuts a connection at a chosen statement: the request or the reply is lost.

    with Proxy(port, Cut("COMMIT", reply=True)) as proxy:
        ... postgresql://…@127.0.0.1:{proxy.port}/…
        assert proxy.cuts == 1

It understands just enough of the protocol to know where a client's message begins and whether it carries SQL ("Q" and
"P", Postgres 53.7). With `reply` the server is given the statement and does it, its answer is swallowed: half open, the
client's side is then reset. Without, the server never sees it.
"""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass, field


@dataclass
class Cut:
    """Where to cut: at the `nth` statement that holds `text`, over all connections, then `times` - 1 more."""

    text: str = ""
    nth: int = 1
    reply: bool = False
    times: int = 1
    seen: int = field(default=0, init=False)

    def due(self, sql: str) -> bool:
        """Whether this statement is one."""
        if self.text not in sql:
            return False
        self.seen += 1
        return self.nth <= self.seen < self.nth + self.times


class Proxy:
    """Listens on loopback while used as a context manager; `statements` are all it has seen, `cuts` those it cut."""

    def __init__(self, upstream: int, *cuts: Cut, host: str = "127.0.0.1") -> None:
        self.upstream = upstream
        self.rules = cuts
        self.statements: list[str] = []
        self.cuts = 0
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._socket = socket.create_server((host, 0))
        self.port: int = self._socket.getsockname()[1]

    def url(self, url: str) -> str:
        """The same database, seen through this proxy."""
        return url.replace(f":{self.upstream}/", f":{self.port}/")

    def __enter__(self) -> Proxy:
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for one in list(self._sockets):
            _end(one)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.upstream))
            except OSError:
                _reset(client)
                continue
            self._sockets += [client, server]
            link = _Link(self, client, server)
            for work in (link.up, link.down):
                threading.Thread(target=work, daemon=True).start()

    def _judge(self, sql: str) -> Cut | None:
        with self._lock:
            self.statements.append(sql)
            rule = next((one for one in self.rules if one.due(sql)), None)
            self.cuts += rule is not None
            return rule


class _Link:
    """One client's connection through the proxy."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self.proxy = proxy
        self.client = client
        self.server = server
        self.swallowing = False

    def up(self) -> None:
        """From the client to the server, message by message."""
        data = b""
        try:
            while chunk := self.client.recv(1 << 16):
                data += chunk
                while (size := _size(data)) is not None:
                    message, data = data[:size], data[size:]
                    sql = _sql(message)
                    rule = self.proxy._judge(sql) if sql is not None else None
                    if rule is not None and not rule.reply:
                        return
                    self.swallowing |= rule is not None
                    self.server.sendall(message)
        except OSError:
            pass
        finally:
            if not self.swallowing:  # else the other direction ends it, once the server has answered
                self.close()

    def down(self) -> None:
        """From the server to the client; an answer that is to be lost ends the connection."""
        with suppress(OSError):
            while chunk := self.server.recv(1 << 16):
                if self.swallowing:
                    if chunk[-6:-1] == b"Z\0\0\0\x05":  # ReadyForQuery: it has been done
                        break
                    continue
                self.client.sendall(chunk)
        self.close()

    def close(self) -> None:
        """Both sides, without a goodbye."""
        _reset(self.client)
        _end(self.server)


def _size(data: bytes) -> int | None:
    """The length of the first whole message; a start-up message has no type before its length."""
    head = 0 if data[:1] == b"\0" else 1
    if len(data) < head + 4:
        return None
    size: int = head + struct.unpack_from("!I", data, head)[0]
    return size if len(data) >= size else None


def _sql(message: bytes) -> str | None:
    if message[:1] == b"Q":
        return message[5:-1].decode()
    if message[:1] == b"P":
        return message[5:].split(b"\0", 2)[1].decode()
    return None


def _reset(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    _end(sock)


def _end(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
