"""Debian's dovecot on loopback, with a configuration of its own: the real other end for bounce mailboxes.

    with Dovecot() as server:
        server.deliver(b"From: …")        # into the Maildir of server.user
        ...IMAP at server.imap, POP3 at server.pop3...

Started as the user who runs the tests, or, where that is root, for the mail user `mail` that Debian always has.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
import shutil
import socket
import subprocess
import time
from pathlib import Path
from tempfile import mkdtemp

import pytest

PATIENT = 20.0  # seconds
USER, PASSWORD = "bounces", "pass word \\\"'"

_CONFIG = """
base_dir = {path}/run
state_dir = {path}/state
log_path = {path}/log
protocols = imap pop3
listen = 127.0.0.1
mail_location = maildir:{path}/mail
default_internal_user = {internal}
default_login_user = {login}
default_internal_group = {group}
first_valid_uid = 1
last_valid_uid = 0
first_valid_gid = 0
disable_plaintext_auth = no
auth_mechanisms = plain
auth_failure_delay = 0
mail_max_userip_connections = 100
ssl = {ssl}
{certificate}
passdb {{
  driver = passwd-file
  args = scheme=plain username_format=%u {path}/users
}}
userdb {{
  driver = static
  args = uid={uid} gid={gid} home={path}/home
}}
protocol pop3 {{
  pop3_no_flag_updates = yes
}}
service anvil {{
  chroot =
}}
service imap-login {{
  chroot =
  inet_listener imap {{
    port = {imap}
  }}
  inet_listener imaps {{
    port = {imaps}
  }}
}}
service pop3-login {{
  chroot =
  inet_listener pop3 {{
    port = {pop3}
  }}
  inet_listener pop3s {{
    port = {pop3s}
  }}
}}
service stats {{
  chroot =
}}
service submission-login {{
  chroot =
}}
"""


def need() -> None:
    """Skip where dovecot's IMAP and POP3 servers are not installed."""
    if binary() is None:
        pytest.skip("dovecot-imapd and dovecot-pop3d are not installed")


def binary() -> str | None:
    """Where dovecot is, if both of its servers are there."""
    there = all(Path(f"/usr/lib/dovecot/{one}").exists() for one in ("imap", "pop3"))
    return shutil.which("dovecot", path=f"{os.environ.get('PATH', '')}:/usr/sbin") if there else None


class Dovecot:
    """One server, one user, one Maildir. `pem`: (certificate, key) to offer TLS with."""

    def __init__(self, *, pem: tuple[Path, Path] | None = None) -> None:
        need()
        self.path = Path(mkdtemp(prefix="notifyctl-dovecot-"))  # pytest's own folders are closed to the mail user
        self.user, self.password = USER, PASSWORD
        self.maildir = self.path / "mail"
        self.imap, self.imaps, self.pop3, self.pop3s = _free_ports(4)
        self._number = 0
        root = os.getuid() == 0
        owner = pwd.getpwnam("mail") if root else pwd.getpwuid(os.getuid())
        internal, login = ("dovecot", "dovenull") if root else (owner.pw_name, owner.pw_name)
        group = "dovecot" if root else grp.getgrgid(owner.pw_gid).gr_name
        self._owner = (owner.pw_uid, owner.pw_gid) if root else None
        certificate = f"ssl_cert = <{pem[0]}\nssl_key = <{pem[1]}" if pem else ""
        config = _CONFIG.format(
            path=self.path, internal=internal, login=login, group=group, uid=owner.pw_uid, gid=owner.pw_gid,
            ssl="yes" if pem else "no", certificate=certificate, imap=self.imap,
            imaps=self.imaps if pem else 0, pop3=self.pop3, pop3s=self.pop3s if pem else 0,
        )  # fmt: skip
        (self.path / "dovecot.conf").write_text(config)
        (self.path / "users").write_text(f"{USER}:{{plain}}{PASSWORD}\n")
        for folder in ("mail/new", "mail/cur", "mail/tmp", "home", "state"):
            (self.path / folder).mkdir(parents=True)
        for folder in (self.path, *self.path.rglob("*")):
            folder.chmod(0o755 if folder.is_dir() else 0o644)
            if self._owner and folder.is_dir() and folder != self.path:
                os.chown(folder, *self._owner)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Dovecot:
        program = binary()
        assert program
        arguments = [program, "-F", "-c", str(self.path / "dovecot.conf")]
        self._process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        until = time.monotonic() + PATIENT
        for port in (self.imap, self.pop3):
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    assert self._process.poll() is None, (self._process.communicate()[1], self._log())
                    assert time.monotonic() < until, self._log()
                    time.sleep(0.02)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End it; may be called twice."""
        assert self._process
        self._process.terminate()
        try:
            self._process.wait(PATIENT)
        finally:
            self._process.kill()
            self._process.communicate()
            shutil.rmtree(self.path, ignore_errors=True)

    def deliver(self, *letters: bytes) -> list[Path]:
        """Put letters into `new/` as a mail server does."""
        return [deliver(self.maildir, letter, self._owner, step=1) for letter in letters]

    def renumber(self) -> None:
        """Give the folder another UIDVALIDITY, as after a restore."""
        uids = self.maildir / "dovecot-uidlist"
        lines = uids.read_text()
        uids.write_text(re.sub(r"\bV(\d+)", lambda found: f"V{int(found[1]) + 1000}", lines, count=1))
        for file in self.maildir.glob("dovecot.*"):
            file.unlink()

    def _log(self) -> str:
        log = self.path / "log"
        return log.read_text() if log.exists() else "no log"


_delivered = 0


def deliver(maildir: Path, letter: bytes, owner: tuple[int, int] | None = None, step: int = -1) -> Path:
    """Write a letter to `tmp/` and move it into `new/`; its name puts it before earlier ones, or (`step` 1) behind.

    dovecot gives UIDs in the order of the names.
    """
    global _delivered
    _delivered += 1
    name = f"{1_700_000_000 + step * _delivered}.{os.getpid()}_{_delivered}.host"
    file = maildir / "tmp" / name
    file.write_bytes(letter)
    if owner:
        os.chown(file, *owner)
    return file.rename(maildir / "new" / name)


def maildir(path: Path) -> Path:
    """An empty Maildir."""
    for folder in ("new", "cur", "tmp"):
        (path / folder).mkdir(parents=True)
    return path


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
