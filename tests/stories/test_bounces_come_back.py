"""A relay that takes every mail and bounces some later, into a mailbox: what a team with its own mail server has.

notifyctl → postfix → a server that refuses some → postfix's bounce → dovecot's mailbox → poll-receipts → suppressed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import relay
from tests.dovecot import Dovecot
from tests.relay import Postfix
from tests.site import Site, intent
from tests.smtp_server import Connection, Rule, SmtpServer
from tests.transports import letters

GONE, FULL, FINE = 1, 2, 3  # the recipients, by number


def _to(number: int) -> Callable[[Connection], bool]:
    def refused(connection: Connection) -> bool:
        return connection.recipient.startswith(f"r{number}@")

    return refused


@dataclass
class Place:
    """Everything that runs."""

    site: Site
    onward: SmtpServer
    postfix: Postfix
    dovecot: Dovecot

    def returned(self, count: int) -> None:
        """Wait until so many bounces have come into the mailbox."""
        until = time.monotonic() + relay.PATIENT
        while len(self.letters()) < count:
            assert time.monotonic() < until, self.postfix.log()
            time.sleep(0.05)

    def letters(self) -> list[Path]:
        return [one for folder in ("new", "cur") for one in (self.dovecot.maildir / folder).iterdir()]

    def poll(self) -> dict[str, int]:
        self.site.sql("UPDATE notify_cursor SET eligible_at = ?", "2001-01-01 00:00:00.000000")
        done = self.site.run("poll-receipts", "--json")
        assert done.code == 0, done.err
        found: dict[str, int] = done.json
        return found


@pytest.fixture(params=["imap", "pop3", "maildir"])
def place(request: pytest.FixtureRequest, tmp_path: Path, migrated_url: str) -> Iterator[Place]:
    relay.need()
    gone = Rule("rcpt", reply="550 5.1.1 no such user", when=_to(GONE))
    full = Rule("rcpt", reply="552 5.2.2 mailbox full", when=_to(FULL))
    with ExitStack() as stack:
        onward = stack.enter_context(SmtpServer(gone, full))
        dovecot = stack.enter_context(Dovecot())
        postfix = stack.enter_context(Postfix(onward=onward.port, mailbox=dovecot.maildir))
        site = stack.enter_context(Site(tmp_path / "site", migrated_url, port=postfix.port))
        (site.path / "password").write_text(dovecot.password + "\n")
        (site.path / "password").chmod(0o600)
        where = {
            "imap": {"imap": f"127.0.0.1:{dovecot.imap}"},
            "pop3": {"pop3": f"127.0.0.1:{dovecot.pop3}", "delete": True},
            "maildir": {"maildir": str(dovecot.maildir)},
        }[request.param]
        login = {} if request.param == "maildir" else {"username": dovecot.user, "password_file": "password"}
        site.configure(relay={"bounces": {**where, **login, "return_path_domain": "bounce.example"}})
        site.publish()
        yield Place(site, onward, postfix, dovecot)


def test_a_bounce_suppresses_and_the_next_enqueue_is_born_suppressed(place: Place) -> None:
    site = place.site
    site.enqueue(3)
    sent = site.dispatch()
    assert sent.code == 0, sent.err
    assert sent.json["accepted"] == 3  # the relay took them all
    place.returned(2)
    place.dovecot.deliver(letters.note(), letters.dsn())  # somebody's answer, and a bounce of somebody else's mail
    said = place.poll()
    assert (said["suppressed"], said["permanent_failure"], said["unmatched"]) == (1, 1, 2), said
    assert site.delivery(GONE, "state, reason") == ("suppressed", "hard_bounce")
    assert site.delivery(FULL, "state, reason") == ("permanent_failure", "mailbox_full")
    assert site.delivery(FINE) == "accepted"
    assert site.sql("SELECT status, code FROM notify_receipt ORDER BY status") == [
        ("failure", "552 5.2.2"), ("hard_bounce", "550 5.1.1"),
    ]  # fmt: skip

    again = place.poll()
    assert (again["suppressed"], again["permanent_failure"]) == (0, 0)
    assert site.sql("SELECT count(*) FROM notify_receipt") == [(2,)]

    rows = site.path / "again.ndjson"
    rows.write_text("".join(json.dumps(intent(one, event=f"again{one}")) + "\n" for one in (GONE, FULL)))
    done = site.run("enqueue", "--from", str(rows), "--json")
    assert (done.json["enqueued"], done.json["suppressed"]) == (1, 1), done.json
    states = dict(site.sql("SELECT event_id, state FROM notify_delivery WHERE event_id LIKE 'again%'"))
    assert states == {f"again{GONE}": "suppressed", f"again{FULL}": "queued"}
    assert "@" not in done.err
