"""F: what people do to a ledger that is in use: send again, clean up, migrate, copy."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.ledger.databases import Database
from tests.scenarios.release import next_release
from tests.scenarios.stage import Stage, at
from tests.site import DOMAIN, LONG_AGO, intent, reached
from tests.smtp_server import Rule, SmtpServer

WHY = ("--reason", "the customer says it never came")


def test_F1_what_was_accepted_is_never_sent_again_under_its_event(stage: Stage) -> None:
    """One accepted, one delivered, one unknown, by id and by filter. Relatives: every other state (below); what is made
    anew is made once."""
    with SmtpServer(Rule("dot", hang=True, when=lambda it: f"r3@{DOMAIN}" in it.recipients)) as server:
        stage.to(server, deadline="1s")
        stage.enqueue(3)
        stage.dispatched(accepted=2, ambiguous=1, code=3)
        server.rules.clear()
        server.release()
        sent, delivered, unknown = (str(stage.delivery(number, "id")) for number in (1, 2, 3))
        stage.sql("UPDATE notify_delivery SET state = 'delivered' WHERE event_id = 'e2'")
        stage.sql("INSERT INTO notify_receipt (delivery_id, status) VALUES (?, 'delivered')", int(delivered))
        for which in ((sent, delivered, unknown), ("--recipient", "r-1"), ("--state", "delivered")):
            document = stage.asked("requeue", *which, *WHY, "--yes", code=65)
            assert document["requeued"] == 0
            for refusal in document["refusals"]:
                assert refusal["state"] in ("accepted", "delivered", "ambiguous")
                if refusal["state"] == "ambiguous":
                    assert (refusal["reason"], "--accept-duplicate" in refusal["hint"]) == ("in_doubt", True)
                    continue
                when = stage.seen(1 if refusal["state"] == "accepted" else 2)["accepted_at"]
                assert when in refusal["hint"], "the time of acceptance"
                assert ("said delivered" in refusal["hint"]) == (refusal["state"] == "delivered"), "the receipt"
                assert "--as-new-event" in refusal["hint"]
        stage.later()
        stage.dispatched(claimed=0)
        assert server.accepted == 3
        for _ in range(2):
            done = stage.run("requeue", sent, *WHY, "--as-new-event", "--json")
        assert (done.code, done.json["refusals"][0]["reason"]) == (65, "already_sent_anew")
        stage.dispatched(accepted=1)
        assert sorted(reached(server.messages)) == [1, 1, 2, 3]
        trails = stage.sql(
            "SELECT delivery_id, reason, note FROM notify_transition WHERE reason IN ('sent_anew', 'new_event')"
        )
        assert {reason for _, reason, _ in trails} == {"sent_anew", "new_event"}
        assert all(WHY[1] in note for *_, note in trails)
        assert stage.sql("SELECT count(*) FROM notify_delivery WHERE origin_id = ?", int(sent)) == [(1,)]
        assert stage.asked("requeue", unknown, *WHY, "--accept-duplicate", "--yes")["requeued"] == 1
        stage.dispatched(accepted=1)
        assert stage.sql("SELECT mandate FROM notify_attempt WHERE delivery_id = ? ORDER BY number", int(unknown)) == [
            (None,), ("duplicate",),
        ]  # fmt: skip


ENDED = ("accepted", "delivered", "permanent_failure", "suppressed", "expired", "cancelled")
REVIEW = ("dead_letter", "unresolved")
LIVE = ("queued", "temporary_failure", "ambiguous", "sending", "pending")


def _of_every_state(stage: Stage, first: int, ended_at: str) -> dict[str, int]:
    """One delivery in each state, created and ended then; their numbers."""
    numbers = {state: first + n for n, state in enumerate((*ENDED, *REVIEW, *LIVE))}
    stage.enqueue(len(numbers), first=first)
    for state, number in numbers.items():
        which = f"(SELECT id FROM notify_delivery WHERE event_id = 'e{number}')"
        accepted = (
            "'2001-01-01 00:00:00.000000'" if state in ("accepted", "delivered", "unresolved", "pending") else "NULL"
        )
        doubt = "'2001-01-01 00:00:00.000000'" if state == "ambiguous" else "NULL"
        settled = "NULL" if state in LIVE else "?"
        stage.sql(
            f"UPDATE notify_delivery SET state = '{state}', accepted_at = {accepted}, doubt_since = {doubt}, "
            f"settled_at = {settled}, created_at = ? WHERE event_id = 'e{number}'",
            *([] if state in LIVE else [ended_at]), ended_at,
        )  # fmt: skip
        if state not in LIVE:
            stage.sql(f"DELETE FROM notify_work WHERE delivery_id = {which}")
        step = {"ambiguous": "resolve", "sending": "resolve", "pending": "check"}.get(state)
        if step:
            stage.sql(f"UPDATE notify_work SET step = '{step}' WHERE delivery_id = {which}")
        stage.sql(
            "INSERT INTO notify_attempt (delivery_id, number, run, fencing_token, transport, started) "
            f"SELECT id, 1, 'r', 1, 'relay', ? FROM notify_delivery WHERE event_id = 'e{number}'",
            ended_at,
        )
    return numbers


def test_F1_every_refusal_names_the_state_and_the_way_out(stage: Stage) -> None:
    numbers = _of_every_state(stage, 1, LONG_AGO)
    back = {"dead_letter", "permanent_failure", "cancelled", "expired", "suppressed", "unresolved"}
    stage.sql("UPDATE notify_delivery SET reason = 'lost', remote_id = 'x-' || event_id")
    keys = {state: str(stage.delivery(number, "id")) for state, number in numbers.items()}
    document = stage.asked("requeue", *keys.values(), *WHY, "--dry-run", code=65)
    refused = {refusal["state"]: refusal for refusal in document["refusals"]}
    assert refused.keys() == numbers.keys() - back
    for state, refusal in refused.items():
        assert (refusal["id"], bool(refusal["hint"])) == (int(keys[state]), True)
    said = stage.told("requeue", *keys.values(), *WHY, "--dry-run", code=65)
    assert all(f"delivery {keys[state]} ({state}) refused: " in said.err for state in refused)
    for filters, matched in (
        (("--remote-id", f"x-e{numbers['cancelled']}"), 1),
        (("--reason-code", "lost"), len(numbers)),
        (("--reason-code", "lost", "--state", "expired"), 1),
    ):
        document = stage.run("requeue", *filters, *WHY, "--dry-run", "--json").json
        assert document["matched"] == matched
    gone = stage.told("requeue", "999999", *WHY, code=65)
    assert "notifyctl inspect deliveries" in gone.err
    assert stage.asked("requeue", keys["expired"], *WHY, "--expires-in", "1h")["requeued"] == 1
    assert stage.asked("requeue", keys["unresolved"], *WHY)["requeued"] == 1
    assert stage.work(numbers["unresolved"], "step") == ("check",), "looked up, never sent"
    with SmtpServer() as server:
        stage.to(server)
        stage.run("dispatch", "--json")
        assert numbers["unresolved"] not in reached(server.messages)
    batch = stage.asked("requeue", keys["cancelled"], keys["suppressed"], *WHY)["batch"]
    assert stage.asked("cancel", "--batch", batch, "--reason", "a mistake")["cancelled"] == 2
    for option in ("--event", "--batch"):
        typo = stage.told("cancel", option, "e-typo", "--reason", "x", "--json", code=65)
        assert "e-typo" in stage.refused(typo)["message"]


def test_F3_only_what_ended_long_ago_is_removed(stage: Stage) -> None:
    """Old and new rows in every state, people's own rows, an attachment that is gone. Relatives: a dry run, a rerun, a
    shorter age, more rows than a page, a delivery in doubt that ended otherwise."""
    old, new = _of_every_state(stage, 1, LONG_AGO), _of_every_state(stage, 21, at(-86400))
    stage.put("topics.news", consent="opt_out")
    stage.sql(
        "UPDATE notify_delivery SET attachments = ? WHERE event_id = 'e1'", '[{"key": "gone.pdf", "sha256": "00"}]'
    )
    stage.many(1200, event_id="'e' || (n + 1000)", state="'delivered'", created_at=f"{_time(stage, LONG_AGO)}",
               settled_at=f"{_time(stage, LONG_AGO)}")  # fmt: skip
    stage.enqueue(1, first=50)
    stage.sql("UPDATE notify_delivery SET state = 'suppressed', settled_at = ?, created_at = ?, doubt_since = ? "
              "WHERE event_id = 'e50'", LONG_AGO, LONG_AGO, LONG_AGO)  # fmt: skip
    stage.sql("DELETE FROM notify_work WHERE delivery_id = (SELECT id FROM notify_delivery WHERE event_id = 'e50')")
    stage.told("suppression", "add", "--recipient", "gone", "--channel", "email", "--reason", "manual")
    stage.told("consent", "revoke", "--recipient", "gone", "--channel", "email", "--topic", "news")
    stage.told("recipient", "set", "gone", "--to", f"email=gone@{DOMAIN}")
    stage.sql("UPDATE notify_work SET owner = 'somebody', eligible_at = '2099-01-01 00:00:00' WHERE delivery_id = "
              f"(SELECT id FROM notify_delivery WHERE event_id = 'e{old['temporary_failure']}')")  # fmt: skip
    kept = ("suppression", "consent", "endpoint", "key", "work")
    before = {table: stage.sql(f"SELECT count(*) FROM notify_{table}") for table in kept}
    expected = {**dict.fromkeys(ENDED, 1), "delivered": 1201}

    assert stage.asked("prune", "--dry-run")["states"] == expected
    assert stage.sql("SELECT count(*) FROM notify_delivery") == [(1200 + 2 * 13 + 1,)]
    refused = stage.told("prune", code=2)
    assert "--yes" in refused.err
    done = stage.asked("prune", "--yes")
    assert (done["pruned"], done["states"]) == (1206, expected)
    again = stage.told("prune", "--yes")
    assert (again.out, again.err) == ("", ""), "a rerun does nothing and says nothing"
    for state, number in old.items():
        assert bool(stage.numbers(f"d.event_id = 'e{number}'")) == (state not in ENDED), state
    assert len(stage.numbers("1 = 1")) == 2 * 13 + 1 - 6
    assert set(new.values()) <= stage.numbers("1 = 1"), "nothing new was removed"
    assert {table: stage.sql(f"SELECT count(*) FROM notify_{table}") for table in kept} == before
    for table in ("attempt", "transition"):
        orphans = f"SELECT count(*) FROM notify_{table} a WHERE a.delivery_id NOT IN (SELECT id FROM notify_delivery)"
        assert stage.sql(orphans) == [(0,)]
    again_enqueued = stage.bulk(intent(old["delivered"]))
    assert (again_enqueued["enqueued"], again_enqueued["duplicate"]) == (0, 1), "its key is remembered"
    error = stage.refused(stage.told("inspect", "delivery", "2:e2:r-2:email", "--json", code=65))
    assert "retention" in error["message"]
    short = stage.asked("prune", "--older-than", "1s", "--yes")
    assert short["pruned"] == 6
    stage.told("prune", "--older-than", "soon", code=2)


def _time(stage: Stage, text: str) -> str:
    return f"'{text}'" if stage.url.startswith("sqlite") else f"'{text}+00'::timestamptz"


def test_F3_what_was_marked_sensitive_is_gone_once_it_has_ended(stage: Stage) -> None:
    """However it ends: accepted, refused, expired, cancelled, suppressed by a sweep, born suppressed. What waits, or a
    person may requeue, keeps its words; the same enqueue again is a duplicate, another body a conflict."""
    stage.put("topics.news", consent="required")
    stage.configure(lane={"max_attempts": 1})
    rules = [
        Rule("rcpt", reply="554 5.7.1 no", when=lambda it: f"r2@{DOMAIN}" in it.recipient),
        Rule("rcpt", reply="451 4.3.0 later", when=lambda it: f"r7@{DOMAIN}" in it.recipient),
    ]
    with SmtpServer(*rules) as server:
        stage.to(server)
        rows = [intent(number, sensitive=True) for number in range(1, 9)]
        rows[2] |= {"expires_in": "1h"}
        rows[5] |= {"topic": "news"}
        rows[7] |= {"at": "2099-01-01T00:00:00Z"}
        stage.bulk(*rows)
        stage.sql("UPDATE notify_delivery SET expires_at = ? WHERE event_id = 'e3'", LONG_AGO)
        stage.told("cancel", "--event", "e4", "--reason", "x")
        stage.told("suppression", "add", "--recipient", "r-5", "--channel", "email", "--reason", "manual")
        stage.run("dispatch")
        states = {number: stage.delivery(number) for number in range(1, 9)}
        assert list(states.values()) == ["accepted", "permanent_failure", "expired", "cancelled", "suppressed",
                                         "suppressed", "dead_letter", "queued"]  # fmt: skip
        for number, state in states.items():
            empty = str(stage.delivery(number, "variables")) == "{}"
            assert empty == (state not in ("dead_letter", "queued")), state
        assert reached(server.messages) == [1]
        again = stage.bulk(*rows[:2], intent(4, sensitive=True, vars={"name": "other"}), code=65)
        assert (again["duplicate"], again["conflict"]) == (2, 1)
        refusal = stage.asked("requeue", str(stage.delivery(2, "id")), *WHY, code=65)["refusals"][0]
        assert refusal["reason"] == "content_erased"


@contextmanager
def _enqueuing(stage: Stage) -> Iterator[list[float]]:
    """An application that goes on inserting, each insert waiting at most three seconds for a lock."""
    stop = threading.Event()
    done: list[float] = []

    def insert() -> None:
        with Database(stage.url) as database:
            if database.dialect == "postgresql":
                database.execute("SET lock_timeout = '3s'")
            while not stop.is_set():
                database.intend(f"e{100_000 + len(done)}", template="note", destination=f"r@{DOMAIN}")
                done.append(1.0)

    thread = threading.Thread(target=_kept, args=(insert, done))
    thread.start()
    try:
        yield done
    finally:
        stop.set()
        thread.join(30)
    assert -1.0 not in done, "an insert was held up for longer than the stated bound"


def _kept(work, done: list[float]) -> None:  # type: ignore[no-untyped-def]
    try:
        work()
    except (psycopg.errors.LockNotAvailable, sqlite3.OperationalError):
        done.append(-1.0)


ROWS = 20_000


@pytest.mark.parametrize("rows", [ROWS, pytest.param(500_000, marks=pytest.mark.soak)])
def test_F4_a_migration_of_a_ledger_in_use_holds_nobody_up(stage: Stage, tmp_path: Path, rows: int) -> None:
    """The next release's file makes an index and adds a column while an application inserts, a dispatch runs and some
    one reads: refused cleanly after its patience, killed halfway, run again, completed. Relatives: two at once, the
    older release goes on. No insert waits for more than a second's lock and the statement itself."""
    new = next_release(tmp_path / "next")
    stage.many(rows)
    with SmtpServer() as server:
        stage.to(server)
        stage.configure(ledger={"patience": "2s"})
        blocker = Database(stage.url)
        blocker.begin()
        blocker.execute("SELECT count(*) FROM notify_delivery" if stage.url.startswith("postgres") else "SELECT 1")
        if stage.url.startswith("postgres"):
            with _enqueuing(stage) as done:
                sending = stage.start("dispatch", "--limit", "200", "--json")
                refused = stage.run("migrate", "--json", env=new)
                assert refused.code == 75, refused
                assert "nothing was changed" in stage.refused(refused)["message"]
                count = len(done)
                stage.configure(ledger={"patience": "30s"})
                halfway = stage.start("migrate", "--json", env=new)
                _until_locked(stage)
                halfway.signal(signal.SIGKILL)
                halfway.result()
                assert sending.result().json["accepted"] == 200
                blocker.connection.close()
                both = [stage.start("migrate", "--json", env=new) for _ in range(2)]
                applied = [run.result().json["applied"] for run in both]
            assert len(done) > count, "the application went on"
        else:
            refused = stage.run("migrate", "--json", env=new)
            assert (refused.code, "nothing was changed" in stage.refused(refused)["message"]) == (75, True), refused
            blocker.connection.close()
            stage.configure(ledger={"patience": "30s"})
            sending = stage.start("dispatch", "--limit", "200", "--json")
            both = [stage.start("migrate", "--json", env=new) for _ in range(2)]
            applied = [run.result().json["applied"] for run in both]
            assert sending.result().json["accepted"] == 200
        assert sorted(applied) == [[], ["0002_next"]]
        assert stage.told("migrate", env=new).out.startswith("the ledger is up to date (version 2)")
        stage.dispatched("--limit", "100", accepted=100)
        assert len(server.messages) == 300
        stage.audit(server) if rows == ROWS else None


