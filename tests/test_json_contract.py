"""Every JSON result has the keys that `tests.json_keys` pins: no more, no fewer, from the command as it is run."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests import docs
from tests.cli.rig import Folder, failure
from tests.json_keys import ERROR, KEYS, found, wanted

CONFIG = """instance = "test"
[ledger]
url = "sqlite:///ledger.db"
[transports.out]
kind = "file"
path = "outbox"
from = "Shop <no-reply@example.com>"
fail = [
  { match = "gone@example.com", outcome = "permanent_failure", reason = "recipient_rejected" },
  { match = "lost@example.com", outcome = "ambiguous", reason = "reply_lost" },
]
[transports.texts]
kind = "file"
path = "outbox"
from = "+15005550006"
[lanes.email]
channel = "email"
transport = "out"
[lanes.sms]
channel = "sms"
transport = "texts"
[topics.digest]
consent = "required"
"""
HELLO = {"subject": "Hello {{ name }}", "text": "Hello {{ name }}", "sms": "Hello {{ name }}"}


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """An installation with a migrated ledger and one published template."""
    folder = Folder(tmp_path)
    folder.configure(CONFIG)
    folder.template("hello/1", **HELLO)
    assert folder.run("migrate").returncode == 0
    assert folder.run("template", "publish").returncode == 0
    return folder


def enqueue(folder: Folder, event: str, *more: str, to: str = "ada@example.com", code: int = 0) -> Any:
    return folder.json(
        "enqueue", "--event", event, "--recipient", "r-1", "--channel", "email", "--template", "hello",
        "--var", "name=Ada", "--to", f"email={to}", *more, code=code,
    )  # fmt: skip


def write(folder: Folder, statement: str) -> None:
    with closing(sqlite3.connect(folder.path / "ledger.db", isolation_level=None)) as connection:
        connection.execute(statement)


def hold(name: str, *documents: Any) -> None:
    """Together the documents show every place that is pinned, and each of them nothing else."""
    keys, seen = KEYS[name], set()
    for document in documents:
        places = found(document, keys)
        assert places == wanted(keys, places), name
        seen |= set(places)
        stray = re.findall(r'"(\d{4}-\d\d-\d\d[T ][^"]*)"', json.dumps(document))
        assert [time for time in stray if not re.fullmatch(r"[\d-]+T[\d:]+(\.\d+)?Z", time)] == []
    assert seen == set(keys), f"{name}: not shown by this test"


def test_every_command_has_its_keys_pinned() -> None:
    names = {name for name, _ in docs.commands()} - {"demo"}  # it tells a story to a person
    assert {name.partition(" --")[0] for name in KEYS} >= names


def test_init_and_migrate(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.config.unlink()
    hold("init", folder.json("init"))
    hold("migrate", folder.json("migrate"))
    hold("migrate --sql", folder.json("migrate", "--sql"))


def test_enqueue(folder: Folder) -> None:
    sms = folder.json(
        "enqueue", "--event", "e-1", "--recipient", "r-1", "--channel", "sms", "--template", "hello",
        "--var", "name=Ada", "--to", "sms=+12025550123",
    )  # fmt: skip
    bad = enqueue(folder, "e-2", "--locale", "x", "--topic", "nobody-configured-it", code=65)
    hold("enqueue", sms, bad, enqueue(folder, "e-3", "--dry-run"))
    assert sms["sms"] == {"encoding": "gsm7", "segments": 1}
    assert bad["errors"][0]["field"] == "topic"


def test_dispatch(folder: Folder) -> None:
    idle = folder.json("dispatch")
    assert idle["run"] is None
    enqueue(folder, "e-1")
    paused = folder.json("lane", "pause", "email", "--reason", "moving")
    hold("lane pause", paused)
    hold("lane list", folder.json("lane", "list"))
    dry = folder.json("dispatch", "--dry-run")
    hold("dispatch --dry-run", dry)
    assert (dry["would_claim"], dry["lanes"]["email"]["held_by"]) == (0, {"pause": 1})
    hold("lane resume", folder.json("lane", "resume", "email", "--reason", "moved"))
    run = folder.json("dispatch")
    hold("dispatch", idle, run)
    assert run["accepted"] == run["lanes"]["email"]["accepted"] == 1


def test_poll_receipts(folder: Folder) -> None:
    idle = folder.json("poll-receipts")
    assert idle["run"] is None
    enqueue(folder, "e-1")
    folder.json("dispatch")
    write(folder, "UPDATE notify_work SET eligible_at = '2001-01-01 00:00:00.000000'")
    run = folder.json("poll-receipts")
    hold("poll-receipts", idle, run)
    assert run["delivered"] == run["checked"] == run["transports"]["out"]["delivered"] == 1


def test_inspect(folder: Folder) -> None:
    enqueue(folder, "e-1")
    folder.json("dispatch")
    enqueue(folder, "e-2", "--in", "1h")
    write(folder, "UPDATE notify_delivery SET lane = 'unserved' WHERE event_id = 'e-2'")
    write(folder, "UPDATE notify_work SET lane = 'unserved'")
    write(
        folder,
        "INSERT INTO notify_gate (scope, name, kind, until, reason, actor) "
        "VALUES ('lane', 'email', 'pause', '2999-01-01 00:00:00', 'maintenance', 'ops')",
    )
    hold("inspect", folder.json("inspect"))
    hold("inspect event", folder.json("inspect", "event", "e-1"))
    for name in ("deliveries", "runs"):
        done = folder.run("inspect", name, "--json")
        assert done.returncode == 0, done.stderr
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert lines
        for line in lines:
            hold(f"inspect {name}", line)


def test_inspect_delivery(folder: Folder) -> None:
    sent = str(enqueue(folder, "e-1")["ids"][0])
    folder.json("dispatch")
    write(folder, f"INSERT INTO notify_receipt (delivery_id, status) VALUES ({sent}, 'delivered')")
    waiting = str(enqueue(folder, "e-2", "--in", "1h")["ids"][0])
    documents = [folder.json("inspect", "delivery", one) for one in (sent, waiting)]
    hold("inspect delivery", *documents)
    assert documents[0]["destination"] != "ada@example.com"


def test_requeue_and_cancel(folder: Folder) -> None:
    refused = str(enqueue(folder, "e-1", to="gone@example.com")["ids"][0])
    folder.run("dispatch")
    accepted = str(enqueue(folder, "e-2")["ids"][0])
    folder.run("dispatch")
    done = folder.json("requeue", refused, accepted, "--reason", "mended", code=65)
    assert (done["requeued"], done["refused"]) == (1, 1)
    hold("requeue", done)
    done = folder.json("cancel", refused, accepted, "--reason", "not wanted", code=65)
    assert (done["cancelled"], done["refused"]) == (1, 1)
    hold("cancel", done)


def test_prune(folder: Folder) -> None:
    enqueue(folder, "e-1", to="gone@example.com")
    folder.run("dispatch")
    write(folder, "UPDATE notify_delivery SET created_at = '2001-01-01T00:00Z', settled_at = '2001-01-01T00:00Z'")
    hold("prune", folder.json("prune", "--dry-run"), folder.json("prune"))


def test_recipients(folder: Folder) -> None:
    pair = ("--recipient", "r-1", "--channel", "email")
    rows = folder.path / "rows.ndjson"
    rows.write_text('{"recipient": "r-2", "channel": "email", "topic": "digest"}\n{"recipient": "a@example.com"}\n')
    hold("recipient set", folder.json("recipient", "set", "r-1", "--to", "email=ada@example.com"))
    hold("recipient erase", folder.json("recipient", "erase", "r-9"))
    hold("consent grant", folder.json("consent", "grant", *pair, "--topic", "digest"))
    hold("consent revoke", folder.json("consent", "revoke", *pair, "--topic", "digest"))
    hold("consent import", folder.json("consent", "import", "--from", str(rows), code=65))
    hold("consent show", folder.json("consent", "show", "--recipient", "r-1"))
    rows.write_text('{"recipient": "r-2", "channel": "email", "reason": "asked"}\n{"recipient": "a@example.com"}\n')
    hold("suppression add", folder.json("suppression", "add", *pair, "--reason", "asked"))
    hold("suppression import", folder.json("suppression", "import", "--from", str(rows), code=65))
    hold("suppression list", folder.json("suppression", "list"))
    hold("recipient show", folder.json("recipient", "show", "r-1"))
    hold("suppression lift", folder.json("suppression", "lift", *pair, "--reason", "asked again"))


def test_template(folder: Folder) -> None:
    hold("template list", folder.json("template", "list"))
    hold("template show", folder.json("template", "show", "hello"))
    folder.template("hello/1", **{**HELLO, "subject": "Changed"})
    folder.template("hello/2", **HELLO)
    hold("template publish", folder.json("template", "publish", code=65))
    hold("template preview", folder.json("template", "preview", "hello", "--channel", "sms", "--var", "name=Ada"))
    hold("template diff", folder.json("template", "diff", "hello@1"))


def test_a_failure_is_one_object_on_the_last_line_of_stderr(folder: Folder) -> None:
    done = folder.run("inspect", "delivery", "4711", "--json")
    assert done.returncode == 65
    assert done.stdout == ""
    failure(done)
    assert found(json.loads(done.stderr.splitlines()[-1]), ERROR) == wanted(ERROR, ERROR)
