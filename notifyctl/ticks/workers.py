"""Threads that compose and own the network, while the run's main thread owns the database."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

Job = Callable[[], Any]


class Workers:
    """Up to `size` threads, started as they are needed. What a job returns is put on `done`.

    Threads are daemons: a run whose drain is cut short must be able to end while an exchange still hangs (its attempt
    is on disk, so it will be found in doubt). A job must not raise; it returns its failure.
    """

    def __init__(self, name: str, size: int, done: SimpleQueue[Any]) -> None:
        self._name = name
        self._size = size
        self._done = done
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self.busy = 0  # jobs given and not yet collected; kept by the main thread

    def give(self, job: Job, *, computes: bool = False) -> None:
        """Hand one job over; never blocks. `computes`: it waits for nothing but the interpreter's lock, so no further
        thread is started for it."""
        self.busy += 1
        if len(self._threads) < min(self.busy, 1 if computes else self._size):
            thread = threading.Thread(target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            # A signal taken by a worker would not wake the main thread, which alone acts on it; masks are inherited.
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
            thread.start()
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self._jobs.put(job)

    def close(self) -> None:
        """Let idle threads end; a hanging one is left to the process's exit."""
        for _ in self._threads:
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._done.put(job())
