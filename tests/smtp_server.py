"""A scriptable SMTP server on loopback that remembers everything: the real other end for tests and benchmarks.

In a test:

    with SmtpServer(Rule("rcpt", reply="550 5.1.1 no such user", when=lambda it: "bad" in it.recipient)) as server:
        ...submit to server.port...
        server.wait_for(3); server.messages[0].raw

As a process: `python tests/smtp_server.py --log accepted.ndjson --delay 0.05` prints its port on the first line and
writes one JSON line per accepted message *before* it answers, so that what a killed client knows can be compared
with what was accepted. One thread per connection; pipelined commands are answered together.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import socket
import ssl
import stat
import struct
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatch

EXTENSIONS = ("PIPELINING", "SIZE 10485760", "8BITMIME", "SMTPUTF8", "ENHANCEDSTATUSCODES")
_REPLIES = {
    "banner": "220 sink ESMTP",
    "helo": "250 sink",
    "starttls": "220 2.0.0 go ahead",
    "auth": "235 2.7.0 welcome",
    "mail": "250 2.1.0 ok",
    "rcpt": "250 2.1.5 ok",
    "data": "354 go ahead",
    "dot": "250 2.0.0 queued",
    "rset": "250 2.0.0 ok",
    "quit": "221 2.0.0 bye",
}
_LINE = re.compile(rb"(?i)^(MAIL FROM|RCPT TO):<([^\r\n]*?)>(?: ([^\r\n]*))?$")
_MESSAGE_ID = re.compile(rb"(?im)^Message-ID:[ \t]*(\S+)")


@dataclass
class Rule:
    """What happens at `phase` instead of the usual.

    Phases: connect banner ehlo helo starttls auth mail rcpt data body dot rset quit (`body`: some of the message has
    come). Order: wait `delay` seconds, or (`hang`) until `SmtpServer.release()`; send `reply` (bytes as they are, a
    str with CRLF added; None: the usual one, but nothing where the connection ends or `silent`), one byte per `drip`
    seconds if given; then `stall` (read no more until released), `close` or `reset` the connection. `when` sees the
    connection; the first `after` matches are let through, then `times` of them (None: all). `accept`: whether a
    message at `dot` counts as accepted; by default it does unless a 4yz or 5yz reply is given.
    """

    phase: str
    reply: str | bytes | None = None
    delay: float = 0.0
    close: bool = False
    reset: bool = False
    hang: bool = False
    silent: bool = False
    stall: bool = False
    drip: float = 0.0
    when: Callable[[Connection], bool] | None = None
    after: int = 0
    times: int | None = None
    accept: bool | None = None


@dataclass(frozen=True)
class Received:
    """One accepted message; `raw` as it came, dot-stuffing undone."""

    at: float
    connection: int
    mail_from: str
    recipients: tuple[str, ...]
    message_id: str
    sha256: str
    raw: bytes = field(repr=False)
    wire: bytes = field(repr=False)  # as it came, terminating dot included
    peer: str = ""
    login: str = ""
    tls: bool = False

    @property
    def recipient(self) -> str:
        """The only recipient."""
        (one,) = self.recipients
        return one


class _End(Exception):
    """The connection is over."""


class SmtpServer:
    """Listens while used as a context manager. `users`: login names to passwords; `tls`: `implicit`, or a server-side
    SSLContext given as `context` with STARTTLS advertised. `log`: a file for JSON lines."""

    def __init__(
        self,
        *rules: Rule,
        extensions: Sequence[str] = EXTENSIONS,
        context: ssl.SSLContext | None = None,
        implicit: bool = False,
        users: dict[str, str] | None = None,
        auth: str = "PLAIN LOGIN",
        port: int = 0,
        log: str = "",
        keep: bool = True,
    ) -> None:
        self.rules = list(rules)
        self.extensions = tuple(extensions)
        self.context = context
        self.implicit = implicit
        self.users = users
        self.auth = auth
        self.messages: list[Received] = []
        self.accepted = 0
        self.connections: list[Connection] = []
        self.logins = 0
        self.login_attempts = 0
        self.released = threading.Event()
        self._changed = threading.Condition()
        self._seen: dict[int, int] = {}
        self._keep = keep
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644) if log else -1
        self._socket = socket.create_server(("127.0.0.1", port), backlog=256)
        self.port: int = self._socket.getsockname()[1]
        self._closing = False

    def __enter__(self) -> SmtpServer:
        threading.Thread(target=self._accept, name="smtp-server", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = True
        self.released.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for connection in list(self.connections):
            connection.end()
        for connection in list(self.connections):
            connection.thread.join(5)

    @property
    def commands(self) -> list[str]:
        """All commands of all connections, in order of connections."""
        return [command for connection in self.connections for command in connection.commands]

    def rule(self, phase: str, **how: object) -> Rule:
        """Add a rule while running."""
        rule = Rule(phase, **how)  # type: ignore[arg-type]
        self.rules.append(rule)
        return rule

    def release(self) -> None:
        """Let everything that hangs go on."""
        self.released.set()

    def wait_for(self, messages: int, timeout: float = 10.0) -> list[Received]:
        """The accepted messages, once there are `messages` of them."""
        self.wait(lambda: self.accepted >= messages, timeout)
        return list(self.messages)

    def wait_until(self, phase: str, count: int = 1, timeout: float = 10.0) -> None:
        """Wait until `phase` was reached `count` times over all connections."""
        self.wait(lambda: sum(one.phases.count(phase) for one in list(self.connections)) >= count, timeout)

    def wait(self, condition: Callable[[], bool], timeout: float = 10.0) -> None:
        """Wait until `condition` holds; it is looked at every now and then."""
        until = time.monotonic() + timeout
        with self._changed:
            while not condition():
                if time.monotonic() > until:
                    raise TimeoutError("the server did not see what was waited for")
                self._changed.wait(0.01)  # not everything is announced

    def _accept(self) -> None:
        while not self._closing:
            try:
                sock, peer = self._socket.accept()
            except OSError:
                return
            connection = Connection(self, sock, f"{peer[0]}:{peer[1]}", len(self.connections) + 1)
            self.connections.append(connection)
            connection.thread.start()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _match(self, connection: Connection, phase: str) -> Rule | None:
        if not self.rules:
            return None
        with self._changed:
            for rule in self.rules:
                if rule.phase == phase and (rule.when is None or rule.when(connection)):
                    seen = self._seen[id(rule)] = self._seen.get(id(rule), 0) + 1
                    if seen > rule.after and (rule.times is None or seen <= rule.after + rule.times):
                        return rule
        return None

    def _take(self, message: Received) -> None:
        if self._log >= 0:
            line = {name: getattr(message, name) for name in ("at", "connection", "mail_from", "message_id", "sha256")}
            line |= {"recipients": list(message.recipients), "peer": message.peer}
            os.write(self._log, json.dumps(line).encode() + b"\n")
        with self._changed:
            self.accepted += 1
            if self._keep:
                self.messages.append(message)
            self._changed.notify_all()


class Connection:
    """One client's connection: what it said (`commands`), which phases it reached, and its state for rules."""

    def __init__(self, server: SmtpServer, sock: socket.socket, peer: str, number: int) -> None:
        self.server = server
        self.sock = sock
        self.peer = peer
        self.number = number
        self.commands: list[str] = []
        self.phases: list[str] = []
        self.answered: list[str] = []  # phases whose scripted answer has been sent
        self.reads: list[bytes] = []  # as the segments came
        self.mail_from: str | None = None
        self.parameters = ""
        self.recipients: list[str] = []
        self.recipient = ""  # the one in question
        self.login = ""
        self.messages = 0
        self.body = b""
        self.tls = False
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._run, name=f"smtp-{number}", daemon=True)
        self._input = b""
        self._output: list[bytes] = []

    def end(self) -> None:
        """Close from outside."""
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        try:
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._act("connect", None)
            if self.server.implicit:
                self._secure()
            self._act("banner", _REPLIES["banner"])
            while True:
                self._command(self._line())
        except (_End, OSError):
            pass
        finally:
            self.sock.close()
            self.ended.set()
            self.server._notify()

    # -- protocol --

    def _command(self, line: bytes) -> None:
        self.commands.append(line.decode("utf-8", "replace"))
        verb = line[:4].upper()
        if verb in (b"MAIL", b"RCPT"):
            match = _LINE.match(line)
            if match is None:
                return self._say("501 5.5.4 syntax")
            return self._mail(match) if verb == b"MAIL" else self._rcpt(match)
        handler = {b"EHLO": self._ehlo, b"DATA": self._data, b"AUTH": self._auth, b"STAR": self._starttls}.get(verb)
        if handler is not None:
            return handler(line)
        if verb == b"RSET":
            self._clear()
            return self._plain("rset")
        if verb == b"HELO":
            return self._plain("helo")
        if verb == b"QUIT":
            self._plain("quit")
            self._flush()
            raise _End
        return self._say("500 5.5.1 unknown command")

    def _plain(self, phase: str) -> None:
        self._act(phase, _REPLIES[phase])

    def _ehlo(self, _: bytes) -> None:
        lines = ["sink", *self.server.extensions]
        if self.server.context is not None and not self.tls:
            lines.append("STARTTLS")
        if self.server.users is not None and self.server.auth:
            lines.append(f"AUTH {self.server.auth}")
        self._clear()
        self._act("ehlo", "\r\n".join(f"250{' ' if one is lines[-1] else '-'}{one}" for one in lines))

    def _starttls(self, _: bytes) -> None:
        if str(self._act("starttls", _REPLIES["starttls"]))[:1] == "2":
            self._flush()
            self._secure()

    def _secure(self) -> None:
        assert self.server.context is not None
        self.sock = self.server.context.wrap_socket(self.sock, server_side=True)
        self.tls = True

    def _auth(self, line: bytes) -> None:
        server = self.server
        with server._changed:
            server.login_attempts += 1
        words = line.split()
        if words[1].upper() == b"PLAIN":
            _, name, password = b64decode(words[2]).decode().split("\0")
        else:
            answers = []
            for prompt in ("334 VXNlcm5hbWU6", "334 UGFzc3dvcmQ6"):
                self._say(prompt)
                answers.append(b64decode(self._line()).decode())
            name, password = answers
        right = (server.users or {}).get(name) == password
        reply = self._act("auth", _REPLIES["auth"] if right else "535 5.7.8 authentication failed")
        if str(reply)[:1] == "2":
            self.login = name
            with server._changed:
                server.logins += 1

    def _mail(self, match: re.Match[bytes]) -> None:
        self.mail_from = match[2].decode()
        self.parameters = (match[3] or b"").decode()
        if str(self._act("mail", _REPLIES["mail"]))[:1] != "2":
            self.mail_from = None

    def _rcpt(self, match: re.Match[bytes]) -> None:
        self.recipient = match[2].decode()
        usual = _REPLIES["rcpt"] if self.mail_from is not None else "503 5.5.1 MAIL first"
        if str(self._act("rcpt", usual))[:1] == "2":
            self.recipients.append(self.recipient)

    def _data(self, _: bytes) -> None:
        usual = _REPLIES["data"] if self.recipients else "503 5.5.1 RCPT first"
        if str(self._act("data", usual))[:1] != "3":
            return None
        self._flush()
        body = bytearray()
        marked = False
        while True:
            start = max(0, len(body) - 4)
            body += self._input
            self._input = b""
            if not marked and body:
                marked = True
                self.body = bytes(body)
                self._act("body", None)
            end = 0 if body.startswith(b".\r\n") else body.find(b"\r\n.\r\n", start)
            if end >= 0:
                skip = 3 if body.startswith(b".\r\n") else end + 5
                self._input = bytes(body[skip:])
                return self._dot(bytes(body[:skip]))
            self._read()

    def _dot(self, wire: bytes) -> None:
        raw = wire[:-3].replace(b"\r\n..", b"\r\n.")
        raw = raw[1:] if raw.startswith(b"..") else raw
        found = _MESSAGE_ID.search(raw)
        self.body = raw

        def accept() -> None:
            self.messages += 1
            digest = hashlib.sha256(raw).hexdigest()
            message_id = found[1].decode() if found else ""
            sender = self.mail_from or ""
            message = Received(
                time.time(),
                self.number,
                sender,
                tuple(self.recipients),
                message_id,
                digest,
                raw,
                wire,
                self.peer,
                self.login,
                self.tls,
            )
            self.server._take(message)

        usual = _REPLIES["dot"] if self.recipients else "554 5.5.1 no valid recipients"
        self._act("dot", usual, accept if self.recipients else None)
        self._clear()

    def _clear(self) -> None:
        self.mail_from, self.recipients, self.parameters = None, [], ""

    # -- scripted behaviour --

    def _act(self, phase: str, usual: str | None, accept: Callable[[], None] | None = None) -> str | bytes | None:
        """Do what the script says at `phase`; returns what was answered."""
        self.phases.append(phase)
        rule = self.server._match(self, phase)
        reply: str | bytes | None = usual
        if rule is not None:
            reply = rule.reply if rule.reply is not None or rule.silent or rule.close or rule.reset else usual
            refused = reply is not None and reply[:1] in ("4", "5", b"4", b"5")
            if accept is not None and (rule.accept if rule.accept is not None else not refused):
                accept()
        elif accept is not None:
            accept()
        if rule is None:
            if reply is not None:
                self._say(reply)
            if phase == "banner":
                self._flush()
            return reply
        self._flush()
        self.server._notify()
        if rule.delay:
            self.server.released.wait(rule.delay)
        if rule.hang:
            self.server.released.wait()
        if reply is not None:
            data = reply if isinstance(reply, bytes) else reply.encode() + b"\r\n"
            if rule.drip:
                self._drip(data, rule.drip)
            else:
                self.sock.sendall(data)
            self.answered.append(phase)
        if rule.stall:
            self.server.released.wait()
        if rule.reset:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.sock.close()
        if rule.reset or rule.close:
            raise _End
        return reply if isinstance(reply, str | None) else reply.decode("latin-1")

    def _drip(self, data: bytes, pause: float) -> None:
        for at in range(len(data)):
            self.sock.sendall(data[at : at + 1])
            self.server.released.wait(pause)

    # -- bytes --

    def _say(self, reply: str) -> None:
        self._output.append(reply.encode() + b"\r\n")

    def _flush(self) -> None:
        if self._output:
            data, self._output = b"".join(self._output), []
            self.sock.sendall(data)

    def _read(self) -> None:
        self._flush()
        data = self.sock.recv(1 << 16)
        if not data:
            raise _End
        if self.server._keep:
            self.reads.append(data)
        self._input += data

    def _line(self) -> bytes:
        while (end := self._input.find(b"\n")) < 0:
            self._read()
        line, self._input = self._input[:end], self._input[end + 1 :]
        return line.rstrip(b"\r")


