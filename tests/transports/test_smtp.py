"""SMTP on good days and common bad ones: bytes, extensions, kept sessions, logins, limits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from notifyctl.clock import Deadline
from notifyctl.errors import ConfigError, InputError
from notifyctl.model import CannotTell, OutcomeKind, Receipts, Scope, Search
from notifyctl.transports.base import Exchange, Transport, Trouble
from notifyctl.transports.smtp import Smtp
from tests.smtp_server import EXTENSIONS, Rule, SmtpServer
from tests.transports.material import mail, raw, relay, sms, submit, together

ACCEPTED, PERMANENT = OutcomeKind.ACCEPTED, OutcomeKind.PERMANENT_FAILURE
TEMPORARY, UNAVAILABLE = OutcomeKind.TEMPORARY_FAILURE, OutcomeKind.UNAVAILABLE
PLAIN = tuple(one for one in EXTENSIONS if one != "PIPELINING")


# -- the bytes --


def test_a_mail_arrives_byte_for_byte_with_our_message_id_as_its_remote_id() -> None:
    with SmtpServer() as server:
        outcome = submit(relay(server.port), mail(7))
        assert (outcome.kind, outcome.remote_ids, outcome.code) == (ACCEPTED, ("<7@example.com>",), "250 2.0.0")
        (message,) = server.wait_for(1)
    assert (message.mail_from, message.recipients) == ("shop@example.com", ("r7@example.org",))
    assert message.raw == raw(7)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from([b".", b"..", b"\r\n", b"\r\n.\r\n", b"a", b".a", b"\x80\xff", b""]), max_size=12))
def test_dot_stuffing_gives_back_the_exact_bytes(parts: list[bytes]) -> None:
    data = b"".join(parts)
    if not data.endswith(b"\r\n"):
        data += b"\r\n"
    request = _closed_relay().prepare(mail(data=data))
    lines = request.body[:-3].split(b"\r\n")
    received = b"\r\n".join(line[1:] if line.startswith(b".") else line for line in lines)
    assert received == data
    assert request.body.endswith(b"\r\n.\r\n")
    assert request.body.find(b"\r\n.\r\n") == len(request.body) - 5, "nothing ends the message early"
    assert not request.body.startswith(b".\r\n")


def _closed_relay() -> Transport:
    return relay(1)


def test_lines_that_begin_with_dots_arrive_unchanged() -> None:
    data = b".begin\r\n..two\r\n.\r\n" + b"x" * 200_000 + b"\r\n.\r\n.end\r\n"
    with SmtpServer() as server:
        assert submit(relay(server.port), mail(data=data)).kind is ACCEPTED
        assert server.messages[0].raw == data


@pytest.mark.parametrize("data", [b"a\nb\r\n", b"a\rb\r\n", b"a\r\n.\nMAIL FROM:<x@y>\r\n", b"a\n\r\n"])
def test_a_newline_that_is_no_crlf_is_refused_before_it_can_smuggle(data: bytes) -> None:
    with pytest.raises(InputError) as caught:
        _closed_relay().prepare(mail(data=data))
    assert caught.value.reason == "bare_newline"


@pytest.mark.parametrize(
    "address",
    ["a b@example.org", "a>@example.org", "a@example.org> SIZE=1", "a\r\nRCPT TO:<b@example.org>", "nobody", "a@b c"],
)
def test_an_address_that_would_break_the_command_is_refused_without_being_shown(address: str) -> None:
    with pytest.raises(InputError) as caught:
        _closed_relay().prepare(mail(to=address))
    assert caught.value.reason == "invalid_address"
    assert address not in str(caught.value)


@pytest.mark.parametrize(
    "address", ['"a b"@example.org', '"a\\"b"@example.org', "o'x+tag@example.org", "a@[192.0.2.1]"]
)
def test_unusual_but_valid_addresses_go_out_as_they_are(address: str) -> None:
    with SmtpServer() as server:
        assert submit(relay(server.port), mail(to=address)).kind is ACCEPTED
        assert server.messages[0].recipient == address


def test_a_text_message_is_refused() -> None:
    with pytest.raises(InputError):
        _closed_relay().prepare(sms())


def test_the_same_mail_prepares_the_same_request() -> None:
    assert relay(1).prepare(mail()) == relay(2).prepare(mail())


def test_smtp_declares_that_it_proves_nothing_afterwards() -> None:
    transport = _closed_relay()
    assert not transport.capabilities.can_settle_doubt
    assert (transport.capabilities.receipts, transport.capabilities.search) == (Receipts.NONE, Search.NONE)
    assert transport.find("key") == CannotTell()


# -- extensions --


def test_pipelining_sends_the_envelope_in_one_write() -> None:
    with SmtpServer() as server:
        submit(relay(server.port), mail())
        assert sum(read.count(b"\r\n") == 3 and read.startswith(b"MAIL") for read in server.connections[0].reads) == 1


def test_without_pipelining_each_command_waits_for_its_answer() -> None:
    with SmtpServer(extensions=PLAIN) as server:
        assert submit(relay(server.port), mail()).kind is ACCEPTED
        commands = [read for read in server.connections[0].reads if read[:4] in (b"MAIL", b"RCPT", b"DATA")]
        assert [read[:4] for read in commands] == [b"MAIL", b"RCPT", b"DATA"]


@pytest.mark.parametrize("answer", ["554 5.5.1 no valid recipients", "250 2.0.0 nobody got it"])
def test_data_taken_after_a_refused_recipient_is_ended_with_a_lone_dot(answer: str) -> None:
    with SmtpServer(
        Rule("rcpt", reply="550 5.1.1 no", times=1),
        Rule("data", reply="354 go", times=1),
        Rule("dot", reply=answer, times=1),
    ) as server:
        transport = relay(server.port)
        outcome = submit(transport, mail(1))
        assert (outcome.kind, outcome.reason, outcome.code) == (PERMANENT, "invalid_recipient", "550 5.1.1")
        assert b".\r\n" in server.connections[0].reads
        assert submit(transport, mail(2)).kind is ACCEPTED
        assert len(server.connections) == 1
        assert [one.recipient for one in server.messages] == ["r2@example.org"]


def test_a_lost_session_after_a_refused_recipient_leaves_the_refusal() -> None:
    with SmtpServer(Rule("rcpt", reply="550 5.1.1 no"), Rule("data", close=True)) as server:
        assert submit(relay(server.port), mail()).reason == "invalid_recipient"


def test_data_taken_although_the_sender_was_refused_is_never_completed() -> None:
    with SmtpServer(
        Rule("mail", reply="550 5.7.1 no"), Rule("rcpt", reply="250 ok"), Rule("data", reply="354 go")
    ) as server:
        assert submit(relay(server.port), mail()).reason == "sender_rejected"
        assert server.connections[0].ended.wait(5)
        assert not server.messages


def test_a_refused_transaction_is_reset_before_the_next_one() -> None:
    for extensions in (EXTENSIONS, PLAIN):
        with SmtpServer(Rule("rcpt", reply="450 4.2.0 no", times=1), extensions=extensions) as server:
            transport = relay(server.port)
            assert submit(transport, mail(1)).kind is TEMPORARY
            assert submit(transport, mail(2)).kind is ACCEPTED
            assert server.commands.count("RSET") == 1
            assert len(server.connections) == 1


def test_a_message_over_the_advertised_size_is_never_uploaded() -> None:
    with SmtpServer(extensions=("PIPELINING", "SIZE 1000000")) as server:
        transport = relay(server.port)
        outcome = submit(transport, mail(data=raw(body=b"x" * 3_000_000 + b"\r\n")))
        assert (outcome.kind, outcome.reason) == (PERMANENT, "too_large")
        assert not any(one.startswith("MAIL") for one in server.commands)
        assert submit(transport, mail(2)).kind is ACCEPTED


@pytest.mark.parametrize("size", ["SIZE", "SIZE 0", "SIZE unlimited", "SIZE ²"])
def test_a_size_without_a_number_is_no_limit(size: str) -> None:
    with SmtpServer(extensions=("PIPELINING", size)) as server:
        assert submit(relay(server.port), mail()).kind is ACCEPTED
        assert server.commands[1] == f"MAIL FROM:<shop@example.com> SIZE={len(raw())}"


def test_a_hidden_size_limit_is_met_once_and_is_final() -> None:
    with SmtpServer(Rule("dot", reply="552 Message size exceeds limit"), extensions=("PIPELINING",)) as server:
        outcome = submit(relay(server.port), mail(data=raw(body=b"x" * 3_000_000 + b"\r\n")))
        assert (outcome.kind, outcome.reason) == (PERMANENT, "too_large")


def test_a_non_ascii_local_part_needs_smtputf8() -> None:
    with SmtpServer(extensions=("PIPELINING", "8BITMIME")) as server:
        outcome = submit(relay(server.port), mail(to="grüße@example.org"))
        assert (outcome.kind, outcome.reason) == (PERMANENT, "smtputf8_unsupported")
        assert not any(one.startswith("MAIL") for one in server.commands)
    with SmtpServer() as server:
        transport = relay(server.port)
        assert submit(transport, mail(to="grüße@example.org")).kind is ACCEPTED
        assert server.messages[0].recipient == "grüße@example.org"
        assert server.commands[1].endswith("BODY=8BITMIME SMTPUTF8")
        assert submit(transport, mail(2)).kind is ACCEPTED
        assert "SMTPUTF8" not in server.commands[4]


def test_eight_bit_content_is_announced_or_refused() -> None:
    with SmtpServer() as server:
        assert submit(relay(server.port), mail(eight_bit=True)).kind is ACCEPTED
        assert server.commands[1].endswith(" BODY=8BITMIME")
    with SmtpServer(extensions=("PIPELINING",)) as server:
        assert submit(relay(server.port), mail(eight_bit=True)).reason == "eight_bit_unsupported"


def test_a_server_that_knows_only_helo_is_spoken_to_plainly() -> None:
    with SmtpServer(Rule("ehlo", reply="502 5.5.1 what?")) as server:
        assert submit(relay(server.port), mail()).kind is ACCEPTED
        assert server.commands[1].upper().startswith("HELO ")


def test_check_shows_what_the_server_offers() -> None:
    with SmtpServer(users={"u": "p"}) as server:
        found = relay(server.port, username="u", password="p").check(Deadline.after(5))
        assert found.outcome is None
        assert found.facts["SIZE"] == "10485760"
        assert not server.messages


# -- replies --


@pytest.mark.parametrize("junk", [4_000, 1_000_000, 3_000_000])
def test_a_very_long_reply_is_read_and_dropped(junk: int) -> None:
    with SmtpServer(Rule("dot", reply=b"250 2.0.0 " + b"x" * junk + b"\r\n", times=1)) as server:
        transport = relay(server.port)
        assert submit(transport, mail(1)).code == "250 2.0.0"
        assert submit(transport, mail(2)).kind is ACCEPTED
        assert len(server.connections) == 1


@pytest.mark.parametrize("reply", [b"250-x\r\n" * 2_000_000, b"2" * 6_000_000, b"250 " + b"x" * 6_000_000])
def test_a_reply_without_end_is_given_up(reply: bytes) -> None:
    with SmtpServer(Rule("mail", reply=reply, stall=True)) as server:
        outcome = submit(relay(server.port), mail(), 20)
        assert (outcome.kind, outcome.reason) == (TEMPORARY, "protocol_error")


def test_an_answer_nobody_asked_for_never_passes_for_acceptance() -> None:
    with SmtpServer(Rule("data", reply=b"354 go\r\n250 2.0.0 queued\r\n")) as server:
        outcome = submit(relay(server.port), mail())
        assert (outcome.kind, outcome.reason) == (TEMPORARY, "protocol_error")
    assert not server.messages


def test_no_prose_of_the_server_is_kept() -> None:
    with SmtpServer(Rule("rcpt", reply="550 5.1.1 <r1@example.org> unknown")) as server:
        assert "example.org" not in repr(submit(relay(server.port), mail()))


# -- kept sessions --


def test_sessions_are_kept_up_to_their_cap() -> None:
    with SmtpServer() as server:
        transport = relay(server.port, max_messages_per_connection=5)
        assert all(submit(transport, mail(n)).kind is ACCEPTED for n in range(12))
        transport.close()
        assert [one.messages for one in server.connections] == [5, 5, 2]
        assert server.commands.count("QUIT") == 3


@pytest.mark.parametrize(
    "how",
    [
        Rule("mail", reply="421 4.7.0 enough", close=True, when=lambda it: it.messages >= 3),
        Rule("mail", close=True, when=lambda it: it.messages >= 3),
        Rule("mail", reset=True, when=lambda it: it.messages >= 3),
        Rule("rset", close=True, when=lambda it: it.messages >= 3),
        Rule("dot", reply=b"250 ok\r\n421 4.7.0 bye\r\n", when=lambda it: it.messages >= 2),
        Rule("dot", reply="250 ok", close=True, when=lambda it: it.messages >= 2),
    ],
    ids=["421", "close", "reset", "rset", "goodbye", "idle"],
)
@pytest.mark.parametrize("extensions", [EXTENSIONS, PLAIN], ids=["pipelined", "stepwise"])
def test_a_kept_session_that_has_died_is_replaced_and_nobody_fails(how: Rule, extensions: tuple[str, ...]) -> None:
    with SmtpServer(replace(how), extensions=extensions) as server:
        transport = relay(server.port)
        assert [submit(transport, mail(n)).kind for n in range(12)] == [ACCEPTED] * 12
        assert len(server.messages) == 12
        assert len({one.message_id for one in server.messages}) == 12


def test_a_new_session_that_is_turned_away_at_mail_is_not_replaced_again() -> None:
    with SmtpServer(Rule("mail", reply="421 4.7.0 come later", close=True)) as server:
        outcome = submit(relay(server.port), mail())
        assert (outcome.kind, outcome.reason, outcome.code) == (TEMPORARY, "service_closing", "421 4.7.0")
        assert len(server.connections) == 1


def test_a_421_as_the_answer_to_the_message_is_a_certain_failure_and_ends_the_session() -> None:
    with SmtpServer(Rule("dot", reply="421 4.3.2 shutting down", times=1)) as server:
        transport = relay(server.port)
        assert submit(transport, mail(1)).kind is TEMPORARY
        assert submit(transport, mail(2)).kind is ACCEPTED
        assert len(server.connections) == 2


def test_ten_workers_share_as_many_sessions_as_they_need() -> None:
    with SmtpServer() as server:
        transport = relay(server.port)
        kinds = together(10, lambda n: [submit(transport, mail(n * 100 + i)).kind for i in range(20)])
        assert kinds == [[ACCEPTED] * 20] * 10
        assert len(server.connections) <= 10
        assert len({one.message_id for one in server.messages}) == 200


def test_a_server_that_allows_few_sessions_gets_no_more_and_nobody_fails() -> None:
    with SmtpServer() as server:
        busy = lambda _: sum(not one.ended.is_set() for one in server.connections) > 2  # noqa: E731
        server.rule("banner", reply="421 4.7.0 too many connections", close=True, when=busy)
        transport = relay(server.port, max_messages_per_connection=7)
        kinds = together(8, lambda n: [submit(transport, mail(n * 100 + i), 30).kind for i in range(10)])
        assert kinds == [[ACCEPTED] * 10] * 8
        assert len(server.messages) == 80


def test_a_new_session_takes_the_place_of_an_idle_one_where_the_server_allows_no_more() -> None:
    """A kept session was found dead, and meanwhile another worker has opened the only one that is allowed."""
    with SmtpServer() as server:
        busy = lambda _: sum(not one.ended.is_set() for one in server.connections) > 1  # noqa: E731
        server.rule("banner", reply="421 4.7.0 one at a time", close=True, when=busy)
        transport = relay(server.port)
        assert isinstance(transport, Smtp)
        pool = transport._pool
        kept = pool.take(Exchange(Deadline.after(10)))
        with pytest.raises(Trouble, match="connection_limit"):  # the pool learns what the server allows
            pool.take(Exchange(Deadline.after(0.3)))
        pool.give_back(kept)
        new = pool.take(Exchange(Deadline.after(10)), fresh=True)
        assert new is not kept
        pool.give_back(new)
        assert submit(transport, mail()).kind is ACCEPTED
        assert "QUIT" in server.connections[0].commands
        transport.close()


def test_a_worker_for_whom_no_session_becomes_free_waits_without_blaming_the_transport() -> None:
    with SmtpServer(Rule("dot", hang=True, when=lambda it: it.recipient == "slow@example.org")) as server:
        server.rule("banner", reply="421 4.7.0 one at a time", close=True, when=lambda it: it.number > 1)
        transport = relay(server.port)

        def work(number: int) -> object:
            if number == 0:
                return submit(transport, mail(to="slow@example.org"), 20)
            server.wait_until("dot")
            refused = submit(transport, mail(2), 0.3)
            server.release()
            return refused

        slow, refused = together(2, work)
        assert slow.kind is ACCEPTED
        assert (refused.kind, refused.reason, refused.scope) == (
            OutcomeKind.RATE_LIMITED,
            "connection_limit",
            Scope.DESTINATION,
        )


# -- login --


def test_a_login_happens_once_per_session() -> None:
    with SmtpServer(users={"user": "pässword"}) as server:
        transport = relay(server.port, username="user", password="pässword")
        assert all(submit(transport, mail(n)).kind is ACCEPTED for n in range(5))
        assert (server.login_attempts, server.messages[0].login) == (1, "user")


def test_a_login_in_two_steps_works_where_the_server_offers_no_other() -> None:
    with SmtpServer(users={"user": "pass"}, auth="LOGIN") as server:
        assert submit(relay(server.port, username="user", password="pass"), mail()).kind is ACCEPTED


def test_refused_credentials_are_tried_once_by_ten_workers_and_never_again() -> None:
    with SmtpServer(Rule("auth", delay=0.2), users={"user": "right"}) as server:
        transport = relay(server.port, username="user", password="wrong")
        outcomes = together(10, lambda n: submit(transport, mail(n)))
        outcomes.append(submit(transport, mail(11)))
        assert {(one.kind, one.reason, one.config, one.scope, one.charged) for one in outcomes} == {
            (UNAVAILABLE, "credentials_rejected", True, Scope.ACCOUNT, False)
        }
        assert (server.login_attempts, len(server.connections)) == (1, 1)
        assert submit(relay(server.port, username="user", password="right"), mail()).kind is ACCEPTED


def test_a_temporary_login_failure_is_no_matter_of_configuration() -> None:
    with SmtpServer(Rule("auth", reply="454 4.7.0 try later", times=1), users={"u": "p"}) as server:
        transport = relay(server.port, username="u", password="p")
        first = submit(transport, mail(1))
        assert (first.kind, first.reason, first.config) == (UNAVAILABLE, "login_failed", False)
        assert submit(transport, mail(2)).kind is ACCEPTED


def test_a_server_without_any_known_login_gets_no_credentials() -> None:
    with SmtpServer(users={"u": "secret"}, auth="XOAUTH2") as server:
        outcome = submit(relay(server.port, username="u", password="secret"), mail())
        assert (outcome.kind, outcome.reason, outcome.config) == (UNAVAILABLE, "login_unsupported", True)
        assert not any("AUTH" in one for one in server.commands)


# -- a stopped process --

_CLIENT = """
import json, sys
from tests.transports.material import mail, raw, relay, submit
print("started", flush=True)
outcome = submit(relay(int(sys.argv[1])), mail(data=raw(body=b"late\\r\\n")), float(sys.argv[2]))
print(json.dumps([outcome.kind, outcome.reason]))
"""


@pytest.mark.parametrize(
    ("phase", "proved"),
    [
        ("banner", ["unavailable", "deadline"]),
        ("mail", ["temporary_failure", "deadline"]),
        ("data", ["temporary_failure", "deadline"]),
        ("dot", ["accepted", ""]),  # an answer that came while we were stopped is read: reading writes nothing
    ],
)
def test_a_process_woken_after_its_deadline_writes_no_late_byte(phase: str, proved: list[str]) -> None:
    with SmtpServer(Rule(phase, hang=True), extensions=PLAIN) as server:
        with subprocess.Popen(
            [sys.executable, "-c", _CLIENT, str(server.port), "1.0"],
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
        ) as client:
            assert client.stdout is not None
            client.stdout.readline()
            server.wait_until(phase)
            connection = server.connections[0]
            os.kill(client.pid, signal.SIGSTOP)
            said = (list(connection.commands), len(b"".join(connection.reads)))
            time.sleep(1.1)  # the deadline is wall time, also for a stopped process: it has to pass
            server.release()
            server.wait(lambda: phase in connection.answered)
            os.kill(client.pid, signal.SIGCONT)
            out, _ = client.communicate(timeout=20)
        assert connection.ended.wait(5)
        assert json.loads(out) == proved
        assert (connection.commands, len(b"".join(connection.reads))) == said
        assert len(server.messages) == (phase == "dot")


# -- configuration --


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"host": ""}, "host"),
        ({"host": "a b"}, "host"),
        ({"port": "25"}, "port"),
        ({"port": 70000}, "port"),
        ({"tls": "maybe"}, "tls"),
        ({"username": "u"}, "password"),
        ({"password": "p"}, "username"),
        ({"max_messages_per_connection": 0}, "max_messages_per_connection"),
        ({"tls": "starttls", "ca_file": "absent.pem"}, "ca_file"),
    ],
)
def test_a_wrong_key_is_named(options: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=rf"transports\.relay\.{key} "):
        relay(25, **options)


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        ({"host": "192.0.2.1", "tls": "none"}, True),
        ({"host": "192.0.2.1"}, False),
        ({"host": "localhost", "tls": "none"}, False),
        ({"host": "::1"}, False),
    ],
)
def test_plain_text_to_another_machine_is_warned_of(
    options: dict[str, str], warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    relay(25, **options)
    assert ("in the clear" in caplog.text) is warned
