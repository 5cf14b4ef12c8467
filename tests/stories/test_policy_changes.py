"""What people say about being contacted holds from the moment it is committed: while a delivery waits, while a run has
claimed it, and between two attempts; by the commands, and by plain SQL from a transaction of somebody else's."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.rig import command, environment
from tests.ledger.databases import Database
from tests.site import DOMAIN, Done, Running, Site, reached
from tests.smtp_server import Rule, SmtpServer

Way = Callable[[Site, Database, int], Any]


# -- the changes, each by both ways ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """Something that forbids delivery `e<n>` to `r-<n>`; `reason` is what the delivery then says."""

    reason: str
    command: Way
    sql: Way
    undo: tuple[str, ...]

    def by(self, way: str) -> Way:
        """One of the two ways."""
        return self.command if way == "command" else self.sql


def who(number: int) -> tuple[str, ...]:
    """The options that name a recipient's channel."""
    return ("--recipient", f"r-{number}", "--channel", "email")


def told(site: Site, *arguments: str) -> Done:
    """A command that must succeed."""
    done = site.run(*arguments)
    assert done.code == 0, done
    return done


def _suppression(reason: str, said: str) -> Change:
    def add(site: Site, database: Database, number: int) -> None:
        told(site, "suppression", "add", *who(number), "--reason", said)

    def insert(site: Site, database: Database, number: int) -> None:
        of_address = reason in ("hard_bounce", "invalid_recipient")
        known = database.delivery(f"e{number}", "fingerprint") if of_address else None
        assert bool(known) is of_address
        pair = {"recipient_id": f"r-{number}", "channel": "email"}
        database.insert("notify_suppression", **pair, reason=reason, fingerprint=known)

    return Change(reason, add, insert, ("suppression", "lift", "--reason", "asked to be written to again"))


def _revocation() -> Change:
    def revoke(site: Site, database: Database, number: int) -> None:
        told(site, "consent", "revoke", *who(number), "--topic", "news")

    def insert(site: Site, database: Database, number: int) -> None:
        pair = {"recipient_id": f"r-{number}", "channel": "email"}
        database.insert("notify_consent", **pair, topic="news", granted=False)

    return Change("consent_revoked", revoke, insert, ("consent", "grant", "--topic", "news"))


_CHANGES = (
    _revocation(), _suppression("manual", "asked by phone"), _suppression("opted_out", "opted_out"),
    _suppression("complained", "complained"), _suppression("hard_bounce", "hard_bounce"),
    _suppression("invalid_recipient", "invalid_recipient"),
)  # fmt: skip
CHANGES = dict(enumerate(_CHANGES, start=2))  # by the number of the delivery that it forbids
BEFORE, AFTER = 1, 8  # deliveries to people who say nothing, in front of the others and behind them
ALL = [BEFORE, *CHANGES, AFTER]
WAYS = pytest.mark.parametrize("way", ["command", "sql"])


@pytest.fixture
def site(tmp_path: Path, migrated_url: str) -> Iterator[Site]:
    """An installation with two topics that may be opted out of, and SMS into a folder."""
    with Site(tmp_path / "site", migrated_url) as made:
        made.settings |= {
            "transports.texts": {
                "kind": "file", "path": "outbox", "from": "+15005550006",
                "fail": [
                    {"match": "+12025550111", "outcome": "permanent_failure", "reason": "invalid_recipient"},
                    {"match": "+12025550122", "outcome": "permanent_failure", "reason": "opted_out"},
                ],
            },
            "lanes.sms": {"channel": "sms", "transport": "texts"},
            "topics.news": {"consent": "opt_out"},
            "topics.codes": {"consent": "none"},
        }  # fmt: skip
        made.configure(lane={"concurrency": 1, "backoff": {"base": "1s", "cap": "1s"}})
        made.template()
        (made.path / "templates" / "note" / "1" / "sms.txt").write_text("Hello {{ name }}", encoding="utf-8")
        told(made, "template", "publish")
        yield made


@pytest.fixture
def database(migrated_url: str) -> Iterator[Database]:
    """Somebody else's connection to the ledger."""
    with Database(migrated_url) as opened:
        yield opened