def main() -> None:
    """Run until stdin closes or the process is told to end."""
    parser = argparse.ArgumentParser(description="A scriptable SMTP server on loopback.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--log", default="", help="one JSON line per accepted message, before it is answered")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds before the answer to the final dot")
    parser.add_argument("--answer", action="append", default=[], metavar="PHASE=REPLY", help='"mail=421 4.3.2 closing"')
    parser.add_argument(
        "--reject", action="append", default=[], metavar="PATTERN=REPLY", help='"*@bad.example=550 5.1.1"'
    )
    parser.add_argument("--per-connection", type=int, default=0, help="answer 421 to MAIL after so many messages")
    parser.add_argument("--user", default="", metavar="NAME:PASSWORD")
    options = parser.parse_args()
    rules = [Rule(phase, reply=reply) for phase, _, reply in (one.partition("=") for one in options.answer)]
    for one in options.reject:
        pattern, _, reply = one.partition("=")
        rules.append(Rule("rcpt", reply=reply, when=lambda it, pattern=pattern: fnmatch(it.recipient, pattern)))  # type: ignore[misc]
    if options.delay:
        rules.append(Rule("dot", delay=options.delay))
    if options.per_connection:
        full = options.per_connection
        rules.append(Rule("mail", reply="421 4.7.0 enough", close=True, when=lambda it: it.messages >= full))
    users = dict([options.user.split(":", 1)]) if options.user else None
    with SmtpServer(*rules, port=options.port, log=options.log, users=users, keep=False) as server:
        print(server.port, flush=True)
        with suppress(KeyboardInterrupt):
            _until_closed()


def _until_closed() -> None:
    """A parent that dies closes our stdin; one that gave none (/dev/null) ends us by a signal."""
    if stat.S_ISCHR(os.fstat(0).st_mode):
        threading.Event().wait()
    while os.read(0, 4096):
        pass


if __name__ == "__main__":
    main()
