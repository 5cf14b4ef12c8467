"""CPU of one SMS over HTTP against a bare `httpx.Client` post of the same body. By hand: it asserts nothing.

    python -m tests.bench.http_post [ROUNDS]

The server is a process of its own on loopback. Each round measures 500 exchanges of either kind, interleaved; printed
are the medians of this process' CPU time. Goal (P14): at most 1.3.
"""

from __future__ import annotations

import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from notifyctl.clock import Deadline
from notifyctl.transports.registry import open_transport
from tests.transports.material import settings, sms

EXCHANGES = 500
ANSWER = b'HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: 16\r\n\r\n{"sid":"SM1234"}'


def serve() -> None:
    """Answer whatever comes, on one connection after the other; print the port first."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        connections = []
        while True:
            connection, _ = listener.accept()
            connections.append(connection)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=answer, args=(connection,), daemon=True).start()


def answer(connection: socket.socket) -> None:
    """One connection: requests whose head names a length."""
    data = b""
    while True:
        while b"\r\n\r\n" not in data:
            more = connection.recv(1 << 16)
            if not more:
                return
            data += more
        head, _, data = data.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        while len(data) < length:
            data += connection.recv(1 << 16)
        data = data[length:]
        connection.sendall(ANSWER)


def spent(work: Callable[[], object]) -> float:
    """Microseconds of this process' CPU for one exchange."""
    began = time.process_time()
    for _ in range(EXCHANGES):
        work()
    return (time.process_time() - began) / EXCHANGES * 1e6


def main(rounds: int) -> None:
    """Measure and print."""
    command = [sys.executable, "-m", "tests.bench.http_post", "serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{server.stdout.readline().strip()}"
        transport = open_transport(settings("twilio", Path("/"), account_sid="AC1", auth_token="x", base_url=url))
        request = transport.prepare(sms())
        client = httpx.Client(auth=("AC1", "x"), headers={"Content-Type": "application/x-www-form-urlencoded"})

        def ours() -> None:
            (outcome,) = transport.submit([request], Deadline.after(10.0), None)
            assert outcome.remote_ids

        def bare() -> None:
            assert client.post(f"{url}/2010-04-01/Accounts/AC1/Messages.json", content=request.body).json()

        ours()
        bare()
        pairs = [(spent(ours), spent(bare)) for _ in range(rounds)]
        server.kill()
    mine, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(one / other for one, other in pairs)
    print(f"{mine:.0f} µs, bare httpx {theirs:.0f} µs: {ratio:.2f} (goal: at most 1.3)")


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve()
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 9)