def delivers(site: Site, server: SmtpServer, **lane: Any) -> None:
    """Let the lane submit to this server."""
    site.configure(relay={"port": server.port}, lane=lane)


def suppressed(site: Site, number: int, reason: str, attempts: int = 0) -> None:
    """The delivery is over, says why and since when, and nothing is left to do."""
    state, why, settled_at, used = site.delivery(number, "state, reason, settled_at, attempts_used")
    assert (state, why, used) == ("suppressed", reason, attempts), number
    assert settled_at
    (line,) = site.sql(
        """SELECT t.reason, t.at FROM notify_transition t JOIN notify_delivery d ON d.id = t.delivery_id
        WHERE d.event_id = ? AND t."to" = 'suppressed'""", f"e{number}",
    )  # fmt: skip
    assert line[0] == reason
    assert line[1]


def inspected(site: Site, number: int) -> Any:
    """What `inspect` says of a delivery."""
    which = str(site.delivery(number, "id"))
    done = subprocess.run(
        command("inspect", "delivery", which, "--json"),
        cwd=site.path,
        env=environment(),
        capture_output=True,
        check=True,
    )
    return json.loads(done.stdout)


def sends_again(site: Site, server: SmtpServer, number: int, change: Change) -> None:
    """Refused while what was said holds; once it is taken back, a requeue sends exactly this delivery."""
    delivery, before = str(site.delivery(number, "id")), len(server.messages)
    assert site.run("requeue", delivery, "--reason", "asked").code == 65
    told(site, *change.undo[:2], *who(number), *change.undo[2:])
    told(site, "requeue", delivery, "--reason", "asked")
    assert site.dispatch().json["accepted"] == 1
    assert reached(server.messages[before:]) == [number]


def dots(server: SmtpServer) -> int:
    """How many messages have come to their end."""
    return sum(connection.phases.count("dot") for connection in list(server.connections))


class Held:
    """A dispatch that works on delivery 1 and has claimed all others."""

    def __init__(self, site: Site, server: SmtpServer, numbers: list[int]) -> None:
        self.server = server
        server.rule("dot", hang=True, times=1)
        before = dots(server)
        self.run: Running = site.start("dispatch", "--json")
        self.run.until(server, lambda: dots(server) > before)
        claimed = site.numbers(
            "EXISTS (SELECT 1 FROM notify_work w WHERE w.delivery_id = d.id AND w.step = 'send' "
            "AND w.owner IS NOT NULL)"
        )
        assert claimed == set(numbers) - {BEFORE}
        assert site.open_attempts() == {BEFORE}

    def release(self) -> Any:
        """Let it go on to its end; what it says."""
        self.server.release()
        done = self.run.result()
        assert done.code == 0, done
        return done.json


# -- consent and suppression -----------------------------------------------------------------------------------------


@WAYS
def test_what_is_said_while_a_delivery_waits_settles_it_at_once(site: Site, database: Database, way: str) -> None:
    with SmtpServer() as server:
        delivers(site, server)
        site.enqueue(AFTER, topic="news")
        for number, change in CHANGES.items():
            change.by(way)(site, database, number)
            suppressed(site, number, change.reason)
        assert site.dispatch().json["accepted"] == len(ALL) - len(CHANGES)
        assert reached(server.messages) == [n for n in range(1, AFTER + 1) if n not in CHANGES]
        for number in (2, 6):
            sends_again(site, server, number, CHANGES[number])
        site.audit(server)


@WAYS
def test_what_is_said_while_a_run_has_claimed_the_delivery_stops_it(site: Site, database: Database, way: str) -> None:
    with SmtpServer() as server:
        delivers(site, server)
        site.enqueue(AFTER, topic="news")
        held = Held(site, server, list(range(1, AFTER + 1)))
        for number, change in CHANGES.items():
            change.by(way)(site, database, number)
            suppressed(site, number, change.reason)
        assert held.release()["accepted"] == AFTER - len(CHANGES)
        assert reached(server.messages) == [n for n in range(1, AFTER + 1) if n not in CHANGES]
        for number, change in CHANGES.items():
            suppressed(site, number, change.reason)
        for number in (2, 6):
            sends_again(site, server, number, CHANGES[number])
        site.audit(server)


