"""`requeue` as a person and a script use it."""

from __future__ import annotations

import getpass
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.rig import Folder, failure
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


def settled(database: Database, event: str, state: str = "dead_letter", **columns: Any) -> int:
    database.intend(event, state=state, **columns)
    return int(database.delivery(event, "id"))


def test_a_dead_letter_goes_back_with_operator_reason_and_batch_in_its_trail(
    folder: Folder, database: Database
) -> None:
    delivery = settled(database, "e-1")
    document = folder.json("requeue", str(delivery), "--reason", "relay was down")
    assert list(document) == ["batch", "matched", "requeued", "refused", "refusals"]
    assert (document["matched"], document["requeued"], document["refused"], document["refusals"]) == (1, 1, 0, [])
    assert database.delivery("e-1", "state, batch") == ("queued", document["batch"])
    actor, note = database.execute("SELECT actor, note FROM notify_transition ORDER BY id")[-1]
    assert (actor, note) == (getpass.getuser(), f"relay was down [{document['batch']}]")


def test_ids_and_keys_are_both_understood(folder: Folder, database: Database) -> None:
    first = settled(database, "e-1")
    settled(database, "e-2")
    document = folder.json("requeue", str(first), "3:e-2:r-1:email", str(first), "--reason", "x")
    assert (document["matched"], document["requeued"]) == (2, 2)


def test_what_is_refused_is_named_with_state_and_way_out_and_the_rest_is_done(
    folder: Folder, database: Database
) -> None:
    ended, gone = settled(database, "e-1"), settled(database, "e-2", "delivered")
    document = folder.json("requeue", str(gone), str(ended), "777", "3:e-9:r-1:email", "--reason", "x", code=65)
    assert (document["matched"], document["requeued"], document["refused"]) == (3, 1, 3)
    by_id = {one["id"]: one for one in document["refusals"]}
    assert all(list(one) == ["id", "state", "reason", "hint"] for one in document["refusals"])
    assert (by_id[gone]["state"], by_id[gone]["reason"]) == ("delivered", "already_accepted")
    assert f"notifyctl requeue {gone} --as-new-event" in by_id[gone]["hint"]
    assert by_id[777]["state"] is by_id["3:e-9:r-1:email"]["state"] is None
    assert database.delivery("e-1") == "queued"


@pytest.mark.parametrize(
    "text",
    ["{0}\n{1}\n", '{{"id": {0}, "state": "dead_letter"}}\n\n{{"id": "{1}"}}', "\ufeff3:e-1:r-1:email\n{1}\n"],
    ids=["plain", "ndjson", "keys"],
)
def test_ids_come_from_standard_input(folder: Folder, database: Database, text: str) -> None:
    ids = [settled(database, "e-1"), settled(database, "e-2")]
    (folder.path / "ids").write_text(text.format(*ids), encoding="utf-8")
    with (folder.path / "ids").open() as stdin:
        done = folder.run("requeue", "-", "--reason", "x", "--json", stdin=stdin)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["requeued"] == 2


