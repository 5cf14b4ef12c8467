"""`notifyctl reconcile` as a process, with a mail server and a folder that prove what they can."""

from __future__ import annotations

from email import message_from_bytes
from pathlib import Path

import pytest

from tests.cli.rig import environment
from tests.scripted import Desk
from tests.site import LONG_AGO, Site
from tests.smtp_server import Rule, SmtpServer


def test_smtp_proves_nothing_so_a_lost_reply_is_held_then_reviewed(tmp_path: Path, migrated_url: str) -> None:
    with SmtpServer() as server, Site(tmp_path / "site", migrated_url, port=server.port) as site:
        site.publish()
        site.configure(relay={"deadline": "2s"})
        site.enqueue(1)
        site.sql("UPDATE notify_work SET eligible_at = ?", LONG_AGO)
        # as a killed dispatch leaves it
        site.sql(
            "INSERT INTO notify_attempt (delivery_id, number, run, fencing_token, transport, started) "
            "SELECT id, 1, 'dead', 1, 'relay', due_at FROM notify_delivery"
        )
        site.sql("UPDATE notify_delivery SET state = 'sending', transport = 'relay', first_tried_at = due_at")
        site.sql("UPDATE notify_work SET step = 'resolve', owner = 'dead', fencing_token = 1")
        done = site.run("reconcile", "--json")
        assert (done.code, done.json["leases_recovered"], done.json["held"]) == (3, 1, 1), done
        assert site.run("reconcile", "--json").json["run"] is None
        site.sql("UPDATE notify_delivery SET doubt_since = ?", LONG_AGO)
        site.later()
        done = site.run("reconcile")
        assert (done.code, done.out) == (3, ""), done
        assert "review_passed (1)" in done.err
        assert site.delivery(1) == "dead_letter"
        assert server.messages == []


def test_a_mail_whose_reply_is_lost_goes_again_only_at_a_persons_word(tmp_path: Path, migrated_url: str) -> None:
    """On the wire: taken, and no reply to the final dot. Held at once, nothing sends it, and its review ends it."""
    hangs = Rule("dot", hang=True, times=1)
    with SmtpServer(hangs) as server, Site(tmp_path / "site", migrated_url, port=server.port) as site:
        site.publish()
        site.configure(relay={"deadline": "2s"})
        site.enqueue(1)
        done = site.dispatch()
        assert (done.code, done.json["ambiguous"], done.json["held"]) == (3, 1, 1), done
        done = site.run("reconcile", env=environment())
        assert (done.code, done.out, done.err) == (0, "", "")
        assert site.dispatch().json["claimed"] == 0
        site.sql("UPDATE notify_delivery SET doubt_since = ?", LONG_AGO)
        site.later()
        assert site.run("reconcile", "--json").code == 3
        assert site.delivery(1, "state, reason") == ("dead_letter", "review_passed")
        assert len(server.messages) == 1
        assert site.run("requeue", "1", "--reason", "again", "--yes", "--json").json["refused"] == 1
        done = site.run("requeue", "1", "--accept-duplicate", "--reason", "again", "--yes", "--json")
        assert done.json["requeued"] == 1
        assert site.dispatch().json["accepted"] == 1
        first, second = (message_from_bytes(message.raw) for message in server.messages)
        assert (first["Message-ID"], first["Date"]) == (second["Message-ID"], second["Date"])
        assert site.dispatch().json["claimed"] == 0


@pytest.mark.parametrize("written", [True, False])
def test_a_folder_knows_what_it_holds(tmp_path: Path, migrated_url: str, written: bool) -> None:
    with Site(tmp_path / "site", migrated_url) as site:
        site.settings["transports.relay"] = {"kind": "file", "path": "out", "from": "no-reply@shop.example"}
        site.configure()
        site.config.write_text(
            site.config.read_text().replace(
                "[lanes.email]",
                f'fail = [{{ match = "*", outcome = "ambiguous", after_accept = {str(written).lower()}, times = 1 }}]\n'
                "[lanes.email]",
            )
        )
        site.publish()
        site.enqueue(1)
        assert site.dispatch().json["ambiguous"] == 1
        site.later()
        rehearsed = site.run("reconcile", "--dry-run", "--json").json
        assert (rehearsed["run"], rehearsed["in_doubt"], site.delivery(1)) == (None, 1, "ambiguous")
        done = site.run("reconcile", "--json").json
        assert (done["found"], done["absent"]) == ((1, 0) if written else (0, 1)), done
        site.later()
        site.dispatch()
        assert len(list((site.path / "out" / "mail" / "new").iterdir())) == 1


def test_an_idle_reconcile_writes_nothing_and_says_nothing(tmp_path: Path, migrated_url: str) -> None:
    with Site(tmp_path / "site", migrated_url) as site:
        site.publish()
        site.enqueue(1)
        done = site.run("reconcile", env=environment())
        assert (done.code, done.out, done.err) == (0, "", "")
        assert site.sql("SELECT count(*) FROM notify_run WHERE command = 'reconcile'") == [(0,)]


def test_the_receiving_region_cannot_be_the_lost_one(tmp_path: Path, migrated_url: str) -> None:
    with Site(tmp_path / "site", migrated_url) as site:
        done = site.run("reconcile", "--take-over", "eu", "--region", "eu")
        assert done.code == 2
        assert "--region" in done.err


def test_a_lost_region_that_holds_nothing_is_a_typing_error_to_be_shown(tmp_path: Path, migrated_url: str) -> None:
    with Site(tmp_path / "site", migrated_url) as site:
        site.publish()
        site.enqueue(1)
        site.sql("UPDATE notify_work SET region = 'eu-west'")
        site.sql("UPDATE notify_delivery SET region = 'eu-west'")
        done = site.run("reconcile", "--take-over", "eu-wets")
        assert "region 'eu-wets' holds no work" in done.err
        assert "holds no work" not in site.run("reconcile", "--take-over", "eu-west").err
        assert site.sql("SELECT region FROM notify_work") == [("",)]


def test_a_look_up_that_failed_is_not_called_nothing_due(tmp_path: Path, migrated_url: str) -> None:
    with Desk(tmp_path / "desk", migrated_url) as desk:
        desk.intend(1, to="lost1@rcpt.example")
        desk.dispatched()
        desk.later()
        (desk.provider / "down").write_text("timeout")
        done = desk.start("reconcile").result()
        assert done.code == 75, done
        assert "reconcile: nothing has changed" in done.err
        assert "timeout (1)" in done.err