@WAYS
def test_what_is_said_between_two_attempts_prevents_the_second(site: Site, database: Database, way: str) -> None:
    with SmtpServer(Rule("dot", reply="451 4.3.0 later", times=AFTER)) as server:
        delivers(site, server)
        site.enqueue(AFTER, topic="news")
        assert site.dispatch().json["temporary_failure"] == AFTER
        for number, change in CHANGES.items():
            change.by(way)(site, database, number)
            suppressed(site, number, change.reason, attempts=1)
        site.later()
        assert site.dispatch().json["accepted"] == AFTER - len(CHANGES)
        assert reached(server.messages) == [n for n in range(1, AFTER + 1) if n not in CHANGES]
        for number in (2, 6):
            sends_again(site, server, number, CHANGES[number])
        site.audit(server)


@WAYS
@pytest.mark.parametrize("number", [2, 3, 6], ids=["consent", "pair", "address"])
def test_what_is_said_during_an_attempt_counts_from_the_next_one(
    site: Site, database: Database, way: str, number: int
) -> None:
    with SmtpServer(Rule("dot", hang=True, reply="451 4.3.0 later", times=1)) as server:
        delivers(site, server)
        site.enqueue(1, first=number, topic="news")
        run = site.start("dispatch", "--json")
        run.until(server, lambda: dots(server) > 0)
        CHANGES[number].by(way)(site, database, number)
        assert site.delivery(number) == "sending"
        server.release()
        assert run.result().json["temporary_failure"] == 1
        site.later()
        assert site.dispatch().json["suppressed"] == 1
        suppressed(site, number, CHANGES[number].reason, attempts=1)
        assert server.messages == []


@pytest.mark.parametrize("number", CHANGES)
def test_an_open_transaction_delays_only_whom_it_concerns_and_counts_once_committed(
    site: Site, database: Database, number: int
) -> None:
    with SmtpServer() as server:
        delivers(site, server, lease="10m")
        site.enqueue(1)
        site.enqueue(1, first=number, topic="news")
        site.enqueue(1, first=AFTER)
        held = Held(site, server, [BEFORE, number, AFTER])
        database.begin()
        CHANGES[number].sql(site, database, number)
        server.release()
        if database.dialect == "postgresql":  # SQLite has one writer: there the run waits as a whole
            held.run.until(server, lambda: server.accepted >= 2)
            assert reached(server.messages) == [BEFORE, AFTER]
        database.execute("COMMIT")
        assert held.release()["accepted"] == 2
        assert reached(server.messages) == [BEFORE, AFTER]
        suppressed(site, number, CHANGES[number].reason)
        site.audit(server)


def test_what_is_rolled_back_was_never_said(site: Site, database: Database) -> None:
    with SmtpServer() as server:
        delivers(site, server)
        site.enqueue(3, topic="news")
        held = Held(site, server, [1, 2, 3])
        database.begin()
        CHANGES[2].sql(site, database, 2)
        CHANGES[3].sql(site, database, 3)
        server.release()
        database.execute("ROLLBACK")
        assert held.release()["accepted"] == 3
        assert sorted(reached(server.messages)) == [1, 2, 3]
        site.audit(server)


def test_a_bad_address_is_recognised_although_plain_sql_enqueued_to_it(site: Site, database: Database) -> None:
    """No fingerprint is known of such a row, so no trigger can match it: the begin does."""
    with SmtpServer() as server:
        delivers(site, server)
        told(site, "recipient", "set", "r-1", "--to", f"email=r1@{DOMAIN}")
        rows = {"template": "note", "variables": '{"name": "x"}'}
        database.intend("e1", recipient_id="r-1", **rows)
        database.intend("e2", recipient_id="r-1", destination=f"other1@{DOMAIN}", **rows)
        told(site, "suppression", "add", *who(1), "--reason", "hard_bounce")
        assert (site.delivery(1), site.delivery(2)) == ("queued", "queued")
        counts = site.dispatch().json
        assert (counts["suppressed"], counts["accepted"]) == (1, 1)
        suppressed(site, 1, "hard_bounce")
        assert [one.recipient for one in server.messages] == [f"other1@{DOMAIN}"]


