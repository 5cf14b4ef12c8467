"""E: what surrounds a run: databases that lock or vanish, cron, pipes, mail to the administrator."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from pathlib import Path
from typing import Any

import pytest

from tests.cli.rig import ROOT, command, environment
from tests.ledger.databases import Database
from tests.postgres import Cluster
from tests.scenarios.stage import SECRET, Stage
from tests.site import DOMAIN, intent, reached
from tests.smtp_server import Rule, SmtpServer


@contextmanager
def _locked(stage: Stage) -> Iterator[Database]:
    """Somebody else keeps all writers out until the block ends."""
    with Database(stage.url) as database:
        database.begin()
        if database.dialect == "postgresql":
            database.execute("LOCK TABLE notify_work IN ACCESS EXCLUSIVE MODE")
        yield database
        database.execute("ROLLBACK")


def test_E1_a_lock_before_the_claim_is_waited_for_or_ends_the_run(stage: Stage) -> None:
    """A lock that ends in time, one that outlasts the patience. Relatives: enqueue and requeue under the same lock."""
    stage.configure(ledger={"patience": "1s"})
    with SmtpServer() as server:
        stage.to(server)
        stage.enqueue(3)
        with _locked(stage):
            done = stage.told("dispatch", "--json", code=75)
            assert stage.refused(done)["hint"]
            stage.told("enqueue", "--event", "x", "--recipient", "x", "--channel", "email", "--template", "note",
                       "--var", "name=x", "--to", f"email=x@{DOMAIN}", code=75)  # fmt: skip
            assert server.connections == [], "nothing is sent without a recorded claim"
        assert stage.states() == {"queued": 3}
        stage.configure(ledger={"patience": "20s"})
        with _locked(stage):
            run = stage.start("dispatch", "--json")
            assert run.goes_on_for(0.7)
            assert server.connections == []
        assert run.result(20).json["accepted"] == 3
        stage.audit(server)


@pytest.mark.parametrize("patient", [True, False], ids=["a short lock", "a long lock"])
def test_E1_a_lock_after_a_hand_over_loses_no_answer_and_sends_nothing_twice(stage: Stage, patient: bool) -> None:
    with SmtpServer(Rule("dot", hang=True, times=1)) as server:
        stage.to(server, deadline="60s" if patient else "3s")  # so long an answer that is known is kept
        stage.configure(ledger={"patience": "20s" if patient else "1s"}, lane={"concurrency": 1})
        stage.enqueue(3)
        run = stage.start("dispatch", "--json")
        run.until(server, lambda: server.accepted == 1)
        with _locked(stage):
            server.release()
            if patient:
                assert run.goes_on_for(0.7)
            else:
                done = run.result(30)
                assert done.code == 75, done
                assert server.accepted == 1
        if patient:
            assert run.result(20).json["accepted"] == 3
            stage.audit(server)
            return
        stage.quiet()
        stage.later()
        done = stage.run("dispatch", "--json")
        assert done.json["accepted"] == 2
        assert stage.states() == {"accepted": 2, "ambiguous": 1}, "in doubt, not sent again on its own"
        stage.audit(server)


def test_E2_a_connection_lost_after_the_acceptance_is_opened_again(stage: Stage) -> None:
    """The third of five has been accepted when the connection ends. On SQLite, which has none to lose, its nearest
    relative: somebody else's lock comes and goes at that moment."""
    with SmtpServer(Rule("dot", hang=True, after=2, times=1)) as server:
        stage.to(server)
        stage.configure(lane={"concurrency": 1})
        stage.enqueue(5)
        run = stage.start("dispatch", "--json")
        run.until(server, lambda: server.accepted == 3)
        if stage.url.startswith("postgres"):
            ended = stage.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                              "WHERE application_name = 'notifyctl' AND datname = current_database()")  # fmt: skip
            assert ended == [(True,)]
            server.release()
        else:
            with _locked(stage):
                server.release()
                assert run.goes_on_for(0.5)
        done = run.result(30)
        assert (done.code, done.json["accepted"]) == (0, 5), done
        assert len(done.err.splitlines()) <= 3, "a pile of errors"
        assert reached(server.messages) == sorted(reached(server.messages)), "nothing was sent again"
        stage.audit(server)


def test_E2_a_restarted_server_is_waited_for_and_one_that_stays_away_ends_the_run(tmp_path: Path) -> None:
    """A cluster of its own, stopped in the middle of a run. (SQLite has no server: see E1 and tests/faults.)"""
    from notifyctl.ledger import schema

    cluster = Cluster().start()
    try:
        url = cluster.create_database()
        with cluster.connect(url.rpartition("/")[2]) as connection:
            schema.migrate(connection, "postgresql", "test")
        with SmtpServer(Rule("dot", hang=True, after=2, times=1)) as server, Stage(tmp_path / "site", url) as stage:
            stage.publish()
            stage.to(server)
            stage.configure(lane={"concurrency": 1}, ledger={"patience": "30s"})
            stage.enqueue(5)
            run = stage.start("dispatch", "--json")
            run.until(server, lambda: server.accepted == 3)
            cluster.halt()
            server.release()
            assert run.goes_on_for(0.5)
            cluster.resume()
            done = run.result()
            assert (done.code, done.json["accepted"]) == (0, 5), done
            stage.audit(server)
            cluster.halt()
            stage.configure(ledger={"patience": "1s"})
            away = stage.told("dispatch", "--json", code=75)
            assert len(away.err.splitlines()) <= 3, "a pile of errors"
    finally:
        cluster.stop()


