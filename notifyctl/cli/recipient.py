"""`recipient set|show|erase`: a recipient's addresses, and what else is known of them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from notifyctl.cli import operator
from notifyctl.cli import register as registering
from notifyctl.cli.enqueue import parse_addresses
from notifyctl.cli.options import DryRun, Session, Yes, command, family
from notifyctl.cli.reveal import RevealRecipient, leave_trace_of_recipient, mask
from notifyctl.errors import EXIT_OK, EXIT_TEMPORARY, UsageError

app = family(no_args_is_help=True, help="Set, show and erase recipients' addresses.")

Who = Annotated[str, typer.Argument(metavar="RECIPIENT", help="The reference to the person.")]
To = Annotated[
    list[str] | None, typer.Option("--to", metavar="CHANNEL=ADDRESS", help="The address from now on (repeatable).")
]


@command(app, "set")
def set_(session: Session, recipient: Who, to: To = None, dry_run: DryRun = False) -> int:
    """Set a recipient's address on a channel; earlier ones stay in its history."""
    addresses = parse_addresses(to or [])
    if not addresses:
        raise UsageError("--to is missing", hint="such as --to email=ada@example.com")
    with registering.register(session, dry_run=dry_run) as book:
        changed = book.register(recipient, addresses)
    if session.out.json:
        document = {"dry_run": dry_run, "recipient": recipient, "set": sorted(changed)}
        session.out.document({**document, "unchanged": sorted(addresses.keys() - changed)})
        return EXIT_OK
    for channel in addresses:
        would = "would be set" if dry_run else "set"
        session.out.text(f"{channel}: {would if channel in changed else 'was so already'}")
    return EXIT_OK


@command(app, "show")
def show(session: Session, recipient: Who, reveal: RevealRecipient = False) -> int:
    """Show a recipient's addresses (masked), suppressions and consent."""
    from notifyctl.ledger import people

    who = operator.text("RECIPIENT", recipient)
    ledger = session.ledger()
    try:
        traced = leave_trace_of_recipient(ledger, who, "recipient show") if reveal else set()
        endpoints, suppressions, consents = ledger.read(
            lambda tx: (people.endpoints(tx, who), people.suppressions(tx, who), people.consents(tx, who))
        )
    finally:
        ledger.close()
    shown: list[dict[str, Any]] = [
        {"channel": one.channel,
         "address": mask(one.channel, one.address, reveal=one.channel in traced) if one.address else "erased",
         "current": one.current, "at": one.at, "actor": one.actor}
        for one in endpoints
    ]  # fmt: skip
    for channel in sorted({one.channel for one in endpoints} - traced) if reveal else ():
        session.out.note(f"{channel}: still masked: there is no delivery whose trail could keep that it was shown")
    if session.out.json:
        session.out.document(
            {"recipient": who, "endpoints": shown, "suppressions": suppressions, "consents": consents}
        )  # fmt: skip
        return EXIT_OK
    columns = {"CHANNEL": "channel", "ADDRESS": "address", "CURRENT": "current", "SINCE": "at", "BY": "actor"}
    registering.listed(session, shown, columns, "no address is known")
    for one in suppressions:
        where = "this address" if one["scope"] == "address" else "all of it"
        session.out.text(f"suppressed on {one['channel']} ({where}): {one['reason']}")
    for one in consents:
        session.out.text(f"{one['topic']} on {one['channel']}: {'granted' if one['granted'] else 'revoked'}")
    return EXIT_OK


@command(app, "erase")
def erase(
    session: Session,
    recipient: Who,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why; kept in the trail.")
    ] = "asked to be forgotten",
    dry_run: DryRun = False,
    yes: Yes = False,
) -> int:
    """Erase a recipient's addresses and all that was said to them; withdraw what has not begun. It cannot be undone."""
    from notifyctl.ledger import runs
    from notifyctl.ledger.operate import Action
    from notifyctl.model import State
    from notifyctl.ticks.operate import Operator

    who, note = operator.text("RECIPIENT", recipient), operator.stated(reason)
    ledger = session.ledger()
    try:
        keys = runs.keys(ledger)
        action = Action(operator.login(), note, goal=State.SUPPRESSED)
        if not dry_run and session.out.interactive:
            would = Operator(session.config, ledger, keys, dry_run=True).erase(who, action)
            operator.confirm(session.out, f"{would.emptied} deliveries would be emptied for good.", yes=yes)
        done = Operator(session.config, ledger, keys, dry_run=dry_run).erase(who, action)
    finally:
        ledger.close()
    if session.out.json:
        session.out.document(
            {"dry_run": dry_run, "recipient": who, "addresses": done.addresses, "emptied": done.emptied,
             "withdrawn": done.withdrawn, "left": done.left}
        )  # fmt: skip
    else:
        would_be = "would be " if dry_run else ""
        session.out.text(
            f"{done.addresses} addresses and {done.emptied} deliveries {would_be}erased, {done.withdrawn} withdrawn"
        )
    if done.left:
        session.out.complain(f"{done.left} are being sent at this moment and are left; erase again in a minute")
    return EXIT_TEMPORARY if done.left else EXIT_OK
