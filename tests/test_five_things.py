"""The things most easily got wrong, each tried by force: races, late bytes, forgotten doubt, changed bytes.

(Applications' own SQL, the fifth, is tested with the ledger's SQL contract.)
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from email import message_from_bytes
from pathlib import Path
from threading import Barrier
from typing import Any, TypeVar

import pytest

from notifyctl.ledger.begin import Begun, Held
from notifyctl.model import Delivery, Outcome, OutcomeKind
from tests.ledger.workbench import Workbench
from tests.site import DOMAIN, LONG_AGO, Site, intent
from tests.smtp_server import Rule, SmtpServer

T = TypeVar("T")
ACCEPTED = Outcome(OutcomeKind.ACCEPTED, remote_ids=("<late@shop.example>",))
RACES = 400
ROWS = 3  # per race: with several rows each, a wrong order of locks is a deadlock

# -- (1) somebody else's write races the owner's ---------------------------------------------------------------------


class Actor:
    """One owner: a thread with a connection of its own."""

    def __init__(self, url: str, run: str) -> None:
        self._pool = ThreadPoolExecutor(1)
        self.bench = self._pool.submit(Workbench, url, run).result()

    def do(self, work: Callable[[Workbench], T]) -> T:
        """Have it done, and wait."""
        return self.begin(work).result(60)

    def begin(self, work: Callable[[Workbench], T]) -> Future[T]:
        """Have it done meanwhile."""
        return self._pool.submit(work, self.bench)

    def close(self) -> None:
        """End thread and connection."""
        self.do(lambda bench: bench.ledger.close())
        self._pool.shutdown()


@contextmanager
def _actors(url: str, *runs: str) -> Iterator[list[Actor]]:
    actors = [Actor(url, run) for run in runs]
    yield actors
    for actor in actors:
        actor.close()


def _race(
    one: Actor, work: Callable[[Workbench], Any], other: Actor, against: Callable[[Workbench], Any], lead: float
) -> tuple[Any, Any]:
    """Both at once; a positive `lead` (milliseconds) holds the other back, a negative one the one."""
    barrier = Barrier(2, timeout=60)

    def held(work: Callable[[Workbench], Any], by: float) -> Callable[[Workbench], Any]:
        def start(bench: Workbench) -> Any:
            barrier.wait()
            until = time.perf_counter() + by / 1000
            while time.perf_counter() < until:
                pass
            return work(bench)

        return start

    first, second = one.begin(held(work, -lead)), other.begin(held(against, lead))
    return first.result(60), second.result(60)  # whatever surfaces in a thread is raised here


def _begun(owner: Actor, count: int) -> Iterator[tuple[list[Delivery], dict[int, Begun | Held]]]:
    """Groups of `ROWS` deliveries whose attempts this owner has opened."""
    for number in range(count):
        owner.do(lambda bench, prefix=f"e{number}-": bench.deliveries(ROWS, prefix=prefix))
        deliveries = owner.do(lambda bench: bench.claim(ROWS))
        assert len(deliveries) == ROWS
        begun = owner.do(lambda bench, found=deliveries: bench.begin(found))
        yield deliveries, begun


def _all_accepted(actor: Actor, count: int) -> None:
    assert actor.do(Workbench.states) == {"accepted": count * ROWS}
    actor.do(Workbench.sound)
    unknown = "SELECT count(*) FROM notify_attempt WHERE outcome IS NULL OR outcome = 'ambiguous'"
    assert actor.do(lambda bench: bench.execute(unknown)) == [(0,)]
    twice = """SELECT delivery_id FROM notify_transition WHERE "to" = 'accepted' AND "from" <> 'accepted'
      GROUP BY delivery_id HAVING count(*) <> 1"""
    assert actor.do(lambda bench: bench.execute(twice)) == []


def _lapsed(bench: Workbench, deliveries: Sequence[Delivery]) -> None:
    bench.execute(
        "UPDATE notify_work SET eligible_at = :past WHERE delivery_id IN (SELECT id FROM {o: id bigint})",
        o=[(d.id,) for d in deliveries], past=deliveries[0].due_at,
    )  # fmt: skip


def test_an_acceptance_survives_every_race_with_a_lapse(migrated_url: str) -> None:
    chance = random.Random(1)
    lapsed_first = 0
    with _actors(migrated_url, "owner", "other") as (owner, other):
        for deliveries, begun in _begun(owner, RACES):
            other.do(lambda bench, found=deliveries: _lapsed(bench, found))
            results = [owner.bench.result(d, begun[d.id], ACCEPTED) for d in deliveries]
            done, lapsed = _race(
                owner, lambda bench, results=results: bench.record(results), other, Workbench.lapse,
                chance.uniform(-2, 2),
            )  # fmt: skip
            assert len(done.moves) == ROWS
            assert len(lapsed) in (0, ROWS)
            lapsed_first += bool(lapsed)
        _all_accepted(owner, RACES)
    print(f"{RACES} races: the lapse came first in {lapsed_first}")
    assert 0 < lapsed_first < RACES, "one of the two orders was never tried"


def test_a_late_acceptance_survives_every_race_with_a_second_owner(migrated_url: str) -> None:
    """The second owner was allowed to risk a duplicate; now the first one's acceptance arrives after all."""
    chance = random.Random(2)
    races = RACES // 2
    sent_again = 0
    with _actors(migrated_url, "owner", "second") as (owner, second):
        for number, (deliveries, begun) in enumerate(_begun(owner, races)):
            second.do(lambda bench, found=deliveries: _lapsed(bench, found))
            assert len(second.do(Workbench.lapse)) == ROWS
            second.do(lambda bench, found=deliveries: _mandate(bench, found))
            results = [owner.bench.result(d, begun[d.id], ACCEPTED) for d in deliveries]
            lead = chance.uniform(-2, 2)
            if number % 2:  # the acceptance meets the claim
                _, again = _race(owner, lambda b, r=results: b.record(r), second, lambda b: b.claim(ROWS), lead)
                beginning = second.do(lambda bench, found=again: bench.begin(found))
                assert all(isinstance(one, Held) for one in beginning.values()), "sent again although accepted"
                continue
            again = second.do(lambda bench: bench.claim(ROWS))  # it meets the begin
            _, beginning = _race(
                owner, lambda b, r=results: b.record(r), second, lambda b, found=again: b.begin(found), lead
            )
            going = [d for d in again if isinstance(beginning[d.id], Begun)]
            sent_again += bool(going)
            outcomes = [second.bench.result(d, beginning[d.id], ACCEPTED) for d in going]
            second.do(lambda bench, outcomes=outcomes: bench.record(outcomes))
        _all_accepted(owner, races)
        marked = "SELECT count(*) FROM notify_transition WHERE reason = 'duplicate_accepted'"
        twice = """SELECT count(*) FROM (SELECT delivery_id FROM notify_attempt WHERE outcome = 'accepted'
          GROUP BY delivery_id HAVING count(*) = 2) AS t"""
        assert owner.do(lambda bench: bench.execute(marked)) == owner.do(lambda bench: bench.execute(twice))
    assert 0 < sent_again < races // 2, "one of the two orders was never tried"


