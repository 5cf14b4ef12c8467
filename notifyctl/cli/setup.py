"""`init` and `migrate`: from an empty folder to a ledger that can be enqueued into."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from notifyctl.cli.options import DryRun, Session, command, family
from notifyctl.errors import ConfigError, NotifyctlError, UsageError

if TYPE_CHECKING:
    from notifyctl.config import Config
    from notifyctl.ledger.database import Ledger

app = family()

TICKS = ("dispatch", "poll-receipts", "reconcile")  # what cron runs; crontab.example names the same

Instance = Annotated[
    str | None, typer.Option("--instance", metavar="NAME", help="This installation's name (else production).")
]
Sql = Annotated[bool, typer.Option("--sql", help="Print the SQL that is still to be applied; change nothing.")]
Adopt = Annotated[bool, typer.Option("--adopt-instance", help="Make this copy of another instance's ledger ours.")]
ResetClock = Annotated[bool, typer.Option("--reset-clock", help="SQLite: believe this host's clock from now on.")]

RestoredFrom = Annotated[
    str | None,
    typer.Option(
        "--restored-from", metavar="TIME",
        help="This ledger is a backup of then: pause all lanes, and put in doubt what may have been sent since.",
    ),
]


@command(app, "init")
def init(session: Session, instance: Instance = None, dry_run: DryRun = False) -> None:
    """Write notifyctl.toml and sample templates, and make the ledger."""
    from notifyctl.cli.samples import CONFIG, TEMPLATES

    path = Path(os.path.abspath(session.path or os.environ.get("NOTIFYCTL_CONFIG") or "notifyctl.toml"))
    if path.exists():
        raise ConfigError(
            f"{path} exists and is not overwritten",
            hint="name another with --config, or go on with it: notifyctl migrate",
            code="exists",
        )
    name = instance or session.out.ask("Name of this installation", "production")
    if not name.strip() or not name.isprintable():
        raise UsageError("an instance's name is a printable text")
    files = {path.parent / "templates" / part: text for part, text in TEMPLATES.items()}
    files[path] = CONFIG.format(instance=json.dumps(name, ensure_ascii=False))
    kept = sorted(str(file) for file in files if file.exists())
    written = sorted(str(file) for file in files if not file.exists())
    crontab = _crontab(path)
    applied: list[str] = []
    if not dry_run:
        for file, text in files.items():
            _write(file, text)
        session.use(path)
        applied = _migrate(session.config, adopt=False, reset_clock=False, dry_run=False)["applied"]
    if session.out.json:
        session.out.document(
            {"dry_run": dry_run, "config": str(path), "instance": name, "written": written, "kept": kept,
             "applied": applied, "crontab": crontab}
        )  # fmt: skip
        return
    for one in written:
        session.out.text(f"{'would write' if dry_run else 'wrote'} {one}")
    for one in kept:
        session.out.text(f"kept {one}")
    session.out.text("\nFor crontab -e:\n")
    for line in crontab:
        session.out.text(f"  {line}")
    tool = "notifyctl" if path.parent == Path.cwd() else f"notifyctl --config {shlex.quote(str(path))}"
    session.out.text("\nNext:\n")
    session.out.text(f"  {tool} template publish")
    session.out.text(
        f"  {tool} enqueue --event first --recipient me --channel email --template welcome"
        " --var name=Ada --to email=ada@example.com"
    )
    session.out.text(f"  {tool} dispatch")


@command(app, "migrate")
def migrate(
    session: Session,
    sql: Sql = False,
    adopt_instance: Adopt = False,
    reset_clock: ResetClock = False,
    restored_from: RestoredFrom = None,
    dry_run: DryRun = False,
) -> None:
    """Bring the ledger's tables up to date; safe to run again."""
    from notifyctl import units

    if sql:
        if adopt_instance or reset_clock or restored_from:
            raise UsageError("--sql changes nothing: no other option of migrate goes with it")
        _print_sql(session)
        return
    since = None if restored_from is None else units.instant(restored_from)
    done = _migrate(session.config, adopt=adopt_instance, reset_clock=reset_clock, since=since, dry_run=dry_run)
    corrected = done.pop("corrected")
    if session.out.json:
        if corrected:
            session.out.note(f"reset the ledger's clock{corrected}")
        session.out.document(done)
        return
    for name in done["applied"]:
        session.out.text(f"applied {name}")
    for name in done["pending"]:
        session.out.text(f"would apply {name}")
    if done["adopted_from"]:
        session.out.text(f"{'would adopt' if dry_run else 'adopted'} the ledger of instance {done['adopted_from']}")
    if reset_clock:
        session.out.text(f"{'would reset' if dry_run else 'reset'} the ledger's clock{corrected}")
    if since is not None:
        would = "would be" if dry_run else "are"
        session.out.text(
            f"{done['in_doubt']} deliveries that may have been sent since {restored_from} {would} in doubt; "
            f"{would} paused: {', '.join(done['paused']) or 'no lane'}"
        )
        if not dry_run:
            session.out.text(
                "Settle what can be settled: notifyctl reconcile. What is left: notifyctl inspect deliveries "
                "--state ambiguous. Then for each lane: notifyctl lane resume LANE --reason TEXT"
            )
    elif not (done["applied"] or done["pending"] or done["adopted_from"] or reset_clock):
        session.out.text(f"the ledger is up to date (version {done['version']})")


