"""A folder with a configuration, and the command run in it as a real process, as bare as under cron."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CONFIG = """instance = "test"
[ledger]
url = "sqlite:///ledger.db"
patience = "2s"
[transports.out]
kind = "file"
path = "outbox"
from = "Shop <no-reply@example.com>"
[lanes.email]
channel = "email"
transport = "out"
[lanes.bulk]
channel = "email"
transport = "out"
[lanes.sms]
channel = "sms"
transport = "out"
"""


class Folder:
    """One installation; `url` is put in the place of the sample's own."""

    def __init__(self, path: Path, url: str = "sqlite:///ledger.db") -> None:
        self.path = path
        self.config = path / "notifyctl.toml"
        self.configure(CONFIG.replace("sqlite:///ledger.db", url))

    def configure(self, text: str) -> None:
        """Replace the configuration."""
        self.config.write_text(text, encoding="utf-8")

    def template(self, name: str, **parts: str) -> None:
        """Write NAME/VERSION with its parts, `subject="…"` becoming subject.txt."""
        files = {"subject": "subject.txt", "text": "body.txt", "html": "body.html", "sms": "sms.txt"}
        folder = self.path / "templates" / name
        folder.mkdir(parents=True, exist_ok=True)
        for part, body in parts.items():
            (folder / files[part]).write_text(body, encoding="utf-8")

    def run(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run the command with an empty environment but PATH, no terminal and no HOME."""
        options = {"cwd": self.path, "stdin": subprocess.DEVNULL, "timeout": 60, "env": environment(), **options}
        if "stdout" not in options and "stderr" not in options:
            options["capture_output"] = True
        return subprocess.run(command(*arguments), text=True, check=False, **options)

    def json(self, *arguments: str, code: int = 0) -> Any:
        """The JSON document of a command that exits with `code`."""
        done = self.run(*arguments, "--json")
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout)


def command(*arguments: str) -> list[str]:
    """The command line that runs this checkout's notifyctl."""
    return [sys.executable, "-m", "notifyctl", *arguments]


def environment(**more: str) -> dict[str, str]:
    """What `env -i` leaves, and where this checkout is."""
    return {"PATH": os.defpath, "PYTHONPATH": str(ROOT), **more}


def failure(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """The error object that --json leaves as the last line of stderr."""
    error: dict[str, str] = json.loads(done.stderr.splitlines()[-1])["error"]
    assert set(error) == {"code", "message", "hint"}
    return error
