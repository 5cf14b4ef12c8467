"""The differences between SQLite and Postgres, all of them: words, times and what an error means."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

_ROWS = re.compile(r"\{(\w+): ([^}]*)\}")
_LOCK = re.compile(r"\{lock( of \w+)?( skip)?\}")
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]\w*)")
_AS_TEXT = ("text", "json", "jsonb")
_NO_TIME = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_TIME = datetime.max.replace(tzinfo=UTC)
_SQLITE_TIME = len("2027-03-28 09:00:00.000000")
_PLAIN = frozenset({int, float, str, bool, type(None)})
INLINE = 16  # rows that a statement spells out on SQLite; each number of them is a statement to prepare and to keep


class Dialect:
    """How one database spells what `ledger` says; `name` is the folder below schema/."""

    name = ""

    def time(self, value: datetime | None) -> str | None:
        """An instant as a parameter or inside a row set."""
        raise NotImplementedError

    def instant(self, value: Any) -> datetime | None:
        """An instant as read from a column."""
        raise NotImplementedError

    @lru_cache(maxsize=1024)  # noqa: B019  (one instance per process)
    def sets(self, text: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """The row sets that a statement reads, with the kinds of their columns."""
        return tuple((name, tuple(kind for _, kind in _columns(columns))) for name, columns in _ROWS.findall(text))

    def document(self, value: Any) -> Any:
        """A JSON column as read, decoded; None for what plain SQL stored and nobody can decode."""
        return decode(value) if isinstance(value, str | bytes) else value


def decode(text: str | bytes) -> Any:
    """JSON as both databases accept it, numbers of thousands of digits kept as text; None if it is unreadable."""
    try:
        return json.loads(text, parse_int=_integer)
    except (ValueError, RecursionError):
        return None


def _utc(moment: datetime) -> datetime:
    """`moment` in UTC; the nearest one that a ledger holds where an offset leads out of the years."""
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        return _LAST_TIME if moment.year == _LAST_TIME.year else _NO_TIME


def _integer(digits: str) -> int | str:
    return int(digits) if len(digits) < 4000 else digits


def _columns(text: str) -> list[tuple[str, str]]:
    pairs = (column.strip().split(" ", 1) for column in text.split(","))
    return [(name, kind) for name, kind in pairs]


class Sqlite(Dialect):
    """SQLite 3.35 and newer. `:now` is the time of the transaction.

    A row set of a few rows is spelled out, value by value: taking apart a JSON array costs more than such a statement
    does. One of many rows is passed as JSON.
    """

    name = "sqlite"

    def statement(self, text: str, parameters: dict[str, Any]) -> tuple[str, list[Any]]:
        """`text` in SQLite's words, and its parameters in the order of their numbers."""
        sizes = tuple([min(len(parameters[name]), INLINE + 1) for name, _ in self.sets(text)])
        sql, names = self._numbered(text, sizes)
        values: list[Any] = []
        for name in names:
            value = parameters[name]
            if not isinstance(value, list):
                values.append(value if type(value) in _PLAIN else self._plain(value))
            elif 0 < len(value) <= INLINE:
                values += [v if type(v) in _PLAIN else self._plain(v) for row in value for v in row]
            else:
                values.append(json.dumps(value, separators=(",", ":"), default=self._plain))
        return sql, values

    @lru_cache(maxsize=1024)  # noqa: B019  (one instance per process)
    def _numbered(self, text: str, sizes: tuple[int, ...]) -> tuple[str, tuple[str, ...]]:
        counts = {name: size for (name, _), size in zip(self.sets(text), sizes, strict=True) if 0 < size <= INLINE}
        first: dict[str, int] = {}  # the number of each parameter, or of the first value of a row set
        used = 0

        def number(name: str, width: int = 1) -> int:
            nonlocal used
            if name not in first:
                first[name], used = used + 1, used + width
            return first[name]

        def source(match: re.Match[str]) -> str:
            name, columns = match.group(1), [column for column, _ in _columns(match.group(2))]
            if name not in counts:
                picked = ", ".join(f"json_extract(value, '$[{i}]') AS {column}" for i, column in enumerate(columns))
                return f"(SELECT {picked} FROM json_each(?{number(name)})) AS {name}"
            at = number(name, counts[name] * len(columns))
            picked = ", ".join(f"column{i} AS {column}" for i, column in enumerate(columns, 1))
            rows = ", ".join(
                f"({', '.join(f'?{n}' for n in range(start, start + len(columns)))})"
                for start in range(at, at + counts[name] * len(columns), len(columns))
            )
            return f"(SELECT {picked} FROM (VALUES {rows})) AS {name}"

        sql = _PARAMETER.sub(lambda m: f"?{number(m[1])}", _ROWS.sub(source, _LOCK.sub("", text)))
        return sql, tuple(first)

    def _plain(self, value: Any) -> Any:
        """What the driver and JSON take: times and documents as text, words of a closed list as plain text."""
        if isinstance(value, datetime):
            return self.time(value)
        return str(value) if isinstance(value, str) else json.dumps(value)

    def time(self, value: datetime | None) -> str | None:
        if value is None:
            return None
        return (value if value.tzinfo is UTC else _utc(value)).isoformat(" ", "microseconds")[:_SQLITE_TIME]

    def instant(self, value: Any) -> datetime | None:
        if value is None:
            return None
        try:
            return datetime.fromisoformat(value).replace(tzinfo=UTC)
        except (ValueError, TypeError):  # no time, not even text; long ago, so that nothing is sent late on a guess
            return _NO_TIME


class Postgres(Dialect):
    """Postgres 13 and newer. `:now` is the server's clock at the start of the transaction.

    A row set is passed as one array per column: the planner sees how long an array is, while it takes every JSON
    array for a hundred rows, and then prefers to walk over a small table.
    """

    name = "postgresql"

    @lru_cache(maxsize=512)  # noqa: B019  (one instance per process)
    def sql(self, text: str) -> str:
        """`text` in Postgres' own words."""
        text = _ROWS.sub(self._source, text)
        text = _LOCK.sub(lambda m: f"FOR NO KEY UPDATE{(m[1] or '').upper()}{' SKIP LOCKED' if m[2] else ''}", text)
        text = text.replace("%", "%%")
        return _PARAMETER.sub(lambda m: "now()" if m[1] == "now" else f"%({m[1]})s", text)

    @staticmethod
    def _source(match: re.Match[str]) -> str:
        name, columns = match.group(1), _columns(match.group(2))
        arrays = ", ".join(f"CAST(:{name}_{i} AS {kind}[])" for i, (_, kind) in enumerate(columns))
        return f"unnest({arrays}) AS {name}({', '.join(column for column, _ in columns)})"

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
        return None if value is None else _utc(value).isoformat()

    def instant(self, value: Any) -> datetime | None:
        return None if value is None else value.astimezone(UTC)


SQLITE = Sqlite()
POSTGRES = Postgres()
