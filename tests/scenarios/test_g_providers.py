"""G: what servers and providers do. Here over SMTP and by scripts; a provider's own HTTP: tests/transports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.certificates import certificate
from tests.scenarios.stage import SECRET, Stage, answers, text
from tests.site import reached
from tests.smtp_server import Rule, SmtpServer

LATER = {"outcome": "rate_limited", "reason": "too_many", "retry_after": "2m", "scope": "account", "times": 1}


def test_G1_a_rate_limit_is_heeded_and_costs_nothing(stage: Stage) -> None:
    """The third of ten is told to wait two minutes. Relatives: a destination's own limit holds up only that one; a
    server's 421 and 450 that say too fast: below."""
    stage.put("transports.texts", fail=[{"match": "+447700900003", **LATER}])
    stage.put("lanes.sms", concurrency=1)
    stage.bulk(*(text(n, f"+44770090000{n % 10}") for n in range(1, 11)))
    stage.dispatched("--lane", "sms", accepted=2, rate_limited=1, permanent_failure=0, dead_letter=0)
    assert stage.sql("SELECT count(*) FROM notify_work WHERE step = 'send'") == [(8,)]
    assert stage.sql("SELECT sum(attempts_used) FROM notify_delivery") == [(2,)], "a limit is not an attempt"
    assert [bool(why["until"]) for why in stage.seen(5)["why"] if why["reason"] == "gate"] == [True]
    stage.pass_time(30)
    stage.dispatched(claimed=0, accepted=0)
    assert len(stage.texts()) == 2
    stage.pass_time(100)
    stage.dispatched(accepted=8)
    assert len(stage.texts()) == 10
    stage.put("transports.texts", fail=[{"match": "+447700900011", **LATER, "scope": "destination"}])
    stage.bulk(text(21, "+447700900011"), text(22, "+447700900012"))
    stage.dispatched(accepted=1, rate_limited=1)
    stage.pass_time(130)
    stage.dispatched(accepted=1)
    stage.audit()


@pytest.mark.parametrize("reply", ["421 4.7.0 too many messages, slow down", "450 4.7.1 rate limit exceeded"])
def test_G1_a_server_that_says_too_fast_gets_the_rest_later(stage: Stage, reply: str) -> None:
    with SmtpServer(Rule("mail", reply=reply, close=reply.startswith("421"), after=2, times=1)) as server:
        stage.to(server)
        stage.configure(lane={"concurrency": 1})
        stage.enqueue(6)
        done = stage.run("dispatch", "--json")
        assert (done.json["permanent_failure"], done.json["dead_letter"]) == (0, 0), done
        assert done.json["accepted"] >= 2
        stage.later()
        stage.run("dispatch", "--json")
        assert stage.states() == {"accepted": 6}
        stage.audit(server)


UNREADABLE: dict[int, Any] = {
    1: b"OK\r\n", 2: b"\r\n", 3: b"<html>Service Unavailable</html>\r\n", 4: b"999 what\r\n", 5: b"354 go on\r\n",
    6: b"\x00\xff\xfe\r\n",
}  # fmt: skip


def test_G2_an_answer_that_says_neither_yes_nor_no_is_never_called_sent(stage: Stage) -> None:
    """After the final dot. Relatives: no code, an empty line, a page of HTML (G3), a code that means nothing here. An
    answer that refuses is a refusal whatever friendly words follow."""
    rules = [answers(number, "dot", reply) for number, reply in UNREADABLE.items()]
    rules.append(answers(8, "dot", "554 2.0.0 OK queued"))
    with SmtpServer(*rules) as server:
        stage.to(server)
        stage.enqueue(9)
        stage.run("dispatch", "--json")
        stage.later()
        server.rules.clear()
        stage.run("dispatch", "--json")
        assert stage.listed("ambiguous") == set(UNREADABLE)
        assert stage.numbers("d.state = 'accepted'") == {7, 9}, "the next ones were unaffected"
        assert stage.delivery(8) == "permanent_failure"
        stage.audit(server)


def test_G3_a_page_instead_of_a_greeting_is_tried_again_and_charges_nobody(stage: Stage) -> None:
    """An outage page where a protocol belongs, before anything was said; its relative after the dot is G2's. No word of
    it is printed, and it is no reason to send anything twice."""
    page = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/html\r\n\r\n<html>canary-body</html>\r\n"
    with SmtpServer(Rule("banner", reply=page, close=True)) as server:
        stage.to(server)
        stage.enqueue(3)
        done = stage.told("dispatch", "--json", code=75)
        assert done.json["accepted"] == 0
        assert stage.sql("SELECT max(attempts_used) FROM notify_delivery") == [(0,)]
        server.rules.clear()
        stage.later()
        stage.dispatched(accepted=3)
        stage.audit(server)


def test_G5_a_server_that_names_another_address_is_not_followed(stage: Stage) -> None:
    """SMTP's own redirects: 551 with another address, 251 that forwards by itself, 556 for a domain that takes none."""
    other = "other@elsewhere.example"
    replies = {1: f"551 5.1.6 please try <{other}>", 2: f"251 will forward to <{other}>", 3: "556 5.1.10 no mail"}
    rules = [answers(number, "rcpt", reply) for number, reply in replies.items()]
    with SmtpServer(*rules) as server:
        stage.to(server)
        stage.enqueue(4)
        done = stage.run("dispatch", "--json")
        assert other not in done.out + done.err
        assert other not in " ".join(server.commands)
        assert stage.delivery(1) in ("permanent_failure", "suppressed")
        assert sorted(reached(server.messages)) == [2, 4]
        shown = stage.told("inspect", "delivery", str(stage.delivery(1, "id")), "--json")
        assert other not in shown.out
        stage.audit(server)


