"""Who changes something by hand, and why: what all such commands ask for, and the trail keeps."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import typer

from notifyctl.cli.output import Output
from notifyctl.errors import InputError, UsageError

if TYPE_CHECKING:
    from notifyctl.ledger.operate import Refused

MANY = 100  # so many rows may be changed without being asked
MAX_LINE = 1 << 16
SHOWN = 20  # refusals said to a person; --json has them all


def login() -> str:
    """The operator's login name; behind sudo that of the person."""
    name = os.environ.get("SUDO_USER", "")
    if not name:
        import getpass

        try:
            name = getpass.getuser()
        except (KeyError, OSError, ImportError):  # a numeric user without a name, as in containers
            name = f"uid {os.getuid()}"
    return name if name.isprintable() and len(name) <= 100 else f"uid {os.getuid()}"


def stated(reason: str | None) -> str:
    """The reason given; raises UsageError where there is none."""
    if reason is None:
        raise UsageError("--reason is missing", hint='say why in a few words, such as --reason "relay was down"')
    said = reason.strip()
    if not said or not said.isprintable() or len(said) > 500:
        raise UsageError("--reason is not one line of text", hint="1 to 500 printable characters; it is kept for good")
    return said


def text(option: str, value: str) -> str:
    """`value` of an option; raises UsageError for what no text column holds."""
    if not value or not value.isprintable() or len(value) > 1000:
        raise UsageError(f"{option} is not a printable text")
    return value


def confirm(out: Output, question: str, *, yes: bool) -> None:
    """Go on only with --yes or a yes on the terminal. Raises UsageError without a terminal, Abort after a no."""
    if yes:
        return
    if not out.interactive:
        raise UsageError(f"{question} Nothing has been changed", hint="repeat it with --yes, or look first: --dry-run")
    if not out.confirm(question):
        out.note("nothing has been changed")
        raise typer.Abort


def references(given: Sequence[str]) -> list[str]:
    """Ids and idempotency keys as given; `-` stands for those on standard input: plain, or objects with "id"."""
    found: list[str] = []
    for one in given:
        found += _from_stdin() if one == "-" else [text("an id", one)]
    return list(dict.fromkeys(found))


def _from_stdin() -> Iterable[str]:
    if sys.stdin is None:
        raise UsageError("standard input is closed")
    number = 0
    while line := sys.stdin.buffer.readline(MAX_LINE + 1):
        number += 1
        row = "" if len(line) > MAX_LINE else line.decode("utf-8", "replace").removeprefix("\ufeff").strip()
        if row or len(line) > MAX_LINE:
            yield _reference(row, number)


def _reference(row: str, number: int) -> str:
    value: Any = row
    if row.startswith(("{", '"')):
        import json

        try:
            value = json.loads(row)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            value = value.get("id")
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value or not value.isprintable():
        raise InputError(
            f"line {number} of standard input is neither an id nor a JSON object with one; nothing has been changed",
            reason="row_undecodable", field="id", hint='one per line: 42, or {"id": 42, …}',
        )  # fmt: skip
    return value


def resolve(tx: Any, given: Sequence[str]) -> tuple[list[int], list[Refused]]:
    """The deliveries meant by ids and idempotency keys, and those that there are not."""
    from notifyctl.ledger import operate

    keys = operate.by_key(tx, [one for one in given if not is_id(one)])
    wanted = [int(one) if is_id(one) else keys.get(one) for one in given]
    missing = [operate.unknown(one) for one, found in zip(given, wanted, strict=True) if found is None]
    return list(dict.fromkeys(found for found in wanted if found is not None)), missing


def is_id(given: str) -> bool:
    """Whether it is a delivery's number; else it is taken for an idempotency key."""
    return given.isascii() and given.isdigit() and len(given) <= 18


def say_refusals(out: Output, refused: Sequence[Refused]) -> None:
    """The first of them, each with the way out."""
    for one in refused[:SHOWN]:
        state = f" ({one.state})" if one.state else ""
        out.complain(f"delivery {one.id}{state} refused: {one.reason}; {one.hint}")
    if len(refused) > SHOWN:
        out.complain(f"… and {len(refused) - SHOWN} more; --json lists all of them")


def refusals(refused: Iterable[Refused]) -> list[dict[str, Any]]:
    """The same for machines."""
    return [{"id": r.id, "state": r.state, "reason": r.reason, "hint": r.hint} for r in refused]
