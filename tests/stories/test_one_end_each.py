"""Story 2's measure: recipient-channel pairs with scripted outcomes each reach exactly one unambiguous end.

The poller is killed again and again: at a statement, before and after a commit, and at moments of chance while it asks.
Half of the pairs are looked up, half come by a feed that repeats itself. 160 pairs here, 1,000 with
`NOTIFYCTL_STORY_PAIRS=1000`; at least twenty kills on each database either way.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.cli.rig import environment
from tests.ledger.databases import Database
from tests.scripted import Desk, append, lines
from tests.site import PATIENT, Running

PAIRS = int(os.environ.get("NOTIFYCTL_STORY_PAIRS", "160"))
KILLS = 20
POINTS = ("ledger.statement", "ledger.commit", "ledger.committed")

# What the provider says one after the other, and how that ends.
ENDS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("delivered",), "delivered"),
    (("pending", "delivered"), "delivered"),
    (("pending", "pending", "failure"), "permanent_failure"),
    (("soft_failure",), "permanent_failure"),
    (("hard_bounce",), "suppressed"),
    (("pending", "invalid_recipient"), "suppressed"),
    (("opted_out",), "suppressed"),
    (("delivered", "complained"), "delivered"),
    ((), "unresolved"),
    (("pending",), "unresolved"),
)
SUPPRESSING = {"hard_bounce", "invalid_recipient", "opted_out", "complained"}


def _script(desk: Desk, chance: random.Random) -> dict[int, tuple[tuple[str, ...], str]]:
    """Say everything at once: the feed in an order of chance and parts of it twice, look-ups their last word."""
    plan = {number: chance.choice(ENDS) for number in range(1, PAIRS + 1)}
    wires = dict(desk.sql("SELECT event_id, wire_key FROM notify_delivery"))
    fed: list[dict[str, Any]] = []
    for number, (said, _) in plan.items():
        remote = f"m-{wires[f'e{number}'][:12]}"
        told = [{"remote_id": remote, "status": status, "at": 10 * n} for n, status in enumerate(said)]
        if number % 2:
            fed += told
        elif "complained" in said:
            plan[number] = (("delivered",), "delivered")
            append(desk.path / "provider-2" / "says.jsonl", told[0])
        else:
            for one in told:
                append(desk.path / "provider-2" / "says.jsonl", one)
    again = chance.sample(fed, len(fed) // 3)
    chance.shuffle(fed)
    for one in [*fed, *again]:
        append(desk.provider / "says.jsonl", one)
    return plan


def _judge(desk: Desk, plan: dict[int, tuple[tuple[str, ...], str]]) -> None:
    rows = desk.sql("SELECT event_id, state, id FROM notify_delivery")
    states = {int(event[1:]): state for event, state, _ in rows}
    assert states == {number: end for number, (_, end) in plan.items()}
    assert desk.sql("SELECT * FROM notify_work") == []
    number_of = {delivery: int(event[1:]) for event, _, delivery in rows}
    settled = Counter(
        delivery for delivery, was, to in desk.sql('SELECT delivery_id, "from", "to" FROM notify_transition')
        if was in ("accepted", "pending") and to not in ("accepted", "pending")
    )  # fmt: skip
    assert settled == dict.fromkeys(number_of, 1), "each was ended once"
    kept = Counter(desk.sql("SELECT delivery_id, status, provider_time FROM notify_receipt"))
    assert {one for one, times in kept.items() if times > 1} == set()
    silenced = Counter(number_of[one] for (one,) in desk.sql("SELECT source_delivery_id FROM notify_suppression"))
    assert silenced == {number: 1 for number, (said, _) in plan.items() if SUPPRESSING & set(said)}
    sent = Counter(one["key"] for name in ("provider", "provider-2") for one in lines(desk.path / name / "sent.jsonl"))
    assert len(sent) == PAIRS
    assert set(sent.values()) == {1}, "a missing receipt was answered with another send"


def _kill_at_random(desk: Desk, process: Running, chance: random.Random) -> bool:
    """Kill it once the provider was asked a few times more; False where it had ended before."""
    files = [desk.path / name / "asked.jsonl" for name in ("provider", "provider-2")]
    wanted = sum(len(lines(file)) for file in files) + chance.randrange(1, 12)
    until = time.monotonic() + PATIENT
    while sum(len(lines(file)) for file in files) < wanted and process._process.poll() is None:
        assert time.monotonic() < until
    process.end()
    return process._process.returncode == -signal.SIGKILL


def test_each_pair_reaches_one_unambiguous_end_however_often_the_poller_is_killed(
    tmp_path: Path, migrated_url: str
) -> None:
    chance = random.Random(11)
    desk = Desk(tmp_path, migrated_url, "feed")
    (tmp_path / "provider-2").mkdir()
    desk.settings["transports.asked"] = {
        **desk.settings["transports.relay"], "receipts": "lookup", "path": "provider-2",
    }  # fmt: skip
    del desk.settings["transports.asked"]["feeding"]
    desk.settings["lanes.asked"] = {"channel": "email", "transport": "asked", "batch": 20, "concurrency": 4}
    desk.configure()
    with desk:
        desk.publish()
        with Database(desk.url) as database:
            database.begin()
            for number in range(1, PAIRS + 1):
                database.insert(
                    "notify_delivery", event_id=f"e{number}", recipient_id=f"r-{number}", channel="email",
                    template="note", variables='{"name": "Ada"}', destination=f"r{number}@rcpt.example",
                    lane="email" if number % 2 else "asked",
                )  # fmt: skip
            database.execute("COMMIT")
        while desk.dispatched()["claimed"]:
            pass
        plan = _script(desk, chance)
        kills = rounds = 0
        while kills < KILLS:
            rounds += 1
            assert rounds < 20 * KILLS
            desk.due()
            if rounds % 2:
                point = f"{chance.choice(POINTS)}:{chance.randrange(1, 30)}"
                process = desk.start("poll-receipts", "--limit", "12", env=environment(NOTIFYCTL_FAILPOINT=point))
                process._process.communicate(timeout=PATIENT)
                kills += process._process.returncode == -signal.SIGKILL
            else:
                kills += _kill_at_random(desk, desk.start("poll-receipts", "--limit", "40"), chance)
            desk.quiet()
        for _ in range(2 + PAIRS // 50):
            desk.due()
            assert desk.beside("poll-receipts").code == 0
        desk.sql("UPDATE notify_delivery SET accepted_at = '2001-01-01 00:00:00.000000' WHERE settled_at IS NULL")
        desk.due()
        assert desk.beside("poll-receipts").code == 3
        _judge(desk, plan)
