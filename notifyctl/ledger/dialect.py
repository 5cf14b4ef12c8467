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
_AS_TEXT = ("text", "json", "jsonb")
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
    """Postgres 13 and newer. `:now` is the server's clock at the start of the transaction.

    A row set is passed as one array per column: the planner sees how long an array is, while it takes every JSON
    array for a hundred rows, and then prefers to walk over a small table.
    """

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
        arrays = ", ".join(f"CAST(:{name}_{i} AS {kind}[])" for i, (_, kind) in enumerate(columns))
        return f"unnest({arrays}) AS {name}({', '.join(column for column, _ in columns)})"

    @lru_cache(maxsize=512)  # noqa: B019  (one instance per process)
    def sets(self, text: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """The row sets that a statement reads, with the kinds of their columns."""
        return tuple((name, tuple(kind for _, kind in _columns(columns))) for name, columns in _ROWS.findall(text))

    def bind(self, text: str, parameters: dict[str, Any]) -> None:
        """Replace row sets among the parameters by one array per column."""
        for name, kinds in self.sets(text):
            rows = parameters[name]
            for i, kind in enumerate(kinds):
                values = [row[i] for row in rows]
                if kind in _AS_TEXT:
                    values = [None if v is None else str(v) if isinstance(v, str) else json.dumps(v) for v in values]
                parameters[f"{name}_{i}"] = values
        for name, _ in self.sets(text):
            parameters.pop(name, None)

    def time(self, value: datetime | None) -> str | None:
        return None if value is None else value.astimezone(UTC).isoformat()

    def instant(self, value: Any) -> datetime | None:
        return None if value is None else value.astimezone(UTC)


SQLITE = Sqlite()
POSTGRES = Postgres()
