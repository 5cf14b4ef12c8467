"""What the tests of `reconcile` share: a provider about whose doubt the test says what can be proved, and a desk."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any, ClassVar

from notifyctl.model import Absent, Finding, Found, Search
from notifyctl.settings import TransportSettings
from notifyctl.ticks import lanes
from notifyctl.ticks.reconcile import Reconcile
from tests.scripted import Desk, Scripted, append, lines
from tests.site import DOMAIN


class Prover(Scripted):
    """A provider that takes every message and loses the answer; what can be proved about it is set by the test."""

    search: ClassVar[Search] = Search.OWN_KEY
    window: ClassVar[float] = 0.0
    absence: ClassVar[bool] = True
    takes: ClassVar[bool] = True
    finds: ClassVar[Any] = None  # a finding, or an exception

    def __init__(self, settings: TransportSettings) -> None:
        super().__init__(settings)
        self.capabilities = replace(
            self.capabilities, search=self.search, replay_window=self.window, absence_proves_unsent=self.absence
        )

    def submit(self, requests: Any, deadline: Any, validity: Any) -> Any:
        found = super().submit(requests, deadline, validity)
        append(self.folder / "bodies.jsonl", {"key": requests[0].key, "envelope": list(requests[0].envelope)})
        return found

    def find(
        self, key: str, recipient: str = "", since: datetime | None = None, until: datetime | None = None
    ) -> Finding:
        append(self.folder / "finds.jsonl", {"key": key, "recipient": recipient})
        if self.finds is not None:
            if isinstance(self.finds, Exception):
                raise self.finds
            found: Finding = self.finds
            return found
        sent = [one for one in lines(self.folder / "sent.jsonl") if one["key"] == key]
        return Found(sent[0]["ids"][0]) if sent and self.takes else Absent()


class Bench(Desk):
    """A desk whose one delivery is in doubt."""

    def doubt(self, number: int = 1, **columns: Any) -> None:
        self.intend(number, to=f"lost{number}@{DOMAIN}", **columns)
        self.dispatched()
        assert self.delivery(number) == "ambiguous"
        self.later()

    def reconciled(self, code: int = 0, *, lost: str | None = None, **budget: Any) -> dict[str, Any]:
        with self._run("reconcile", **budget) as run:
            tick = Reconcile(run, lanes.chosen(run.config, [], None), "", lost=lost)
            assert tick() == code, tick.document()
            return tick.document()

    def work(self, number: int = 1) -> tuple[Any, ...]:
        (row,) = self.sql(
            "SELECT w.step, w.mandate, w.held, w.owner FROM notify_work w JOIN notify_delivery d "
            "ON d.id = w.delivery_id WHERE d.event_id = ?", f"e{number}",
        )  # fmt: skip
        return row


def copies(bench: Bench) -> int:
    return len(lines(bench.provider / "sent.jsonl"))


def raise_token(bench: Bench) -> bool:
    bench.sql("UPDATE notify_work SET fencing_token = fencing_token + 1, owner = 'another'")
    return True


def everything(bench: Bench) -> list[Any]:
    tables = ("delivery", "work", "attempt", "transition", "run", "pace", "gate", "cursor")
    return [bench.sql(f"SELECT * FROM notify_{table} ORDER BY 1, 2") for table in tables]


def instant(stored: Any) -> datetime:
    return stored if isinstance(stored, datetime) else datetime.fromisoformat(stored)


def ago(bench: Bench, seconds: float) -> str:
    from datetime import UTC, timedelta

    at = datetime.now(UTC) - timedelta(seconds=seconds)
    return at.strftime("%Y-%m-%d %H:%M:%S.%f") + ("" if bench.url.startswith("sqlite:") else "+00")
