"""`demo`: the whole story in a folder, without any account. It takes the ways of the real commands, and only those."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from notifyctl.cli.options import Session, command, family
from notifyctl.errors import EXIT_OK, ConfigError, UsageError, worst

if TYPE_CHECKING:
    from notifyctl.config import Config
    from notifyctl.ledger.database import Ledger

app = family()

CONFIG = """\
# Written by `notifyctl demo`: a real installation in one folder. Nothing leaves this machine.

instance = "demo"

[ledger]
url = "sqlite:///ledger.db"

[templates]
path = "templates"
default_locale = "en"

[transports.outbox]
kind = "file"                    # mails go to outbox/mail (a Maildir), texts to outbox/sms.jsonl
path = "outbox"
from = "Example Shop <no-reply@example.com>"

[transports.texts]
kind = "file"
path = "outbox"
from = "+15005550006"

[lanes.email]
channel = "email"
transport = "outbox"
receipt = { first = "10ms" }     # a folder knows at once; with a provider leave this out

[lanes.sms]
channel = "sms"
transport = "texts"
receipt = { first = "10ms" }
"""

TEMPLATES = {
    "order-paid/1/subject.txt": "Order {{ order }}: thank you, {{ name }}\n",
    "order-paid/1/body.txt": "Hello {{ name }},\n\nwe have received your payment for order {{ order }}.\n",
    "order-paid/1/body.html": "<p>Hello {{ name }},</p>\n<p>we have received your payment for order {{ order }}.</p>\n",
    "order-paid/1/sms.txt": "Hello {{ name }}, order {{ order }} is paid. Thank you!\n",
    "order-paid/1/de/subject.txt": "Bestellung {{ order }}: danke, {{ name }}\n",
    "order-paid/1/de/body.txt": "Guten Tag {{ name }},\n\nIhre Zahlung für Bestellung {{ order }} ist eingegangen.\n",
    "order-paid/1/de/body.html": (
        "<p>Guten Tag {{ name }},</p>\n<p>Ihre Zahlung für Bestellung {{ order }} ist eingegangen.</p>\n"
    ),
    "order-paid/1/de/sms.txt": "Guten Tag {{ name }}, Bestellung {{ order }} ist bezahlt. Danke!\n",
}

EXPIRY = "10ms"
MARK = CONFIG.partition("\n")[0]  # what tells a folder of a demo from anybody else's

Folder = Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Where it happens: a new folder, or one of its own.")]


@dataclass(frozen=True, slots=True)
class Scene:
    """One intent of the story: its title, its row, and what happens to it in a sentence."""

    title: str
    row: dict[str, Any]
    told: str


def _scenes(tag: str) -> list[Scene]:
    """The story; `tag` makes the events of each telling new ones."""
    paid = {"event": f"order-1001-paid-{tag}", "recipient": "customer-1", "template": "order-paid"}
    email = {
        **paid, "channel": "email", "locale": "de", "vars": {"name": "Jürgen Müller", "order": 1001},
        "to": {"email": '"Müller, Jürgen" <juergen@example.com>'},
    }  # fmt: skip
    sms = {
        **paid, "channel": "sms", "vars": {"name": "Zoë", "order": 1001}, "to": {"sms": "+12025550123"},
    }  # fmt: skip
    other = {"template": "order-paid", "channel": "email"}
    suppressed = {
        **other, "event": f"order-1002-paid-{tag}", "recipient": "customer-2",
        "vars": {"name": "Grace", "order": 1002}, "to": {"email": "grace@example.com"},
    }  # fmt: skip
    expiring = {
        **other, "event": f"order-1003-paid-{tag}", "recipient": "customer-3",
        "vars": {"name": "Alan", "order": 1003}, "to": {"email": "alan@example.com"}, "expires_in": EXPIRY,
    }  # fmt: skip
    return [
        Scene("a mail in German, to a name outside ASCII", email, "sent, and its receipt read"),
        Scene("the same mail enqueued again", email, "a duplicate: the delivery there was, and no second mail"),
        Scene("an SMS of the same event", sms, "sent, and its receipt read"),
        Scene(
            "a mail to somebody who asked for none", suppressed, "suppressed when it was enqueued: never in the queue"
        ),
        Scene(f"a mail that expires after {EXPIRY}", expiring, "claimed too late, so it was not sent"),
    ]


@command(app, "demo")
def demo(session: Session, folder: Folder = Path("notifyctl-demo")) -> int:
    """Play the whole story in a folder: enqueue, refuse, expire, dispatch, poll receipts, look."""
    if session.path is not None:
        raise UsageError("demo takes no --config: it writes its own", hint="name a folder: notifyctl demo FOLDER")
    place = _prepare(folder)
    from notifyctl import telemetry
    from notifyctl.config import load
    from notifyctl.ledger import runs, schema
    from notifyctl.ledger.database import Ledger
    from notifyctl.transports.registry import KINDS

    # No environment: $NOTIFYCTL_LEDGER_URL may name a real ledger, and this story is for none of them.
    config = load(place / "notifyctl.toml", environ={}, kinds=KINDS)
    telemetry.setup(level="warning", stderr=session.out.stderr, quiet=True)
    making = Ledger(config.url, patience=config.patience, create=True)
    try:
        schema.migrate(making.connection, making.dialect.name, config.instance, lock_timeout=config.patience)
    finally:
        making.close()
    ledger = runs.open_ledger(config.url, config.instance, patience=config.patience)
    try:
        return _play(session, config, ledger)
    finally:
        ledger.close()


def _play(session: Session, config: Config, ledger: Ledger) -> int:
    from notifyctl import clock, units
    from notifyctl.ledger import runs
    from notifyctl.ticks import lanes
    from notifyctl.ticks.bulk import Row
    from notifyctl.ticks.enqueue import Enqueue
    from notifyctl.ticks.people import Register
    from notifyctl.ticks.receipts import Poll
    from notifyctl.ticks.run import Run

    _publish(config, ledger)
    Register(config, ledger, runs.keys(ledger), "demo").suppress(
        [Row(1, {"recipient": "customer-2", "channel": "email", "reason": "opted_out"})]
    )
    scenes = _scenes(runs.new_id().lower())
    enqueued = Enqueue(Run(config, ledger, "enqueue"))
    code = enqueued(Row(number, scene.row) for number, scene in enumerate(scenes, 1))
    if enqueued.first_error is not None:
        raise enqueued.first_error  # somebody has edited what the demo wrote
    if code != EXIT_OK:
        return code
    clock.sleep_until(clock.monotonic() + units.duration(EXPIRY))
    dispatched = lanes.dispatch(
        Run(config, ledger, "dispatch"), lanes.chosen(config, [], None), config.region, batch=None, concurrency=None
    )
    code = dispatched()
    clock.sleep_until(clock.monotonic() + 2 * units.duration(EXPIRY))
    polled = Poll(Run(config, ledger, "poll-receipts"), lanes.chosen(config, [], None), config.region)
    code = worst(code, polled())
    _tell(session, config, ledger, list(zip(scenes, enqueued.ids, strict=True)))
    return code


def _publish(config: Config, ledger: Ledger) -> None:
    from notifyctl.compose.templates import check, read_folder
    from notifyctl.ledger import templates

    found = read_folder(config.templates_path)
    for template in found:
        check(template)
    ledger.transact(lambda tx: templates.publish(tx, found))


def _tell(session: Session, config: Config, ledger: Ledger, story: list[tuple[Scene, int]]) -> None:
    from notifyctl.ledger import inspection

    out, home = session.out, config.path.parent
    tool = f"{_tool()} --config {shlex.quote(str(config.path))}"
    shown: list[dict[str, Any]] = []
    for scene, number in story:
        found = ledger.read(lambda tx, number=number: inspection.delivery(tx, number))  # type: ignore[misc]
        row = found.delivery if found else {}
        shown.append(
            {"what": scene.title, "delivery": number, "state": row.get("state"), "reason": row.get("reason") or "",
             "file": _lies(home / "outbox", row), "told": scene.told, "command": f"{tool} inspect delivery {number}"}
        )  # fmt: skip
    if out.json:
        out.document({"folder": str(home), "config": str(config.path), "deliveries": shown})
        return
    out.text(f"Everything is in {home}\n")
    for one in shown:
        reason = f" ({one['reason']})" if one["reason"] not in ("", one["state"]) else ""
        out.text(out.bold(f"{one['what']}: {one['state']}{reason}"))
        out.text(f"  {one['told']}")
        out.text(f"  {one['command']}")
        if one["file"]:
            out.text(f"  {one['file']}")
        out.text()
    out.text("And then:\n")
    out.text(f"  {tool} inspect")
    out.text(f"  {tool} dispatch --verbose")
    if os.environ.get("NOTIFYCTL_LEDGER_URL"):
        out.note("NOTIFYCTL_LEDGER_URL is set and would lead these commands to another ledger: unset it first")


def _lies(outbox: Path, row: dict[str, Any]) -> str | None:
    """Where the message lies, if it went out."""
    if not row.get("remote_id"):
        return None
    return str(outbox / "sms.jsonl" if row["channel"] == "sms" else outbox / "mail" / "new" / f"{row['remote_id']}.eml")


def _tool() -> str:
    """How the reader calls us: as he just did."""
    called = sys.argv[0]
    if Path(called).name != "notifyctl":
        return f"{shlex.quote(sys.executable)} -m notifyctl"
    found = shutil.which("notifyctl")
    return "notifyctl" if found and os.path.samefile(found, called) else shlex.quote(called)


def _prepare(folder: Path) -> Path:
    """Write configuration and templates into a new folder, or keep those of one of our own; its absolute path."""
    try:
        place = Path(os.path.abspath(folder))
        config = place / "notifyctl.toml"
        place.mkdir(parents=True, exist_ok=True)
        ours = config.is_file() and config.read_text(encoding="utf-8", errors="replace").startswith(MARK)
        if not ours and any(place.iterdir()):
            raise ConfigError(
                f"{place} is not empty and no folder of a demo",
                hint="name a new one: notifyctl demo FOLDER",
                code="exists",
            )
        for name, text in {"notifyctl.toml": CONFIG, **{f"templates/{k}": v for k, v in TEMPLATES.items()}}.items():
            file = place / name
            if not file.exists():
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
    except OSError as error:
        reason = (error.strerror or "input/output error").lower()
        raise ConfigError(
            f"{error.filename or folder} cannot be written: {reason}",
            hint="name a folder that you may write to: notifyctl demo FOLDER",
            code="not_written",
        ) from None
    return place
