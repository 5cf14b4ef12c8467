"""C: what people said, and what servers said of them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.scenarios.stage import NUMBER, Stage, answers, text
from tests.site import DOMAIN, intent, reached
from tests.smtp_server import Rule, SmtpServer


def _who(number: int, channel: str = "email") -> tuple[str, ...]:
    return ("--recipient", f"r-{number}", "--channel", channel)


SAYING = (
    (("consent", "revoke"), ("--topic", "news"), "consent_revoked"),
    (("suppression", "add"), ("--reason", "asked by phone"), "manual"),
    (("suppression", "add"), ("--reason", "hard_bounce"), "hard_bounce"),
)


def test_C1_who_says_no_after_the_enqueue_gets_nothing(stage: Stage) -> None:
    """Some before the dispatch, some while the run that has claimed their mail works on an earlier one. Relatives: no
    to a topic, a pair, an address. (By SQL from an open transaction, between attempts: tests/stories.)"""
    stage.put("topics.news", consent="opt_out")
    before, during = dict(zip((2, 3, 4), SAYING, strict=True)), dict(zip((5, 6, 7), SAYING, strict=True))
    with SmtpServer(Rule("dot", hang=True, times=1)) as server:
        stage.to(server)
        stage.configure(lane={"concurrency": 1})
        stage.rows(*(intent(number, topic="news") for number in range(1, 9)))
        for number, (words, more, _) in before.items():
            stage.told(*words, *_who(number), *more)
        run = stage.start("dispatch", "--json")
        run.until(server, lambda: server.accepted == 1)
        for number, (words, more, _) in during.items():
            stage.told(*words, *_who(number), *more)
        server.release()
        done = run.result()
        assert (done.code, done.json["accepted"]) == (0, 2), done
        assert sorted(reached(server.messages)) == [1, 8]
        for number, (_, _, reason) in {**before, **during}.items():
            state, why, settled = stage.delivery(number, "state, reason, settled_at")
            assert (state, why, bool(settled)) == ("suppressed", reason, True)
            assert f"r{number}@{DOMAIN}" not in " ".join(server.commands), "it reached the server"
        assert stage.seen(7)["why"] == [{"reason": "suppressed", "until": None, "detail": "hard_bounce"}]
        stage.later()
        stage.dispatched(claimed=0)
        stage.audit(server)


def test_C2_an_opt_out_of_news_blocks_news_and_a_bounce_blocks_all(stage: Stage) -> None:
    """Relatives: said before and after the enqueue; another channel of the same person stays open."""
    stage.put("topics.news", consent="opt_out")
    stage.put("topics.codes", consent="none")
    with SmtpServer() as server:
        stage.to(server)

        def of(person: int, first: int) -> list[Any]:
            whom = {"recipient": f"r-{person}", "to": {"email": f"r{person}@{DOMAIN}"}}
            return [
                intent(first + n, **whom, **topic)
                for n, topic in enumerate(({"topic": "codes"}, {"topic": "news"}, {}))
            ]

        stage.told("consent", "revoke", *_who(1), "--topic", "news")
        assert stage.asked("suppression", "add", *_who(2), "--reason", "hard_bounce")["changed"] == 1
        stage.bulk(*of(1, 1), *of(2, 4), *of(3, 7))
        stage.told("consent", "revoke", *_who(3), "--topic", "news")
        stage.rows(text(20, recipient="r-2"))
        stage.dispatched(accepted=5)
        assert stage.numbers("d.state = 'accepted'") == {1, 3, 7, 9, 20}
        for number, reason in (
            (2, "consent_revoked"),
            (8, "consent_revoked"),
            *((n, "hard_bounce") for n in (4, 5, 6)),
        ):
            assert stage.delivery(number, "state, reason") == ("suppressed", reason)
        for number, reason in ((8, "consent_revoked"), (4, "hard_bounce")):
            assert stage.seen(number)["why"][0]["detail"] == reason, "inspect names the rule"
        assert (len(server.messages), len(stage.texts())) == (4, 1)
        stage.audit(server)


GONE = {
    1: ("rcpt", "550 5.1.1 no such user"), 2: ("rcpt", "550 5.1.10 null MX"), 3: ("rcpt", "553 5.1.3 bad address"),
    4: ("dot", "550 5.1.1 no such user"), 5: ("rcpt", "550-5.1.1 no such\r\n550 5.1.1 user"),
}  # fmt: skip


def test_C3_a_hard_bounce_ends_it_for_the_address_at_once(stage: Stage) -> None:
    """Relatives: the codes that say there is no such address, at RCPT and after the body, in one line and two; the next
    event enqueued before and after the bounce; a new address starts afresh."""
    with SmtpServer(*(answers(number, *how) for number, how in GONE.items())) as server:
        stage.to(server)
        stage.configure(lane={"batch": 5})
        again = {number: intent(number + 10, recipient=f"r-{number}", to=intent(number)["to"]) for number in GONE}
        stage.bulk(*(intent(number) for number in GONE), again[1], again[2])
        stage.dispatched("--limit", "5", claimed=5, accepted=0)
        for number in GONE:
            assert stage.delivery(number, "state, attempts_used") == ("suppressed", 1), GONE[number]
        entries = stage.sql("SELECT recipient_id, reason, source_delivery_id, fingerprint FROM notify_suppression")
        assert {row[0] for row in entries} == {f"r-{number}" for number in GONE}
        assert all(reason in ("invalid_recipient", "hard_bounce") and source and f for _, reason, source, f in entries)
        stage.bulk(again[3], again[4], again[5])
        before = len(server.commands)
        stage.dispatched(accepted=0)
        assert stage.states() == {"suppressed": 10}
        assert len(server.commands) == before, "a second one was handed over"
        stage.told("recipient", "set", "r-1", "--to", f"email=new1@{DOMAIN}")
        stage.rows({**intent(30), "recipient": "r-1", "to": {"email": f"new1@{DOMAIN}"}})
        stage.dispatched(accepted=1)
        assert [message.recipient for message in server.messages] == [f"new1@{DOMAIN}"]
        stage.audit(server)


@pytest.mark.parametrize("reason", ["opted_out", "invalid_recipient"])
def test_C3_a_number_that_said_stop_is_never_written_to_again(stage: Stage, reason: str) -> None:
    """The carrier's word, whatever its code (a provider's own codes: tests/transports). Relatives: STOP holds for every
    number of the person, an invalid number only for itself; mail goes on."""
    stage.put("transports.texts", fail=[{"match": NUMBER, "outcome": "permanent_failure", "reason": reason}])
    with SmtpServer() as server:
        stage.to(server)
        stage.rows(text(1))
        stage.dispatched(claimed=1)
        assert stage.delivery(1, "state, reason, attempts_used") == ("suppressed", reason, 1)
        assert stage.sql("SELECT recipient_id, channel, reason FROM notify_suppression") == [("r-1", "sms", reason)]
        stage.put("transports.texts", fail=[])
        stage.bulk(text(2, recipient="r-1"), text(3, "+12025550143", recipient="r-1"), intent(4, recipient="r-1"))
        stage.dispatched()
        assert stage.delivery(2) == "suppressed"
        assert stage.delivery(3) == ("suppressed" if reason == "opted_out" else "accepted")
        assert {line["to"] for line in stage.texts()} == (set() if reason == "opted_out" else {"+12025550143"})
        assert len(server.messages) == 1
        stage.audit(server)


FULL = {
    1: ("rcpt", "452 4.2.2 mailbox full"), 2: ("rcpt", "452-4.2.2 the mailbox\r\n452 4.2.2 is full"),
    3: ("dot", "452 4.2.2 mailbox full"), 4: ("rcpt", "450 4.2.1 busy"),
}  # fmt: skip


def test_C4_a_full_mailbox_is_tried_again_and_suppresses_nobody(stage: Stage) -> None:
    """Relatives: at RCPT or after the body, in one line or two. Nothing but soft failures all the way ends as a dead
    letter, which is a person's to requeue, and never as a suppression."""
    with SmtpServer(*(answers(number, *how, times=1) for number, how in FULL.items())) as server:
        stage.to(server)
        stage.rows(*(intent(number) for number in range(1, 6)))
        stage.dispatched(accepted=1)
        assert stage.numbers("d.state = 'accepted'") == {5}
        assert stage.numbers("d.state IN ('queued', 'temporary_failure')") == {1, 2, 3, 4}
        stage.later()
        stage.dispatched(accepted=4)
        assert sorted(reached(server.messages)) == [1, 2, 3, 4, 5]
        rule = server.rule("rcpt", reply="452 4.2.2 mailbox full")
        stage.configure(lane={"max_attempts": 2})
        stage.rows(intent(9))
        stage.dispatched(temporary_failure=1)
        stage.later()
        stage.dispatched(dead_letter=1, code=3)
        assert stage.sql("SELECT count(*) FROM notify_suppression") == [(0,)]
        server.rules.remove(rule)
        assert stage.asked("requeue", str(stage.delivery(9, "id")), "--reason", "it has room again")["requeued"] == 1
        stage.dispatched(accepted=1)
        stage.audit(server)