def _migrate(
    config: Config, *, adopt: bool, reset_clock: bool, dry_run: bool, since: datetime | None = None
) -> dict[str, Any]:
    """Apply what is pending; returns the JSON of `migrate`. Raises ConfigError for another instance's ledger.

    `since`: when the backup was made that this ledger was restored from.
    """
    from notifyctl import units
    from notifyctl.ledger import clocks, schema
    from notifyctl.ledger.connect import is_sqlite, sqlite_path
    from notifyctl.ledger.database import Ledger

    if reset_clock and not is_sqlite(config.url):
        raise UsageError("--reset-clock is for SQLite: on Postgres the server's clock counts")
    done: dict[str, Any] = {
        "dry_run": dry_run, "instance": config.instance, "version": schema.SCHEMA_VERSION,
        "applied": [], "pending": [], "adopted_from": None, "clock_reset": reset_clock and not dry_run,
        "corrected": "", "restored_from": None if since is None else units.iso(since), "in_doubt": 0, "paused": [],
    }  # fmt: skip
    if dry_run and is_sqlite(config.url) and not sqlite_path(config.url).exists():
        done["pending"] = [one.name for one in schema.migrations("sqlite")]
        return done
    ledger = Ledger(config.url, patience=config.patience, create=not dry_run)
    connection, dialect = ledger.connection, ledger.dialect.name
    try:
        other = _other_instance(connection, dialect, config.instance, adopt=adopt)
        done["adopted_from"] = other
        if dry_run:
            done["pending"] = [one.name for one in schema.pending(connection, dialect)]
            if since is not None and not done["pending"]:
                _restore(ledger, config, since, done, dry_run=True)
            return done
        applied = schema.migrate(connection, dialect, config.instance, lock_timeout=config.patience)
        done["applied"] = [one.name for one in applied]
        if other is not None:
            schema.adopt_instance(connection, dialect, config.instance)
        if reset_clock:
            ahead, corrected = clocks.reset(connection, ledger.wall())
            done["corrected"] = _corrected(ahead, corrected)
        schema.check(connection, dialect, config.instance)
        if since is not None:
            _restore(ledger, config, since, done, dry_run=False)
    finally:
        ledger.close()
    return done


def _restore(ledger: Ledger, config: Config, since: datetime, done: dict[str, Any], *, dry_run: bool) -> None:
    from notifyctl.cli import operator
    from notifyctl.ticks.restore import restored

    found = restored(ledger, config, since, actor=operator.login(), dry_run=dry_run)
    done["in_doubt"], done["paused"] = found.in_doubt, found.paused


def _corrected(ahead: timedelta, corrected: Mapping[str, int]) -> str:
    """What was brought back of what a clock that was ahead had written."""
    if not ahead:
        return ""
    found = ", ".join(f"{count} {name}" for name, count in corrected.items())
    return f", which was {timedelta(seconds=round(ahead.total_seconds()))} ahead; brought back: {found or 'nothing'}"


def _other_instance(connection: Any, dialect: str, instance: str, *, adopt: bool) -> str | None:
    """The name of the instance that the ledger belongs to if it is not ours; refused unless we `adopt` it."""
    from notifyctl.ledger import schema

    try:
        schema.check(connection, dialect, instance)
    except ConfigError as error:
        if error.code != "wrong_instance":
            return None  # no tables yet, or older ones: that is what migrate is for
        if not adopt:
            raise
        from notifyctl.ledger import clocks

        return clocks.instance(connection)
    return None


def _print_sql(session: Session) -> None:
    from notifyctl.ledger import schema
    from notifyctl.ledger.connect import is_sqlite
    from notifyctl.ledger.database import Ledger

    config = session.config
    dialect = "sqlite" if is_sqlite(config.url) else "postgresql"
    since = 0
    try:
        ledger = Ledger(config.url, patience=config.patience)
        waiting = schema.pending(ledger.connection, dialect)
        since = min((one.version for one in waiting), default=schema.SCHEMA_VERSION + 1) - 1
        ledger.close()
    except NotifyctlError as error:
        session.out.note(f"{error.message}: this is the SQL from the beginning")
    text = schema.sql(dialect, since)
    if session.out.json:
        session.out.document({"dialect": dialect, "since": since, "sql": text})
    else:
        session.out.text(text.rstrip("\n"))


def _write(path: Path, text: str) -> None:
    """Write a new file; one that exists is left as it is."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        return
    except OSError as error:
        reason = (error.strerror or "input/output error").lower()
        raise ConfigError(
            f"{path} cannot be written: {reason}", hint="run init in a folder that you may write to", code="not_written"
        ) from None


def _crontab(config: Path) -> list[str]:
    """The lines for cron, with absolute paths; cron takes % for a line end unless it is escaped."""
    found = shutil.which("notifyctl")
    tool = shlex.quote(os.path.abspath(found)) if found else f"{shlex.quote(sys.executable)} -m notifyctl"
    command = f"{tool} --config {shlex.quote(str(config))}".replace("%", "\\%")
    return [f"* * * * * {command} {tick}" for tick in TICKS]
