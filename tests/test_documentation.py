"""README.md is held to the program: what is generated is up to date, what is written by hand is complete and true."""

from __future__ import annotations

import re
import subprocess
import tomllib
from difflib import unified_diff
from pathlib import Path

import pytest

from notifyctl import errors
from notifyctl.cli.app import FAMILIES
from notifyctl.cli.door import _TICKS as TICKS
from notifyctl.cli.setup import _crontab as crontab
from tests import docs
from tests.cli.rig import command, environment

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MISSING = "## What does not exist yet"
COMMANDS = dict(docs.commands())


def section(heading: str) -> str:
    """The text under a heading, up to the next of its rank or higher."""
    rank = heading.partition(" ")[0]
    assert f"\n{heading}\n" in README, heading
    return re.split(rf"\n#{{2,{len(rank)}}} ", README.partition(f"\n{heading}\n")[2])[0]


def test_what_is_generated_is_up_to_date() -> None:
    now, new = README.splitlines(), docs.rendered(README).splitlines()
    differences = list(unified_diff(now, new, "README.md", "python -m tests.docs --write", lineterm="", n=0))
    assert differences[:20] == []


def test_every_generated_part_is_in_the_readme() -> None:
    assert set(re.findall(r"<!-- generated: ([\w-]+) -->", README)) == set(docs.PARTS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_that_help_shows_is_documented(name: str) -> None:
    done = subprocess.run(
        command(*name.split(), "--help"), env=environment(COLUMNS="200"), capture_output=True, text=True, check=True
    )
    shown = set(re.findall(r"^\s+(--[a-z-]+)", done.stdout, re.MULTILINE)) - {"--help"}
    assert "--json" in shown
    heading = next(line for line in README.splitlines() if re.match(rf"### `notifyctl {name}(?: [^a-z].*)?`$", line))
    common = section("## Commands").partition("<!-- end: common-options -->")[0]
    assert [option for option in sorted(shown) if f"`{option}" not in common + section(heading)] == []


@pytest.mark.parametrize("key", [*docs.config_keys(), *docs.transport_keys()])
def test_every_key_of_the_configuration_has_a_meaning(key: str) -> None:
    row = re.search(rf"^\| `{re.escape(key)}` \| (.*) \| (.*) \|$", README, re.MULTILINE)
    assert row, key
    assert row[1].strip() or row[2].strip()
    assert row[2].strip() or row[1].strip() == "secret"


def test_every_exit_code_is_explained() -> None:
    named = {name: value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    codes = {value for value in named.values() if isinstance(value, int)}
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", section("### Exit codes"), re.MULTILINE)} == codes


def test_every_dependency_is_there_for_a_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = [re.split(r"[^\w-]", one)[0] for one in project["dependencies"]]
    listed = section("## Libraries").lower()
    assert [name for name in names if f"[{name}]" not in listed] == []


def test_only_commands_that_exist_are_named() -> None:
    text = README.replace(section(MISSING), "")
    assert "`notifyctl dispatch`" in text
    assert unknown_commands(text) == set()
    said = set(re.findall(r"`([a-z-]+)`", section(MISSING)))
    for file in ("crontab.example", "schema/README.md", "notifyctl/transports/README.md"):
        assert unknown_commands((ROOT / file).read_text(encoding="utf-8")) <= said, file


def unknown_commands(text: str) -> set[str]:
    """The commands that a text names as if they existed."""
    named = set(re.findall(r"(?:`|bin/|^|  )notifyctl (?:--config \S+ )?([a-z][a-z-]+)", text, re.MULTILINE))
    return named - FAMILIES.keys()


def test_what_is_said_not_to_exist_does_not_exist() -> None:
    said = set(re.findall(r"^- `([a-z-]+)`", section(MISSING), re.MULTILINE))
    assert said
    assert said & FAMILIES.keys() == set()
    assert set(TICKS) <= said | FAMILIES.keys()


def test_cron_runs_every_tick_that_exists_and_no_other() -> None:
    ticks = [tick for tick in TICKS if tick in FAMILIES]
    example = (ROOT / "crontab.example").read_text(encoding="utf-8")
    lines = [line for line in example.splitlines() if re.match(r"[*\d]", line)]
    assert [line.split()[-1] for line in lines] == ticks
    assert all(line.split()[5].startswith("/") for line in lines)
    assert re.search(r"^MAILTO=\S+$", example, re.MULTILINE)
    assert re.search(r"^NOTIFYCTL_CONFIG=/\S+$", example, re.MULTILINE)
    assert [line.split()[-1] for line in crontab(Path("/etc/notifyctl/notifyctl.toml"))] == ticks


@pytest.mark.parametrize("file", ["README.md", "CHANGELOG.md", "schema/README.md", "notifyctl/transports/README.md"])
def test_links_lead_somewhere(file: str) -> None:
    path = ROOT / file
    headings = {re.sub(r"[^\w -]", "", line.lstrip("# ")).strip().lower().replace(" ", "-")
                for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")}  # fmt: skip
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        if target.startswith("#"):
            assert target[1:] in headings, target
        elif "://" not in target:
            assert (path.parent / target).exists(), target


def test_nothing_claims_exactly_once() -> None:
    files = ("README.md", "CHANGELOG.md", "schema/README.md", "pyproject.toml")
    texts = [(ROOT / file).read_text(encoding="utf-8") for file in files] + [str(one.help) for one in COMMANDS.values()]
    lines = [line for text in texts for line in text.splitlines()]
    claims = [line for line in lines if re.search(r"exactly[- ]once", line, re.IGNORECASE)]
    assert [line for line in claims if not line.startswith("No tool can send exactly once")] == []
