"""The front door: an idle tick under cron ends there, writes nothing and says nothing; anything else goes in."""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from notifyctl.cli import door
from notifyctl.errors import LedgerUnavailable
from notifyctl.ledger import front, schema
from notifyctl.transports import registry
from tests.cli.rig import CONFIG, ROOT, environment
from tests.postgres import Cluster

HEAVY = ("typer", "rich", "jinja2", "pydantic", "smtplib", "dataclasses", "notifyctl.model", "logging", "argparse")


def at(seconds: float) -> str:
    """An instant `seconds` from now, as SQLite columns hold it."""
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%d %H:%M:%S.%f")


class Rig:
    """A folder with a configuration and a real ledger that has the given rows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "ledger.db"
        (folder / "notifyctl.toml").write_text(CONFIG)
        connection = self.open()
        connection.execute("PRAGMA journal_mode = WAL")
        schema.migrate(connection, "sqlite", "test")
        connection.close()

    def open(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, isolation_level=None)

    def run(self, sql: str, *values: object) -> None:
        connection = self.open()
        connection.execute(sql, values)
        connection.close()

    def work(
        self, step: str = "send", lane: str = "email", region: str = "", eligible: float = -1.0, state: str = "queued"
    ) -> None:
        connection = self.open()
        number = connection.execute("SELECT count(*) FROM notify_delivery").fetchone()[0]
        connection.execute(
            "INSERT INTO notify_delivery (event_id, recipient_id, channel, template, template_version, lane, region)"
            " VALUES (?, 'r', 'email', 't', '1', ?, ?)",
            (f"e{number}", lane, region),
        )
        connection.execute("UPDATE notify_delivery SET state = ? WHERE event_id = ?", (state, f"e{number}"))
        connection.execute(
            "UPDATE notify_work SET step = ?, eligible_at = ?"
            " WHERE delivery_id = (SELECT max(delivery_id) FROM notify_work)",
            (step, at(eligible)),
        )
        connection.close()

    def ask(self, *arguments: str) -> bool:
        """Whether the front door says that there is nothing to do."""
        return door.ask(["--config", str(self.folder / "notifyctl.toml"), *arguments])[0]


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def tick(rig: Rig | Server, *arguments: str, code: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command as cron does; `code` is run in the same interpreter afterwards."""
    program = f"import sys; from notifyctl.cli import main; code = main(sys.argv[1:]); {code or 'pass'}; sys.exit(code)"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=rig.folder, env=environment(), capture_output=True, text=True, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("command", ["dispatch", "poll-receipts", "reconcile"])
def test_an_idle_tick_says_nothing_writes_nothing_and_imports_nothing_heavy(rig: Rig, command: str) -> None:
    rig.work(eligible=3600)
    before = state_of(rig.folder)
    done = tick(rig, command, code=f"print([name for name in {HEAVY} if name in sys.modules])")
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")
    assert state_of(rig.folder) == before


def test_an_idle_tick_beside_a_writing_process_leaves_its_log_as_it_was(rig: Rig) -> None:
    writer = rig.open()
    writer.execute("UPDATE notify_meta SET value = ? WHERE key = 'clock_mark'", (at(-5),))
    writer.execute("BEGIN IMMEDIATE")
    before = state_of(rig.folder)
    assert "ledger.db-wal" in before
    done = tick(rig, "dispatch")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert state_of(rig.folder) == before
    writer.execute("ROLLBACK")
    writer.close()


