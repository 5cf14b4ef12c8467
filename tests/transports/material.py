"""What the tests of the transports send, and through what."""

from __future__ import annotations

import select
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread
from typing import Any

from notifyctl.clock import Deadline
from notifyctl.model import Mail, Mailbox, Outcome, Request, Sms
from notifyctl.settings import TransportSettings
from notifyctl.transports.base import Transport
from notifyctl.transports.registry import open_transport

DATE = datetime(2027, 3, 1, 12, 0, tzinfo=UTC)
BIG = 8 << 20  # bytes: more than the buffers of a loopback connection take


def settings(kind: str, base: Path, **options: Any) -> TransportSettings:
    return TransportSettings("relay", kind, options, base, 60.0, 10.0, 30.0, None, "shop@example.com", None)


def relay(at: int, base: Path = Path("/"), **options: Any) -> Transport:
    return open_transport(settings("smtp", base, **{"host": "127.0.0.1", "port": at, **options}))


def raw(number: int = 1, body: bytes = b"Hello\r\n") -> bytes:
    return b"Message-ID: <%d@example.com>\r\nSubject: test\r\n\r\n" % number + body


def mail(number: int = 1, to: str = "", *, data: bytes | None = None, **more: Any) -> Mail:
    return Mail(
        key=f"key-{number}",
        sender=Mailbox("shop@example.com", "Shop"),
        recipient=Mailbox(to or f"r{number}@example.org"),
        subject="test",
        text="",
        html="",
        message_id=f"<{number}@example.com>",
        date=DATE,
        raw=raw(number) if data is None else data,
        **more,
    )


def sms(number: int = 1, to: str = "+447700900123") -> Sms:
    return Sms(f"key-{number}", "Shop", to, "Grüße €", "gsm7", 1, DATE)


def submit(transport: Transport, message: Mail | Sms | Request, seconds: float = 5.0) -> Outcome:
    request = message if isinstance(message, Request) else transport.prepare(message)
    (outcome,) = transport.submit([request], Deadline.after(seconds), None)
    return outcome


def converse(transport: Transport, message: Mail, seconds: float = 5.0) -> Outcome | None:
    """`submit`, step by step on an idle session; None: it was gone before anything had reached anybody."""
    deadline = Deadline.after(seconds)
    conversation = transport.converse([transport.prepare(message)], deadline)
    assert conversation is not None, "no session is idle"
    poll = select.poll()
    try:
        events = next(conversation.steps)
        while True:
            poll.register(conversation.fd, events)
            happened = poll.poll(max(0.0, deadline.remaining()) * 1000)
            events = conversation.steps.send(happened[0][1] if happened else 0)
    except StopIteration as end:
        outcomes: list[Outcome] | None = end.value
    return outcomes[0] if outcomes else None


def together(count: int, work: Callable[[int], Any]) -> list[Any]:
    """`work(0)` … `work(count - 1)`, each in a thread of its own; their results in order."""
    results: list[Any] = [None] * count

    def run(number: int) -> None:
        results[number] = work(number)

    threads = [Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
