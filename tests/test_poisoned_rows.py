"""One row that nobody can read never stops the rows beside it, and is said to be what it is."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.ledger.databases import Database
from tests.ledger.test_odd_values import CATALOGUE, TIMES
from tests.site import Site
from tests.smtp_server import SmtpServer

DIGITS = "9" * 6000


def poison(site: Site, number: int, **columns: str) -> None:
    """A row as any SQL may write it; the values are SQL."""
    given = {"event_id": f"'p{number}'", "recipient_id": f"'p{number}'", "channel": "'email'", "template": "'note'",
             "destination": f"'p{number}@rcpt.example'", "variables": "'{\"name\": \"x\"}'", **columns}  # fmt: skip
    site.sql(f"INSERT INTO notify_delivery ({', '.join(given)}) VALUES ({', '.join(given.values())})")


def test_rows_that_cannot_be_read_are_refused_one_by_one(tmp_path: Path, migrated_url: str) -> None:
    with SmtpServer() as server, Site(tmp_path / "site", migrated_url, port=server.port) as site:
        site.publish()
        poison(site, 1, attachments="'[1]'")
        poison(site, 2, attachments="'[{\"file\": \"x\"}]'")
        poison(site, 3, variables=f"'{{\"name\": {DIGITS}}}'")  # JSON of both databases; sent as the text it is
        poison(site, 4, template="'nowhere'")
        poison(site, 5, destination="'a@b@c'")
        if migrated_url.startswith("sqlite"):
            poison(site, 6, variables="cast(x'7b226e616d65223a22ff227d' AS text)")
            poison(site, 7, locale="cast(x'ff' AS text)")
            poison(site, 8, template="cast(x'6e6f7465ff' AS text)")
            poison(site, 9, template_version="cast(x'31ff' AS text)")
            poison(site, 10, lane="cast(x'ff' AS text)", template="cast(x'6e6f7465ff' AS text)")
        site.enqueue(3)
        done = site.dispatch()
        assert done.code == 3
        assert {m.recipient for m in server.messages} >= {f"r{n}@rcpt.example" for n in (1, 2, 3)}
        for command in (["inspect"], ["inspect", "deliveries", "--json"], ["inspect", "delivery", "1", "--json"]):
            assert site.run(*command).code == 0
        states = dict(site.sql("SELECT event_id, state FROM notify_delivery WHERE event_id LIKE 'p%'"))
        reasons = dict(site.sql("SELECT event_id, reason FROM notify_delivery WHERE event_id LIKE 'p%'"))
        assert (states["p1"], reasons["p1"]) == ("permanent_failure", "attachments_unreadable")
        assert (states["p2"], reasons["p2"]) == ("permanent_failure", "attachments_unreadable")
        assert states["p3"] == "accepted"
        assert states["p4"] == "queued"
        assert (states["p5"], reasons["p5"]) == ("permanent_failure", "destination_invalid")
        assert site.run("requeue", "1", "--reason", "again", "--json").code == 0
        assert all("p" + n not in states or states["p" + n] != "sending" for n in "678")


@pytest.mark.parametrize("value", ["1e999", "-1e999", "NaN", "Infinity", '"\\u0000"', '"\\ud800"'])
def test_a_value_no_database_stores_rejects_its_row_alone(tmp_path: Path, migrated_url: str, value: str) -> None:
    with Site(tmp_path / "site", migrated_url) as site:
        site.publish()
        row = '"recipient": "r", "channel": "email", "template": "note", "to": {"email": "r@x.example"}'
        lines = [f'{{"event": "e{n}", {row}, "vars": {{"name": {value if n == 2 else 1}}}}}' for n in (1, 2, 3)]
        (site.path / "rows.ndjson").write_text("\n".join(lines), encoding="utf-8")
        done = site.run("enqueue", "--from", "rows.ndjson", "--json")
        assert (done.code, done.json["enqueued"], done.json["rejected"]) == (65, 2, 1)
        assert [error["row"] for error in done.json["errors"]] == [2]
        single = site.run("enqueue", "--event", "s", "--recipient", "r", "--channel", "email", "--template", "note",
                          "--vars", f'{{"name": {value}}}', "--to", "email=r@x.example")  # fmt: skip
        assert single.code == 65


def test_a_transport_that_cannot_be_opened_keeps_its_own_lane_waiting_and_no_other(
    tmp_path: Path, migrated_url: str
) -> None:
    with SmtpServer() as server, Site(tmp_path / "site", migrated_url, port=server.port) as site:
        site.settings["transports.broken"] = {
            "kind": "smtp", "host": "127.0.0.1", "port": 1, "from": "a@x.example", "username": "u",
            "password_env": "NOPE",
        }  # fmt: skip
        site.settings["transports.nobody"] = {"kind": "smtp", "host": "127.0.0.1", "port": 1, "from": "nobody"}
        site.settings["lanes.urgent"] = {"channel": "email", "transport": "broken"}
        site.settings["lanes.bulk"] = {"channel": "email", "transport": "nobody"}
        site.configure()
        site.publish()
        site.enqueue(1)
        poison(site, 1, lane="'urgent'")
        poison(site, 2, lane="'bulk'")
        done = site.dispatch()
        assert done.code == 78
        assert done.json["accepted"] == 1
        site.later()
        told = site.run("dispatch")
        assert told.code == 78
        assert "sender_invalid" in told.err
        assert "transports.broken" in told.err
        assert site.states() == {"accepted": 1, "queued": 2}


def test_a_lapsed_attempt_that_nothing_can_settle_is_a_persons_at_once(tmp_path: Path, migrated_url: str) -> None:
    from tests.smtp_server import Rule

    with SmtpServer(Rule("dot", hang=True)) as server, Site(tmp_path / "site", migrated_url, port=server.port) as site:
        site.publish()
        site.enqueue(1)
        running = site.start("dispatch")
        running.until(server, lambda: len(server.messages) == 1)
        running.kill()
        site.quiet()
        site.later()
        done = site.dispatch()
        assert (done.code, done.json["held"], done.json["leases_recovered"]) == (3, 1, 1)
        overview = json.loads(site.run("inspect", "--json").out)
        assert [(one["what"], one["count"]) for one in overview["needs_person"]] == [("held_ambiguous", 1)]


def test_the_log_names_each_attempt_and_no_address(tmp_path: Path, migrated_url: str) -> None:
    with SmtpServer() as server, Site(tmp_path / "site", migrated_url, port=server.port) as site:
        site.settings["log"] = {"file": "notifyctl.log", "format": "json"}
        site.configure()
        site.publish()
        site.enqueue(2)
        assert site.dispatch().json["accepted"] == 2
        lines = [json.loads(line) for line in (site.path / "notifyctl.log").read_text(encoding="utf-8").splitlines()]
        assert {(line["event"], line["outcome"]) for line in lines} == {("e1", "accepted"), ("e2", "accepted")}
        assert "rcpt.example" not in (site.path / "notifyctl.log").read_text(encoding="utf-8")


TICKS = (["dispatch"], ["poll-receipts"], ["reconcile"], ["enqueue", "--event", "n", "--recipient", "r-1", "--channel",
         "email", "--template", "note", "--vars", '{"name": "x"}', "--to", "email=a@rcpt.example"])  # fmt: skip
VIEWS = (["inspect"], ["inspect", "deliveries"], ["inspect", "delivery", "1"], ["inspect", "delivery", "2"],
         ["inspect", "event", "e1"], ["inspect", "runs"], ["lane", "list"], ["recipient", "show", "r-1"],
         ["suppression", "list"], ["consent", "show", "--recipient", "r-1"], ["template", "list"])  # fmt: skip
HANDS = (["requeue", "3", "--reason", "again"], ["cancel", "4", "--reason", "no"],
         ["prune", "--older-than", "1d", "--yes"])  # fmt: skip


def times(site: Site) -> dict[str, list[str]]:
    """The time columns of the tables whose rows may be changed, from the catalogue."""
    fixed = {f"notify_{name}" for name in ("schema", "meta", "template", "endpoint", "suppression", "consent")}
    found: dict[str, list[str]] = {}
    for table, column, kind in site.sql(CATALOGUE["sqlite" if site.url.startswith("sqlite:") else "postgresql"]):
        if table not in fixed and (kind.startswith("timestamp") or (kind == "TEXT" and column in TIMES)):
            found.setdefault(table, []).append(column)
    return found


@pytest.mark.parametrize("moment", ["1970-01-01 00:00:00.000000", "9999-12-31 23:59:59.999999"])
def test_the_first_and_the_last_moment_in_every_row_crash_no_command(
    tmp_path: Path, migrated_url: str, moment: str
) -> None:
    with SmtpServer() as server, Site(tmp_path / "site", migrated_url, port=server.port) as site:
        site.configure(lane={"rate": "100/s"}, relay={"rate": "1000/d"})
        site.publish()
        site.enqueue(4)
        assert site.dispatch("--limit", "1").code == 0
        zone = "" if site.url.startswith("sqlite:") else "Z"
        with Database(site.url) as database:
            at = {"at": moment + zone, "recipient_id": "r-1", "channel": "email"}
            database.insert("notify_gate", scope="transport", name="relay", kind="cooldown", until=moment + zone)
            database.insert("notify_endpoint", address="a@rcpt.example", **at)
            database.insert("notify_consent", topic="t", granted="1", **at)
            database.insert("notify_suppression", lifted="1", **at)
        site.sql("UPDATE notify_work SET step = 'resolve' WHERE delivery_id = 2")
        site.sql("UPDATE notify_delivery SET state = 'ambiguous' WHERE id = 2")
        site.sql("UPDATE notify_delivery SET state = 'dead_letter' WHERE id = 3")
        site.sql("DELETE FROM notify_work WHERE delivery_id = 3")
        bad = []
        for part in (TICKS, VIEWS, HANDS):
            for table, columns in times(site).items():
                for column in columns:
                    edge = "9998-12-31 00:00:00.000000" if table == "notify_pace" and moment > "9" else moment
                    site.sql(f"UPDATE {table} SET {column} = ? WHERE {column} IS NOT NULL", edge + zone)
            for command in part:
                done = site.run(*command, "--json")
                if done.code not in (0, 3, 65, 75):
                    bad.append((command, done.code, done.out[-300:], done.err[-1500:]))
        assert bad == []


def test_an_argument_that_is_no_text_names_nothing(tmp_path: Path, migrated_url: str) -> None:
    with Site(tmp_path / "site", migrated_url) as site:
        for command in (["template", "show"], ["template", "preview"], ["inspect", "event"]):
            done = site.run(*command, os.fsdecode(b"a\xffb"))
            assert done.code in (2, 65), (command, done)
