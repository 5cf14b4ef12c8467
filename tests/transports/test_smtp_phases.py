"""Every phase of an SMTP exchange and every way it can go wrong: what that proves."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from notifyctl.clock import Deadline
from notifyctl.model import OutcomeKind, Scope
from tests.certificates import certificate
from tests.smtp_server import EXTENSIONS, Rule, SmtpServer
from tests.transports.material import BIG, converse, mail, raw, relay, submit

UNAVAILABLE, TEMPORARY = OutcomeKind.UNAVAILABLE, OutcomeKind.TEMPORARY_FAILURE
PERMANENT, AMBIGUOUS = OutcomeKind.PERMANENT_FAILURE, OutcomeKind.AMBIGUOUS

SHORT = 0.4  # seconds: the deadline where a reply never comes

HOW: dict[str, dict[str, Any]] = {
    "4yz": {"reply": "451 4.3.0 not now"},
    "5yz": {"reply": "554 5.3.0 no"},
    "close": {"close": True},
    "reset": {"reset": True},
    "hang": {"hang": True},
    "drip": {"drip": 0.05},
    "nonsense": {"reply": b"\x00\xff what?\r\n"},
}

#            4yz                                5yz                              lost                    never answered
OPENING = {
    "banner": ((UNAVAILABLE, "greeting_refused"), (UNAVAILABLE, "greeting_refused")),
    "ehlo": ((UNAVAILABLE, "greeting_refused"), (UNAVAILABLE, "greeting_refused")),
    "starttls": ((UNAVAILABLE, "starttls_refused"), (UNAVAILABLE, "starttls_refused")),
    "auth": ((UNAVAILABLE, "login_failed"), (UNAVAILABLE, "credentials_rejected")),
}
ENVELOPE = {
    "mail": ((TEMPORARY, "server_busy"), (UNAVAILABLE, "sender_rejected")),
    "rcpt": ((TEMPORARY, "server_busy"), (PERMANENT, "recipient_rejected")),
    "data": ((TEMPORARY, "server_busy"), (PERMANENT, "message_rejected")),
}
DOT = {"dot": ((TEMPORARY, "server_busy"), (PERMANENT, "message_rejected"))}


def _cases(table: dict[str, Any], lost: OutcomeKind, lost_reason: str, nonsense: str) -> list[Any]:
    rows = []
    for phase, (temporary, permanent) in table.items():
        rows += [(phase, "4yz", *temporary), (phase, "5yz", *permanent)]
        rows += [(phase, how, lost, lost_reason) for how in ("close", "reset")]
        rows += [(phase, how, lost, "deadline") for how in ("hang", "drip")]
        rows += [(phase, "nonsense", lost, nonsense)]
    return rows


MATRIX = [
    *_cases(OPENING, UNAVAILABLE, "connection_lost", "protocol_error"),
    *_cases(ENVELOPE, TEMPORARY, "connection_lost", "protocol_error"),
    *_cases(DOT, AMBIGUOUS, "reply_lost", "unreadable_reply"),
]
PLAIN = tuple(one for one in EXTENSIONS if one != "PIPELINING")


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return certificate(tmp_path_factory.mktemp("tls"), "127.0.0.1")


@pytest.mark.parametrize("extensions", [EXTENSIONS, PLAIN], ids=["pipelined", "stepwise"])
@pytest.mark.parametrize(("phase", "how", "kind", "reason"), MATRIX)
def test_an_outcome_says_what_the_exchange_proved(
    phase: str, how: str, kind: OutcomeKind, reason: str, extensions: tuple[str, ...], tls: tuple[Path, Any]
) -> None:
    trusted, context = tls
    options = {"tls": "starttls", "ca_file": str(trusted)} if phase == "starttls" else {}
    rules = [Rule(phase, **HOW[how])]
    if phase == "ehlo" and how == "5yz":
        rules.append(Rule("helo", reply="554 5.3.0 no"))
    with SmtpServer(*rules, extensions=extensions, context=context, users={"u": "p"}) as server:
        transport = relay(server.port, username="u", password="p", **options)
        outcome = submit(transport, mail(), SHORT if how in {"hang", "drip"} else 5)
        # a reset right behind the accept can reach the client while it still connects
        early = (phase, how, outcome.reason) == ("banner", "reset", "connect_failed")
        assert (outcome.kind, reason if early else outcome.reason) == (kind, reason)
        assert outcome.scope is (Scope.ACCOUNT if kind is UNAVAILABLE else Scope.DESTINATION)
        assert outcome.charged is (kind is not UNAVAILABLE)
        if phase != "dot":
            assert not server.messages
        transport.close()


@pytest.mark.parametrize("extensions", [EXTENSIONS, PLAIN], ids=["pipelined", "stepwise"])
@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize(("phase", "how", "kind", "reason"), [case for case in MATRIX if case[0] not in OPENING])
def test_a_conversation_on_a_kept_session_proves_the_same(
    phase: str, how: str, kind: OutcomeKind, reason: str, encrypted: bool, extensions: tuple[str, ...],
    tls: tuple[Path, Any],
) -> None:  # fmt: skip
    trusted, context = tls
    options = {"tls": "implicit", "ca_file": str(trusted)} if encrypted else {}
    rule = Rule(phase, **HOW[how], after=1)
    with SmtpServer(rule, extensions=extensions, context=context, implicit=encrypted) as server:
        transport = relay(server.port, **options)
        assert submit(transport, mail(1)).kind is OutcomeKind.ACCEPTED
        outcome = converse(transport, mail(2), SHORT if how in {"hang", "drip"} else 5)
        if phase == "mail" and how in {"close", "reset"}:
            assert outcome is None  # to be submitted: nothing of it has reached anybody
        else:
            assert outcome is not None
            assert (outcome.kind, outcome.reason) == (kind, reason)
        assert len(server.connections) == 1
        if phase != "dot":
            assert len(server.messages) == 1
        transport.close()


def test_a_conversation_ends_in_acceptance_and_leaves_the_session_for_the_next() -> None:
    with SmtpServer() as server:
        transport = relay(server.port)
        assert transport.converse([transport.prepare(mail(1))], Deadline.after(5)) is None  # nothing is open yet
        submit(transport, mail(1))
        for number in (2, 3):
            outcome = converse(transport, mail(number))
            assert outcome is not None
            assert (outcome.kind, outcome.remote_ids) == (OutcomeKind.ACCEPTED, (f"<{number}@example.com>",))
        assert [one.message_id for one in server.messages] == [f"<{n}@example.com>" for n in (1, 2, 3)]
        assert len(server.connections) == 1
        assert transport.converse([transport.prepare(mail(4))], Deadline.after(-1)) is None
        transport.close()


def test_a_body_that_the_server_takes_slowly_is_written_in_steps_up_to_its_last_byte() -> None:
    body = (b"x" * 70 + b"\r\n") * (BIG // 72)
    with SmtpServer(Rule("body", delay=0.2, after=1)) as server:
        transport = relay(server.port)
        submit(transport, mail(1))
        outcome = converse(transport, mail(2, data=raw(2, body)))
        assert outcome is not None
        assert outcome.kind is OutcomeKind.ACCEPTED
        assert server.messages[1].raw == raw(2, body)
        transport.close()


@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_loss_while_the_body_is_written_is_certainly_no_acceptance(how: str) -> None:
    with SmtpServer(Rule("body", **HOW[how])) as server:
        outcome = submit(relay(server.port), mail(data=raw(body=b"x" * 70 + b"\r\n" * BIG)[:BIG] + b"\r\n"))
    assert (outcome.kind, outcome.reason) == (TEMPORARY, "connection_lost")


def test_a_server_that_stops_reading_the_body_is_no_doubt() -> None:
    with SmtpServer(Rule("body", hang=True)) as server:
        outcome = submit(relay(server.port), mail(data=raw(body=(b"x" * 70 + b"\r\n") * (BIG // 72))), SHORT)
        assert (outcome.kind, outcome.reason) == (TEMPORARY, "deadline")
        server.release()
        assert server.connections[0].ended.wait(5)
    assert not server.messages


@pytest.mark.parametrize("then", [{"close": True}, {"stall": True}])
def test_a_refusal_in_the_middle_of_the_body_is_read(then: dict[str, bool]) -> None:
    """Some servers refuse an oversized message while it comes; what they then do to the connection decides nothing."""
    with SmtpServer(Rule("body", reply="552 5.3.4 too big", **then)) as server:
        outcome = submit(relay(server.port), mail(data=raw(body=(b"x" * 70 + b"\r\n") * (BIG // 72))))
    assert (outcome.kind, outcome.reason, outcome.code) == (PERMANENT, "too_large", "552 5.3.4")


@pytest.mark.parametrize("how", ["4yz", "5yz", "close", "reset", "hang", "drip", "nonsense"])
def test_what_happens_at_quit_changes_nothing(how: str) -> None:
    with SmtpServer(Rule("quit", **HOW[how])) as server:
        transport = relay(server.port)
        assert submit(transport, mail()).kind is OutcomeKind.ACCEPTED
        transport.close()
        assert server.commands[-1] == "QUIT"


def test_nobody_listening_is_unavailable() -> None:
    with SmtpServer() as server:
        port = server.port
    outcome = submit(relay(port), mail())
    assert (outcome.kind, outcome.reason, outcome.config) == (UNAVAILABLE, "connect_failed", False)


def test_a_host_without_an_address_is_unavailable() -> None:
    outcome = submit(relay(25, host="nowhere.invalid", tls="none"), mail(), 10)
    assert (outcome.kind, outcome.config) == (UNAVAILABLE, False)
    assert outcome.reason in {"dns_failed", "deadline"}


def test_a_deadline_that_has_passed_before_anything_was_tried_opens_nothing() -> None:
    with SmtpServer() as server:
        outcome = submit(relay(server.port), mail(), -1.0)
        assert (outcome.kind, outcome.reason) == (TEMPORARY, "deadline")
    assert not server.connections


def test_a_drip_of_lines_without_end_does_not_extend_the_deadline() -> None:
    with SmtpServer(Rule("mail", reply=b"250-x\r\n" * 1000, drip=0.01)) as server:
        assert submit(relay(server.port), mail(), SHORT).reason == "deadline"


def test_a_deadline_brought_forward_is_noticed_while_waiting() -> None:
    from threading import Thread

    from notifyctl.clock import Deadline, monotonic

    with SmtpServer(Rule("dot", hang=True)) as server:
        transport = relay(server.port)
        deadline = Deadline.after(600)
        outcomes: list[Any] = []
        worker = Thread(
            target=lambda: outcomes.extend(transport.submit([transport.prepare(mail())], deadline, None)), daemon=True
        )
        worker.start()
        server.wait_until("dot")
        deadline.at = monotonic()
        worker.join(30)
    assert [(one.kind, one.reason) for one in outcomes] == [(AMBIGUOUS, "deadline")]


@pytest.mark.parametrize("taken", [0, 5_000])
def test_a_final_write_of_which_the_dot_was_not_taken_is_no_doubt(taken: int) -> None:
    """The write that holds the final dot is refused by the system, or taken in part: the dot has certainly not left."""
    import socket

    from notifyctl.clock import Deadline
    from notifyctl.transports.base import Exchange, Phase, Trouble
    from notifyctl.transports.smtp_session import Session

    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        with suppress(BlockingIOError):
            while ours.send(b"x" * 1000):
                pass
        while taken > 0:
            taken -= len(theirs.recv(taken))
        session = Session(Exchange(Deadline.after(0.1)))
        session.exchange.phase = Phase.WRITING
        session.sock = ours
        session._poll.register(ours.fileno(), 0)
        body = b"x" * 60_000 + b"\r\n.\r\n"
        with pytest.raises(Trouble, match="deadline"):
            session.finish(session.writing(body, last=len(body) - 3))
        assert session.exchange.phase is Phase.WRITING
