"""Random kills under load, on both databases, and an audit: `python -m tests.soak [MINUTES] [--kills N] [--seed S]`.

Dispatchers, enqueuers, receipts runs and a person's requeues work on one backlog against a mail server on loopback that
is slow, refuses, and sometimes accepts without an answer. They are killed with SIGKILL: at a random numbered point, a
random while after their start, or just after the server has accepted something. Ordinary ticks run beside them and
settle the rest at the end; then the independent auditor compares the server's log with the ledger. It stops by itself:
after N kills on each database, or when its minutes are over. Exit code 0: nothing lost, nobody got a second copy
outside the declared window (a person's `--accept-duplicate`).
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from notifyctl.failpoints import POINTS
from notifyctl.ledger import schema
from tests import auditor
from tests.cli.rig import environment
from tests.crash.deaths import TICKS
from tests.postgres import Cluster
from tests.site import PATIENT, Done, Running, Site, intent
from tests.smtp_server import Connection, Rule, SmtpServer

KILLS = 500
AT_ONCE = 3  # processes
EVERY = 20  # cycles between two looks at the ledger
LEAST, MOST = 5, 40  # deliveries enqueued per cycle


@dataclass
class Soak:
    """One database's share."""

    site: Site
    server: SmtpServer
    chance: random.Random
    kills: int = 0
    cycles: int = 0
    enqueued: int = 0
    ended: Counter[str] = field(default_factory=Counter)  # how processes ended that were not killed

    def cycle(self) -> None:
        """Some new deliveries, some processes, and their ends."""
        self.cycles += 1
        self._fill()
        victims = [self._start() for _ in range(self.chance.randint(1, AT_ONCE))]
        for process, kill in victims:
            kill(process)
        for process, _ in victims:
            self._note(process.result(2 * PATIENT))
        if self.chance.random() < 0.7:  # leases and deadlines have passed, or not yet
            self.site.quiet()
            self.site.later()

    def _fill(self) -> None:
        count = self.chance.randint(LEAST, MOST)
        self.site.enqueue(count, first=self.enqueued + 1)
        self.enqueued += count

    def _start(self) -> tuple[Running, Callable[[Running], None]]:
        """A process, and what ends it."""
        arguments = self._command()
        how = self.chance.random()
        if how < 0.4:
            point = f"{self.chance.choice(POINTS)}:{self.chance.randint(1, 8)}"
            return self.site.start(*arguments, env=environment(NOTIFYCTL_FAILPOINT=point)), lambda process: None
        process = self.site.start(*arguments)
        if how < 0.6:
            return process, lambda process: self._kill_after(process, self.chance.uniform(0.1, 1.5))
        if how < 0.9:
            seen, more = self.server.accepted, self.chance.randint(1, 12)
            return process, lambda process: self._kill_when(process, seen + more)
        return process, lambda process: None  # an ordinary tick

    def _command(self) -> list[str]:
        kind = self.chance.random()
        if kind < 0.1:
            return self._enqueue()
        if kind < 0.2 and TICKS:
            return [self.chance.choice(TICKS), "--json"]
        if kind < 0.25:  # somebody decides that two are better than none: the declared window
            return ["requeue", "--state", "ambiguous", "--accept-duplicate", "--all", "--reason", "soak", "--yes"]
        batch, concurrency = self.chance.choice((2, 10, 100)), self.chance.choice((1, 4, 10))
        return ["dispatch", "--json", "--batch", str(batch), "--concurrency", str(concurrency),
                "--limit", str(self.chance.randint(5, 60))]  # fmt: skip

    def _enqueue(self) -> list[str]:
        """The same deliveries as the application has entered, and by another way: all of them are duplicates."""
        first = self.chance.randint(1, self.enqueued)
        file = self.site.path / f"rows-{self.cycles}-{self.chance.randrange(1 << 30)}.ndjson"
        rows = [intent(number) for number in range(first, min(first + 20, self.enqueued) + 1)]
        file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        return ["enqueue", "--from", str(file)]

    def _kill_after(self, process: Running, seconds: float) -> None:
        if process.goes_on_for(seconds):
            process.signal(signal.SIGKILL)

    def _kill_when(self, process: Running, accepted: int) -> None:
        until = time.monotonic() + 3
        while self.server.accepted < accepted and time.monotonic() < until and process.goes_on_for(0.002):
            pass
        self._kill_after(process, self.chance.uniform(0, 0.01))

    def _note(self, done: Done) -> None:
        if done.code == -signal.SIGKILL:
            self.kills += 1
            return
        if done.code not in (0, 3, 65, 75):
            raise AssertionError(f"a process ended with {done.code}: {done.err}")
        self.ended[str(done.code)] += 1

    def audit(self, *, at_rest: bool = False) -> list[str]:
        """What is wrong."""
        self.site.quiet()
        events = (f"e{number}" for number in range(1, self.enqueued + 1))
        return auditor.faults(self.site.url, list(self.server.messages), at_rest=at_rest, events=events)

    def settle(self) -> None:
        """Ordinary ticks until nothing is left to do."""
        self.server.rules.clear()
        idle = 0
        for _ in range(50):
            self.site.later()  # also a gate that the server's last bad moment has closed
            ran = [self.site.run(name, "--json", timeout=10 * PATIENT) for name in ("dispatch", *TICKS)]
            for done in ran:
                assert done.code in (0, 3), done
            worked = any(done.json.get("claimed") or done.json.get("leases_recovered") for done in ran if done.out)
            idle = 0 if worked else idle + 1
            if idle == 2:
                return
        raise AssertionError("ticks go on and on")


