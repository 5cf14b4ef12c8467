"""Everything a command says: results on stdout, diagnostics on stderr, as one object that tests can replace.

A reader that goes away ends output quietly and changes no exit code; a stdout that cannot take what is written (a
full disk) is a failure, reported on stderr. Characters that a stream cannot encode are escaped, never an error.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TextIO

from notifyctl import units
from notifyctl.errors import EXIT_OK, EXIT_TEMPORARY, NotifyctlError, worst


class Output:
    """Two streams and how to write to them.

    `json`: one document (or NDJSON) on stdout and nothing else. `quiet`: errors and results only. `verbose`: also
    what is normally said on a terminal only. `gone`: nobody reads stdout any more.
    """

    def __init__(
        self,
        stdout: TextIO | None,
        stderr: TextIO | None,
        environ: Mapping[str, str],
        *,
        stdin: TextIO | None = None,
        json: bool = False,
        quiet: bool = False,
        verbose: bool = False,
    ) -> None:
        self.stdout, self.stderr, self.stdin = stdout, stderr, stdin
        self.json, self.quiet, self.verbose = json, quiet, verbose
        self.gone = stdout is None
        self.failed: OSError | None = None
        self.is_tty = bool(stdout and stdout.isatty())
        dumb = environ.get("TERM", "") in ("", "dumb")
        self.color = self.is_tty and not dumb and not environ.get("NO_COLOR") and not json
        self.interactive = bool(stdin and stdin.isatty() and stderr and stderr.isatty())
        for stream in (stdout, stderr):
            with contextlib.suppress(AttributeError, ValueError, OSError):
                stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]

    @classmethod
    def of_process(cls, **how: bool) -> Output:
        """The process's own streams. A closed descriptor is None, and its number is taken so nothing else gets it."""
        for descriptor in range(3):
            try:
                os.fstat(descriptor)
            except OSError:
                os.open(os.devnull, os.O_RDWR)
        return cls(sys.stdout, sys.stderr, os.environ, stdin=sys.stdin, **how)

    # -- results --------------------------------------------------------------------------------------------------

    def document(self, value: Any) -> None:
        """The one JSON document of a command."""
        self.line(value)

    def line(self, value: Any) -> None:
        """One line of NDJSON."""
        self.text(_dump(value, self.stdout))

    def text(self, line: str = "") -> None:
        """One line of a result for people."""
        self._write(line + "\n")

    @property
    def talks(self) -> bool:
        """Whether a run that needs nobody says what it did."""
        return (self.is_tty or self.verbose) and not self.json and not self.quiet

    def summary(self, line: str) -> None:
        """What a run did: said on a terminal or with --verbose, never under cron, --json or --quiet."""
        if self.talks:
            self.text(line)

    def ran(
        self, tick: str, document: Mapping[str, Any], counts: Iterable[str], reasons: Mapping[str, int], code: int,
        *, idle: Callable[[], str] = str,
    ) -> None:  # fmt: skip
        """One line of what a tick did: for a terminal; under cron only where a person is needed (`code` not 0).

        `counts` of `document` are said where they are not 0; `idle`: what else is worth saying when all of them are.
        """
        said = counted(document, counts)
        nothing = "nothing has changed" if reasons else "nothing due"
        line = f"{tick}: {said or nothing} in {document['seconds']:.1f} s"
        if code == EXIT_OK:
            self.summary(line if said or not self.talks else f"{line}{idle()}")
            return
        why = ", ".join(f"{reason} ({count})" for reason, count in sorted(reasons.items(), key=lambda r: -r[1])[:5])
        self.complain(f"{line}{f'; {why}' if why else ''}; see: notifyctl inspect")

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Aligned columns; on a terminal the last one is cut to its width."""
        shown = [[_cell(value) for value in row] for row in rows]
        widths = [max(_width(row[i]) for row in [columns, *shown]) for i in range(len(columns))]
        limit = _columns() if self.is_tty else 0
        for number, row in enumerate([columns, *shown]):
            cells = [cell + " " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)]
            line = "  ".join(cells).rstrip()
            if limit and _width(line) > limit:
                line = line[: limit - 1] + ("…" if _utf8(self.stdout) else ">")
            self.text(self.bold(line) if number == 0 else line)

    def bold(self, text: str) -> str:
        """`text` emphasised where the terminal can."""
        return f"\033[1m{text}\033[0m" if self.color else text

    # -- diagnostics ----------------------------------------------------------------------------------------------

    def note(self, line: str) -> None:
        """Something to know, on stderr; not with --quiet."""
        if not self.quiet:
            self._diagnose(f"notifyctl: {line}")

    def complain(self, line: str) -> None:
        """One of several things that are wrong, on stderr, also with --quiet; under --json the document has it."""
        if not self.json:
            self._diagnose(f"notifyctl: {line}")

    def failure(self, error: NotifyctlError) -> int:
        """Report `error` and return its exit code. Under --json the last line on stderr is a JSON object."""
        if self.json:
            shown = {"code": error.code, "message": error.message, "hint": error.hint}
            self._diagnose(_dump({"error": shown}, self.stderr))
        else:
            self._diagnose(f"notifyctl: {error.message}")
            if error.hint:
                self._diagnose(f"  {error.hint}")
        return error.exit_code

    def confirm(self, question: str) -> bool:
        """Ask on the terminal; only an answer that begins with y agrees. Without a terminal: False."""
        if not self.interactive or self.stdin is None or self.stderr is None:
            return False
        self.stderr.write(f"{question} [y/N] ")
        self.stderr.flush()
        return self.stdin.readline().strip().lower().startswith("y")

    def ask(self, question: str, default: str) -> str:
        """Ask on the terminal; `default` where there is none, or for an empty answer."""
        if not self.interactive or self.json or self.stdin is None or self.stderr is None:
            return default
        self.stderr.write(f"{question} [{default}]: ")
        self.stderr.flush()
        return self.stdin.readline().strip() or default

    def close(self, code: int) -> int:
        """Flush, and return the exit code of the process, given that of the command."""
        if self.stdout is not None and not self.gone:
            self._attempt(self.stdout.flush)
        if self.failed is not None:
            reason = (self.failed.strerror or "input/output error").lower()
            error = NotifyctlError(
                f"the result cannot be written to standard output: {reason}",
                hint="what the command did is recorded; only its output is incomplete",
                code="output",
            )
            self.failure(error)
            code = worst(code, EXIT_TEMPORARY)
        for stream in (self.stdout, self.stderr):
            _silence(stream)
        return code

    def lost(self, error: OSError) -> int:
        """Stdout takes nothing more: nothing to say where its reader went away, else a failure at `close`."""
        self.gone = True
        if not isinstance(error, BrokenPipeError):
            self.failed = error
        return EXIT_OK

    # -- writing --------------------------------------------------------------------------------------------------

    def _write(self, text: str) -> None:
        stdout = self.stdout
        if stdout is not None and not self.gone:
            self._attempt(lambda: stdout.write(text))

    def _attempt(self, write: Any) -> None:
        try:
            write()
        except OSError as error:
            self.lost(error)

    def _diagnose(self, line: str) -> None:
        if self.stderr is not None:
            with contextlib.suppress(OSError):
                self.stderr.write(line + "\n")
                self.stderr.flush()


def counted(document: Mapping[str, Any], counts: Iterable[str]) -> str:
    """Those of the counts that are not 0, in words."""
    return ", ".join(f"{document[name]} {name.replace('_', ' ')}" for name in counts if document[name])


def _silence(stream: TextIO | None) -> None:
    """Flush; what cannot be flushed any more goes to /dev/null, or the interpreter would complain at its end."""
    if stream is None:
        return
    try:
        stream.flush()
    except OSError:
        with contextlib.suppress(OSError, ValueError):
            sink = os.open(os.devnull, os.O_WRONLY)
            os.dup2(sink, stream.fileno())
            os.close(sink)
            stream.flush()


def _dump(value: Any, stream: TextIO | None) -> str:
    return json.dumps(value, ensure_ascii=not _utf8(stream), default=_plain, allow_nan=False)


def _utf8(stream: TextIO | None) -> bool:
    return (getattr(stream, "encoding", "") or "").lower().replace("-", "") == "utf8"


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return units.iso(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset | tuple):
        return sorted(value)
    return str(value)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    text = units.iso(value) if isinstance(value, datetime) else str(value)
    return "".join(character if character.isprintable() else "?" for character in text)


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def _columns() -> int:
    import shutil

    return max(20, shutil.get_terminal_size().columns)
