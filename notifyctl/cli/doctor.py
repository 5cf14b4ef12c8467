"""`doctor`: whether this installation can do its work, and what its transports can prove."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from notifyctl.cli.options import Session, Yes, command, family
from notifyctl.errors import EXIT_OK, ConfigError, InputError, UsageError, worst

if TYPE_CHECKING:
    from notifyctl.ticks.doctor import Check, Doctor
    from notifyctl.ticks.send_test import Aim

app = family()

Transports = Annotated[
    list[str] | None, typer.Option("--transport", metavar="TRANSPORT", help="Only this transport (repeatable).")
]
SendTest = Annotated[
    str | None,
    typer.Option("--send-test", metavar="CHANNEL=ADDRESS", help="Then send one marked test message, past the ledger."),
]
Kinds = Annotated[
    bool, typer.Option("--kinds", help="Say what every kind of transport can do and prove; needs no configuration.")
]


@command(app, "doctor")
def doctor(
    session: Session, transport: Transports = None, send_test: SendTest = None, yes: Yes = False, kinds: Kinds = False
) -> int:
    """Ask configuration, ledger, clock, DKIM keys and transports whether all is well. Sends and writes nothing."""
    if kinds:
        return _kinds(session)
    from notifyctl.ticks.doctor import Doctor, failed

    try:
        config = session.config
    except ConfigError as error:
        if not session.out.json:
            raise
        check = failed("config", session.path.name if session.path else "-", error)
        session.out.document(
            {"healthy": False, "checks": [check.document()], "lanes": [], "transports": [], "test": None}
        )
        return error.exit_code
    unknown = sorted(set(transport or ()) - set(config.transports))
    if unknown:
        raise UsageError(
            f"there is no transport {unknown[0]!r}", hint=f"configured are {', '.join(sorted(config.transports))}"
        )
    target = _agreed(session, send_test, tuple(transport or ()), yes=yes) if send_test is not None else None
    examined = Doctor(config, only=transport or ())
    try:
        examined.examine()
        test, code = _test(session, examined, target) if target is not None else (None, EXIT_OK)
    finally:
        examined.close()
    if session.out.json:
        session.out.document({**examined.document(), "test": test})
    else:
        _say(session, examined, test)
    return worst(examined.code, code)


def _agreed(session: Session, given: str, transports: tuple[str, ...], *, yes: bool) -> Aim:
    """Where the test goes, once a person has agreed that it goes."""
    from notifyctl.ticks import send_test

    target = send_test.aim(session.config, given, transports)
    if yes:
        return target
    if not session.out.interactive:
        raise UsageError("--send-test really sends a message", hint="without a terminal it needs --yes")
    if not session.out.confirm(f"Send a test message through {target.lane.transport} (lane {target.lane.name})?"):
        session.out.note("nothing has been sent")
        raise typer.Abort
    return target


def _test(session: Session, examined: Doctor, target: Aim) -> tuple[dict[str, Any], int]:
    """(the JSON of the test, its exit code). It goes only where the transport let us in."""
    from notifyctl.ticks import send_test

    name = target.lane.transport
    said: dict[str, Any] = {
        "lane": target.lane.name, "transport": name, "outcome": "not_sent", "reason": "", "code": "", "remote_id": None,
    }  # fmt: skip
    transport = examined.opened.get(name)
    if (
        transport is None
        or examined.keys is None
        or not any(one["transport"] == name and one["ok"] for one in examined.transports)
    ):
        return {**said, "reason": "transport_not_usable" if examined.keys else "ledger_not_usable"}, EXIT_OK
    try:
        outcome = send_test.send(session.config, target, transport, examined.keys)
    except (ConfigError, InputError) as error:
        return {**said, "reason": error.code}, error.exit_code
    said |= {"outcome": outcome.kind, "reason": outcome.reason, "code": outcome.code}
    return {**said, "remote_id": next(iter(outcome.remote_ids), None)}, send_test.code(outcome)


def _kinds(session: Session) -> int:
    from notifyctl.transports import capabilities

    if session.out.json:
        declared = {kind: capabilities.document(one) for kind, one in capabilities.declared().items()}
        session.out.document({"kinds": declared})
    else:
        session.out.table(*capabilities.table())
    return EXIT_OK


def _say(session: Session, examined: Doctor, test: dict[str, Any] | None) -> None:
    from notifyctl.transports import capabilities

    out = session.out
    out.table(("", "what", "name", "found"), [(_mark(one), one.what, one.name, one.detail) for one in examined.checks])
    wrong = [one for one in examined.checks if one.code != EXIT_OK]
    for one in wrong:
        out.text(f"\n{one.what} {one.name}: {one.detail}" + (f"\n  {one.hint}" if one.hint else ""))
    for lane in examined.lanes:
        out.text(
            f"\nlane {lane['lane']} ({lane['channel']} by {lane['transport']}, on_ambiguous {lane['on_ambiguous']})"
        )
        out.text(f"  in doubt: {lane['in_doubt']}")
        out.text(f"  receipts: {lane['receipts']}")
    used = {one["kind"] for one in examined.transports}
    if used:
        out.text("\nWhat these kinds of transport can do and prove (all kinds: notifyctl doctor --kinds)\n")
        out.table(*capabilities.table(used))
    if test is not None:
        why = " ".join(part for part in (test["reason"], test["code"]) if part)
        said = [test["outcome"].replace("_", " "), why, f"remote id {test['remote_id']}" if test["remote_id"] else ""]
        out.text(f"\ntest message by {test['transport']}: {', '.join(part for part in said if part)}")
    out.text("\nall is well" if not wrong else f"\n{len(wrong)} finding{'s' if len(wrong) > 1 else ''}")


def _mark(check: Check) -> str:
    return "ok" if check.code == EXIT_OK else "!!"
