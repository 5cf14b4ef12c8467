"""A provider whose receipts are scripted: look-ups, an event feed, or bounces only; and a desk to work at with it.

What it accepted and what it says lies in files below one folder, so that real processes share it: `sent.jsonl`,
`says.jsonl` (look-ups answer with the last line of a remote id, a feed gives all lines in their order), `asked.jsonl`,
`fed.jsonl`; while a file `down` exists it answers nothing. `python -m tests.scripted COMMAND …` is the command with
this kind of transport registered; `Desk` runs the same ticks inside the test.
"""

from __future__ import annotations

import fcntl
import json
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from notifyctl.clock import Deadline
from notifyctl.config import load
from notifyctl.ledger.runs import open_ledger
from notifyctl.model import (
    Absent,
    Capabilities,
    Channel,
    Finding,
    Found,
    Mail,
    Message,
    Outcome,
    OutcomeKind,
    Receipt,
    Receipts,
    ReceiptStatus,
    Request,
    Search,
)
from notifyctl.settings import TransportSettings
from notifyctl.ticks import lanes
from notifyctl.ticks.receipts import Poll
from notifyctl.ticks.run import Run
from notifyctl.transports import registry
from notifyctl.transports.base import FeedPage, Transport, Trouble
from tests.cli.rig import environment
from tests.ledger.databases import Database
from tests.site import DOMAIN, LONG_AGO, Done, Running, Site

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)


class Scripted(Transport):
    """Kind `scripted`; `receipts` is lookup, feed or bounces_only. A recipient whose address begins with `p2` gets a
    message in two parts; one that begins with `lost` is accepted, and the answer is lost."""

    CAPABILITIES = Capabilities(
        channels=frozenset({Channel.EMAIL, Channel.SMS}), search=Search.OWN_KEY, absence_proves_unsent=True,
        receipts=Receipts.LOOKUP,
    )  # fmt: skip

    def __init__(self, settings: TransportSettings) -> None:
        super().__init__(settings)
        path = settings.path("path")
        assert path is not None
        self.folder = path
        window = settings.options.get("window", 0)
        self.capabilities = replace(
            self.capabilities, receipts=Receipts(settings.text("receipts", "lookup")),
            receipt_window=float(window) if isinstance(window, int) else 0.0, status_rate=settings.text("declared"),
        )  # fmt: skip
        self.hook: Callable[[str], None] = HOOKS.get(settings.name, lambda _: None)

    def prepare(self, message: Message) -> Request:
        recipient = message.recipient.address if isinstance(message, Mail) else message.recipient
        return Request(message.key, (recipient,), b"")

    def submit(
        self, requests: Sequence[Request], deadline: Deadline, validity: float | None
    ) -> list[Outcome]:  # fmt: skip
        outcomes = []
        for request in requests:
            recipient = request.envelope[0]
            ids = [f"m-{request.key[:12]}"] + ([f"m-{request.key[:12]}-2"] if recipient.startswith("p2") else [])
            append(self.folder / "sent.jsonl", {"key": request.key, "to": recipient, "ids": ids})
            self.hook("sent")
            if recipient.startswith("lost"):
                outcomes.append(Outcome(OutcomeKind.AMBIGUOUS, "reply_lost"))
            else:
                outcomes.append(Outcome(OutcomeKind.ACCEPTED, remote_ids=tuple(ids)))
        return outcomes

    def find(
        self, key: str, recipient: str = "", since: datetime | None = None, until: datetime | None = None
    ) -> Finding:  # fmt: skip
        """By our key, in what it has taken."""
        append(self.folder / "asked.jsonl", {"key": key})
        self._up()
        sent = [one for one in lines(self.folder / "sent.jsonl") if one["key"] == key]
        return Found(sent[0]["ids"][0]) if sent else Absent()

    def receipts(self, remote_ids: Iterable[str]) -> dict[str, Receipt]:
        ids = list(remote_ids)
        append(self.folder / "asked.jsonl", {"ids": ids})
        self.hook("asked")
        self._up()
        return {one: said for one in ids if (said := self._statuses().get(one)) is not None}

    @property
    def feeds(self) -> bool:
        return self.capabilities.receipts is not Receipts.LOOKUP

    def feed(self, cursor: str, limit: int, deadline: Deadline) -> FeedPage:
        self.hook("feed")
        self._up()
        at = int(cursor or 0)
        said = lines(self.folder / "says.jsonl")
        page = said[at : at + limit]
        append(self.folder / "asked.jsonl", {"cursor": at})
        receipts = tuple(_receipt(one) for one in page if "noise" not in one)
        noise = len(page) - len(receipts)
        return FeedPage(receipts, str(at + len(page)), noise, more=at + limit < len(said), marks=at)

    def fed(self, page: FeedPage, unknown: Collection[Receipt], deadline: Deadline) -> None:
        self.hook("fed")
        append(self.folder / "fed.jsonl", {"from": page.marks, "to": page.cursor, "unknown": len(unknown)})

    def _up(self) -> None:
        if (self.folder / "down").exists():
            reason = (self.folder / "down").read_text()
            if reason == "bug":
                raise ValueError("r1@rcpt.example")
            reason, _, wait = reason.partition(" ")  # `throttled 600`: it asks to be left alone for ten minutes
            raise Trouble(
                reason or "timeout", config=reason == "credentials_rejected", wait=float(wait) if wait else None
            )

    def _statuses(self) -> dict[str, Receipt]:
        return {one["remote_id"]: _receipt(one) for one in lines(self.folder / "says.jsonl")}


