"""Providers played on real sockets: one small server with a memory for each, and what can go wrong with any of them.

Every reply imitates a page or a specification file of its provider, which is named beside it. What a test asks of a
server is appended to `script`: each entry answers one submission, and once it is empty the provider behaves.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from ssl import SSLContext
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

KEY = "c4nary-s3cret"  # of every provider's account; also a canary: it must never be printed


@dataclass(frozen=True)
class Asked:
    """One request as it came."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    port: int  # of the client's end: tells connections apart

    @property
    def document(self) -> Any:
        """Its JSON."""
        return json.loads(self.body)

    @property
    def form(self) -> dict[str, str]:
        """Its form."""
        return {name: values[0] for name, values in parse_qs(self.body.decode(), strict_parsing=True).items()}


@dataclass(frozen=True)
class Answer:
    """What comes back: `document` as JSON, or `body` as it stands. `fault` says how it fails on the way:

    close: it comes whole, and the connection ends without a word · hang: nothing comes · reset: the connection ends
    without a byte · half: it ends within the answer · drip: one byte at a time, for ever · huge: it never ends ·
    nonsense: something that is no HTTP. `after`: the provider had accepted before it failed.
    """

    status: int = 200
    document: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    fault: str = ""
    after: bool = False


Script = Answer | Callable[[Asked], Answer]


class Provider:
    """A provider with a memory. Subclasses say what it accepts and what it then tells."""

    kind = ""
    options: ClassVar[dict[str, Any]] = {}  # what configures a transport to use it, besides `base_url`

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.script: deque[Script] = deque()
        self.lock = threading.Lock()

    @property
    def submissions(self) -> list[Asked]:
        """The requests that wanted something sent."""
        return [one for one in self.asked if self.submits(one)]

    def submits(self, asked: Asked) -> bool:
        """Whether a request wants something sent."""
        raise NotImplementedError

    def allowed(self, asked: Asked) -> bool:
        """Whether it came with this account's key."""
        raise NotImplementedError

    def denial(self) -> Answer:
        """The answer to a wrong key."""
        raise NotImplementedError

    def accept(self, asked: Asked) -> Answer:
        """Take a submission."""
        raise NotImplementedError

    def tell(self, asked: Asked) -> Answer:
        """Answer a look-up."""
        raise NotImplementedError

    def answer(self, asked: Asked) -> Answer:
        """Everything that comes in."""
        with self.lock:
            self.asked.append(asked)
            if not self.allowed(asked):
                return self.denial()
            if not self.submits(asked):
                return self.tell(asked)
            if not self.script:
                return self.accept(asked)
            scripted = self.script.popleft()
            scripted = scripted(asked) if callable(scripted) else scripted
            if scripted.after:
                self.accept(asked)
            return scripted


class Server:
    """A provider listening on loopback."""

    def __init__(self, provider: Provider, context: SSLContext | None = None) -> None:
        self.provider = provider
        self.ended = threading.Event()
        self.connections = 0
        self.closed = threading.Semaphore(0)  # released as each connection has ended
        server, counted = self, threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def setup(self) -> None:
                with counted:
                    server.connections += 1
                super().setup()

            def finish(self) -> None:
                super().finish()
                self.connection.close()
                server.closed.release()

            def log_message(self, *_: object) -> None:
                pass

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except OSError:
                    self.close_connection = True

            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                query = {name: values[0] for name, values in parse_qs(parts.query).items()}
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                asked = Asked(self.command, parts.path, query, headers, body, self.client_address[1])
                self._say(server.provider.answer(asked))

            do_POST = do_GET

            def _say(self, answer: Answer) -> None:
                body = answer.body
                if body is None:
                    body = b"" if answer.document is None else json.dumps(answer.document).encode()
                headers = {"Content-Type": "application/json", **answer.headers, "Content-Length": str(len(body))}
                lines = [f"HTTP/1.1 {answer.status} Said", *(f"{name}: {value}" for name, value in headers.items())]
                whole = "\r\n".join((*lines, "", "")).encode() + body
                if answer.fault:
                    self.close_connection = True
                    self._fail(answer.fault, whole)
                else:
                    self.wfile.write(whole)

            def _fail(self, fault: str, whole: bytes) -> None:
                if fault == "hang":
                    server.ended.wait(60)
                elif fault == "close":
                    self.wfile.write(whole)
                elif fault == "half":
                    self.wfile.write(whole[: len(whole) - 5])
                elif fault == "nonsense":
                    self.wfile.write(b"220 mail.example ESMTP\r\n\r\n")
                elif fault == "huge":
                    self.wfile.write(whole.replace(b"Content-Length: ", b"X: "))
                    while not server.ended.is_set():
                        self.wfile.write(b"x" * 65536)
                elif fault == "drip":
                    for at in range(len(whole) * 100):
                        if server.ended.wait(0.02):
                            return
                        self.wfile.write(whole[at : at + 1] or b" ")

        class Listener(ThreadingHTTPServer):
            daemon_threads = True

            def get_request(self) -> Any:
                sock, address = super().get_request()
                if context is not None:
                    sock = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
                return sock, address

            def handle_error(self, *_: object) -> None:
                pass

        self._listener = Listener(("127.0.0.1", 0), Handler)
        self.port = self._listener.server_address[1]
        self.url = f"{'https' if context else 'http'}://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._listener.serve_forever, kwargs={"poll_interval": 0.02})

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self._listener.shutdown()
        self._listener.server_close()
        self._thread.join()

    def options(self, **more: Any) -> dict[str, Any]:
        """What configures a transport of this kind to come here."""
        return {**self.provider.options, "base_url": self.url, **more}


SPECS = Path(__file__).parents[3] / "../shared/specs"
