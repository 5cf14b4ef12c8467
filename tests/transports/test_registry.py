"""The table of kinds: light, complete, and true of the modules it names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from notifyctl.errors import ConfigError
from notifyctl.transports.registry import COMMON_KEYS, KINDS, open_transport
from tests.transports.material import settings

NEEDED = {
    "smtp": {"host": "127.0.0.1"},
    "file": {"path": "outbox"},
    "postmark": {"server_token": "x"},
    "telnyx": {"api_key": "x"},
    "twilio": {"account_sid": "AC0", "auth_token": "x"},
}


@pytest.mark.parametrize("name", sorted(KINDS))
def test_a_kind_opens_and_declares_the_channels_of_the_table(name: str, tmp_path: Path) -> None:
    transport = open_transport(settings(name, tmp_path, **NEEDED[name]))
    assert transport.capabilities.channels == KINDS[name].channels
    assert KINDS[name].secrets <= KINDS[name].keys
    assert not KINDS[name].keys & COMMON_KEYS
    transport.close()
    transport.close()


def test_a_configured_settle_delay_replaces_the_declared_one(tmp_path: Path) -> None:
    from dataclasses import replace

    transport = open_transport(replace(settings("file", tmp_path, path="outbox"), settle_delay=90.0))
    assert transport.capabilities.settle_delay == 90.0


def test_an_unknown_kind_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"transports\.relay\.kind"):
        open_transport(settings("pigeon", tmp_path))


def test_the_table_imports_no_transport_and_nothing_heavy() -> None:
    probe = "import sys, notifyctl.transports.registry; print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"smtplib", "ssl", "socket", "email", "subprocess", "logging", "pathlib", "notifyctl.transports.base"}
    assert not (heavy | {"httpx"}) & set(loaded)
