"""TLS: what is demanded of the server, and that nothing ever falls back to plain text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from notifyctl.model import OutcomeKind, Scope
from tests.certificates import certificate
from tests.smtp_server import Rule, SmtpServer
from tests.transports.material import BIG, mail, raw, relay, submit, together

UNAVAILABLE = OutcomeKind.UNAVAILABLE
LOGIN = {"username": "user", "password": "secret"}


@pytest.mark.parametrize("mode", ["starttls", "implicit"])
def test_a_mail_goes_through_tls_with_its_login_inside(mode: str, tmp_path: Path) -> None:
    trusted, context = certificate(tmp_path, "127.0.0.1")
    with SmtpServer(context=context, implicit=mode == "implicit", users={"user": "secret"}) as server:
        transport = relay(server.port, tls=mode, ca_file=str(trusted), **LOGIN)
        assert [submit(transport, mail(n)).kind for n in range(3)] == [OutcomeKind.ACCEPTED] * 3
        assert [one.tls for one in server.messages] == [True] * 3
        if mode == "starttls":
            assert [one.split()[0].upper() for one in server.commands[:3]] == ["EHLO", "STARTTLS", "EHLO"]
        transport.close()


def test_a_large_mail_and_ten_workers_go_through_tls(tmp_path: Path) -> None:
    trusted, context = certificate(tmp_path, "127.0.0.1")
    data = raw(body=(b"." * 70 + b"\r\n") * (BIG // 80))
    with SmtpServer(context=context) as server:
        transport = relay(server.port, tls="starttls", ca_file=str(trusted))
        assert submit(transport, mail(data=data), 30).kind is OutcomeKind.ACCEPTED
        assert server.messages[0].raw == data
        kinds = together(10, lambda n: [submit(transport, mail(n * 10 + i), 30).kind for i in range(5)])
        assert kinds == [[OutcomeKind.ACCEPTED] * 5] * 10


@pytest.mark.parametrize(
    ("names", "days", "host"),
    [(("127.0.0.1",), -1, "127.0.0.1"), (("mail.example.com",), 1, "127.0.0.1"), (("127.0.0.1",), 1, "localhost")],
    ids=["expired", "wrong address", "wrong name"],
)
@pytest.mark.parametrize("mode", ["starttls", "implicit"])
def test_an_invalid_certificate_ends_it_before_anything_is_said(
    names: tuple[str, ...], days: int, host: str, mode: str, tmp_path: Path
) -> None:
    trusted, context = certificate(tmp_path, *names, days=days)
    with SmtpServer(context=context, implicit=mode == "implicit", users={"user": "secret"}) as server:
        transport = relay(server.port, host=host, tls=mode, ca_file=str(trusted), **LOGIN)
        outcomes = [submit(transport, mail(n)) for n in range(3)]
        assert {(one.kind, one.reason, one.config, one.scope, one.charged) for one in outcomes} == {
            (UNAVAILABLE, "certificate_invalid", True, Scope.ACCOUNT, False)
        }
        assert len(server.connections) == 1, "it is not tried again and again"
        assert not any(one.startswith(("AUTH", "MAIL")) for one in server.commands)


def test_a_certificate_of_an_unknown_authority_is_invalid(tmp_path: Path) -> None:
    _, context = certificate(tmp_path, "127.0.0.1")
    with SmtpServer(context=context) as server:
        assert submit(relay(server.port, tls="starttls"), mail()).reason == "certificate_invalid"


def test_starttls_missing_where_it_is_required_never_falls_back() -> None:
    with SmtpServer(users={"user": "secret"}) as server:
        outcome = submit(relay(server.port, tls="starttls", **LOGIN), mail())
        assert (outcome.kind, outcome.reason, outcome.config) == (UNAVAILABLE, "starttls_missing", True)
        assert [one.split()[0].upper() for one in server.commands] == ["EHLO"]


def test_answers_slipped_in_before_tls_are_refused(tmp_path: Path) -> None:
    trusted, context = certificate(tmp_path, "127.0.0.1")
    injected = b"220 go\r\n250-sink\r\n250 AUTH PLAIN\r\n"
    with SmtpServer(Rule("starttls", reply=injected, stall=True), context=context) as server:
        outcome = submit(relay(server.port, tls="starttls", ca_file=str(trusted)), mail())
        assert (outcome.kind, outcome.reason) == (UNAVAILABLE, "tls_failed")


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        (Rule("starttls", reply=b"220 go\r\n\x16\x03\x01 no handshake\r\n", close=True), "tls_failed"),
        (Rule("starttls", reply="220 go", close=True), "tls_failed"),
        (Rule("starttls", reply="220 go", stall=True), "deadline"),
    ],
    ids=["nonsense", "close", "hang"],
)
def test_a_broken_handshake_is_unavailable(rule: Rule, reason: str, tmp_path: Path) -> None:
    trusted, context = certificate(tmp_path, "127.0.0.1")
    with SmtpServer(rule, context=context) as server:
        outcome = submit(relay(server.port, tls="starttls", ca_file=str(trusted)), mail(), 0.6)
        assert (outcome.kind, outcome.reason, outcome.config) == (UNAVAILABLE, reason, False)


@pytest.mark.parametrize(
    ("how", "kind", "reason"),
    [
        ({"close": True}, OutcomeKind.AMBIGUOUS, "reply_lost"),
        ({"reset": True}, OutcomeKind.AMBIGUOUS, "reply_lost"),
        ({"hang": True}, OutcomeKind.AMBIGUOUS, "deadline"),
        ({"reply": "451 4.3.0 no"}, OutcomeKind.TEMPORARY_FAILURE, "server_busy"),
    ],
)
def test_after_the_final_dot_tls_changes_nothing(
    how: dict[str, Any], kind: OutcomeKind, reason: str, tmp_path: Path
) -> None:
    trusted, context = certificate(tmp_path, "127.0.0.1")
    with SmtpServer(Rule("dot", **how), context=context, implicit=True) as server:
        outcome = submit(relay(server.port, tls="implicit", ca_file=str(trusted)), mail(), 0.6)
        assert (outcome.kind, outcome.reason) == (kind, reason)


def test_a_body_that_is_not_read_through_tls_is_no_doubt(tmp_path: Path) -> None:
    trusted, context = certificate(tmp_path, "127.0.0.1")
    with SmtpServer(Rule("body", stall=True, silent=True), context=context, implicit=True) as server:
        transport = relay(server.port, tls="implicit", ca_file=str(trusted))
        outcome = submit(transport, mail(data=raw(body=(b"x" * 70 + b"\r\n") * (BIG // 72))), 1)
        assert (outcome.kind, outcome.reason) == (OutcomeKind.TEMPORARY_FAILURE, "deadline")


def test_what_looks_like_plain_smtp_on_an_implicit_port_is_a_tls_failure() -> None:
    with SmtpServer() as server:
        assert submit(relay(server.port, tls="implicit"), mail()).reason == "tls_failed"
