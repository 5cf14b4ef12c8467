"""Gates in real runs: pauses by hand, breakers with one probe for all processes, cool-downs by scope."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.site import DOMAIN, LONG_AGO, Site, reached
from tests.smtp_server import Rule, SmtpServer

DOWN = "454 4.7.0 try later"


def over(site: Site) -> None:
    """An administrator moves the end of every gate into the past."""
    site.sql("UPDATE notify_gate SET until = ?", LONG_AGO)


def with_login(site: Site, **lane: object) -> None:
    site.configure(relay={"username": "u", "password": "p"}, lane={"concurrency": 10, **lane})
    site.publish()


def test_after_an_outage_one_of_three_processes_tries_and_the_rest_is_released(
    tmp_path: Path, migrated_url: str
) -> None:
    with SmtpServer(users={"u": "p"}) as server, Site(tmp_path / "site", migrated_url, server.port) as site:
        down = server.rule("auth", reply=DOWN)
        with_login(site)
        site.enqueue(30)
        assert site.dispatch().code == 75
        over(site)
        down.hang = True  # the probe is out until it is released
        processes = [site.start("dispatch", "--json") for _ in range(3)]
        server.wait(lambda: server.login_attempts == 2, 60)
        ended = [one.result() for one in processes if one.goes_on_for(3) is False]
        assert len(ended) == 2
        assert [(one.json["unavailable"], one.json["claimed"] - one.json["released"]) for one in ended] == [(0, 0)] * 2
        waiting = site.dispatch("--dry-run").json["lanes"]["email"]
        assert waiting["held_by"]["probe"] == waiting["due"]
        assert site.dispatch().json["claimed"] == 0
        server.release()
        (last,) = [one.result() for one in processes if one.goes_on_for(0)] or [processes[0].result()]
        assert last.json["unavailable"] == 1
        assert (server.login_attempts, len(server.connections)) == (2, 2)
        assert site.sql("SELECT kind, level, probe_owner FROM notify_gate") == [("breaker", 2, None)]
        assert site.sql("SELECT max(attempts_used) FROM notify_delivery") == [(0,)]
        assert site.sql("SELECT count(*) FROM notify_work WHERE owner IS NOT NULL") == [(0,)]
        server.rules.remove(down)
        site.later()
        again = site.dispatch().json  # its own probe opens the gate for the rest of the run
        assert (again["accepted"], again["claimed"]) == (30, 30)
        assert server.login_attempts > 2
        assert site.sql("SELECT count(*) FROM notify_gate") == [(0,)]
        actions = [action for (action,) in site.sql("SELECT action FROM notify_gate_trail ORDER BY id")]
        assert actions == ["closed", "probed", "closed", "probed", "opened"]


def test_each_failed_probe_doubles_the_wait_up_to_a_quarter_of_an_hour(tmp_path: Path, migrated_url: str) -> None:
    with (
        SmtpServer(Rule("auth", reply=DOWN), users={"u": "p"}) as server,
        Site(tmp_path / "site", migrated_url, server.port) as site,
    ):
        with_login(site)
        site.configure(relay={"cooldown": "100s"})
        site.enqueue(3)
        for wait in (100, 200, 400, 800, 900):
            assert site.dispatch().json["unavailable"] == 1
            row = "SELECT at, until FROM notify_gate_trail WHERE action = 'closed' ORDER BY id DESC LIMIT 1"
            query = f"SELECT {_seconds(site)} FROM ({row}) AS t"
            assert float(site.sql(query)[0][0]) == pytest.approx(wait, abs=0.01)
            site.later()
        assert server.login_attempts == 5


def _seconds(site: Site) -> str:
    if site.url.startswith("sqlite:"):
        return "(julianday(t.until) - julianday(t.at)) * 86400"
    return "extract(epoch FROM t.until - t.at)"


def test_a_probe_that_is_refused_for_its_recipients_sake_opens_the_gate_too(tmp_path: Path, migrated_url: str) -> None:
    with (
        SmtpServer(Rule("rcpt", reply="550 5.1.1 no such user", when=lambda it: "r1@" in it.recipient)) as server,
        Site(tmp_path / "site", migrated_url, server.port) as site,
    ):
        site.publish()
        site.enqueue(3)
        down = server.rule("banner", reply="554 5.3.2 closed", close=True)
        site.dispatch()
        server.rules.remove(down)
        site.later()
        run = site.dispatch().json
        assert (run["accepted"], run["suppressed"] + run["permanent_failure"]) == (2, 1)


def test_a_pause_stops_a_running_dispatch_and_what_it_holds_goes_back(tmp_path: Path, migrated_url: str) -> None:
    with SmtpServer() as server, Site(tmp_path / "site", migrated_url, server.port) as site:
        site.configure(lane={"concurrency": 1})
        site.publish()
        site.enqueue(5)
        server.rule("dot", hang=True)
        running = site.start("dispatch", "--json")
        running.until(server, lambda: any("dot" in one.phases for one in server.connections))
        said = site.run("lane", "pause", "email", "--reason", "moving house", "--json").json
        assert (said["changed"], [one["state"] for one in said["gates"]]) == (True, ["pause"])
        server.release()
        done = running.result()
        assert (done.code, done.json["accepted"], done.json["released"]) == (0, 1, 4)
        assert done.json["lanes"]["email"]["stopped"] == "gate"
        assert site.dispatch("--dry-run").json == {
            "would_claim": 0, "lanes": {"email": {"due": 4, "held_by": {"pause": 4}}},
        }  # fmt: skip
        (row,) = [n for n in range(1, 6) if site.delivery(n) == "queued"][:1]
        why = site.run("inspect", "delivery", str(site.delivery(row, "id")), "--json").json["why"]
        assert [(one["reason"], one["until"], one["detail"]) for one in why] == [
            ("gate", None, "lane email: pause (moving house)")
        ]
        listed = site.run("lane", "list").out
        assert "pause until resumed" in listed
        assert "moving house" in listed
        assert "resumed" in site.run("lane", "resume", "email", "--reason", "moved").out
        assert site.dispatch().json["accepted"] == 4
        actors = site.sql("SELECT action, reason, actor FROM notify_gate_trail ORDER BY id")
        assert [(action, reason) for action, reason, _ in actors] == [("closed", "moving house"), ("opened", "moved")]
        assert all(actor for *_, actor in actors)
        site.audit(server)


def test_pausing_and_resuming_say_what_was_and_a_dry_run_changes_nothing(tmp_path: Path, migrated_url: str) -> None:
    with Site(tmp_path / "site", migrated_url) as site:
        done = site.run("lane", "resume", "email", "--reason", "x")
        assert (done.code, done.out) == (0, "lane email is not paused: nothing to resume\n")
        assert "would be paused" in site.run("lane", "pause", "email", "--reason", "x", "--dry-run").out
        assert site.sql("SELECT count(*) FROM notify_gate") == [(0,)]
        assert site.run("lane", "pause", "email", "--reason", "first").code == 0
        assert "paused already, by" in site.run("lane", "pause", "email", "--reason", "second").out
        assert site.sql("SELECT reason FROM notify_gate") == [("first",)]
        unknown = site.run("lane", "pause", "emial", "--reason", "x")
        assert unknown.code == 2
        assert "configured are email" in unknown.err
        assert site.run("lane", "pause", "email").code == 2


def test_a_cool_down_by_account_closes_the_transport_and_one_by_destination_its_row(
    tmp_path: Path, migrated_url: str
) -> None:
    once = {"outcome": "rate_limited", "times": 1}
    with Site(tmp_path / "site", migrated_url) as site:
        site.settings["transports.relay"] = {
            "kind": "file", "path": "out", "from": "Shop <no-reply@shop.example>",
            "fail": [
                {"match": f"r1@{DOMAIN}", **once, "scope": "destination", "retry_after": "7m"},
                {"match": f"r3@{DOMAIN}", **once, "scope": "account", "retry_after": "9m"},
            ],
        }  # fmt: skip
        site.configure(lane={"concurrency": 1})
        site.publish()
        site.enqueue(5)
        run = site.dispatch().json
        assert (run["accepted"], run["rate_limited"]) == (1, 2)
        waits = {number: _until(site, number) for number in (1, 3, 4)}
        assert 410 < waits[1] <= 420
        assert 530 < waits[3] <= 540
        assert waits[4] <= 0
        (gate,) = site.run("lane", "list", "--json").json[0]["gates"]
        assert (gate["scope"], gate["kind"], gate["state"], gate["level"]) == ("transport", "cooldown", "cooldown", 1)
        assert site.sql("SELECT max(attempts_used), count(*) FROM notify_delivery WHERE state = 'queued'") == [(0, 4)]
        site.later()
        assert site.dispatch().json["accepted"] == 4


def _until(site: Site, number: int) -> float:
    """Seconds until a row is eligible, by the ledger's own clock."""
    left = "extract(epoch FROM w.eligible_at - now())"
    if site.url.startswith("sqlite:"):
        left = "(julianday(w.eligible_at) - julianday('now')) * 86400"
    ((seconds,),) = site.sql(
        f"SELECT {left} FROM notify_work w JOIN notify_delivery d ON d.id = w.delivery_id WHERE d.event_id = ?",
        f"e{number}",
    )
    return float(seconds)


