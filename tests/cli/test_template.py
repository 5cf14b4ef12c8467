"""`template preview` and `template diff`: what would be sent and what differs, and the ledger stays as it is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.rig import CONFIG, Folder, failure
from tests.ledger.databases import Database

ORDER = {
    "subject": "Order {{ number }}", "text": "Hello {{ name }},\n\n{{ number }}: {{ total }}.\n",
    "html": "<p>Hello {{ name }}</p>\n", "sms": "{{ name }}: {{ total }}",
}  # fmt: skip
GIVEN = ("--var", "name=A & B", "--var", "number=7", "--var", "total=€ 5")


@pytest.fixture
def folder(tmp_path: Path, migrated_url: str) -> Folder:
    """An installation on each database, with one published template."""
    made = Folder(tmp_path, migrated_url)
    made.template("order/1", **ORDER)
    made.template("order/1/de", subject="Bestellung {{ number }}", text="Hallo {{ name }}\n")
    assert made.run("template", "publish").returncode == 0
    return made


@pytest.fixture
def database(migrated_url: str) -> Iterator[Database]:
    """Its ledger, through the raw driver."""
    with Database(migrated_url) as opened:
        yield opened


def rows(database: Database) -> dict[str, Any]:
    """Everything that is in the ledger."""
    tables = ("delivery", "work", "transition", "template", "run", "endpoint", "meta", "key", "gate", "pace")
    return {table: sorted(map(str, database.execute(f"SELECT * FROM notify_{table}"))) for table in tables}


def test_a_mail_is_shown_as_it_would_be_sent(folder: Folder, database: Database) -> None:
    before = rows(database)
    assert folder.json("template", "preview", "order", "--channel", "email", *GIVEN) == {
        "name": "order", "version": "1", "source": "published", "channel": "email", "locale": "",
        "subject": "Order 7", "text": "Hello A & B,\n\n7: € 5.", "html": "<p>Hello A &amp; B</p>", "sms": None,
    }  # fmt: skip
    german = folder.json("template", "preview", "order@1", "--channel", "email", "--locale", "de-AT", *GIVEN)
    assert (german["locale"], german["subject"], german["html"]) == ("de", "Bestellung 7", None)
    shown = folder.run("template", "preview", "order", "--channel", "email", *GIVEN)
    assert shown.stdout.splitlines() == [
        "order@1 (published)", "Subject: Order 7", "--- text", "Hello A & B,", "", "7: € 5.", "--- html",
        "<p>Hello A &amp; B</p>",
    ]  # fmt: skip
    assert rows(database) == before


@pytest.mark.parametrize(
    ("name", "encoding", "segments"),
    [("A", "gsm7", 1), ("Ж", "ucs2", 1), ("Ж" * 80, "ucs2", 2), ("A" * 160, "gsm7", 2)],
    ids=["plain", "Cyrillic", "long Cyrillic", "long"],
)
def test_an_sms_comes_with_its_encoding_and_segments(folder: Folder, name: str, encoding: str, segments: int) -> None:
    arguments = ("template", "preview", "order", "--channel", "sms", "--vars", json.dumps({"name": name, "total": 5}))
    document = folder.json(*arguments)
    assert (document["text"], document["subject"], document["html"]) == (f"{name}: 5", None, None)
    assert document["sms"] == {"encoding": encoding, "segments": segments}
    unit = "segment" if segments == 1 else "segments"
    assert folder.run(*arguments).stdout.splitlines()[-1] == f"{segments} {unit}, {encoding}"


def test_all_missing_variables_are_named_and_no_value_is(folder: Folder) -> None:
    (folder.path / "vars.json").write_text('{"name": null, "note": "secret"}', encoding="utf-8")
    arguments = ("template", "preview", "order", "--channel", "email", "--vars", "@vars.json")
    done = folder.run(*arguments, "--json")
    assert (done.returncode, done.stdout) == (65, "")
    error = failure(done)
    assert error["code"] == "variable_missing"
    assert all(name in error["message"] for name in ("number", "name", "total"))
    assert "--var" in error["hint"]
    plain = folder.run(*arguments)
    assert (plain.returncode, plain.stdout) == (65, "")
    assert "secret" not in done.stderr + plain.stderr


def test_the_folder_is_tried_out_before_there_is_a_ledger(folder: Folder) -> None:
    folder.configure(CONFIG.replace("sqlite:///ledger.db", "sqlite:///nowhere/ledger.db"))
    folder.template("order/10", subject="New {{ number }}", text="x")
    document = folder.json("template", "preview", "order", "--channel", "email", "--source", "folder", *GIVEN)
    assert (document["version"], document["source"], document["subject"]) == ("10", "folder", "New 7")
    assert folder.run("template", "preview", "order", "--channel", "email", *GIVEN).returncode in (75, 78)


def test_a_preview_keeps_the_channels_limits_and_refuses_what_would_never_be_sent(folder: Folder) -> None:
    folder.configure(folder.config.read_text().replace("[lanes.sms]", "[lanes.sms]\nmax_segments = 1"))
    given = ("--channel", "sms", "--var", "total=1", "--var")
    assert folder.run("template", "preview", "order", *given, "name=A").returncode == 0
    long = folder.run("template", "preview", "order", *given, f"name={'A' * 200}", "--json")
    assert (long.returncode, failure(long)["code"]) == (65, "too_many_segments")
    forged = ("--channel", "email", "--var", "name=A", "--var", "total=1", "--var", "number=1\nBcc: x")
    done = folder.run("template", "preview", "order", *forged, "--json")
    assert (done.returncode, failure(done)["code"]) == (65, "header_invalid")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("preview", "order"), 2, "--channel is missing"),
        (("preview", "order", "--channel", "fax"), 2, "--channel is 'fax'"),
        (("preview", "order", "--channel", "email", "--source", "git"), 2, "--source is 'git'"),
        (("preview", "order@9", "--channel", "email"), 65, "template order@9 is not published"),
        (("preview", "order@9", "--channel", "email", "--source", "folder"), 65, "there is no template order@9"),
        (("preview", "order", "--channel", "email", "--vars", "[1]"), 65, "--vars is not a JSON object"),
        (("preview", "order", "--channel", "email", "--var", "name"), 2, "--var is not NAME=VALUE"),
        (("diff", "order@9", "order@1"), 65, "template order@9 is not published"),
        (("diff", "order@1", "order@9"), 65, "template order@9 is not published"),
        (("diff", "order@1", "--source", "published"), 2, "a second NAME@VERSION is missing"),
        (("diff", "order@1", "--source", "git"), 2, "--source is 'git'"),
    ],
)
def test_mistakes_are_named(folder: Folder, arguments: tuple[str, ...], code: int, said: str) -> None:
    done = folder.run("template", *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert failure(folder.run("template", *arguments, "--json"))["message"] in done.stderr


def test_two_versions_differ_by_part_and_locale(folder: Folder, database: Database) -> None:
    changed = {**ORDER, "text": "Hello {{ name }},\n\n{{ number }}: {{ total }} in all.\n"}
    del changed["html"]
    folder.template("order/2", **changed)
    folder.template("order/2/de", subject="Bestellung {{ number }}", text="Hallo {{ name }}")
    folder.template("order/2/fr", sms="{{ name }} : {{ total }}")
    assert folder.run("template", "publish").returncode == 0
    before = rows(database)
    document = folder.json("template", "diff", "order@1", "order@2")
    assert (document["from"], document["to"], document["source"], document["same"]) == (
        "order@1", "order@2", "published", False,
    )  # fmt: skip
    parts = {(one["locale"], one["part"]): one["diff"] for one in document["parts"]}
    assert list(parts) == [("", "html"), ("", "text"), ("de", "text"), ("fr", "sms")]
    assert parts["", "text"].splitlines() == [
        "--- order@1/text (published)", "+++ order@2/text (published)", "@@ -1,3 +1,3 @@", " Hello {{ name }},", " ",
        "-{{ number }}: {{ total }}.", "+{{ number }}: {{ total }} in all.",
    ]  # fmt: skip
    assert parts["", "html"].splitlines()[1:] == ["+++ /dev/null", "@@ -1 +0,0 @@", "-<p>Hello {{ name }}</p>"]
    assert parts["de", "text"].endswith("+Hallo {{ name }}\n\\ No newline at end of file\n")
    assert parts["fr", "sms"].startswith("--- /dev/null\n+++ order@2/fr/sms (published)\n")
    shown = folder.run("template", "diff", "order@1", "order@2")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout == "".join(parts.values())
    assert folder.json("template", "diff", "order@1", "order")["parts"] == document["parts"]
    assert rows(database) == before


def test_a_published_version_is_compared_with_the_folder_whose_other_bytes_stay_refused(folder: Folder) -> None:
    same = folder.run("template", "diff", "order@1")
    assert (same.returncode, same.stdout) == (0, "no difference: order@1 and order@1 (folder)\n")
    folder.template("order/1", subject="Order no. {{ number }}")
    for arguments in (("order@1",), ("order",), ("order@1", "order@1", "--source", "folder")):
        document = folder.json("template", "diff", *arguments)
        (change,) = document["parts"]
        assert (document["from"], document["to"], document["source"]) == ("order@1", "order@1", "folder")
        assert "\n-Order {{ number }}\n" in change["diff"]
        assert "\n+Order no. {{ number }}\n" in change["diff"]
    refused = folder.json("template", "publish", "order", code=65)
    assert refused["errors"][0]["reason"] == "template_conflict"
    shown = folder.json("template", "preview", "order", "--channel", "email", *GIVEN)
    assert shown["subject"] == "Order 7"
