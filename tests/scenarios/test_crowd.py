"""Everybody at once on one ledger: dispatchers, ticks beside them, enqueuers, and an operator who changes his mind.

A small crowd in CI; `NOTIFYCTL_CROWD=20000 pytest tests/scenarios/test_crowd.py` is the whole one.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from notifyctl.cli.app import FAMILIES
from tests.ledger.databases import Database
from tests.scenarios.stage import Stage
from tests.site import DOMAIN, Done, intent
from tests.smtp_server import Connection, Rule, SmtpServer

DELIVERIES = int(os.environ.get("NOTIFYCTL_CROWD", "240"))
DISPATCHERS = 4 if DELIVERIES < 5000 else 8
PATIENT = 60.0 + DELIVERIES / 20  # seconds: only a standstill takes longer
LIMIT = max(40, DELIVERIES // 40)
ENDED = {"accepted", "delivered", "suppressed", "cancelled", "permanent_failure"}


def _number(connection: Connection) -> int:
    found = re.match(r"r(\d+)@", connection.recipient)
    return int(found[1]) if found else 0


class Crowd:
    """Threads that each run one command after the other until all is enqueued and settled."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.stop = threading.Event()
        self.settled = threading.Event()  # the operator goes first: he could requeue what has just ended
        self.ends: list[tuple[tuple[str, ...], Done]] = []
        self.accepted: Counter[int] = Counter()
        self.faults: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def add(self, work: Callable[[], None]) -> threading.Thread:
        """Do `work` meanwhile."""

        def guarded() -> None:
            try:
                work()
            except BaseException as fault:
                self.faults.append(fault)

        thread = threading.Thread(target=guarded)
        self._threads.append(thread)
        thread.start()
        return thread

    def command(self, *words: str) -> Done:
        """One command, remembered."""
        done = self.stage.run(*words, timeout=PATIENT)
        self.ends.append((words, done))
        return done

    def dispatcher(self, number: int) -> None:
        """Dispatch again and again."""
        while not self.stop.is_set():
            done = self.command("dispatch", "--json", "--limit", str(LIMIT), "--batch", "20", "--max-seconds", "10")
            self.accepted[number] += done.json["accepted"] if done.out else 0

    def repeat(self, *words: str) -> None:
        """Any other command, again and again."""
        while not self.stop.is_set():
            self.command(*words)

    def settle(self, operator: threading.Thread) -> None:
        """Wait until nothing is left, time passing for what waits; then everybody goes home."""
        self.settled.set()
        operator.join(PATIENT)
        until = time.monotonic() + PATIENT
        while not self.faults and set(self.stage.states()) - ENDED:
            assert time.monotonic() < until, f"a standstill: {self.stage.states()}"
            self.stage.sql("UPDATE notify_work SET eligible_at = due_at WHERE owner IS NULL")
            self.stop.wait(0.2)
        self.go_home()

    def go_home(self) -> None:
        """Wait for all of them."""
        self.stop.set()
        for thread in self._threads:
            thread.join(PATIENT)
        if self.faults:
            raise self.faults[0]


def _enqueue(crowd: Crowd, first: int, count: int) -> None:
    """A half by the bulk command, a half by an application's own inserts, in pieces."""
    stage, piece = crowd.stage, 50
    for start in range(first, first + count, piece):
        numbers = range(start, min(start + piece, first + count))
        if (start // piece) % 2:
            file = stage.path / f"rows-{start}.ndjson"
            file.write_text("".join(json.dumps(intent(number)) + "\n" for number in numbers), encoding="utf-8")
            done = crowd.command("enqueue", "--from", str(file), "--json")
            assert done.json["enqueued"] + done.json["suppressed"] == len(numbers), done
        else:
            stage.enqueue(len(numbers), first=start)


def _operator(crowd: Crowd) -> None:
    """Adds suppressions, cancels, and requeues what was refused."""
    turn = 0
    why = ("--reason", "one of a crowd")
    while not crowd.settled.is_set():
        turn += 1
        crowd.command("suppression", "add", "--recipient", f"r-{turn * 23}", "--channel", "email", *why)
        crowd.command("requeue", "--state", "permanent_failure", *why, "--limit", "5", "--json")
        if crowd.stage.numbers(f"d.event_id = 'e{turn * 29}'"):
            crowd.command("cancel", "--event", f"e{turn * 29}", *why, "--json")


def test_a_crowd_loses_nothing_sends_nothing_twice_and_lets_an_urgent_one_through(stage: Stage) -> None:
    late: set[int] = set()

    def busy(connection: Connection) -> bool:
        """Every seventh recipient is told once to come again."""
        number = _number(connection)
        first = number % 7 == 0 and number not in late
        late.add(number) if first else None
        return first

    rules = (
        Rule("rcpt", reply="451 4.3.0 come again", when=busy),
        Rule("rcpt", reply="554 5.7.1 not you", when=lambda it: _number(it) % 31 == 30),
        Rule("dot", delay=0.02),
    )
    with SmtpServer(*rules) as server:
        stage.to(server)
        stage.put("lanes.otp", channel="email", transport="relay")
        crowd = Crowd(stage)
        stage.enqueue(DELIVERIES // 4)
        for number in range(DISPATCHERS):
            crowd.add(lambda number=number: crowd.dispatcher(number))  # type: ignore[misc]
        for tick in ("poll-receipts", "reconcile"):
            if tick in FAMILIES:
                crowd.add(lambda tick=tick: crowd.repeat(tick, "--json"))  # type: ignore[misc]
        operator = crowd.add(lambda: _operator(crowd))
        half = (DELIVERIES - DELIVERIES // 4) // 2
        enqueuers = [
            crowd.add(lambda first=first: _enqueue(crowd, first, half))  # type: ignore[misc]
            for first in (DELIVERIES // 4 + 1, DELIVERIES // 4 + half + 1)
        ]
        server.wait_for(20, 60)
        waiting = _urgent(stage, server)
        for thread in enqueuers:
            thread.join(PATIENT)
        crowd.settle(operator)
        total = DELIVERIES // 4 + 2 * half + 1
        assert sum(stage.states().values()) == total
        assert [end for end in crowd.ends if end[1].code not in (0, 3, 65)] == []
        assert sum(crowd.accepted.values()) == len(server.messages) == stage.states()["accepted"]
        _fair(crowd)
        print(f"{total} deliveries, {waiting} others went before the urgent one: {dict(crowd.accepted)}")
        with Database(stage.url) as database:
            assert database.one("SELECT count(*) FROM notify_work") == 0
            if database.dialect == "postgresql":
                dead = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
                assert database.one(dead) == 0, "somebody had to be rolled back"
        stage.audit(server)


def _urgent(stage: Stage, server: SmtpServer) -> int:
    """Put one code into its own lane behind the bulk; how many others the server got before it."""
    before = len(server.messages)
    row: dict[str, Any] = {**intent(999_999), "lane": "otp"}
    stage.rows(row)
    server.wait(lambda: any(m.recipient == f"r999999@{DOMAIN}" for m in list(server.messages)), PATIENT)
    passed = [message.recipient for message in server.messages].index(f"r999999@{DOMAIN}") - before
    assert passed <= 4 * DISPATCHERS * LIMIT, "it had to queue behind the bulk"
    return passed


def _fair(crowd: Crowd) -> None:
    """Nobody was starved."""
    mean = sum(crowd.accepted.values()) / DISPATCHERS
    assert len(crowd.accepted) == DISPATCHERS
    assert min(crowd.accepted.values()) >= (0.5 if DELIVERIES >= 5000 else 0.1) * mean, crowd.accepted