def state_of(folder: Path) -> dict[str, tuple[str, int]]:
    """Digest and modification time of every file, but shared memory: readers mark their place in it."""
    return {
        path.name: (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in folder.iterdir()
        if not path.name.endswith("-shm")
    }


def test_what_was_only_just_committed_by_a_running_process_is_seen(rig: Rig) -> None:
    writer = rig.open()
    assert rig.ask("dispatch")
    writer.execute(
        "INSERT INTO notify_delivery (event_id, recipient_id, channel, template, template_version)"
        " VALUES ('e', 'r', 'email', 't', '1')"
    )
    assert not rig.ask("dispatch")
    writer.close()


@pytest.mark.parametrize(
    ("command", "step"), [("dispatch", "send"), ("poll-receipts", "check"), ("reconcile", "resolve")]
)
def test_each_tick_is_woken_by_its_own_step_only(rig: Rig, command: str, step: str) -> None:
    for other in {"send", "check", "resolve"} - {step}:
        rig.work(step=other, state="ambiguous")
    if command != "reconcile":
        assert rig.ask(command)
    rig.work(step=step, state="ambiguous")
    assert not rig.ask(command)


@pytest.mark.parametrize("command", ["dispatch", "poll-receipts", "reconcile"])
def test_an_attempt_whose_deadline_passed_wakes_every_tick(rig: Rig, command: str) -> None:
    rig.work(step="resolve", state="sending", eligible=60)
    assert rig.ask(command)
    rig.work(step="resolve", state="sending", eligible=-1)
    assert not rig.ask(command)


def test_rows_of_other_lanes_channels_and_regions_wake_nobody(rig: Rig) -> None:
    rig.work(lane="unconfigured")
    rig.work(region="us")
    assert rig.ask("dispatch")
    assert not rig.ask("dispatch", "--region", "us")
    rig.work(lane="bulk")
    assert rig.ask("dispatch", "--lane", "email", "--lane=sms")
    assert not rig.ask("dispatch", "--lane", "bulk")
    assert rig.ask("dispatch", "--channel", "sms")
    assert not rig.ask("dispatch", "--channel=email")


def test_a_row_wakes_at_its_time_and_not_before(rig: Rig) -> None:
    rig.work(eligible=3600)
    assert rig.ask("dispatch")
    rig.run("UPDATE notify_work SET eligible_at = ?", at(0))
    assert not rig.ask("dispatch")


@pytest.mark.parametrize(
    "arguments",
    [
        ["dispatch", "--json"],
        ["dispatch", "--dry-run"],
        ["dispatch", "--verbose"],
        ["dispatch", "--log-level", "loud"],
        ["dispatch", "--transport", "out"],
        ["poll-receipts", "--transport", "unknown"],
        ["poll-receipts", "--batch", "5"],
        ["reconcile", "--channel", "email"],
        ["--quiet", "dispatch"],
        ["dispatch", "--log-level", "debug"],
        ["dispatch", "--help"],
        ["dispatch", "--nonsense"],
        ["dispatch", "dispatch"],
        ["dispatch", "--limit", "x"],
        ["dispatch", "--limit"],
        ["dispatch", "--lane", "unknown"],
        ["dispatch", "--channel", "fax"],
        ["dispatch", "--region", "a", "--region", "b"],
        ["--lane", "email", "dispatch"],
        ["inspect"],
    ],
)
def test_whatever_is_not_plainly_a_quiet_tick_takes_the_long_way(rig: Rig, arguments: list[str]) -> None:
    assert not rig.ask(*arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--limit", "5"],
        ["--max-seconds=50"],
        ["--batch", "10", "--concurrency", "2"],
        ["--quiet", "--log-level", "error"],
    ],
)
def test_how_much_is_done_does_not_change_whether_anything_is_due(rig: Rig, arguments: list[str]) -> None:
    assert rig.ask("dispatch", *arguments)
    rig.work()
    assert not rig.ask("dispatch", *arguments)


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE notify_meta SET value = 'other' WHERE key = 'instance'",
        "DELETE FROM notify_meta",
        "UPDATE notify_schema SET version = 0",
        "DELETE FROM notify_schema",
        "UPDATE notify_schema SET min_reader = 99",
        "DROP TABLE notify_schema",
        "UPDATE notify_meta SET value = '2999-01-01 00:00:00.000000' WHERE key = 'clock_mark'",
    ],
)
def test_a_ledger_of_another_instance_version_or_time_is_left_to_the_long_way(rig: Rig, sql: str) -> None:
    rig.run(sql)
    assert not rig.ask("dispatch")


