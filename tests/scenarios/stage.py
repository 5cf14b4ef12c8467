"""Where a reported fault is played: an installation with mail over SMTP and texts into a file, its output watched.

Of every process all that it prints is searched: no traceback, no address, no number, no word of a body, no secret, and
it must end in time. Time is moved by UPDATE of stored instants, never waited for.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests import auditor
from tests.cli.rig import command, environment
from tests.ledger.databases import Database
from tests.site import DOMAIN, Done, Running, Site, intent
from tests.smtp_server import Rule

SECRET = "c4nary-passw0rd"
NUMBER = "+447700900123"
CANARIES = ("Reader ", "your note", SECRET, NUMBER, NUMBER[3:], "canary-body")
SOON = 20.0  # seconds in which a run must have ended that has nothing to wait for


class Watched(Running):
    """A process whose output holds nothing that it must not say."""

    def result(self, timeout: float = 60.0) -> Done:
        done = super().result(timeout)
        for canary in CANARIES:
            assert canary not in done.out + done.err, "it was printed"
        return done


class Stage(Site):
    """One installation; `transports.texts` writes SMS into `outbox/sms.jsonl`."""

    def __init__(self, path: Path, url: str, port: int = 0) -> None:
        super().__init__(path, url, port)
        self.settings["transports.texts"] = {"kind": "file", "path": "outbox", "from": "+15005550006"}
        self.settings["lanes.sms"] = {"channel": "sms", "transport": "texts"}
        self.configure()

    def __enter__(self) -> Stage:
        return self

    def put(self, table: str, **keys: Any) -> None:
        """Change keys of any table of the configuration."""
        self.settings.setdefault(table, {}).update(keys)
        self.configure()

    def to(self, server: Any, **relay: Any) -> None:
        """Let mail go to this server."""
        self.configure(relay={"port": server.port, **relay})

    def template(self, version: str = "1", **parts: str) -> None:
        """As `Site.template`, with a text message."""
        sms = parts.pop("sms", "Code for {{ name }}")
        super().template(version, **parts)
        (self.path / "templates" / "note" / version / "sms.txt").write_text(sms, encoding="utf-8")

    def start(self, *arguments: str, wrapper: Sequence[str] = (), **options: Any) -> Running:
        options = {"cwd": self.path, "env": environment(), **options}
        process = Watched([*wrapper, *command(*arguments)], **options)
        self._processes.append(process)
        return process

    def told(self, *arguments: str, code: int = 0, **options: Any) -> Done:
        """A command that must end with `code`, soon."""
        done = self.run(*arguments, timeout=SOON, **options)
        assert done.code == code, done
        return done

    def asked(self, *arguments: str, code: int = 0, **options: Any) -> Any:
        """The JSON document of a command that must end with `code`."""
        return self.told(*arguments, "--json", code=code, **options).json

    def dispatched(self, *arguments: str, code: int = 0, **counts: int) -> Any:
        """The JSON document of a dispatch, with these counts."""
        document = self.asked("dispatch", *arguments, code=code)
        assert {name: document[name] for name in counts} == counts, document
        return document

    def lines(self, *arguments: str) -> list[Any]:
        """The NDJSON of a command."""
        return [json.loads(line) for line in self.told(*arguments, "--json").out.splitlines()]

    def listed(self, state: str) -> set[int]:
        """The numbers of the deliveries that `inspect` lists in this state."""
        shown = self.lines("inspect", "deliveries", "--state", state, "--limit", "1000")
        return {int(row["event_id"][1:]) for row in shown}

    def seen(self, number: int) -> Any:
        """What `inspect delivery` says of delivery `e<number>`."""
        return self.asked("inspect", "delivery", str(self.delivery(number, "id")))

    def refused(self, done: Done) -> dict[str, str]:
        """The error object of a command under --json."""
        error: dict[str, str] = json.loads(done.err.splitlines()[-1])["error"]
        return error

    def texts(self, path: str = "outbox") -> list[dict[str, Any]]:
        """The text messages in the file."""
        file = self.path / path / "sms.jsonl"
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []

    def bulk(self, *rows: Mapping[str, Any], code: int = 0) -> Any:
        """The JSON document of a bulk enqueue."""
        file = self.path / "rows.ndjson"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return self.asked("enqueue", "--from", str(file), code=code)

    def audit(self, server: Any = ()) -> None:
        """As `Site.audit`, of mails and of texts."""
        said = [{"at": 0, "sha256": "", "message_id": line["key"]} for line in self.texts()]
        mails = server.messages if hasattr(server, "messages") else server
        found = auditor.faults(self.url, [*mails, *said], same_host=not said)
        found = [one for one in found if not said or "remote id" not in one]  # a text's is not its key
        assert not found, found

    def many(self, count: int, **columns: str) -> None:
        """`count` mails e1 … to r1@DOMAIN …, by one INSERT of a generated set; `columns` are SQL expressions of n."""
        given = {
            "event_id": "'e' || n", "recipient_id": "'r-' || n", "channel": "'email'", "template": "'note'",
            "template_version": "'1'", "variables": "'{\"name\": \"Reader x\"}'",
            "destination": f"'r' || n || '@{DOMAIN}'", **columns,
        }  # fmt: skip
        with Database(self.url) as database:
            numbers = f"generate_series(1, {count}) AS n"
            if database.dialect == "sqlite":
                numbers = (
                    f"(WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {count})"
                    " SELECT n FROM s) AS t"
                )
            else:
                given["variables"] += "::jsonb"
            database.execute(
                f"INSERT INTO notify_delivery ({', '.join(given)}) SELECT {', '.join(given.values())} FROM {numbers}"
            )

    def hold(self) -> Database:
        """Somebody else's open transaction that reads an old state of the ledger, until it is closed."""
        database = Database(self.url)
        isolated = " ISOLATION LEVEL REPEATABLE READ" if database.dialect == "postgresql" else ""
        database.execute(f"BEGIN{isolated}")
        database.execute("SELECT count(*) FROM notify_meta")
        return database

    def pass_time(self, seconds: float) -> None:
        """Let so much time have passed for everything that waits."""
        for table, column in (("notify_work", "eligible_at"), ("notify_gate", "until")):
            earlier = f"{column} - interval '{seconds} seconds'"
            if self.url.startswith("sqlite"):
                earlier = f"strftime('%Y-%m-%d %H:%M:%f', {column}, '-{seconds} seconds') || '000'"
            self.sql(f"UPDATE {table} SET {column} = {earlier} WHERE {column} IS NOT NULL")

    def work(self, number: int, columns: str = "step, owner") -> Any:
        """Columns of the work row of delivery `e<number>`; None: it has none."""
        rows = self.sql(
            f"""SELECT {columns} FROM notify_work WHERE delivery_id =
            (SELECT id FROM notify_delivery WHERE event_id = ?)""", f"e{number}",
        )  # fmt: skip
        return rows[0] if rows else None

    def rows(self, *rows: Mapping[str, Any]) -> None:
        """Enqueue these rows, all new."""
        self.enqueue_rows(rows)


def text(number: int, address: str = NUMBER, **more: Any) -> dict[str, Any]:
    """The row of a text message."""
    return intent(number, **{"channel": "sms", "to": {"sms": address}, **more})


def answers(number: int, phase: str, reply: str | bytes, **more: Any) -> Rule:
    """What a server says of delivery `e<number>`, at `rcpt` or at `dot`."""
    to = f"r{number}@{DOMAIN}"
    return Rule(phase, reply=reply, when=lambda it: to in (it.recipient if phase == "rcpt" else it.recipients), **more)


def at(seconds: float) -> str:
    """An instant so far from now, as both databases read it."""
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%d %H:%M:%S.%f")


def python(code: str, *arguments: str) -> list[str]:
    """A wrapper that runs `code` and starts the command in `sys.argv[1:]`."""
    return [sys.executable, "-c", code, *arguments]


def addresses(numbers: Iterable[int]) -> set[str]:
    """Whom these deliveries are for."""
    return {f"r{number}@{DOMAIN}" for number in numbers}
