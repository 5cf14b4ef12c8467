"""Published templates: written once per version, read by name and version, never changed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from notifyctl.ledger.database import Tx
from notifyctl.ledger.dialect import SQLITE
from notifyctl.model import Template


@dataclass(frozen=True, slots=True)
class Publication:
    """What became of one template: `verdict` is published, unchanged (the same bytes) or conflict (other bytes)."""

    template: Template
    verdict: str


@dataclass(frozen=True, slots=True)
class Listed:
    """One published version; `parts` are (locale, part, SHA-256 in hex), `newest` what an intent without one gets."""

    name: str
    version: str
    parts: tuple[tuple[str, str, str], ...]
    published_at: datetime
    newest: bool


_DIGESTS = """SELECT t.name, t.version, t.locale, t.part, t.sha256 FROM {o: name text, version text}
  JOIN notify_template t ON t.name = o.name AND t.version = o.version"""

_INSERT = """INSERT INTO notify_template (name, version, locale, part, body, sha256, sequence, published_at)
  SELECT o.name, o.version, o.locale, o.part, o.body, o.sha256, o.sequence, :now
  FROM {o: name text, version text, locale text, part text, body text, sha256 text, sequence bigint} WHERE true"""

_LOAD = """SELECT t.name, t.version, t.locale, t.part, t.body FROM {o: name text, version text}
  JOIN notify_template t ON t.name = o.name AND t.version = o.version"""

_LIST = """SELECT name, version, locale, part, sha256, sequence, published_at FROM notify_template
  ORDER BY name, sequence, locale, part"""


def digest(body: str) -> str:
    """The SHA-256 (hex) of one part's source."""
    return hashlib.sha256(body.encode()).hexdigest()


def publish(tx: Tx, templates: Sequence[Template], *, dry_run: bool = False) -> list[Publication]:
    """Publish what is new, in order: the last of a name becomes its newest. `dry_run`: only say what would become."""
    if tx.dialect is not SQLITE and not dry_run:
        # Two publishers at once would take the same sequence number; readers and applications are not held up.
        tx.execute("LOCK TABLE notify_template IN SHARE ROW EXCLUSIVE MODE")
    stored: dict[tuple[str, str], dict[tuple[str, str], str]] = {}
    for name, version, locale, part, sha256 in tx.execute(_DIGESTS, o=[(t.name, t.version) for t in templates]):
        stored.setdefault((name, version), {})[locale, part] = sha256
    done: list[Publication] = []
    rows: list[Sequence[object]] = []
    sequence = tx.execute("SELECT COALESCE(max(sequence), 0) FROM notify_template")[0][0]
    for template in templates:
        digests = {key: digest(body) for key, body in template.parts.items()}
        known = stored.get((template.name, template.version))
        if known is not None:
            done.append(Publication(template, "unchanged" if known == digests else "conflict"))
            continue
        sequence += 1
        rows.extend(
            (template.name, template.version, locale, part, body, digests[locale, part], sequence)
            for (locale, part), body in template.parts.items()
        )
        done.append(Publication(template, "published"))
    if rows and not dry_run:
        tx.execute(_INSERT, o=rows)
    return done


def load(tx: Tx, versions: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Template]:
    """The published templates among the (name, version) pairs asked for."""
    parts: dict[tuple[str, str], dict[tuple[str, str], str]] = {}
    for name, version, locale, part, body in tx.execute(_LOAD, o=sorted(set(versions))):
        parts.setdefault((name, version), {})[locale, part] = body
    return {key: Template(*key, found) for key, found in parts.items()}


def newest(tx: Tx, name: str) -> str | None:
    """The version published last under `name`."""
    rows = tx.execute(
        "SELECT version FROM notify_template WHERE name = :name ORDER BY sequence DESC LIMIT 1", name=name
    )
    return rows[0][0] if rows else None


def listing(tx: Tx) -> list[Listed]:
    """All published versions by name, oldest first."""
    versions: dict[tuple[str, str], tuple[datetime, list[tuple[str, str, str]]]] = {}
    for name, version, locale, part, sha256, _, at in tx.execute(_LIST):
        moment = tx.dialect.instant(at)
        assert moment is not None
        versions.setdefault((name, version), (moment, []))[1].append((locale, part, sha256))
    last = dict(versions.keys())
    return [
        Listed(name, version, tuple(parts), at, last[name] == version)
        for (name, version), (at, parts) in versions.items()
    ]


def load_many(tx: Tx, wanted: Iterable[tuple[str, str | None]]) -> dict[tuple[str, str | None], Template]:
    """The templates among these (name, version) pairs; version None stands for the newest."""
    versions = {pair: pair[1] or newest(tx, pair[0]) for pair in set(wanted)}
    found = load(tx, [(name, version) for (name, _), version in versions.items() if version])
    return {
        pair: found[pair[0], version] for pair, version in versions.items() if version and (pair[0], version) in found
    }
