"""Mails into a Maildir and text messages into `sms.jsonl`: a real sink that needs no account.

    PATH/mail/{tmp,new,cur}   one `.eml` per mail, the exact bytes; any mail client opens the folder
    PATH/sms.jsonl            one JSON object per line: key, to, from, text, encoding, segments, at
    PATH/.accepted/DIGEST     what was accepted under which key, kept also when somebody reads or deletes the mail
    PATH/.scripted/DIGEST     how often a `fail` script has been applied: one byte each

Idempotent by key, whatever process submits and wherever it is killed: a mail is complete and on disk before it gets
its name, which follows from its key; a line is written under a lock together with its mark, so that at most the last
line can lack one, and a torn line is removed by the next writer.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from uuid import uuid4

from notifyctl.clock import Deadline
from notifyctl.model import (
    Absent,
    Capabilities,
    Channel,
    Finding,
    Found,
    Mail,
    Message,
    Outcome,
    OutcomeKind,
    Receipt,
    Receipts,
    ReceiptStatus,
    Request,
    Search,
)
from notifyctl.settings import TransportSettings
from notifyctl.transports.base import Checkup, Exchange, Phase, Transport, Trouble
from notifyctl.transports.file_lines import append, last_key, lock, locked, sync
from notifyctl.transports.file_scripts import Script, read_scripts

_TEN_YEARS = 10 * 365 * 86400.0
_MEND = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG}


class Folder(Transport):
    """Kind `file`; its keys are `path` and `fail`."""

    CAPABILITIES = Capabilities(
        channels=frozenset({Channel.EMAIL, Channel.SMS}),
        raw_mime=True,
        replay_window=_TEN_YEARS,
        search=Search.OWN_KEY,
        absence_proves_unsent=True,
        receipts=Receipts.LOOKUP,
        terminal_distinct=True,
        invalid_distinct=True,
        smtputf8=True,
    )

    def __init__(self, settings: TransportSettings) -> None:
        super().__init__(settings)
        path = settings.path("path")
        if path is None:
            raise settings.error("path", "is missing", 'name a folder, for example path = "outbox"')
        self._mail = path / "mail"
        self._lines = path / "sms.jsonl"
        self._accepted = path / ".accepted"
        self._counters = path / ".scripted"
        self._folders = (self._mail / "tmp", self._mail / "new", self._mail / "cur", self._accepted, self._counters)
        self._scripts = read_scripts(settings)
        self._read_mails: tuple[int, frozenset[str]] = (-1, frozenset())

    def prepare(self, message: Message) -> Request:
        """Envelope: channel, destination, Message-ID. Body: the bytes of the mail, or the line without its end."""
        if isinstance(message, Mail):
            return Request(message.key, ("email", message.recipient.address, message.message_id), message.raw)
        line = {
            "key": message.key,
            "to": message.recipient,
            "from": message.sender,
            "text": message.text,
            "encoding": message.encoding,
            "segments": message.segments,
            "at": message.date.astimezone(UTC).isoformat().replace("+00:00", "Z"),
        }
        return Request(message.key, ("sms", message.recipient, ""), json.dumps(line, ensure_ascii=False).encode())

    def submit(
        self,
        requests: Sequence[Request],
        deadline: Deadline,
        validity: float | None,  # noqa: ARG002 - a file keeps
    ) -> list[Outcome]:
        """Write; a key that was accepted before is accepted again and writes nothing."""
        return [self._submit(request, Exchange(deadline)) for request in requests]

    def receipts(self, remote_ids: Iterable[str]) -> dict[str, Receipt]:
        """`delivered` once accepted, at the time of acceptance; `gone` for what this folder does not know."""
        found = {}
        for remote_id in remote_ids:
            try:
                at = datetime.fromtimestamp((self._accepted / remote_id).stat().st_mtime, UTC)
            except (OSError, ValueError, OverflowError):
                found[remote_id] = Receipt(ReceiptStatus.GONE, remote_id)
            else:
                found[remote_id] = Receipt(ReceiptStatus.DELIVERED, remote_id, provider_time=at)
        return found

    def find(
        self,
        key: str,
        recipient: str = "",  # noqa: ARG002
        since: datetime | None = None,  # noqa: ARG002
        until: datetime | None = None,  # noqa: ARG002
    ) -> Finding:
        """Found or Absent, by our key alone. Raises OSError where the folder cannot be read."""
        digest = _digest(key)
        if self._is_accepted(digest):
            return Found(digest)
        if self._has_mail(digest):
            self._mark(digest)
            return Found(digest)
        if self._lines.exists():
            with locked(self._lines, Deadline.after(self.settings.deadline)) as lines:
                if last_key(lines) == key:
                    self._mark(digest)
                    return Found(digest)
        return Found(digest) if self._is_accepted(digest) else Absent()

    def check(self, deadline: Deadline) -> Checkup:
        """Whether the folders can be written, or made where they are missing; makes none."""
        for folder in self._folders:
            while not os.path.lexists(folder) and folder != folder.parent:
                folder = folder.parent
            if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
                return Checkup(Exchange(deadline).outcome(_trouble(PermissionError(errno.EACCES, ""))))
        return Checkup(facts={"mail": str(self._mail), "sms": str(self._lines)})

    # -- one message --

    def _submit(self, request: Request, exchange: Exchange) -> Outcome:
        channel, destination, _ = request.envelope
        digest = _digest(request.key)
        exchange.phase = Phase.WRITING  # there is nothing to open
        try:
            exchange.check()
            self._make_folders()
            if self._is_accepted(digest):
                return Outcome(OutcomeKind.ACCEPTED, remote_ids=(digest,))
            script = self._scripted(destination, exchange.deadline)
            if script is not None and not script.after_accept:
                return script.outcome()
            if channel == "email":
                self._write_mail(digest, request.body, exchange)
            else:
                self._write_line(digest, request, exchange)
        except OSError as problem:
            return exchange.outcome(_trouble(problem))
        except Trouble as trouble:
            return exchange.outcome(trouble)
        return script.outcome() if script is not None else Outcome(OutcomeKind.ACCEPTED, remote_ids=(digest,))

    def _make_folders(self) -> None:
        for folder in self._folders:
            if not folder.is_dir():
                folder.mkdir(parents=True, exist_ok=True)

    def _write_mail(self, digest: str, body: bytes, exchange: Exchange) -> None:
        if not self._has_mail(digest):
            exchange.check()
            draft = self._mail / "tmp" / f"{digest}.{uuid4().hex}"
            try:
                with draft.open("xb") as stream:
                    stream.write(body)
                    stream.flush()
                    os.fsync(stream.fileno())
                exchange.check()
                exchange.phase = Phase.WRITTEN
                draft.rename(self._mail / "new" / f"{digest}.eml")
            except BaseException:
                with suppress(OSError):
                    draft.unlink()
                raise
            sync(self._mail / "new")
        self._mark(digest)

    def _write_line(self, digest: str, request: Request, exchange: Exchange) -> None:
        with locked(self._lines, exchange.deadline) as lines:
            if self._is_accepted(digest):
                return
            if last_key(lines) != request.key:
                exchange.check()
                exchange.phase = Phase.WRITTEN
                append(lines, request.body)
            self._mark(digest)
            sync(self._accepted)  # the mark is all that tells an earlier line's key

    # -- what is known --

    def _is_accepted(self, digest: str) -> bool:
        return (self._accepted / digest).exists()

    def _mark(self, digest: str) -> None:
        os.close(os.open(self._accepted / digest, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666))

    def _has_mail(self, digest: str) -> bool:
        """Whether the mail lies in `new`, or in `cur` where a client moved it (under a name with its flags)."""
        if (self._mail / "new" / f"{digest}.eml").exists():
            return True
        with suppress(FileNotFoundError):
            changed = (self._mail / "cur").stat().st_mtime_ns
            if self._read_mails[0] != changed:
                names = os.listdir(self._mail / "cur")
                self._read_mails = (changed, frozenset(name.partition(".")[0] for name in names))
        return digest in self._read_mails[1]

    def _scripted(self, destination: str, deadline: Deadline) -> Script | None:
        """The first script that matches and is not used up, counted across processes."""
        for script in self._scripts:
            if not script.matches(destination):
                continue
            if script.times is None:
                return script
            counter = os.open(self._counters / script.name, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                lock(counter, deadline)
                if os.fstat(counter).st_size < script.times:
                    os.write(counter, b".")
                    return script
            finally:
                os.close(counter)
        return None


def _digest(key: str) -> str:
    """A file name for any key."""
    return sha256(key.encode()).hexdigest()[:32]


def _trouble(problem: OSError) -> Trouble:
    """What the system's refusal means; ours is the only account there is, so it is never the message's fault."""
    if problem.errno in _MEND:
        return Trouble("folder_not_writable", config=True, kind=OutcomeKind.UNAVAILABLE)
    full = problem.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
    return Trouble("disk_full" if full else "folder_failed", kind=OutcomeKind.UNAVAILABLE)