BARE = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": str(ROOT)}


def test_E4_a_run_under_cron_needs_nothing_of_a_terminal(stage: Stage) -> None:
    """Nothing in the environment, an ASCII locale, cwd `/`. Relatives: every command that shows what is not ASCII."""
    stage.publish("2", subject="Grüße für {{ name }}", body="Здравствуйте {{ name }}\n")
    with SmtpServer() as server:
        stage.to(server)
        rows = [intent(n, vars={"name": f"Jürgen {n}"}, recipient=f"jürgen-{n}") for n in (1, 2, 3)]
        stage.bulk(*rows, code=0)
        bare: dict[str, Any] = {"env": BARE, "cwd": "/"}
        config = ("--config", str(stage.config))
        quiet = stage.told("dispatch", *config, **bare)
        assert (quiet.out, quiet.err) == ("", "")
        subjects = sorted(message_from_bytes(m.raw, policy=policy.default)["Subject"] for m in server.messages)
        assert subjects == [f"Grüße für Jürgen {n}" for n in (1, 2, 3)]
        for words in (("inspect",), ("inspect", "deliveries"), ("inspect", "deliveries", "--json"),
                      ("template", "show", "note"), ("recipient", "show", "jürgen-1")):  # fmt: skip
            done = stage.told(*words, *config, **bare)
            assert done.out.isascii(), words
            assert done.out
        without = stage.told("dispatch", code=78, **bare)
        for tried in ("notifyctl.toml", "/etc/notifyctl/notifyctl.toml"):
            assert tried in without.err, "the paths that were tried"
        missing = stage.told("dispatch", "--config", "/nowhere/x.toml", code=78, **bare)
        assert "/nowhere/x.toml" in missing.err
        stage.audit(server)


SHELL = 'set -o pipefail; "$@" 2>err | {reader}; echo "${{PIPESTATUS[0]}}"'


def _piped(stage: Stage, reader: str, *words: str) -> tuple[int, str]:
    """The exit code and stderr of a command whose reader quits."""
    script = SHELL.format(reader=reader)
    done = subprocess.run(
        ["bash", "-c", script, "bash", *command(*words)],
        cwd=stage.path, env=environment(), capture_output=True, timeout=60, check=False, text=True,
    )  # fmt: skip
    return int(done.stdout.splitlines()[-1]), (stage.path / "err").read_text()


def test_E5_a_reader_that_quits_ends_inspect_quietly_and_stops_no_dispatch(stage: Stage) -> None:
    """10,000 rows. Relatives: as table and as JSON, a reader that takes one line and one that takes none, stderr gone
    too, stdout closed from the beginning."""
    with SmtpServer() as server:
        stage.to(server)
        stage.many(10_000)
        stage.sql("UPDATE notify_work SET eligible_at = '2099-01-01 00:00:00' WHERE delivery_id > 40")
        for reader, more in (("head -1", ()), ("true", ("--json",))):
            code, err = _piped(stage, reader, "inspect", "deliveries", "--limit", "10000", *more)
            assert (code in (0, 141, -13), err) == (True, ""), (code, err)
        code, err = _piped(stage, "true", "dispatch", "--limit", "20", "--json")
        assert (code in (0, 141), err) == (True, ""), (code, err)
        assert server.accepted == 20
        closed = ["bash", "-c", '"$@" >&- 2>&-', "bash", *command("dispatch", "--limit", "20", "--verbose")]
        subprocess.run(closed, cwd=stage.path, env=environment(), timeout=60, check=False)
        assert server.accepted == 40
        assert len(stage.numbers("d.state = 'accepted'")) == 40
        assert stage.sql("SELECT count(*) FROM notify_work WHERE owner IS NOT NULL") == [(0,)]
        assert stage.sql("SELECT count(*) FROM notify_run WHERE exit_code = 0") == [(2,)]
        stage.audit(server)


def test_E7_cron_hears_of_what_failed_once_and_of_nothing_else(stage: Stage) -> None:
    """All refused, then an empty queue, then all fine. Relatives: refused by policy and for the sender's
    sake; quiet mode."""
    with SmtpServer(Rule("dot", reply="554 5.7.1 refused")) as server:
        stage.to(server)
        stage.enqueue(4)
        done = stage.told("dispatch", code=3)
        assert (done.out, len(done.err.splitlines())) == ("", 1), done
        assert "4 permanent failure" in done.err
        for words in ((), ("--quiet",)):
            empty = stage.told("dispatch", *words)
            assert (empty.out, empty.err) == ("", "")
        server.rules.clear()
        stage.enqueue(4, first=10)
        fine = stage.told("dispatch", "--quiet")
        assert (fine.out, fine.err) == ("", "")
        assert server.accepted == 4
        server.rule("mail", reply="550 5.7.1 sender not allowed")
        stage.enqueue(2, first=20)
        faulty = stage.told("dispatch", "--quiet", code=78)
        assert 0 < len(faulty.err.splitlines()) <= 2
        assert SECRET not in faulty.err
        stage.audit(server)
