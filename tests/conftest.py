"""What the tests share: a private Postgres cluster, and a ledger on each database."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from notifyctl.ledger import schema
from tests.postgres import Cluster

INSTANCE = "test"

settings.register_profile("soak", max_examples=1000, deadline=None)  # pytest --hypothesis-profile=soak


@pytest.fixture(scope="session")
def postgres() -> Iterator[Cluster]:
    """The session's private Postgres; started when the first test asks for it."""
    cluster = Cluster().start()
    yield cluster
    cluster.stop()


@pytest.fixture(params=["sqlite", "postgresql"])
def dialect(request: pytest.FixtureRequest) -> str:
    """Both databases, one after the other: every test that uses a ledger runs on both."""
    return str(request.param)


@pytest.fixture
def ledger_url(dialect: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a fresh and empty database."""
    if dialect == "sqlite":
        yield f"sqlite:///{tmp_path / 'ledger.db'}"
        return
    cluster: Cluster = request.getfixturevalue("postgres")
    url = cluster.create_database()
    yield url
    cluster.drop_database(url)


@pytest.fixture
def migrated_url(dialect: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a fresh ledger, schema applied, instance "test"."""
    if dialect == "sqlite":
        path = tmp_path / "ledger.db"
        shutil.copyfile(request.getfixturevalue("migrated_file"), path)
        yield f"sqlite:///{path}"
        return
    template: str = request.getfixturevalue("migrated_template")
    cluster: Cluster = request.getfixturevalue("postgres")
    url = cluster.create_database(template=template)
    yield url
    cluster.drop_database(url)


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file to copy."""
    path = tmp_path_factory.mktemp("migrated") / "ledger.db"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    schema.migrate(connection, "sqlite", INSTANCE)
    connection.close()
    return path


@pytest.fixture(scope="session")
def migrated_template(postgres: Cluster) -> str:
    """The name of a migrated Postgres database to copy; nobody stays connected to it."""
    postgres.create_database(name="migrated")
    with postgres.connect("migrated") as connection:
        schema.migrate(connection, "postgresql", INSTANCE)
    return "migrated"
