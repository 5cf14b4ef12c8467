"""Writes the parts of README.md that are made from the code: `python -m tests.docs --write`. Without it: compares.

A generated part stands between `<!-- generated: NAME -->` and `<!-- end: NAME -->`. The tables of configuration keys
are half and half: keys and defaults come from the code, what a key means is written by hand and kept. A key without a
meaning is a fault, so a new one cannot stay undocumented.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from typer.main import get_command

from notifyctl import configkeys, lifecycle
from notifyctl.cli import app, options
from notifyctl.configfile import ENVIRONMENT
from notifyctl.transports import capabilities
from notifyctl.transports.registry import KINDS
from notifyctl.units import short
from tests.json_keys import ERROR, KEYS

README = Path(__file__).parents[1] / "README.md"


def rendered(text: str) -> str:
    """`text` with its generated parts made anew. Raises KeyError for a part that nobody makes."""

    def part(found: re.Match[str]) -> str:
        return f"{found[1]}\n{PARTS[found[2]](found[3]).strip()}\n{found[4]}"

    return re.sub(r"(<!-- generated: ([\w-]+) -->)\n(.*?)(<!-- end: \2 -->)", part, text, flags=re.DOTALL)


# -- commands ---------------------------------------------------------------------------------------------------------


def commands() -> Iterator[tuple[str, Any]]:
    """(name as typed, Click command) of every command, groups with an own behaviour included."""
    root: Any = get_command(app.app)
    for name in root.commands:
        yield from _walk(name, root.commands[name])


def _walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    children: Mapping[str, Any] = getattr(command, "commands", {})
    if not children or command.invoke_without_command:
        yield name, command
    for child in children:
        yield from _walk(f"{name} {child}", children[child])


def own_parameters(command: Any) -> list[Any]:
    """A command's own parameters: neither the common options nor --help."""
    return [one for one in command.params if one.name not in (*options.COMMON, "help")]