def test_consent_that_is_required_must_be_there_when_it_is_sent(site: Site, database: Database) -> None:
    site.settings["topics.letters"] = {"consent": "required"}
    with SmtpServer() as server:
        delivers(site, server)
        rows = {"template": "note", "variables": '{"name": "x"}', "topic": "letters"}
        for number in (1, 2, 3):
            database.intend(f"e{number}", recipient_id=f"r-{number}", destination=f"r{number}@{DOMAIN}", **rows)
        told(site, "consent", "grant", *who(2), "--topic", "letters")
        told(site, "consent", "grant", *who(3), "--topic", "letters")
        told(site, "consent", "revoke", *who(3), "--topic", "letters")
        site.dispatch()
        suppressed(site, 1, "consent_missing")
        suppressed(site, 3, "consent_revoked")
        assert reached(server.messages) == [2]


# -- addresses -------------------------------------------------------------------------------------------------------


def moved_by_command(site: Site, database: Database, number: int) -> None:
    """`r-<number>` has a new address."""
    told(site, "recipient", "set", f"r-{number}", "--to", f"email=new{number}@{DOMAIN}")


def moved_by_sql(site: Site, database: Database, number: int) -> None:
    """The same by plain SQL, in whatever form a person writes an address."""
    address = f'"Doe, Jane" <new{number}@{DOMAIN.upper()}>'
    database.insert("notify_endpoint", recipient_id=f"r-{number}", channel="email", address=address)


MOVES: dict[str, Way] = {"command": moved_by_command, "sql": moved_by_sql}


def at_endpoints(site: Site, *numbers: int) -> None:
    """Deliveries to where their recipients are to be found."""
    for number in numbers:
        told(site, "recipient", "set", f"r-{number}", "--to", f"email=r{number}@{DOMAIN}")
        site.enqueue(1, first=number, to={})


def mailboxes(server: SmtpServer) -> list[str]:
    """Whose mailboxes got something, in order of their names."""
    return sorted(message.recipient.partition("@")[0] for message in server.messages)


@WAYS
def test_a_new_address_is_used_by_what_waits(site: Site, database: Database, way: str) -> None:
    with SmtpServer() as server:
        delivers(site, server)
        at_endpoints(site, 1, 2)
        MOVES[way](site, database, 2)
        assert site.dispatch().json["accepted"] == 2
        assert mailboxes(server) == ["new2", "r1"]


@WAYS
def test_a_new_address_is_used_by_what_is_claimed_and_was_never_attempted(
    site: Site, database: Database, way: str
) -> None:
    with SmtpServer() as server:
        delivers(site, server)
        at_endpoints(site, 1, 2, 3)
        held = Held(site, server, [1, 2, 3])
        MOVES[way](site, database, 2)
        held.release()
        assert "r2" not in mailboxes(server)
        site.dispatch()
        assert mailboxes(server) == ["new2", "r1", "r3"]
        assert site.sql("SELECT count(*) FROM notify_attempt") == [(3,)]
        site.audit(server)


@WAYS
@pytest.mark.parametrize("during", [False, True], ids=["after", "during"])
def test_after_an_attempt_a_new_address_ends_the_delivery_until_somebody_requeues_it(
    site: Site, database: Database, way: str, during: bool
) -> None:
    with SmtpServer(Rule("dot", hang=during, reply="451 4.3.0 later", times=1)) as server:
        delivers(site, server)
        at_endpoints(site, 1)
        run = site.start("dispatch", "--json")
        if during:
            run.until(server, lambda: dots(server) > 0)
            MOVES[way](site, database, 1)
            server.release()
        assert run.result().json["temporary_failure"] == 1
        if not during:
            MOVES[way](site, database, 1)
        site.later()
        done = site.dispatch()
        assert (done.code, done.json["permanent_failure"]) == (3, 1)
        assert site.delivery(1, "state, reason, attempts_used") == ("permanent_failure", "destination_changed", 1)
        assert server.messages == []
        told(site, "requeue", str(site.delivery(1, "id")), "--reason", "the new address is right")
        assert site.dispatch().json["accepted"] == 1
        assert mailboxes(server) == ["new1"]


