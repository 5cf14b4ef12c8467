"""`cancel` as a person and a script use it."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.rig import Folder
from tests.ledger.databases import Database


@pytest.fixture
def folder(tmp_path: Path, migrated_url: str) -> Folder:
    """An installation on each database."""
    return Folder(tmp_path, migrated_url)


@pytest.fixture
def database(migrated_url: str) -> Iterator[Database]:
    """Its ledger, through the raw driver."""
    with Database(migrated_url) as opened:
        yield opened


def queued(database: Database, event: str, **columns: Any) -> int:
    database.intend(event, **columns)
    return int(database.delivery(event, "id"))


def test_what_waits_is_cancelled_with_operator_and_reason(folder: Folder, database: Database) -> None:
    delivery = queued(database, "e-1")
    assert folder.json("cancel", str(delivery), "--reason", "wrong price") == {
        "matched": 1, "cancelled": 1, "refused": 0, "refusals": [],
    }  # fmt: skip
    assert database.delivery("e-1", "state, reason") == ("cancelled", "cancelled")
    assert database.one("SELECT count(*) FROM notify_work") == 0
    assert database.execute("SELECT actor, note FROM notify_transition ORDER BY id")[-1] == (
        getpass.getuser(), "wrong price",
    )  # fmt: skip


def test_an_event_is_cancelled_for_all_who_have_not_been_sent_it(folder: Folder, database: Database) -> None:
    for recipient in ("r-1", "r-2"):
        queued(database, f"e-{recipient}")
        database.intend("sale", recipient_id=recipient)
    database.intend("sale", recipient_id="r-3", state="delivered")
    document = folder.json("cancel", "--event", "sale", "--reason", "x", code=65)
    assert (document["matched"], document["cancelled"], document["refused"]) == (3, 2, 1)
    assert document["refusals"][0]["state"] == "delivered"
    assert document["refusals"][0]["hint"] == "the provider has it: it is beyond recall"
    assert database.one("SELECT count(*) FROM notify_work") == 2


def test_the_batch_of_a_requeue_is_withdrawn(folder: Folder, database: Database) -> None:
    delivery = queued(database, "e-1", state="dead_letter")
    queued(database, "e-2")
    batch = folder.json("requeue", str(delivery), "--reason", "x")["batch"]
    assert folder.json("cancel", "--batch", batch, "--reason", "too early")["cancelled"] == 1
    assert (database.delivery("e-1"), database.delivery("e-2")) == ("cancelled", "queued")


def test_cancelling_again_is_refused_and_changes_nothing(folder: Folder, database: Database) -> None:
    delivery = queued(database, "e-1")
    folder.json("cancel", "3:e-1:r-1:email", "--reason", "x")
    document = folder.json("cancel", str(delivery), "4711", "--reason", "x", code=65)
    assert [(r["id"], r["state"], r["reason"]) for r in document["refusals"]] == [
        (delivery, "cancelled", "cancelled"), (4711, None, "not_found"),
    ]  # fmt: skip
    assert database.one("SELECT count(*) FROM notify_transition") == 2


def test_a_dry_run_cancels_nothing(folder: Folder, database: Database) -> None:
    delivery = queued(database, "e-1")
    done = folder.run("cancel", str(delivery), "--reason", "x", "--dry-run")
    assert (done.returncode, done.stdout) == (0, "1 would be cancelled, 0 refused\n")
    assert database.delivery("e-1") == "queued"


def test_more_than_a_hundred_need_a_yes(folder: Folder, database: Database) -> None:
    for number in range(101):
        database.intend("sale", recipient_id=f"r-{number}")
    chosen = ("cancel", "--event", "sale", "--reason", "x")
    done = folder.run(*chosen)
    assert done.returncode == 2
    assert "101 deliveries would be cancelled" in done.stderr
    assert folder.json(*chosen, "--yes")["cancelled"] == 101


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--reason", "x"], "one of them"),
        (["1", "--event", "e", "--reason", "x"], "one of them"),
        (["1"], "--reason is missing"),
        (["--batch", "", "--reason", "x"], "--batch is not a printable text"),
    ],
)
def test_a_command_line_that_is_not_clear_is_a_usage_error(folder: Folder, arguments: list[str], says: str) -> None:
    done = folder.run("cancel", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
