"""A mail server's faults, seen from the command line: one bad row, refusals, logins, closing sessions, TLS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.certificates import certificate
from tests.site import DOMAIN, Site, reached
from tests.smtp_server import Rule, SmtpServer

UNSPENT = "SELECT count(*) FROM notify_delivery WHERE attempts_used = 0 AND state = 'queued'"


def test_one_unbuildable_row_blocks_nothing_and_is_shown_to_a_person(tmp_path: Path, migrated_url: str) -> None:
    """Malformed addresses that only plain SQL can have stored."""
    bad = {2: "not an address", 3: f"a@b@{DOMAIN}", 4: f"x@{DOMAIN}\r\nRCPT TO:<y@{DOMAIN}>", 5: " "}
    with SmtpServer() as server, Site(tmp_path, migrated_url, server.port) as site:
        site.publish()
        for number in range(1, 10):
            site.sql(
                "INSERT INTO notify_delivery (event_id, recipient_id, channel, template, variables, destination) "
                "VALUES (?, ?, 'email', 'note', '{\"name\": \"Ann\"}', ?)",
                f"e{number}", f"r-{number}", bad.get(number, f"r{number}@{DOMAIN}"),
            )  # fmt: skip
        done = site.run("dispatch")
        assert done.code == 3
        assert done.out == ""
        assert len(done.err.splitlines()) == 1
        assert "destination_invalid (4)" in done.err
        assert sorted(reached(server.messages)) == [1, 6, 7, 8, 9]
        for number in bad:
            state, reason, used = site.delivery(number, "state, reason, attempts_used")
            assert (state, reason, used) == ("permanent_failure", "destination_invalid", 0)
        again = site.run("dispatch")
        assert (again.code, again.out, again.err) == (0, "", ""), "said once"
        site.audit(server)


def test_only_what_needs_a_person_is_said_and_in_one_line(tmp_path: Path, migrated_url: str) -> None:
    with SmtpServer(Rule("rcpt", reply="554 5.7.1 no", times=3)) as server, Site(tmp_path, migrated_url) as site:
        site.configure(relay={"port": server.port})
        site.publish()
        site.enqueue(3)
        refused = site.run("dispatch")
        assert (refused.code, refused.out) == (3, "")
        assert len(refused.err.splitlines()) == 1, refused.err
        assert "3 permanent failure" in refused.err
        assert "notifyctl inspect" in refused.err
        for quiet in ([], ["--quiet"]):
            empty = site.run("dispatch", *quiet)
            assert (empty.code, empty.out, empty.err) == (0, "", "")
        site.enqueue(2, first=4)
        fine = site.run("dispatch")
        assert (fine.code, fine.out, fine.err) == (0, "", "")
        assert sorted(reached(server.messages)) == [4, 5]
        # one address that does not exist among others is that delivery's state, not the run's
        server.rule("rcpt", reply="550 5.1.1 unknown", times=1)
        site.enqueue(3, first=6)
        one = site.run("dispatch")
        assert (one.code, one.out, one.err) == (0, "", "")
        assert site.states() == {"permanent_failure": 3, "accepted": 4, "suppressed": 1}
        site.audit(server)


def test_a_refused_login_is_tried_once_and_spends_nothing(tmp_path: Path, migrated_url: str) -> None:
    with SmtpServer(users={"shop": "right"}) as server, Site(tmp_path, migrated_url, server.port) as site:
        secret = tmp_path / "password"
        secret.write_text("stale-and-wrong\n")
        secret.chmod(0o600)
        site.configure(relay={"username": "shop", "password_file": str(secret)})
        site.config.chmod(0o600)
        site.publish()
        site.enqueue(50)
        done = site.run("dispatch")
        assert done.code == 78, done
        assert done.out == ""
        assert len(done.err.splitlines()) == 1
        assert "stale-and-wrong" not in done.err
        assert server.login_attempts == 1
        assert site.sql(UNSPENT) == [(50,)]
        waiting = site.run("dispatch")
        assert waiting.code == 0
        assert server.login_attempts == 1, "while the gate is closed nobody knocks"
        secret.write_text("right\n")
        site.later()
        fixed = site.dispatch()
        assert (fixed.code, fixed.json["accepted"]) == (0, 50)
        assert sorted(reached(server.messages)) == list(range(1, 51))
        site.audit(server)


def test_a_server_that_closes_after_three_and_then_takes_nobody_leaves_the_rest_due(
    tmp_path: Path, migrated_url: str
) -> None:
    rules = (
        Rule("mail", reply="421 4.3.2 closing", close=True, when=lambda it: it.messages >= 3),
        Rule("connect", close=True, when=lambda it: it.number > 1),
    )
    with SmtpServer(*rules) as server, Site(tmp_path, migrated_url, server.port) as site:
        site.configure(lane={"concurrency": 1})
        site.publish()
        site.enqueue(12)
        done = site.dispatch()
        assert done.code in (0, 75), done
        assert (done.json["accepted"], done.json["permanent_failure"], done.json["ambiguous"]) == (3, 0, 0)
        assert sum(count for state, count in site.states().items() if state in ("queued", "temporary_failure")) == 9
        server.rules.clear()
        site.later()
        assert site.dispatch().json["accepted"] == 9
        assert sorted(reached(server.messages)) == list(range(1, 13))
        site.audit(server)


def test_a_server_that_allows_five_mails_per_connection_gets_them_all_in_one_run(
    tmp_path: Path, migrated_url: str
) -> None:
    rule = Rule("mail", reply="421 4.7.0 enough", close=True, when=lambda it: it.messages >= 5)
    with SmtpServer(rule) as server, Site(tmp_path, migrated_url, server.port) as site:
        site.configure(lane={"concurrency": 2})
        site.publish()
        site.enqueue(12)
        done = site.dispatch()
        assert (done.code, done.json["accepted"]) == (0, 12), done
        assert sorted(reached(server.messages)) == list(range(1, 13))
        assert site.sql("SELECT max(attempts_used) FROM notify_delivery") == [(1,)]
        site.audit(server)


def test_the_cap_per_connection_is_configurable(tmp_path: Path, migrated_url: str) -> None:
    rule = Rule("mail", reply="421 4.7.0 enough", close=True, when=lambda it: it.messages >= 5)
    with SmtpServer(rule) as server, Site(tmp_path, migrated_url, server.port) as site:
        site.configure(relay={"max_messages_per_connection": 5}, lane={"concurrency": 1})
        site.publish()
        site.enqueue(12)
        assert site.dispatch().json["accepted"] == 12
        assert [connection.messages for connection in server.connections] == [5, 5, 2]
        assert all(connection.commands[-1] == "QUIT" for connection in server.connections)


def _starttls_missing(_: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    return {"users": {"shop": "right"}}, {"tls": "starttls"}


def _expired(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    trusted, context = certificate(folder, "127.0.0.1", days=-1)
    return {"context": context, "users": {"shop": "right"}}, {"tls": "starttls", "ca_file": str(trusted)}


@pytest.mark.parametrize("fault", [_starttls_missing, _expired])
def test_a_tls_fault_ends_the_run_before_anything_secret_is_said(
    fault: Any, tmp_path: Path, migrated_url: str
) -> None:
    server_options, relay = fault(tmp_path)
    with SmtpServer(**server_options) as server, Site(tmp_path, migrated_url, server.port) as site:
        site.configure(relay={**relay, "username": "shop", "password": "right"})
        site.config.chmod(0o600)
        site.publish()
        site.enqueue(12)
        done = site.run("dispatch")
        assert done.code == 78, done
        assert done.out == ""
        assert len(done.err.splitlines()) == 1
        assert "right" not in done.err
        assert len(server.connections) == 1
        assert not any(command.startswith(("AUTH", "MAIL", "RCPT", "DATA")) for command in server.commands)
        assert site.sql(UNSPENT) == [(12,)]


def test_a_server_that_is_not_there_spends_nothing_and_means_later(tmp_path: Path, migrated_url: str) -> None:
    with SmtpServer() as server, Site(tmp_path, migrated_url, server.port) as site:
        site.publish()
        site.enqueue(12)
        server.__exit__()
        done = site.run("dispatch")
        assert done.code == 75, done
        assert len(done.err.splitlines()) == 1
        assert site.sql(UNSPENT) == [(12,)]
    with SmtpServer() as server:
        site.configure(relay={"port": server.port})
        assert site.dispatch().json["claimed"] == 0, "the transport's gate is closed for a while"
        site.later()
        assert site.dispatch().json["accepted"] == 12
        site.audit(server)
