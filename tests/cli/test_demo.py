"""`demo`: the whole story in a folder, for somebody who has nothing but a shell."""

from __future__ import annotations

import email
import email.policy
import json
import os
import shlex
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.cli.rig import command, environment


def run(folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The command in `folder`, with nothing in its environment but PATH."""
    return subprocess.run(
        command("demo", *arguments), cwd=folder, env=environment(**env), stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def tell(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    done = run(folder, *arguments, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    document: dict[str, Any] = json.loads(done.stdout)
    assert set(document) == {"folder", "config", "deliveries"}
    return list(document["deliveries"])


def test_the_story_has_a_mail_a_duplicate_an_sms_a_suppressed_and_an_expired_one(tmp_path: Path) -> None:
    mail, duplicate, sms, suppressed, expired = tell(tmp_path)
    assert [one["state"] for one in (mail, sms, suppressed, expired)] == [
        "delivered", "delivered", "suppressed", "expired",
    ]  # fmt: skip
    assert duplicate["delivery"] == mail["delivery"]
    assert suppressed["reason"] == "opted_out"
    (lies,) = (tmp_path / "notifyctl-demo/outbox/mail/new").iterdir()
    assert mail["file"] == duplicate["file"] == str(lies)
    message = email.message_from_bytes(lies.read_bytes(), policy=email.policy.default)
    assert message["subject"] == "Bestellung 1001: danke, Jürgen Müller"
    assert [box.display_name for box in message["to"].addresses] == ["Müller, Jürgen"]
    (line,) = Path(sms["file"]).read_text(encoding="utf-8").splitlines()
    assert json.loads(line)["text"].startswith("Hello Zoë, order 1001")
    assert suppressed["file"] is expired["file"] is None


def test_each_command_that_is_printed_shows_its_delivery(tmp_path: Path) -> None:
    for one in tell(tmp_path):
        done = subprocess.run(
            [*shlex.split(one["command"]), "--json"], cwd="/", env=environment(), capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["state"] == one["state"]


@pytest.mark.parametrize(
    "locale",
    [{}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"LC_ALL": "C.UTF-8"}],
    ids=["none", "ascii", "utf-8"],
)
def test_people_read_where_the_mail_lies_in_any_locale(tmp_path: Path, locale: dict[str, str]) -> None:
    done = run(tmp_path, "my folder", **locale)
    assert (done.returncode, done.stderr) == (0, "")
    (lies,) = (tmp_path / "my folder/outbox/mail/new").iterdir()
    assert f"  {lies}\n" in done.stdout
    assert "a mail in German, to a name outside ASCII: delivered\n" in done.stdout
    assert "suppressed (opted_out)" in done.stdout
    assert f"--config '{tmp_path}/my folder/notifyctl.toml' inspect delivery 1\n" in done.stdout


def test_told_again_it_is_a_new_story_in_the_same_folder(tmp_path: Path) -> None:
    first, second = tell(tmp_path), tell(tmp_path)
    assert [one["state"] for one in first] == [one["state"] for one in second]
    assert {one["delivery"] for one in first}.isdisjoint(one["delivery"] for one in second)
    with closing(sqlite3.connect(tmp_path / "notifyctl-demo/ledger.db")) as ledger:
        assert ledger.execute("SELECT count(*) FROM notify_suppression").fetchone() == (1,)


def test_what_a_killed_demo_left_out_is_made_by_the_next(tmp_path: Path) -> None:
    tell(tmp_path)
    (tmp_path / "notifyctl-demo/templates/order-paid/1/sms.txt").unlink()
    (tmp_path / "notifyctl-demo/ledger.db").unlink()
    assert [one["state"] for one in tell(tmp_path)][:1] == ["delivered"]


def test_a_folder_of_somebody_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/notifyctl.toml").write_text('instance = "demo"\n', encoding="utf-8")
    done = run(tmp_path, "shop")
    assert (done.returncode, done.stdout) == (78, "")
    assert f"{tmp_path}/shop is not empty and no folder of a demo" in done.stderr
    assert os.listdir(tmp_path / "shop") == ["notifyctl.toml"]


def test_a_place_that_is_no_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run(tmp_path, "file/demo")
    assert (done.returncode, done.stdout) == (78, "")
    assert "cannot be written: not a directory" in done.stderr


def test_no_ledger_or_configuration_of_the_environment_is_touched(tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    done = run(tmp_path, NOTIFYCTL_LEDGER_URL=f"sqlite:///{other}", NOTIFYCTL_CONFIG="/nonexistent.toml")
    assert done.returncode == 0
    assert "NOTIFYCTL_LEDGER_URL is set" in done.stderr
    assert not other.exists()
    named = run(tmp_path, "--config", "x.toml")
    assert named.returncode == 2
    assert "demo takes no --config" in named.stderr
