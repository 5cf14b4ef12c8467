"""The SQL contract through the clients that applications really use: psql, sqlite3, Node.js; and README's examples."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ledger.databases import Database
from tests.postgres import Cluster

README = Path(__file__).parents[2] / "schema/README.md"
PACKAGES = ("better-sqlite3@12", "pg@8")
# Node trusts a list of its own, but behind a company's proxy the machine's is needed; and where the headers to compile
# a native part with are on the machine, they need not be fetched.
BUNDLE, HEADERS = Path("/etc/ssl/certs/ca-certificates.crt"), Path("/usr/include/node/node.h")
NODE = {"NODE_EXTRA_CA_CERTS": str(BUNDLE)} if BUNDLE.exists() else {}
NODE |= {"npm_config_nodedir": "/usr"} if HEADERS.exists() else {}


def path_of(url: str) -> str:
    return url.removeprefix("sqlite:///")


def program(name: str, cluster: Cluster | None = None) -> str:
    found = shutil.which(name)
    if found is None and cluster is not None and (cluster.bin / name).exists():
        found = str(cluster.bin / name)
    if found is None:
        pytest.skip(f"{name} is not on PATH")
    return found


@pytest.fixture(scope="session")
def node_modules() -> Path:
    """Node's clients, installed once per machine outside the checkout ($NOTIFYCTL_TEST_CACHE, else the temp folder)."""
    program("node")
    npm = program("npm")
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    base = os.environ.get("NOTIFYCTL_TEST_CACHE") or tempfile.gettempdir()
    folder = Path(base) / f"notifyctl-test-node-{version}-{os.getuid()}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test runs at once
        if not (folder / "installed").exists():
            (folder / "package.json").write_text('{"private": true}')
            # better-sqlite3 fetches or compiles its native part, which takes up to some minutes, once
            subprocess.run(
                [npm, "install", "--no-audit", "--no-fund", "--cache", str(folder / "cache"), *PACKAGES],
                cwd=folder, check=True, stdout=subprocess.DEVNULL, timeout=900,
                env={**NODE, **os.environ, "HOME": os.environ.get("HOME", str(folder))},
            )  # fmt: skip
            (folder / "installed").touch()
    return folder / "node_modules"


@pytest.fixture
def shop(migrated_url: str) -> Iterator[Database]:
    """A ledger beside an application's own table."""
    with Database(migrated_url) as shop:
        shop.execute("CREATE TABLE orders (id integer PRIMARY KEY, total numeric)")
        yield shop


def run(command: list[str], text: str, *, cwd: Path | None = None, **environment: str) -> Any:
    return subprocess.run(
        command, input=text, text=True, check=False, capture_output=True, cwd=cwd,
        env={**os.environ, **environment}, timeout=120,
    )  # fmt: skip


def client(shop: Database, request: pytest.FixtureRequest) -> list[str]:
    if shop.dialect == "sqlite":
        return [program("sqlite3"), "-bail", path_of(shop.url)]
    return [program("psql", request.getfixturevalue("postgres")), "-q", "-v", "ON_ERROR_STOP=1", "-d", shop.url]


# -- the examples of schema/README.md --------------------------------------------------------------------------------


def example(title: str) -> str:
    """The code under this heading."""
    section = README.read_text(encoding="utf-8").partition(f"\n### {title}\n")[2]
    found = re.search(r"```\w+\n(.*?)```", section, re.DOTALL)
    assert found is not None, title
    return found[1]


EXAMPLES = {
    "sqlite": ["sqlite3", "Node.js, better-sqlite3", "Python, sqlite3"],
    "postgresql": ["psql", "Node.js, pg", "Python, psycopg"],
}


