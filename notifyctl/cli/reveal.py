"""`--reveal`: addresses in full, for whoever says who they are and leaves a line in the trail of what they saw.

The line is committed before anything is shown (see `ledger.disclosure`): where it cannot be written, nothing is.
Variables, attachments and bodies stay hidden: to know where a message went, nobody needs to read it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from notifyctl.cli import operator

if TYPE_CHECKING:
    from notifyctl.ledger.database import Ledger
    from notifyctl.model import Channel

Reveal = Annotated[
    bool,
    typer.Option("--reveal", help="Show addresses in full; your name is kept in the trail of every delivery shown."),
]
RevealRecipient = Annotated[
    bool,
    typer.Option("--reveal", help="Show addresses in full; your name is kept in the newest delivery's trail."),
]


def leave_trace(ledger: Ledger, deliveries: Iterable[int], command: str) -> None:
    """Record that the addresses of these deliveries are about to be shown. Raises LedgerUnavailable."""
    from notifyctl.ledger import disclosure

    shown, actor = list(deliveries), operator.login()
    ledger.transact(lambda tx: disclosure.reveal(tx, shown, actor=actor, note=f"{command} --reveal"))


def leave_trace_of_recipient(ledger: Ledger, recipient: str, command: str) -> set[Channel]:
    """The same of a recipient's endpoints; returns the channels whose addresses may be shown."""
    from notifyctl.ledger import disclosure

    actor = operator.login()
    return ledger.transact(
        lambda tx: disclosure.reveal_recipient(tx, recipient, actor=actor, note=f"{command} --reveal")
    )


def mask(channel: str, stored: str, *, reveal: bool) -> str:
    """An address as it may be shown."""
    if reveal:
        return stored
    from notifyctl.compose.destinations import mask as hidden
    from notifyctl.model import Channel

    return hidden(Channel(channel), stored)
