"""Deaths of a tick at numbered points (`notifyctl.failpoints`): how each point is reached, and what is looked at after.

Shared by the matrix, which tries every point, and by `tests.soak`, which kills at random.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from notifyctl.cli.app import FAMILIES
from tests import auditor
from tests.cli.rig import environment
from tests.site import Done, Running, Site, intent
from tests.smtp_server import Received, Rule, SmtpServer

CONCURRENCY = 3
LIMIT = 12  # deliveries of one victim's run
TICKS = [name for name in ("reconcile", "poll-receipts") if name in FAMILIES]  # beside dispatch
REFUSED = "554 5.7.1 not from you"

POLLS = ("lookup", "feed")

# point → (how a victim comes to it, attempts that are then open: "none", "some", or "any" where chance decides)
WAYS: dict[str, tuple[str, str]] = {
    "ledger.statement": ("plain", "any"),
    "ledger.commit": ("plain", "any"),
    "ledger.committed": ("plain", "any"),
    "lapse.done": ("lapsed", "some"),  # what the one before has left
    "lapse.committed": ("lapsed", "none"),
    "claim.begun": ("plain", "none"),
    "claim.taken": ("plain", "none"),
    "claim.committed": ("plain", "none"),
    "compose.begun": ("plain", "none"),
    "compose.done": ("plain", "none"),
    "turn.begun": ("plain", "none"),
    "turn.recorded": ("plain", "none"),
    "turn.gated": ("plain", "none"),
    "turn.released": ("plain", "none"),
    "begin.locked": ("plain", "none"),
    "begin.judged": ("plain", "none"),
    "begin.paced": ("plain", "none"),
    "begin.opened": ("plain", "none"),
    "turn.begins": ("plain", "none"),
    "turn.done": ("plain", "none"),
    "turn.committed": ("plain", "some"),
    "exchange.begun": ("plain", "some"),
    "smtp.opened": ("plain", "some"),
    "smtp.rset": ("refused", "some"),
    "smtp.mail": ("plain", "some"),
    "smtp.rcpt": ("plain", "some"),
    "smtp.data": ("plain", "some"),
    "smtp.written": ("plain", "some"),
    "smtp.replied": ("plain", "some"),
    "exchange.done": ("plain", "some"),
    "exchange.taken": ("plain", "some"),
    "record.owned": ("plain", "some"),
    "record.written": ("plain", "some"),
    "renew.done": ("slow", "some"),
    "renew.committed": ("slow", "some"),
    "drain.begun": ("drained", "some"),
    "release.begun": ("plain", "none"),
    "release.done": ("drained", "any"),
    "run.ended": ("plain", "none"),
    "run.closed": ("plain", "none"),
    "poll.claimed": ("lookup", "none"),  # these two ways: see `test_polls`
    "poll.asked": ("lookup", "none"),
    "poll.read": ("feed", "none"),
    "poll.begun": ("feed", "none"),
    "poll.kept": ("feed", "none"),
    "poll.committed": ("feed", "none"),
    "poll.marked": ("feed", "none"),
    "reconcile.expired": ("lookup", "none"),  # see `test_resolves`
    "reconcile.claimed": ("lookup", "none"),
    "reconcile.looked": ("lookup", "none"),
    "reconcile.decided": ("lookup", "none"),
    "reconcile.committed": ("lookup", "none"),
    "enqueue.page": ("enqueue", "none"),
    "enqueue.committed": ("enqueue", "none"),
}


@dataclass
class Episode:
    """One installation, and what its server has seen over all deaths in it."""

    site: Site
    messages: list[Received] = field(default_factory=list)
    doubtful: set[int] = field(default_factory=set)
    enqueued: int = 0
    deaths: int = 0

    def fill(self, count: int) -> None:
        """So many further deliveries, by plain SQL."""
        self.site.enqueue(count, first=self.enqueued + 1)
        self.enqueued += count

    def die(self, point: str, count: int = 1, *, way: str = "", companion: bool = False) -> bool:
        """Run a victim that dies at the point's `count`-th time, beside a second dispatcher if asked, and audit.

        Returns False if the victim never came there (it then ended well).
        """
        way = way or WAYS[point][0]
        before = self.enqueued
        with SmtpServer(*_rules(way)) as server:
            self.site.configure(relay={"port": server.port},
                                lane={"concurrency": 1 if way == "refused" else CONCURRENCY, "batch": 5,
                                      "lease": "2s" if way == "slow" else "60s"})  # fmt: skip
            victim = self._start(way, f"{point}:{count}")
            beside = ("dispatch", "--json", "--limit", str(LIMIT // 3))
            other = self.site.start(*beside) if companion and way not in ("lapsed", "drained") else None
            if way == "drained":
                _until(victim, server)
                victim.signal(signal.SIGTERM)
                other = self.site.start(*beside) if companion else None  # earlier, the server might hold its mails
                server.release()
            done = victim.result()
            if companion and other is None:  # at the same time it would take away what the victim is to come to
                other = self.site.start(*beside)
            server.release()
            if other is not None:
                ended = other.result()
                assert ended.code in (0, 3), ended
            self.site.quiet()
            self.messages += server.messages
        died = done.code == -signal.SIGKILL
        if not died:
            assert done.code in (0, 3), done
        self._judge(point, died=died and count == 1 and not companion)
        if way == "enqueue":
            self._enqueue_again(before)
        return died

    def _start(self, way: str, failpoint: str) -> Running:
        env = environment(NOTIFYCTL_FAILPOINT=failpoint)
        if way == "enqueue":
            file = self.site.path / "rows.ndjson"
            rows = [intent(number) for number in range(self.enqueued + 1, self.enqueued + 4)]
            file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
            return self.site.start("enqueue", "--from", str(file), env=env)
        if way in TICKS:
            return self.site.start(way, "--json", env=env)
        return self.site.start("dispatch", "--json", "--limit", str(LIMIT), env=env)

    def _enqueue_again(self, before: int) -> None:
        """Whoever was interrupted runs the same command again: what is there is a duplicate, the rest is entered."""
        done = self.site.run("enqueue", "--from", str(self.site.path / "rows.ndjson"), "--json")
        assert (done.code, done.json["enqueued"] + done.json["duplicate"]) == (0, 3), done
        self.enqueued = before + 3

    def _judge(self, point: str, *, died: bool) -> None:
        """The ledger as the dead process left it."""
        self.deaths += 1
        still = self.site.open_attempts()
        expected = WAYS[point][1]
        if died and WAYS[point][0] != "enqueue":
            assert expected == "any" or bool(still) == (expected == "some"), f"{point} left {len(still)} attempts open"
        self.doubtful |= still
        assert auditor.faults(self.site.url, self.messages) == []
        self.site.later()

    def finish(self) -> None:
        """Normal ticks until nothing is left to do; then all have gone out once but those that nobody can know of."""
        with SmtpServer() as server:
            self.site.configure(relay={"port": server.port}, lane={"concurrency": 10, "batch": 100, "lease": "60s"})
            for _ in range(20):
                ran = [self.tick(name) for name in ("dispatch", *TICKS)]
                self.site.later()
                if not any(done.json.get("claimed") or done.json.get("leases_recovered") for done in ran if done.out):
                    break
            else:
                raise AssertionError("ticks go on and on")
            self.messages += server.messages
        events = {f"e{number}" for number in range(1, self.enqueued + 1)}
        assert auditor.faults(self.site.url, self.messages, at_rest=True, events=events) == []
        refused = self.site.numbers("d.state = 'permanent_failure'")
        held = self.site.numbers("d.doubt_since IS NOT NULL")
        assert held <= self.doubtful, "in doubt although no death can have made it so"
        accepted = self.site.numbers("d.state = 'accepted'")
        assert accepted | refused | held == set(range(1, self.enqueued + 1))
        copies = auditor.counts(self.site.url, self.messages)
        assert copies["second"] == 0

    def tick(self, name: str) -> Done:
        """One ordinary run."""
        done = self.site.run(name, "--json")
        assert done.code in (0, 3), done
        return done


@contextmanager
def episode(path: Path, url: str) -> Iterator[Episode]:
    """A new installation."""
    with Site(path, url) as site:
        site.publish()
        yield Episode(site)


def _rules(way: str) -> list[Rule]:
    if way == "refused":  # the next message of the session begins with RSET
        return [Rule("rcpt", reply=REFUSED, when=lambda it: it.phases.count("rcpt") == 1)]  # on each connection
    if way == "slow":  # what is claimed waits behind it until its lease is renewed
        return [Rule("dot", hang=True)]
    if way == "drained":
        return [Rule("dot", hang=True, times=CONCURRENCY)]
    return []


def _until(victim: Running, server: SmtpServer) -> None:
    victim.until(server, lambda: sum("dot" in one.phases for one in list(server.connections)) >= CONCURRENCY)
