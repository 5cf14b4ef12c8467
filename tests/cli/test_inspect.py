"""`inspect` as people and scripts use it: real processes, real rows, nothing shown that must not be."""

from __future__ import annotations

import fcntl
import json
import os
import struct
import subprocess
import termios
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.cli.rig import CONFIG, Folder, command, environment, failure
from tests.ledger.databases import Database

ASCII = environment(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
ADDRESS = "jane.doe@rcpt.example"
SECRETS = ("jane.doe", "Doe", "Wonderland", "invoice-77", "reports/")
LIVE = {"queued", "sending", "temporary_failure", "ambiguous", "accepted", "pending"}


class Desk:
    """An installation with a ledger to put deliveries into."""

    def __init__(self, path: Path, url: str) -> None:
        self.folder = Folder(path, url)
        self.database = Database(url)

    def put(self, event: str, **columns: Any) -> int:
        """A delivery by plain SQL; returns its id."""
        given = {"recipient_id": "r-1", "destination": f'"Doe, Jane" <{ADDRESS}>', "template_version": "1", **columns}
        self.database.intend(event, **given)
        number: int = self.database.one("SELECT max(id) FROM notify_delivery")
        return number

    def settle(self, number: int, state: str, reason: str = "") -> None:
        """Its work is done."""
        self.database.execute("DELETE FROM notify_work WHERE delivery_id = ?", number)
        self.database.execute("UPDATE notify_delivery SET state = ?, reason = ? WHERE id = ?", state, reason, number)

    def show(self, *arguments: str, **options: Any) -> str:
        """What `inspect …` prints."""
        done = self.folder.run("inspect", *arguments, **options)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def lines(self, *arguments: str) -> list[dict[str, Any]]:
        """The NDJSON of `inspect …`."""
        return [json.loads(line) for line in self.show(*arguments, "--json").splitlines()]


@pytest.fixture
def desk(tmp_path: Path, migrated_url: str) -> Iterator[Desk]:
    made = Desk(tmp_path, migrated_url)
    yield made
    made.database.connection.close()


# -- the overview -----------------------------------------------------------------------------------------------


def test_the_overview_of_an_empty_ledger_shows_every_configured_lane(desk: Desk) -> None:
    document = desk.folder.json("inspect")
    assert set(document) == {"lanes", "needs_person", "runs"}
    assert [lane["lane"] for lane in document["lanes"]] == ["bulk", "email", "sms"]
    for lane in document["lanes"]:
        assert set(lane) == {"lane", "region", "states", "oldest_age_s", "objective_s", "gates"}
        assert lane["states"] == dict.fromkeys(LIVE, 0)
        assert (lane["oldest_age_s"], lane["objective_s"], lane["gates"]) == (None, 300, [])
    assert (document["needs_person"], document["runs"]) == ([], [])
    assert "nothing needs a person" in desk.show()


def test_the_overview_shows_backlog_age_gates_and_runs(desk: Desk) -> None:
    desk.put("a", due_at="2026-01-01T00:00:00Z")
    desk.put("b", region="eu")
    desk.database.insert("notify_gate", scope="transport", name="out", kind="pause", reason="moving house")
    desk.database.insert(
        "notify_run", id="run-1", command="dispatch", host="h", pid=1, version="0", started="2026-01-01 00:00:00Z",
        exit_code=3,
    )  # fmt: skip
    document = desk.folder.json("inspect")
    (late, north) = (lane for lane in document["lanes"] if lane["lane"] == "email")
    assert (late["region"], north["region"]) == ("", "eu")
    assert (late["states"]["queued"], north["states"]["queued"]) == (1, 1)
    assert late["oldest_age_s"] > late["objective_s"]
    assert late["gates"] == [
        {"scope": "transport", "name": "out", "kind": "pause", "until": None, "level": 0, "reason": "moving house",
         "state": "pause", "by": ""}
    ]
    assert document["runs"][0]["id"] == "run-1"
    shown = desk.show()
    assert "over its objective; transport out: pause until resumed (moving house)" in shown
    assert "run-1" in shown


def test_what_needs_a_person_comes_with_the_command_that_lists_it(desk: Desk) -> None:
    desk.settle(desk.put("dead"), "dead_letter", "gave_up")
    desk.settle(desk.put("lost"), "unresolved")
    desk.put("stray", lane="o'ld")
    held = desk.put("held")
    desk.database.execute("UPDATE notify_work SET step = 'resolve', held = ? WHERE delivery_id = ?", True, held)
    desk.database.execute("UPDATE notify_delivery SET state = 'ambiguous', reason = 'cannot_tell' WHERE id = ?", held)
    needs = desk.folder.json("inspect")["needs_person"]
    assert {one["what"]: one["count"] for one in needs} == {
        "dead_letter": 1, "held_ambiguous": 1, "unresolved": 1, "unroutable": 1,
    }  # fmt: skip
    events = {}
    for one in needs:
        done = subprocess.run(
            ["/bin/sh", "-c", one["command"].replace("notifyctl", " ".join(command()), 1) + " --json"],
            cwd=desk.folder.path, env=environment(), capture_output=True, check=True,
        )  # fmt: skip
        events[one["what"]] = json.loads(done.stdout)["event_id"]
    assert events == {"dead_letter": "dead", "held_ambiguous": "held", "unresolved": "lost", "unroutable": "stray"}
    assert "not configured" in desk.show()


def test_what_a_person_must_mend_is_listed_by_its_reason(desk: Desk) -> None:
    desk.settle(desk.put("refused"), "permanent_failure", "variable_missing")
    desk.settle(desk.put("nobody's mistake"), "permanent_failure", "smtputf8_unsupported")
    bounced = desk.put("by the provider")
    desk.settle(bounced, "permanent_failure", "rejected")
    desk.database.execute("UPDATE notify_delivery SET attempts_used = 1 WHERE id = ?", bounced)
    waits, busy = desk.put("waits"), desk.put("busy")
    desk.database.execute("UPDATE notify_work SET tries = 2")
    desk.database.execute("UPDATE notify_delivery SET reason = 'topic_unknown' WHERE id = ?", waits)
    desk.database.execute("UPDATE notify_delivery SET reason = 'connection_refused' WHERE id = ?", busy)
    needs = desk.folder.json("inspect")["needs_person"]
    assert [(one["what"], one["count"]) for one in needs] == [("refused", 1), ("deferred", 1)]
    listed = [desk.lines(*one["command"].removeprefix("notifyctl inspect ").split()) for one in needs]
    assert [[row["event_id"] for row in rows] for rows in listed] == [["refused"], ["waits"]]
    assert "mend and requeue" in desk.show()


def test_what_another_region_has_left_lying_comes_with_the_way_to_take_it(desk: Desk) -> None:
    desk.put("far", region="o'er there", due_at="2026-01-01T00:00:00Z")
    (need,) = desk.folder.json("inspect")["needs_person"]
    assert (need["what"], need["count"]) == ("stranded", 1)
    done = subprocess.run(
        ["/bin/sh", "-c", need["command"].replace("notifyctl", " ".join(command()), 1) + " --json"],
        cwd=desk.folder.path, env=environment(), capture_output=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout)["taken_over"] == 1
    assert "another region" in desk.show()


def test_doubt_about_a_mail_names_its_whole_message_id(desk: Desk) -> None:
    number = desk.put("order")
    desk.database.execute(
        "UPDATE notify_delivery SET state = 'ambiguous', doubt_since = '2026-01-01T00:00Z', wire_key = 'abcd', "
        "sender = 'Shop <no-reply@shop.example>' WHERE id = ?", number,
    )  # fmt: skip
    assert "Message-ID <abcd@shop.example>" in desk.show("delivery", str(number))


def test_a_transport_that_refuses_needs_a_person(desk: Desk) -> None:
    desk.database.insert(
        "notify_gate", scope="transport", name="out", kind="breaker", until="2099-01-01 00:00:00Z",
        reason="credentials_rejected",
    )  # fmt: skip
    (need,) = desk.folder.json("inspect")["needs_person"]
    assert need == {"what": "breaker_open", "count": 1, "command": "notifyctl lane list"}
    assert "credentials_rejected" in desk.folder.run("lane", "list").stdout


def test_doubt_comes_with_what_to_ask_and_the_commands_that_end_it(desk: Desk) -> None:
    number = desk.put("order")
    desk.database.execute("UPDATE notify_work SET step = 'resolve', held = ? WHERE delivery_id = ?", True, number)
    desk.database.execute(
        "UPDATE notify_delivery SET state = 'ambiguous', doubt_since = '2026-01-01T00:00Z', wire_key = 'abcd' "
        "WHERE id = ?", number,
    )  # fmt: skip
    said = desk.show("delivery", str(number))
    assert "Message-ID <abcd@...>" in said
    commands = [line.split() for line in said.splitlines() if "notifyctl requeue" in line]
    assert len(commands) == 3
    for words in commands:
        arguments = ["not-accepted" if word == "TEXT" else word for word in words[1:]]
        assert desk.folder.run(*arguments, "--dry-run").returncode == 0, words


# -- one delivery -----------------------------------------------------------------------------------------------


def test_a_delivery_shows_its_columns_work_reasons_and_history(desk: Desk) -> None:
    number = desk.put("order", due_at="2099-01-01T00:00:00Z")
    document = desk.folder.json("inspect", "delivery", str(number))
    assert document == desk.folder.json("inspect", "delivery", "5:order:r-1:email")
    assert document["id"] == number
    assert document["work"]["eligible_at"] == "2099-01-01T00:00:00Z"
    assert [one["reason"] for one in document["why"]] == ["scheduled", "template_unknown"]
    assert document["why"][0] == {"reason": "scheduled", "until": "2099-01-01T00:00:00Z", "detail": ""}
    assert [one["to"] for one in document["transitions"]] == ["queued"]
    assert (document["attempts"], document["receipts"]) == ([], [])
    settled = desk.put("other")
    desk.settle(settled, "delivered")
    assert desk.folder.json("inspect", "delivery", str(settled))["work"] is None


def test_neither_address_nor_variable_nor_attachment_name_is_shown(desk: Desk) -> None:
    attachments = [{"key": "reports/invoice-77.pdf", "sha256": "ab", "filename": "invoice-77.pdf"}]
    number = desk.put("order", variables='{"name": "Wonderland"}', attachments=json.dumps(attachments))
    desk.database.insert("notify_endpoint", recipient_id="r-2", channel="sms", address="+4915112345678")
    text = desk.put("sms", recipient_id="r-2", channel="sms", destination=None)
    shown = [
        desk.show(*arguments, *form)
        for arguments in ((), ("delivery", str(number)), ("delivery", str(text)), ("deliveries",), ("event", "order"))
        for form in ((), ("--json",))
    ]
    for secret in (*SECRETS, "15112345"):
        assert not any(secret in one for one in shown)
    document = desk.folder.json("inspect", "delivery", str(number))
    assert document["destination"] == "j…@rcpt.example"
    assert document["variables"] == {"name": "…"}
    assert document["attachments"] == [{"key": "…", "sha256": "ab", "filename": "…"}]
    assert desk.folder.json("inspect", "delivery", str(text))["destination"] is None
    assert "+49…78 (endpoint)" in desk.show("delivery", str(text))


def test_enqueued_claimed_and_accepted_are_three_facts_and_the_rest_a_timeline(desk: Desk) -> None:
    desk.folder.template("welcome/1", subject="Hello", text="Hello\n")
    assert desk.folder.run("template", "publish").returncode == 0
    number = desk.put("order")
    assert desk.folder.run("dispatch").returncode == 0
    document = desk.folder.json("inspect", "delivery", str(number))
    assert document["accepted_at"]
    assert [one["to"] for one in document["transitions"]] == ["queued", "sending", "accepted"]
    run = document["attempts"][0]["run"]
    lines = desk.show("delivery", str(number)).splitlines()
    facts = {line.split()[0]: line for line in lines if line.startswith("  ")}
    assert facts["enqueued"].split()[2] == "by"
    assert "token 1" in facts["claimed"]
    assert facts["accepted"].split()[1].startswith("20")
    timeline = lines[lines.index("timeline") + 2 :]
    times = [datetime.fromisoformat(line.split()[0]) for line in timeline]
    assert times == sorted(times)
    what = [" ".join(line.split()[1:4]) for line in timeline]
    assert what[0].startswith("queued by ")
    assert what[1:] == ["attempt 1 begun", "queued -> sending", "attempt 1 accepted", "sending -> accepted"]
    assert run in timeline[1]


def test_a_claimed_delivery_names_owner_token_and_end_of_lease(desk: Desk) -> None:
    number = desk.put("order")
    desk.database.execute(
        "UPDATE notify_work SET owner = 'run-9', fencing_token = 4, eligible_at = '2099-01-01 00:00:00.000000'"
        " WHERE delivery_id = ?", number,
    )  # fmt: skip
    why = desk.folder.json("inspect", "delivery", str(number))["why"]
    assert why[0] == {"reason": "leased", "until": "2099-01-01T00:00:00Z", "detail": "run run-9"}
    shown = desk.show("delivery", str(number))
    assert "claimed      by run run-9 until 2099-01-01T00:00:00Z (step send, token 4)" in shown
    assert "accepted     no" in shown


def test_what_was_sent_with_a_limit_says_when_the_next_slot_is_free(desk: Desk) -> None:
    desk.folder.configure(desk.folder.config.read_text().replace("[lanes.bulk]", 'rate = "1/h"\n[lanes.bulk]'))
    desk.folder.template("welcome/1", subject="Hello", text="Hello\n")
    desk.folder.run("template", "publish")
    first, second = desk.put("a"), desk.put("b", recipient_id="r-2")
    assert desk.folder.run("dispatch", "--max-seconds", "5").returncode == 0
    sent, waiting = (desk.folder.json("inspect", "delivery", str(number)) for number in (first, second))
    assert [one["reason"] for one in sent["why"]] == ["waiting_for_receipt"]
    why = {one["reason"]: one for one in waiting["why"]}
    assert why["pace"]["detail"] == "1/h of lane email"
    assert why["pace"]["until"] > sent["accepted_at"]


@pytest.mark.parametrize("which", ["999", "5:order:nobody:email", "9" * 30, ADDRESS, "", "-7"])
def test_an_unknown_delivery_is_exit_65_and_says_where_to_look(desk: Desk, which: str) -> None:
    done = desk.folder.run("inspect", "delivery", "--json", "--", which)
    assert (done.returncode, done.stdout) == (65, "")
    error = failure(done)
    assert error["code"] == "unknown_delivery"
    assert "inspect deliveries" in error["hint"]
    assert ADDRESS not in done.stderr


def test_a_pruned_delivery_is_said_to_be_pruned(desk: Desk) -> None:
    number = desk.put("old")
    desk.settle(number, "delivered")
    desk.database.execute("DELETE FROM notify_transition WHERE delivery_id = ?", number)
    desk.database.execute("DELETE FROM notify_delivery WHERE id = ?", number)
    done = desk.folder.run("inspect", "delivery", "3:old:r-1:email")
    assert done.returncode == 65
    assert "removed by retention" in done.stderr


# -- lists ------------------------------------------------------------------------------------------------------


def test_deliveries_are_listed_newest_first_as_ndjson_or_a_table(desk: Desk) -> None:
    first, second = desk.put("a"), desk.put("b", recipient_id="r-2")
    desk.settle(first, "dead_letter", "gave_up")
    listed = desk.lines("deliveries")
    assert [one["id"] for one in listed] == [second, first]
    assert listed[0]["work"]["step"] == "send"
    assert listed[1]["work"] is None
    both = desk.lines("deliveries", "--state", "dead_letter", "--state", "queued")
    assert [one["id"] for one in both] == [second, first]
    assert [one["id"] for one in desk.lines("deliveries", "--reason", "gave_up", "--lane", "email")] == [first]
    assert [one["id"] for one in desk.lines("deliveries", "--event", "b", "--recipient", "r-2")] == [second]
    assert [one["id"] for one in desk.lines("deliveries", "--limit", "1")] == [second]
    assert desk.lines("deliveries", "--remote-id", "x") == []
    times = ("--since", "2020-01-01T00:00Z", "--until", "2099-01-01T09:00 Europe/London")
    assert len(desk.lines("deliveries", *times)) == 2
    header, *rows = desk.show("deliveries").splitlines()
    assert header.split()[:3] == ["ID", "STATE", "REASON"]
    assert [row.split()[:2] for row in rows] == [[str(second), "queued"], [str(first), "dead_letter"]]
    assert desk.show("deliveries", "--event", "unknown") == "no delivery matches\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--state", "dead-letter"], "did you mean dead_letter?"),
        (["--state", "xyz"], "it may be queued, sending"),
        (["--since", "yesterday"], "--since: 'yesterday' is not a date and time"),
        (["--until", "2026-01-01T00:00"], "neither an offset nor a zone"),
        (["--since", "2026-01-02T00:00Z", "--until", "2026-01-01T00:00Z"], "--until is not after --since"),
        (["--limit", "0"], "--limit"),
        (["--limit", "many"], "--limit"),
    ],
)
def test_a_wrong_filter_is_exit_2_and_names_the_option(tmp_path: Path, arguments: list[str], says: str) -> None:
    done = Folder(tmp_path).run("inspect", "deliveries", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_filter_that_is_no_text_is_refused(tmp_path: Path) -> None:
    line = [os.fsencode(word) for word in command("inspect", "deliveries", "--event")]
    done = subprocess.run([*line, b"\xff"], cwd=tmp_path, env=environment(), capture_output=True, check=False)
    assert done.returncode == 2
    assert b"--event is not a text" in done.stderr


def test_ten_thousand_rows_stream_and_end_quietly_with_their_reader(desk: Desk) -> None:
    desk.database.begin()
    for n in range(10_000):
        desk.database.intend(f"e{n}")
    desk.database.execute("COMMIT")
    for form in ("", "--json"):
        line = " ".join(command("inspect", "deliveries", "--limit", "1000000", form))
        done = subprocess.run(
            ["/bin/bash", "-c", f"{line} | head -1; exit ${{PIPESTATUS[0]}}"],
            cwd=desk.folder.path, env=environment(), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        assert len(done.stdout.splitlines()) == 1
    listed = desk.lines("deliveries", "--limit", "1000000")
    assert len({one["id"] for one in listed}) == len(listed) == 10_000


def test_an_event_counts_what_was_enqueued_accepted_and_settled(desk: Desk) -> None:
    desk.put("order")
    desk.put("order", channel="sms", destination="+4915112345678")
    assert desk.folder.json("inspect", "event", "order") == {
        "event": "order", "enqueued": 2, "accepted": 0, "settled": 0,
        "channels": {"email": {"queued": 1}, "sms": {"queued": 1}},
    }  # fmt: skip
    assert "sms      queued" in desk.show("event", "order")
    assert failure(desk.folder.run("inspect", "event", "unknown", "--json"))["code"] == "unknown_event"


def test_runs_are_listed_newest_first(desk: Desk) -> None:
    assert desk.show("runs") == "no run yet\n"
    for n in (1, 2):
        desk.database.insert(
            "notify_run", id=f"run-{n}", command="dispatch", host="h", pid=1, version="0",
            started=f"2026-01-01 00:00:0{n}.000000", counts='{"claimed": 1}',
        )  # fmt: skip
    newest, _ = desk.lines("runs")
    assert (newest["id"], newest["counts"], newest["started"]) == ("run-2", {"claimed": 1}, "2026-01-01T00:00:02Z")
    assert len(desk.lines("runs", "--limit", "1")) == 1


# -- surroundings -----------------------------------------------------------------------------------------------


def test_an_ascii_locale_escapes_what_it_cannot_show(desk: Desk) -> None:
    number = desk.put("bestellung-ü")
    for arguments in ((), ("delivery", str(number)), ("deliveries",)):
        assert desk.show(*arguments, env=ASCII).isascii()
    document = json.loads(desk.show("delivery", str(number), "--json", env=ASCII))
    assert document["event_id"] == "bestellung-ü"


def test_a_narrow_terminal_cuts_lines_and_shows_the_state(tmp_path: Path, migrated_file: Path) -> None:
    (tmp_path / "ledger.db").write_bytes(migrated_file.read_bytes())
    folder = Folder(tmp_path)
    with Database(f"sqlite:///{tmp_path}/ledger.db") as database:
        for n in range(3):
            database.intend(f"a-rather-long-event-id-{n}")
    for arguments in (("inspect",), ("inspect", "deliveries"), ("inspect", "delivery", "1")):
        leader, follower = os.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
        env = environment(TERM="dumb", COLUMNS="40")
        done = folder.run(*arguments, stdout=follower, stderr=subprocess.PIPE, env=env)
        os.close(follower)
        assert (done.returncode, done.stderr) == (0, "")
        shown = os.read(leader, 65536).decode()
        os.close(leader)
        assert "QUEUED" in shown or "queued" in shown


def test_options_before_the_subcommand_are_refused_and_a_closed_stdout_does_no_harm(desk: Desk) -> None:
    done = desk.folder.run("inspect", "--json", "runs")
    assert done.returncode == 2
    assert "options follow the command runs" in done.stderr
    line = " ".join(command("inspect"))
    closed = subprocess.run(
        ["/bin/sh", "-c", f"{line} >&-"], cwd=desk.folder.path, env=environment(), capture_output=True, check=False
    )
    assert (closed.returncode, closed.stderr) == (0, b"")


def test_a_missing_ledger_is_exit_78_and_none_is_made(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    assert CONFIG in folder.config.read_text()
    done = folder.run("inspect")
    assert done.returncode == 78
    assert "notifyctl migrate" in done.stderr
    assert not (tmp_path / "ledger.db").exists()
