"""SMTP against a server that is not ours: aiosmtpd, with its own reading of the protocol."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from notifyctl.model import OutcomeKind
from tests.transports.material import mail, raw, relay, submit, together

controller = pytest.importorskip("aiosmtpd.controller")


class Keeper:
    """Takes everything but one recipient."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, list[str], bytes]] = []

    async def handle_RCPT(self, server: Any, session: Any, envelope: Any, address: str, options: Any) -> str:
        if address.startswith("bad"):
            return "550 5.1.1 no such user"
        envelope.rcpt_tos.append(address)
        return "250 2.1.5 ok"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        self.taken.append((envelope.mail_from, envelope.rcpt_tos, envelope.original_content))
        return "250 2.0.0 ok"


def test_another_server_gets_the_same_bytes_over_kept_sessions() -> None:
    keeper = Keeper()
    with socket.create_server(("127.0.0.1", 0)) as free:  # the controller connects to itself, so it needs a number
        port = free.getsockname()[1]
    running = controller.Controller(keeper, hostname="127.0.0.1", port=port, enable_SMTPUTF8=True)
    running.start()
    try:
        transport = relay(port)
        bodies = [raw(n, b".\r\n..\r\n" + b"line\r\n" * n) for n in range(40)]
        assert submit(transport, mail(to="bad@example.org")).reason == "invalid_recipient"
        kinds = together(
            4, lambda n: [submit(transport, mail(i, data=bodies[i])).kind for i in range(n * 10, n * 10 + 10)]
        )
        assert kinds == [[OutcomeKind.ACCEPTED] * 10] * 4
        assert submit(transport, mail(to="grüße@example.org")).kind is OutcomeKind.ACCEPTED
        transport.close()
    finally:
        running.stop()
    assert sorted(one[2] for one in keeper.taken[:40]) == sorted(bodies)
    assert keeper.taken[40][:2] == ("shop@example.com", ["grüße@example.org"])
