"""Bulk enqueue from a CSV file, against the bulk ways of django-mailer and post_office. By hand: it asserts nothing.

    python -m tests.bench.enqueue_bulk [ROUNDS] [ROWS] [sqlite|postgresql]

Every round fills an empty database with each of them once, interleaved, start-up included: `notifyctl enqueue --from`
with ROWS (100,000) rows (validation of every value, rendering, duplicates, suppression and consent, audit trail), the
peer with ROWS / 5 finished mails of the same text. Goals (P9): on SQLite at least django-mailer's rate, on Postgres
at least 2 times that of post_office's send_many.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.bench.arena import Installation, Spent, median, peer, spend, tool, write_rows
from tests.postgres import Cluster


def ours(site: Installation, rows: int) -> Spent:
    """Enqueue all rows into a copy of the empty ledger."""
    database = site.new("run", "ours")
    site.configure(database)
    spent = spend(tool("enqueue", "--from", str(site.rows)), site.folder)
    waiting = site.count(database, "SELECT count(*) FROM notify_work")
    assert waiting == rows, f"{waiting} of {rows} enqueued"
    return spent


def theirs(site: Installation, action: str, file: Path, rows: int) -> Spent:
    """Queue the same mails with a peer."""
    table = {"queue-django-mailer": "mailer_message", "queue-post-office": "post_office_email"}[action]
    database = site.new("run_peer", "peer")
    spent = spend(peer(database, 1, action, str(file)), site.folder)
    assert site.count(database, f"SELECT count(*) FROM {table}") == rows
    return spent


def measure(folder: Path, name: str, cluster: Cluster | None, rounds: int, rows: int) -> None:
    """One database and its peer."""
    action = "queue-django-mailer" if cluster is None else "queue-post-office"
    site = Installation(folder, 1, cluster)
    site.empty()
    write_rows(site.rows, rows)
    fewer = folder / "fewer.csv"
    write_rows(fewer, rows // 5)
    spend(peer(site.new("peer"), 1, "migrate"), folder)
    found: list[tuple[Spent, Spent]] = []
    for _ in range(rounds):
        found.append((ours(site, rows), theirs(site, action, fewer, rows // 5)))
    own, other = median(rows / a.wall for a, _ in found), median(rows / 5 / b.wall for _, b in found)
    print(
        f"{name:10} notifyctl {own:6.0f} rows/s, {median(a.cpu / rows * 1e6 for a, _ in found):4.0f} us CPU/row, "
        f"{median(a.rss for a, _ in found):3.0f} MB  {action[6:]} {other:6.0f} rows/s, "
        f"{median(b.cpu / rows * 5e6 for _, b in found):4.0f} us CPU/row"
        f"  {median(b.wall * 5 / a.wall for a, b in found):5.2f} x its rate",
        flush=True,
    )


def main(rounds: int = 5, rows: int = 100_000, only: str = "") -> None:
    """Measure both databases."""
    with tempfile.TemporaryDirectory(prefix="notifyctl-bench-") as name:
        if only != "postgresql":
            measure(Path(name) / "sqlite", "sqlite", None, rounds, rows)
        if only != "sqlite":
            cluster = Cluster().start()
            try:
                measure(Path(name) / "postgresql", "postgresql", cluster, rounds, rows)
            finally:
                cluster.stop()


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:3]), *sys.argv[3:4])
