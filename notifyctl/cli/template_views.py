"""`template preview|diff`: what would be sent, and what differs, before anything is published or enqueued.

Both only read. From the folder alone no ledger is opened, so that a template can be written before there is one.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from notifyctl import clock
from notifyctl.cli import register as registering
from notifyctl.cli.enqueue import parse_variables
from notifyctl.cli.options import Session
from notifyctl.errors import InputError, UsageError
from notifyctl.model import Channel, Sms, Template

if TYPE_CHECKING:
    from notifyctl.config import Config
    from notifyctl.model import Mail

PUBLISHED, FOLDER = "published", "folder"
# Nobody is written to: any valid sender and recipient serve to compose the message.
_ADDRESS = {Channel.EMAIL: "someone@example.com", Channel.SMS: "+12025550123"}

Which = Annotated[str, typer.Argument(metavar="NAME[@VERSION]", help="Without a version: the newest.")]
Other = Annotated[
    str | None, typer.Argument(metavar="[NAME[@VERSION]]", help="Without it: the same version in the folder.")
]
Locale = Annotated[str | None, typer.Option("--locale", metavar="LOCALE", help="Falls back de-AT, de, the default.")]
Var = Annotated[list[str] | None, typer.Option("--var", metavar="K=V", help="A template variable (repeatable).")]
Variables = Annotated[str | None, typer.Option("--vars", metavar="JSON|@FILE", help="All variables as one object.")]
From = Annotated[
    str, typer.Option("--source", metavar="SOURCE", help="published, or folder: what lies below templates.path.")
]
OtherFrom = Annotated[
    str | None,
    typer.Option("--source", metavar="SOURCE", help="Where the second one is taken from: published or folder."),
]


def preview(
    session: Session,
    which: Which,
    channel: registering.OnChannel = None,
    locale: Locale = None,
    var: Var = None,
    variables: Variables = None,
    source: From = PUBLISHED,
) -> None:
    """Show what would be sent; nothing is written. Missing variables are all named."""
    on = registering.one_channel(channel)
    if on is None:
        raise UsageError("--channel is missing", hint="email or sms")
    given = parse_variables(var or [], variables)
    template = _find(session, which, _source(source))
    message = _composed(session.config, template, on, locale, given)
    out, is_sms = session.out, isinstance(message, Sms)
    sms = {"encoding": message.encoding, "segments": message.segments} if isinstance(message, Sms) else None
    subject = None if isinstance(message, Sms) else message.subject
    html = None if isinstance(message, Sms) else message.html or None
    if out.json:
        out.document(
            {
                "name": template.name, "version": template.version, "source": source, "channel": on,
                "locale": message.locale, "subject": subject, "text": message.text or None, "html": html, "sms": sms,
            }
        )  # fmt: skip
        return
    where = f"{template.name}@{template.version}{f', locale {message.locale}' if message.locale else ''} ({source})"
    out.text(out.bold(where))
    if subject is not None:
        out.text(f"Subject: {subject}")
    for part, body in (("sms" if is_sms else "text", message.text), ("html", html)):
        if body:
            out.text(out.bold(f"--- {part}"))
            out.text(body.rstrip("\n"))
    if sms:
        out.text(out.bold("---"))
        out.text(f"{sms['segments']} segment{'s' if sms['segments'] != 1 else ''}, {sms['encoding']}")


def diff(session: Session, which: Which, other: Other = None, source: OtherFrom = None) -> None:
    """Show what differs between two versions, or between a published one and the folder."""
    if other is None and source == PUBLISHED:
        raise UsageError("a second NAME@VERSION is missing", hint="with one alone, it is compared with the folder's")
    there = _source(source or (FOLDER if other is None else PUBLISHED))
    old = _find(session, which, PUBLISHED)
    new = _find(session, other or _label(old), there)
    changes = [
        {"locale": locale, "part": part, "diff": text}
        for locale, part in sorted(old.parts.keys() | new.parts.keys())
        if (text := _unified(old, new, (locale, part), there))
    ]
    if session.out.json:
        document = {"from": _label(old), "to": _label(new), "source": there, "same": not changes, "parts": changes}
        session.out.document(document)
    elif not changes:
        session.out.text(f"no difference: {_label(old)} and {_label(new)} ({there})")
    for change in changes if not session.out.json else ():
        for line in change["diff"].rstrip("\n").split("\n"):
            session.out.text(session.out.bold(line) if line.startswith(("---", "+++")) else line)


def _composed(
    config: Config, template: Template, channel: Channel, locale: str | None, variables: dict[str, object]
) -> Mail | Sms:
    """As the channel's own lane would send it, limits included; where there is no such lane, without limits."""
    from notifyctl.compose import message
    from notifyctl.compose.templates import Renderer

    lane = config.lanes.get(config.lane_for(channel))
    if lane is not None and lane.channel is not channel:
        lane = None
    return message.compose(
        channel=channel, key="preview", template=template, renderer=Renderer(config.default_locale), locale=locale,
        variables=variables, sender=_ADDRESS[channel], recipient=_ADDRESS[channel], reply_to=None,
        message_id="<preview@example.com>", date=clock.wall(),
        max_bytes=lane.max_bytes if lane else 0, max_segments=lane.max_segments if lane else 0,
        transliterate=bool(lane and lane.transliterate),
    )  # fmt: skip


