"""A file of lines that several processes append to, and that survives a kill at any instruction.

One writer at a time holds the lock. A line cut off by a crash or a full disk is removed by the next writer: it was
never accepted.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from notifyctl.clock import Deadline
from notifyctl.transports.base import Trouble

_TAIL = 1 << 16  # bytes in which the last line must begin: a text message has at most a few KB
_PAUSE = 0.002  # seconds between two tries for the lock


@contextmanager
def locked(path: Path, deadline: Deadline) -> Iterator[int]:
    """The file, open for appending by us alone. Raises Trouble at the deadline, OSError as the system does."""
    new = not path.exists()
    lines = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        lock(lines, deadline)
        if new:
            sync(path.parent)
        start, tail = _tail(lines)
        if tail and not tail.endswith(b"\n"):
            os.ftruncate(lines, start + tail.rfind(b"\n") + 1)
        yield lines
    finally:
        os.close(lines)


def append(lines: int, line: bytes) -> None:
    """Write one line and put it on disk."""
    if os.write(lines, line + b"\n") <= len(line):
        raise OSError(errno.ENOSPC, "the line was written in part only")
    os.fsync(lines)


def last_key(lines: int) -> str | None:
    """The key of the last line, the only one that can lack its mark."""
    with suppress(ValueError, AttributeError):
        key = json.loads(_tail(lines)[1].rstrip(b"\n").rpartition(b"\n")[2]).get("key")
        return key if isinstance(key, str) else None
    return None


def lock(opened: int, deadline: Deadline) -> None:
    """Wait for the file's lock; a holder that was stopped does not hold us beyond the deadline."""
    while True:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if deadline.passed:
                raise Trouble("deadline") from None
            time.sleep(_PAUSE)
        else:
            return


def sync(folder: Path) -> None:
    """Put a folder's new names on disk."""
    opened = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _tail(lines: int) -> tuple[int, bytes]:
    """(offset, bytes) of the end of the file."""
    start = max(0, os.fstat(lines).st_size - _TAIL)
    return start, os.pread(lines, _TAIL, start)
