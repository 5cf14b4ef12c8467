"""`kill -9` of a dispatch that has mails in flight, again and again: nothing is lost, nothing is sent twice.

What the server accepted and the ledger does not know of is exactly in doubt, and what is in doubt is never sent by a
later dispatch. The server holds its answers until the process is dead, so every kill hits what it is meant to hit.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

from tests.site import Running, Site, reached
from tests.smtp_server import Connection, Received, Rule, SmtpServer

KILLS = 20
IN_FLIGHT = 8  # at least five


class Hold:
    """A rule's condition that withholds an answer: lets the first `after` through, holds up to `most` connections."""

    def __init__(self, after: int = 0, most: int = IN_FLIGHT) -> None:
        self.after = after
        self.most = most
        self.seen = 0
        self.held: set[int] = set()

    def __call__(self, connection: Connection) -> bool:
        self.seen += 1
        if self.seen <= self.after or len(self.held) >= self.most:
            return False
        self.held.add(connection.number)
        return True


class Watch:
    """What has happened so far over all kills: the server's messages, and whose attempts were open at a kill."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.messages: list[Received] = []
        self.doubtful: set[int] = set()

    def after_kill(self, server: SmtpServer) -> set[int]:
        """Judge the ledger as the dead process left it; returns whose attempts are open."""
        self.messages += server.messages
        numbers = self.site.open_attempts()
        assert self.site.numbers("d.state = 'sending'") == numbers
        accepted = self.site.numbers("d.state = 'accepted'")
        sent = set(reached(self.messages))
        assert accepted <= sent
        assert sent - accepted <= numbers | self.doubtful, "accepted, unrecorded, and not known to be in doubt"
        # what earlier kills left has been found by this dispatch, and is in doubt for good
        assert self.site.numbers("d.state = 'ambiguous'") == self.doubtful
        self.doubtful |= numbers
        self.site.later()
        return numbers

    def finish(self) -> None:
        """Normal ticks until nothing is left: all but the doubtful go out, once; the doubtful never again."""
        site = self.site
        before = len(self.messages)
        with SmtpServer() as server:
            site.configure(relay={"port": server.port})
            done = site.dispatch()
            site.later()
            again = site.dispatch()
            assert (again.json["claimed"], again.json["leases_recovered"]) == (0, 0)
            self.messages += server.messages
            assert done.json["accepted"] == len(self.messages) - before > 0
        assert site.numbers("d.state = 'ambiguous'") == self.doubtful
        assert site.open_attempts() == set()
        shown = site.run("inspect", "deliveries", "--state", "ambiguous", "--limit", "1000", "--json")
        assert {int(json.loads(line)["event_id"][1:]) for line in shown.out.splitlines()} == self.doubtful
        everybody = site.numbers("1 = 1")
        assert site.numbers("d.state = 'accepted'") == everybody - self.doubtful
        copies = reached(self.messages)
        assert len(copies) == len(set(copies)), "somebody got two"
        assert everybody - self.doubtful <= set(copies), "somebody got none"
        site.audit(self.messages)


def _start(site: Site, server: SmtpServer) -> Running:
    """A dispatch with a budget of its own, so that the backlog lasts for all kills."""
    site.configure(relay={"port": server.port}, lane={"concurrency": IN_FLIGHT, "batch": 20})
    return site.start("dispatch", "--limit", "20")


def _kill(site: Site, process: Running) -> None:
    process.kill()
    site.quiet()


def test_what_was_in_flight_at_a_kill_is_in_doubt_and_everything_else_goes_out_once(
    tmp_path: Path, migrated_url: str
) -> None:
    chance = random.Random(7)
    with Site(tmp_path, migrated_url) as site:
        site.publish()
        site.enqueue(KILLS * (IN_FLIGHT + 4))
        watch = Watch(site)
        for _ in range(KILLS):
            # A few go through. Then no answer comes any more: to RCPT, to a final dot that was not accepted (a server
            # that dies before it has queued the mail), to one that was.
            through = chance.randrange(5)
            early, refused = Hold(through, chance.randrange(3)), Hold(through, chance.randrange(4))
            taken = Hold(through)
            rules = (
                Rule("rcpt", hang=True, close=True, when=early),
                Rule("dot", hang=True, close=True, accept=False, when=refused),
                Rule("dot", hang=True, close=True, accept=True, when=taken),
            )
            with SmtpServer(*rules) as server:
                process = _start(site, server)
                holds = (early, refused, taken)
                process.until(server, lambda holds=holds: sum(len(one.held) for one in holds) == IN_FLIGHT)
                _kill(site, process)
            assert len(watch.after_kill(server)) == IN_FLIGHT
        watch.finish()
        assert len(watch.doubtful) == KILLS * IN_FLIGHT
        assert watch.doubtful - set(reached(watch.messages)), "some of them were never accepted"
        assert watch.doubtful & set(reached(watch.messages)), "some of them were"


def test_a_kill_between_an_answer_and_its_record_loses_nothing(tmp_path: Path, migrated_url: str) -> None:
    """The answers come all at once and the kill follows at once, so it hits recording, beginning and claiming."""
    with Site(tmp_path, migrated_url) as site:
        site.publish()
        site.enqueue(8 * 20 + 5)  # no run sends more than its limit
        watch = Watch(site)
        for kill in range(8):
            hold = Hold()
            with SmtpServer(Rule("dot", hang=True, when=hold)) as server:
                process = _start(site, server)
                process.until(server, lambda hold=hold: len(hold.held) == IN_FLIGHT)
                server.release()
                server.wait_for(min(IN_FLIGHT + kill, 20), 30)
                _kill(site, process)
            watch.after_kill(server)
        watch.finish()


def test_a_kill_before_the_first_byte_leaves_claimed_rows_due_again(tmp_path: Path, migrated_url: str) -> None:
    """Claimed rows that were not begun are no doubt: after the lease they go out, counted as recovered."""
    with Site(tmp_path, migrated_url) as site, SmtpServer(Rule("banner", hang=True, close=True)) as dead:
        site.publish()
        site.enqueue(20)
        process = _start(site, dead)
        dead.wait_until("banner")
        _kill(site, process)
        begun = site.open_attempts()
        assert len(begun) == 1  # no more than one until a session is open
        with SmtpServer() as server:
            site.configure(relay={"port": server.port})
            # leases and deadlines still run: nobody else touches anything, also from a folder it may not write to
            other = site.run("dispatch", "--json", "--config", str(site.config), cwd="/")
            assert (other.json["claimed"], other.json["leases_recovered"], server.accepted) == (0, 0, 0)
            site.later()
            done = site.dispatch()
            assert done.json["accepted"] == 20 - len(begun)
            assert done.json["leases_recovered"] == 20
            assert set(reached(server.messages)) == set(range(1, 21)) - begun
            site.audit(server)
        assert site.numbers("d.state = 'ambiguous'") == begun
