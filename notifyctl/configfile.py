"""The configuration file: found, read and checked, as plain values.

An idle tick reads the configuration too, and a bad one must be exit 78 then as well; so this module imports neither
`model` nor `dataclasses`, which would cost more than everything else such a tick does. `config` makes the typed form.
The keys and their checks are in `configkeys`. Errors name file, dotted key and what to do; they never quote a secret.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from notifyctl.configkeys import LANE, TOPIC, TRANSPORT, Bad, Keys, anything, either, kind_of, top
from notifyctl.errors import ConfigError

Document = dict[str, Any]

NOTHING: Mapping[str, str] = {}
SECRET_FORMS = ("", "_env", "_file", "_command")
ENVIRONMENT = {
    "NOTIFYCTL_LEDGER_URL": ("ledger", "url"),
    "NOTIFYCTL_LEDGER_PATIENCE": ("ledger", "patience"),
    "NOTIFYCTL_REGION": ("region",),
    "NOTIFYCTL_TEMPLATES_PATH": ("templates", "path"),
    "NOTIFYCTL_OBJECTS_ROOT": ("objects", "root"),
    "NOTIFYCTL_DNS_RESOLVER": ("dns", "resolver"),
    "NOTIFYCTL_LOG_LEVEL": ("log", "level"),
    "NOTIFYCTL_LOG_FORMAT": ("log", "format"),
    "NOTIFYCTL_LOG_FILE": ("log", "file"),
}


class KindTable(Protocol):
    """What the loader asks about a transport's kind: the channels it serves, its keys, which of them are secrets."""

    @property
    def channels(self) -> Any:
        """`email`, `sms` or both."""

    @property
    def keys(self) -> Any:
        """Names of the keys that only this kind has."""

    @property
    def secrets(self) -> Any:
        """Names of its secrets; each may be given as NAME, NAME_env, NAME_file or NAME_command."""

    @property
    def tables(self) -> Any:
        """The keys that are tables: for each its own `keys` and `secrets`."""


def find(path: str | None, environ: Mapping[str, str]) -> str:
    """The absolute path of the configuration in force. Raises ConfigError naming every path that was tried."""
    named = path or environ.get("NOTIFYCTL_CONFIG")
    tried = [named] if named else ["notifyctl.toml", "/etc/notifyctl/notifyctl.toml"]
    places = [_absolute(candidate) for candidate in tried]
    for place in places:
        if os.path.exists(place):
            return place
    raise ConfigError(
        f"there is no configuration: tried {', '.join(places)}",
        hint="name one with --config or NOTIFYCTL_CONFIG, or make one with notifyctl init",
        code="no_config",
    )


def _absolute(path: str) -> str:
    try:
        return os.path.abspath(path)
    except OSError:  # the current directory has been removed
        return path


def read(path: str, *, environ: Mapping[str, str], kinds: Mapping[str, KindTable]) -> Document:
    """The checked document of the file at absolute `path`, every documented key present.

    `url` is `sqlite:///` + absolute path or `postgresql://…`. Raises ConfigError.
    """
    raw = _parse(path)
    sources = _apply_environment(raw, environ)
    folder = os.path.dirname(path)
    checked = _table(path, (), raw, top(folder), sources)
    if not checked["instance"]:
        raise ConfigError(f"{path}: instance is missing", hint='name this installation: instance = "production"')
    if not checked["ledger"]["url"]:
        raise ConfigError(f"{path}: ledger.url is missing", hint='add [ledger] url = "sqlite:///notifyctl.db"')
    for name, section in _named(path, raw, "transports"):
        checked["transports"][name] = _transport(path, name, section, kinds)
    for name, section in _named(path, raw, "lanes"):
        checked["lanes"][name] = _lane(path, name, section, checked["transports"], kinds)
    for name, section in _named(path, raw, "topics"):
        checked["topics"][name] = _table(path, ("topics", name), section, TOPIC)
        lane = checked["topics"][name]["lane"]
        if lane and lane not in checked["lanes"]:
            raise _unknown(path, f"topics.{name}.lane", "lane", lane, checked["lanes"])
    return checked


def _parse(path: str) -> Document:
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        reason = (error.strerror or "unreadable").lower()
        raise ConfigError(f"{path}: cannot be read: {reason}", hint="check its owner and mode") from None
    try:
        return tomllib.loads(content.removeprefix(b"\xef\xbb\xbf").decode())
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}: line {line} is not UTF-8", hint="save the file as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}", hint='texts need quotes: key = "value"') from None
    except RecursionError:
        raise ConfigError(f"{path}: not valid TOML: nested too deeply") from None


def _apply_environment(raw: Document, environ: Mapping[str, str]) -> dict[str, str]:
    """Put overrides from the environment into `raw`; return dotted key → variable, for error messages."""
    sources: dict[str, str] = {}
    for variable, keys in ENVIRONMENT.items():
        value = environ.get(variable)
        if not value:
            continue
        table = raw if len(keys) == 1 else raw.setdefault(keys[0], {})
        if isinstance(table, dict):
            table[keys[-1]] = value
            sources[".".join(keys)] = f"${variable}"
    return sources


