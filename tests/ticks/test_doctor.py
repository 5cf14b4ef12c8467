"""What `doctor` says is what the program then does: the end of doubt, the clocks, and what the kinds declare."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from notifyctl.config import load
from notifyctl.model import Capabilities, Channel, Lane, OnAmbiguous, Receipts, Search
from notifyctl.settings import TransportSettings
from notifyctl.ticks import prospects
from notifyctl.ticks.doctor import Doctor
from notifyctl.transports import capabilities, postmark_codes, registry, smtp_codes, twilio_codes
from notifyctl.transports.telnyx import Telnyx
from tests.cli.rig import CONFIG
from tests.ledger.databases import Database

SETTINGS = TransportSettings("out", "file", {}, Path("/"))
PLAIN = Capabilities(frozenset({Channel.EMAIL}))
FOUND_BY = {"search": Search.RECIPIENT_TIME, "settle_delay": 900.0}
PROVEN = {"search": Search.OWN_KEY, "absence_proves_unsent": True}
REPLAYED = {"replay_window": 86400.0}


def lane(policy: str = "auto", **more: Any) -> Lane:
    return Lane("email", Channel.EMAIL, "out", on_ambiguous=OnAmbiguous(policy), **more)


@pytest.mark.parametrize(
    ("policy", "able", "ends", "words"),
    [
        ("auto", {}, {"cannot_tell": "held"}, "held for a person at once; after 1d a dead letter"),
        ("hold", PROVEN, {"cannot_tell": "held"}, "after 1d a last look-up, then a dead letter"),
        ("resend", {}, {"cannot_tell": "duplicate"}, "sent again, perhaps as a duplicate"),
        ("auto", REPLAYED, {"cannot_tell": "replayed"}, "replayed under the same key within 23h"),
        (
            "auto", PROVEN, {"found": "accepted", "absent": "sent_again", "cannot_tell": "asked_again"},
            "not found is sent again (it proves that nothing went)",
        ),
        (
            "auto", FOUND_BY, {"found": "accepted", "absent": "asked_again", "cannot_tell": "asked_again"},
            "looked up by recipient and time after 15m",
        ),
        (
            "auto", {**FOUND_BY, **REPLAYED}, {"found": "accepted", "absent": "replayed", "cannot_tell": "replayed"},
            "not found is replayed",
        ),
        (
            "resend", FOUND_BY, {"found": "accepted", "absent": "duplicate", "cannot_tell": "duplicate"},
            "perhaps as a duplicate",
        ),
        ("auto", {"replay_window": 30.0}, {"cannot_tell": "held"}, "held for a person"),
    ],
)  # fmt: skip
def test_the_end_of_doubt_is_put_into_words(policy: str, able: Any, ends: dict[str, str], words: str) -> None:
    said = prospects.prospect(lane(policy), replace(PLAIN, **able), SETTINGS)
    assert said.ends == ends
    assert words in said.words


@pytest.mark.parametrize(
    ("style", "feeds", "said"),
    [
        (Receipts.NONE, False, "none: accepted is the end"),
        (Receipts.LOOKUP, False, "looked up after 15s, then every 16m at most, until 3d"),
        (Receipts.FEED, True, "event feed read every 50s, until 3d"),
        (Receipts.BOUNCES_ONLY, True, "accepted is the end where none has come within 3d"),
    ],
)
def test_how_receipts_come_is_put_into_words(style: Receipts, feeds: bool, said: str) -> None:
    assert said in prospects.receipts(lane(), replace(PLAIN, receipts=style), SETTINGS, feeds=feeds)


@pytest.mark.parametrize(
    ("able", "own", "transport", "said"),
    [
        ({"receipts": Receipts.LOOKUP, "receipt_window": 86400.0}, {}, {}, "keeps statuses for 1d"),
        ({"search": Search.OWN_KEY, "settle_delay": 90000.0}, {}, {}, "before a look-up can be trusted"),
        ({"replay_window": 30.0}, {}, {}, "nothing is ever replayed"),
        ({}, {"give_up_after": 60.0}, {}, "there is no second try"),
        ({"receipts": Receipts.FEED}, {}, {"poll_every": 1e6}, "its feed is read every"),
    ],
)
def test_times_that_defeat_one_another_are_told(able: Any, own: Any, transport: Any, said: str) -> None:
    fine = list(prospects.flaws(lane(), PLAIN, SETTINGS, feeds=False))
    settings = replace(SETTINGS, **transport)
    found = list(prospects.flaws(lane(**own), replace(PLAIN, **able), settings, feeds=bool(transport)))
    assert fine == []
    assert any(said in detail and ("lanes.email." in hint or "transports.out." in hint) for detail, hint in found)


def shifted(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def test_a_clock_beside_the_ledgers_is_told_with_its_side(tmp_path: Path, migrated_url: str) -> None:
    config_file = tmp_path / "notifyctl.toml"
    config_file.write_text(CONFIG.partition("[lanes.sms]")[0].replace("sqlite:///ledger.db", migrated_url))
    config = load(config_file, environ={}, kinds=registry.KINDS)
    if migrated_url.startswith("sqlite:"):  # on SQLite the ledger's clock is that of its last write
        with Database(migrated_url) as ledger:
            now = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S.%f}"
            ledger.execute("UPDATE notify_meta SET value = ? WHERE key = 'clock_mark'", now)
    for shift, codes in ((0.0, {0}), (-60.0, {3})):
        doctor = Doctor(config, wall=partial(shifted, shift))
        doctor.examine()
        doctor.close()
        (clock,) = [one for one in doctor.checks if one.what == "clock"]
        assert {clock.code} == codes, clock
        assert "behind" in clock.detail or not shift


def test_the_table_has_a_row_for_all_that_is_declared() -> None:
    assert set(capabilities.WORDS) == {one.name for one in fields(Capabilities)}
    heading, rows = capabilities.table()
    assert heading == ("", *registry.KINDS)
    assert {len(row) for row in rows} == {len(heading)}


def test_what_is_told_apart_stands_in_the_code_tables() -> None:
    tables: dict[str, set[str]] = {
        "smtp": {row.reason for row in smtp_codes.TABLE},
        "postmark": {*(one.reason for one in postmark_codes.CODES.values()), *postmark_codes.SUPPRESSED.values(),
                     *(reason for _, reason in postmark_codes.TYPES.values())},
        "telnyx": {one.reason for one in Telnyx.CODES.values()},
        "twilio": {one.reason for one in twilio_codes.CODES.values()},
    }  # fmt: skip
    declared = capabilities.declared()
    assert set(declared) == {*tables, "file"}
    for kind, reasons in tables.items():
        assert declared[kind].invalid_distinct == ("invalid_recipient" in reasons), kind
        assert declared[kind].optout_distinct == ("opted_out" in reasons), kind
        assert declared[kind].terminal_distinct == (declared[kind].receipts is not Receipts.NONE), kind