@pytest.mark.parametrize("kind", ["unavailable", "rate_limited"])
def test_what_charges_nothing_still_ends_when_it_is_given_up(tmp_path: Path, migrated_url: str, kind: str) -> None:
    with Site(tmp_path / "site", migrated_url) as site:
        site.settings["transports.relay"] = {
            "kind": "file", "path": "out", "from": "Shop <no-reply@shop.example>",
            "fail": [{"match": "*", "outcome": kind}],
        }  # fmt: skip
        site.configure(lane={"give_up_after": "3d"})
        site.publish()
        site.enqueue(1)
        site.dispatch()
        assert site.delivery(1, "state, attempts_used") == ("queued", 0)
        site.sql("UPDATE notify_delivery SET first_tried_at = ?", LONG_AGO)
        site.later()
        site.dispatch()
        assert site.delivery(1, "state, attempts_used") == ("dead_letter", 0)
        assert site.sql("SELECT count(*) FROM notify_work") == [(0,)]


def test_a_mail_is_sent_once_however_often_the_gate_moved(tmp_path: Path, migrated_url: str) -> None:
    with (
        SmtpServer(Rule("mail", reply="451 4.3.0 not now", close=True, times=2)) as server,
        Site(tmp_path / "site", migrated_url, server.port) as site,
    ):
        site.publish()
        site.enqueue(4)
        for _ in range(4):
            site.dispatch()
            site.later()
        assert sorted(reached(server.messages)) == [1, 2, 3, 4]
        site.audit(server)


def test_an_unknown_lane_is_named_with_those_there_are_in_json_too(tmp_path: Path, migrated_url: str) -> None:
    with Site(tmp_path / "site", migrated_url) as site:
        done = site.run("lane", "resume", "x", "--reason", "y", "--json")
        assert (done.code, done.out) == (2, "")
        assert '"hint": "configured are email"' in done.err
