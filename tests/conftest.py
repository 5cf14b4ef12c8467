"""What the tests share: a private Postgres cluster, and a ledger on each database."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from notifyctl.ledger import schema
from notifyctl.transports import registry
from tests.postgres import Cluster

INSTANCE = "test"
KINDS = frozenset(registry.KINDS)

# Cases run on both databases. In the families below, which start many processes, every second one runs on SQLite and
# the others on Postgres, and the rest of the square is for the soak (`-m soak`); so are the variants of one reported
# fault that go beyond the first FEW.
DEAR = ("cli/", "crash/test_polls.py", "crash/test_resolves.py", "scenarios/", "stories/", "test_auditor.py",
        "test_poisoned_rows.py", "ticks/test_gates.py", "test_trouble")  # fmt: skip
FEW = 6
ON_DEMAND = {"postgresql": ("model/test_model.py::test_the_model_check_catches_each_mutant",)}

settings.register_profile("soak", max_examples=1000, deadline=None)  # pytest --hypothesis-profile=soak


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to the soak what would make every change wait too long."""
    here = Path(__file__).parent
    families: dict[str, dict[str, list[pytest.Item]]] = {}
    for item in items:
        case = getattr(item, "callspec", None)
        if case is None or "dialect" not in case.params:
            continue
        dialect, name = str(case.params["dialect"]), item.nodeid.split("[")[0]
        place = f"{item.path.relative_to(here).as_posix()}::{name.rpartition('::')[2]}"
        if place in ON_DEMAND.get(dialect, ()):
            item.add_marker(pytest.mark.soak)
        if not place.startswith(DEAR) or item.get_closest_marker("soak"):
            continue
        variant = name + "-".join(part for part in case.id.split("-") if part != dialect)
        # every reported fault is played on both databases; elsewhere a whole file is one family
        family = name if place.startswith("scenarios/") else str(item.path)
        families.setdefault(family, {}).setdefault(variant, []).append(item)
    for family, variants in families.items():
        for number, cases in enumerate(variants.values() if len(variants) > 1 else ()):
            beyond = number >= FEW and family.startswith("tests/scenarios/")
            for item in cases if beyond else cases[1 - number % 2 : 2 - number % 2] if len(cases) == 2 else ():
                item.add_marker(pytest.mark.soak)


@pytest.fixture(autouse=True)
def _only_real_kinds() -> Iterator[None]:
    """What a test has registered as a kind of transport is gone after it."""
    yield
    for kind in registry.KINDS.keys() - KINDS:
        del registry.KINDS[kind]


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
