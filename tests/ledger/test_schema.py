"""Migrations: complete or absent, once, for the right tool and instance, and beside an application's own tables."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from notifyctl.errors import ConfigError, LedgerUnavailable
from notifyctl.ledger import schema
from notifyctl.ledger.database import Ledger
from tests.ledger.databases import Database
from tests.postgres import Cluster

ROOT = Path(__file__).parents[2]

TABLES = {
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name",
    "postgresql": "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace "
    'ORDER BY relname COLLATE "C"',
}


@pytest.fixture
def database(ledger_url: str) -> Iterator[Database]:
    with Database(ledger_url) as database:
        yield database


def migrate(database: Database, **options: Any) -> list[schema.Migration]:
    return schema.migrate(database.connection, database.dialect, "test", **options)


def tables(database: Database) -> list[str]:
    return [name for (name,) in database.execute(TABLES[database.dialect])]


# -- the two folders say the same ----------------------------------------------------------------------------------


def test_both_databases_have_the_same_tables_columns_and_indexes(postgres: Cluster, tmp_path: Path) -> None:
    with Database(f"sqlite:///{tmp_path / 'ledger.db'}") as one, Database(postgres.create_database()) as other:
        migrate(one)
        migrate(other)
        assert tables(one) == tables(other)
        assert len(tables(one)) == 17
        for table in tables(one):
            assert _sqlite_columns(one, table) == _postgres_columns(other, table), table
        indexes = "SELECT name FROM sqlite_master WHERE type = 'index' AND name NOT LIKE 'sqlite_%' ORDER BY name"
        named = (
            "SELECT indexname FROM pg_indexes WHERE schemaname = 'public' AND indexname NOT LIKE '%_pkey' "
            'ORDER BY indexname COLLATE "C"'
        )
        assert one.execute(indexes) == other.execute(named)


_KINDS = {"BIGINT": "INTEGER", "BOOLEAN": "INTEGER", "DOUBLE PRECISION": "REAL"}


def _sqlite_columns(database: Database, table: str) -> list[tuple[str, str, bool, bool]]:
    rows = database.execute(f'PRAGMA table_xinfo("{table}")')
    key = [name for _, name, _, _, _, part, _ in rows if part]
    return [
        (name, kind.partition(" ")[0], bool(notnull) or name in key, hidden in (2, 3))
        for _, name, kind, notnull, _, _, hidden in rows
    ]


def _postgres_columns(database: Database, table: str) -> list[tuple[str, str, bool, bool]]:
    rows = database.execute(
        "SELECT column_name, upper(data_type), is_nullable, is_generated FROM information_schema.columns "
        "WHERE table_name = ? ORDER BY ordinal_position",
        table,
    )
    return [(name, _KINDS.get(kind, kind) if kind not in _TEXTS else "TEXT", null == "NO", generated == "ALWAYS")
            for name, kind, null, generated in rows]  # fmt: skip


_TEXTS = ("TEXT", "JSONB", "TIMESTAMP WITH TIME ZONE")


def test_both_folders_hold_the_same_file_names() -> None:
    names = [[(m.version, m.name, m.min_reader) for m in schema.migrations(d)] for d in ("sqlite", "postgresql")]
    assert names[0] == names[1]
    assert names[0][-1][0] == schema.SCHEMA_VERSION


# -- applying ------------------------------------------------------------------------------------------------------


def test_a_new_ledger_has_its_instance_a_secret_and_a_clock(database: Database) -> None:
    assert [m.name for m in migrate(database)] == ["0001_ledger"]
    meta = dict(database.execute("SELECT key, value FROM notify_meta"))
    assert len(bytes.fromhex(meta.pop("secret"))) == 32
    assert set(meta) == {"instance", "clock_offset", "clock_mark"}
    assert meta["instance"] == "test"
    assert meta["clock_offset"] == "0"
    schema.check(database.connection, database.dialect, "test")


@pytest.mark.parametrize("umask", [0o022, 0o000])
def test_a_ledgers_file_is_for_its_owner_alone_and_one_that_is_there_keeps_its_mode(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "ledger.db"
    before = os.umask(umask)
    try:
        ledger = Ledger(f"sqlite:///{path}", create=True)
        ledger.transact(lambda tx: tx.execute("CREATE TABLE t (x)"))
        assert {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == dict.fromkeys(
            ("ledger.db", "ledger.db-wal", "ledger.db-shm"), 0o600
        )
        ledger.close()
        path.chmod(0o660)  # a group that shares the ledger
        ledger = Ledger(f"sqlite:///{path}", create=True)
        ledger.transact(lambda tx: tx.execute("INSERT INTO t VALUES (1)"))
        assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o660}
        ledger.close()
    finally:
        os.umask(before)


def test_migrating_again_changes_nothing(database: Database) -> None:
    migrate(database)
    before = database.execute("SELECT key, value FROM notify_meta ORDER BY key")
    assert migrate(database) == []
    assert schema.migrate(database.connection, database.dialect, "another") == []
    assert database.execute("SELECT key, value FROM notify_meta ORDER BY key") == before
    assert database.one("SELECT count(*) FROM notify_schema") == 1


KILLED = """
import os, signal, sys
from notifyctl.ledger import schema
from notifyctl.ledger.database import Ledger
from tests.ledger.databases import Database
class Dying:
    def __init__(self, real, last): self.real, self.last, self.seen = real, last, 0
    def execute(self, text, *values):
        self.seen += 1
        if text == "COMMIT" if self.last == 0 else self.seen == self.last:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.real.execute(text, *values)
