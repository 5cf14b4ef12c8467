"""The ledger out of reach, signals, and the surroundings of cron: nothing is lost and nothing is sent twice.

(Bad input: `test_trouble_input`; a mail server's faults: `test_trouble_server`.)
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from email import policy
from email.parser import BytesParser
from pathlib import Path
from typing import Any

import pytest

from tests.cli.rig import ROOT
from tests.ledger.databases import Database
from tests.postgres import Cluster
from tests.site import Done, Site, reached
from tests.smtp_server import Rule, SmtpServer

TEN = set(range(1, 11))


@contextmanager
def _locked(site: Site) -> Iterator[None]:
    """Somebody else holds the ledger's write lock."""
    with Database(site.url) as database:
        database.begin()
        if database.dialect == "postgresql":
            database.execute("LOCK TABLE notify_work IN EXCLUSIVE MODE")
        yield
        database.execute("ROLLBACK")


def _holding_the_third(**how: Any) -> Rule:
    """The third mail is accepted, its answer withheld."""
    return Rule("dot", hang=True, after=2, times=1, **how)


def _said_once(done: Done, *words: str) -> None:
    """A failure is at most three lines on stderr, nothing on stdout, and says these words."""
    assert done.out == ""
    assert 1 <= len(done.err.splitlines()) <= 3, done.err
    for word in words:
        assert word in done.err, done.err


# -- locked ----------------------------------------------------------------------------------------------------------


def test_a_ledger_locked_for_a_while_is_waited_for(tmp_path: Path, migrated_url: str) -> None:
    with SmtpServer() as server, Site(tmp_path, migrated_url, server.port) as site:
        site.publish()
        site.enqueue(3)
        with _locked(site):
            process = site.start("dispatch", "--json")
            assert process.goes_on_for(3)
            assert server.connections == []
        assert process.result().json["accepted"] == 3
        site.audit(server)


def test_a_ledger_locked_beyond_patience_means_later_and_nothing_is_sent(tmp_path: Path, migrated_url: str) -> None:
    with SmtpServer() as server, Site(tmp_path, migrated_url, server.port) as site:
        site.publish()
        site.enqueue(3)
        site.configure(ledger={"patience": "500ms"})
        with _locked(site):
            done = site.run("dispatch")
            assert done.code == 75, done
            _said_once(done, "locked")
            enqueued = site.run(
                "enqueue", "--event", "e4", "--recipient", "r-4", "--channel", "email", "--template", "note",
                "--var", "name=Ann",
            )  # fmt: skip
            assert enqueued.code == 75, enqueued
            assert server.connections == []
        assert site.states() == {"queued": 3}
        assert site.dispatch().json["accepted"] == 3
        assert sorted(reached(server.messages)) == [1, 2, 3]


def test_a_lock_from_just_after_a_hand_over_delays_the_outcome_and_loses_nothing(
    tmp_path: Path, migrated_url: str
) -> None:
    with SmtpServer(_holding_the_third()) as server, Site(tmp_path, migrated_url, server.port) as site:
        site.configure(lane={"concurrency": 1}, ledger={"patience": "1s"})
        site.publish()
        site.enqueue(10)
        process = site.start("dispatch", "--json")
        process.until(server, lambda: server.accepted == 3)
        with _locked(site):
            server.release()
            assert process.goes_on_for(2), "it gave up an outcome that it knows"
        done = process.result(20)
        assert (done.code, done.json["accepted"]) == (0, 10), done
        assert sorted(reached(server.messages)) == sorted(TEN)
        site.audit(server)


def test_an_outcome_that_can_never_be_written_is_in_doubt_and_not_sent_again(
    tmp_path: Path, migrated_file: Path
) -> None:
    """On SQLite; for Postgres see the server that stays away."""
    shutil.copyfile(migrated_file, tmp_path / "ledger.db")
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with SmtpServer(_holding_the_third()) as server, Site(tmp_path, url, server.port) as site:
        site.configure(relay={"deadline": "1s"}, lane={"concurrency": 1}, ledger={"patience": "500ms"})
        site.publish()
        site.enqueue(10)
        process = site.start("dispatch")
        process.until(server, lambda: server.accepted == 3)
        with _locked(site):
            server.release()
            done = process.result()
        assert done.code == 75
        _said_once(done, "locked")
        (third,) = site.open_attempts()
        site.later()
        assert site.dispatch().json["accepted"] == 7
        assert site.numbers("d.state = 'ambiguous'") == {third}
        assert sorted(reached(server.messages)) == sorted(TEN)
        site.audit(server)


# -- Postgres away ---------------------------------------------------------------------------------------------------


@pytest.fixture
def postgres_url(postgres: Cluster, migrated_template: str) -> Iterator[str]:
    """A fresh ledger on the cluster, which these tests stop and start."""
    url = postgres.create_database(template=migrated_template)
    yield url
    postgres.drop_database(url)


