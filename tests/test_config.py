"""The configuration: what loads, and that every fault names file, key and remedy."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from notifyctl import configfile, units
from notifyctl.config import Config, load
from notifyctl.errors import ConfigError, InputError
from notifyctl.model import Backoff, Channel, ConsentMode, OnAmbiguous, Rate, ReceiptPolicy
from notifyctl.transports.registry import KINDS

SAMPLE = """
instance = "production"
region = "eu"
[ledger]
url = "sqlite:///notifyctl.db"
patience = "3s"
[templates]
path = "templates"
default_locale = "de"
[objects]
root = "reports/"
[log]
file = "notifyctl.log"
[phone]
default_region = "GB"
[transports.relay]
kind = "smtp"
host = "127.0.0.1"
port = 2525
from = "Shop <no-reply@example.com>"
password_env = "RELAY_PASSWORD"
deadline = "60s"
drain = "10s"
rate = "10/s"
[transports.out]
kind = "file"
path = "outbox"
[lanes.email]
channel = "email"
transport = "relay"
batch = 100
concurrency = 10
rate = ["10/s", "10000/d"]
per_destination = "5/h"
lease = "60s"
max_attempts = 8
give_up_after = "3d"
ambiguous_review_after = "24h"
backoff = { base = "15s", cap = "16m" }
on_ambiguous = "hold"
receipt = { first = "15s", cap = "16m", deadline = "72h" }
objective = { oldest_age = "5m" }
max_segments = 6
[lanes.sms]
channel = "sms"
transport = "out"
[topics.weekly-digest]
consent = "required"
lane = "email"
[retention]
terminal = "400d"
sensitive_variables = "on_terminal"
"""
LEAST = 'instance = "a"\n[ledger]\nurl = "sqlite:///a.db"\n'
RELAY = LEAST + '[transports.relay]\nkind = "smtp"\nhost = "127.0.0.1"\n'


def read(folder: Path, text: str, environ: dict[str, str] | None = None) -> Config:
    path = folder / "notifyctl.toml"
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    return load(path, environ=environ or {}, kinds=KINDS)


def fault(folder: Path, text: str, environ: dict[str, str] | None = None) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        read(folder, text, environ)
    return caught.value


def test_the_documented_sample_loads_with_every_value_in_seconds_and_absolute_paths(tmp_path: Path) -> None:
    config = read(tmp_path, SAMPLE)
    assert (config.instance, config.region, config.patience, config.default_locale) == ("production", "eu", 3.0, "de")
    assert config.url == f"sqlite:///{tmp_path}/notifyctl.db"
    assert config.templates_path == tmp_path / "templates"
    assert config.log.file == tmp_path / "notifyctl.log"
    assert config.objects_root == f"{tmp_path}/reports/"
    assert config.phone_region == "GB"
    relay = config.transports["relay"]
    assert (relay.kind, relay.sender, relay.deadline, relay.drain) == (
        "smtp",
        "Shop <no-reply@example.com>",
        60.0,
        10.0,
    )
    assert relay.options == {"host": "127.0.0.1", "port": 2525, "password_env": "RELAY_PASSWORD"}
    assert relay.rates == (Rate(10, 1, "10/s"),)
    assert relay.base == tmp_path
    lane = config.lanes["email"]
    assert (lane.channel, lane.transport, lane.batch, lane.concurrency) == (Channel.EMAIL, "relay", 100, 10)
    assert lane.rates == (Rate(10, 1, "10/s"), Rate(10000, 86400, "10000/d"))
    assert lane.per_destination == (Rate(5, 3600, "5/h"),)
    assert (lane.lease, lane.give_up_after, lane.ambiguous_review_after) == (60.0, 259200.0, 86400.0)
    assert lane.backoff == Backoff(15.0, 960.0)
    assert lane.receipt == ReceiptPolicy(15.0, 960.0, 259200.0)
    assert lane.on_ambiguous is OnAmbiguous.HOLD
    assert (lane.oldest_age, lane.max_segments) == (300.0, 6)
    assert config.topics["weekly-digest"].consent is ConsentMode.REQUIRED
    assert config.retention_terminal == 400 * 86400.0
    assert config.warnings == ()


def test_what_is_not_given_has_the_documented_default(tmp_path: Path) -> None:
    lane = read(tmp_path, RELAY + '[lanes.mail]\nchannel = "email"\ntransport = "relay"\n').lanes["mail"]
    assert (lane.batch, lane.concurrency, lane.lease, lane.max_attempts) == (100, 10, 60.0, 8)
    assert (lane.rates, lane.on_ambiguous, lane.oldest_age) == ((), OnAmbiguous.AUTO, 300.0)
    config = read(tmp_path, RELAY)
    assert (config.region, config.patience, config.log.level) == ("", 10.0, "info")
    assert (config.transports["relay"].deadline, config.transports["relay"].cooldown) == (60.0, 30.0)


def test_a_delivery_without_a_lane_gets_its_topics_or_its_channels(tmp_path: Path) -> None:
    config = read(tmp_path, SAMPLE)
    assert config.lane_for(Channel.SMS, "weekly-digest") == "email"
    assert config.lane_for(Channel.SMS, "unknown") == "sms"
    assert config.lane_for(Channel.EMAIL) == "email"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("sqlite:///sub/a.db", "sqlite:///{folder}/sub/a.db"),
        ("sqlite:////var/lib/a.db", "sqlite:////var/lib/a.db"),
        ("postgresql://u@h/db", "postgresql://u@h/db"),
        ("postgresql+psycopg://u@h:5433/db?sslmode=require", "postgresql://u@h:5433/db?sslmode=require"),
    ],
)
def test_a_ledgers_address_may_be_given_in_these_forms(tmp_path: Path, given: str, kept: str) -> None:
    assert read(tmp_path, f'instance = "a"\n[ledger]\nurl = "{given}"\n').url == kept.format(folder=tmp_path)


@pytest.mark.parametrize(
    "given",
    ["notifyctl.db", "sqlite://a.db", "sqlite:///", "sqlite:///:memory:", "mysql://u:hunter2@h/db", "postgresql://"],
)
def test_another_address_is_refused_without_quoting_it(tmp_path: Path, given: str) -> None:
    error = fault(tmp_path, f'instance = "a"\n[ledger]\nurl = "{given}"\n')
    assert error.message == f"{tmp_path}/notifyctl.toml: ledger.url is not the address of a ledger"
    assert "hunter2" not in error.message + error.hint
    assert "postgresql://" in error.hint


def test_the_environment_stands_above_the_file_and_is_named_when_it_is_wrong(tmp_path: Path) -> None:
    environ = {"NOTIFYCTL_LEDGER_URL": "postgresql://h/db", "NOTIFYCTL_REGION": "us", "NOTIFYCTL_LOG_LEVEL": "error"}
    config = read(tmp_path, SAMPLE, environ)
    assert (config.url, config.region, config.log.level) == ("postgresql://h/db", "us", "error")
    wrong = fault(tmp_path, SAMPLE, {"NOTIFYCTL_LOG_LEVEL": "loud"})
    assert wrong.message == "$NOTIFYCTL_LOG_LEVEL is 'loud'; it may be debug, info, warning or error"
    assert read(tmp_path, 'instance = "a"\n', {"NOTIFYCTL_LEDGER_URL": "sqlite:////a.db"}).url == "sqlite:////a.db"


def test_a_url_with_a_password_is_not_shown_by_repr(tmp_path: Path) -> None:
    config = read(tmp_path, 'instance = "a"\n[ledger]\nurl = "postgresql://u:hunter2@h/db"\n')
    assert "hunter2" not in repr(config)


# -- faults -------------------------------------------------------------------------------------------------------


def test_without_a_configuration_every_path_that_was_tried_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if Path("/etc/notifyctl/notifyctl.toml").exists():
        pytest.skip("this machine has a configuration in /etc")
    with pytest.raises(ConfigError) as caught:
        load(None, environ={}, kinds=KINDS)
    assert caught.value.message == (
        f"there is no configuration: tried {tmp_path}/notifyctl.toml, /etc/notifyctl/notifyctl.toml"
    )
    assert "notifyctl init" in caught.value.hint
    assert caught.value.exit_code == 78


def test_the_configuration_is_looked_for_where_it_is_named_and_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notifyctl.toml").write_text(LEAST)
    named = tmp_path / "named.toml"
    with pytest.raises(ConfigError, match=r"named\.toml$"):
        load(None, environ={"NOTIFYCTL_CONFIG": str(named)}, kinds=KINDS)
    named.write_text(LEAST)
    assert load(None, environ={"NOTIFYCTL_CONFIG": str(named)}, kinds=KINDS).path == named
    assert load(None, environ={}, kinds=KINDS).path == tmp_path / "notifyctl.toml"
    other = tmp_path / "other.toml"
    other.write_text(LEAST)
    assert load(other, environ={"NOTIFYCTL_CONFIG": str(named)}, kinds=KINDS).path == other


def test_a_removed_working_directory_is_no_bug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(ConfigError, match=r"tried notifyctl\.toml, "):
        load(None, environ={}, kinds=KINDS)


def test_bad_toml_names_file_and_line(tmp_path: Path) -> None:
    error = fault(tmp_path, 'instance = "a"\n[ledger\n')
    assert error.message.startswith(f"{tmp_path}/notifyctl.toml: not valid TOML: ")
    assert "line 2" in error.message


def test_bytes_that_are_not_utf8_name_the_line(tmp_path: Path) -> None:
    path = tmp_path / "notifyctl.toml"
    path.write_bytes(b'instance = "a"\nregion = "\xff"\n')
    with pytest.raises(ConfigError, match="line 2 is not UTF-8"):
        load(path, environ={}, kinds=KINDS)


def test_toml_nested_beyond_reason_is_refused(tmp_path: Path) -> None:
    assert "not valid TOML" in fault(tmp_path, "a = " + "[" * 100_000).message


def test_a_folder_in_the_place_of_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: is a directory"):
        load(tmp_path, environ={}, kinds=KINDS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LEAST + "[ledgr]\n", "ledgr is not a known key; did you mean ledger?"),
        (LEAST + "[ledger.x]\n", "ledger.x is not a known key"),
        (LEAST + '[log]\nlevle = "info"\n', "log.levle is not a known key; did you mean level?"),
        (RELAY + 'pasword_env = "X"\n', "transports.relay.pasword_env is not a known key; did you mean password_env?"),
        (RELAY + "[lanes.e]\nchanel = 'email'\n", "lanes.e.chanel is not a known key; did you mean channel?"),
        (RELAY + "[lanes.e]\nbackoff = { bse = '1s' }\n", "lanes.e.backoff.bse is not a known key; did you mean base?"),
        (LEAST + "[topics.t]\nconsents = 'none'\n", "topics.t.consents is not a known key; did you mean consent?"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_known_one(tmp_path: Path, text: str, message: str) -> None:
    assert fault(tmp_path, text).message == f"{tmp_path}/notifyctl.toml: {message}"


LANE = RELAY + '[transports.out]\nkind = "file"\npath = "o"\n[lanes.e]\nchannel = "email"\ntransport = "relay"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[ledger]\nurl = 'sqlite:///a.db'\n", "instance is missing"),
        ('instance = "a"\n', "ledger.url is missing"),
        ("instance = 5\n", "instance must be a text, not a number"),
        ('instance = "a"\nledger = "x"\n', "ledger must be a table, not a text"),
        (LEAST + "lanes = 3\n", "ledger.lanes is not a known key"),
        (LEAST + "[lanes]\ne = 3\n", "lanes.e must be a table, not a number"),
        (LEAST + "[transports.t]\n", "transports.t.kind is missing"),
        (
            LEAST + "[transports.t]\nkind = 'smpt'\n",
            "transports.t.kind: no kind of transport is called 'smpt'; did you mean smtp?",
        ),
        (RELAY + "[lanes.e]\ntransport = 'relay'\n", "lanes.e.channel is missing"),
        (RELAY + "[lanes.e]\nchannel = 'email'\n", "lanes.e.transport is missing"),
        (RELAY + "[lanes.e]\nchannel = 'fax'\n", "lanes.e.channel is 'fax'; it may be email or sms"),
        (
            RELAY + "[lanes.e]\nchannel = 'email'\ntransport = 'realy'\n",
            "lanes.e.transport: no transport is called 'realy'; did you mean relay?",
        ),
        (
            RELAY + "[lanes.s]\nchannel = 'sms'\ntransport = 'relay'\n",
            "lanes.s.channel is 'sms', but transport 'relay' (kind smtp) serves email",
        ),
        (LANE + "lease = '1s'\n", 'lanes.e.lease is "1s"; the least is "2s"'),
        (LANE + "lease = 60\n", "lanes.e.lease is the bare number 60"),
        (LANE + "lease = '60'\n", "lanes.e.lease is wrong: the duration '60' has no unit"),
        (LANE + "give_up_after = '3 days'\n", "lanes.e.give_up_after is wrong: '3 days' is not a duration"),
        (LANE + "give_up_after = '0s'\n", "lanes.e.give_up_after must be longer than nothing"),
        (LANE + "rate = '50'\n", "lanes.e.rate is wrong: '50' is not a rate"),
        (LANE + "rate = ['50/s', '0/d']\n", "lanes.e.rate is wrong: '0/d' is not a rate"),
        (LANE + "batch = 0\n", "lanes.e.batch is 0; the least is 1"),
        (LANE + "batch = true\n", "lanes.e.batch must be a whole number, not true or false"),
        (LANE + "batch = '10'\n", "lanes.e.batch must be a whole number, not a text"),
        (LANE + "transliterate = 'yes'\n", "lanes.e.transliterate must be true or false, not a text"),
        (LANE + "receipt = '15s'\n", "lanes.e.receipt must be a table, not a text"),
        (LANE + "on_ambiguous = 'retry'\n", "lanes.e.on_ambiguous is 'retry'; it may be auto, hold or resend"),
        (LANE + "[topics.t]\nlane = 'mail'\n", "topics.t.lane: no lane is called 'mail'"),
        (LANE + '[topics.t]\nlane = "a\\u0000b"\n', "topics.t.lane holds a control character"),
        (RELAY + "password = 'a'\npassword_env = 'B'\n", "transports.relay has both password and password_env"),
    ],
)
def test_a_wrong_value_is_named_with_its_key(tmp_path: Path, text: str, message: str) -> None:
    assert fault(tmp_path, text).message == f"{tmp_path}/notifyctl.toml: {message}"


def test_a_bare_number_gets_the_unit_it_lacks_as_a_hint(tmp_path: Path) -> None:
    assert fault(tmp_path, LANE + "lease = 60\n").hint == 'give a unit, such as "60s"'


def test_a_secret_in_a_file_that_others_can_read_is_warned_about_and_never_quoted(tmp_path: Path) -> None:
    path = tmp_path / "notifyctl.toml"
    path.write_text(RELAY + 'password = "hunter2"\n')
    path.chmod(0o644)
    config = load(path, environ={}, kinds=KINDS)
    assert len(config.warnings) == 1
    assert "transports.relay.password" in config.warnings[0]
    assert "hunter2" not in config.warnings[0] + repr(config)
    path.chmod(0o640)
    assert load(path, environ={}, kinds=KINDS).warnings == ()


def test_a_name_is_no_secret_to_warn_about(tmp_path: Path) -> None:
    path = tmp_path / "notifyctl.toml"
    path.write_text(RELAY + 'username = "shop"\npassword_file = "password"\n')
    path.chmod(0o644)
    assert load(path, environ={}, kinds=KINDS).warnings == ()


def test_every_key_of_a_lane_reaches_the_model(tmp_path: Path) -> None:
    """A key that is checked and then dropped would be a setting without effect."""
    changed = {
        "batch": "7", "concurrency": "3", "rate": "'2/m'", "per_destination": "'2/d'", "lease": "'9s'",
        "max_attempts": "2", "give_up_after": "'4h'", "ambiguous_review_after": "'5h'", "backoff": "{ base = '2s' }",
        "on_ambiguous": "'resend'", "receipt": "{ first = '3s' }", "objective": "{ oldest_age = '8m' }",
        "max_segments": "4", "max_bytes": "99", "transliterate": "true",
    }  # fmt: skip
    assert set(changed) | {"channel", "transport"} == set(configfile.LANE)
    plain = read(tmp_path, LANE).lanes["e"]
    for key, value in changed.items():
        assert read(tmp_path, LANE + f"{key} = {value}\n").lanes["e"] != plain, key


# -- units --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("15s", 15), ("16m", 960), ("72h", 259200), ("3d", 259200), ("1h30m", 5400), ("250ms", 0.25), ("0s", 0)],
)
def test_a_duration_is_a_number_and_a_unit(text: str, seconds: float) -> None:
    assert units.duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "5", "s", "5x", "-5s", "5 s", "1e3s", "5s5", "1.2.3s", "٣s", "99999999d", "." * 9]
)
def test_anything_else_is_no_duration(text: str) -> None:
    with pytest.raises(InputError):
        units.duration(text)


@pytest.mark.parametrize("text", ["", "5", "/s", "5/x", "-5/s", "1.5/s", "5/s/s", "²/s", "0/m"])
def test_anything_but_a_whole_number_per_unit_is_no_rate(text: str) -> None:
    with pytest.raises(InputError):
        units.rate(text)


@pytest.mark.parametrize(
    ("text", "hour"),
    [
        ("2027-03-28T09:00+02:00", 7),
        ("2027-03-28T09:00Z", 9),
        ("2027-03-28 09:00Z", 9),
        ("2027-03-28T09:00 Europe/London", 8),
        ("2027-03-28 09:00 Europe/London", 8),
        ("2027-03-28T09:00:00.000 UTC", 9),
    ],
)
def test_an_instant_has_an_offset_or_a_zone(text: str, hour: int) -> None:
    assert units.instant(text) == datetime(2027, 3, 28, hour, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("2027-03-28T09:00", "neither an offset nor a zone"),
        ("2027-03-28T09:00+02:00 Europe/London", "both an offset and a zone"),
        ("2027-03-28 Europe/London", "not a date and time"),
        ("tomorrow", "not a date and time"),
        ("2027-13-28T09:00Z", "not a date and time"),
        ("2027-03-28T09:00 Europe/Lodnon", "'Europe/Lodnon' is not a time zone"),
        ("2027-03-28T09:00 Europe", "is not a time zone"),
        ("2027-03-28T09:00 etc/../../passwd", "is not a time zone"),
        ("0001-01-01T00:00+14:00", "outside the years 1970 to 9999"),
    ],
)
def test_another_time_is_refused(text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        units.instant(text)
    assert says in caught.value.message
    assert caught.value.exit_code == 65


def test_a_misspelt_zone_is_answered_with_the_nearest() -> None:
    with pytest.raises(InputError) as caught:
        units.instant("2027-03-28T09:00 Europe/Lodnon")
    assert caught.value.hint == "did you mean Europe/London?"


def test_a_local_hour_that_the_clock_change_skips_is_refused_with_the_two_candidates() -> None:
    with pytest.raises(InputError) as caught:
        units.instant("2027-03-28T01:30 Europe/London")
    assert "does not exist" in caught.value.message
    assert caught.value.hint == "state which is meant: 2027-03-28T00:30+00:00 or 2027-03-28T02:30+01:00"


def test_a_local_hour_that_the_clock_change_repeats_is_refused_with_the_two_candidates() -> None:
    with pytest.raises(InputError) as caught:
        units.instant("2027-10-31T01:30 Europe/London")
    assert "happens twice" in caught.value.message
    assert caught.value.hint == "state which is meant: 2027-10-31T01:30+01:00 or 2027-10-31T01:30+00:00"


def test_an_instant_is_written_in_utc_with_a_z() -> None:
    assert units.iso(datetime(2027, 3, 28, 7, tzinfo=UTC)) == "2027-03-28T07:00:00Z"
    assert units.iso(units.instant("2027-03-28T09:00:00.25+02:00")) == "2027-03-28T07:00:00.250000Z"
