"""Templates: read from a folder, checked when published, rendered when enqueued and when sent.

A missing variable refuses, and so does a null one; what may be absent is asked for with `is defined` or `default(…)`.
HTML parts escape by themselves, the others are plain. Names of variables and parts appear in errors, values never.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from notifyctl.compose import missing
from notifyctl.compose.sandbox import compile_part, run_part
from notifyctl.errors import InputError
from notifyctl.model import Channel, Template

if TYPE_CHECKING:
    import jinja2

_PART_OF_FILE = {"subject.txt": "subject", "body.txt": "text", "body.html": "html", "sms.txt": "sms"}
_FILE_OF_PART = {part: file for file, part in _PART_OF_FILE.items()}
_PARTS_OF_CHANNEL = {Channel.EMAIL: ("subject", "text", "html"), Channel.SMS: ("sms",)}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LOCALE = re.compile(r"[A-Za-z]{2,8}(?:[-_][A-Za-z0-9]{1,8})*")
_MAX_SOURCE = 1_000_000  # bytes of one file


@dataclass(frozen=True, slots=True)
class Rendered:
    """The parts of one message in the one locale that was used; what the channel or the template lacks is empty."""

    locale: str
    subject: str = field(default="", repr=False)
    text: str = field(default="", repr=False)
    html: str = field(default="", repr=False)
    sms: str = field(default="", repr=False)


def _where(template: Template, locale: str, part: str) -> str:
    """`NAME@VERSION LOCALE/file`, as the reader finds it in the folder."""
    file = _FILE_OF_PART.get(part, part)
    return f"template {template.name}@{template.version}, {locale + '/' if locale else ''}{file}"


def read_folder(path: Path) -> list[Template]:
    """Read NAME/VERSION/[LOCALE/]{subject.txt, body.txt, body.html, sms.txt}, by name, then version in natural order.

    Names that begin with a dot or end in ~ are editors' own and passed over; anything else unexpected is refused: a
    misspelt file would silently be missing from every mail. Raises InputError(reason="template_unreadable").
    """
    return [
        _read_version(name.name, version)
        for name in _folders(path)
        for version in sorted(_folders(name), key=lambda folder: _natural(folder.name))
    ]


def _natural(text: str) -> list[tuple[int, str]]:
    """Sorts 2 before 10."""
    return [(int(digits or 0), rest) for digits, rest in re.findall(r"([0-9]*)([^0-9]*)", text)]


def _unreadable(path: Path, why: str, hint: str = "") -> InputError:
    return InputError(f"{path}: {why}", reason="template_unreadable", field="template", hint=hint)


def _entries(path: Path) -> list[Path]:
    try:
        found = sorted(path.iterdir())
    except OSError as error:
        raise _unreadable(
            path, f"cannot be read as a folder ({error.strerror})", "templates.path names the folder of templates"
        ) from None
    return [entry for entry in found if not entry.name.startswith(".") and not entry.name.endswith("~")]


def _folders(path: Path) -> list[Path]:
    folders = [entry for entry in _entries(path) if entry.is_dir()]
    for folder in folders:
        if not _NAME.fullmatch(folder.name):
            raise _unreadable(folder, "names and versions are 1 to 64 letters, digits, dots, dashes, underscores")
    return folders


def _read_version(name: str, path: Path) -> Template:
    parts: dict[tuple[str, str], str] = {}
    for entry in _entries(path):
        if not entry.is_dir():
            parts["", _part(entry)] = _read(entry)
            continue
        if not _LOCALE.fullmatch(entry.name):
            raise _unreadable(entry, "a folder here must be named after a locale, like de or de-AT")
        for file in _entries(entry):
            parts[entry.name.replace("_", "-"), _part(file)] = _read(file)
    if not parts:
        raise _unreadable(path, "holds no template file", f"expected {', '.join(_PART_OF_FILE)}")
    return Template(name, path.name, parts)


def _part(file: Path) -> str:
    part = _PART_OF_FILE.get(file.name)
    if part is None:
        raise _unreadable(file, "is not a template file", f"expected {', '.join(_PART_OF_FILE)}")
    return part


def _read(file: Path) -> str:
    try:
        content = file.read_bytes()
        if len(content) > _MAX_SOURCE:
            raise _unreadable(file, f"is larger than {_MAX_SOURCE} bytes")
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as error:
        raise _unreadable(file, f"cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _unreadable(file, f"line {line} is not UTF-8", "save the file as UTF-8") from None


def check(template: Template) -> None:
    """Refuse what could not be rendered for anyone: bad names, syntax errors, a locale without its needed parts.

    Raises InputError with reason template_name, template_syntax or template_part_missing.
    """
    for kind, value in (("name", template.name), ("version", template.version)):
        if not _NAME.fullmatch(value):
            raise InputError(
                f"a template's {kind} is 1 to 64 letters, digits, dots, dashes, underscores; a letter or digit first",
                reason="template_name",
                field=kind,
            )
    for locale, part in template.parts:
        _compile(template, locale, part)
    for locale in {locale for locale, _ in template.parts}:
        has = {part for found, part in template.parts if found == locale}
        if "subject" in has and not has & {"text", "html"}:
            raise _part_missing(template, locale, "has a subject.txt but neither body.txt nor body.html")
        if has & {"text", "html"} and "subject" not in has:
            raise _part_missing(template, locale, "has a body but no subject.txt")


def _part_missing(template: Template, locale: str, why: str) -> InputError:
    in_locale = f", locale {locale}" if locale else ""
    return InputError(
        f"template {template.name}@{template.version}{in_locale} {why}",
        reason="template_part_missing",
        field="template",
        hint="a mail needs subject.txt and body.txt or body.html in one folder, an SMS needs sms.txt",
    )


def _compile(template: Template, locale: str, part: str) -> jinja2.Template:
    where = _where(template, locale, part)
    if part not in _FILE_OF_PART:
        raise InputError(f"{where}: there is no such part", reason="template_syntax", field="template")
    return compile_part(template.parts[locale, part], where, html=part == "html")


class Renderer:
    """Renders templates; compiles each published version once. Safe to share between threads."""

    def __init__(self, default_locale: str) -> None:
        self._default_locale = default_locale
        self._compiled: dict[tuple[str, str], tuple[Template, dict[tuple[str, str], jinja2.Template]]] = {}

    def render(
        self, template: Template, channel: Channel, locale: str | None, variables: Mapping[str, object]
    ) -> Rendered:
        """Render what `channel` needs, all parts in the first locale that has it: de-AT, de, the default, none.

        Raises InputError: template_part_missing, variable_missing (`field` names all that are), template_syntax,
        template_error.
        """
        chosen = self._choose(template, channel, locale)
        given = {name: value for name, value in variables.items() if value is not None}
        wanted = [part for part in _PARTS_OF_CHANNEL[channel] if (chosen, part) in template.parts]
        try:
            parts = {part: self._render_part(template, chosen, part, given) for part in wanted}
        except InputError as error:
            sources = [(template.parts[chosen, part], part == "html") for part in wanted]
            raise _all_missing(error, sources, given) if error.reason == "variable_missing" else error from None
        for part in ("subject", "sms"):  # blank lines around them are the template's layout, not the message
            if part in parts:
                parts[part] = parts[part].strip()
        return Rendered(chosen, **parts)

    def _choose(self, template: Template, channel: Channel, locale: str | None) -> str:
        folders = {found.lower(): found for found, _ in template.parts}
        for tag in chain(_fallbacks(locale or ""), _fallbacks(self._default_locale), ("",)):
            folder = folders.get(tag)
            if folder is None:
                continue
            if channel is Channel.SMS and (folder, "sms") in template.parts:
                return folder
            if (
                channel is Channel.EMAIL
                and (folder, "subject") in template.parts
                and ((folder, "text") in template.parts or (folder, "html") in template.parts)
            ):
                return folder
        raise _part_missing(template, "", f"has nothing for {channel.value} in this locale or the default one")

    def _render_part(self, template: Template, locale: str, part: str, variables: dict[str, object]) -> str:
        known, compiled = self._compiled.get((template.name, template.version), (None, {}))
        if known is not template and (known is None or known.parts != template.parts):
            compiled = {}
            self._compiled[template.name, template.version] = (template, compiled)
        ready = compiled.get((locale, part))
        if ready is None:
            ready = compiled[locale, part] = _compile(template, locale, part)
        return run_part(ready, template.parts[locale, part], variables)


def _all_missing(error: InputError, sources: list[tuple[str, bool]], given: Mapping[str, object]) -> InputError:
    """The refusal for one missing variable, which then names the others too."""
    others = [name for name in missing.names(sources, given) if name != error.field]
    if not others:
        return error
    return InputError(
        f"{error.message}; so {'is' if len(others) == 1 else 'are'} {', '.join(others)}",
        reason=error.reason,
        field=", ".join(filter(None, (error.field, *others))),
        hint=error.hint,
    )


def _fallbacks(locale: str) -> Iterator[str]:
    """`de-at`, then `de`: RFC 4647 3.4 look-up."""
    tag = locale.replace("_", "-").lower()
    while tag:
        yield tag
        tag = tag.rpartition("-")[0]