def test_a_newer_ledger_that_this_tool_may_still_use_is_idle(rig: Rig) -> None:
    rig.run("INSERT INTO notify_schema (version, name, checksum, min_reader) VALUES (99, 'x', '', 1)")
    assert rig.ask("dispatch")


def test_a_missing_broken_or_unfinished_ledger_is_left_to_the_long_way(rig: Rig) -> None:
    (rig.folder / "ledger.db-journal").write_bytes(b"x")
    assert not rig.ask("dispatch")
    (rig.folder / "ledger.db-journal").unlink()
    rig.path.write_bytes(b"not a database, but long enough to look like one" * 100)
    assert not rig.ask("dispatch")
    rig.path.unlink()
    assert not rig.ask("dispatch")
    assert not rig.path.exists()


def test_the_ledgers_folder_may_be_read_only_and_its_name_odd(tmp_path: Path) -> None:
    folder = tmp_path / "50% off? #1 ü"
    folder.mkdir()
    rig = Rig(folder)
    folder.chmod(0o555)
    try:
        assert rig.ask("dispatch")
        assert sorted(path.name for path in folder.iterdir()) == ["ledger.db", "notifyctl.toml"]
    finally:
        folder.chmod(0o755)


def test_a_bad_configuration_is_reported_also_when_idle(rig: Rig) -> None:
    (rig.folder / "notifyctl.toml").write_text(CONFIG.replace("path =", "pth ="))
    done = tick(rig, "dispatch")
    assert (done.returncode, done.stdout) == (78, "")
    assert "transports.out.pth is not a known key; did you mean path?" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_configuration_without_lanes_is_left_to_the_long_way(rig: Rig) -> None:
    (rig.folder / "notifyctl.toml").write_text(CONFIG.partition("[lanes.email]")[0])
    assert not rig.ask("dispatch")


def test_the_front_door_and_the_schema_agree_on_their_numbers() -> None:
    assert (front.SCHEMA_VERSION, front.READER) == (schema.SCHEMA_VERSION, schema.READER)


def test_the_question_is_answered_from_the_index_alone(rig: Rig) -> None:
    """It may not grow with the ledger: no table is scanned, whatever it holds."""
    connection = rig.open()
    names = {
        "lanes": "'email', 'sms'", "region": "''", "now": "'2026-01-01 00:00:00.000000'", "feeds": "'relay'",
        "feed_count": 1,
        "stale": "'2026-01-01 00:00:00.000000'",
    }  # fmt: skip
    work, cursor = "notify_work_claim (step=? AND lane=? AND region=? AND eligible_at<?)", "PRIMARY KEY (transport=?)"
    for duties in front.DUTIES.values():
        for duty in duties:
            plan = connection.execute("EXPLAIN QUERY PLAN SELECT " + duty.format(**names)).fetchall()
            details = [row[3] for row in plan]
            index = cursor if "notify_cursor" in duty else "notify_delivery_expiry" if "expires_at" in duty else work
            assert any(index in one for one in details), details
            assert not [one for one in details if one.startswith("SCAN") and "CONSTANT" not in one], details
    connection.close()


