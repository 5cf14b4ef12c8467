"""`suppression`, `consent` and `recipient`: who may be contacted, and where."""

from __future__ import annotations

import getpass
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.rig import CONFIG, Folder, failure
from tests.ledger.databases import Database

TOPICS = '\n[topics.digest]\nconsent = "required"\n[topics.news]\nconsent = "opt_out"\n'
ADA = ("--recipient", "r-1", "--channel", "email")


@pytest.fixture
def folder(tmp_path: Path, migrated_url: str) -> Folder:
    """An installation on each database."""
    made = Folder(tmp_path, migrated_url)
    made.configure(CONFIG.replace("sqlite:///ledger.db", migrated_url) + TOPICS)
    return made


@pytest.fixture
def database(migrated_url: str) -> Iterator[Database]:
    """Its ledger, through the raw driver."""
    with Database(migrated_url) as opened:
        yield opened


def counts(**given: int) -> dict[str, Any]:
    """The document of a change."""
    none = dict.fromkeys(("selected", "changed", "unchanged", "rejected", "settled"), 0)
    return {"dry_run": False, **none, "errors": [], **given}


# -- suppressions ----------------------------------------------------------------------------------------------------


def test_a_suppression_settles_what_waits_on_that_channel_and_says_how_many(folder: Folder, database: Database) -> None:
    for event in ("e-1", "e-2"):
        database.intend(event)
    database.intend("e-3", channel="sms")
    database.intend("e-4", recipient_id="r-2")
    assert folder.json("suppression", "add", *ADA, "--reason", "asked by phone") == counts(
        selected=1, changed=1, settled=2
    )
    states = dict(database.execute("SELECT event_id, state FROM notify_delivery"))
    assert states == {"e-1": "suppressed", "e-2": "suppressed", "e-3": "queued", "e-4": "queued"}
    (listed,) = folder.json("suppression", "list")
    assert (listed["recipient"], listed["channel"], listed["reason"], listed["scope"]) == (
        "r-1", "email", "manual", "channel",
    )  # fmt: skip
    assert (listed["note"], listed["actor"]) == ("asked by phone", getpass.getuser())


def test_what_is_suppressed_already_is_not_added_twice(folder: Folder, database: Database) -> None:
    folder.json("suppression", "add", *ADA, "--reason", "opted_out")
    assert folder.json("suppression", "add", *ADA, "--reason", "opted_out") == counts(selected=1, unchanged=1)
    assert database.one("SELECT count(*) FROM notify_suppression") == 1


def test_lifting_opens_the_channel_again_and_keeps_the_history(folder: Folder, database: Database) -> None:
    folder.json("suppression", "add", *ADA, "--reason", "opted_out")
    database.intend("e-1")
    assert database.delivery("e-1") == "suppressed"
    assert folder.json("suppression", "lift", *ADA, "--reason", "asked for it")["changed"] == 1
    assert folder.json("suppression", "list") == []
    assert folder.json("suppression", "lift", *ADA, "--reason", "again")["unchanged"] == 1
    assert database.execute("SELECT reason, note FROM notify_suppression ORDER BY id") == [
        ("opted_out", ""), ("lifted", "asked for it"),
    ]  # fmt: skip
    delivery = str(database.delivery("e-1", "id"))
    assert folder.json("requeue", delivery, "--reason", "x")["requeued"] == 1
    assert folder.json("suppression", "add", *ADA, "--reason", "opted_out")["settled"] == 1


def test_a_bad_address_is_suppressed_alone_and_a_new_one_may_be_tried(folder: Folder, database: Database) -> None:
    folder.template("welcome/1", subject="Hi\n", text="Hi\n")
    folder.json("template", "publish")
    assert folder.json("recipient", "set", "r-1", "--to", "email=a@example.com")["set"] == ["email"]
    enqueue = ("enqueue", "--recipient", "r-1", "--channel", "email", "--template", "welcome", "--event")
    assert folder.json(*enqueue, "e-1")["enqueued"] == 1
    assert folder.json("suppression", "add", *ADA, "--reason", "hard_bounce")["settled"] == 1
    assert folder.json(*enqueue, "e-2")["suppressed"] == 1
    assert folder.json("suppression", "list")[0]["scope"] == "address"
    folder.json("recipient", "set", "r-1", "--to", "email=b@example.com")
    assert folder.json(*enqueue, "e-3")["enqueued"] == 1


