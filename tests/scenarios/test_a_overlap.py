"""A: runs that overlap, die or are told to stop."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.scenarios.stage import NUMBER, Stage, text
from tests.site import reached
from tests.smtp_server import Rule, SmtpServer

ROWS = 20


def test_A1_two_overlapping_runs_send_one_copy_each(stage: Stage) -> None:
    """Ten repeats. Relatives: claims of all, of a few and of one row; three runs; a run of that lane only."""
    with SmtpServer(Rule("dot", delay=0.1)) as server:
        stage.to(server)
        for repeat in range(10):
            stage.enqueue(ROWS, first=1 + repeat * ROWS)
            batch = (100, 5, 1)[repeat % 3]
            more = [["--lane", "email"]] if repeat % 4 == 3 else []
            runs = [stage.start("dispatch", "--json", "--batch", str(batch), *extra) for extra in ([], [], *more)]
            ends = [run.result(20) for run in runs]
            assert [done.code for done in ends] == [0] * len(runs), ends
            assert sum(done.json["claimed"] for done in ends) == ROWS
            assert sum(done.json["accepted"] for done in ends) == ROWS
            assert sum(done.json["leases_recovered"] for done in ends) == 0
        assert sorted(reached(server.messages)) == list(range(1, 10 * ROWS + 1))
        stage.audit(server)


@pytest.mark.parametrize("accepted", [True, False], ids=["accepted", "not accepted"])
def test_A2_a_kill_between_acceptance_and_record_sends_nobody_a_second_copy(stage: Stage, accepted: bool) -> None:
    """Row 3 is killed behind its final dot. Relatives: the server had taken it, or was about to lose it; both look the
    same from outside. (Twenty kills with eight in flight: tests/crash. A provider that drops repetitions: below.)"""
    with SmtpServer(Rule("dot", hang=True, accept=accepted, close=True, after=2, times=1)) as server:
        stage.to(server)
        stage.configure(lane={"concurrency": 1})
        stage.enqueue(10)
        run = stage.start("dispatch")
        run.until(server, lambda: sum(one.phases.count("dot") for one in server.connections) == 3)
        (third,) = stage.open_attempts()
        run.kill()
        stage.quiet()
        server.release()
        stage.later()
        first = stage.run("dispatch", "--json")
        assert (first.code, first.json["leases_recovered"], first.json["accepted"]) in ((0, 8, 7), (3, 8, 7)), first
        for _ in range(2):
            stage.later()
            stage.dispatched(claimed=0)
        assert stage.delivery(third) == "ambiguous"
        assert stage.listed("ambiguous") == {third}
        copies = reached(server.messages)
        assert len(copies) == len(set(copies)) == (10 if accepted else 9)
        assert set(range(1, 11)) - set(copies) <= {third}
        assert stage.states() == {"accepted": 9, "ambiguous": 1}
        stage.audit(server)


@pytest.mark.parametrize("accepted", [True, False], ids=["accepted", "not accepted"])
def test_A2_doubt_ends_by_evidence_where_there_is_some(stage: Stage, accepted: bool) -> None:
    """The relative whose provider can be asked: what it has is accepted, what it has not goes out, once."""
    lost = {"match": "*", "outcome": "ambiguous", "times": 1, "after_accept": accepted}
    stage.put("transports.texts", fail=[lost])
    stage.rows(text(1), text(2, "+12025550143"))
    stage.configure(lane={"concurrency": 1})
    stage.dispatched(ambiguous=1, accepted=1, held=0)
    stage.dispatched(claimed=0)
    stage.later()
    settled = stage.asked("reconcile")
    assert (settled["found"], settled["absent"], settled["held"]) == ((1, 0, 0) if accepted else (0, 1, 0))
    stage.later()
    stage.dispatched(accepted=0 if accepted else 1)
    assert sorted(line["to"] for line in stage.texts()) == ["+12025550143", NUMBER]
    assert not stage.numbers("d.doubt_since IS NOT NULL")
    stage.audit()


def test_A4_reconcile_counts_what_a_killed_run_left(stage: Stage) -> None:
    """The lapsed attempt is marked and held for a person; it takes nothing that only waits for a dispatch."""
    with SmtpServer(Rule("dot", hang=True, times=1)) as server:
        stage.to(server)
        stage.configure(lane={"concurrency": 1})
        stage.enqueue(3)
        run = stage.start("dispatch")
        run.until(server, lambda: server.accepted == 1)
        run.kill()
        stage.quiet()
        server.release()
        assert stage.asked("reconcile")["leases_recovered"] == 0, "its deadline still runs"
        stage.later()
        done = stage.run("reconcile", "--json")
        assert (done.code, done.json["leases_recovered"]) in ((0, 1), (3, 1)), done
        stage.later()
        held = stage.run("reconcile", "--json")
        assert done.json["held"] + held.json["held"] == 1, "a person is told, once"
        assert 3 in (done.code, held.code)
        (entry,) = stage.asked("inspect")["needs_person"]
        assert (entry["what"], entry["count"]) == ("held_ambiguous", 1)
        stage.dispatched(claimed=2, accepted=2)
        assert stage.states() == {"accepted": 2, "ambiguous": 1}
        stage.audit(server)


def test_A4_a_killed_run_leaves_nothing_that_nobody_retries(stage: Stage) -> None:
    """One run dies with rows claimed and not begun, and one of them in the hands of the server."""
    with SmtpServer(Rule("dot", hang=True, after=1, times=1)) as server:
        stage.to(server)
        stage.configure(lane={"concurrency": 1})
        stage.enqueue(6)
        run = stage.start("dispatch")
        run.until(server, lambda: sum(one.phases.count("dot") for one in server.connections) == 2)
        run.kill()
        stage.quiet()
        (doubtful,) = stage.open_attempts()
        claimed = stage.numbers("d.state = 'queued'")
        assert len(claimed) == 4
        # while lease and deadline run: seen, with the time at which each is free again, and left alone
        overview = stage.asked("inspect")["lanes"]
        (email,) = [lane for lane in overview if lane["lane"] == "email"]
        assert (email["states"]["queued"], email["states"]["sending"]) == (4, 1)
        assert email["oldest_age_s"] >= 0
        for number, word in ((min(claimed), "leased"), (doubtful, "sending")):
            (why,) = stage.seen(number)["why"]
            assert (why["reason"], bool(why["until"])) == (word, True)
        stage.dispatched(claimed=0, leases_recovered=0)
        stage.later()
        server.release()
        document = stage.run("dispatch", "--json").json
        assert (document["claimed"], document["accepted"], document["leases_recovered"]) == (4, 4, 5), document
        assert stage.listed("ambiguous") == {doubtful}
        assert stage.seen(doubtful)["doubt_since"]
        (entry,) = stage.asked("inspect")["lanes"][:1]
        assert entry["states"]["ambiguous"] == 1
        stage.audit(server)


@pytest.mark.parametrize("place", ["/proc", "gone"])
def test_A6_what_a_killed_run_leaves_behind_stops_nobody(stage: Stage, place: str, tmp_path: Path) -> None:
    """There is no lock file to be left. Relatives: a folder nobody may write to, one deleted meanwhile."""
    with SmtpServer(Rule("dot", hang=True, times=1)) as server:
        stage.to(server)
        stage.configure(lane={"concurrency": 1})
        stage.enqueue(3)
        run = stage.start("dispatch")
        run.until(server, lambda: server.accepted == 1)
        run.kill()
        stage.quiet()
        server.release()
        stage.later()
        before = sorted(file.name for file in stage.path.iterdir())
        folder = tmp_path / "gone"
        folder.mkdir()
        options = {"cwd": "/proc"} if place == "/proc" else {"cwd": folder, "preexec_fn": lambda: os.rmdir(folder)}
        done = stage.run("dispatch", "--json", "--config", str(stage.config), **options)
        assert (done.json["accepted"], done.json["leases_recovered"]) == (2, 3), done
        assert sorted(file.name for file in stage.path.iterdir()) == before, "a file was left behind"
        stage.audit(server)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["TERM", "INT"])
def test_A7_a_run_told_to_stop_settles_what_is_in_flight_and_frees_the_rest(stage: Stage, number: int) -> None:
    """The third of ten is in flight. Relatives: SIGTERM and SIGINT."""
    with SmtpServer(Rule("dot", hang=True, after=2, times=1)) as server:
        stage.to(server)
        stage.configure(lane={"concurrency": 1})
        stage.enqueue(10)
        run = stage.start("dispatch", "--json")
        run.until(server, lambda: sum(one.phases.count("dot") for one in server.connections) == 3)
        run.signal(number)
        assert run.goes_on_for(0.3), "it did not wait for what was in flight"
        server.release()
        done = run.result(20)
        document = done.json
        assert (done.code, document["drained"], document["accepted"], document["released"]) == (0, True, 3, 7), done
        assert document["lanes"]["email"]["stopped"] == "signal"
        assert stage.sql("SELECT count(*) FROM notify_work WHERE owner IS NOT NULL") == [(0,)]
        assert stage.sql("SELECT max(attempts_used) FROM notify_delivery WHERE state = 'queued'") == [(0,)]
        stage.dispatched(claimed=7, accepted=7, leases_recovered=0)
        stage.audit(server)


def test_A7_a_second_signal_ends_a_run_at_once_and_leaves_its_mail_in_doubt(stage: Stage) -> None:
    """The impatient relative: what was in flight is not known to anybody, and not sent again."""
    with SmtpServer(Rule("dot", hang=True, times=1)) as server:
        stage.to(server)
        stage.configure(lane={"concurrency": 1})
        stage.enqueue(3)
        run = stage.start("dispatch", "--json")
        run.until(server, lambda: server.accepted == 1)
        run.signal(signal.SIGTERM)
        assert run.goes_on_for(0.3)
        run.signal(signal.SIGTERM)
        assert run.result(20).code == 128 + signal.SIGTERM
        server.release()
        stage.quiet()
        stage.later()
        assert stage.run("dispatch", "--json").json["accepted"] == 2
        assert stage.states() == {"accepted": 2, "ambiguous": 1}
        stage.audit(server)
