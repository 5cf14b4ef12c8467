"""The `notifyctl` command: parse, call, render. No SQL and no rules in here.

`main` answers two things before Typer is imported, because Typer alone costs sixteen times an interpreter's start:
`--version`, and "is anything due?" for a tick under cron. Everything else takes the long way through `cli.app`.
"""

from __future__ import annotations

import os
import sys

from notifyctl import __version__
from notifyctl.errors import NotifyctlError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_PATHS = ("--config", "--from", "--vars", "--output")  # --vars: only as @FILE


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _main(arguments)
    except KeyboardInterrupt:
        return 130


def _main(arguments: list[str]) -> int:
    if arguments == ["--version"] and sys.stdout is not None:
        return _print_version()
    from notifyctl.cli import door

    ledger = None
    if door.is_tick(arguments):
        try:
            idle, ledger = door.ask(arguments)
        except NotifyctlError as error:
            return _report(error)
        if idle:
            return 0
    from notifyctl.cli.app import run

    return run(_as_typed(arguments), connection=ledger.connection if ledger else None)


def _as_typed(arguments: list[str]) -> list[str]:
    """Arguments in UTF-8 also where the locale says ASCII, as under cron. Paths stay as the system takes them."""
    if not any("\udc80" <= character <= "\udcff" for word in arguments for character in word):
        return arguments
    typed, before = [], ""
    for word in arguments:
        name, equals, value = word.partition("=")
        value, option = (value, name) if equals and name in _PATHS else (word, before)
        is_path = option in _PATHS and (option != "--vars" or value.startswith("@"))
        typed.append(word if is_path else os.fsencode(word).decode("utf-8", "surrogateescape"))
        before = word
    return typed


def _report(error: NotifyctlError) -> int:
    from notifyctl.cli.output import Output

    output = Output.of_process()
    return output.close(output.failure(error))


def _print_version() -> int:
    try:
        sys.stdout.write(f"notifyctl {__version__}\n")
        sys.stdout.flush()
    except OSError:
        from notifyctl.cli.app import run

        return run(["--version"])
    return 0
