"""A Maildir on this host (https://cr.yp.to/proto/maildir.html): `new/`, and in `cur/` what no one has seen yet.

Letters are read in the order in which they arrived: by the change time that the file system gives a file when it is
moved into the folder, because the names that mail servers choose have no order among servers. The position stays
behind the present by `_MARGIN`: of two letters that arrive at once, either may appear first.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from notifyctl import clock
from notifyctl.clock import Deadline
from notifyctl.transports.base import Trouble
from notifyctl.transports.bounce_mime import SIZE
from notifyctl.transports.mailbox import VOLUME, Batch, Letter, Mailbox

_MARGIN = 2_000_000_000  # nanoseconds
_DONE = frozenset("ST")  # seen, trashed

Place = tuple[int, str]  # change time in nanoseconds, unique name


class Maildir(Mailbox):
    """The folder `path`; `delete`: settled letters are removed instead of being marked as seen."""

    def __init__(self, path: Path, *, delete: bool) -> None:
        self._path = path
        self._delete = delete
        self._known: set[str] = set()  # to stay, but too fresh to be behind the position
        self._paths: dict[str, Path] = {}  # of the letters of the last batch
        self._queue: deque[tuple[Place, Path]] = deque()
        self._queued_from: str | None = None

    def read(self, position: str, limit: int, deadline: Deadline) -> Batch:
        if self._queued_from != position or not self._queue:
            self._queue = deque(self._waiting(_place(position)))
        letters: list[Letter] = []
        self._paths = {}
        last, volume = _place(position), 0
        while self._queue and len(letters) < limit and volume < VOLUME and not deadline.passed:
            place, path = self._queue.popleft()
            raw = _content(path)
            if raw is not None:
                letters.append(Letter(place[1], raw))
                self._paths[place[1]] = path
                volume += len(raw)
            last = max(last, place)
        last = min(last, (_now() - _MARGIN, ""))
        self._queued_from = f"{last[0]}/{last[1]}" if last > (0, "") else ""
        return Batch(tuple(letters), self._queued_from, bool(self._queue))

    def settle(self, names: Sequence[str], deadline: Deadline) -> None:
        moved = []
        for name in names:
            if deadline.passed:
                raise Trouble("deadline")
            if name not in self._paths or not self._settle(name, self._paths[name]):
                moved.append(name)
        if moved:  # by somebody else, such as an IMAP server that was asked for this folder
            for name, path in self._all():
                if name in moved:
                    self._settle(name, path)

    def _settle(self, name: str, path: Path) -> bool:
        """Whether the letter was still there."""
        try:
            if self._delete:
                path.unlink()
            else:
                flags = "".join(sorted({*_flags(path.name), "S"}))
                path.rename(self._path / "cur" / f"{name}:2,{flags}")
        except FileNotFoundError:
            return False
        except PermissionError:
            raise Trouble("maildir_not_writable", config=True) from None
        return True

    def remember(self, names: Sequence[str]) -> None:
        """Letters that were read and are to stay: not to be read again by this process."""
        self._known.update(names)

    def check(self, deadline: Deadline) -> Mapping[str, str]:  # noqa: ARG002
        return {"unread": str(len(self._waiting((0, ""))))}

    def _waiting(self, after: Place) -> list[tuple[Place, Path]]:
        """The unseen letters behind that place, in their order."""
        if after[0] > _now():
            after = (0, "")  # the clock was set back: what arrives now would stand before the position
        found = []
        for name, path in self._all():
            if name in self._known or _DONE & set(_flags(path.name)):
                continue
            with suppress(FileNotFoundError):
                place = (path.stat().st_ctime_ns, name)
                if place > after:
                    found.append((place, path))
        return sorted(found)

    def _all(self) -> list[tuple[str, Path]]:
        letters = []
        for folder in ("new", "cur"):
            try:
                with os.scandir(self._path / folder) as entries:
                    letters += [(one.name.partition(":2,")[0], Path(one.path)) for one in entries if one.name[0] != "."]
            except (FileNotFoundError, NotADirectoryError):
                raise Trouble("maildir_missing", config=True) from None
            except PermissionError:
                raise Trouble("maildir_not_readable", config=True) from None
        return letters


def _flags(name: str) -> str:
    return name.partition(":2,")[2]


def _content(path: Path) -> bytes | None:
    """The first bytes of a letter; None where it is gone, or is no file that could be read."""
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            return file.read(SIZE)
    except FileNotFoundError:
        return None
    except PermissionError:
        return b""  # it stays, counted as one that nobody understands


def _place(position: str) -> Place:
    number, _, name = position.partition("/")
    return (int(number), name) if number.isdigit() else (0, "")


def _now() -> int:
    return int(clock.wall().timestamp() * 1_000_000_000)
