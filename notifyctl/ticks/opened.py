"""The transports of a run that asks and does not send: each is opened when it is first needed."""

from __future__ import annotations

from notifyctl.errors import ConfigError
from notifyctl.ticks.run import Run
from notifyctl.transports.base import Transport
from notifyctl.transports.registry import open_transport


class Opened:
    """`transports` by name, and `faults`: those that cannot be opened, whose rows wait."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.transports: dict[str, Transport] = {}
        self.faults: dict[str, ConfigError] = {}

    def get(self, name: str) -> Transport | None:
        """The open transport of this name; None where it cannot be opened or is not configured any more."""
        settings = self._run.config.transports.get(name)
        if name not in self.transports and name not in self.faults and settings is not None:
            try:
                self.transports[name] = open_transport(settings, self._run.keys.return_path)
            except ConfigError as error:
                self.faults[name] = error
        return self.transports.get(name)

    def close(self) -> None:
        """Give back what they keep open."""
        for transport in self.transports.values():
            transport.close()
