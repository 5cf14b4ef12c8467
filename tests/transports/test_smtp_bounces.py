"""How mails go out whose bounces are collected: with a signed return path, and with DSN where it is offered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from notifyctl.keys import Keys
from notifyctl.model import OutcomeKind
from notifyctl.transports.base import Transport
from notifyctl.transports.registry import open_transport
from notifyctl.transports.verp import return_path, signed
from tests.smtp_server import EXTENSIONS, SmtpServer
from tests.transports.material import mail, settings, submit

KEYS = Keys("11" * 32)
DSN = (*EXTENSIONS, "DSN")
PATH = return_path("key-1", KEYS.return_path, "bounces", "bounce.example")


def collecting(port: int, **bounces: Any) -> Transport:
    table = {"maildir": "box", "return_path_domain": "bounce.example", **bounces}
    return open_transport(settings("smtp", Path("/"), host="127.0.0.1", port=port, bounces=table), KEYS.return_path)


def test_the_envelope_sender_is_the_return_path_and_the_mail_is_the_same() -> None:
    with SmtpServer() as server:
        outcome = submit(collecting(server.port), mail())
        assert (outcome.kind, outcome.remote_ids) == (OutcomeKind.ACCEPTED, ("<1@example.com>",))
        assert server.messages[0].mail_from == PATH
        assert server.messages[0].raw == mail().raw
        assert not any("ENVID" in one or "NOTIFY" in one for one in server.commands)  # not offered


@pytest.mark.parametrize("extensions", [DSN, ("SIZE 1000000", "DSN")])
def test_where_dsn_is_offered_the_envelope_id_goes_along(extensions: tuple[str, ...]) -> None:
    with SmtpServer(extensions=extensions) as server:
        assert submit(collecting(server.port), mail()).kind is OutcomeKind.ACCEPTED
        (sender,) = (one for one in server.commands if one.startswith("MAIL"))
        (recipient,) = (one for one in server.commands if one.startswith("RCPT"))
        assert sender.endswith(f" RET=HDRS ENVID={signed('key-1', KEYS.return_path)}")
        assert recipient == "RCPT TO:<r1@example.org> NOTIFY=FAILURE,DELAY"


def test_with_pipelining_it_still_is_one_write() -> None:
    with SmtpServer(extensions=DSN) as server:
        submit(collecting(server.port), mail())
        assert sum(read.count(b"\r\n") == 3 and read.startswith(b"MAIL") for read in server.connections[0].reads) == 1


def test_a_relay_that_collects_no_bounces_asks_for_none() -> None:
    with SmtpServer(extensions=DSN) as server:
        submit(open_transport(settings("smtp", Path("/"), host="127.0.0.1", port=server.port)), mail())
        assert server.messages[0].mail_from == "shop@example.com"
        assert not any("ENVID" in one or "NOTIFY" in one for one in server.commands)


def test_without_a_domain_the_sender_stays_and_the_envelope_id_is_enough() -> None:
    with SmtpServer(extensions=DSN) as server:
        submit(collecting(server.port, return_path_domain=""), mail())
        assert server.messages[0].mail_from == "shop@example.com"
        assert any("ENVID=" in one for one in server.commands)


def test_the_user_of_the_return_path_can_be_chosen() -> None:
    request = collecting(1, return_path_user="returns").prepare(mail())
    assert request.envelope[0] == PATH.replace("bounces+", "returns+")


def test_the_same_mail_prepares_the_same_request_in_every_process() -> None:
    assert collecting(1).prepare(mail()) == collecting(2).prepare(mail())
    assert Keys("11" * 32).request(collecting(1).prepare(mail())) == KEYS.request(collecting(2).prepare(mail()))


def test_a_mail_to_a_non_ascii_address_keeps_its_form() -> None:
    request = collecting(1).prepare(mail(to="jörg@example.org"))
    assert (request.envelope[0], request.envelope[3]) == (PATH, "utf8")


def test_without_the_ledgers_keys_nothing_is_sent_unsigned() -> None:
    table = {"maildir": "box", "return_path_domain": "bounce.example"}
    with pytest.raises(RuntimeError):
        open_transport(settings("smtp", Path("/"), host="127.0.0.1", bounces=table)).prepare(mail())
