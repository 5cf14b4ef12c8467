"""A COMMIT that takes its time on the disk or on the server, while its caller goes on with something else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue


class Background:
    """One thread, started when it is first needed, that does one thing at a time for the ledger's owner."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._done: SimpleQueue[BaseException | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def run(self, job: Callable[[], object], meanwhile: Callable[[], bool]) -> None:
        """Do `job` to its end, and call `meanwhile` until then as long as it returns True. Raises what `job` raised."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="ledger", daemon=True)
            self._thread.start()
        self._jobs.put(job)
        try:
            while self._done.empty() and meanwhile():
                pass
        finally:
            trouble = self._done.get()  # also when `meanwhile` failed: nobody else may use the connection before
        if trouble is not None:
            raise trouble

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            try:
                job()
            except BaseException as error:
                self._done.put(error)
            else:
                self._done.put(None)
