r"""A bounce mailbox by POP3 (RFC 1939): letters by UIDL, deleted after the commit where `delete` says so.

POP3 marks nothing as seen. The position names the letters that were read last, newest first, by digests of their
UIDLs: reading goes on behind the newest of them that still is there. Those that were deleted meanwhile had been
settled, so nothing is skipped; where none is left the mailbox is read from its beginning, which changes nothing.
"""

from __future__ import annotations

import hashlib
import poplib
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from notifyctl.clock import Deadline
from notifyctl.transports.base import Trouble
from notifyctl.transports.bounce_mime import SIZE
from notifyctl.transports.mail_client import Server, extend, quietly, troubles
from notifyctl.transports.mailbox import VOLUME, Batch, Letter, Mailbox

PORTS = (110, 995)
_REFUSALS = (poplib.error_proto,)
_TOP = 4000  # lines asked for of a letter that is larger than what is read
_KEPT = 8  # names of earlier batches that a position carries on
_ANSWER = 16 << 20  # bytes of one answer
_LINE = 1 << 20  # bytes of one line: HTML comes in one


class _Client(poplib.POP3):
    """The standard library's client over a socket of ours, with longer lines than its 2,048 bytes."""

    def __init__(self, server: Server, deadline: Deadline) -> None:
        self._server = server
        self._deadline = deadline
        self.room = _ANSWER
        try:
            super().__init__(server.host, server.port)
        except BaseException:
            quietly(self.close)  # the library leaves its socket open where the greeting is none
            raise

    def _create_socket(self, timeout: float | None) -> socket.socket:  # noqa: ARG002
        return self._server.connect(self._deadline)

    def _getline(self) -> tuple[bytes, int]:
        line: bytes = self.file.readline(_LINE)
        self.room -= len(line)
        if not line.endswith(b"\n") or self.room < 0:
            raise poplib.error_proto("-ERR")
        return line.rstrip(b"\r\n"), len(line)


class Pop3(Mailbox):
    """One maildrop on one server."""

    def __init__(self, server: Server, *, delete: bool) -> None:
        self._server = server
        self._delete = delete
        self._client: Any = None
        self._listed: list[tuple[str, str, int]] = []  # (digest of the UIDL, message number, bytes) in their order

    def read(self, position: str, limit: int, deadline: Deadline) -> Batch:
        with troubles(_REFUSALS):
            client = self._session(deadline)
            try:
                return self._read(client, position, limit, deadline)
            except BaseException:
                self._drop()
                raise

    def settle(self, names: Sequence[str], deadline: Deadline) -> None:
        if not self._delete or not names:
            return
        with troubles(_REFUSALS):
            client = self._session(deadline)
            try:
                for digest, number, _ in self._listed:
                    if digest in names:
                        client.dele(number)
                client.quit()  # only now they are deleted (RFC 1939 6)
                self._client = None
            except BaseException:
                self._drop()
                raise

    def check(self, deadline: Deadline) -> Mapping[str, str]:
        with troubles(_REFUSALS):
            self._session(deadline)
            return {"letters": str(len(self._listed))}

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            extend(client.sock, Deadline.after(1.0))
            quietly(client.quit)

    def _drop(self) -> None:
        """Leave without QUIT: what was marked as deleted stays."""
        client, self._client = self._client, None
        if client is not None:
            quietly(client.close)

    def _session(self, deadline: Deadline) -> Any:
        if self._client is not None:
            extend(self._client.sock, deadline)
            return self._client
        client = _Client(self._server, deadline)
        try:
            if self._server.mode == "starttls":
                self._encrypt(client, deadline)
            self._log_in(client)
            sizes = dict(line.split()[:2] for line in client.list()[1])
            pairs = [line.split()[:2] for line in client.uidl()[1]]
            self._listed = [
                (hashlib.sha256(uid).hexdigest()[:12], number.decode("ascii"), int(sizes.get(number, b"0")))
                for number, uid in pairs
            ]
        except BaseException:
            quietly(client.close)
            raise
        self._client = client
        return client

    def _encrypt(self, client: Any, deadline: Deadline) -> None:
        if "STLS" not in client.capa():
            raise Trouble("starttls_missing", config=True)
        client.stls(self._server.context)
        extend(client.sock, deadline)

    def _log_in(self, client: Any) -> None:
        try:
            client.user(self._server.username)
            client.pass_(self._server.password)
        except poplib.error_proto as error:
            if b"[IN-USE]" in bytes(str(error), "utf-8", "replace").upper():  # RFC 2449: another session is open
                raise Trouble("mailbox_locked") from None
            raise Trouble("credentials_rejected", config=True) from None

    def _read(self, client: Any, position: str, limit: int, deadline: Deadline) -> Batch:
        names = [one for one in position.split(",") if one]
        places = {digest: at for at, (digest, _, _) in enumerate(self._listed)}
        present = [name for name in names if name in places]
        at = max((places[name] for name in present), default=-1) + 1
        letters: list[Letter] = []
        volume = 0
        while at < len(self._listed) and len(letters) < limit and volume < VOLUME and not deadline.passed:
            digest, number, size = self._listed[at]
            raw = self._letter(client, number, size)
            letters.append(Letter(digest, raw))
            volume += len(raw)
            at += 1
        now = [letter.name for letter in reversed(letters)]
        return Batch(tuple(letters), ",".join([*now, *present[: _KEPT if now else None]]), at < len(self._listed))

    def _letter(self, client: Any, number: str, size: int) -> bytes:
        client.room = _ANSWER
        lines = client.retr(number)[1] if size <= SIZE else client.top(number, _TOP)[1]
        return b"\r\n".join(lines)[:SIZE]