def _mandate(bench: Workbench, deliveries: Sequence[Delivery]) -> None:
    bench.execute(
        """UPDATE notify_work SET step = 'send', mandate = 'duplicate', eligible_at = :past
        WHERE delivery_id IN (SELECT id FROM {o: id bigint})""",
        o=[(d.id,) for d in deliveries], past=deliveries[0].due_at,
    )  # fmt: skip


# -- (2) an exchange outlives its deadline ---------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["banner", "data"])
def test_a_process_woken_after_its_deadline_sends_not_one_byte_more(
    phase: str, tmp_path: Path, migrated_url: str
) -> None:
    """Asleep before it has said a word, and with the whole message waiting for the server's "go ahead"."""
    with SmtpServer(Rule(phase, hang=True, times=1)) as server, Site(tmp_path, migrated_url, server.port) as site:
        site.configure(relay={"deadline": "2s"})
        site.publish()
        site.enqueue(1)
        first = site.start("dispatch", "--json")
        server.wait_until(phase)
        first.stop()
        connection = server.connections[0]
        before = list(connection.reads)
        server.release()  # everything the sleeper waited for is there when it wakes
        time.sleep(2.1)  # its deadline is wall time and nobody can move it

        site.later()
        other = site.dispatch()
        assert other.json["leases_recovered"] == 1
        assert site.delivery(1) == "ambiguous"
        assert (other.json["claimed"], server.accepted) == (0, 0)

        first.signal(signal.SIGCONT)
        woken = first.result()
        assert connection.ended.wait(10)
        assert connection.reads == before, "it wrote after its deadline"
        assert server.accepted == 0
        # It knows that nothing was submitted, and says so: the doubt is gone, and the one copy goes out.
        assert woken.json["ambiguous"] == 0, woken
        assert site.delivery(1) in ("queued", "temporary_failure")
        site.later()
        assert site.dispatch().json["accepted"] == 1
        assert len(server.messages) == 1
        site.audit(server)


