"""The configuration as the program uses it: typed, complete, frozen.

Durations are seconds, paths absolute. `configfile` finds, reads and checks the file; here its plain values become the
model's. Nothing is read twice and nothing is looked up later, so a tick that started has a consistent configuration.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from notifyctl import configfile
from notifyctl.model import Backoff, Channel, ConsentMode, Lane, OnAmbiguous, Rate, ReceiptPolicy, Topic
from notifyctl.settings import TransportSettings


@dataclass(frozen=True, slots=True)
class Log:
    """Where log lines go besides stderr (`file`, None: nowhere), from which level on, and how they look."""

    file: Path | None = None
    level: str = "info"
    format: str = ""


@dataclass(frozen=True, slots=True)
class Config:
    """One installation. `url` is `sqlite:///` + absolute path or `postgresql://…`; it may hold a password."""

    path: Path
    instance: str
    url: str = field(repr=False)
    templates_path: Path
    region: str = ""
    patience: float = 10.0
    default_locale: str = "en"
    objects_root: str = ""
    phone_region: str = ""
    resolver: str = ""  # who is asked for published DKIM keys; "": as the system is set up
    log: Log = Log()
    transports: Mapping[str, TransportSettings] = field(default_factory=dict)
    lanes: Mapping[str, Lane] = field(default_factory=dict)
    topics: Mapping[str, Topic] = field(default_factory=dict)
    retention_terminal: float = 400 * 86400.0
    sensitive_variables: str = "on_terminal"
    warnings: tuple[str, ...] = ()

    def lane_for(self, channel: Channel, topic: str | None = None) -> str:
        """The lane of a delivery that names none: the topic's where it has one, else the channel's name."""
        known = self.topics.get(topic or "")
        return (known.lane if known else "") or channel.value


def load(path: Path | None, *, environ: Mapping[str, str], kinds: Mapping[str, configfile.KindTable]) -> Config:
    """The configuration at `path`, or where `configfile.find` finds it. `kinds`: the transports' table of keys.

    Raises ConfigError naming file, key (or line) and what to do.
    """
    found = configfile.find(str(path) if path else None, environ)
    document = configfile.read(found, environ=environ, kinds=kinds)
    log, retention = document["log"], document["retention"]
    base = Path(found).parent
    return Config(
        path=Path(found),
        instance=document["instance"],
        region=document["region"],
        url=document["ledger"]["url"],
        patience=document["ledger"]["patience"],
        templates_path=Path(document["templates"]["path"]),
        default_locale=document["templates"]["default_locale"],
        objects_root=document["objects"]["root"],
        phone_region=document["phone"]["default_region"],
        resolver=document["dns"]["resolver"],
        log=Log(Path(log["file"]) if log["file"] else None, log["level"], log["format"]),
        transports={name: _transport(name, base, raw) for name, raw in document["transports"].items()},
        lanes={name: _lane(name, raw) for name, raw in document["lanes"].items()},
        topics={name: _topic(name, raw) for name, raw in document["topics"].items()},
        retention_terminal=retention["terminal"],
        sensitive_variables=retention["sensitive_variables"],
        warnings=tuple(_warnings(found, document)),
    )


def _transport(name: str, base: Path, raw: Mapping[str, Any]) -> TransportSettings:
    return TransportSettings(
        name=name,
        kind=raw["kind"],
        options=raw["options"],
        base=base,
        deadline=raw["deadline"],
        drain=raw["drain"],
        cooldown=raw["cooldown"],
        settle_delay=raw["settle_delay"],
        sender=raw["from"],
        reply_to=raw["reply_to"],
        rates=_rates(raw["rate"]),
        status_rates=None if raw["status_rate"] is None else _rates(raw["status_rate"]),
        poll_every=raw["poll_every"],
    )


def _lane(name: str, raw: Mapping[str, Any]) -> Lane:
    plain = dict(raw)
    return Lane(
        name=name,
        channel=Channel(plain.pop("channel")),
        rates=_rates(plain.pop("rate")),
        per_destination=_rates(plain.pop("per_destination")),
        backoff=Backoff(**plain.pop("backoff")),
        receipt=ReceiptPolicy(**plain.pop("receipt")),
        on_ambiguous=OnAmbiguous(plain.pop("on_ambiguous")),
        oldest_age=plain.pop("objective")["oldest_age"],
        **plain,
    )


def _topic(name: str, raw: Mapping[str, Any]) -> Topic:
    return Topic(name=name, **{**raw, "consent": ConsentMode(raw["consent"])})


def _rates(raw: tuple[tuple[int, int, str], ...]) -> tuple[Rate, ...]:
    return tuple(Rate(*one) for one in raw)


_NAMES = frozenset({"username"})  # worth hiding at some providers, hence a secret's forms, but no secret by nature


def _warnings(path: str, document: Mapping[str, Any]) -> list[str]:
    """Secrets that stand in the file although others on this host may read it."""
    if os.name != "posix" or not os.stat(path).st_mode & 0o004:
        return []
    return [
        f"{path}: transports.{name}.{secret} stands in a file that every user of this host can read: "
        f"chmod o-r it, or use {secret}_env, {secret}_file or {secret}_command"
        for name, raw in document["transports"].items()
        for secret in raw["plain_secrets"]
        if secret.rpartition(".")[2] not in _NAMES
    ]
