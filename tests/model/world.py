"""One installation for one history: configuration, clock, providers, ledger, oracle; and how its people act on it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from notifyctl.compose import destinations
from notifyctl.compose.templates import Renderer
from notifyctl.config import Config
from notifyctl.keys import Keys
from notifyctl.ledger import runs, templates
from notifyctl.model import Backoff, Channel, ConsentMode, Lane, OnAmbiguous, ReceiptPolicy, Template, Topic
from notifyctl.settings import TransportSettings
from notifyctl.transports.base import Transport
from notifyctl.transports.registry import open_transport
from tests.model.bench import Bench
from tests.model.counting import follow
from tests.model.oracle import Oracle, Snapshot, Step
from tests.model.truth import DEADLINE, PROFILES, Providers, Scripted

LANES = ("first", "second")
RECIPIENTS = ("ann", "bob", "cy")
TOPICS = {"news": Topic("news", ConsentMode.OPT_OUT), "must": Topic("must", ConsentMode.REQUIRED)}
GIVE_UP = 3600.0
REVIEW = 1800.0
RECEIPTS = ReceiptPolicy(first=10.0, cap=80.0, deadline=400.0)


_RENDERER = Renderer("en")


class World:
    """Everything a history acts upon."""

    renderer = _RENDERER

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        database = bench.fresh()
        self.clock = bench.clock
        self.providers = Providers(self.clock)
        Scripted.world, Scripted.broken = self.providers, False
        self.database = database
        ledger = bench.ledger(0)
        self.keys: Keys = runs.keys(ledger)
        self.templates: dict[tuple[str, str | None], Template | None] = dict(
            ledger.read(lambda tx: templates.load_many(tx, [("note", "1"), ("note", "2")]))
        )
        self.config = Config(
            path=Path("/model.toml"), instance="test", url=bench.url, templates_path=Path("/templates"), topics=TOPICS,
            transports={name: settings(name) for name in PROFILES},
            lanes={name: lane(name, "plain") for name in LANES},
        )  # fmt: skip
        self.oracle = Oracle(database, self.providers, frozenset({"must"}))
        self.opened: dict[str, Transport] = {}

    # -- time -----------------------------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        """The ledger's time as its next transaction will see it."""
        return self.bench.ledger_now()

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.clock.passed += seconds
        self.bench.tell_time()

    # -- configuration --------------------------------------------------------------------------------------------

    def reconfigure(self, name: str, **changes: Any) -> None:
        """Change a lane."""
        changed = replace(self.config.lanes[name], **changes)
        self.config = replace(self.config, lanes={**self.config.lanes, name: changed})

    def transport(self, name: str) -> Transport | None:
        """A configured transport; None: it has vanished."""
        if name not in self.config.transports:
            return None
        if name not in self.opened:
            self.opened[name] = open_transport(self.config.transports[name])
        return self.opened[name]

    def resend(self, sender: str) -> None:
        """Another sender for all transports."""
        changed = {name: replace(one, sender=sender) for name, one in self.config.transports.items()}
        self.config = replace(self.config, transports=changed)
        self.opened.clear()

    def vanish(self, name: str) -> None:
        """A transport that no lane uses is no longer configured; one that was gone returns."""
        known = dict(self.config.transports)
        if name in known:
            del known[name]
        else:
            known[name] = settings(name)
        self.config = replace(self.config, transports=known)
        self.opened.clear()

    # -- looking --------------------------------------------------------------------------------------------------

    def check(self, name: str, **about: Any) -> Snapshot:
        """Have the oracle look at what a transaction left behind."""
        for key in ("told_accepted", "absent", "decided", "granted", "may_replay", "may_duplicate", "receipts"):
            if key in about:
                about[key] = frozenset(about[key])
        for delivery, key in self.database.execute("SELECT id, idempotency_key FROM notify_delivery"):
            if delivery not in self.oracle.wire:
                self.oracle.wire[delivery] = self.keys.wire(key)
        before, now = self.oracle.before, self.now
        after = self.oracle.check(Step(name, **about), now)
        if before is not after:
            follow(before, after, name, now, dict(self.config.lanes))
        return after

    @property
    def seen(self) -> Snapshot:
        """What was stored when the oracle last looked."""
        return self.oracle.before

    def fingerprint(self, address: str) -> str:
        """As the ledger knows an address."""
        return self.keys.fingerprint(Channel.EMAIL, destinations.bare(Channel.EMAIL, address))


def settings(name: str) -> TransportSettings:
    """A transport of the profile of that name."""
    return TransportSettings(
        name, "modelled", {"profile": name}, Path("/"), deadline=DEADLINE, cooldown=20.0, sender="shop@example.com"
    )


def lane(name: str, transport: str) -> Lane:
    """A lane in a hurry: everything ends within two hours."""
    return Lane(
        name, Channel.EMAIL, transport, max_attempts=3, give_up_after=GIVE_UP, ambiguous_review_after=REVIEW,
        lease=60.0, backoff=Backoff(base=8.0, cap=60.0), receipt=RECEIPTS, on_ambiguous=OnAmbiguous.AUTO,
    )  # fmt: skip
