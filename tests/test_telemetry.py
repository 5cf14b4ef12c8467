"""Log lines: one event per line, only the fields that may be shown, wherever they go."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from notifyctl import telemetry


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Give the program's logger back as it was."""
    root, raising = telemetry.logger(), logging.raiseExceptions
    yield
    for handler in list(root.handlers):
        root.removeHandler(handler)
        handler.close()
    root.propagate = True
    root.setLevel(logging.NOTSET)
    logging.raiseExceptions = raising


def test_an_event_is_one_line_with_its_fields_and_a_utc_time() -> None:
    stream = io.StringIO()
    telemetry.setup(stderr=stream)
    extra = {"run": "r1", "delivery": 7, "reason": "mailbox full", "remote_id": 'a"b', "attempt": 0, "state": None}
    telemetry.logger("dispatch").info("submitted", extra=extra)
    time, rest = stream.getvalue().split(" ", 1)
    assert time.endswith("Z")
    assert rest == 'info submitted run=r1 delivery=7 attempt=0 remote_id="a\\"b" reason="mailbox full"\n'


def test_json_lines_hold_the_same() -> None:
    stream = io.StringIO()
    telemetry.setup(style="json", stderr=stream)
    telemetry.logger().warning("held", extra={"run": "r1", "delivery": 7})
    line = json.loads(stream.getvalue())
    assert line.pop("time").endswith("Z")
    assert line == {"level": "warning", "logger": "notifyctl", "message": "held", "run": "r1", "delivery": 7}


@pytest.mark.parametrize("style", ["console", "json"])
def test_a_field_that_is_not_on_the_list_is_not_logged(style: str) -> None:
    stream = io.StringIO()
    telemetry.setup(style=style, stderr=stream)
    telemetry.logger().error("x", extra={"address": "jane@example.com", "body": "hunter2", "run": "r1"})
    assert "r1" in stream.getvalue()
    assert "jane" not in stream.getvalue()
    assert "hunter2" not in stream.getvalue()


@pytest.mark.parametrize("style", ["console", "json"])
def test_a_line_end_in_a_field_does_not_forge_an_event(style: str) -> None:
    stream = io.StringIO()
    telemetry.setup(style=style, stderr=stream)
    telemetry.logger().info("a\nb", extra={"remote_id": "x\n2026-01-01T00:00:00Z error forged\x1b[31m"})
    assert stream.getvalue().count("\n") == 1
    assert "\x1b" not in stream.getvalue()


def test_stderr_stays_silent_below_warnings_where_cron_would_mail_it_and_the_file_has_all(tmp_path: Path) -> None:
    stream, file = io.StringIO(), tmp_path / "notifyctl.log"
    telemetry.setup(level="info", file=file, stderr=stream, quiet=True)
    log = telemetry.logger("dispatch")
    log.debug("one")
    log.info("two ü")
    log.warning("three")
    assert [line.split(" ", 2)[2] for line in file.read_text("utf-8").splitlines()] == ["two ü", "three"]
    assert stream.getvalue().count("\n") == 1


def test_setting_up_again_does_not_double_the_lines(tmp_path: Path) -> None:
    stream = io.StringIO()
    for _ in range(2):
        telemetry.setup(stderr=stream, file=tmp_path / "log")
    telemetry.logger().info("once")
    assert stream.getvalue().count("once") == 1
    assert (tmp_path / "log").read_text().count("once") == 1


def test_a_stream_that_takes_nothing_more_raises_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    telemetry.setup(stderr=stream)
    stream.close()
    telemetry.logger().error("x")
    assert "Traceback" not in capsys.readouterr().err


def test_a_file_that_cannot_be_opened_is_a_warning_and_stops_nobody(tmp_path: Path) -> None:
    stderr = io.StringIO()
    telemetry.setup(file=tmp_path, stderr=stderr, quiet=True)
    assert "cannot be written: is a directory" in stderr.getvalue()