@WAYS
def test_a_new_address_between_claim_and_second_attempt_ends_the_delivery(
    site: Site, database: Database, way: str
) -> None:
    with SmtpServer(Rule("dot", reply="451 4.3.0 later", times=1)) as server:
        delivers(site, server)
        at_endpoints(site, 2)
        assert site.dispatch().json["temporary_failure"] == 1
        site.enqueue(1)
        site.later()
        site.sql("UPDATE notify_work SET eligible_at = '2000-01-01 00:00:00.000000' WHERE delivery_id = ?",
                 site.delivery(1, "id"))  # fmt: skip
        held = Held(site, server, [1, 2])
        MOVES[way](site, database, 2)
        held.release()
        site.later()
        site.dispatch()
        assert site.delivery(2, "state, reason, attempts_used") == ("permanent_failure", "destination_changed", 1)
        assert mailboxes(server) == ["r1"]


def test_the_same_address_set_again_changes_nothing(site: Site, database: Database) -> None:
    with SmtpServer(Rule("dot", reply="451 4.3.0 later", times=1)) as server:
        delivers(site, server)
        at_endpoints(site, 1)
        assert site.dispatch().json["temporary_failure"] == 1
        database.insert("notify_endpoint", recipient_id="r-1", channel="email", address=f"r1@{DOMAIN.upper()}")
        site.later()
        assert site.dispatch().json["accepted"] == 1
        assert mailboxes(server) == ["r1"]


def test_an_address_that_the_intent_names_is_not_changed_by_the_recipients(site: Site, database: Database) -> None:
    with SmtpServer() as server:
        delivers(site, server)
        site.enqueue(2)
        held = Held(site, server, [1, 2])
        moved_by_sql(site, database, 2)
        assert held.release()["accepted"] == 2
        assert mailboxes(server) == ["r1", "r2"]


@WAYS
def test_a_bad_address_does_not_stop_the_one_that_replaces_it(site: Site, database: Database, way: str) -> None:
    with SmtpServer(
        Rule("rcpt", reply="550 5.1.1 no such user", when=lambda it: it.recipient.startswith("r"))
    ) as server:
        delivers(site, server)
        at_endpoints(site, 1)
        assert site.dispatch().json["permanent_failure"] == 1
        suppressed(site, 1, "invalid_recipient", attempts=1)
        row = {"event": "e2", "recipient": "r-1", "channel": "email", "template": "note", "vars": {"name": "x"}}
        site.enqueue_rows([row])
        suppressed(site, 2, "invalid_recipient")
        MOVES[way](site, database, 1)
        site.enqueue_rows([{**row, "event": "e3"}])
        assert site.delivery(3) == "queued"
        told(site, "requeue", str(site.delivery(1, "id")), "--reason", "has a new address")
        assert site.dispatch().json["accepted"] == 2
        assert mailboxes(server) == ["new1", "new1"]
        told(site, "recipient", "set", "r-1", "--to", f"email=r1@{DOMAIN}")
        site.enqueue_rows([{**row, "event": "e4"}])
        suppressed(site, 4, "invalid_recipient")


# -- told by providers -----------------------------------------------------------------------------------------------


def test_C1_unsubscribing_before_the_run_or_while_it_works_on_an_earlier_row_reaches_nobody(
    site: Site, database: Database
) -> None:
    with SmtpServer() as server:
        delivers(site, server)
        site.enqueue(3, topic="news")
        told(site, "suppression", "add", *who(2), "--reason", "opted_out")
        held = Held(site, server, [1, 3])
        told(site, "suppression", "add", *who(3), "--reason", "opted_out")
        assert held.release()["accepted"] == 1
        assert reached(server.messages) == [1]
        for number in (2, 3):
            suppressed(site, number, "opted_out")
            document = inspected(site, number)
            assert (document["state"], document["reason"]) == ("suppressed", "opted_out")
            assert document["settled_at"].endswith("Z")


