"""Relays that allow few sessions, and lanes that share one: nobody waits in vain, nothing is in doubt."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from tests.site import Site, reached
from tests.smtp_server import Connection, Rule, SmtpServer


def few(server: SmtpServer, sessions: int) -> None:
    """Turn away whoever comes while so many sessions are open."""

    def more(_: Connection) -> bool:
        return sum(not one.ended.is_set() for one in server.connections) > sessions

    server.rule("banner", reply="421 4.7.0 too many connections", close=True, when=more)


def test_a_slow_relay_that_allows_two_sessions_makes_no_doubt(tmp_path: Path, migrated_url: str) -> None:
    with SmtpServer(Rule("dot", delay=0.7)) as server, Site(tmp_path / "site", migrated_url, server.port) as site:
        few(server, 2)
        site.configure(relay={"deadline": "2s"}, lane={"concurrency": 10})
        site.publish()
        site.enqueue(20)
        runs: list[Any] = []
        while site.states() != {"accepted": 20}:
            assert len(runs) < 8, runs
            runs.append(site.dispatch().json)
            site.later()
        assert Counter(reached(server.messages)) == Counter(range(1, 21))
        assert [run["ambiguous"] for run in runs] == [0] * len(runs)
        refused = site.sql("SELECT reason, count(*) FROM notify_attempt WHERE outcome <> 'accepted' GROUP BY reason")
        assert {reason for reason, _ in refused} <= {"connection_limit"}
        assert sum(count for _, count in refused) <= 8 * len(runs)  # met once in a run, by those begun before it
        assert site.sql("SELECT max(attempts_used) FROM notify_delivery") == [(1,)]
        site.audit(server)


def test_lanes_that_share_a_relay_of_few_sessions_take_turns(tmp_path: Path, migrated_url: str) -> None:
    with SmtpServer(Rule("dot", delay=0.2)) as server, Site(tmp_path / "site", migrated_url, server.port) as site:
        few(server, 2)
        site.settings["lanes.otp"] = {"channel": "email", "transport": "relay", "concurrency": 10}
        site.configure(relay={"deadline": "2s"}, lane={"concurrency": 10})
        site.publish()
        site.enqueue(30)
        site.sql("UPDATE notify_delivery SET lane = 'otp' WHERE event_id LIKE 'e2_'")
        site.sql(
            "UPDATE notify_work SET lane = 'otp' WHERE delivery_id IN "
            "(SELECT id FROM notify_delivery WHERE event_id LIKE 'e2_')"
        )
        run = site.dispatch().json
        assert (run["ambiguous"], run["released"]) == (0, 0)
        order = reached(server.messages)
        assert len(order) == run["accepted"] == 30  # those that were turned away came again in the same run
        assert max(order.index(number) for number in range(20, 30)) < 28, order


def test_behind_a_login_that_fails_one_connection_tries_it(tmp_path: Path, migrated_url: str) -> None:
    with (
        SmtpServer(Rule("auth", reply="454 4.7.0 try later"), users={"u": "p"}) as server,
        Site(tmp_path / "site", migrated_url, server.port) as site,
    ):
        site.configure(relay={"username": "u", "password": "p"}, lane={"concurrency": 10})
        site.publish()
        site.enqueue(30)
        done = site.dispatch()
        assert (server.login_attempts, len(server.connections)) == (1, 1)
        assert done.json["unavailable"] == 1
        assert site.sql("SELECT kind, level FROM notify_gate") == [("breaker", 1)]
        assert site.sql("SELECT count(*), max(attempts_used) FROM notify_delivery WHERE state = 'queued'") == [(30, 0)]
        assert site.dispatch().json["claimed"] == 0
        assert server.login_attempts == 1
