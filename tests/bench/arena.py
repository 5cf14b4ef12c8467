"""What the benchmarks share: one installation with realistic mail, a sink, the peers' interpreter, measured processes.

Everything runs on loopback in a temporary folder and is bounded. The sink is postfix's smtp-sink (Debian: package
`postfix`); the peers live in a virtual environment below ~/.cache/notifyctl-bench, made by the first run.
"""

from __future__ import annotations

import csv
import os
import shutil
import socket
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.compose import keys
from tests.postgres import Cluster

ROOT = Path(__file__).parents[2]
PEERS = Path.home() / ".cache" / "notifyctl-bench" / "peers"
PACKAGES = ("django>=5.2,<5.3", "django-post_office==3.12.0", "django-mailer==2.3.2", "psycopg[binary]>=3.2")
PATIENCE = 600  # seconds that one measured process may take at most

PROSE = (
    "Everything in it was packed by hand this morning and handed to the carrier, who brings it to your door.",
    "You need not be at home: it fits through the letter box, or a neighbour takes it for you.",
    "If something is missing or broken, answer this mail within thirty days; we send it again without a question.",
    "What you no longer want goes back free of charge; the label lies in the box, and any post office takes it.",
    "Our workshop in the old town is open on weekdays from nine to six, and we are glad to see you there.",
)
PARTS = {
    "subject.txt": "Your order {{ order }} is on its way",
    "body.txt": "Dear {{ name }},\n\nthank you for your order {{ order }} of {{ day }}.\n\n"
    + "".join(f"{line}\n" for line in PROSE * 4)
    + "\nIn total {{ total }}. Follow it: https://shop.example/orders/{{ order }}\n\nYour shop\n",
    "body.html": "<html><body><p>Dear {{ name }},</p><p>thank you for your order {{ order }} of {{ day }}.</p>\n"
    + "".join(f"<p>{line}</p>\n" for line in PROSE * 4)
    + '<p>In total <b>{{ total }}</b>. <a href="https://shop.example/orders/{{ order }}">Follow it</a></p>'
    "</body></html>\n",
}


@dataclass(frozen=True)
class Spent:
    """What one process took: seconds of wall clock and of CPU (user and system), and peak memory in MB."""

    wall: float
    cpu: float
    rss: float
    out: str


def spend(command: Sequence[str], folder: Path, **environ: str) -> Spent:
    """Run one process to its end and say what it took, start-up included. Raises RuntimeError when it fails."""
    env = {"PATH": os.environ["PATH"], "HOME": str(Path.home()), "PYTHONPATH": str(ROOT), **environ}
    with (folder / "out").open("w+") as out, (folder / "err").open("w+") as err:
        began = time.monotonic()
        process = subprocess.Popen(command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.monotonic() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        if process.returncode:
            raise RuntimeError(
                f"{command[:4]} ended with {process.returncode}: {out.read()[-2000:]}{err.read()[-2000:]}"
            )
        return Spent(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, out.read())


def tool(*arguments: str) -> list[str]:
    """Our own command, as cron starts it."""
    return [sys.executable, "-m", "notifyctl", *arguments]


def peer(database: str, port: int, *arguments: str) -> list[str]:
    """A command of `peer.py`; the first call may install the peers."""
    python = PEERS / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(PEERS)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    return [str(python), str(Path(__file__).with_name("peer.py")), database, str(port), *arguments]


class Sink:
    """A real SMTP server that takes everything and keeps nothing."""

    def __enter__(self) -> Sink:
        program = shutil.which("smtp-sink", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
        if program is None:
            sys.exit("smtp-sink is missing: apt-get install postfix")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        user = ["-u", "nobody"] if os.geteuid() == 0 else []
        self._process = subprocess.Popen([program, *user, f"127.0.0.1:{self.port}", "1000"])
        for _ in range(100):
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                break
            except OSError:
                time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()


def write_rows(file: Path, count: int) -> None:
    """`rows.csv`: orders of `count` different customers."""
    with file.open("w", newline="") as target:
        writer = csv.writer(target)
        writer.writerow(["event", "recipient", "channel", "template", "to.email", "vars.name", "vars.order",
                         "vars.day", "vars.total"])  # fmt: skip
        for n in range(count):
            writer.writerow([f"order-{n}:shipped", f"customer-{n}", "email", "order", f"customer{n}@rcpt.example",
                             f"Jane Doe {n}", 1_000_000 + n, "2 March 2026", f"EUR {n % 900}.50"])  # fmt: skip


class Installation:
    """A folder with configuration, template and rows; `cluster` None: SQLite."""

    def __init__(self, folder: Path, port: int, cluster: Cluster | None = None, *, dkim: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.port, self.cluster, self.dkim = folder, port, cluster, dkim
        self.rows = folder / "rows.csv"
        template = folder / "templates" / "order" / "1"
        template.mkdir(parents=True, exist_ok=True)
        for name, text in PARTS.items():
            (template / name).write_text(text)
        self._relay: dict[str, Any] = {"kind": "smtp", "host": "127.0.0.1", "port": port,
                                       "from": "Shop <no-reply@shop.example>"}  # fmt: skip
        if dkim:
            self._relay["dkim"] = keys.table(folder, "rsa")
        self._bases: dict[str, str] = {}

    def empty(self) -> None:
        """A new ledger of our own, migrated, with the template published."""
        self.configure(self.new("ours"))
        for arguments in (("migrate",), ("template", "publish")):
            spend(tool(*arguments), self.folder)

    def configure(self, database: str, extra: str = "") -> None:
        """Write notifyctl.toml for this ledger."""
        url = database if "://" in database else f"sqlite:///{database}"
        relay = "\n".join(f"{key} = {_toml(value)}" for key, value in self._relay.items())
        (self.folder / "notifyctl.toml").write_text(
            f'instance = "bench"\n{extra}\n[ledger]\nurl = "{url}"\n[transports.relay]\n{relay}\n'
            f'[lanes.email]\nchannel = "email"\ntransport = "relay"\n'
        )

    def new(self, name: str, copy_of: str = "") -> str:
        """A new database `name`, empty or a copy of the database named `copy_of`; returns its address."""
        if self.cluster is None:
            path = self.folder / f"{name}.db"
            for old in self.folder.glob(f"{name}.db*"):
                old.unlink()
            if copy_of:
                shutil.copyfile(self.folder / f"{copy_of}.db", path)
            return str(path)
        self.cluster.drop_database(self.cluster.url(name))
        return self.cluster.create_database(copy_of or "template0", name)

    def count(self, database: str, sql: str) -> int:
        """The number that a statement gives."""
        if self.cluster is None:
            connection: Any = sqlite3.connect(database)
        else:
            connection = self.cluster.connect(database.rpartition("/")[2])
        try:
            return int(connection.execute(sql).fetchone()[0])
        finally:
            connection.close()


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + " }"
    return str(value) if isinstance(value, int) else f'"{value}"'


def median(values: Iterable[float]) -> float:
    """The median."""
    return statistics.median(values)