def test_a_sleeper_whose_message_was_accepted_brings_its_acceptance_after_the_lapse(
    tmp_path: Path, migrated_url: str
) -> None:
    with SmtpServer(Rule("dot", hang=True, times=1)) as server, Site(tmp_path, migrated_url, server.port) as site:
        site.configure(relay={"deadline": "2s"})
        site.publish()
        site.enqueue(1)
        first = site.start("dispatch", "--json")
        server.wait_for(1)
        first.stop()
        server.release()
        time.sleep(2.1)
        site.later()
        assert site.dispatch().json["leases_recovered"] == 1
        assert site.delivery(1) == "ambiguous"
        first.signal(signal.SIGCONT)
        assert first.result().json["accepted"] == 1
        assert site.delivery(1, "state, doubt_since") == ("accepted", None)
        site.later()
        assert site.dispatch().json["claimed"] == 0
        site.audit(server)


# -- (3) doubt is forgotten ------------------------------------------------------------------------------------------


def test_doubt_outlives_refusals_requeues_and_every_later_tick(tmp_path: Path, migrated_url: str) -> None:
    with SmtpServer(Rule("dot", hang=True, times=1)) as server, Site(tmp_path, migrated_url, server.port) as site:
        site.configure(relay={"deadline": "1s"}, lane={"max_attempts": 3})
        site.publish()
        site.enqueue(1)
        done = site.run("dispatch", "--json")
        assert (done.code, done.json["held"], done.json["ambiguous"]) == (3, 1, 1), done
        state, since = site.delivery(1, "state, doubt_since")
        assert (state, server.accepted) == ("ambiguous", 1)
        assert since is not None
        server.release()

        def in_doubt() -> None:
            """As before, and no tick sends anything, whatever time it is."""
            site.later()
            assert site.dispatch().json["claimed"] == 0
            assert site.delivery(1, "state, doubt_since") == ("ambiguous", since)
            refused = site.run("requeue", key, "--reason", "the customer asked", "--yes", "--json")
            assert (refused.code, refused.json["requeued"], refused.json["refused"]) == (65, 0, 1), refused
            assert site.delivery(1, "state, doubt_since") == ("ambiguous", since)
            assert server.accepted == 1
            site.audit(server)

        key = str(site.delivery(1, "id"))
        in_doubt()
        for reply in ("450 4.2.1 too fast", "554 5.6.0 no"):
            rule = server.rule("dot", reply=reply)
            _accept_duplicate(site, key)
            site.dispatch()
            assert site.sql("SELECT max(number) FROM notify_attempt WHERE mandate = 'duplicate'")[0][0] > 1
            in_doubt()
            server.rules.remove(rule)
        _accept_duplicate(site, key)
        assert site.dispatch().json["accepted"] == 1
        outcomes = site.sql("SELECT outcome, mandate FROM notify_attempt ORDER BY number")
        assert outcomes[0] == ("ambiguous", None)
        assert outcomes[-1] == ("accepted", "duplicate")
        assert all(mandate == "duplicate" for _, mandate in outcomes[1:]), "an unflagged second submission"
        assert site.delivery(1, "state, doubt_since") == ("accepted", None)
        assert server.accepted == 2


def _accept_duplicate(site: Site, key: str) -> None:
    done = site.run("requeue", key, "--reason", "two are better than none", "--accept-duplicate", "--yes", "--json")
    assert (done.code, done.json["requeued"]) == (0, 1), done
    site.sql("DELETE FROM notify_gate")


# -- (5) the same delivery, other bytes ------------------------------------------------------------------------------

LATER = "451 4.3.0 try later"
HTML = "<p>Hello {{ name }},</p>\n<p>yöur nöte.</p>\n"


@contextmanager
def _deferred(tmp_path: Path, url: str, **row: Any) -> Iterator[tuple[SmtpServer, Site, bytes]]:
    """A delivery whose first attempt met a temporary failure after all its bytes were seen."""
    with SmtpServer(Rule("dot", reply=LATER, times=1)) as server, Site(tmp_path, url, server.port) as site:
        site.publish(html=HTML)
        if "to" in row:
            site.sql("INSERT INTO notify_endpoint (recipient_id, channel, address) VALUES ('r-1', 'email', ?)",
                     f"r1@{DOMAIN}")  # fmt: skip
        site.enqueue_rows([{k: v for k, v in intent(1, **row).items() if v is not None}])
        assert site.dispatch().json["temporary_failure"] == 1
        assert server.messages == []
        first = server.connections[0].body
        assert b"text/html" in first
        yield server, site, first


def _again(site: Site) -> Any:
    site.later()
    return site.dispatch()


def _digests(site: Site) -> list[str]:
    return [digest for (digest,) in site.sql("SELECT request_digest FROM notify_attempt ORDER BY number")]