@pytest.mark.parametrize("kind", [0, 1, 2], ids=["command line", "node", "python"])
def test_the_readmes_example_commits_an_order_with_its_notification(
    shop: Database, kind: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    text = example(EXAMPLES[shop.dialect][kind])
    folder = tmp_path / "app"
    folder.mkdir()
    if shop.dialect == "sqlite":
        (folder / "shop.db").symlink_to(path_of(shop.url))
    environment = {"DATABASE_URL": shop.url}
    if kind == 0:
        command = client(shop, request)
    elif kind == 1:
        command = [program("node"), "-"]
        environment["NODE_PATH"] = str(request.getfixturevalue("node_modules"))
    else:
        command = [sys.executable, "-"]
    done = run(command, text, cwd=folder, **environment)
    assert done.returncode == 0, done.stderr
    assert shop.one("SELECT id FROM orders") == 1001
    event, recipient, state, variables = shop.one(
        "SELECT event_id, recipient_id, state, variables FROM notify_delivery"
    )
    assert (event, recipient, state) == ("order-1001-paid", "customer-42", "queued")
    assert (json.loads(variables) if isinstance(variables, str) else variables) == {"order": 1001}
    assert shop.one("SELECT count(*) FROM notify_work") == 1


# -- the command lines -------------------------------------------------------------------------------------------------

INSERT = "INSERT INTO notify_delivery (event_id, recipient_id, channel, template) VALUES ('{0}', 'r-1', 'email', 't')"


def test_a_transaction_of_the_command_line_client_that_rolls_back_leaves_nothing(
    shop: Database, request: pytest.FixtureRequest
) -> None:
    text = f"BEGIN;\nINSERT INTO orders VALUES (1, 2);\n{INSERT.format('order-1')};\nROLLBACK;\n"
    assert run(client(shop, request), text).returncode == 0
    for table in ("orders", "notify_delivery", "notify_work", "notify_key", "notify_transition"):
        assert shop.one(f"SELECT count(*) FROM {table}") == 0, table


def test_a_transaction_that_fails_in_the_command_line_client_leaves_nothing(
    shop: Database, request: pytest.FixtureRequest
) -> None:
    text = f"BEGIN;\nINSERT INTO orders VALUES (1, 2);\n{INSERT.format('a@b.example')};\nCOMMIT;\n"
    assert run(client(shop, request), text).returncode != 0
    assert shop.one("SELECT count(*) FROM orders") == 0


def test_the_command_line_client_meets_duplicates_as_documented(shop: Database, request: pytest.FixtureRequest) -> None:
    command = client(shop, request)
    assert run(command, f"{INSERT.format('order-1')};").returncode == 0
    assert run(command, f"{INSERT.format('order-1')} ON CONFLICT DO NOTHING;").returncode == 0
    again = run(command, f"{INSERT.format('order-1')};")
    assert again.returncode != 0
    assert "unique" in again.stderr.lower()
    if shop.dialect == "sqlite":
        replace = run(command, f"{INSERT.format('order-1').replace('INSERT', 'REPLACE')};")
        assert replace.returncode != 0
        assert "use ON CONFLICT DO NOTHING" in replace.stderr
        late = INSERT.format("order-2").replace("template)", "template, due_at)").replace("'t')", "'t', 'tomorrow')")
        assert "notify_delivery.due_at is not a time" in run(command, f"{late};").stderr
    assert shop.one("SELECT count(*) FROM notify_work") == 1


# -- Node.js -----------------------------------------------------------------------------------------------------------

NODE_SQLITE = """
const Database = require("better-sqlite3");
const db = new Database(process.env.LEDGER);
const columns = "(event_id, recipient_id, channel, template, due_at)";
const insert = (verb, event, due, tail = "") =>
  db.prepare(`${verb} INTO notify_delivery ${columns} VALUES (?, 'r-1', 'email', 't', ?) ${tail}`).run(event, due);
const failure = (f) => { try { f(); return null; } catch (e) { return `${e.code}: ${e.message}`; } };
const Z = "2027-03-28T09:00:00.000Z";
const out = {};
out.rollback = failure(() => db.transaction(() => {
  db.prepare("INSERT INTO orders VALUES (1, 2)").run();
  insert("INSERT", "rolled-back", Z);
  throw new Error("the business says no");
})());
db.transaction(() => { db.prepare("INSERT INTO orders VALUES (2, 2)").run(); insert("INSERT", "order-2", Z); })();
out.nothing = insert("INSERT", "order-2", Z, "ON CONFLICT DO NOTHING").changes;
out.duplicate = failure(() => insert("INSERT", "order-2", Z));
out.replace = failure(() => insert("REPLACE", "order-2", Z));
out.orReplace = failure(() => insert("INSERT OR REPLACE", "order-2", Z));
out.number = failure(() => insert("INSERT", "order-3", Date.now()));
out.text = failure(() => insert("INSERT", "order-3", new Date().toString()));
console.log(JSON.stringify(out));
"""

NODE_POSTGRES = """
const { Client } = require("pg");
const client = new Client({ connectionString: process.env.LEDGER });
const columns = "(event_id, recipient_id, channel, template, due_at)";
const insert = (event, due, tail = "") =>
  client.query(`INSERT INTO notify_delivery ${columns} VALUES ($1, 'r-1', 'email', 't', $2) ${tail}`, [event, due]);
const failure = (promise) => promise.then(() => null, (e) => `${e.code}: ${e.message}`);
const Z = "2027-03-28T09:00:00.000Z";
(async () => {
  await client.connect();
  const out = {};
  await client.query("BEGIN");
  await client.query("INSERT INTO orders VALUES (1, 2)");
  await insert("rolled-back", Z);
  await client.query("ROLLBACK");
  await client.query("BEGIN");
  await client.query("INSERT INTO orders VALUES (2, 2)");
  await insert("order-2", Z);
  await client.query("COMMIT");
  out.nothing = (await insert("order-2", new Date(), "ON CONFLICT DO NOTHING")).rowCount;
  out.duplicate = await failure(insert("order-2", Z));
  out.number = await failure(insert("order-3", Date.now()));
  console.log(JSON.stringify(out));
  await client.end();
})();
"""


def test_node_commits_rolls_back_and_meets_duplicates_as_documented(shop: Database, node_modules: Path) -> None:
    script, ledger = (NODE_SQLITE, path_of(shop.url)) if shop.dialect == "sqlite" else (NODE_POSTGRES, shop.url)
    done = run([program("node"), "-"], script, NODE_PATH=str(node_modules), LEDGER=ledger)
    assert done.returncode == 0, done.stderr
    out = json.loads(done.stdout)
    assert shop.execute("SELECT id FROM orders") == [(2,)]
    assert shop.execute("SELECT event_id, state FROM notify_delivery") == [("order-2", "queued")]
    due = shop.one("SELECT due_at FROM notify_work")
    assert str(due)[:19] == "2027-03-28 09:00:00"
    assert out["nothing"] == 0
    assert out["number"] is not None
    if shop.dialect == "sqlite":
        assert out["rollback"] == "undefined: the business says no"
        assert out["duplicate"].startswith("SQLITE_CONSTRAINT_UNIQUE")
        for refused in ("replace", "orReplace"):
            assert "use ON CONFLICT DO NOTHING" in out[refused]
        for wrong in ("number", "text"):
            assert "notify_delivery.due_at is not a time" in out[wrong]
    else:
        assert out["duplicate"].startswith("23505")
