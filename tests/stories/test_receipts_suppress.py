"""What a receipt says of an address decides who is contacted again: hard evidence silences it, soft evidence does not.

Every command is a real process, the provider is scripted; on both databases.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scripted import Desk, append, lines
from tests.site import DOMAIN

NUMBER = "+447700900123"


@pytest.fixture
def desk(tmp_path: Path, migrated_url: str) -> Iterator[Desk]:
    desk = Desk(tmp_path, migrated_url, "feed")
    with desk:
        desk.texting()
        yield desk


def tick(desk: Desk, command: str, code: int = 0) -> dict[str, int]:
    """Run a tick whose work is due; its counts."""
    desk.due()
    done = desk.beside(command)
    assert done.code == code, done
    counts: dict[str, int] = done.json
    return counts


def sent(desk: Desk) -> list[str]:
    """The addresses that anything was handed over to, in order."""
    return [str(one["to"]) for one in lines(desk.provider / "sent.jsonl")]


@pytest.mark.parametrize(
    ("status", "reason"),
    [("hard_bounce", "hard_bounce"), ("invalid_recipient", "invalid_recipient"), ("opted_out", "opted_out")],
)
def test_C3_a_receipt_that_says_never_again_silences_the_channel_at_once(desk: Desk, status: str, reason: str) -> None:
    """Also what waits already, in the same transaction; and nobody else, and no other channel."""
    desk.intend(1)
    assert tick(desk, "dispatch")["accepted"] == 1
    desk.sql("UPDATE notify_work SET lane = 'email'")
    desk.intend(2, to=f"r1@{DOMAIN}", recipient="r-1")
    desk.intend(3, to=NUMBER, channel="sms", recipient="r-1")
    desk.intend(4)
    desk.sql("UPDATE notify_delivery SET fingerprint = (SELECT fingerprint FROM notify_delivery WHERE event_id = 'e1') "
             "WHERE event_id = 'e2'")  # fmt: skip
    desk.says(1, status, 1, reason="whatever_the_provider_calls_it", code="5.1.1")
    polled = tick(desk, "poll-receipts")
    assert (polled["suppressed"], polled["checked"]) == (1, 1)
    assert desk.delivery(1, "state, reason") == ("suppressed", reason)
    assert desk.delivery(2, "state, reason") == ("suppressed", reason), "it waited, and was swept"
    (row,) = desk.sql(
        "SELECT s.recipient_id, s.channel, s.reason, s.remote_id, d.event_id, s.fingerprint = d.fingerprint "
        "FROM notify_suppression s JOIN notify_delivery d ON d.id = s.source_delivery_id"
    )
    assert row == ("r-1", "email", reason, desk.remote_id(1), "e1", True)
    desk.intend(5, to=f"r1@{DOMAIN}", recipient="r-1")
    assert tick(desk, "dispatch")["accepted"] == 2
    assert desk.delivery(5) == "suppressed"
    assert sorted(sent(desk)) == sorted([f"r1@{DOMAIN}", NUMBER, f"r4@{DOMAIN}"])


@pytest.mark.parametrize("status", ["hard_bounce", "opted_out"])
def test_C3_a_changed_address_starts_afresh_after_a_bounce_and_not_after_a_stop(desk: Desk, status: str) -> None:
    desk.intend(1)
    tick(desk, "dispatch")
    desk.says(1, status, 1)
    tick(desk, "poll-receipts")
    desk.intend(2, to=f"new@{DOMAIN}", recipient="r-1")
    tick(desk, "dispatch")
    assert desk.delivery(2) == ("accepted" if status == "hard_bounce" else "suppressed")


def test_C3_a_bad_number_never_silences_a_mailbox(desk: Desk) -> None:
    desk.intend(1, to=NUMBER, channel="sms", recipient="r-1")
    tick(desk, "dispatch")
    desk.says(1, "invalid_recipient", 1)
    tick(desk, "poll-receipts")
    desk.intend(2, recipient="r-1")
    desk.intend(3, to=NUMBER, channel="sms", recipient="r-1")
    tick(desk, "dispatch")
    assert (desk.delivery(2), desk.delivery(3)) == ("accepted", "suppressed")


def test_C3_a_complaint_silences_and_leaves_what_was_delivered_delivered(desk: Desk) -> None:
    desk.intend(1)
    tick(desk, "dispatch")
    desk.intend(2, to=f"other@{DOMAIN}", recipient="r-1")
    desk.says(1, "delivered", 1)
    desk.says(1, "complained", 500)
    polled = tick(desk, "poll-receipts")
    assert (polled["delivered"], polled["complained"]) == (1, 1)
    assert (desk.delivery(1), desk.delivery(2, "state, reason")) == ("delivered", ("suppressed", "complained"))
    assert desk.trail(1)[-2:] == ["delivered", "delivered"]
    assert desk.suppressions() == [("r-1", "email", "complained")]


def test_C4_a_soft_bounce_is_no_reason_never_to_write_again(desk: Desk) -> None:
    """It is final for its message, however many there are, and everybody's next mail goes out."""
    for number in range(1, 6):
        desk.intend(number, to=f"full@{DOMAIN}", recipient="r-1")
        assert tick(desk, "dispatch")["accepted"] == 1
        desk.says(number, "soft_failure", number, reason="mailbox_full", code="4.2.2")
        assert tick(desk, "poll-receipts")["permanent_failure"] == 1
        assert desk.delivery(number, "state, reason") == ("permanent_failure", "mailbox_full")
    assert desk.suppressions() == []
    desk.intend(6, to=f"full@{DOMAIN}", recipient="r-1")
    assert tick(desk, "dispatch")["accepted"] == 1
    assert len(sent(desk)) == 6


