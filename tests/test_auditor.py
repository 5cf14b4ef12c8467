"""The auditor is believed by every test of whole runs, so each thing it looks for is done to an honest ledger here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests import auditor
from tests.site import Site
from tests.smtp_server import Received, Rule, SmtpServer

DELIVERY = "(SELECT id FROM notify_delivery WHERE event_id = '{event}')"
EVENTS = ("e1", "e2", "e3", "e4")


@dataclass
class Case:
    """A ledger with two accepted deliveries, one in doubt whose copy the server has, and one refused; all at rest."""

    site: Site
    messages: list[Received]

    def faults(self, *events: str) -> list[str]:
        """What the auditor says."""
        return auditor.faults(self.site.url, self.messages, at_rest=True, events=events or EVENTS)

    def sql(self, text: str) -> None:
        """Damage."""
        for event in EVENTS:
            text = text.replace(f"<{event}>", DELIVERY.format(event=event))
        self.site.sql(text)


@pytest.fixture
def case(tmp_path: Path, migrated_url: str) -> Iterator[Case]:
    rules = (
        Rule("dot", close=True, accept=True, when=lambda it: it.recipient.startswith("r3@")),
        Rule("rcpt", reply="554 5.7.1 no", when=lambda it: it.recipient.startswith("r4@")),
    )
    with SmtpServer(*rules) as server, Site(tmp_path, migrated_url, server.port) as site:
        site.publish()
        site.enqueue(4)
        assert site.dispatch().code == 3
        assert site.states() == {"accepted": 2, "ambiguous": 1, "permanent_failure": 1}
        yield Case(site, list(server.messages))


def test_an_honest_ledger_has_no_fault(case: Case) -> None:
    assert case.faults() == []
    assert len(case.messages) == 3


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ("DELETE FROM notify_work WHERE delivery_id = <e3>", "e3 (ambiguous): it has 0 work rows"),
        (
            "UPDATE notify_delivery SET state = 'queued', accepted_at = NULL WHERE event_id = 'e1'",
            "an acceptance was lost",
        ),
        ("UPDATE notify_delivery SET state = 'queued' WHERE event_id = 'e4'", "e4 (queued): it has 0 work rows"),
        ("UPDATE notify_delivery SET doubt_since = NULL WHERE event_id = 'e3'", "a doubt was forgotten"),
        ("UPDATE notify_delivery SET doubt_since = created_at WHERE event_id = 'e4'", "in doubt without a doubtful"),
        ("UPDATE notify_work SET step = 'send' WHERE delivery_id = <e3>", "dispatch may send it without a mandate"),
        ("UPDATE notify_work SET owner = 'run' WHERE delivery_id = <e3>", "somebody still owns it"),
        (
            "UPDATE notify_attempt SET outcome = NULL WHERE delivery_id = <e3>",
            "an attempt is open that nobody is making",
        ),
        (
            "UPDATE notify_attempt SET outcome = 'temporary_failure' WHERE delivery_id = <e3>",
            "e3 (ambiguous): 1 copies",
        ),
        ("UPDATE notify_attempt SET outcome = 'accepted' WHERE delivery_id = <e4>", "what the server never got"),
        ("UPDATE notify_attempt SET number = 2 WHERE delivery_id = <e2>", "attempts are numbered [2]"),
        (
            "UPDATE notify_attempt SET remote_id = '<other@shop.example>' WHERE delivery_id = <e1>",
            "the remote id is none",
        ),
        (
            "UPDATE notify_attempt SET started = '2099-01-01 00:00:00.000000' WHERE delivery_id = <e1>",
            "before any attempt",
        ),
        ("UPDATE notify_delivery SET attempts_used = 9 WHERE event_id = 'e1'", "9 attempts are charged"),
        ("DELETE FROM notify_transition WHERE delivery_id = <e1>", "it has no trail"),
        (
            "UPDATE notify_transition SET \"to\" = 'sending' WHERE delivery_id = <e1> AND \"to\" = 'accepted'",
            "trail ends",
        ),
        ("DELETE FROM notify_transition WHERE delivery_id = <e1> AND \"to\" = 'sending'", "its trail goes from"),
        ("DELETE FROM notify_attempt WHERE delivery_id = <e1>", "called accepted without any attempt"),
    ],
)  # fmt: skip
def test_damage_to_the_ledger_is_found(case: Case, damage: str, says: str) -> None:
    case.sql(damage)
    found = case.faults()
    assert any(says in fault for fault in found), found


def test_what_the_server_has_is_compared_too(case: Case) -> None:
    first = next(one for one in case.messages if one.recipient.startswith("r1@"))
    case.messages.append(first)
    assert any("2 copies" in fault for fault in case.faults())
    case.messages = [one for one in case.messages if one is not first]
    assert any("what the server never got" in fault for fault in case.faults())
    case.messages += [first, replace(first, message_id="<unheard-of@shop.example>")]
    assert any("no begun delivery explains" in fault for fault in case.faults())


def test_a_delivery_that_was_enqueued_and_is_gone_is_found(case: Case) -> None:
    assert case.faults("e1", "e99") == ["e99 was enqueued and is in no ledger"]


def test_a_second_copy_that_a_mandate_allowed_is_no_fault_and_two_are(case: Case) -> None:
    third = next(one for one in case.messages if one.recipient.startswith("r3@"))
    case.sql(
        "INSERT INTO notify_attempt (delivery_id, number, run, fencing_token, transport, started, finished, outcome, "
        "mandate) SELECT delivery_id, 2, run, 9, transport, started, finished, 'ambiguous', 'duplicate' "
        "FROM notify_attempt WHERE delivery_id = <e3>"
    )
    case.messages.append(third)
    assert case.faults() == []
    case.messages.append(third)
    assert any("3 copies" in fault for fault in case.faults())
