"""Where the threads of a run leave what they have finished, and what wakes its main thread."""

from __future__ import annotations

import os
from contextlib import suppress
from queue import SimpleQueue
from typing import Any


class Wake:
    """A queue that may also be waited for beside sockets: while `listening` is set, `put` makes `fd` readable.

    `put` is called by threads and by signal handlers. `get` raises `queue.Empty`.
    """

    def __init__(self) -> None:
        self._items: SimpleQueue[Any] = SimpleQueue()
        self._pipe: tuple[int, int] | None = None
        self.listening = False

    def put(self, item: Any) -> None:
        """Leave something for the main thread."""
        self._items.put(item)
        if self.listening and self._pipe is not None:
            with suppress(BlockingIOError):  # full: it is readable
                os.write(self._pipe[1], b"\0")

    def get(self, timeout: float) -> Any:
        """The next item, which may take `timeout` seconds."""
        return self._items.get(timeout=timeout)

    def get_nowait(self) -> Any:
        """The next item, if there is one."""
        return self._items.get_nowait()

    def qsize(self) -> int:
        """How many items wait."""
        return self._items.qsize()

    @property
    def fd(self) -> int:
        """What to poll; made when it is first asked for."""
        if self._pipe is None:
            self._pipe = os.pipe()
            for end in self._pipe:
                os.set_blocking(end, False)
        return self._pipe[0]

    def heard(self) -> None:
        """Make `fd` unreadable again."""
        with suppress(BlockingIOError):
            os.read(self.fd, 4096)
