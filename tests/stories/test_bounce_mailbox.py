"""A bounce mailbox read by the real command: pollers that die, forgeries, complaints, delays, and a very full one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import dovecot
from tests.cli.rig import environment
from tests.site import LONG_AGO, Site
from tests.smtp_server import SmtpServer
from tests.transports import letters

MARGIN = 2.0  # seconds

@dataclass
class Place:
    """A site whose relay collects bounces in a Maildir; its mails have gone out."""

    site: Site
    server: SmtpServer
    maildir: Path

    def sent(self, count: int) -> None:
        self.site.enqueue(count)
        assert self.site.dispatch().json["accepted"] == count

    def path(self, number: int) -> str:
        """The return path of the mail to recipient `number`."""
        (one,) = (m for m in self.server.messages if m.recipient.startswith(f"r{number}@"))
        return one.mail_from

    def message_id(self, number: int) -> str:
        (one,) = (m for m in self.server.messages if m.recipient.startswith(f"r{number}@"))
        return one.message_id

    def deliver(self, *given: bytes) -> None:
        for one in given:
            dovecot.deliver(self.maildir, one)

    def age(self) -> None:
        """Wait until the last letter is old enough for the position to pass it: fresh ones are read again."""
        newest = max(one.stat().st_ctime for one in (self.maildir / "new").iterdir())
        while (left := newest + MARGIN - time.time()) > 0:
            time.sleep(left)

    def unread(self) -> int:
        files = [*(self.maildir / "new").iterdir(), *(self.maildir / "cur").iterdir()]
        return sum("S" not in one.name.partition(":2,")[2] for one in files)

    def poll(self, *arguments: str, **options: Any) -> dict[str, Any]:
        self.due()
        done = self.site.run("poll-receipts", "--json", *arguments, **options)
        assert done.code == 0, done.err
        found: dict[str, Any] = done.json
        return found

    def due(self) -> None:
        self.site.sql("UPDATE notify_cursor SET eligible_at = ?", LONG_AGO)


@pytest.fixture
def place(tmp_path: Path, migrated_url: str) -> Iterator[Place]:
    with SmtpServer() as server, Site(tmp_path, migrated_url, port=server.port) as site:
        bounces = {"maildir": "bounces", "return_path_domain": "bounce.example"}
        site.configure(relay={"bounces": bounces})
        site.publish()
        yield Place(site, server, dovecot.maildir(tmp_path / "bounces"))


def test_a_poller_killed_before_it_has_marked_reads_again_and_changes_nothing(place: Place) -> None:
    place.sent(3)
    place.deliver(*(letters.dsn(to=place.path(number)) for number in (1, 2)), letters.note())
    for point in ("poll.kept", "poll.committed"):
        place.due()
        process = place.site.start("poll-receipts", "--json", env=environment(NOTIFYCTL_FAILPOINT=point))
        assert process.result().code == -9
        place.site.quiet()
        assert place.unread() == 3, "marked before the commit"
        assert place.site.states()["suppressed"] == (2 if point == "poll.committed" else 0)
    said = place.poll()
    assert (said["suppressed"], place.unread()) == (0, 1)
    assert place.site.sql("SELECT count(*) FROM notify_receipt") == [(2,)]
    assert place.site.sql("SELECT count(*) FROM notify_suppression") == [(2,)]
    assert place.poll()["suppressed"] == 0


def test_forged_and_foreign_bounces_change_nothing(place: Place) -> None:
    place.sent(2)
    before = place.site.sql("SELECT id, state, reason, updated_at FROM notify_delivery ORDER BY id")
    right = place.path(1)
    signature = right.partition(".")[2].partition("@")[0]
    wrong = right.replace(signature, "a" * 16)
    address = b"r1@rcpt.example"
    place.deliver(
        letters.dsn(recipients=("r1@rcpt.example",)),
        letters.prose("<r1@rcpt.example>: 550 5.1.1 user unknown").replace(b"reader@example.org", address),
        letters.dsn(to=wrong, message_id=place.message_id(1), recipients=("r1@rcpt.example",)),
        letters.dsn(message_id=f"<{'a' * 32}@shop.example>"),
        letters.dsn(to=right.replace(right[8:40], place.path(2)[8:40])),  # one key, another's signature
        letters.complaint(to=wrong), letters.note(right),
    )  # fmt: skip
    said = place.poll()
    assert (said["suppressed"], said["complained"], said["unmatched"]) == (0, 0, 7)
    assert place.site.sql("SELECT id, state, reason, updated_at FROM notify_delivery ORDER BY id") == before
    assert place.site.sql("SELECT count(*) FROM notify_suppression") == [(0,)]
    assert place.unread() == 7


def test_a_bounce_without_our_return_path_is_known_by_its_message_id(place: Place) -> None:
    place.sent(1)
    place.deliver(letters.dsn(message_id=place.message_id(1)))
    assert place.poll()["suppressed"] == 1


def test_a_complaint_suppresses_the_pair_and_leaves_the_delivery(place: Place) -> None:
    place.sent(1)
    place.deliver(letters.complaint(to=place.path(1)))
    assert place.poll()["complained"] == 1
    assert place.site.delivery(1) == "accepted"
    assert place.site.sql("SELECT reason FROM notify_suppression") == [("complained",)]


def test_a_delay_is_pending_and_ends_as_accepted_or_as_what_comes_later(place: Place) -> None:
    place.sent(2)
    place.deliver(*(letters.dsn("4.4.1", "delayed", to=place.path(number)) for number in (1, 2)))
    place.poll()
    assert [place.site.delivery(number) for number in (1, 2)] == ["pending", "pending"]
    place.deliver(letters.dsn("4.4.7", to=place.path(1)))
    place.site.sql("UPDATE notify_delivery SET accepted_at = ? WHERE event_id = 'e2'", LONG_AGO)
    place.site.later()
    place.poll()
    assert place.site.delivery(1, "state, reason") == ("permanent_failure", "delivery_time_expired")
    assert place.site.delivery(2, "state, reason") == ("accepted", "no_receipt_expected")


def test_a_bounce_that_comes_before_the_acceptance_is_known_proves_it(place: Place) -> None:
    """The relay took the mail, the reply to it was lost."""
    place.server.rule("dot", close=True, accept=True, times=1)
    place.site.enqueue(1)
    place.site.dispatch()
    assert place.site.delivery(1) in ("ambiguous", "sending")
    place.deliver(letters.dsn(to=place.path(1)))
    assert place.poll()["suppressed"] == 1
    assert place.site.delivery(1, "state, reason") == ("suppressed", "hard_bounce")


def test_a_mailbox_of_ten_thousand_is_read_in_bounded_runs(place: Place) -> None:
    place.sent(2)
    place.deliver(*[letters.note()] * 5000, letters.dsn(to=place.path(1)), *[letters.note()] * 5000)
    place.deliver(letters.dsn(to=place.path(2)))
    place.age()
    unmatched, runs = 0, 0
    while place.site.states()["suppressed"] < 2:
        runs += 1
        assert runs < 30
        unmatched += place.poll("--max-seconds", "1")["unmatched"]
    assert unmatched <= 10_000 + runs * 100
    assert place.unread() == 10_000


def test_the_address_of_a_return_path_is_in_no_log(place: Place) -> None:
    place.sent(1)
    place.deliver(letters.dsn(to=place.path(1)), letters.note())
    place.due()
    done = place.site.run("poll-receipts", "--json", "--log-level", "debug")
    assert "bounce.example" not in done.err
    assert "example.org" not in done.err


def test_a_wrong_mailbox_is_named_and_stops_nothing_else(place: Place) -> None:
    place.site.configure(relay={"bounces": {"maildir": "nowhere"}})
    place.site.enqueue(1)
    assert place.site.dispatch().json["accepted"] == 1
    place.due()
    done = place.site.run("poll-receipts")
    assert done.code != 0
    assert "maildir_missing" in done.err
    place.site.configure(relay={"bounces": {"maildr": "bounces"}})
    done = place.site.run("poll-receipts")
    assert done.code == 78
    assert "transports.relay.bounces.maildr" in done.err
    assert "maildir" in done.err
