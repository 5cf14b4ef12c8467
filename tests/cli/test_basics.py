"""What holds for every command: streams, exit codes, errors, environment; and the commands that set a ledger up."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from notifyctl.cli.output import Output
from notifyctl.cli.setup import TICKS
from notifyctl.errors import ConfigError
from tests.cli.rig import CONFIG, Folder, command, environment, failure

ASCII = environment(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """An installation on SQLite, not migrated."""
    return Folder(tmp_path)


@pytest.fixture
def ledger(tmp_path: Path, ledger_url: str) -> Folder:
    """An installation on each database, migrated, with one template."""
    made = Folder(tmp_path, ledger_url)
    assert made.run("migrate").returncode == 0
    made.template("welcome/1", subject="Grüße, {{ name }}", text="Grüße\n")
    return made


# -- for all commands ---------------------------------------------------------------------------------------------


def test_the_version_is_said_on_stdout(folder: Folder) -> None:
    done = folder.run("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("notifyctl 0.")
    assert folder.run("--config", "x", "--version").stdout == done.stdout


def test_help_lists_every_command_and_imports_none(folder: Folder) -> None:
    done = folder.run("--help")
    assert (done.returncode, done.stderr) == (0, "")
    for name in ("init", "migrate", "template"):
        assert f"\n  {name} " in done.stdout
    program = "import sys; from notifyctl.cli import main; main(['--help']); sys.exit('rich' in sys.modules or 'notifyctl.cli.setup' in sys.modules)"  # fmt: skip # noqa: E501
    lone = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, check=False)
    assert lone.returncode == 0


def test_every_listed_command_has_help_of_its_own(folder: Folder) -> None:
    from notifyctl.cli.app import FAMILIES

    for name in FAMILIES:
        done = folder.run(name, "--help")
        assert done.returncode == 0, done.stderr
        assert f"notifyctl {name}" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "missing command"),
        (["migrat"], "did you mean 'migrate'?"),
        (["migrate", "--nonsense"], "no such option"),
        (["migrate", "extra"], "unexpected extra argument"),
        (["--config"], "option '--config' requires an argument"),
        (["template"], "a command is missing"),
        (["template", "show"], "missing argument"),
        (["migrate", "--log-level", "loud"], "--log-level is 'loud'; it may be debug, info, warning, error"),
        (["migrate", "--log-format", "xml"], "--log-format is 'xml'"),
        (["migrate", "--quiet", "--verbose"], "contradict each other"),
        (["migrate", "--sql", "--reset-clock"], "--sql changes nothing"),
    ],
)
def test_a_malformed_command_line_is_exit_2_with_one_sentence(folder: Folder, arguments: list[str], says: str) -> None:
    done = folder.run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert says.lower() in done.stderr.lower()
    assert done.stderr.startswith("notifyctl: ")
    assert len(done.stderr.splitlines()) <= 3
    assert "Traceback" not in done.stderr


def test_under_json_a_failure_ends_stderr_with_an_object(folder: Folder) -> None:
    done = folder.run("migrate", "--json", "--config", "missing.toml")
    assert (done.returncode, done.stdout) == (78, "")
    error = failure(done)
    assert error["code"] == "no_config"
    assert f"{folder.path}/missing.toml" in error["message"]
    usage = folder.run("migrate", "--json", "--nonsense")
    assert usage.returncode == 2
    assert failure(usage)["code"] == "usage"


def test_the_configuration_precedes_or_follows_the_command(folder: Folder) -> None:
    assert folder.run("--config", str(folder.config), "migrate", cwd="/").returncode == 0
    assert folder.run("migrate", "--config", str(folder.config), cwd="/").returncode == 0
    assert folder.run("migrate", cwd="/", env=environment(NOTIFYCTL_CONFIG=str(folder.config))).returncode == 0
    missing = folder.run("migrate", cwd="/")
    assert missing.returncode == 78
    assert "tried /notifyctl.toml, /etc/notifyctl/notifyctl.toml" in missing.stderr


def test_a_configuration_error_is_exit_78_with_file_key_and_remedy(folder: Folder) -> None:
    folder.configure(CONFIG.replace("instance", "instence"))
    done = folder.run("migrate")
    assert done.returncode == 78
    assert done.stderr.splitlines()[0] == (
        f"notifyctl: {folder.config}: instence is not a known key; did you mean instance?"
    )


def test_a_reader_that_goes_away_ends_output_quietly(ledger: Folder) -> None:
    assert ledger.run("template", "publish").returncode == 0
    reader, writer = os.pipe()
    os.close(reader)
    done = ledger.run("template", "show", "welcome", stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [["template", "show", "welcome"], ["--version"], ["--help"]])
def test_a_stdout_that_takes_nothing_is_reported(ledger: Folder, arguments: list[str]) -> None:
    ledger.run("template", "publish")
    with open("/dev/full", "w") as full:
        done = ledger.run(*arguments, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 75
    assert done.stderr.startswith("notifyctl: the result cannot be written to standard output: no space left")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_closed_streams_do_no_harm(ledger: Folder, closed: str) -> None:
    """A ledger file opened as descriptor 1 or 2 would be written over by whatever is printed."""
    line = " ".join(f"'{word}'" for word in command("template", "publish"))
    done = subprocess.run(
        ["/bin/sh", "-c", f"{line} {closed}"], cwd=ledger.path, env=environment(), capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert ledger.json("template", "list")[0]["name"] == "welcome"


def test_in_an_ascii_locale_characters_are_escaped_and_nothing_fails(ledger: Folder) -> None:
    assert ledger.run("template", "publish", env=ASCII).returncode == 0
    done = ledger.run("template", "show", "welcome", env=ASCII)
    assert done.returncode == 0
    assert "Gr\\xfc\\xdfe" in done.stdout
    document = json.loads(ledger.run("template", "show", "welcome", "--json", env=ASCII).stdout)
    assert document["parts"][0]["body"] == "Grüße, {{ name }}"
    ledger.configure(ledger.config.read_text() + '[topics."grüße"]\nlane = "größe"\n')
    wrong = ledger.run("template", "list", env=ASCII)
    assert wrong.returncode == 78
    assert "gr\\xf6\\xdfe" in wrong.stderr


def test_a_bug_is_exit_1_in_one_line_that_quotes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    from notifyctl.cli import app

    secret = "hunter2@example.com"
    for debug in (False, True):
        output = Output(sys.stdout, sys.stderr, {})
        try:
            int(secret)
        except ValueError as error:
            code = app._bug(output, error, traceback=debug)
        said = capsys.readouterr().err
        assert code == 1
        assert "internal error: ValueError" in said
        assert secret not in said
        assert ("File " in said) is debug
        assert ("run again with --log-level debug" in said) is not debug


def test_an_error_of_ours_keeps_its_code_and_hint(capsys: pytest.CaptureFixture[str]) -> None:
    error = ConfigError("a is wrong", hint="do b")
    assert Output(sys.stdout, sys.stderr, {}).failure(error) == 78
    assert capsys.readouterr().err == "notifyctl: a is wrong\n  do b\n"
    Output(sys.stdout, sys.stderr, {}, json=True).failure(error)
    assert json.loads(capsys.readouterr().err) == {"error": {"code": "config", "message": "a is wrong", "hint": "do b"}}


@pytest.mark.parametrize(
    ("environ", "color"),
    [({"TERM": "xterm"}, True), ({"TERM": "dumb"}, False), ({}, False), ({"TERM": "xterm", "NO_COLOR": "1"}, False)],
)
def test_colour_is_for_terminals_that_want_it(environ: dict[str, str], color: bool) -> None:
    leader, follower = os.openpty()
    with open(follower, "w") as terminal:
        output = Output(terminal, terminal, environ)
        assert output.is_tty
        assert output.color is color
    os.close(leader)
    with open(os.devnull, "w") as file:
        assert not Output(file, file, environ).color


# -- init ---------------------------------------------------------------------------------------------------------


def test_init_makes_an_installation_that_works(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.config.unlink()
    done = folder.run("init", "--instance", 'Öffis "A"')
    assert (done.returncode, done.stderr) == (0, "")
    assert f" --config {folder.config} dispatch" in done.stdout
    assert (tmp_path / "notifyctl.db").exists()
    assert folder.json("migrate")["instance"] == 'Öffis "A"'
    assert folder.json("template", "publish")["published"] == ["welcome@1"]
    again = folder.run("init")
    assert again.returncode == 78
    assert "exists and is not overwritten" in again.stderr


def test_init_without_a_terminal_names_the_instance_production_and_keeps_templates(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.config.unlink()
    folder.template("welcome/1", subject="mine", text="mine")
    done = folder.json("init")
    assert done["instance"] == "production"
    assert done["kept"] == [f"{tmp_path}/templates/welcome/1/body.txt", f"{tmp_path}/templates/welcome/1/subject.txt"]
    assert (tmp_path / "templates/welcome/1/subject.txt").read_text() == "mine"
    assert [line.split()[-1] for line in done["crontab"]] == list(TICKS)


def test_init_as_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.config.unlink()
    assert folder.json("init", "--dry-run")["written"]
    assert list(tmp_path.iterdir()) == []


def test_init_where_nothing_can_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = Folder(tmp_path).run("init", "--config", str(tmp_path / "file" / "notifyctl.toml"))
    assert done.returncode == 78
    assert "cannot be written" in done.stderr
    assert "Traceback" not in done.stderr


# -- migrate ------------------------------------------------------------------------------------------------------


def test_migrate_makes_the_ledger_and_is_safe_to_repeat(tmp_path: Path, ledger_url: str) -> None:
    folder = Folder(tmp_path, ledger_url)
    assert folder.json("migrate", "--dry-run")["pending"] == ["0001_ledger"]
    assert folder.json("migrate", "--dry-run")["pending"] == ["0001_ledger"]
    assert folder.json("migrate")["applied"] == ["0001_ledger"]
    second = folder.json("migrate")
    assert (second["applied"], second["pending"], second["version"]) == ([], [], 1)
    assert folder.run("migrate").stdout == "the ledger is up to date (version 1)\n"


def test_a_dry_run_of_migrate_makes_no_file(folder: Folder) -> None:
    folder.run("migrate", "--dry-run")
    assert not (folder.path / "ledger.db").exists()


def test_migrate_prints_the_sql_that_is_still_to_be_applied(tmp_path: Path, ledger_url: str) -> None:
    folder = Folder(tmp_path, ledger_url)
    assert "CREATE TABLE notify_delivery" in folder.json("migrate", "--sql")["sql"]
    assert not (tmp_path / "ledger.db").exists()
    folder.run("migrate")
    assert folder.json("migrate", "--sql")["sql"] == ""


def test_a_copy_under_another_instances_name_is_refused_until_it_is_adopted(ledger: Folder) -> None:
    ledger.configure(ledger.config.read_text().replace('"test"', '"staging"'))
    for arguments in (["migrate"], ["template", "list"], ["template", "publish"]):
        done = ledger.run(*arguments)
        assert done.returncode == 78
        assert 'belongs to instance "test", the configuration says "staging"' in done.stderr
        assert "migrate --adopt-instance" in done.stderr
    assert ledger.json("migrate", "--adopt-instance", "--dry-run")["adopted_from"] == "test"
    assert ledger.run("template", "list").returncode == 78
    assert ledger.json("migrate", "--adopt-instance")["adopted_from"] == "test"
    assert ledger.run("template", "list").returncode == 0


def test_a_command_on_a_ledger_that_was_never_made_names_the_command_to_run(tmp_path: Path, ledger_url: str) -> None:
    done = Folder(tmp_path, ledger_url).run("template", "list")
    assert done.returncode == 78
    assert "notifyctl migrate" in done.stderr


def test_a_clock_mark_far_ahead_is_exit_75_until_the_clock_is_reset(folder: Folder) -> None:
    folder.run("migrate")
    connection = sqlite3.connect(folder.path / "ledger.db")
    connection.execute("UPDATE notify_meta SET value = '2999-01-01 00:00:00.000000' WHERE key = 'clock_mark'")
    connection.commit()
    connection.close()
    done = folder.run("template", "list")
    assert done.returncode == 75
    assert "migrate --reset-clock" in done.stderr
    assert folder.json("migrate", "--reset-clock")["clock_reset"] is True
    assert folder.run("template", "list").returncode == 0


def test_a_postgres_that_nobody_listens_for_is_exit_75(tmp_path: Path) -> None:
    done = Folder(tmp_path, "postgresql://u:hunter2@127.0.0.1:1/db").run("template", "list")
    assert done.returncode == 75
    assert "Traceback" not in done.stderr
    assert "hunter2" not in done.stderr


def test_a_log_file_that_cannot_be_written_is_named_and_stops_nobody(folder: Folder) -> None:
    folder.configure(CONFIG + '[log]\nfile = "missing/notifyctl.log"\n')
    done = folder.run("migrate")
    assert done.returncode == 0
    assert f"the log file {folder.path}/missing/notifyctl.log cannot be written" in done.stderr


# -- template -----------------------------------------------------------------------------------------------------


def test_publishing_twice_changes_nothing_and_other_bytes_are_refused_by_name(ledger: Folder) -> None:
    assert ledger.json("template", "publish", "--dry-run")["published"] == ["welcome@1"]
    assert ledger.json("template", "list") == []
    assert ledger.json("template", "publish")["published"] == ["welcome@1"]
    assert ledger.json("template", "publish")["unchanged"] == ["welcome@1"]
    ledger.template("welcome/1", subject="Grüße, {{ name }}!")
    ledger.template("welcome/2", subject="Grüße, {{ name }}!", text="Grüße\n")
    done = ledger.run("template", "publish")
    assert done.returncode == 65
    assert done.stdout == "published welcome@2\n"
    assert "template welcome@1 is published with other contents; publish a new version" in done.stderr
    shown = ledger.json("template", "show", "welcome@1")
    assert next(part["body"] for part in shown["parts"] if part["part"] == "subject") == "Grüße, {{ name }}"


def test_the_version_published_last_is_the_newest(ledger: Folder) -> None:
    for version in ("2", "10"):
        ledger.template(f"welcome/{version}", subject=f"v{version}", text="x")
    ledger.template("code/1", sms="Code {{ code }}")
    assert ledger.json("template", "publish", "welcome@10")["published"] == ["welcome@10"]
    assert ledger.json("template", "publish", "welcome")["published"] == ["welcome@1", "welcome@2"]
    assert ledger.json("template", "publish")["published"] == ["code@1"]
    listed = ledger.json("template", "list")
    assert [(one["name"], one["version"], one["newest"]) for one in listed] == [
        ("code", "1", True), ("welcome", "10", False), ("welcome", "1", False), ("welcome", "2", True),
    ]  # fmt: skip
    assert listed[0]["published_at"].endswith("Z")
    assert ledger.json("template", "show", "welcome")["version"] == "2"
    assert "welcome  2 (newest)" in ledger.run("template", "list").stdout


def test_a_template_with_a_syntax_error_is_refused_and_the_rest_is_published(ledger: Folder) -> None:
    ledger.template("broken/1", subject="x", text="{% if %}")
    done = ledger.json("template", "publish", code=65)
    assert done["published"] == ["welcome@1"]
    assert [error["template"] for error in done["errors"]] == ["broken@1"]
    plain = ledger.run("template", "publish")
    assert plain.returncode == 65
    assert "broken@1" in plain.stderr
    assert "line 1" in plain.stderr


def test_an_unknown_template_is_exit_65_with_where_to_look(ledger: Folder) -> None:
    for arguments in (["publish", "nope"], ["show", "nope"], ["show", "welcome@9"]):
        done = ledger.run("template", *arguments)
        assert done.returncode == 65
        assert arguments[1] in done.stderr
    (ledger.path / "templates").rename(ledger.path / "elsewhere")
    assert ledger.run("template", "publish").returncode == 65
