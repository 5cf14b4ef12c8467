"""A transport's values and secrets: where they come from, and that none of them is ever shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from notifyctl.errors import ConfigError
from notifyctl.settings import TransportSettings


def made(base: Path, **options: Any) -> TransportSettings:
    return TransportSettings("relay", "smtp", options, base)


def test_a_secret_is_read_from_where_it_is_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text("pässword\n")
    (tmp_path / "key").chmod(0o600)
    monkeypatch.setenv("RELAY_KEY", "pässword")
    assert made(tmp_path, password_file="key").secret("password") == "pässword"
    assert made(tmp_path, password_env="RELAY_KEY").secret("password") == "pässword"
    assert made(tmp_path, password_command="cat key").secret("password") == "pässword"
    assert made(tmp_path, password_command=["cat", "key"]).secret("password") == "pässword"
    assert made(tmp_path, password="pässword").secret("password") == "pässword"
    assert made(tmp_path).secret("password") is None


def test_only_one_line_end_is_taken_off(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b" secret \r\n")
    assert made(tmp_path, password_file="key").secret("password") == " secret "


@pytest.mark.parametrize(
    ("options", "key", "says"),
    [
        ({"password_file": "absent"}, "password_file", "cannot be read"),
        ({"password_file": "."}, "password_file", "cannot be read"),
        ({"password_file": "binary"}, "password_file", "not UTF-8"),
        ({"password_file": "lines"}, "password_file", "more than one line"),
        ({"password_file": 7}, "password_file", "must be a text"),
        ({"password_env": "NOTIFYCTL_NO_SUCH"}, "password_env", "NOTIFYCTL_NO_SUCH"),
        ({"password_command": "false"}, "password_command", "exit status 1"),
        ({"password_command": "sh -c 'echo hush >&2; exit 3'"}, "password_command", "exit status 3"),
        ({"password_command": "no-such-program-here"}, "password_command", "cannot be run"),
        ({"password_command": "'unbalanced"}, "password_command", "not a command"),
        ({"password_command": ""}, "password_command", "not a command"),
        ({"password_command": 7}, "password_command", "not a command"),
        ({"password_command": "true"}, "password_command", "empty"),
        ({"password": ""}, "password", "empty"),
        ({"password": "a", "password_env": "B"}, "password_env", "both given"),
    ],
)
def test_a_secret_that_cannot_be_had_is_named_and_not_shown(
    options: dict[str, Any], key: str, says: str, tmp_path: Path
) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "lines").write_text("hush\nhush\n")
    with pytest.raises(ConfigError, match=rf"transports\.relay\.{key} .*{says}") as caught:
        made(tmp_path, **options).secret("password")
    assert "hush" not in caught.value.message + caught.value.hint


def test_a_file_that_everybody_can_read_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "key").write_text("hush")
    (tmp_path / "key").chmod(0o640)
    made(tmp_path, password_file="key").secret("password")
    assert not caplog.records
    (tmp_path / "key").chmod(0o644)
    made(tmp_path, password_file="key").secret("password")
    assert "transports.relay.password_file" in caplog.text
    assert "hush" not in caplog.text


def test_no_value_is_shown_by_repr(tmp_path: Path) -> None:
    shown = repr(TransportSettings("relay", "smtp", {"password": "hush"}, tmp_path, sender="shop@example.com"))
    assert "hush" not in shown
    assert "shop@example.com" not in shown
