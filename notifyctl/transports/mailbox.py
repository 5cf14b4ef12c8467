"""What the bounce mailboxes have in common: letters read in their order from a position on, settled after the commit.

A position is a mailbox's own text, at most some kilobytes, "" at the beginning. What was read before it and is not
settled is never read again, so what nobody understands stays where it is at no further cost.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from notifyctl.clock import Deadline

VOLUME = 16 << 20  # bytes of letters in one batch


@dataclass(frozen=True, slots=True)
class Letter:
    """One mail: its name in the mailbox, and its first bytes (`bounce_mime.SIZE` at most)."""

    name: str
    raw: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Batch:
    """The next letters and the position behind them; `more`: there are further ones."""

    letters: tuple[Letter, ...]
    position: str
    more: bool = False


class Mailbox(ABC):
    """One mailbox; used by one thread at a time. Raises Trouble or OSError."""

    @abstractmethod
    def read(self, position: str, limit: int, deadline: Deadline) -> Batch:
        """Up to `limit` unsettled letters behind `position`. Changes nothing over there."""

    @abstractmethod
    def settle(self, names: Sequence[str], deadline: Deadline) -> None:
        """These letters are done with: marked as seen, or deleted where the configuration says so."""

    def remember(self, names: Sequence[str]) -> None:  # noqa: B027
        """These letters were read and stay: this process need not read them again, whatever the position says."""

    @abstractmethod
    def check(self, deadline: Deadline) -> Mapping[str, str]:
        """What `doctor` shows of it: that it can be opened, and how many letters wait."""

    def close(self) -> None:  # noqa: B027 - a folder keeps nothing open
        """Give back what is kept open. Never raises."""
