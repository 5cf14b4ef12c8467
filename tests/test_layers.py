"""The house's rules, read from the syntax tree: imports inside functions and under TYPE_CHECKING count too.

Imports point down: cli → ticks → ledger, compose, transports → policy, lifecycle → model. The leaves (errors, clock,
configuration, telemetry …) serve every layer and know none of them.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.cli.rig import Folder, environment

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "notifyctl"
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}

LEAVES = ("errors", "clock", "units", "configkeys", "configfile", "settings", "config", "telemetry", "failpoints")
RULES = ("policy", "lifecycle", "lifecycle_table", "lifecycle_guards", "lifecycle_facts", "lifecycle_clocks",
         "pacing", "keys")  # fmt: skip
BASE = ("model", *LEAVES)
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "model": (),
    **dict.fromkeys(LEAVES, BASE),
    **dict.fromkeys(RULES, ("model", *RULES)),
    **dict.fromkeys(("ledger", "compose", "transports"), (*BASE, *RULES)),
    "ticks": (*BASE, *RULES, "ledger", "compose", "transports"),
    "": ("api", *BASE),  # names of the public Python API, loaded when they are used
    "api": (*BASE, *RULES, "ledger", "compose"),
    "cli": (*BASE, *RULES, "ledger", "compose", "transports", "ticks"),
    "__main__": ("cli",),
}

# Who may import what from outside. What is in no list here and not in the standard library is not a dependency.
ONLY_IN = {
    "typer": ("cli",), "click": (), "rich": ("cli",),
    "smtplib": ("transports",), "imaplib": ("transports",), "poplib": ("transports",),
    "socket": ("transports",), "ssl": ("transports",), "http": (), "urllib.request": (),
    "asyncio": (), "select": ("transports", "ticks"), "selectors": ("transports",),
    "cryptography": ("compose",), "jinja2": ("compose",), "phonenumbers": ("compose",), "email_validator": ("compose",),
    "sqlite3": ("ledger",), "psycopg": ("ledger",),
    "subprocess": ("settings",),  # the administrator's own x_command
    "sqlalchemy": (), "pydantic": (), "requests": (),
    "dns": ("transports",),
    "httpx": ("transports",), "httpcore": ("transports",), "h11": (),
}  # fmt: skip
DISTRIBUTIONS = {"phonenumberslite": "phonenumbers", "dnspython": "dns"}  # where it is not the module's own name
THIRD_PARTY = {
    DISTRIBUTIONS.get(name := re.split(r"[^\w-]", one)[0], name.replace("-", "_"))
    for one in tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
}
STUBS = {"_typeshed"}  # seen by mypy only
WHERE_USED = THIRD_PARTY - {"typer"}  # never at the head of a module

PURE = ("model", *RULES)
PURE_IMPORTS = {
    "__future__", "base64", "collections", "dataclasses", "datetime", "enum", "functools", "hashlib", "hmac",
    "itertools", "json", "math", "re", "typing",
}  # fmt: skip
IMPURE_CALLS = {"open", "print", "input", "now", "utcnow", "today"}

LINES = 400
LONGER = {
    "notifyctl.model": 450,  # one vocabulary, read as a whole
}


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def area(module: str) -> str:
    """The layer a module belongs to: its folder, or its own name; "" is the package itself."""
    return [*module.split("."), ""][1]


def imports(module: str) -> Iterator[tuple[str, bool, int]]:
    """(imported module, whether at the head of the file, line) for every import wherever it stands."""
    heads = {id(node) for node in tree(module).body}
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) in heads, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: write imports in full"
            assert node.module
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if inner == "notifyctl.__version__":
                    continue  # a constant, of interest to every layer
                yield inner if inner in MODULES else node.module, id(node) in heads, node.lineno
        elif isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "import_module":
            start = node.args[0]
            if isinstance(start, ast.JoinedStr):
                start = start.values[0]
            assert isinstance(start, ast.Constant), f"{module}:{node.lineno}: nobody can tell what this imports"
            yield str(start.value).rstrip("."), False, node.lineno


def faults(module: str) -> Iterator[str]:
    """What a module imports against the rules."""
    own = area(module)
    allowed = MAY_IMPORT.get(own)
    if allowed is None:
        yield f"{module}: which layer does it belong to? see MAY_IMPORT"
        return
    for name, head, line in imports(module):
        where = f"{module}:{line} imports {name}"
        top = name.partition(".")[0]
        if top == "notifyctl":
            target = area(name)
            if target not in (own, *allowed):
                yield f"{where}, which is not below it"
            continue
        for library, users in ONLY_IN.items():
            if (name == library or name.startswith(f"{library}.")) and own not in users:
                yield f"{where}, which is for {', '.join(users) or 'nobody'}"
        if top not in sys.stdlib_module_names and top not in THIRD_PARTY | STUBS:
            yield f"{where}, which is not among the dependencies"
        if head and top in WHERE_USED:
            yield f"{where} at its head: import it where it is used"
        if own in PURE and top not in PURE_IMPORTS:
            yield f"{where}, but it is pure"


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_down(module: str) -> None:
    assert list(faults(module)) == []


@pytest.mark.parametrize("module", [m for m in MODULES if area(m) in PURE])
def test_the_rules_ask_nobody_for_the_time_and_touch_nothing(module: str) -> None:
    calls = [
        f"{module}:{node.lineno} calls {name}"
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Call)
        and (name := getattr(node.func, "id", None) or getattr(node.func, "attr", "")) in IMPURE_CALLS
    ]
    assert calls == []


@pytest.mark.parametrize("module", MODULES)
def test_a_module_can_be_read_at_one_sitting(module: str) -> None:
    lines = len(MODULES[module].read_text(encoding="utf-8").splitlines())
    assert lines <= LONGER.get(module, LINES), f"{module} has {lines} lines: a sign to cut"


@pytest.mark.parametrize("module", MODULES)
def test_a_module_is_named_by_what_it_does(module: str) -> None:
    assert not re.search(r"helper|util|manager|service|factory|repositor|common|misc", module)


def test_every_module_says_what_it_is() -> None:
    assert [module for module in MODULES if not ast.get_docstring(tree(module))] == []


def test_an_idle_tick_on_sqlite_imports_neither_a_library_nor_the_program(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    assert folder.run("migrate").returncode == 0
    program = [sys.executable, "-X", "importtime", "-m", "notifyctl", "dispatch"]
    done = subprocess.run(program, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert {"notifyctl.cli.door", "sqlite3"} <= loaded
    heavy = ("typer", "click", "rich", "jinja2", "psycopg", "pydantic", "logging", "notifyctl.ticks",
             "notifyctl.compose", "notifyctl.ledger.database", "notifyctl.model")  # fmt: skip
    assert [name for name in sorted(loaded) if name.startswith(heavy)] == []


# -- the rules can be broken ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("notifyctl.ledger.claim", "def lazy():\n    from notifyctl.compose import mime\n"),
        ("notifyctl.compose.mime", "import sqlite3\n"),
        ("notifyctl.transports.smtp", "from notifyctl.ledger import claim\n"),
        ("notifyctl.ticks.run", "from notifyctl.cli.output import Output\n"),
        ("notifyctl.policy", "from notifyctl import clock\n"),
        ("notifyctl.lifecycle", "import random\n"),
        ("notifyctl.cli.app", "import sqlalchemy\n"),
        ("notifyctl.cli.app", "import attr\n"),
        ("notifyctl.ticks.run", "from rich.progress import Progress\n"),
        ("notifyctl.compose.sms", "import phonenumbers\n"),
        ("notifyctl.ledger.runs", "from importlib import import_module\nimport_module('notifyctl.ticks.run')\n"),
        ("notifyctl.ledger.runs", "from notifyctl import enqueue\n"),
    ],
)
def test_a_forbidden_import_is_found(place: str, text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(text)
    monkeypatch.setitem(MODULES, place, path)
    tree.cache_clear()
    try:
        assert list(faults(place)) != []
    finally:
        tree.cache_clear()
