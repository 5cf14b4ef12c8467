"""The command table, and the one place where a failure becomes a message and an exit code.

A family of commands is one line of `FAMILIES`: its module is imported when one of its commands runs, so `--help` and
a single command pay for nothing else. A module offers `app` (see `options.family`): with a command of the family's
name, or else with its subcommands, as in `template show`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group

from notifyctl import __version__
from notifyctl.cli.options import ConfigOption, Root
from notifyctl.cli.output import Output
from notifyctl.errors import EXIT_OK, EXIT_USAGE, NotifyctlError, UsageError

# name → (module below notifyctl.cli, one line for --help), in the order of --help
FAMILIES: dict[str, tuple[str, str]] = {
    "demo": ("demo", "Play the whole story in a folder, without any account."),
    "init": ("setup", "Write a configuration and sample templates, and make the ledger."),
    "migrate": ("setup", "Bring the ledger's tables up to date."),
    "doctor": ("doctor", "Ask whether this installation can do its work; send nothing."),
    "enqueue": ("enqueue", "Put intents into the ledger, one or many."),
    "dispatch": ("dispatch", "Submit what is due: one bounded run."),
    "poll-receipts": ("poll_receipts", "Ask what became of what was accepted: one bounded run."),
    "reconcile": ("reconcile", "Settle what is in doubt and end what is overdue: one bounded run."),
    "requeue": ("requeue", "Send again what has ended and was never accepted."),
    "cancel": ("cancel", "Withdraw what has not begun."),
    "prune": ("prune", "Remove what ended long ago."),
    "lane": ("lane", "Pause and resume lanes, and see what stops them."),
    "inspect": ("inspect", "See what stands where, why it has not gone yet, and what needs a person."),
    "template": ("template", "Publish, list, show, try out and compare templates."),
    "recipient": ("recipient", "Set and show recipients' addresses."),
    "consent": ("consent", "Record what recipients have agreed to."),
    "suppression": ("suppression", "Say who must not be contacted on which channel."),
}
EXIT_INTERRUPTED = 130


class _Commands(dict[str, Any]):
    """The commands by name; looking one up imports its family."""

    def __getitem__(self, name: str) -> Any:
        family: typer.Typer = import_module(f"notifyctl.cli.{super().__getitem__(name)[0]}").app
        if any(info.name == name for info in family.registered_commands):
            return get_group(family).commands[name]
        group = get_command(family)
        group.name = name
        return group

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default  # noqa: SIM401 - dict's own `get` would not import


class Families(TyperGroup):
    """The root group: commands from `FAMILIES`, listed by --help without importing them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Commands(FAMILIES)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - the overridden method's signature
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in FAMILIES.items()])


app = typer.Typer(
    name="notifyctl",
    cls=Families,
    help="Delivers transactional email and SMS from a durable ledger in SQLite or Postgres.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"notifyctl {__version__}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    config: ConfigOption = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None:
    """Delivers transactional email and SMS from a durable ledger in SQLite or Postgres."""
    del version
    given: Root = context.obj
    context.obj = Root(given.output, config, given.connection, given.debug)


def run(arguments: Sequence[str], *, connection: Any = None) -> int:
    """Run one command line by the long way; return the exit code of the process."""
    output = Output.of_process(json="--json" in arguments)
    debug: list[bool] = []
    try:
        code = _invoke(list(arguments), Root(output, None, connection, debug))
    except NotifyctlError as error:
        code = output.failure(error)
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    except OSError as error:
        if _place(error).startswith(f"{__name__}:"):  # Typer could not print --help or --version
            code = output.lost(error)
        else:
            code = _bug(output, error, traceback=bool(debug))
    except Exception as error:
        code = _bug(output, error, traceback=bool(debug))
    return output.close(code)


def _invoke(arguments: list[str], root: Root) -> int:
    """Parse and call. Typer's own `main` would print and exit by itself, differently from release to release."""
    group: Any = get_command(app)
    if "_NOTIFYCTL_COMPLETE" in os.environ:
        group.main(arguments, prog_name="notifyctl")
    try:
        with group.make_context("notifyctl", arguments, obj=root) as context:
            result = group.invoke(context)
    except typer.Exit as left:
        return left.exit_code
    except typer.Abort:
        return EXIT_INTERRUPTED
    except Exception as error:
        if hasattr(error, "format_message") and getattr(error, "exit_code", None) == EXIT_USAGE:
            raise _usage(error) from None
        raise
    return result if isinstance(result, int) else EXIT_OK


def _usage(error: Any) -> NotifyctlError:
    """Typer's complaint about a command line in our words. A bare group shows its help instead."""
    context = getattr(error, "ctx", None)
    message: str = error.format_message().strip()
    if type(error).__name__ == "NoArgsIsHelpError":
        return UsageError("a command is missing", hint=_try_help(context))
    return UsageError(message[:1].lower() + message[1:].rstrip("."), hint=_try_help(context))


def _try_help(context: Any) -> str:
    return f"see: {context.command_path if context else 'notifyctl'} --help"


def _bug(output: Output, error: Exception, *, traceback: bool) -> int:
    """What nobody foresaw. The exception's text is not shown: it may quote an address, a body or a secret."""
    place = _place(error)
    if traceback:
        import traceback as traces

        frames = traces.format_tb(error.__traceback__)  # frames and source lines, without the exception's text
        sys.stderr and sys.stderr.write("".join(frames) + f"{type(error).__name__}\n")
    return output.failure(
        NotifyctlError(
            f"internal error: {type(error).__name__} at {place}",
            hint="this is a bug in notifyctl" if traceback else "run again with --log-level debug, and report it",
        )
    )


def _place(error: Exception) -> str:
    """The innermost line of ours that the exception passed."""
    place, frame = "an unknown place", error.__traceback__
    while frame is not None:
        name = frame.tb_frame.f_globals.get("__name__", "")
        if str(name).startswith("notifyctl"):
            place = f"{name}:{frame.tb_lineno}"
        frame = frame.tb_next
    return place
