"""The differences between SQLite and Postgres, all of them: words, times and what an error means."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

_ROWS = re.compile(r"\{(\w+): ([^}]*)\}")
_LOCK = re.compile(r"\{lock( of \w+)?( skip)?\}")
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]\w*)")
_SQLITE_TIME = "%Y-%m-%d %H:%M:%S.%f"


class Dialect:
    """How one database spells what `ledger` says; `name` is the folder below schema/."""

    name = ""

    def sql(self, text: str) -> str:
        """`text` in this database's own words (cached)."""
        raise NotImplementedError

    def time(self, value: datetime | None) -> str | None:
        """An instant as a parameter or inside a row set."""
        raise NotImplementedError

    def instant(self, value: Any) -> datetime | None:
        """An instant as read from a column."""
        raise NotImplementedError

    def rows(self, rows: Iterable[Sequence[Any]]) -> str:
        """A row set as the JSON array that a `{name: …}` source reads."""
        return json.dumps(list(rows), separators=(",", ":"), default=self._json)

    def document(self, value: Any) -> Any:
        """A JSON column as read, decoded."""
        return json.loads(value) if isinstance(value, str) else value

    def _json(self, value: Any) -> Any:
        if isinstance(value, datetime):
            return self.time(value)
        raise TypeError(f"{type(value).__name__} cannot be part of a row set")


def _columns(text: str) -> list[tuple[str, str]]:
    pairs = (column.strip().split(" ", 1) for column in text.split(","))
    return [(name, kind) for name, kind in pairs]


class Sqlite(Dialect):
    """SQLite 3.35 and newer. `:now` stays a parameter, filled by the transaction."""

    name = "sqlite"

    @lru_cache(maxsize=512)  # noqa: B019  (one instance per process)
    def sql(self, text: str) -> str:
        return _LOCK.sub("", _ROWS.sub(self._source, text))

    @staticmethod
    def _source(match: re.Match[str]) -> str:
        name, columns = match.group(1), _columns(match.group(2))
        picked = ", ".join(f"json_extract(value, '$[{i}]') AS {column}" for i, (column, _) in enumerate(columns))
        return f"(SELECT {picked} FROM json_each(:{name})) AS {name}"

    def time(self, value: datetime | None) -> str | None:
        return None if value is None else value.astimezone(UTC).strftime(_SQLITE_TIME)

    def instant(self, value: Any) -> datetime | None:
        return None if value is None else datetime.fromisoformat(value).replace(tzinfo=UTC)


class Postgres(Dialect):
    """Postgres 13 and newer. `:now` is the server's clock at the start of the transaction."""

    name = "postgresql"

    @lru_cache(maxsize=512)  # noqa: B019  (one instance per process)
    def sql(self, text: str) -> str:
        text = _ROWS.sub(self._source, text)
        text = _LOCK.sub(lambda m: f"FOR NO KEY UPDATE{(m[1] or '').upper()}{' SKIP LOCKED' if m[2] else ''}", text)
        text = text.replace("%", "%%")
        return _PARAMETER.sub(lambda m: "now()" if m[1] == "now" else f"%({m[1]})s", text)

    @staticmethod
    def _source(match: re.Match[str]) -> str:
        name, columns = match.group(1), _columns(match.group(2))
        picked = ", ".join(
            (f"NULLIF(value -> {i}, 'null')" if kind == "jsonb" else f"CAST(value ->> {i} AS {kind})") + f" AS {column}"
            for i, (column, kind) in enumerate(columns)
        )
        return f"(SELECT {picked} FROM jsonb_array_elements(CAST(:{name} AS jsonb)) AS t(value)) AS {name}"

    def time(self, value: datetime | None) -> str | None:
        return None if value is None else value.astimezone(UTC).isoformat()

    def instant(self, value: Any) -> datetime | None:
        return None if value is None else value.astimezone(UTC)


SQLITE = Sqlite()
POSTGRES = Postgres()
