"""What an idle tick costs in CPU, as a multiple of an interpreter that does nothing. By hand: it asserts nothing.

    python -m tests.bench.idle_tick [ROUNDS]

Each round runs every command once, interleaved, so that a change of the machine's speed meets all of them; printed
are medians of user + system time, and their ratio to `python -c pass`, or on Postgres (a private cluster, started
here) to a bare psycopg connection with one SELECT 1.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.postgres import Cluster

ROOT = Path(__file__).parents[2]
CONFIG = """instance = "bench"
[ledger]
url = "sqlite:///notifyctl.db"
[transports.out]
kind = "file"
path = "outbox"
[lanes.email]
channel = "email"
transport = "out"
[lanes.sms]
channel = "sms"
transport = "out"
"""


BARE = "import psycopg; psycopg.connect({url!r}, autocommit=True).execute('SELECT 1').fetchone()"
TOOL = [sys.executable, "-m", "notifyctl"]


def cpu_seconds(command: list[str], folder: Path) -> float:
    """User and system time of one run of `command`, stdout not a terminal, as under cron."""
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "NOTIFYCTL_CONFIG": str(folder / "notifyctl.toml")}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=folder, env=environ, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(commands: dict[str, list[str]], config: str, rounds: int) -> None:
    """Print one line per command; the first is what the others are compared with."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "notifyctl.toml").write_text(config)
        cpu_seconds([*TOOL, "migrate"], folder)
        times: dict[str, list[float]] = {label: [] for label in commands}
        for _ in range(rounds):
            for label, command in commands.items():
                times[label].append(cpu_seconds(command, folder))
    medians = {label: statistics.median(values) for label, values in times.items()}
    reference = next(iter(medians))
    for label, median in medians.items():
        print(f"{label:26} {median * 1000:7.1f} ms CPU  {median / medians[reference]:5.2f} x {reference}")


def main(rounds: int) -> None:
    """Measure both databases."""
    ticks = {f"{tick}, idle": [*TOOL, tick] for tick in ("dispatch", "poll-receipts", "reconcile")}
    others = {word: [*TOOL, word] for word in ("--version", "--help")}
    measure({"python -c pass": [sys.executable, "-c", "pass"], **ticks, **others}, CONFIG, rounds)
    cluster = Cluster().start()
    try:
        url = cluster.create_database()
        bare = {"psycopg SELECT 1": [sys.executable, "-c", BARE.format(url=url)]}
        measure({**bare, **ticks}, CONFIG.replace("sqlite:///notifyctl.db", url), rounds)
    finally:
        cluster.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