def test_an_address_that_plain_sql_stored_is_recognised_too(folder: Folder, database: Database) -> None:
    database.insert("notify_endpoint", recipient_id="r-1", channel="email", address="A@Example.COM")
    folder.json("suppression", "add", *ADA, "--reason", "invalid_recipient")
    stored = database.one("SELECT fingerprint FROM notify_suppression")
    folder.json("recipient", "set", "r-1", "--to", "email=A@example.com")
    assert database.execute("SELECT fingerprint FROM notify_endpoint ORDER BY id")[-1] == (stored,)


@pytest.mark.parametrize("command", ["suppression", "consent"])
def test_an_import_reports_bad_rows_and_does_the_rest(folder: Folder, database: Database, command: str) -> None:
    third = {"suppression": '"reason": "complained"', "consent": '"topic": "digest", "granted": false'}[command]
    rows = [
        f'{{"recipient": "r-1", "channel": "email", {third}}}',
        f'{{"recipient": "a@example.com", "channel": "email", {third}}}',
        f'{{"recipient": "r-1", "channel": "fax", {third}}}',
        '{"recipient": "r-1", "channel": "email", "address": "a@example.com"}',
        "not JSON",
        f'{{"recipient": "r-2", "channel": "email", {third}}}',
        f'{{"recipient": "r-2", "channel": "email", {third}}}',
    ]
    (folder.path / "rows").write_text("\n".join(rows), encoding="utf-8")
    database.intend("e-1", topic="digest")
    document = folder.json(command, "import", "--from", "rows", code=65)
    assert document["errors"] == [
        {"row": 2, "reason": "invalid", "field": "recipient"}, {"row": 3, "reason": "invalid", "field": "channel"},
        {"row": 4, "reason": "unknown_key", "field": "address"}, {"row": 5, "reason": "row_undecodable", "field": ""},
    ]  # fmt: skip
    assert (document["selected"], document["changed"], document["unchanged"], document["settled"]) == (7, 2, 1, 1)
    again = folder.json(command, "import", "--from", "rows", code=65)
    assert (again["changed"], again["unchanged"], again["settled"]) == (0, 3, 0)
    with (folder.path / "rows").open() as stdin:
        done = folder.run(command, "import", "--from", "-", stdin=stdin)
    assert done.returncode == 65
    assert "row 3: invalid (channel)" in done.stderr
    assert "example.com" not in done.stderr + done.stdout


def test_a_csv_of_suppressions_is_read_by_its_header(folder: Folder, database: Database) -> None:
    (folder.path / "list.csv").write_text("recipient,channel,reason\nr-1,email,opted_out\nr-2,sms,\n", encoding="utf-8")
    assert folder.json("suppression", "import", "--from", "list.csv")["changed"] == 2
    assert database.execute("SELECT recipient_id, channel, reason FROM notify_suppression ORDER BY id") == [
        ("r-1", "email", "opted_out"), ("r-2", "sms", "manual"),
    ]  # fmt: skip


# -- consent ---------------------------------------------------------------------------------------------------------


def test_revoking_settles_what_waits_of_that_topic_and_nothing_else(folder: Folder, database: Database) -> None:
    assert folder.json("consent", "grant", *ADA, "--topic", "digest") == counts(selected=1, changed=1)
    for event, topic in (("e-1", "digest"), ("e-2", "news"), ("e-3", None)):
        database.intend(event, topic=topic)
    assert folder.json("consent", "revoke", *ADA, "--topic", "digest") == counts(selected=1, changed=1, settled=1)
    states = dict(database.execute("SELECT event_id, state FROM notify_delivery"))
    assert states == {"e-1": "suppressed", "e-2": "queued", "e-3": "queued"}
    (shown,) = folder.json("consent", "show", "--recipient", "r-1")
    assert (shown["topic"], shown["channel"], shown["granted"]) == ("digest", "email", False)
    assert folder.json("consent", "show", "--recipient", "r-1", "--channel", "sms") == []


def test_the_same_answer_again_changes_nothing(folder: Folder, database: Database) -> None:
    folder.json("consent", "grant", *ADA, "--topic", "digest")
    assert folder.json("consent", "grant", *ADA, "--topic", "digest")["unchanged"] == 1
    assert database.one("SELECT count(*) FROM notify_consent") == 1


