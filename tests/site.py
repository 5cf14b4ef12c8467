"""One installation in a folder and its real processes: what the tests of whole runs share.

    with SmtpServer() as server, Site(tmp_path, migrated_url, port=server.port) as site:
        site.publish()
        site.enqueue(3)
        assert site.dispatch().json["accepted"] == 3

The command runs as a subprocess with the environment that `env -i` leaves. The ledger is read by plain SQL through the
raw drivers, so that none of the tool's own code is believed. Time is moved by UPDATE (an administrator's right), never
by waiting. Every recipient lives below `DOMAIN`, so that a leaked address is noticed in whatever a process prints.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from notifyctl.compose.templates import read_folder
from notifyctl.ledger import templates
from notifyctl.ledger.database import Ledger
from tests import auditor
from tests.cli.rig import command, environment
from tests.ledger.databases import Database
from tests.smtp_server import Received, SmtpServer

DOMAIN = "rcpt.example"
SENDER = "Shop <no-reply@shop.example>"
LONG_AGO = "2001-01-01 00:00:00.000000"
PATIENT = 60.0  # seconds: far more than anything here takes; only a hang is found by it


@dataclass(frozen=True)
class Done:
    """How a process ended: exit code (negative: by a signal), and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON document on stdout."""
        return json.loads(self.out)


class Running:
    """A process of the tool that the test watches."""

    def __init__(self, arguments: Sequence[str], **options: Any) -> None:
        self._process: subprocess.Popen[bytes] = subprocess.Popen(
            arguments,
            **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
        )  # fmt: skip
        self.pid = self._process.pid

    def signal(self, number: int) -> None:
        """Send a signal to this process alone."""
        self._process.send_signal(number)

    def stop(self) -> None:
        """SIGSTOP; returns once the process has stopped."""
        self.signal(signal.SIGSTOP)
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), "it ended before it could be stopped"

    def kill(self) -> None:
        """SIGKILL; returns once the process is gone."""
        self._process.kill()
        self._process.communicate()
        assert self._process.returncode == -signal.SIGKILL, "it had ended before it was killed"

    def until(self, server: SmtpServer, condition: Callable[[], bool], timeout: float = PATIENT) -> None:
        """Wait until the server has seen what is waited for; a process that ends before says why."""
        server.wait(lambda: condition() or self._process.poll() is not None, timeout)
        assert condition(), self.result()

    def goes_on_for(self, seconds: float) -> bool:
        """Whether it still runs after `seconds`, in which it cannot get any further."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return True
        return False

    def result(self, timeout: float = PATIENT) -> Done:
        """Wait for its end. Whatever it printed holds neither a traceback nor an address."""
        out, err = self._process.communicate(timeout=timeout)
        done = Done(self._process.returncode, (out or b"").decode(), (err or b"").decode())
        assert "Traceback" not in done.err, done.err
        said = (done.out + done.err).replace("\\u2026@", "…@")  # masked, as `inspect` shows an address
        assert f"@{DOMAIN}" not in said.replace(f"…@{DOMAIN}", ""), "an address was printed"
        return done

    def end(self) -> None:
        """Clean up, whatever it does."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


class Site:
    """One installation: `notifyctl.toml`, `templates/`, and a ledger (migrated already, unless `init` is called)."""

    def __init__(self, path: Path, url: str, port: int = 0) -> None:
        path.mkdir(exist_ok=True)
        self.path = path
        self.url = url
        self.config = path / "notifyctl.toml"
        self.settings: dict[str, dict[str, Any]] = {
            "ledger": {"url": url, "patience": "30s"},
            "transports.relay": {"kind": "smtp", "host": "127.0.0.1", "port": port or 1, "from": SENDER},
            "lanes.email": {"channel": "email", "transport": "relay"},
        }
        self._processes: list[Running] = []
        self.configure()

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.end()

    # -- setting up ---------------------------------------------------------------------------------------------

    def configure(
        self,
        relay: Mapping[str, Any] | None = None,
        lane: Mapping[str, Any] | None = None,
        ledger: Mapping[str, Any] | None = None,
    ) -> None:
        """Change keys of the only transport, the only lane or the ledger, and write the file anew."""
        for table, changes in (("transports.relay", relay), ("lanes.email", lane), ("ledger", ledger)):
            self.settings[table].update(changes or {})
        lines = ['instance = "test"']
        for table, keys in self.settings.items():
            lines += [f"[{table}]", *(f"{key} = {_toml(value)}" for key, value in keys.items())]
        self.config.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def init(self) -> Done:
        """`notifyctl init` into the empty folder; then this site's own configuration replaces the sample."""
        self.config.unlink(missing_ok=True)
        done = self.run("init", "--instance", "test", "--json", env=environment(NOTIFYCTL_LEDGER_URL=self.url))
        assert done.code == 0, done.err
        self.configure()
        return done

    def template(self, version: str = "1", **parts: str) -> None:
        """Write a version of the template `note`; parts are `subject`, `body` and `html`."""
        texts = {"subject": "Note for {{ name }}", "body": "Hello {{ name }},\n\nyour note.\n", **parts}
        folder = self.path / "templates" / "note" / version
        folder.mkdir(parents=True)
        for part, text in texts.items():
            name = {"subject": "subject.txt", "body": "body.txt", "html": "body.html"}[part]
            (folder / name).write_text(text, encoding="utf-8")

    def publish(self, version: str = "1", **parts: str) -> None:
        """Write that version and publish it, without the cost of a process."""
        self.template(version, **parts)
        ledger = Ledger(self.url)
        try:
            found = read_folder(self.path / "templates")
            assert ledger.transact(lambda tx: templates.publish(tx, found))
        finally:
            ledger.close()

    def enqueue(self, count: int, first: int = 1, **more: Any) -> None:
        """Deliveries e1, e2 … to r-1, r-2 … at r1@DOMAIN …, by the plain INSERT of an application; with `more` keys of
        a row, by the command."""
        if more:
            return self.enqueue_rows([intent(number, **more) for number in range(first, first + count)])
        with Database(self.url) as database:
            database.begin()
            for number in range(first, first + count):
                row = intent(number)
                database.insert(
                    "notify_delivery", event_id=row["event"], recipient_id=row["recipient"], channel="email",
                    template="note", variables=json.dumps(row["vars"]), destination=row["to"]["email"],
                )  # fmt: skip
            database.execute("COMMIT")
        return None

    def enqueue_rows(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Enqueue these rows, all of which must be new."""
        file = self.path / "rows.ndjson"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        done = self.run("enqueue", "--from", str(file))
        assert (done.code, done.out, done.err) == (0, "", ""), done

    # -- running ------------------------------------------------------------------------------------------------

    def start(self, *arguments: str, wrapper: Sequence[str] = (), **options: Any) -> Running:
        """Start a command; `wrapper` is what starts it instead of us."""
        options = {"cwd": self.path, "env": environment(), **options}
        process = Running([*wrapper, *command(*arguments)], **options)
        self._processes.append(process)
        return process

    def run(self, *arguments: str, timeout: float = PATIENT, **options: Any) -> Done:
        """Run a command to its end."""
        return self.start(*arguments, **options).result(timeout)

    def dispatch(self, *arguments: str, **options: Any) -> Done:
        """One dispatch with its JSON document; an idle one has none of its own run."""
        return self.run("dispatch", "--json", *arguments, **options)

    # -- the ledger, by plain SQL -------------------------------------------------------------------------------

    def sql(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        """One statement in a connection of its own."""
        with Database(self.url) as database:
            return database.execute(text, *values)

    def states(self) -> dict[str, int]:
        """How many deliveries are in each state."""
        return Counter(state for (state,) in self.sql("SELECT state FROM notify_delivery"))

    def delivery(self, number: int, columns: str = "state") -> Any:
        """Columns of delivery `e<number>`."""
        (row,) = self.sql(f"SELECT {columns} FROM notify_delivery WHERE event_id = ?", f"e{number}")
        return row[0] if len(row) == 1 else row

    def numbers(self, condition: str) -> set[int]:
        """The numbers of the deliveries `d` for which it holds."""
        found = self.sql(f"SELECT d.event_id FROM notify_delivery d WHERE {condition}")
        return {int(event[1:]) for (event,) in found}

    def open_attempts(self) -> set[int]:
        """The numbers of deliveries with an attempt on disk whose outcome is not."""
        return self.numbers("EXISTS (SELECT 1 FROM notify_attempt a WHERE a.delivery_id = d.id AND a.outcome IS NULL)")

    def later(self) -> None:
        """Every due time, retry time, lease and deadline has passed, and every gate's time is over."""
        self.sql("UPDATE notify_work SET eligible_at = ?", LONG_AGO)
        self.sql("UPDATE notify_gate SET until = ? WHERE until IS NOT NULL", LONG_AGO)

    def quiet(self) -> None:
        """Wait until no process of the tool is connected to Postgres: a killed one's last COMMIT may still run."""
        if self.url.startswith("sqlite:"):
            return
        until = time.monotonic() + PATIENT
        with Database(self.url) as database:
            while database.one(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'notifyctl' "
                "AND datname = current_database()"
            ):
                assert time.monotonic() < until, "a backend outlives its client"
                time.sleep(0.005)

    # -- judging ------------------------------------------------------------------------------------------------

    def audit(self, server: SmtpServer | Sequence[Mapping[str, Any] | Received]) -> None:
        """What must hold whenever no process runs: nobody got two copies that no mandate allowed, what the ledger calls
        accepted the server has, live deliveries have exactly one work row and settled ones none, and no attempt was
        ever forgotten."""
        messages = server.messages if isinstance(server, SmtpServer) else server
        assert auditor.faults(self.url, messages) == []


def intent(number: int, **more: Any) -> dict[str, Any]:
    """The row that `Site.enqueue` makes of a number."""
    return {
        "event": f"e{number}", "recipient": f"r-{number}", "channel": "email", "template": "note",
        "to": {"email": f"r{number}@{DOMAIN}"}, "vars": {"name": f"Reader {number}"}, **more,
    }  # fmt: skip


def reached(messages: Iterable[Received]) -> list[int]:
    """The numbers of the deliveries that these messages are, in order of arrival."""
    return [int(message.recipient.removesuffix(f"@{DOMAIN}")[1:]) for message in messages]


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list):
        return f"[{', '.join(_toml(one) for one in value)}]"
    return json.dumps(value)
