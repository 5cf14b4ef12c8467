"""Log lines: one event per line, on stderr and, where configured, in a file.

Callers write `log.info("what happened", extra={"run": …, "delivery": …})`. Only the fields named here are printed:
an address, number, body, variable, attachment name or secret has no field and so no way into a log. Times are UTC.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

FIELDS = (
    "run", "command", "delivery", "event", "lane", "region", "attempt", "transport", "remote_id",
    "state", "outcome", "reason", "code", "count", "seconds",
)  # fmt: skip
LEVELS = ("debug", "info", "warning", "error")


def logger(name: str = "") -> logging.Logger:
    """The program's logger, or one below it: `logger("dispatch")`."""
    return logging.getLogger(f"notifyctl.{name}" if name else "notifyctl")


def setup(
    *,
    level: str = "info",
    style: str = "console",
    file: Path | None = None,
    stderr: TextIO | None = None,
    quiet: bool = False,
) -> None:
    """Send the program's log from `level` on to `file` and to `stderr`.

    `quiet`: to stderr only from warnings on, because cron mails whatever is printed. `style`: `console` or `json`.
    A file that cannot be opened is a warning on stderr.
    """
    logging.raiseExceptions = False  # a full disk or a closed stderr must not print tracebacks
    root = logger()
    root.propagate = False
    root.setLevel(level.upper())
    if quiet and file is None:  # what nobody prints costs nothing
        root.setLevel(max(logging.WARNING, root.level))
    for handler in list(root.handlers):
        root.removeHandler(handler)
        handler.close()
    formatter = Json() if style == "json" else Console()
    stream = logging.StreamHandler(stderr or sys.stderr)
    stream.setFormatter(formatter)
    stream.setLevel(logging.WARNING if quiet else logging.NOTSET)
    root.addHandler(stream)
    if file is not None:
        try:
            written = logging.FileHandler(file, encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            reason = (error.strerror or "input/output error").lower()
            # whoever may only look must be able to look, and what is due must go out
            root.warning("the log file %s cannot be written: %s; change log.file, or its owner or mode", file, reason)
            return
        written.setFormatter(formatter)
        root.addHandler(written)


class Console(logging.Formatter):
    """`2026-11-30T22:42:01Z warning what happened run=… delivery=…`, for people."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={_word(value)}" for name, value in _fields(record).items())
        return f"{_time(record)} {record.levelname.lower()} {_line(record.getMessage())}{fields}"


class Json(logging.Formatter):
    """The same as one JSON object per line, for machines."""

    def format(self, record: logging.LogRecord) -> str:
        head = {"time": _time(record), "level": record.levelname.lower(), "logger": record.name}
        return json.dumps({**head, "message": record.getMessage(), **_fields(record)}, default=str)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    values = {name: getattr(record, name, None) for name in FIELDS}
    return {name: value for name, value in values.items() if value is not None and value != ""}


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def _word(value: object) -> str:
    text = _line(str(value))
    return json.dumps(text) if " " in text or '"' in text or not text else text


def _line(text: str) -> str:
    """`text` on one line: a provider's id or a message cannot forge a second event."""
    return "".join(character if character.isprintable() else f"\\x{ord(character):02x}" for character in text)
