"""Dispatch of queued text+HTML mails to an SMTP sink, against django-post_office. By hand: it asserts nothing.

    python -m tests.bench.dispatch_smtp [ROUNDS] [MAILS] [sqlite|postgresql]

Every round drains the same MAILS (5,000) with each of them once, interleaved, so that a change of the machine's speed
meets all: `notifyctl dispatch` (start-up included, SQLite with synchronous=FULL, one process, concurrency 10), the
same with DKIM rsa-2048, and post_office's `send_queued_mail` with its defaults, unsigned. Printed are medians and the
median of the rounds' own ratios. Goals: P1 at least 5 times post_office's rate with at most 0.25 of its CPU per mail,
P2 (signed) at least 2 times its unsigned rate. post_office's mails are rendered when queued, ours when sent.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.bench.arena import Installation, Sink, Spent, median, peer, spend, tool, write_rows
from tests.postgres import Cluster

OURS, SIGNED, PEER = "notifyctl", "notifyctl, DKIM", "post_office"


def ours(site: Installation, mails: int) -> Spent:
    """Drain a copy of the queued ledger."""
    database = site.new("run", "ours")
    site.configure(database)
    spent = spend(tool("dispatch", "--max-seconds", "300"), site.folder)
    sent = site.count(database, "SELECT count(*) FROM notify_delivery WHERE state = 'accepted'")
    assert sent == mails, f"{sent} of {mails} accepted"
    return spent


def theirs(site: Installation, mails: int) -> Spent:
    """The same with post_office."""
    database = site.new("run_peer", "peer")
    spent = spend(peer(database, site.port, "send", str(site.folder)), site.folder)
    sent = site.count(database, "SELECT count(*) FROM post_office_email WHERE status = 0")
    assert sent == mails, f"{sent} of {mails} sent"
    return spent


def prepare(site: Installation, mails: int, *, with_peer: bool) -> None:
    """Queue the mails once; every round works on a copy."""
    write_rows(site.rows, mails)
    site.empty()
    spend(tool("enqueue", "--from", str(site.rows)), site.folder)
    if with_peer:
        database = site.new("peer")
        for action in (["migrate"], ["queue-post-office", str(site.rows)]):
            spend(peer(database, site.port, *action), site.folder)


def measure(folder: Path, name: str, cluster: Cluster | None, rounds: int, mails: int) -> None:
    """One database: all contestants, `rounds` times."""
    with Sink() as sink:
        site = Installation(folder / "plain", sink.port, cluster)
        prepare(site, mails, with_peer=True)
        signed = Installation(folder / "signed", sink.port, cluster, dkim=True)
        if cluster is None:
            prepare(signed, mails, with_peer=False)
        found: dict[str, list[Spent]] = {OURS: [], SIGNED: [], PEER: []}
        for _ in range(rounds):
            found[OURS].append(ours(site, mails))
            found[PEER].append(theirs(site, mails))
            found[SIGNED].append(ours(signed, mails))
    for label, spents in found.items():
        rate = median(r.wall / s.wall for s, r in zip(spents, found[PEER], strict=True))
        cpu = median(s.cpu / r.cpu for s, r in zip(spents, found[PEER], strict=True))
        print(
            f"{name:10} {label:16} {median(mails / s.wall for s in spents):6.0f} msg/s "
            f"{median(s.cpu / mails * 1e6 for s in spents):6.0f} us CPU/mail  {median(s.rss for s in spents):4.0f} MB"
            f"  {rate:5.2f} x {PEER}'s rate, {cpu:5.2f} x its CPU",
            flush=True,
        )


def main(rounds: int = 5, mails: int = 5000, only: str = "") -> None:
    """Measure both databases."""
    with tempfile.TemporaryDirectory(prefix="notifyctl-bench-") as name:
        if only != "postgresql":
            measure(Path(name) / "sqlite", "sqlite", None, rounds, mails)
        if only != "sqlite":
            cluster = Cluster().start()
            try:
                measure(Path(name) / "postgresql", "postgresql", cluster, rounds, mails)
            finally:
                cluster.stop()


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:3]), *sys.argv[3:4])
