"""Threads that compose and own the network, while the run's main thread owns the database."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from queue import Empty, SimpleQueue
from typing import Any

from notifyctl import clock
from notifyctl.ticks.wake import Wake

Job = Callable[[], Any]
STUCK = 0.05  # seconds
PATIENCE = 0.005  # seconds that jobs may wait for a thread while nothing else is to be done


class Workers:
    """Up to `size` threads, started as they are needed. What a job returns is put on `done`.

    There is one until the run has had nothing to do for `PATIENCE` while jobs waited (`grow`): where exchanges take
    less, one does all the work, and many would only take turns at the interpreter's lock, which costs more than that.

    Threads are daemons: a run whose drain is cut short must be able to end while an exchange still hangs (its attempt
    is on disk, so it will be found in doubt). A job must not raise; it returns its failure.
    """

    def __init__(self, name: str, size: int, done: Wake) -> None:
        self._name = name
        self._size = size
        self._done = done
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self.busy = 0  # jobs given and not yet collected; kept by the main thread
        self._given = 0
        self._moved = (0, 0.0)  # how many jobs had been taken up, and when (monotonic) that was first seen

    def give(self, job: Job) -> None:
        """Hand one job over; never blocks."""
        self.busy += 1
        self.hand(job)

    def hand(self, job: Job) -> None:
        """The same with a job that is counted as busy already."""
        self._given += 1
        self._jobs.put(job)
        if not self._threads:
            self._start()

    @property
    def short(self) -> bool:
        """Whether jobs wait and a further thread may be started for them."""
        return len(self._threads) < self._size and not self._jobs.empty()

    def stuck(self, now: float) -> bool:
        """Whether jobs wait and none has been taken up for `STUCK`: also a run that is never idle must notice."""
        taken = self._given - self._jobs.qsize()
        if taken != self._moved[0] or not self.short:
            self._moved = (taken, now)
        return now - self._moved[1] >= STUCK

    def grow(self) -> None:
        """Twice the threads, if so many are needed."""
        for _ in range(min(len(self._threads), self._size - len(self._threads), self._jobs.qsize())):
            self._start()

    def _start(self) -> None:
        thread = threading.Thread(target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        # A signal taken by a worker would not wake the main thread, which alone acts on it; masks are inherited.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
        thread.start()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def close(self) -> None:
        """Let idle threads end; a hanging one is left to the process's exit."""
        for _ in self._threads:
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._done.put(job())


def unstick(pools: Iterable[Workers]) -> None:
    """More threads where jobs have waited for `STUCK`; for a run that may never be idle."""
    now = clock.monotonic()
    for workers in pools:
        if workers.stuck(now):
            workers.grow()


def finished(wake: Wake, pools: Sequence[Workers], pause: float) -> Any:
    """What a worker finishes within `pause` seconds, with more threads where jobs wait meanwhile; else raises Empty."""
    while short := [workers for workers in pools if workers.short]:
        try:
            return wake.get(timeout=min(pause, PATIENCE))
        except Empty:
            if pause <= PATIENCE:
                raise
            pause -= PATIENCE
            for workers in short:
                workers.grow()
    return wake.get(timeout=pause)
