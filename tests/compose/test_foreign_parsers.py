"""Mails as programs of other people read them, written by every Python at hand: each of their `email` packages is
wrong in another way, and ours must not care."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests import judges
from tests.cli.rig import ROOT
from tests.compose import write_cases

CORPORA = ROOT / "../shared/corpora"
CASES, INJECTIONS = CORPORA / "mime/cases.json", CORPORA / "addresses/injection.json"
VERSIONS = ("3.11", "3.12", "3.13")
OURS = {
    "date", "from", "to", "message-id", "subject", "reply-to", "mime-version", "auto-submitted", "content-type",
    "content-transfer-encoding",
}  # fmt: skip

Parse = Callable[[Path], dict[str, Any]]


def _python(version: str) -> str | None:
    """An interpreter of that version that really starts."""
    if sys.version.startswith(f"{version}."):
        return sys.executable
    beside = sorted((Path.home() / ".pyenv/versions").glob(f"{version}.*/bin/python"))
    for candidate in (shutil.which(f"python{version}"), *map(str, beside)):
        probe = [candidate or "", "-c", "import sys; print(sys.version)"]
        if candidate and subprocess.run(probe, capture_output=True, text=True, check=False).stdout.startswith(version):
            return candidate
    return None


AT_HAND = {version: found for version in VERSIONS if (found := _python(version))}


@pytest.fixture(params=sorted(AT_HAND), scope="module")
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder of mails that one Python wrote, and what it refused."""
    for path in (CASES, INJECTIONS):
        if not path.exists():
            pytest.skip(f"the test material {path.parent.name}/{path.name} is not beside this checkout")
    out = tmp_path_factory.mktemp(f"written-{request.param}")
    done = subprocess.run(
        [AT_HAND[request.param], str(Path(write_cases.__file__)), str(CASES), str(INJECTIONS), str(out)],
        capture_output=True, text=True, check=False,
        env={"PATH": os.defpath, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1", "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return out, json.loads(done.stdout)


@pytest.fixture(params=judges.PARSERS, ids=lambda parse: parse.__name__)
def parse(request: pytest.FixtureRequest) -> Parse:
    """One of the judges, asked once for each folder."""
    return cache(request.param)


def test_the_python_that_runs_is_among_those_that_write() -> None:
    assert sys.executable in AT_HAND.values()


def test_every_case_is_read_as_it_was_meant(written: tuple[Path, dict[str, Any]], parse: Parse) -> None:
    out, refused = written
    shown = parse(out)
    wrong = []
    for case in json.loads(CASES.read_text()):
        name, want = case["name"], case["want"]
        if name == "to-utf8-local-smtp-policy":  # refused by the relay that lacks SMTPUTF8: a test of the transport
            continue
        mails = {key: reason for key, reason in refused.items() if key.rpartition(".")[0] == name}
        assert mails, f"{name} was not tried"
        if want.get("raises") or name in ("file-lf", "subj-vt", "subj-ff", "subj-ls", "subj-fs"):
            assert set(mails.values()) <= {"header_invalid", "template_error"}, name
            continue
        assert set(mails.values()) == {None}, name
        wrong += [f"{name}: {fault}" for fault in _faults(name, want, [shown[f"{key}.eml"] for key in mails])]
    assert wrong == []


def _faults(name: str, want: dict[str, Any], shown: list[dict[str, Any]]) -> list[str]:
    """What these readings of one case's mails show that was not meant."""
    found: dict[str, tuple[Any, Any]] = {"others": ([one["others"] for one in shown], [[] for _ in shown])}
    for one in shown:
        found |= {"names": (sorted(set(Counter(one["names"]).values())), [1])}
    (first, *_) = shown
    if "subject" in want:
        found["subject"] = (first["subject"].strip(), want["subject"].strip())  # readers trim
    if "to" in want:
        meant = [[label, _as_stored(address)] for label, address in want["to"]]  # some readers show U-labels
        found["to"] = ([[label, _as_stored(address)] for one in shown for label, address in one["to"]], meant)
    if "filename" in want:
        found["filename"] = (first["files"][0]["name"], want["filename"])
    if "rawheader" in want:
        field, value = want["rawheader"]
        found[field] = (first["headers"][field], value)
    if "body" in want or name == "body-bare-cr":
        found["body"] = (first["text"].replace("\r\n", "\n"), want.get("body", "a\nb") + "\n")
    if name == "html-alt-inline":
        pixel = hashlib.sha256(write_cases.PIXEL.content).hexdigest()
        found["html"] = ("ü" in first["html"], True)
        found["inline"] = ([(f["id"], f["inline"], f["sha256"]) for f in first["files"]],
                           [("<p@example.com>", True, pixel)])  # fmt: skip
    return [f"{what} is {got!r}, not {meant!r}" for what, (got, meant) in found.items() if got != meant]


def _as_stored(address: str) -> str:
    return write_cases.mailbox("", address).address


def test_no_injection_adds_a_header_or_a_recipient(written: tuple[Path, dict[str, Any]], parse: Parse) -> None:
    out, refused = written
    shown = parse(out)
    tried = written_at_all = 0
    for number, case in enumerate(json.loads(INJECTIONS.read_text())):
        tried += 1
        if refused[f"injection.{number}"]:
            continue
        written_at_all += 1
        one = shown[f"injection.{number}.eml"]
        assert set(one["names"]) <= {*OURS, "x-note", "list-unsubscribe"}, case
        assert set(Counter(one["names"]).values()) == {1}, case
        assert (len(one["from"]), len(one["to"]), one["others"]) == (1, 1, []), case
        assert len(one["reply_to"]) <= 1, case
    assert tried > written_at_all > 0
