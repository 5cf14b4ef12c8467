"""What all ticks share: the budget of a run, its drain on a signal, and its record."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from notifyctl import clock
from notifyctl.config import Config
from notifyctl.errors import ConfigError, LedgerUnavailable
from notifyctl.failpoints import reach
from notifyctl.keys import Keys
from notifyctl.ledger import runs
from notifyctl.ledger.database import Ledger, Tx
from notifyctl.ticks.wake import Wake

SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SWITCH = 0.0005  # seconds that a thread may wait for the interpreter, where another has work without end
_CYCLES = 20_000  # objects more than before, until cycles among them are looked for


@dataclass(slots=True)
class Run:
    """One invocation of a tick: who it is, what it may use, and whether it has been asked to stop."""

    config: Config
    ledger: Ledger
    command: str
    max_seconds: float = 50.0
    limit: int | None = None
    id: str = field(default_factory=runs.new_id)
    began: float = field(default_factory=clock.monotonic)
    wake: Wake = field(default_factory=Wake)
    signalled: int = 0
    recorded: bool = False
    failure: LedgerUnavailable | ConfigError | None = None  # the ledger is away: nothing is claimed until it is back
    _keys: Keys | None = None

    @property
    def keys(self) -> Keys:
        """The ledger's derived keys, read once."""
        if self._keys is None:
            self._keys = runs.keys(self.ledger)
        return self._keys

    @property
    def elapsed(self) -> float:
        """Seconds since the run began."""
        return clock.monotonic() - self.began

    @property
    def over(self) -> str:
        """Why no more may be claimed: `signal`, `ledger`, `seconds`, or "" while it may."""
        if self.signalled:
            return "signal"
        if self.failure:
            return "ledger"
        return "seconds" if self.elapsed >= self.max_seconds else ""

    def open_record(self, tx: Tx) -> None:
        """Write the run's row, in the first transaction that does something: an idle tick writes nothing."""
        if not self.recorded:
            runs.start(tx, self.id, self.command)

    def close_record(self, exit_code: int, counts: Mapping[str, Any]) -> None:
        """Complete the run's row, if it has one."""
        reach("run.ended")
        if self.recorded:
            self.ledger.transact(lambda tx: runs.finish(tx, self.id, exit_code, counts))
        reach("run.closed")

    @contextmanager
    def draining(self) -> Iterator[None]:
        """SIGTERM or SIGINT once: stop claiming, finish what is in flight, release the rest. Twice: end at once."""

        def stop(number: int, frame: FrameType | None) -> None:
            del frame
            if self.signalled:
                os._exit(128 + number)
            self.signalled = number
            self.wake.put(None)

        gc.freeze()  # rows leave few cycles of objects, and what was imported leaves none
        gc.set_threshold(_CYCLES)
        sys.setswitchinterval(_SWITCH)
        before = {number: signal.signal(number, stop) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
