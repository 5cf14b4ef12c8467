"""B: what a queue does to others: poison, refusals, backlogs, late mail, repeated scripts."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.scenarios.stage import Stage, addresses, at, python, text
from tests.site import DOMAIN, LONG_AGO, intent, reached
from tests.smtp_server import Rule, SmtpServer

POISON = {
    "a malformed address": "destination = 'no address at all'",
    "two addresses in one": f"destination = 'a@{DOMAIN}, b@{DOMAIN}'",
    "a header in the address": f"destination = 'a@{DOMAIN}' || CHAR(10) || 'Bcc: b@{DOMAIN}'",
    "a variable that is missing": "variables = '{}'",
    "an attachment that is no object": "attachments = '[7]'",
}


def test_B1_one_poisoned_row_holds_up_nobody(stage: Stage) -> None:
    """The second row is forced into the ledger, and so are the next, each a kind of row that cannot be built. (More of
    them in tests/test_poisoned_rows.py.)"""
    bad = dict(enumerate(POISON, start=2))
    with SmtpServer() as server:
        stage.to(server)
        stage.enqueue(4 + len(bad))
        for number, what in bad.items():
            change = POISON[what].replace("CHAR", "chr" if stage.url.startswith("postgres") else "char")
            stage.sql(f"UPDATE notify_delivery SET {change} WHERE event_id = 'e{number}'")
        done = stage.told("dispatch", code=3)
        assert done.out == ""
        assert len(done.err.splitlines()) == 1, "one summary line"
        assert set(reached(server.messages)) == set(range(1, 5 + len(bad))) - bad.keys()
        for number, what in bad.items():
            state, reason, used = stage.delivery(number, "state, reason, attempts_used")
            assert (state, bool(reason), used) == ("permanent_failure", True, 0), what
            assert stage.work(number) is None, "it is not first again"
        again = stage.told("dispatch")
        assert (again.out, again.err) == ("", "")
        stage.audit(server)


@pytest.mark.parametrize(
    ("phase", "reply"), [("dot", "554 5.7.1 refused by policy"), ("rcpt", "550 5.1.1 no such user")]
)
def test_B2_a_refused_recipient_costs_the_others_nothing(stage: Stage, phase: str, reply: str) -> None:
    """One event, five people, the third refused. Relatives: refused by policy or unknown; at RCPT or after the body."""
    third = f"r3@{DOMAIN}"
    with SmtpServer(Rule(phase, reply=reply, when=lambda it: third in (it.recipient, *it.recipients))) as server:
        stage.to(server)
        stage.rows(*({**intent(number), "event": "e1"} for number in range(1, 6)))
        stage.dispatched(claimed=5, accepted=4)
        for _ in range(2):
            stage.later()
            stage.dispatched(claimed=0)
        assert sorted(message.recipient for message in server.messages) == sorted(addresses([1, 2, 4, 5]))
        assert sum(third in command for command in server.commands) == 1, "tried once"
        found = dict(stage.sql("SELECT recipient_id, state FROM notify_delivery"))
        unknown = "5.1.1" in reply
        assert found.pop("r-3") == ("suppressed" if unknown else "permanent_failure")
        assert found == {f"r-{number}": "accepted" for number in (1, 2, 4, 5)}
        event = stage.asked("inspect", "event", "e1")
        assert (event["enqueued"], event["accepted"]) == (5, 4)
        stage.audit(server)


MEASURE = """import json, os, resource, subprocess, sys
code = subprocess.run(sys.argv[2:]).returncode
open(sys.argv[1], "w").write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
sys.exit(code)"""


def test_B4_a_huge_backlog_is_never_loaded_whole(stage: Stage, tmp_path: Path) -> None:
    """50,000 due, twenty of them with 5 MB, a run of 100 at a time; then the same while somebody holds a transaction
    open. Relatives: the tick beside (`--dry-run`) and the overview. (Ten million settled rows: tests/bench.)"""
    reports = stage.path / "reports"
    reports.mkdir()
    (reports / "big.bin").write_bytes(b"\0" * 5_000_000)
    stage.put("objects", root="reports/")
    with SmtpServer(keep=False, extensions=("PIPELINING", "SIZE 100000000", "8BITMIME")) as server:
        stage.to(server)
        stage.many(50_000)
        stage.rows(
            *(intent(60_000 + n, attach=["big.bin"], to={"email": f"r{60_000 + n}@{DOMAIN}"}) for n in range(20))
        )
        stage.sql("UPDATE notify_work SET eligible_at = ? WHERE delivery_id > 50000", LONG_AGO)  # these come first
        peaks = []

        def run() -> None:
            file = tmp_path / "peak"
            done = stage.run("dispatch", "--limit", "100", "--json", wrapper=python(MEASURE, str(file)))
            assert (done.code, done.json["claimed"], done.json["accepted"]) == (0, 100, 100), done
            peaks.append(int(file.read_text()) // 1024)

        run()
        holder = stage.hold()
        for _ in range(2):
            run()
        holder.connection.close()
        assert max(peaks) < 300, f"{peaks} MB"
        assert server.accepted == 300
        assert stage.asked("inspect")["lanes"][0]["states"]["queued"] == 50_020 - 300
        assert stage.sql("SELECT count(*) FROM notify_work WHERE owner IS NOT NULL") == [(0,)]


@pytest.mark.parametrize("arguments", [(), ("--json",), ("--verbose",)], ids=["cron", "json", "verbose"])
def test_B5_mail_for_later_keeps_nobody_busy(stage: Stage, arguments: tuple[str, ...]) -> None:
    """A hundred rows for 2099 and one for the year 9999. Relatives: silent, as JSON and in words; the bulk command."""
    with SmtpServer() as server:
        stage.to(server)
        stage.rows(
            *(intent(n, at="2099-01-01T00:00:00Z" if n < 101 else "9999-12-31T00:00:00Z") for n in range(1, 102))
        )
        done = stage.run("dispatch", *arguments, timeout=10)
        assert done.code == 0
        assert (len(server.connections), stage.sql("SELECT count(*) FROM notify_attempt")) == (0, [(0,)])
        waiting = stage.asked("dispatch", "--dry-run")
        assert waiting["would_claim"] == 0
        assert waiting["lanes"]["email"] == {"due": 0, "held_by": {"scheduled": 101}}
        (why,) = stage.seen(1)["why"]
        assert (why["reason"], why["until"][:10]) == ("scheduled", "2099-01-01")
        assert stage.seen(101)["why"][0]["until"][:4] == "9999"
        if "--verbose" in arguments:
            assert "next due 2099-01-01" in done.out, done
        stage.audit(server)


def test_B7_a_code_that_has_expired_is_never_sent(stage: Stage) -> None:
    """Valid for five minutes, dispatched after three hours; requeued; given a new validity. Relatives: it expires after
    its first attempt, and while it waits for a paced slot, see the others."""
    stage.rows(text(1, expires_in="5m"))
    stage.sql("UPDATE notify_delivery SET due_at = ?, expires_at = ?", at(-10800), at(-10500))
    stage.dispatched(expired=1, accepted=0)
    assert (stage.texts(), stage.delivery(1)) == ([], "expired")
    key = str(stage.delivery(1, "id"))
    refusal = stage.asked("requeue", key, "--reason", "asked for", code=65)["refusals"][0]
    assert (refusal["state"], refusal["reason"]) == ("expired", "expired")
    assert "--expires-in" in refusal["hint"]
    stage.dispatched(claimed=0)
    assert stage.texts() == []
    assert stage.asked("requeue", key, "--reason", "asked for", "--expires-in", "5m")["requeued"] == 1
    stage.dispatched(accepted=1)
    assert len(stage.texts()) == 1


def test_B7_validity_is_looked_at_again_when_a_mail_is_handed_over(stage: Stage) -> None:
    """It ends while the run that has claimed it works on an earlier one; and between two attempts."""
    with SmtpServer(Rule("dot", hang=True, times=1), Rule("dot", reply="451 4.3.0 later", times=1)) as server:
        stage.to(server)
        stage.configure(lane={"concurrency": 1})
        stage.rows(*(intent(number, expires_in="5m") for number in (1, 2, 3)))
        run = stage.start("dispatch", "--json")
        run.until(server, lambda: server.accepted == 1)
        stage.sql("UPDATE notify_delivery SET expires_at = ? WHERE event_id = 'e2'", at(-1))
        server.release()
        done = run.result()
        assert (done.json["accepted"], done.json["expired"], done.json["temporary_failure"]) == (1, 1, 1), done
        stage.sql("UPDATE notify_delivery SET expires_at = ? WHERE event_id = 'e3'", at(-1))
        stage.later()
        stage.dispatched(expired=1, accepted=0)
        assert reached(server.messages) == [1]
        assert stage.states() == {"accepted": 1, "expired": 2}
        stage.audit(server)


def _enqueue(name: str = "Reader 1", **more: str) -> list[str]:
    options = {"event": "e1", "recipient": "r-1", "channel": "email", "template": "note", "var": f"name={name}",
               "to": f"email=r1@{DOMAIN}", **more}  # fmt: skip
    return ["enqueue", *(part for key, value in options.items() for part in (f"--{key}", value)), "--json"]


def test_B9_a_script_that_runs_twice_enqueues_once(stage: Stage) -> None:
    """The same again; six at once; another body. Relatives: a bulk file run again, one with the same row twice, another
    recipient and another channel of the same event, after the first copy has gone."""
    with SmtpServer() as server:
        stage.to(server)
        first = stage.told(*_enqueue()).json
        again = stage.told(*_enqueue()).json
        assert (first["enqueued"], again["enqueued"], again["duplicate"]) == (1, 0, 1)
        assert again["ids"] == first["ids"], "repeats name the existing delivery"
        for done in [run.result() for run in [stage.start(*_enqueue()) for _ in range(3)]]:
            assert (done.code, done.json["duplicate"], done.json["ids"]) == (0, 1, first["ids"]), done
        other = stage.told(*_enqueue("Reader 2"), code=65).json
        assert (other["conflict"], other["enqueued"], other["errors"][0]["field"]) == (1, 0, "variables")
        runs = [stage.start(*_enqueue(event="e2")) for _ in range(4)]
        assert Counter(run.result().json["enqueued"] for run in runs) == {1: 1, 0: 3}
        stage.dispatched(accepted=2)
        assert stage.told(*_enqueue()).json["duplicate"] == 1
        stage.dispatched(claimed=0)
        file = stage.path / "twice.ndjson"
        file.write_text("".join(json.dumps(intent(n)) + "\n" for n in (11, 12, 11)), encoding="utf-8")
        bulk = [stage.asked("enqueue", "--from", str(file)) for _ in range(2)]
        assert [(one["enqueued"], one["duplicate"]) for one in bulk] == [(2, 1), (0, 3)]
        assert stage.sql("SELECT count(*) FROM notify_delivery") == [(4,)]
        stage.audit(server)