def test_an_unreachable_postgres_means_later(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with Site(tmp_path, f"postgresql://postgres@127.0.0.1:{port}/nowhere") as site:
        site.configure(ledger={"patience": "500ms"})
        for command in (["dispatch"], ["dispatch", "--verbose"], ["template", "publish"]):
            site.path.joinpath("templates").mkdir(exist_ok=True)
            done = site.run(*command)
            assert done.code == 75, done
            _said_once(done, "cannot be reached")


@pytest.mark.parametrize("fault", ["terminated", "restarted", "crashed"])
def test_a_connection_lost_between_acceptance_and_record_is_reopened_and_recorded(
    fault: str, tmp_path: Path, postgres: Cluster, postgres_url: str
) -> None:
    with SmtpServer(_holding_the_third()) as server, Site(tmp_path, postgres_url, server.port) as site:
        site.configure(lane={"concurrency": 1})
        site.publish()
        site.enqueue(10)
        process = site.start("dispatch", "--json")
        process.until(server, lambda: server.accepted == 3)
        if fault == "terminated":
            ended = site.sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'notifyctl' AND datname = current_database()"
            )
            assert ended == [(True,)]
        else:
            postgres.restart("fast" if fault == "restarted" else "immediate")
        server.release()
        done = process.result()
        assert (done.code, done.json["accepted"], done.err) == (0, 10, ""), done
        assert sorted(reached(server.messages)) == sorted(TEN)
        site.audit(server)


def test_a_postgres_that_stays_away_leaves_one_mail_in_doubt_and_the_others_due(
    tmp_path: Path, postgres: Cluster, postgres_url: str
) -> None:
    with SmtpServer(_holding_the_third()) as server, Site(tmp_path, postgres_url, server.port) as site:
        site.configure(relay={"deadline": "1s"}, lane={"concurrency": 1}, ledger={"patience": "500ms"})
        site.publish()
        site.enqueue(10)
        process = site.start("dispatch")
        process.until(server, lambda: server.accepted == 3)
        postgres.halt("immediate")
        try:
            server.release()
            done = process.result()
        finally:
            postgres.resume()
        assert done.code == 75, done
        _said_once(done, "cannot be reached")
        (third,) = site.open_attempts()
        site.later()
        assert site.dispatch().json["accepted"] == 7
        assert site.numbers("d.state = 'ambiguous'") == {third}
        assert sorted(reached(server.messages)) == sorted(TEN)
        site.audit(server)


# -- signals ---------------------------------------------------------------------------------------------------------


def test_a_terminated_dispatch_settles_what_flies_and_frees_the_rest_at_once(tmp_path: Path, migrated_url: str) -> None:
    with SmtpServer(_holding_the_third()) as server, Site(tmp_path, migrated_url, server.port) as site:
        site.configure(lane={"concurrency": 1})
        site.publish()
        site.enqueue(10)
        process = site.start("dispatch", "--json")
        process.until(server, lambda: server.accepted == 3)
        process.signal(signal.SIGTERM)
        server.release()
        done = process.result()
        assert (done.code, done.json["drained"]) == (0, True), done
        assert (done.json["accepted"], done.json["released"]) == (3, 7)
        assert done.json["lanes"]["email"]["stopped"] == "signal"
        assert site.sql("SELECT count(*) FROM notify_work WHERE owner IS NOT NULL") == [(0,)]
        assert site.dispatch().json["accepted"] == 7
        assert sorted(reached(server.messages)) == sorted(TEN)
        site.audit(server)


def test_a_drain_that_takes_too_long_is_cut_short_and_leaves_doubt(tmp_path: Path, migrated_url: str) -> None:
    with SmtpServer(_holding_the_third()) as server, Site(tmp_path, migrated_url, server.port) as site:
        site.configure(relay={"drain": "300ms"}, lane={"concurrency": 1})
        site.publish()
        site.enqueue(10)
        process = site.start("dispatch", "--json")
        process.until(server, lambda: server.accepted == 3)
        process.signal(signal.SIGINT)
        done = process.result()
        assert (done.code, done.json["drained"]) == (75, False), done
        (third,) = site.open_attempts()
        assert site.dispatch().json["accepted"] == 7, "the rest was freed at once"
        site.later()
        assert site.dispatch().json["leases_recovered"] == 1
        assert site.numbers("d.state = 'ambiguous'") == {third}
        assert sorted(reached(server.messages)) == sorted(TEN)
        site.audit(server)


def test_a_second_signal_ends_a_dispatch_at_once(tmp_path: Path, migrated_url: str) -> None:
    with SmtpServer(_holding_the_third()) as server, Site(tmp_path, migrated_url, server.port) as site:
        site.configure(lane={"concurrency": 1})
        site.publish()
        site.enqueue(10)
        process = site.start("dispatch")
        process.until(server, lambda: server.accepted == 3)
        process.signal(signal.SIGTERM)
        process.signal(signal.SIGINT)  # another one: two of a kind may arrive as one
        assert process.result().code in (128 + signal.SIGTERM, 128 + signal.SIGINT)
        site.quiet()
        site.later()
        assert site.dispatch().json["accepted"] == 7
        assert sorted(reached(server.messages)) == sorted(TEN)
        site.audit(server)


