"""Debian's postfix as a relay on loopback, with a configuration and a queue of its own: it accepts, and bounces later.

    with Postfix(onward=server.port, mailbox=maildir) as relay:
        ...submit to relay.port...

Mail to `bounce.example` goes into the mailbox (`bounces@`, with `+` as the delimiter), all other mail onward to the
server at that port. It is not started as a service, and nothing of the machine's own postfix is touched; its master
must be started by root.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp

import pytest

PATIENT = 30.0  # seconds
_DAEMONS = Path("/usr/lib/postfix/sbin")

_MAIN = """
compatibility_level = 3.6
queue_directory = {path}/queue
data_directory = {path}/data
maillog_file = {path}/log/mail.log
maillog_file_prefixes = {path}/log
command_directory = /usr/sbin
daemon_directory = {daemons}
mail_owner = postfix
setgid_group = postdrop
myhostname = relay.shop.example
mydestination =
inet_interfaces = 127.0.0.1
inet_protocols = ipv4
mynetworks = 127.0.0.0/8
smtpd_recipient_restrictions = permit_mynetworks, reject
smtpd_relay_restrictions = permit_mynetworks, reject
smtp_host_lookup = native
disable_dns_lookups = yes
relayhost = [127.0.0.1]:{onward}
recipient_delimiter = +
virtual_mailbox_domains = bounce.example
virtual_mailbox_base = {mailbox}
virtual_mailbox_maps = inline:{{ bounces@bounce.example=./ }}
virtual_uid_maps = static:{uid}
virtual_gid_maps = static:{gid}
virtual_minimum_uid = 1
alias_maps =
alias_database =
"""

_MASTER = """
127.0.0.1:{port} inet n - n - - smtpd
cleanup unix n - n - 0 cleanup
qmgr unix n - n 300 1 qmgr
rewrite unix - - n - - trivial-rewrite
bounce unix - - n - 0 bounce
defer unix - - n - 0 bounce
trace unix - - n - 0 bounce
smtp unix - - n - - smtp
error unix - - n - - error
retry unix - - n - - error
virtual unix - n n - - virtual
anvil unix - - n - 1 anvil
proxymap unix - - n - - proxymap
flush unix n - n 1000? 0 flush
tlsmgr unix - - n 1000? 1 tlsmgr
scache unix - - n - 1 scache
postlog unix-dgram n - n - 1 postlogd
"""


def need() -> None:
    """Skip where postfix cannot be started."""
    if not (_DAEMONS / "master").exists():
        pytest.skip("postfix is not installed")
    if os.getuid() != 0:
        pytest.skip("postfix is started by root only")


class Postfix:
    """One relay; `mailbox` is a Maildir that belongs to Debian's user `mail`."""

    def __init__(self, *, onward: int, mailbox: Path) -> None:
        need()
        self.path = Path(mkdtemp(prefix="notifyctl-postfix-"))  # pytest's own folders are closed to its users
        self.path.chmod(0o755)
        owner = pwd.getpwnam("mail")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        for folder in ("conf", "queue", "data", "log"):
            (self.path / folder).mkdir(parents=True)
        shutil.chown(self.path / "data", "postfix")
        config = _MAIN.format(
            path=self.path, daemons=_DAEMONS, onward=onward, mailbox=mailbox, uid=owner.pw_uid, gid=owner.pw_gid
        )
        (self.path / "conf/main.cf").write_text(config)
        (self.path / "conf/master.cf").write_text(_MASTER.format(port=self.port))
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Postfix:
        config = str(self.path / "conf")
        made = subprocess.run(["/usr/sbin/postfix", "-c", config, "check"], capture_output=True, check=False)
        assert made.returncode == 0, made.stderr
        self._process = subprocess.Popen(
            [str(_DAEMONS / "master"), "-c", config, "-s"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        until = time.monotonic() + PATIENT
        while not self._answers():
            assert self._process.poll() is None, (self._process.communicate()[0], self.log())
            assert time.monotonic() < until, self.log()
            time.sleep(0.02)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process
        self._process.terminate()
        try:
            self._process.wait(PATIENT)
        finally:
            self._process.kill()
            self._process.communicate()
            shutil.rmtree(self.path, ignore_errors=True)

    def _answers(self) -> bool:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            return True
        return False

    def log(self) -> str:
        """What it wrote about its work."""
        log = self.path / "log/mail.log"
        return log.read_text(errors="replace") if log.exists() else "no log"
