"""What an idle tick costs in CPU, as a multiple of an interpreter that does nothing. By hand: it asserts nothing.

    python tests/bench/idle_tick.py [ROUNDS]

Each round runs every command once, interleaved, so that a change of the machine's speed meets all of them; printed
are medians of user + system time, and their ratio to `python -c pass`.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

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


def cpu_seconds(command: list[str], folder: Path) -> float:
    """User and system time of one run of `command`, stdout not a terminal, as under cron."""
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "NOTIFYCTL_CONFIG": str(folder / "notifyctl.toml")}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=folder, env=environ, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(rounds: int) -> None:
    """Measure and print one line per command."""
    tool = [sys.executable, "-m", "notifyctl"]
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "dispatch, idle": [*tool, "dispatch"],
        "poll-receipts, idle": [*tool, "poll-receipts"],
        "reconcile, idle": [*tool, "reconcile"],
        "--version": [*tool, "--version"],
        "--help": [*tool, "--help"],
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "notifyctl.toml").write_text(CONFIG)
        cpu_seconds([*tool, "migrate"], folder)
        times: dict[str, list[float]] = {label: [] for label in commands}
        for _ in range(rounds):
            for label, command in commands.items():
                times[label].append(cpu_seconds(command, folder))
    medians = {label: statistics.median(values) for label, values in times.items()}
    base = medians["python -c pass"]
    for label, median in medians.items():
        print(f"{label:22} {median * 1000:7.1f} ms CPU  {median / base:5.2f} x pass")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