def test_C4_only_a_configured_run_of_soft_bounces_suppresses(desk: Desk) -> None:
    """A run is broken by what is delivered, belongs to one address, and begins anew when a person lifts."""
    desk.configure(lane={"receipt": {"soft_bounces": 3}})
    number = 0

    def play(status: str, to: str = "full") -> str:
        nonlocal number
        number += 1
        desk.intend(number, to=f"{to}@{DOMAIN}", recipient="r-1")
        tick(desk, "dispatch")
        desk.says(number, status, number)
        tick(desk, "poll-receipts")
        return str(desk.delivery(number))

    failed = ["permanent_failure"] * 2
    assert [play("soft_failure") for _ in range(2)] == failed
    assert play("delivered") == "delivered"
    assert [play("soft_failure") for _ in range(2)] == failed
    assert play("soft_failure", to="another") == "permanent_failure"
    assert desk.suppressions() == []
    assert play("soft_failure") == "suppressed"
    assert desk.suppressions() == [("r-1", "email", "hard_bounce")]
    (note,) = desk.sql("SELECT note FROM notify_transition WHERE \"to\" = 'suppressed'")
    assert note == ("soft_bounces:3",)
    desk.intend(50, to=f"full@{DOMAIN}", recipient="r-1")
    desk.intend(51, to=f"another@{DOMAIN}", recipient="r-1")
    tick(desk, "dispatch")
    assert (desk.delivery(50), desk.delivery(51)) == ("suppressed", "accepted")
    lifted = desk.run("suppression", "lift", "--recipient", "r-1", "--channel", "email", "--reason", "emptied")
    assert lifted.code == 0
    number = 60
    assert [play("soft_failure") for _ in range(2)] == failed
    assert play("soft_failure") == "suppressed"


def test_C4_a_full_mailbox_that_empties_gets_its_mail_once(desk: Desk) -> None:
    """A delay is not an end: asked again, and delivered; one copy."""
    desk.intend(1)
    tick(desk, "dispatch")
    desk.says(1, "pending", 1, reason="mailbox_full")
    assert tick(desk, "poll-receipts")["pending"] == 1
    desk.says(1, "delivered", 2)
    assert tick(desk, "poll-receipts")["delivered"] == 1
    assert desk.suppressions() == []
    assert sent(desk) == [f"r1@{DOMAIN}"]


def test_a_suppression_that_a_person_lifted_is_not_set_again_by_the_same_receipt(desk: Desk) -> None:
    desk.intend(1)
    tick(desk, "dispatch")
    desk.says(1, "hard_bounce", 1)
    tick(desk, "poll-receipts")
    desk.run("suppression", "lift", "--recipient", "r-1", "--channel", "email", "--reason", "mistaken")
    desk.sql("UPDATE notify_cursor SET cursor = ''")  # as after a crash before the mailbox was marked
    append(desk.provider / "says.jsonl", lines(desk.provider / "says.jsonl")[0])
    tick(desk, "poll-receipts")
    desk.intend(2, to=f"r1@{DOMAIN}", recipient="r-1")
    assert tick(desk, "dispatch")["accepted"] == 1