def test_a_topic_that_is_not_configured_is_refused_by_name_of_those_that_are(folder: Folder) -> None:
    done = folder.run("consent", "revoke", *ADA, "--topic", "digests", "--json")
    assert (done.returncode, done.stdout) == (65, "")
    assert failure(done)["hint"] == "configured are digest, news"


# -- recipients ------------------------------------------------------------------------------------------------------


def test_addresses_are_normalized_kept_as_history_and_shown_masked(folder: Folder, database: Database) -> None:
    document = folder.json("recipient", "set", "r-1", "--to", "email=Ada@EXAMPLE.com", "--to", "sms=+44 20 7946 0000")
    assert (document["set"], document["unchanged"]) == (["email", "sms"], [])
    again = folder.json("recipient", "set", "r-1", "--to", "email=Ada@example.com")
    assert (again["set"], again["unchanged"]) == ([], ["email"])
    folder.json("recipient", "set", "r-1", "--to", "email=grace@example.com")
    folder.json("suppression", "add", "--recipient", "r-1", "--channel", "sms", "--reason", "opted_out")
    folder.json("consent", "grant", *ADA, "--topic", "news")
    done = folder.run("recipient", "show", "r-1", "--json")
    shown = json.loads(done.stdout)
    assert [(e["channel"], e["address"], e["current"]) for e in shown["endpoints"]] == [
        ("email", "g…@example.com", True), ("sms", "+44…00", True), ("email", "A…@example.com", False),
    ]  # fmt: skip
    assert [s["reason"] for s in shown["suppressions"]] == ["opted_out"]
    assert [(c["topic"], c["granted"]) for c in shown["consents"]] == [("news", True)]
    text = folder.run("recipient", "show", "r-1").stdout
    for secret in ("Ada@", "grace", "7946"):
        assert secret not in done.stdout + text
    assert database.one("SELECT count(*) FROM notify_endpoint WHERE fingerprint IS NULL") == 0


def test_a_bad_address_is_refused_without_being_repeated(folder: Folder, database: Database) -> None:
    done = folder.run("recipient", "set", "r-1", "--to", "email=Ada Lovelace ada@@example", "--json")
    assert (done.returncode, done.stdout) == (65, "")
    assert failure(done)["code"] == "destination_invalid"
    assert "ada" not in done.stderr.lower()
    assert database.one("SELECT count(*) FROM notify_endpoint") == 0


def test_nothing_is_known_of_a_stranger(folder: Folder) -> None:
    assert folder.json("recipient", "show", "nobody")["endpoints"] == []
    assert folder.run("recipient", "show", "nobody").stdout == "no address is known\n"


def test_dry_runs_say_what_would_change_and_change_nothing(folder: Folder, database: Database) -> None:
    database.intend("e-1", topic="digest")
    would = folder.json("suppression", "add", *ADA, "--reason", "x", "--dry-run")
    assert (would["dry_run"], would["changed"], would["settled"]) == (True, 1, 1)
    assert folder.json("consent", "revoke", *ADA, "--topic", "digest", "--dry-run")["settled"] == 1
    assert folder.json("recipient", "set", "r-1", "--to", "email=a@example.com", "--dry-run")["set"] == ["email"]
    for table in ("notify_suppression", "notify_consent", "notify_endpoint"):
        assert database.one(f"SELECT count(*) FROM {table}") == 0
    assert database.delivery("e-1") == "queued"
    assert folder.run("suppression", "add", *ADA, "--reason", "x", "--dry-run").stdout == (
        "1 would be suppressed, 1 waiting delivery would be suppressed\n"
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["suppression", "add", *ADA], "--reason is missing"),
        (["suppression", "add", "--channel", "email", "--reason", "x"], "--recipient is missing"),
        (["suppression", "lift", "--recipient", "r", "--channel", "fax", "--reason", "x"], "--channel is 'fax'"),
        (["suppression", "import"], "--from is missing"),
        (["consent", "grant", *ADA], "--topic is missing"),
        (["consent", "show"], "--recipient is missing"),
        (["recipient", "set", "r-1"], "--to is missing"),
        (["recipient", "set", "r-1", "--to", "ada@example.com"], "--to is not email=ADDRESS"),
    ],
)
def test_a_command_line_that_is_not_complete_is_a_usage_error(folder: Folder, arguments: list[str], says: str) -> None:
    done = folder.run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