# -- surroundings ----------------------------------------------------------------------------------------------------


def test_a_folder_that_may_not_be_written_is_named_and_nothing_is_sent(tmp_path: Path, migrated_url: str) -> None:
    # root may write everywhere unless it gives that right away
    wrapper = ["setpriv", "--inh-caps=-all", "--bounding-set=-all"] if os.geteuid() == 0 else []
    if wrapper and not shutil.which("setpriv"):
        pytest.skip("run by root, and there is no setpriv to give up root's right to write everywhere")
    with SmtpServer() as server, Site(tmp_path, migrated_url, server.port) as site:
        site.publish()
        site.enqueue(3)
        ledger = tmp_path / "ledger.db"
        for path in (tmp_path, *([ledger] if ledger.exists() else [])):
            mode = path.stat().st_mode
            path.chmod(0o555)
            try:
                done = site.run("dispatch", wrapper=wrapper)
            finally:
                path.chmod(mode)
            if not ledger.exists():
                assert (done.code, done.err) == (0, ""), "Postgres needs no folder"
                continue
            assert done.code == 78, done
            _said_once(done, str(ledger), "writable")
            assert site.states() == {"queued": 3}
            assert server.connections == []
        site.dispatch()
        assert sorted(reached(server.messages)) == [1, 2, 3]


@pytest.mark.parametrize("stdout", ["closed", "full", "nobody reads"])
def test_a_standard_output_that_takes_nothing_changes_nothing_in_the_ledger(
    stdout: str, tmp_path: Path, migrated_url: str
) -> None:
    with SmtpServer() as server, Site(tmp_path, migrated_url, server.port) as site:
        site.publish()
        site.enqueue(5)
        if stdout == "closed":
            done = site.run("dispatch", "--json", wrapper=["/bin/sh", "-c", 'exec "$@" >&-', "sh"])
        else:
            reader, writer = os.pipe()
            os.close(reader)
            with os.fdopen(writer, "wb") as pipe, open("/dev/full", "wb") as full:
                done = site.run("dispatch", "--json", stdout=full if stdout == "full" else pipe)
        assert done.code == (75 if stdout == "full" else 0), done
        assert ("standard output" in done.err) == (stdout == "full")
        assert site.states() == {"accepted": 5}
        assert sorted(reached(server.messages)) == [1, 2, 3, 4, 5]
        (exit_code,) = site.sql("SELECT exit_code FROM notify_run WHERE command = 'dispatch'")[0]
        assert exit_code == 0
        site.audit(server)


ASCII = {
    "PATH": os.defpath, "PYTHONPATH": str(ROOT), "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0",
}  # fmt: skip


def test_accents_survive_a_cron_without_locale_and_home(tmp_path: Path, migrated_url: str) -> None:
    with SmtpServer() as server, Site(tmp_path, migrated_url, server.port) as site:
        site.template(subject="Übung für {{ name }} · 山田", body="Grüße, {{ name }}\n")
        rows = site.path / "rows.csv"
        rows.write_text(
            "event,recipient,channel,template,to.email,vars.name\n"
            'e1,r-1,email,note,"""Zoë, Müller"" <r1@rcpt.example>",Zoë\n',
            encoding="utf-8",
        )
        one = ["--event", "e2", "--recipient", "r-2", "--channel", "email", "--template", "note",
               "--to", "email=r2@rcpt.example", "--var", "name=Zoë"]  # fmt: skip
        for arguments in (["template", "publish"], ["enqueue", "--from", str(rows)], ["enqueue", *one], ["dispatch"]):
            done = site.run(*arguments, "--verbose", "--config", str(site.config), env=ASCII, cwd="/")
            assert done.code == 0, done
            assert done.out.isascii()
            assert done.out != ""
        assert sorted(reached(server.messages)) == [1, 2]
        for message in server.messages:
            mail = BytesParser(policy=policy.default).parsebytes(message.raw)
            assert mail["Subject"] == "Übung für Zoë · 山田"
            assert mail.get_content() == "Grüße, Zoë\r\n" or mail.get_content() == "Grüße, Zoë\n"
        missing = site.run("dispatch", "--json", "--config", "/nowhere/notifyctl.toml", env=ASCII, cwd="/")
        assert missing.code == 78
        assert "/nowhere/notifyctl.toml" in missing.err
        unsaid = site.run("dispatch", env=ASCII, cwd="/")
        assert unsaid.code == 78
        assert "notifyctl.toml" in unsaid.err


def test_a_missing_database_is_named_with_the_command_that_makes_it(tmp_path: Path) -> None:
    with Site(tmp_path, f"sqlite:///{tmp_path / 'none.db'}") as site:
        for arguments in (["dispatch"], ["enqueue", "--from", "-"]):
            done = site.run(*arguments)
            assert done.code == 78, done
            _said_once(done, "none.db", "notifyctl migrate")
            shown = site.run(*arguments, "--json")
            assert shown.code == 78
            assert '"code": "no_ledger"' in shown.err
        assert not (tmp_path / "none.db").exists()
