"""Peak memory of a dispatch with few and with very many due, of a bulk enqueue, and with large attachments. By hand.

    python -m tests.bench.memory [ROUNDS]

Peak resident memory (ru_maxrss) of each process on SQLite, median of ROUNDS (3; it hardly varies). Goals (P8): a tick
of 5,000 with 100,000 due takes at most 1.1 times the memory of one with 5,000 due, and at most 90 MB; a bulk enqueue
of 100,000 rows at most 90 MB; a dispatch of mails with 20 MB attachments at concurrency 10 at most the attachments in
flight and 90 MB.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.bench.arena import Installation, Sink, Spent, median, spend, tool, write_rows

FEW, MANY, LIMIT = 5_000, 100_000, 5_000
ATTACHMENT, LADEN, CONCURRENCY = 20_000_000, 40, 10


def tick(site: Installation, copy_of: str, *options: str) -> Spent:
    """One dispatch of a copy of this ledger."""
    site.configure(site.new("run", copy_of), f'[objects]\nroot = "{site.folder}"')
    return spend(tool("dispatch", "--max-seconds", "500", *options), site.folder)


def enqueue(site: Installation, name: str, count: int, *, attach: bool = False) -> Spent:
    """Fill the ledger `name` with so many rows."""
    database = site.new(name, "ours")
    site.configure(database, f'[objects]\nroot = "{site.folder}"')
    write_rows(site.rows, count)
    if attach:
        header, *lines = site.rows.read_text().splitlines()
        site.rows.write_text("\n".join([f"{header},attach", *(f"{line},large.pdf" for line in lines)]) + "\n")
    return spend(tool("enqueue", "--from", str(site.rows)), site.folder)


def main(rounds: int = 3) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(prefix="notifyctl-bench-") as name, Sink() as sink:
        site = Installation(Path(name), sink.port)
        site.empty()
        filled = median(enqueue(site, "many", MANY).rss for _ in range(rounds))
        print(f"enqueue of {MANY:,}: {filled:.0f} MB", flush=True)
        enqueue(site, "few", FEW)
        pairs = [
            (tick(site, "few", "--limit", str(LIMIT)).rss, tick(site, "many", "--limit", str(LIMIT)).rss)
            for _ in range(rounds)
        ]
        few, many = median(a for a, _ in pairs), median(b for _, b in pairs)
        print(f"dispatch of {LIMIT:,}: {few:.0f} MB with {FEW:,} due, {many:.0f} MB with {MANY:,} due"
              f"  {median(b / a for a, b in pairs):.2f} x", flush=True)  # fmt: skip
        (site.folder / "large.pdf").write_bytes(bytes(range(250)) * (ATTACHMENT // 250))
        enqueue(site, "laden", LADEN, attach=True)
        laden = median(tick(site, "laden", "--concurrency", str(CONCURRENCY)).rss for _ in range(rounds))
        encoded = ATTACHMENT * 78 / 57 / 2**20  # base64 in lines of 76
        print(
            f"dispatch of {LADEN} with {ATTACHMENT / 2**20:.0f} MB attached ({encoded:.0f} MB as sent), "
            f"{CONCURRENCY} in flight: {laden:.0f} MB, {laden - CONCURRENCY * encoded:.0f} MB beyond what is in flight"
        )


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:2]))