def test_C2_an_unsubscribe_revokes_its_topic_and_a_bounce_blocks_every_topic(site: Site, database: Database) -> None:
    with SmtpServer(
        Rule("rcpt", reply="550 5.1.1 no such user", when=lambda it: it.recipient == f"r4@{DOMAIN}")
    ) as server:
        delivers(site, server)
        told(site, "consent", "revoke", *who(1), "--topic", "news")
        r1, r4 = (
            {"recipient": "r-1", "to": {"email": f"r1@{DOMAIN}"}},
            {"recipient": "r-4", "to": {"email": f"r4@{DOMAIN}"}},
        )
        site.enqueue(1, first=1, topic="codes", **r1)
        site.enqueue(1, first=2, topic="news", **r1)
        site.enqueue(1, first=3, **r1)
        site.enqueue(1, first=4, topic="codes", **r4)
        counts = site.dispatch().json
        assert (counts["accepted"], counts["permanent_failure"]) == (2, 1)
        suppressed(site, 2, "consent_revoked")
        site.enqueue(1, first=5, topic="codes", **r4)
        site.enqueue(1, first=6, topic="news", **r4)
        site.dispatch()
        for number in (5, 6):
            suppressed(site, number, "invalid_recipient")
        assert [one.recipient for one in server.messages] == [f"r1@{DOMAIN}"] * 2
        rules = {}
        for number in (2, 5, 6):
            rules[number] = [one["detail"] for one in inspected(site, number)["why"]]
        assert rules == {2: ["consent_revoked"], 5: ["invalid_recipient"], 6: ["invalid_recipient"]}


def test_C3_a_refused_address_and_an_opted_out_number_are_tried_once_and_never_handed_over_again(
    site: Site, database: Database
) -> None:
    with SmtpServer(Rule("rcpt", reply="550 5.1.1 no such user")) as server:
        delivers(site, server)
        number = {"recipient": "r-9", "channel": "sms", "to": {"sms": "+12025550122"}}
        site.enqueue(1)
        site.enqueue(1, first=2, **number)
        assert site.dispatch().json["permanent_failure"] == 2
        suppressed(site, 1, "invalid_recipient", attempts=1)
        suppressed(site, 2, "opted_out", attempts=1)
        entries = site.sql(
            "SELECT recipient_id, channel, reason, source_delivery_id FROM notify_suppression ORDER BY recipient_id"
        )
        assert entries == [
            ("r-1", "email", "invalid_recipient", site.delivery(1, "id")),
            ("r-9", "sms", "opted_out", site.delivery(2, "id")),
        ]  # fmt: skip
        site.enqueue(1, first=3, recipient="r-1", to={"email": f"r1@{DOMAIN}"})
        site.enqueue(1, first=4, **{**number, "to": {"sms": "+12025550133"}})
        site.dispatch()
        suppressed(site, 3, "invalid_recipient")
        suppressed(site, 4, "opted_out")  # STOP is of the pair: another number is no way around it
        assert site.sql("SELECT count(*) FROM notify_attempt") == [(2,)]
        assert [command for command in server.commands if command.startswith("RCPT")] == [f"RCPT TO:<r1@{DOMAIN}>"]


def test_C4_a_full_mailbox_is_tried_again_and_silences_nobody(site: Site, database: Database) -> None:
    with SmtpServer(Rule("rcpt", reply="452 4.2.2 mailbox full", times=2)) as server:
        delivers(site, server)
        site.enqueue(1)
        for _ in range(2):
            assert site.dispatch().json["temporary_failure"] == 1
            assert site.delivery(1, "state, reason") == ("temporary_failure", "mailbox_full")
            site.later()
        assert site.dispatch().json["accepted"] == 1
        assert site.sql("SELECT count(*) FROM notify_suppression") == [(0,)]
        assert reached(server.messages) == [1]
        site.audit(server)


def test_a_bad_number_never_silences_a_valid_mailbox(site: Site, database: Database) -> None:
    with SmtpServer() as server:
        delivers(site, server)
        site.enqueue(1, channel=["sms", "email"], to={"sms": "+12025550111", "email": f"r1@{DOMAIN}"})
        assert site.dispatch("--channel", "sms").json["permanent_failure"] == 1
        assert site.sql("SELECT channel, reason FROM notify_suppression") == [("sms", "invalid_recipient")]
        assert site.dispatch().json["accepted"] == 1
        site.enqueue(1, first=2, recipient="r-1", to={"email": f"r1@{DOMAIN}"})
        assert site.dispatch().json["accepted"] == 1
        assert mailboxes(server) == ["r1", "r1"]
        states = site.sql("SELECT channel, state FROM notify_delivery WHERE event_id = 'e1' ORDER BY channel")
        assert states == [("email", "accepted"), ("sms", "suppressed")]