def test_a_retry_in_a_new_process_sends_the_same_bytes(tmp_path: Path, migrated_url: str) -> None:
    with _deferred(tmp_path, migrated_url) as (server, site, first):
        assert _again(site).json["accepted"] == 1
        assert server.messages[0].raw == first
        one, two = _digests(site)
        assert one == two


def test_a_newer_template_changes_nothing_that_was_enqueued_before(tmp_path: Path, migrated_url: str) -> None:
    with _deferred(tmp_path, migrated_url) as (server, site, first):
        site.publish("2", subject="Other words", body="{{ missing_then }}\n", html="<b>{{ missing_then }}</b>\n")
        assert _again(site).json["accepted"] == 1
        assert server.messages[0].raw == first
        assert len(set(_digests(site))) == 1
        assert site.delivery(1, "template_version") == "1"


def test_a_retry_without_doubt_goes_out_under_a_changed_sender(tmp_path: Path, migrated_url: str) -> None:
    with _deferred(tmp_path, migrated_url) as (server, site, first):
        site.configure(relay={"from": "New Shop <hello@new.example>"})
        assert _again(site).json["accepted"] == 1
        (message,) = server.messages
        assert message.mail_from == "hello@new.example"
        assert message_from_bytes(message.raw)["From"] == "New Shop <hello@new.example>"
        assert message.raw.partition(b"\r\n\r\n")[2] != b""
        assert len(set(_digests(site))) == 2
        assert message_from_bytes(message.raw)["Date"] == message_from_bytes(first)["Date"]


def test_a_retry_never_follows_a_recipient_to_another_address(tmp_path: Path, migrated_url: str) -> None:
    with _deferred(tmp_path, migrated_url, to=None) as (server, site, _):
        site.sql("INSERT INTO notify_endpoint (recipient_id, channel, address) VALUES ('r-1', 'email', ?)",
                 f"elsewhere@{DOMAIN}")  # fmt: skip
        commands = len(server.commands)
        done = _again(site)
        assert done.json["permanent_failure"] == 1
        assert site.delivery(1, "state, reason") == ("permanent_failure", "destination_changed")
        assert (len(server.commands), server.messages) == (commands, [])
        site.later()
        assert site.dispatch().json["claimed"] == 0


@contextmanager
def _to_replay(tmp_path: Path, url: str) -> Iterator[tuple[Site, Path]]:
    """A delivery in doubt whose provider drops repetitions, with a mandate to replay it; and the folder of mails."""
    with Site(tmp_path, url) as site:
        relay = {"kind": "file", "path": "out", "from": "Shop <no-reply@shop.example>", "fail": FAIL}
        site.settings["transports.relay"] = relay
        site.configure()
        site.publish()
        site.enqueue(1)
        assert site.dispatch().json["ambiguous"] == 1
        site.sql("UPDATE notify_work SET step = 'send', mandate = 'replay'")
        site.later()
        yield site, tmp_path / "out" / "mail" / "new"


FAIL = [{"match": "*", "outcome": "ambiguous", "times": 1, "after_accept": True}]


def test_a_replay_keeps_the_pinned_sender_and_is_the_same_bytes(tmp_path: Path, migrated_url: str) -> None:
    with _to_replay(tmp_path, migrated_url) as (site, mails):
        site.configure(relay={"from": "New Shop <hello@new.example>"})
        assert site.dispatch().json["accepted"] == 1
        assert len(set(_digests(site))) == 1
        assert len(_digests(site)) == 2
        (mail,) = mails.iterdir()
        assert message_from_bytes(mail.read_bytes())["From"] == "Shop <no-reply@shop.example>"


def test_a_replay_that_would_differ_is_held(tmp_path: Path, migrated_url: str) -> None:
    with _to_replay(tmp_path, migrated_url) as (site, mails):
        site.configure(relay={"reply_to": "desk@new.example"})
        done = site.dispatch()
        assert (done.code, done.json["held"], done.json["accepted"]) == (3, 1, 0)
        assert site.delivery(1, "state, reason") == ("ambiguous", "content_changed")
        assert len(list(mails.iterdir())) == 1


def test_a_replay_after_the_providers_window_is_held(tmp_path: Path, migrated_url: str) -> None:
    """The mandate was given in time and dispatch came late: to the provider it would be a new message."""
    with _to_replay(tmp_path, migrated_url) as (site, mails):
        site.sql("UPDATE notify_delivery SET doubt_since = ?", LONG_AGO)
        done = site.dispatch()
        assert (done.code, done.json["held"], done.json["accepted"]) == (3, 1, 0), done
        assert site.delivery(1, "state, reason") == ("ambiguous", "replay_window_closed")
        assert len(list(mails.iterdir())) == 1