def _until_locked(stage: Stage) -> None:
    """Wait until the migration has done its first statement and waits for the lock of its second."""
    with Database(stage.url) as database:
        for _ in range(3000):
            if database.execute("SELECT 1 FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'"):
                return
            threading.Event().wait(0.01)
    raise AssertionError("the migration never waited")


def test_F6_a_copied_ledger_sends_nothing_until_somebody_says_it_is_his(
    stage: Stage, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Relatives: every command that could send or change, idle too; read-only and under cron; acknowledged at last."""
    stage.enqueue(2)
    with SmtpServer() as server, _copy(stage, tmp_path, request) as copy:
        copy.to(server)
        copy.config.write_text(copy.config.read_text().replace('instance = "test"', 'instance = "staging"'))
        for words in (("dispatch",), ("dispatch", "--json"), ("enqueue", "--from", "rows.ndjson"), ("migrate",),
                      ("requeue", "1", *WHY), ("cancel", "1", *WHY), ("inspect",), ("prune", "--yes")):  # fmt: skip
            (copy.path / "rows.ndjson").write_text("")
            done = copy.told(*words, code=78)
            assert "--adopt-instance" in done.err, words
            assert '"test"' in done.err.replace("\\", ""), "the name of the ledger's own instance"
        copy.sql("UPDATE notify_work SET eligible_at = '2099-01-01 00:00:00'")
        copy.told("dispatch", code=78)
        assert (server.connections, copy.sql("SELECT count(*) FROM notify_attempt")) == ([], [(0,)])
        copy.sql("UPDATE notify_work SET eligible_at = ?", LONG_AGO)
        copy.told("migrate", "--adopt-instance")
        copy.dispatched(accepted=2)
        assert stage.states() == {"queued": 2}, "the original is as it was"


@contextmanager
def _copy(stage: Stage, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stage]:
    if stage.url.startswith("sqlite:"):
        stage.sql("PRAGMA wal_checkpoint(TRUNCATE)")
        shutil.copyfile(stage.url.removeprefix("sqlite:///"), tmp_path / "copy.db")
        yield Stage(tmp_path / "copy", f"sqlite:///{tmp_path / 'copy.db'}")
        return
    cluster = request.getfixturevalue("postgres")
    stage.quiet()
    url = cluster.create_database(template=stage.url.rpartition("/")[2])
    yield Stage(tmp_path / "copy", url)
    cluster.drop_database(url)