def test_a_feed_is_due_when_it_was_never_read_and_again_once_its_time_has_come(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    feeding = registry.KINDS["file"]._replace(feeds="kind")
    monkeypatch.setitem(registry.KINDS, "file", feeding)
    assert not rig.ask("poll-receipts")  # there is no cursor yet
    rig.run("INSERT INTO notify_cursor (transport, eligible_at) VALUES ('out', ?)", at(3600))
    assert rig.ask("poll-receipts")
    assert rig.ask("dispatch")
    rig.run("UPDATE notify_cursor SET eligible_at = ?", at(-1))
    assert not rig.ask("poll-receipts")
    assert rig.ask("dispatch")


@pytest.mark.skipif(shutil.which("script") is None, reason="needs script(1) for a terminal")
def test_on_a_terminal_the_long_way_is_taken(rig: Rig) -> None:
    program = "from notifyctl.cli import door; import sys; sys.exit(5 if door.is_tick(['dispatch']) else 4)"
    done = subprocess.run(
        ["script", "-qec", f'{sys.executable} -c "{program}"', "/dev/null"],
        cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 4


# -- Postgres -----------------------------------------------------------------------------------------------------


class Server:
    """The same on a real Postgres."""

    def __init__(self, folder: Path, connection: psycopg.Connection[Any]) -> None:
        self.folder, self.connection = folder, connection

    def work(self, step: str = "send", lane: str = "email", seconds: float = -1.0, state: str = "queued") -> None:
        run = self.connection.execute
        run(
            "INSERT INTO notify_delivery (event_id, recipient_id, channel, template, template_version, lane)"
            " SELECT count(*)::text, 'r', 'email', 't', '1', %s FROM notify_delivery",
            [lane],
        )
        run("UPDATE notify_delivery SET state = %s WHERE id = (SELECT max(id) FROM notify_delivery)", [state])
        run(
            "UPDATE notify_work SET step = %s, eligible_at = now() + %s * interval '1 second'"
            " WHERE delivery_id = (SELECT max(delivery_id) FROM notify_work)",
            [step, seconds],
        )

    def ask(self, *arguments: str) -> bool:
        idle, ledger = door.ask(["--config", str(self.folder / "notifyctl.toml"), *arguments])
        assert (ledger is None) is idle
        if ledger is not None:
            assert ledger.connection.execute("SELECT 1").fetchone() == (1,)
            ledger.close()
        return idle


@pytest.fixture
def server(tmp_path: Path, postgres: Cluster, migrated_template: str) -> Iterator[Server]:
    url = postgres.create_database(template=migrated_template)
    (tmp_path / "notifyctl.toml").write_text(CONFIG.replace("sqlite:///ledger.db", url))
    with psycopg.connect(url, autocommit=True) as connection:
        yield Server(tmp_path, connection)
    postgres.drop_database(url)


def test_on_postgres_each_tick_is_woken_by_its_own_due_work(server: Server) -> None:
    ticks = ("dispatch", "poll-receipts", "reconcile")
    server.work(seconds=3600)
    server.work(lane="unconfigured")
    assert [server.ask(tick) for tick in ticks] == [True, True, True]
    server.work()
    assert [server.ask(tick) for tick in ticks] == [False, True, True]
    assert server.ask("dispatch", "--lane", "sms")
    assert server.ask("dispatch", "--region", "us")
    server.work(step="check", state="accepted")
    assert [server.ask(tick) for tick in ticks] == [False, False, True]


def test_on_postgres_a_lapsed_attempt_wakes_every_tick(server: Server) -> None:
    server.work(step="resolve", state="sending", seconds=60)
    assert server.ask("dispatch")
    server.work(step="resolve", state="sending")
    assert [server.ask(tick) for tick in ("dispatch", "poll-receipts", "reconcile")] == [False, False, False]


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE notify_meta SET value = 'other' WHERE key = 'instance'",
        "UPDATE notify_schema SET min_reader = 99",
        "DROP TABLE notify_schema",
    ],
)
def test_a_postgres_ledger_that_is_not_as_expected_is_left_to_the_long_way(server: Server, sql: str) -> None:
    server.connection.execute(sql)
    assert not server.ask("dispatch")


def test_an_idle_tick_on_postgres_says_nothing_and_leaves_no_row(server: Server) -> None:
    done = tick(server, "dispatch", code="print([name for name in ('typer', 'rich', 'jinja2') if name in sys.modules])")
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")
    assert server.connection.execute("SELECT count(*) FROM notify_run").fetchone() == (0,)


def test_a_postgres_that_cannot_be_reached_is_exit_75_after_one_wait(tmp_path: Path) -> None:
    url = "postgresql://u:hunter2@127.0.0.1:1/d"
    (tmp_path / "notifyctl.toml").write_text(CONFIG.replace("sqlite:///ledger.db", url))
    with pytest.raises(LedgerUnavailable):
        door.ask(["--config", str(tmp_path / "notifyctl.toml"), "dispatch"])