def spelled(parameter: Any) -> str:
    """An option or argument as it is typed."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.human_readable_name)
    names = "/".join(parameter.opts + parameter.secondary_opts)
    return names if parameter.is_flag else f"{names} {parameter.metavar}"


def _rows(parameters: list[Any]) -> Iterator[str]:
    for one in parameters:
        assert one.help, f"{one.opts} has no help"
        default = one.default
        said = f" Default: {default:g}." if isinstance(default, int | float) and not isinstance(default, bool) else ""
        yield _row(f"`{spelled(one)}`", f"{one.help}{said}")


def _commands(_: str) -> str:
    lines = []
    for name, command in commands():
        usage = [spelled(one) for one in own_parameters(command) if one.param_type_name == "argument"]
        lines += [f"### `{' '.join(('notifyctl', name, *usage))}`", "", str(command.help).strip(), ""]
        rows = list(_rows(own_parameters(command)))
        if rows:
            lines += ["| option | |", "|---|---|", *rows, ""]
    return "\n".join(lines)


def _common(_: str) -> str:
    _, command = next(commands())
    shared = [one for one in command.params if one.name in options.COMMON]
    return "\n".join(["| option | |", "|---|---|", *_rows(shared)])


def _json(_: str) -> str:
    lines = ["| command | place | keys |", "|---|---|---|"]
    for command, places in [*KEYS.items(), ("a failure, last line of stderr", ERROR)]:
        label = command if command.startswith("a ") else f"`{command}`"
        for place, keys in places.items():
            shown = f"`{place}`" if place else ""
            lines.append(_row(label, shown, " ".join(f"`{key}`" for key in keys.split())))
            label = ""
    return "\n".join(lines)


# -- configuration ----------------------------------------------------------------------------------------------------

_DURATIONS = {"_duration", "_positive", "_lease"}


def config_keys() -> dict[str, str]:
    """Dotted key → default, for every key that the configuration knows, those of one kind of transport apart."""
    top = {key: entry for key, entry in configkeys.top("").items() if key not in ("transports", "lanes", "topics")}
    found = dict(_flat("", top))
    for section, keys in (
        ("transports", configkeys.TRANSPORT),
        ("lanes", configkeys.LANE),
        ("topics", configkeys.TOPIC),
    ):
        found.update(_flat(f"{section}.NAME.", keys))
    return found


def _flat(prefix: str, keys: configkeys.Keys) -> Iterator[tuple[str, str]]:
    for key, entry in keys.items():
        if isinstance(entry, Mapping):
            yield from _flat(f"{prefix}{key}.", entry)
        else:
            check, default = entry
            yield prefix + key, _default(check, default)


def _default(check: Callable[[Any], Any], default: Any) -> str:
    if default in ("", None, ()):
        return ""
    if getattr(check, "__name__", "") in _DURATIONS:
        return f'`"{short(default)}"`'
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return f'`"{default}"`' if isinstance(default, str) else f"`{default}`"


def _configuration(old: str) -> str:
    said = _meanings(old)
    rows = [_row(f"`{key}`", default, said.get(key, "")) for key, default in config_keys().items()]
    return "\n".join(["| key | default | |", "|---|---|---|", *rows])


def transport_keys() -> list[str]:
    """`kind.key` for every key that only one kind has."""
    keys = [f"{kind}.{key}" for kind, entry in KINDS.items() for key in sorted(entry.keys | entry.secrets)]
    inner = {
        f"{kind}.{table}": [f"{kind}.{table}.{key}" for key in sorted(known.keys)]
        for kind, entry in KINDS.items()
        for table, known in entry.tables.items()
    }
    return [one for key in keys for one in (key, *inner.get(key, ()))]


def _transports(old: str) -> str:
    said = _meanings(old)
    rows = []
    for name in transport_keys():
        kind, _, key = name.partition(".")
        table, _, inner = key.partition(".")
        secrets = KINDS[kind].tables[table].secrets if inner else KINDS[kind].secrets
        secret = "secret" if (inner or key) in secrets else ""
        rows.append(_row(f"`{name}`", secret, said.get(name, "")))
    return "\n".join(["| kind.key | | |", "|---|---|---|", *rows])


def _meanings(table: str) -> dict[str, str]:
    cells = [re.split(r"(?<!\\)\|", line) for line in table.splitlines() if line.startswith("| `")]
    return {row[1].strip().strip("`"): row[3].strip() for row in cells}


def _environment(_: str) -> str:
    rows = [_row(f"`{variable}`", f"`{'.'.join(keys)}`") for variable, keys in ENVIRONMENT.items()]
    return "\n".join(["| variable | stands for |", "|---|---|", _row("`NOTIFYCTL_CONFIG`", "`--config`"), *rows])


# -- the rest ---------------------------------------------------------------------------------------------------------


def _capabilities(_: str) -> str:
    heading, rows = capabilities.table()
    lines = [_row("", *(f"`{kind}`" for kind in heading[1:])), "|---" * len(heading) + "|"]
    shown = [(f"**{row[0]}**", *row[1:]) if row[0] == capabilities.DOUBT else row for row in rows]
    return "\n".join([*lines, *(_row(*row) for row in shown)])


def _row(*cells: str) -> str:
    return "| " + " | ".join(re.sub(r"(?<!\\)\|", r"\\|", cell) for cell in cells) + " |"


PARTS: dict[str, Callable[[str], str]] = {
    "lifecycle": lambda _: lifecycle.markdown(),
    "commands": _commands,
    "common-options": _common,
    "json": _json,
    "configuration": _configuration,
    "transport-keys": _transports,
    "environment": _environment,
    "capabilities": _capabilities,
}


def main(arguments: list[str]) -> int:
    """Write README.md, or say whether it is up to date."""
    old = README.read_text(encoding="utf-8")
    new = rendered(old)
    if arguments == ["--write"]:
        README.write_text(new, encoding="utf-8")
    elif new != old:
        print("README.md is not up to date: python -m tests.docs --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
