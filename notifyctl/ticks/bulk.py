"""Rows of a bulk enqueue, streamed from NDJSON or CSV in constant memory. A bad row is a value, not an exception."""

from __future__ import annotations

import csv
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from notifyctl.errors import InputError

MAX_ROW = 1 << 20  # bytes of one row; what is sent is far smaller, and a page of such rows must fit in memory


@dataclass(frozen=True, slots=True)
class Row:
    """One input row: its number (from 1, header not counted) and its values, or why it cannot be read."""

    number: int
    values: dict[str, Any]
    error: InputError | None = None


def _bad(number: int, message: str, reason: str, hint: str = "") -> Row:
    return Row(number, {}, InputError(f"row {number}: {message}", reason=reason, field="", hint=hint))


def ndjson(stream: BinaryIO) -> Iterator[Row]:
    """One JSON object per line; empty lines are passed over."""
    number = 0
    while line := stream.readline(MAX_ROW + 1):
        number += 1
        if len(line) > MAX_ROW:
            while not line.endswith(b"\n") and (line := stream.readline(MAX_ROW)):
                pass
            yield _bad(number, f"longer than {MAX_ROW} bytes", "row_too_large")
            continue
        if not line.strip():
            continue
        try:
            values = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"), parse_constant=_no_constant)
        except UnicodeDecodeError:
            yield _bad(number, "not UTF-8", "row_undecodable", "convert the file to UTF-8")
        except (ValueError, RecursionError):
            yield _bad(number, "not one JSON object", "row_undecodable")
        else:
            if isinstance(values, dict):
                yield Row(number, values)
            else:
                yield _bad(number, "not a JSON object", "row_undecodable")


def _no_constant(name: str) -> Any:
    raise ValueError(name)  # NaN and Infinity are not JSON and no database stores them


def csv_rows(stream: BinaryIO, columns: Collection[str]) -> Iterator[Row]:
    """CSV with a header that names at least one of `columns`, `vars.NAME` or `to.CHANNEL`; an empty cell is not given,
    except that of a variable, which is the empty string."""
    csv.field_size_limit(MAX_ROW)
    # surrogateescape: an undecodable row must not end the file, it is found by its surrogates and reported
    lines = (line.decode("utf-8", "surrogateescape") for line in _capped_lines(stream))
    reader = csv.reader(lines, strict=True)
    header = _header(reader, columns)
    number = 0
    while True:
        number += 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            too_large = "field larger" in str(error)
            reason = "row_too_large" if too_large else "row_undecodable"
            yield _bad(number, "a field is too long" if too_large else "not valid CSV", reason)
            continue
        if not cells:
            number -= 1
            continue
        yield _csv_row(number, header, cells)


def _capped_lines(stream: BinaryIO) -> Iterator[bytes]:
    """Lines in bounded memory; in place of one that is too long stands one that the reader refuses as such."""
    first = True
    while line := stream.readline(2 * MAX_ROW):
        if len(line) == 2 * MAX_ROW and not line.endswith(b"\n"):
            while (rest := stream.readline(MAX_ROW)) and not rest.endswith(b"\n"):
                pass
            line = b"x" * (MAX_ROW + 1) + b"\n"
        yield line.removeprefix(b"\xef\xbb\xbf") if first else line
        first = False


def _header(reader: Iterator[list[str]], columns: Collection[str]) -> list[str]:
    try:
        header = [name.strip() for name in next(reader)]
    except (StopIteration, csv.Error):
        raise InputError(
            "the CSV has no header row", reason="row_undecodable",
            hint="name the columns: event, recipient, channel, template, to.email, vars.NAME …",
        ) from None  # fmt: skip
    if any(_undecoded(name) for name in header):
        raise InputError("the CSV's header is not UTF-8", reason="row_undecodable", hint="convert the file to UTF-8")
    if not any(name in columns or name.startswith(("vars.", "to.")) for name in header):
        # a row of data, or other separators: its text may be an address, so it is not repeated here
        other = len(header) == 1 and any(mark in header[0] for mark in ";\t|")
        raise InputError(
            "the CSV's first row is not a header: it names no known column", reason="unknown_key",
            hint="separate the columns by commas" if other else f"known are {', '.join(sorted(columns))}",
        )  # fmt: skip
    if len(set(header)) < len(header):
        raise InputError("the CSV's header names a column twice", reason="row_undecodable")
    return header


def _csv_row(number: int, header: list[str], cells: list[str]) -> Row:
    if len(cells) > len(header):
        return _bad(number, f"{len(cells)} cells under {len(header)} columns", "row_undecodable", "quote the commas")
    values: dict[str, Any] = {}
    for name, cell in zip(header, cells, strict=False):
        if _undecoded(cell):
            return _bad(number, "not UTF-8", "row_undecodable", "convert the file to UTF-8")
        group, dot, key = name.partition(".")
        if dot and group == "vars":
            values.setdefault("vars", {})[key] = cell
        elif dot and group == "to":
            if cell:
                values.setdefault("to", {})[key] = cell
        elif cell:
            values[name] = cell
    return Row(number, values)


def _undecoded(text: str) -> bool:
    return not text.isascii() and any("\udc80" <= character <= "\udcff" for character in text)