@pytest.mark.parametrize("text", ["[1]\n", "1\n{}\n", '{"id": true}\n', "{\n", "1\x002\n", "x" * 70_000])
def test_a_line_that_names_nothing_changes_nothing(folder: Folder, database: Database, text: str) -> None:
    settled(database, "e-1")
    (folder.path / "ids").write_text(text, encoding="utf-8")
    with (folder.path / "ids").open() as stdin:
        done = folder.run("requeue", "-", "--reason", "x", "--json", stdin=stdin)
    if text == "[1]\n":  # a key like any other: there is no such delivery
        assert (done.returncode, json.loads(done.stdout)["refused"]) == (65, 1)
    else:
        assert (done.returncode, done.stdout) == (65, "")
        assert "standard input" in failure(done)["message"]
    assert database.delivery("e-1") == "dead_letter"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--reason", "x"], "nothing says what to requeue"),
        (["1"], "--reason is missing"),
        (["1", "--reason", " "], "--reason is not one line"),
        (["1", "--reason", "x", "--state", "queued"], "not both"),
        (["--state", "lost", "--reason", "x"], "--state is 'lost'; it may be queued"),
        (["1", "--reason", "x", "--expires-in", "5"], "has no unit"),
        (["1", "--reason", "x", "--mark", "gone"], "--mark is 'gone'"),
        (["1", "--reason", "x", "--mark", "failed", "--accept-duplicate"], "exclude each other"),
        (["1", "--reason", "x", "--remote-id", "r"], "requeue takes ids or a filter"),
        (["1", "--reason", "x", "--mark", "failed", "--remote-id", "r"], "--remote-id goes with --mark accepted"),
        (["1", "--reason", "x", "--limit", "1", "--all"], "exclude each other"),
        (["--since", "yesterday", "--reason", "x"], "--since: 'yesterday' is not a date and time"),
    ],
)
def test_a_command_line_that_is_not_clear_is_a_usage_error(folder: Folder, arguments: list[str], says: str) -> None:
    done = folder.run("requeue", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr


def test_more_than_a_hundred_need_a_limit_or_all_and_a_yes(folder: Folder, database: Database) -> None:
    for number in range(101):
        settled(database, f"e-{number}")
    chosen = ("requeue", "--state", "dead_letter", "--reason", "x")
    broad = folder.run(*chosen)
    assert broad.returncode == 2
    assert "101 deliveries match" in broad.stderr
    unasked = folder.run(*chosen, "--all")
    assert unasked.returncode == 2
    assert "--yes" in unasked.stderr
    assert folder.json(*chosen, "--all", "--dry-run") == {
        "batch": None, "matched": 101, "requeued": 101, "refused": 0, "refusals": [],
    }  # fmt: skip
    assert database.one("SELECT count(*) FROM notify_work") == 0
    assert folder.json(*chosen, "--limit", "2")["requeued"] == 2
    assert folder.json(*chosen, "--all", "--yes")["requeued"] == 99


def test_a_risked_duplicate_needs_a_yes(folder: Folder, database: Database) -> None:
    delivery = settled(database, "e-1", doubt_since="2026-01-01 00:00:00+00:00")
    chosen = ("requeue", str(delivery), "--reason", "x")
    refused = folder.json(*chosen, code=65)["refusals"][0]
    assert (refused["state"], refused["reason"]) == ("dead_letter", "in_doubt")
    assert "--accept-duplicate" in refused["hint"]
    unasked = folder.run(*chosen, "--accept-duplicate")
    assert unasked.returncode == 2
    assert "may reach people a second time" in unasked.stderr
    assert folder.json(*chosen, "--accept-duplicate", "--yes")["requeued"] == 1
    assert database.one("SELECT mandate FROM notify_work") == "duplicate"


def test_doubt_is_settled_with_the_provider_id_and_goes_on_to_its_receipt(folder: Folder, database: Database) -> None:
    delivery = settled(database, "e-1", doubt_since="2026-01-01 00:00:00+00:00", transport="out")
    document = folder.json("requeue", str(delivery), "--mark", "accepted", "--remote-id", "pm-1", "--reason", "x")
    assert (document["requeued"], document["batch"]) == (1, None)
    assert database.delivery("e-1", "state, remote_id") == ("accepted", "pm-1")
    assert database.one("SELECT step FROM notify_work") == "check"


def test_an_expired_one_needs_expires_in(folder: Folder, database: Database) -> None:
    delivery = settled(database, "e-1", "expired", expires_at="2026-01-01 00:00:00+00:00")
    refused = folder.json("requeue", str(delivery), "--reason", "x", code=65)["refusals"][0]
    assert (refused["reason"], refused["hint"]) == ("expired", "give it a new expiry: --expires-in DURATION")
    assert folder.json("requeue", str(delivery), "--reason", "x", "--expires-in", "2h")["requeued"] == 1


def test_as_new_event_makes_one_linked_delivery(folder: Folder, database: Database) -> None:
    delivery = settled(database, "e-1", "delivered")
    assert folder.json("requeue", str(delivery), "--as-new-event", "--reason", "x")["requeued"] == 1
    assert database.one("SELECT state FROM notify_delivery WHERE origin_id = ?", delivery) == "queued"
    folder.json("requeue", str(delivery), "--as-new-event", "--reason", "x", code=65)


def test_people_read_one_line_and_the_refusals_with_their_way_out(folder: Folder, database: Database) -> None:
    ended, gone = settled(database, "e-1"), settled(database, "e-2", "delivered")
    done = folder.run("requeue", str(ended), str(gone), "--reason", "x")
    assert done.returncode == 65
    assert done.stdout.startswith("1 requeued, 1 refused (batch requeue-")
    assert done.stderr.startswith(f"notifyctl: delivery {gone} (delivered) refused: already_accepted; ")
