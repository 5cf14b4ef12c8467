"""The options that every command has, and the session they describe.

A family's module makes its `app = family()`. A command is written as `def show(session: Session, name: …)` returning
its exit code (None: 0) and registered with `@command(app, "show")`, which adds the common options behind its own. The
session reads the configuration when it is first asked for, so that `init` needs none.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from notifyctl import telemetry
from notifyctl.cli.output import Output
from notifyctl.errors import UsageError

if TYPE_CHECKING:
    from notifyctl.config import Config
    from notifyctl.ledger.database import Ledger

COMMON = ("config", "json", "log_level", "log_format", "verbose", "quiet")

ConfigOption = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="The configuration (else $NOTIFYCTL_CONFIG).")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done; change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask (before more than 100 rows change, or copies are sent).")]
Lanes = Annotated[list[str] | None, typer.Option("--lane", metavar="LANE", help="Only this lane (repeatable).")]
Limit = Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="At most so many rows in this run.")]
MaxSeconds = Annotated[
    float, typer.Option("--max-seconds", metavar="S", min=0.0, help="Claim nothing more after so long.")
]
Region = Annotated[str | None, typer.Option("--region", metavar="REGION", help="Instead of the configured region.")]


@dataclass(frozen=True)
class Root:
    """What `main` knows before a command is chosen; `connection` is what the front door opened on Postgres."""

    output: Output
    config: Path | None = None
    connection: Any = None
    debug: list[bool] = field(default_factory=list)


class Session:
    """One invocation: its output, and the configuration and ledger, each opened when first used.

    `path` is what --config says, None: nothing.
    """

    def __init__(self, root: Root, *, config: Path | None, log_level: str | None, log_format: str | None) -> None:
        self.out = root.output
        self.log_level, self.log_format = log_level, log_format
        self.path = config or root.config
        self._connection = root.connection

    @cached_property
    def config(self) -> Config:
        """The configuration; the log is set up with it. Raises ConfigError."""
        from notifyctl.config import load
        from notifyctl.transports.registry import KINDS

        config = load(self.path, environ=os.environ, kinds=KINDS)
        telemetry.setup(
            level=self.log_level or config.log.level,
            style=self.log_format or config.log.format or "console",
            file=config.log.file,
            stderr=self.out.stderr,
            quiet=not self.log_level and config.log.level != "debug",
        )
        for warning in config.warnings:
            telemetry.logger().warning(warning)
        return config

    def use(self, path: Path) -> None:
        """Take the configuration at `path`, which has just been written."""
        self.path = path

    def ledger(self) -> Ledger:
        """The open ledger, version and instance checked. Raises ConfigError or LedgerUnavailable."""
        from notifyctl.ledger.runs import open_ledger

        config, connection, self._connection = self.config, self._connection, None
        return open_ledger(config.url, config.instance, patience=config.patience, connection=connection)


def family(**settings: Any) -> typer.Typer:
    """The `app` of a module of commands, with the settings that all of them share."""
    return typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False, **settings)


def command(
    app: typer.Typer, name: str | None = None, **settings: Any
) -> Callable[[Callable[..., int | None]], Callable[..., int | None]]:
    """Register a function of a `Session` and its own parameters as a command that also takes the common options."""

    def register(function: Callable[..., int | None]) -> Callable[..., int | None]:
        def invoke(context: typer.Context, **given: Any) -> int | None:
            shared = {key: given.pop(key) for key in COMMON}
            return function(_session(context, **shared), **given)

        app.command(name, **settings)(_declared(invoke, function))
        return function

    return register


def overview(app: typer.Typer) -> Callable[[Callable[..., int | None]], Callable[..., int | None]]:
    """Register what a family does when none of its subcommands is named, as `inspect` alone does."""

    def register(function: Callable[..., int | None]) -> Callable[..., int | None]:
        def invoke(context: typer.Context, **given: Any) -> int | None:
            shared = {key: given.pop(key) for key in COMMON}
            if context.invoked_subcommand is None:
                return function(_session(context, **shared), **given)
            if shared["config"]:
                context.obj = replace(context.obj, config=shared.pop("config"))
            if any(shared.values()) or any(given.values()):
                raise UsageError(f"options follow the command {context.invoked_subcommand}")
            return None

        app.callback(invoke_without_command=True)(_declared(invoke, function))
        return function

    return register


def _declared(invoke: Callable[..., int | None], function: Callable[..., int | None]) -> Callable[..., int | None]:
    """`invoke` with a signature for Typer: a context, `function`'s own parameters, the common options."""
    hints = get_type_hints(function, include_extras=True)
    own = [
        parameter.replace(annotation=hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in list(inspect.signature(function).parameters.values())[1:]
    ]
    head = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    parameters = [head, *own, *inspect.signature(_common, eval_str=True).parameters.values()]
    invoke.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    invoke.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    invoke.__name__, invoke.__doc__ = function.__name__, function.__doc__
    return invoke


def _common(
    *,
    config: ConfigOption = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    log_level: Annotated[
        str | None, typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")
    ] = None,
    log_format: Annotated[str | None, typer.Option("--log-format", metavar="FORMAT", help="console or json.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Say also without a terminal what was done.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Results and errors only.")] = False,
) -> None:
    """Carries the common options' declarations."""


def _session(
    context: typer.Context,
    *,
    config: Path | None,
    json: bool,
    log_level: str | None,
    log_format: str | None,
    verbose: bool,
    quiet: bool,
) -> Session:
    root: Root = context.obj
    root.output.json, root.output.verbose, root.output.quiet = json, verbose, quiet
    if json:
        root.output.color = False
    for option, value, words in (
        ("--log-level", log_level, telemetry.LEVELS),
        ("--log-format", log_format, ("console", "json")),
    ):
        if value is not None and value not in words:
            raise UsageError(f"{option} is {value!r}; it may be {', '.join(words)}")
    if log_level == "debug":
        root.debug.append(True)
    if verbose and quiet:
        raise UsageError("--verbose and --quiet contradict each other")
    return Session(replace(root), config=config, log_level=log_level, log_format=log_format)