def _trouble(chance: random.Random) -> list[Rule]:
    """The server's bad days: each rule hits a few in a hundred."""

    def rarely(percent: float) -> Callable[[Connection], bool]:
        return lambda it: chance.random() < percent / 100

    return [
        Rule("dot", close=True, accept=True, when=rarely(1)),  # accepted, and never said
        Rule("dot", close=True, accept=False, when=rarely(1)),
        Rule("dot", reply="451 4.3.0 later", when=rarely(2)),
        Rule("dot", delay=0.02, reply="250 2.0.0 queued", when=rarely(60)),
        Rule("rcpt", reply="450 4.2.1 busy", when=rarely(1)),
        Rule("mail", close=True, when=rarely(1)),
        Rule("banner", close=True, when=rarely(1)),
    ]


def _run(url: str, folder: Path, *, kills: int, until: float, seed: str) -> bool:
    """One database, to its end; prints its line. Returns whether all is well."""
    began = time.monotonic()
    chance = random.Random(seed)
    with SmtpServer(*_trouble(random.Random(f"{seed} server"))) as server, Site(folder, url, server.port) as site:
        site.configure(relay={"cooldown": "1s"})
        site.publish()
        soak = Soak(site, server, chance)
        wrong: list[str] = []
        while soak.kills < kills and time.monotonic() < until and not wrong:
            soak.cycle()
            if soak.cycles % EVERY == 0:
                wrong = soak.audit()
                print(f"  {soak.kills} kills, {soak.enqueued} deliveries, {server.accepted} accepted", flush=True)
        if not wrong:
            soak.settle()
            wrong = soak.audit(at_rest=True)
        found = auditor.counts(url, server.messages)
        twice = sum("copies" in one or "without a mandate" in one for one in wrong)
        in_doubt = len(site.numbers("d.doubt_since IS NOT NULL"))
        minutes = (time.monotonic() - began) / 60
        print(
            f"{url.partition(':')[0]}: {soak.kills} kills in {soak.cycles} cycles, {soak.enqueued} deliveries: "
            f"{found.get('accepted', 0)} accepted, {in_doubt} in doubt, {found['copies']} copies at the server "
            f"({found['second']} second ones that a mandate allowed); duplicates outside the window: {twice}, "
            f"losses and other faults: {len(wrong) - twice}; {minutes:.1f} minutes, seed {seed}",
            flush=True,
        )
        for one in wrong[:50]:
            print(f"  {one}", flush=True)
        return not wrong


def _sqlite(folder: Path) -> str:
    path = folder / "ledger.db"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    schema.migrate(connection, "sqlite", "test")
    connection.close()
    return f"sqlite:///{path}"


def main() -> int:
    """Both databases, one after the other."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("minutes", nargs="?", type=float, default=60.0, help="at most so long (default 60)")
    parser.add_argument("--kills", type=int, default=KILLS, help=f"on each database (default {KILLS})")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--database", choices=("sqlite", "postgresql"), action="append")
    options = parser.parse_args()
    databases = options.database or ["sqlite", "postgresql"]
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # clean up then too
    began, fine = time.monotonic(), True
    folder = Path(tempfile.mkdtemp(prefix="notifyctl-soak-"))
    cluster: Cluster | None = None
    try:
        for number, name in enumerate(databases, 1):
            until = began + options.minutes * 60 * number / len(databases)
            here = folder / name
            here.mkdir()
            if name == "sqlite":
                url = _sqlite(here)
            else:
                cluster = Cluster().start()
                url = cluster.create_database()
                with cluster.connect(url.rpartition("/")[2]) as connection:
                    schema.migrate(connection, "postgresql", "test")
            fine &= _run(url, here, kills=options.kills, until=until, seed=f"{options.seed}/{name}")
    finally:
        if cluster is not None:
            cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
