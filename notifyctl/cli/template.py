"""`template publish|list|show|preview|diff`: what is sent is pinned to a published version, which never changes."""

from __future__ import annotations

from typing import Annotated

import typer

from notifyctl.cli import template_views
from notifyctl.cli.options import DryRun, Session, command, family
from notifyctl.errors import EXIT_DATA, EXIT_OK, InputError
from notifyctl.model import Template

app = family(no_args_is_help=True, help="Publish, list, show, try out and compare templates.")

Wanted = Annotated[str | None, typer.Argument(metavar="[NAME[@VERSION]]", help="Without it: every new version.")]
Which = Annotated[str, typer.Argument(metavar="NAME[@VERSION]", help="Without a version: the newest.")]


@command(app, "publish")
def publish(session: Session, wanted: Wanted = None, dry_run: DryRun = False) -> int:
    """Publish what is new below templates.path."""
    from notifyctl.compose.templates import check, read_folder
    from notifyctl.ledger import templates

    out, folder = session.out, session.config.templates_path
    found = _select(read_folder(folder), wanted, str(folder))
    errors: list[dict[str, str]] = []
    sound: list[Template] = []
    for template in found:
        try:
            check(template)
            _storable(template)
        except InputError as error:
            errors.append({"template": _label(template), "reason": error.reason, "message": error.message})
        else:
            sound.append(template)
    ledger = session.ledger()
    done = ledger.transact(lambda tx: templates.publish(tx, sound, dry_run=dry_run))
    errors += [
        {
            "template": _label(one.template),
            "reason": "template_conflict",
            "message": f"template {_label(one.template)} is published with other contents; publish a new version",
        }
        for one in done
        if one.verdict == "conflict"
    ]
    published = [_label(one.template) for one in done if one.verdict == "published"]
    unchanged = [_label(one.template) for one in done if one.verdict == "unchanged"]
    if out.json:
        out.document({"dry_run": dry_run, "published": published, "unchanged": unchanged, "errors": errors})
    else:
        for label in published:
            out.text(f"{'would publish' if dry_run else 'published'} {label}")
        if not published and not errors:
            out.text(f"nothing new: {len(unchanged)} already published")
        for fault in errors:
            out.complain(fault["message"])
    return EXIT_DATA if errors else EXIT_OK


@command(app, "list")
def listing(session: Session) -> None:
    """List the published versions."""
    from notifyctl.ledger import templates

    found = session.ledger().read(templates.listing)
    if session.out.json:
        session.out.document(
            [
                {
                    "name": one.name,
                    "version": one.version,
                    "newest": one.newest,
                    "published_at": one.published_at,
                    "parts": [{"locale": locale, "part": part, "sha256": sha} for locale, part, sha in one.parts],
                }
                for one in found
            ]
        )
    elif not found:
        session.out.text("nothing is published: notifyctl template publish")
    else:
        rows = [
            (one.name, f"{one.version}{' (newest)' if one.newest else ''}", one.published_at, _parts(one.parts))
            for one in found
        ]
        session.out.table(("NAME", "VERSION", "PUBLISHED", "PARTS"), rows)


@command(app, "show")
def show(session: Session, which: Which) -> None:
    """Show the sources of one published version."""
    from notifyctl.ledger import templates

    name, _, version = which.partition("@")
    pair = (name, version or None)
    found = session.ledger().read(lambda tx: templates.load_many(tx, [pair])).get(pair)
    if found is None:
        raise InputError(
            f"template {which} is not published",
            reason="template_unknown",
            field="template",
            hint="see what is: notifyctl template list",
        )
    parts = sorted(found.parts.items())
    if session.out.json:
        session.out.document(
            {
                "name": found.name,
                "version": found.version,
                "parts": [
                    {"locale": locale, "part": part, "sha256": templates.digest(body), "body": body}
                    for (locale, part), body in parts
                ],
            }
        )
        return
    for (locale, part), body in parts:
        session.out.text(session.out.bold(f"--- {found.name}@{found.version} {locale + '/' if locale else ''}{part}"))
        session.out.text(body.rstrip("\n"))


command(app, "preview")(template_views.preview)
command(app, "diff")(template_views.diff)


def _select(found: list[Template], wanted: str | None, folder: str) -> list[Template]:
    if wanted is None:
        return found
    name, _, version = wanted.partition("@")
    chosen = [one for one in found if one.name == name and version in ("", one.version)]
    if not chosen:
        raise InputError(
            f"there is no template {wanted} below {folder}",
            reason="template_unknown",
            field="template",
            hint=f"make the folder {name}/{version or '1'} there with subject.txt and body.txt, or sms.txt",
        )
    return chosen


def _storable(template: Template) -> None:
    """Postgres keeps no NUL in a text, and no message has a use for one."""
    if any("\0" in body for body in template.parts.values()):
        raise InputError(f"template {_label(template)} holds a NUL character", reason="template_syntax")


def _label(template: Template) -> str:
    return f"{template.name}@{template.version}"


def _parts(parts: tuple[tuple[str, str, str], ...]) -> str:
    return " ".join(f"{locale}/{part}" if locale else part for locale, part, _ in parts)