def _named(path: str, raw: Document, section: str) -> list[tuple[str, Document]]:
    """The (name, table) pairs of `[section.NAME]`."""
    tables = raw.get(section, {})
    if not isinstance(tables, dict):
        raise ConfigError(f"{path}: {section} must be a table, not {kind_of(tables)}", hint=f"write [{section}.NAME]")
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise ConfigError(
                f"{path}: {section}.{name} must be a table, not {kind_of(table)}", hint=f"write [{section}.NAME]"
            )
    return list(tables.items())


def _table(
    path: str,
    where: tuple[str, ...],
    raw: Document,
    keys: Keys,
    sources: Mapping[str, str] = NOTHING,
) -> Document:
    for key in raw:
        if key not in keys:
            raise _unknown(path, ".".join((*where, key)), "key", key, keys)
    checked: Document = {}
    for key, entry in keys.items():
        dotted = ".".join((*where, key))
        if isinstance(entry, Mapping):
            inner = raw.get(key, {})
            if not isinstance(inner, dict):
                example = f"write {key} = {{ {next(iter(entry))} = … }} or [{dotted}]"
                raise ConfigError(f"{path}: {dotted} must be a table, not {kind_of(inner)}", hint=example)
            checked[key] = _table(path, (*where, key), inner, entry, sources)
            continue
        check, default = entry
        if key not in raw:
            checked[key] = dict(default) if isinstance(default, dict) else default
            continue
        try:
            checked[key] = check(raw[key])
        except Bad as bad:
            place = sources.get(dotted) or f"{path}: {dotted}"
            raise ConfigError(f"{place} {bad}", hint=bad.hint) from None
    return checked


def _transport(path: str, name: str, raw: Document, kinds: Mapping[str, KindTable]) -> Document:
    """One `[transports.NAME]`: the common keys checked, the kind's own under `options` as they stand."""
    where = f"transports.{name}"
    kind = raw.get("kind")
    if not isinstance(kind, str):
        raise ConfigError(f"{path}: {where}.kind is missing", hint=f"it may be {either(sorted(kinds))}")
    if kind not in kinds:
        raise _unknown(path, f"{where}.kind", "kind of transport", kind, kinds)
    secrets = {f"{secret}{form}" for secret in kinds[kind].secrets for form in SECRET_FORMS}
    own = (set(kinds[kind].keys) | secrets) - set(TRANSPORT)
    checked = _table(path, ("transports", name), raw, {**TRANSPORT, **dict.fromkeys(sorted(own), (anything, None))})
    for secret in kinds[kind].secrets:
        given = [secret + form for form in SECRET_FORMS if secret + form in raw]
        if len(given) > 1:
            raise ConfigError(f"{path}: {where} has both {given[0]} and {given[1]}", hint="keep one of them")
    options = {key: checked.pop(key) for key in sorted(own)}
    checked["options"] = {key: value for key, value in options.items() if value is not None}
    checked["plain_secrets"] = [secret for secret in kinds[kind].secrets if secret in raw]
    for key, known in kinds[kind].tables.items():
        inner = raw.get(key, {})
        if not isinstance(inner, dict):
            hint = f"write [{where}.{key}]"
            raise ConfigError(f"{path}: {where}.{key} must be a table, not {kind_of(inner)}", hint=hint)
        checks = {f"{secret}{form}" for secret in known.secrets for form in SECRET_FORMS} | known.keys
        _table(path, ("transports", name, key), inner, dict.fromkeys(sorted(checks), (anything, None)))
        checked["plain_secrets"] += [f"{key}.{secret}" for secret in known.secrets if secret in inner]
    return checked


def _lane(
    path: str, name: str, raw: Document, transports: Mapping[str, Document], kinds: Mapping[str, KindTable]
) -> Document:
    checked = _table(path, ("lanes", name), raw, LANE)
    for key, example in (("channel", 'channel = "email"'), ("transport", 'transport = "relay"')):
        if not checked[key]:
            raise ConfigError(f"{path}: lanes.{name}.{key} is missing", hint=f"add {example}")
    transport, channel = checked["transport"], checked["channel"]
    if transport not in transports:
        raise _unknown(path, f"lanes.{name}.transport", "transport", transport, transports)
    kind = transports[transport]["kind"]
    if channel not in kinds[kind].channels:
        serves = either(sorted(str(one) for one in kinds[kind].channels))
        raise ConfigError(
            f"{path}: lanes.{name}.channel is {channel!r}, but transport {transport!r} (kind {kind}) serves {serves}",
            hint="give the lane a transport of the other channel, or change its channel",
        )
    return checked


def _unknown(path: str, dotted: str, what: str, name: str, known: Mapping[str, Any]) -> ConfigError:
    """`name` is none of `known`: names the nearest, and all where they are few."""
    from difflib import get_close_matches

    fault = " is not a known key" if what == "key" else f": no {what} is called {name!r}"
    near = get_close_matches(name, list(known), n=1)
    guess = f"; did you mean {near[0]}?" if near else ""
    words: Sequence[str] = sorted(known)
    return ConfigError(
        f"{path}: {dotted}{fault}{guess}",
        hint=f"known here: {', '.join(words)}" if words else f"no {what} is configured",
    )
