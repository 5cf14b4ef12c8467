"""The table of a bounce mailbox is checked with the rest of the configuration, also when nothing is due."""

from __future__ import annotations

from pathlib import Path

import pytest

from notifyctl.config import load
from notifyctl.transports.registry import KINDS
from tests.test_config import RELAY, fault, read

TABLE = RELAY + "[transports.relay.bounces]\n"


def test_the_table_is_handed_to_the_transport_as_it_stands(tmp_path: Path) -> None:
    lines = 'imap = "imap.example.com"\nusername = "u"\npassword_env = "SECRET"\nreturn_path_domain = "b.example"\n'
    bounces = read(tmp_path, TABLE + lines).transports["relay"].options["bounces"]
    assert bounces == {
        "imap": "imap.example.com", "username": "u", "password_env": "SECRET", "return_path_domain": "b.example",
    }  # fmt: skip


def test_an_inline_table_is_the_same(tmp_path: Path) -> None:
    text = RELAY + 'bounces = { maildir = "box", return_path_domain = "b.example" }\n'
    assert read(tmp_path, text).transports["relay"].options["bounces"]["maildir"] == "box"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('maildr = "box"', "transports.relay.bounces.maildr is not a known key; did you mean maildir?"),
        ('pasword_env = "X"', "did you mean password_env?"),
        ('imap = { host = "x" }', ""),
    ],
)
def test_an_unknown_key_names_the_nearest(line: str, said: str, tmp_path: Path) -> None:
    if said:
        assert said in str(fault(tmp_path, TABLE + line + "\n"))
    else:  # what a key may hold is the transport's matter, when it is opened
        read(tmp_path, TABLE + line + "\n")


def test_what_is_no_table_is_told(tmp_path: Path) -> None:
    assert "transports.relay.bounces must be a table" in str(fault(tmp_path, RELAY + 'bounces = "box"\n'))


def test_another_kind_knows_no_bounces(tmp_path: Path) -> None:
    text = RELAY.replace('kind = "smtp"\nhost = "127.0.0.1"\n', 'kind = "file"\npath = "out"\nbounces = {}\n')
    assert "bounces is not a known key" in str(fault(tmp_path, text))


def test_a_password_in_a_file_that_others_can_read_is_warned_of(tmp_path: Path) -> None:
    path = tmp_path / "notifyctl.toml"
    path.write_text(TABLE + 'pop3 = "pop.example.com"\nusername = "u"\npassword = "hush"\n')
    path.chmod(0o644)
    (warning,) = load(path, environ={}, kinds=KINDS).warnings
    assert "transports.relay.bounces.password stands in a file" in warning
    assert "hush" not in warning
    path.chmod(0o600)
    assert load(path, environ={}, kinds=KINDS).warnings == ()