database = Database(sys.argv[1])
schema.migrate(Dying(database.connection, int(sys.argv[2])), database.dialect, "test")
"""


@pytest.mark.parametrize("statement", [4, 7, 0], ids=["early", "in the middle", "before the commit"])
def test_a_migration_killed_in_the_middle_has_not_happened_and_is_run_again(ledger_url: str, statement: int) -> None:
    with Database(ledger_url) as database:
        database.execute("CREATE TABLE orders (id integer)")
    done = subprocess.run([sys.executable, "-c", KILLED, ledger_url, str(statement)], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    with Database(ledger_url) as database:
        assert tables(database) == ["orders"]
        assert len(migrate(database)) == 1
        schema.check(database.connection, database.dialect, "test")


TOGETHER = """
import sys
from notifyctl.ledger import schema
from notifyctl.ledger.database import Ledger
from tests.ledger.databases import Database
database = Database(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
print(len(schema.migrate(database.connection, database.dialect, "test", lock_timeout=30)))
"""


def test_two_migrations_at_once_apply_each_file_once(ledger_url: str) -> None:
    command = [sys.executable, "-c", TOGETHER, ledger_url]
    racers = [
        subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()
    results = [racer.communicate(timeout=60)[0].strip() for racer in racers]
    assert sorted(results) == ["0", "0", "1"]
    assert [racer.returncode for racer in racers] == [0, 0, 0]


def test_a_lock_held_beyond_patience_is_reported_and_nothing_is_changed(database: Database, ledger_url: str) -> None:
    with Database(ledger_url) as other:
        other.begin()
        if other.dialect == "postgresql":
            other.execute(f"SELECT pg_advisory_xact_lock({schema._ADVISORY_LOCK})")
        with pytest.raises(LedgerUnavailable, match=r"locked by another process for 0\.2 s; nothing was changed"):
            migrate(database, lock_timeout=0.2)
        other.execute("ROLLBACK")
    assert tables(database) == []
    assert len(migrate(database)) == 1


def test_the_tables_of_an_application_are_left_alone(database: Database) -> None:
    for table in ("alembic_version", "schema_migrations"):
        database.execute(f"CREATE TABLE {table} (version_num text PRIMARY KEY)")
        database.execute(f"INSERT INTO {table} VALUES ('4f1a')")
    migrate(database)
    ours = [name for name in tables(database) if name not in ("alembic_version", "schema_migrations")]
    assert all(name.startswith("notify_") for name in ours)
    for table in ("alembic_version", "schema_migrations"):
        assert database.execute(f"SELECT * FROM {table}") == [("4f1a",)]


def test_everything_that_is_made_carries_the_prefix(database: Database) -> None:
    migrate(database)
    names = {
        "sqlite": "SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'",
        "postgresql": "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace UNION ALL "
        "SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace",
    }[database.dialect]
    assert [name for (name,) in database.execute(names) if not name.startswith("notify_")] == []


def test_the_printed_sql_applied_by_hand_is_the_migration(ledger_url: str, dialect: str) -> None:
    text = schema.sql(dialect)
    if dialect == "sqlite":
        client = shutil.which("sqlite3")
        command = [client, "-bail", ledger_url.removeprefix("sqlite:///")] if client else []
    else:
        client = shutil.which("psql")
        command = [client, "-q", "-v", "ON_ERROR_STOP=1", "-d", ledger_url] if client else []
    if client:
        subprocess.run(command, input=text, text=True, check=True, stdout=subprocess.DEVNULL)
    else:
        with Database(ledger_url) as database:
            database.connection.executescript(text) if dialect == "sqlite" else database.execute(text)
    with Database(ledger_url) as database:
        assert schema.pending(database.connection, dialect) == []
        with pytest.raises(ConfigError, match="no instance"):
            schema.check(database.connection, dialect, "test")
        assert migrate(database) == []  # writes only the instance and the secret
        schema.check(database.connection, dialect, "test")
    assert schema.sql(dialect, since=schema.SCHEMA_VERSION) == ""


# -- the right ledger, the right tool ------------------------------------------------------------------------------


def test_a_database_without_a_ledger_names_the_command_to_run(database: Database) -> None:
    with pytest.raises(ConfigError) as caught:
        schema.check(database.connection, database.dialect, "test")
    assert caught.value.exit_code == 78
    assert caught.value.hint == "run: notifyctl migrate"


def test_another_instance_is_refused_until_it_is_adopted(database: Database) -> None:
    migrate(database)
    with pytest.raises(ConfigError, match=r'"test".*"staging"') as caught:
        schema.check(database.connection, database.dialect, "staging")
    assert "notifyctl migrate --adopt-instance" in caught.value.hint
    assert schema.adopt_instance(database.connection, database.dialect, "staging") == "test"
    schema.check(database.connection, database.dialect, "staging")


def test_a_ledger_that_asks_for_a_newer_reader_is_refused(database: Database) -> None:
    migrate(database)
    database.execute(
        "INSERT INTO notify_schema (version, name, checksum, min_reader) VALUES (99, '0099_later', 'x', ?)",
        schema.READER + 1,
    )
    for use in (schema.pending, lambda c, d: schema.check(c, d, "test")):
        with pytest.raises(ConfigError) as caught:
            use(database.connection, database.dialect)
        assert caught.value.exit_code == 78
        assert "update notifyctl" in caught.value.hint


def test_a_ledger_with_later_additive_files_is_used(database: Database) -> None:
    migrate(database)
    database.execute(
        "INSERT INTO notify_schema (version, name, checksum, min_reader) VALUES (99, '0099_later', 'x', ?)",
        schema.READER,
    )
    assert migrate(database) == []
    schema.check(database.connection, database.dialect, "test")


def test_a_file_that_differs_from_the_applied_one_is_refused(database: Database) -> None:
    migrate(database)
    database.execute("UPDATE notify_schema SET checksum = 'another'")
    with pytest.raises(ConfigError, match=r"0001_ledger\.sql is not the one that was applied"):
        migrate(database)


def test_a_role_that_may_not_create_tables_is_told_to_ask(postgres: Cluster) -> None:
    url = postgres.create_database()
    with Database(url) as owner:
        owner.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        owner.execute("DROP ROLE IF EXISTS reader")
        owner.execute("CREATE ROLE reader LOGIN")
    with (
        Database(url.replace("postgres@", "reader@")) as reader,
        pytest.raises(ConfigError) as caught,
    ):
        migrate(reader)
    assert "notifyctl migrate --sql" in caught.value.hint


def test_a_ledger_in_a_schema_of_its_own_serves_sessions_with_another_search_path(postgres: Cluster) -> None:
    with Database(postgres.create_database()) as database:
        database.execute("CREATE SCHEMA messages")
        database.execute("SET search_path = messages")
        migrate(database)
        database.execute("SET search_path = public")
        database.execute(
            "INSERT INTO messages.notify_delivery (event_id, recipient_id, channel, template) "
            "VALUES ('order-1', 'r-1', 'email', 'welcome')"
        )
        assert database.one("SELECT lane FROM messages.notify_work") == "email"
        database.execute("INSERT INTO messages.notify_suppression (recipient_id, channel) VALUES ('r-1', 'email')")
        assert database.one("SELECT state FROM messages.notify_delivery") == "suppressed"
        assert tables(database) == []


def test_a_driver_error_of_another_kind_is_not_disguised(database: Database) -> None:
    database.execute("CREATE TABLE notify_gate (x integer)")
    with pytest.raises((sqlite3.OperationalError, psycopg.errors.DuplicateTable), match="notify_gate"):
        migrate(database)
    assert tables(database) == ["notify_gate"]
