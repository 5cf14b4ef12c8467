"""A ledger restored from a backup sends nothing a second time: what may have gone out meanwhile is in doubt."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from notifyctl.ledger.connect import sqlite_path
from tests.scripted import Desk, lines
from tests.site import Site, reached
from tests.smtp_server import SmtpServer

TOMORROW = f"{datetime.now(UTC) + timedelta(days=1):%Y-%m-%d %H:%M:%S.%f}"


@pytest.fixture
def copy(migrated_url: str, tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    """Makes the backup: a copy of the ledger as it is, and its address."""

    def make() -> str:
        if migrated_url.startswith("sqlite:"):
            with sqlite3.connect(sqlite_path(migrated_url)) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.close()
            target = tmp_path / "copy.db"
            shutil.copyfile(sqlite_path(migrated_url), target)
            return f"sqlite:///{target}"
        made: str = request.getfixturevalue("postgres").create_database(template=migrated_url.rpartition("/")[2])
        return made

    return make


def restore(site: Site, url: str, when: datetime, *more: str) -> dict[str, Any]:
    """From now on the site works on the copy, which it is told was made then."""
    site.url = url
    site.configure(ledger={"url": url})
    done = site.run("migrate", "--restored-from", f"{when:%Y-%m-%dT%H:%M:%SZ}", "--json", *more)
    assert done.code == 0, done
    document: dict[str, Any] = done.json
    return document


def test_what_a_provider_can_be_asked_about_is_settled_and_goes_out_once(
    tmp_path: Path, migrated_url: str, copy: Any
) -> None:
    with Desk(tmp_path / "desk", migrated_url) as desk:
        for number in range(1, 6):
            desk.intend(number)
        desk.intend(6, due_at=TOMORROW)
        saved, when = copy(), datetime.now(UTC)
        assert json.loads(desk.beside("dispatch", "--limit", "3").out)["accepted"] == 3
        told = restore(desk, saved, when)
        assert (told["in_doubt"], told["paused"]) == (5, ["email"])
        assert json.loads(desk.beside("dispatch").out)["claimed"] == 0
        assert desk.states() == {"ambiguous": 5, "queued": 1}
        assert desk.sql("SELECT DISTINCT reason FROM notify_attempt") == [("restored",)]
        desk.later()
        desk.sql("UPDATE notify_work SET eligible_at = due_at WHERE step = 'send'")
        desk.beside("reconcile")
        assert desk.states() == {"accepted": 3, "temporary_failure": 2, "queued": 1}  # absent: certainly not sent
        desk.run("lane", "resume", "email", "--reason", "the backup is in use")
        desk.sql(
            "UPDATE notify_work SET eligible_at = ? WHERE delivery_id <> 6 AND step = 'send'",
            "2001-01-01 00:00:00.000000",
        )
        desk.beside("dispatch")
        assert desk.states() == {"accepted": 5, "queued": 1}
        assert Counter(Counter(one["key"] for one in lines(desk.provider / "sent.jsonl")).values()) == {1: 5}


def test_what_nobody_can_be_asked_about_is_held_for_a_person(tmp_path: Path, migrated_url: str, copy: Any) -> None:
    with SmtpServer() as server, Site(tmp_path / "site", migrated_url, server.port) as site:
        site.publish()
        site.enqueue(4)
        saved, when = copy(), datetime.now(UTC)
        site.dispatch("--limit", "2")
        assert len(server.messages) == 2
        foreseen = restore(site, saved, when, "--dry-run")
        assert (foreseen["in_doubt"], site.states()) == (4, {"queued": 4})
        done = site.run("migrate", "--restored-from", f"{when:%Y-%m-%dT%H:%M:%SZ}")
        assert "4 deliveries that may have been sent since" in done.out
        assert "lane resume LANE --reason TEXT" in done.out
        again = restore(site, saved, when)
        assert again["in_doubt"] == 0, "told twice, it is in doubt once"
        site.run("lane", "resume", "email", "--reason", "looked at every one")
        assert site.dispatch().code == 3
        site.later()
        site.dispatch()
        assert site.states() == {"ambiguous": 4}
        assert len(reached(server.messages)) == 2
        known = sorted(reached(server.messages))[0]
        number = str(site.delivery(known, "id"))
        marked = site.run("requeue", number, "--mark", "accepted", "--reason", "it is in the relay's log")
        assert marked.code == 0, marked
        assert site.delivery(known) == "accepted"


def test_a_backup_of_the_future_is_refused(tmp_path: Path, migrated_url: str) -> None:
    with Site(tmp_path / "site", migrated_url) as site:
        site.publish()
        site.enqueue(1)
        done = site.run("migrate", "--restored-from", f"{datetime.now(UTC) + timedelta(days=2):%Y-%m-%dT%H:%M:%SZ}")
        assert done.code == 2, done
        assert "future" in done.err
        assert site.run("migrate", "--restored-from", "yesterday").code != 0
        assert site.states() == {"queued": 1}
        assert site.sql("SELECT count(*) FROM notify_gate") == [(0,)]