@pytest.mark.parametrize("fault", ["expired", "another host", "an unknown authority", "no STARTTLS"])
def test_G6_no_secret_and_no_mail_goes_to_a_server_that_cannot_prove_itself(
    stage: Stage, tmp_path: Path, fault: str
) -> None:
    """Nothing is charged, one alert, one exit code. Relatives: expired, of another host, of an unknown authority, none
    offered. (Implicit TLS and a stripped STARTTLS: tests/transports/test_smtp_tls.py.)"""
    (tmp_path / "other").mkdir()
    name = "mail.elsewhere.example" if fault == "another host" else "127.0.0.1"
    trusted, context = certificate(tmp_path, name, days=-1 if fault == "expired" else 1)
    if fault == "an unknown authority":
        trusted, _ = certificate(tmp_path / "other", name)
    with SmtpServer(context=None if fault == "no STARTTLS" else context, users={"shop": SECRET}) as server:
        stage.to(server, tls="starttls", ca_file=str(trusted), username="shop", password=SECRET)
        stage.config.chmod(0o600)
        stage.enqueue(5)
        done = stage.told("dispatch", "--json", code=78)
        assert (server.messages, server.login_attempts) == ([], 0)
        assert not [command for command in server.commands if command.startswith(("MAIL", "AUTH"))]
        assert stage.states() == {"queued": 5}
        assert stage.sql("SELECT max(attempts_used) FROM notify_delivery") == [(0,)]
        assert done.json["unavailable"] >= 1
        assert len(server.connections) <= 2, "the run ends at the first"
        spoken = stage.told("dispatch", "--verbose")
        assert len(spoken.out.splitlines()) <= 1, "its gate is closed: nothing is tried again"
        good, context = certificate(tmp_path, "127.0.0.1")
        server.context = context
        stage.to(server, ca_file=str(good))
        stage.later()
        stage.dispatched(accepted=5)
        assert all(message.tls and message.login == "shop" for message in server.messages)
        stage.audit(server)


def _drops(phase: str, reply: str | None) -> list[Rule]:
    return [Rule(phase, reply=reply, close=True, when=lambda it: it.messages >= 3)]


@pytest.mark.parametrize("phase", ["mail", "rset", "data"])
@pytest.mark.parametrize("reply", ["421 4.3.2 closing", None], ids=["421", "eof"])
def test_G8_a_server_that_drops_after_three_gets_all_twelve(stage: Stage, phase: str, reply: str | None) -> None:
    """With a word of goodbye or without; at the next MAIL, RSET or DATA."""
    with SmtpServer(*_drops(phase, reply)) as server:
        stage.to(server)
        stage.configure(lane={"concurrency": 2})
        stage.enqueue(12)
        for _ in range(4):
            done = stage.run("dispatch", "--json")
            assert (done.json["permanent_failure"], done.json["ambiguous"], done.json["dead_letter"]) == (0, 0, 0)
            if stage.states() == {"accepted": 12}:
                break
            stage.later()
        assert sorted(reached(server.messages)) == list(range(1, 13))
        stage.audit(server)


def test_G8_a_servers_cap_can_be_told_in_advance(stage: Stage) -> None:
    """Five per connection: configured, no connection is ever refused a sixth."""
    full = Rule("mail", reply="421 4.7.0 enough", close=True, when=lambda it: it.messages >= 5)
    with SmtpServer(full) as server:
        stage.to(server, max_messages_per_connection=5)
        stage.configure(lane={"concurrency": 1})
        stage.enqueue(12)
        stage.dispatched(accepted=12, temporary_failure=0, unavailable=0)
        assert [one.messages for one in server.connections] == [5, 5, 2]
        stage.audit(server)


@pytest.mark.parametrize("auth", ["PLAIN LOGIN", "LOGIN"])
def test_G11_a_changed_password_stops_the_run_at_its_first_login(stage: Stage, auth: str) -> None:
    """Fifty rows, ten connections at once. Relatives: both ways of logging in, a password file that changed, several
    runs before somebody mends it."""
    secret = stage.path / "secret"
    secret.write_text("the old one")
    secret.chmod(0o600)
    with SmtpServer(users={"shop": SECRET}, auth=auth) as server:
        stage.to(server, username="shop", password_file=str(secret))
        stage.enqueue(50)
        done = stage.told("dispatch", "--json", code=78)
        assert server.login_attempts == 1, "one login"
        assert done.json["accepted"] == 0
        assert stage.states() == {"queued": 50}
        assert stage.sql("SELECT max(attempts_used) FROM notify_delivery") == [(0,)]
        stage.dispatched()
        assert server.login_attempts == 1, "the next run waits for the breaker"
        stage.later()
        stage.told("dispatch", code=78)
        assert server.login_attempts == 2, "one probe"
        secret.write_text(SECRET)
        stage.later()
        stage.dispatched(accepted=50)
        assert stage.states() == {"accepted": 50}
        stage.audit(server)
