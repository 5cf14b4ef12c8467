"""A bounce mailbox by IMAP (RFC 3501): unseen letters by UID, read without marking them, `\\Seen` after the commit.

The position is `UIDVALIDITY:UID`. A server that gives the folder another UIDVALIDITY has renumbered it: reading begins
anew, and what was settled before is known by its `\\Seen`.
"""

from __future__ import annotations

import imaplib
import re
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from notifyctl.clock import Deadline
from notifyctl.transports.base import Trouble
from notifyctl.transports.bounce_mime import SIZE
from notifyctl.transports.mail_client import Server, extend, quietly, troubles
from notifyctl.transports.mailbox import VOLUME, Batch, Letter, Mailbox

PORTS = (143, 993)
_REFUSALS = (imaplib.IMAP4.error,)


class _Client(imaplib.IMAP4):
    """The standard library's client over a socket of ours."""

    def __init__(self, server: Server, deadline: Deadline) -> None:
        self._server = server
        self._deadline = deadline
        super().__init__(server.host, server.port)

    def _create_socket(self, timeout: float | None) -> socket.socket:  # noqa: ARG002
        return self._server.connect(self._deadline)

    def read(self, size: int) -> bytes:
        if size > SIZE + 4096:  # more than was asked for
            raise Trouble("protocol_error")
        return super().read(size)


class Imap(Mailbox):
    """One folder on one server; the session is kept between batches. `delete`: settled letters are expunged."""

    def __init__(self, server: Server, folder: str, *, delete: bool) -> None:
        self._server = server
        self._folder = folder
        self._delete = delete
        self._client: Any = None
        self._validity = ""
        self._uidplus = False  # RFC 4315; servers may say so after the login only
        self._queue: list[int] = []
        self._queued_from = ""

    def read(self, position: str, limit: int, deadline: Deadline) -> Batch:
        with troubles(_REFUSALS):
            client = self._session(deadline)
            try:
                return self._read(client, position, limit, deadline)
            except BaseException:
                self.close()
                raise

    def settle(self, names: Sequence[str], deadline: Deadline) -> None:
        validity = {name.partition(":")[0] for name in names}
        uids = ",".join(name.partition(":")[2] for name in names)
        with troubles(_REFUSALS):
            client = self._session(deadline)
            try:
                if names and validity == {self._validity}:  # else they are called otherwise by now, and are read again
                    flags = r"(\Seen \Deleted)" if self._delete else r"(\Seen)"
                    self._ask(client, "STORE", uids, "+FLAGS.SILENT", flags)
                    if self._delete and self._uidplus:
                        self._ask(client, "EXPUNGE", uids)  # RFC 4315: these and no one else's
            except BaseException:
                self.close()
                raise

    def check(self, deadline: Deadline) -> Mapping[str, str]:
        with troubles(_REFUSALS):
            client = self._session(deadline)
            return {"unread": str(len(self._unseen(client, 0)))}

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            extend(client.sock, Deadline.after(1.0))
            quietly(client.logout)
            quietly(client.shutdown)

    # -- the session --

    def _session(self, deadline: Deadline) -> Any:
        if self._client is not None:
            extend(self._client.sock, deadline)
            return self._client
        client = _Client(self._server, deadline)
        try:
            if self._server.mode == "starttls":
                self._encrypt(client, deadline)
            self._log_in(client)
            self._uidplus = "UIDPLUS" in b" ".join(client.capability()[1]).decode("ascii", "replace").upper()
            self._open(client)
        except BaseException:
            quietly(client.shutdown)
            raise
        self._client = client
        return client

    def _encrypt(self, client: Any, deadline: Deadline) -> None:
        if "STARTTLS" not in client.capabilities:
            raise Trouble("starttls_missing", config=True)
        client.starttls(self._server.context)
        extend(client.sock, deadline)

    def _log_in(self, client: Any) -> None:
        username, password = self._server.username, self._server.password
        try:
            if "AUTH=PLAIN" in client.capabilities:
                client.authenticate("PLAIN", lambda _: f"\0{username}\0{password}".encode())
            elif "LOGINDISABLED" in client.capabilities:
                raise Trouble("login_unsupported", config=True)
            else:
                if client._simple_command("LOGIN", _quoted(username), _quoted(password))[0] != "OK":
                    raise Trouble("credentials_rejected", config=True)
                client.state = "AUTH"
        except imaplib.IMAP4.abort:
            raise
        except imaplib.IMAP4.error:
            raise Trouble("credentials_rejected", config=True) from None

    def _open(self, client: Any) -> None:
        kind, _ = client.select(_quoted(self._folder))
        if kind != "OK":
            raise Trouble("folder_missing", config=True)
        self._validity = (client.response("UIDVALIDITY")[1] or [b"0"])[0].decode()
        self._queue = []

    # -- letters --

    def _read(self, client: Any, position: str, limit: int, deadline: Deadline) -> Batch:
        validity, _, last = position.partition(":")
        after = int(last) if validity == self._validity and last.isdigit() else 0
        if not self._queue or self._queued_from != position:
            self._queue = self._unseen(client, after)
        letters: list[Letter] = []
        volume = 0
        while self._queue and len(letters) < limit and volume < VOLUME and not deadline.passed:
            after = self._queue.pop(0)
            raw = self._fetch(client, after)
            if raw is not None:
                letters.append(Letter(f"{self._validity}:{after}", raw))
                volume += len(raw)
        self._queued_from = f"{self._validity}:{after}"
        return Batch(tuple(letters), self._queued_from, bool(self._queue))

    def _unseen(self, client: Any, after: int) -> list[int]:
        answer = self._ask(client, "SEARCH", "UID", f"{after + 1}:*", "UNSEEN", "UNDELETED")
        found = [int(one) for line in answer if line for one in line.split()]
        return sorted(uid for uid in found if uid > after)  # n:* is never empty: it always holds the last one

    def _fetch(self, client: Any, uid: int) -> bytes | None:
        """The first bytes of a letter; None where it is gone."""
        answer = self._ask(client, "FETCH", str(uid), f"(UID BODY.PEEK[]<0.{SIZE}>)")
        return next((bytes(one[1]) for one in answer if isinstance(one, tuple) and b"BODY[]" in one[0].upper()), None)

    def _ask(self, client: Any, command: str, *arguments: str) -> list[Any]:
        kind, answer = client.uid(command, *arguments)
        if kind != "OK":
            raise Trouble("protocol_error")
        return list(answer)


def _quoted(text: str) -> str:
    if not text.isascii() or re.search(r"[\x00-\x1f\x7f]", text):
        raise Trouble("login_unsupported", config=True)  # LOGIN knows ASCII only (RFC 3501 6.2.3)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