def _source(given: str) -> str:
    if given not in (PUBLISHED, FOLDER):
        raise UsageError(f"--source is {given!r}; it may be published or folder")
    return given


def _find(session: Session, which: str, source: str) -> Template:
    """The version meant. Raises InputError saying where there is none."""
    name, _, version = which.partition("@")
    if source == FOLDER:
        return in_folder(session.config.templates_path, name, version)
    from notifyctl.ledger import templates

    pair = (name, version or None)
    ledger = session.ledger()
    try:
        found = ledger.read(lambda tx: templates.load_many(tx, [pair])).get(pair)
    finally:
        ledger.close()
    if found is None:
        raise InputError(
            f"template {which} is not published", reason="template_unknown", field="template",
            hint="see what is: notifyctl template list; what is only in the folder: --source folder",
        )  # fmt: skip
    return found


def in_folder(path: Path, name: str, version: str) -> Template:
    """The version (empty: the highest) of a template below `path`, fit to be published."""
    from notifyctl.compose.templates import check, read_folder

    chosen = [one for one in read_folder(path) if one.name == name and version in ("", one.version)]
    if not chosen:
        wanted = f"{name}@{version}" if version else name
        raise InputError(
            f"there is no template {wanted} below {path}", reason="template_unknown", field="template",
            hint=f"make the folder {name}/{version or '1'} there with subject.txt and body.txt, or sms.txt",
        )  # fmt: skip
    check(chosen[-1])
    return chosen[-1]


def _unified(old: Template, new: Template, key: tuple[str, str], there: str) -> str:
    """The unified diff of one part; empty where nothing differs. A part that one lacks stands against nothing."""
    from difflib import unified_diff

    locale, part = key
    file = f"{locale + '/' if locale else ''}{part}"
    before, after = (
        f"{_label(one)}/{file} ({source})" if key in one.parts else "/dev/null"
        for one, source in ((old, PUBLISHED), (new, there))
    )
    lines = unified_diff(_lines(old.parts.get(key)), _lines(new.parts.get(key)), before, after)
    found = "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
    if not found and (key in old.parts) != (key in new.parts):  # an empty file came or went
        return f"--- {before}\n+++ {after}\n"
    return found


def _lines(body: str | None) -> list[str]:
    """Lines as a text file has them: only a newline ends one."""
    return re.findall(r"[^\n]*\n|[^\n]+", body or "")


def _label(template: Template) -> str:
    return f"{template.name}@{template.version}"