HOOKS: dict[str, Callable[[str], None]] = {}  # by transport name; only inside the test's own process


def register() -> None:
    """Make `kind = "scripted"` known in this process."""
    sys.modules["notifyctl.transports.scripted"] = sys.modules[__name__]
    registry.KINDS["scripted"] = registry.Kind(
        module="scripted:Scripted", channels=frozenset({"email", "sms"}),
        keys=frozenset({"path", "receipts", "window", "declared", "feeding"}), feeds="feeding",
    )  # fmt: skip


def _receipt(line: dict[str, Any]) -> Receipt:
    at = line.get("at")
    at = datetime.fromisoformat(at) if isinstance(at, str) else None if at is None else NOON + timedelta(seconds=at)
    return Receipt(
        ReceiptStatus(line["status"]), line.get("remote_id", ""), line.get("reason", ""), line.get("code", ""),
        at, line.get("part", 0), line.get("key", ""),
    )  # fmt: skip


def append(path: Path, line: dict[str, Any]) -> None:
    """One whole line, also while other processes append."""
    with path.open("a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(json.dumps(line) + "\n")


def lines(path: Path) -> list[dict[str, Any]]:
    """What was written so far."""
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
    except FileNotFoundError:
        return []


class Desk(Site):
    """An installation whose lane `email` goes through the scripted provider `relay`."""

    def __init__(self, path: Path, url: str, receipts: str = "lookup", **relay: Any) -> None:
        register()
        super().__init__(path, url)
        self.provider = path / "provider"
        self.provider.mkdir(exist_ok=True)
        self.settings["transports.relay"] = {
            "kind": "scripted", "path": "provider", "receipts": receipts, "from": "no-reply@shop.example",
        }  # fmt: skip
        self.settings["templates"] = {"path": "templates"}
        if receipts != "lookup":
            relay["feeding"] = True
        self.configure(relay=relay)

    def texting(self) -> None:
        """A lane `sms` through a second account of the provider, and a template that can be sent as a text message."""
        self.settings["transports.texts"] = {**self.settings["transports.relay"], "from": "+15005550006"}
        self.settings["lanes.sms"] = {"channel": "sms", "transport": "texts"}
        self.configure()
        self.template()
        (self.path / "templates" / "note" / "1" / "sms.txt").write_text("Code for {{ name }}", encoding="utf-8")
        assert self.run("template", "publish").code == 0

    def intend(self, number: int, to: str = "", channel: str = "email", recipient: str = "", **columns: Any) -> None:
        """Insert delivery e<number>, by default as `Site.enqueue` does."""
        if not self.sql("SELECT 1 FROM notify_template"):
            self.publish()
        with Database(self.url) as database:
            database.insert(
                "notify_delivery", event_id=f"e{number}", recipient_id=recipient or f"r-{number}", channel=channel,
                template="note", variables=json.dumps({"name": "Ada"}), destination=to or f"r{number}@{DOMAIN}",
                **columns,
            )  # fmt: skip

    def send(self, count: int = 1) -> None:
        """Enqueue and dispatch: e1, e2 … are accepted."""
        for number in range(1, count + 1):
            self.intend(number)
        assert self.dispatched()["accepted"] == count

    def dispatched(self) -> dict[str, Any]:
        """The document of a dispatch inside this process."""
        with self._run("dispatch") as run:
            tick = lanes.dispatch(run, lanes.chosen(run.config, [], None), "", batch=None, concurrency=None)
            tick()
            return tick.document()

    def polled(self, *only: str, code: int = 0, lane: str | None = None, **budget: Any) -> dict[str, Any]:
        """The document of a poll inside this process that ends with this exit code."""
        with self._run("poll-receipts", **budget) as run:
            tick = Poll(run, lanes.chosen(run.config, [lane] if lane else [], None), "", only=only)
            assert tick() == code
            return tick.document()

    def beside(self, *arguments: str) -> Done:
        """Run a command as a process of its own; its JSON document."""
        return self.start(*arguments, "--json").result()

    def start(self, *arguments: str, wrapper: Sequence[str] = (), **options: Any) -> Running:
        """Start a command with this transport registered."""
        process = Running(
            [*wrapper, *command(*arguments)], **{"cwd": self.path, "env": environment(), **options}
        )  # fmt: skip
        self._processes.append(process)
        return process

    @contextmanager
    def _run(self, command: str, **budget: Any) -> Iterator[Run]:
        config = load(self.config, environ={}, kinds=registry.KINDS)
        ledger = open_ledger(config.url, config.instance, patience=config.patience)
        try:
            yield Run(config, ledger, command, **budget)
        finally:
            ledger.close()

    def remote_id(self, number: int) -> str:
        """The provider's id of delivery `e<number>`."""
        wire = self.delivery(number, "wire_key")
        return f"m-{wire[:12]}"

    def says(self, number: int | str, status: str, at: float | str | None = 0.0, **more: Any) -> None:
        """The provider says this of e<number> (or of a remote id) at so many seconds past noon, or at an ISO time."""
        remote = self.remote_id(number) if isinstance(number, int) else number
        append(self.provider / "says.jsonl", {"remote_id": remote, "status": status, "at": at, **more})

    def due(self) -> None:
        """Every check and every feed is due."""
        self.later()
        self.sql("UPDATE notify_cursor SET eligible_at = ?", LONG_AGO)

    def receipts(self, number: int) -> list[str]:
        """The statuses kept of e<number>, in order."""
        rows = self.sql(
            "SELECT r.status FROM notify_receipt r JOIN notify_delivery d ON d.id = r.delivery_id "
            "WHERE d.event_id = ? ORDER BY r.id",
            f"e{number}",
        )
        return [status for (status,) in rows]

    def trail(self, number: int) -> list[str]:
        """The states that e<number> has been in."""
        rows = self.sql(
            'SELECT t."to" FROM notify_transition t JOIN notify_delivery d ON d.id = t.delivery_id '
            "WHERE d.event_id = ? ORDER BY t.id",
            f"e{number}",
        )
        return [state for (state,) in rows]

    def suppressions(self) -> list[tuple[Any, ...]]:
        """(recipient, channel, reason) of every suppression."""
        return self.sql("SELECT recipient_id, channel, reason FROM notify_suppression ORDER BY id")


def command(*arguments: str) -> list[str]:
    """The command line of the tool with this transport registered."""
    return [sys.executable, "-m", "tests.scripted", *arguments]


if __name__ == "__main__":
    from notifyctl.cli import main
    from tests import scripted

    scripted.register()
    sys.exit(main(sys.argv[1:]))
