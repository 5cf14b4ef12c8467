"""`migrate --restored-from`: all lanes are paused, and what may have been sent since the backup is in doubt.

First the pause, by itself: from then on no dispatch of this ledger begins anything. Then page by page, so that nobody
waits long; safe to run again, since a delivery that has its attempt is not met a second time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from notifyctl import units
from notifyctl.compose import destinations
from notifyctl.config import Config
from notifyctl.errors import InputError, UsageError
from notifyctl.ledger import gate, restore, runs
from notifyctl.ledger.database import Ledger, Tx
from notifyctl.ledger.restore import Unsure

_PAGE = 500  # deliveries in one transaction


@dataclass(slots=True)
class Restored:
    """How many deliveries are in doubt, and the lanes that are paused for it."""

    since: datetime
    in_doubt: int = 0
    paused: list[str] = field(default_factory=list)


def restored(ledger: Ledger, config: Config, since: datetime, *, actor: str, dry_run: bool) -> Restored:
    """Pause every lane, and put in doubt what may have been sent since that time. Raises UsageError."""
    if since > ledger.read(lambda tx: tx.now):
        raise UsageError("--restored-from lies in the future", hint="say when the backup was made")
    done = Restored(since, paused=sorted(config.lanes))
    if dry_run:
        done.in_doubt = ledger.read(restore.count)
        return done
    run, keys = runs.new_id(), runs.keys(ledger)

    def pause(tx: Tx) -> None:
        runs.start(tx, run, "migrate")
        for lane in done.paused:
            gate.pause(tx, lane, reason=f"restored from a backup of {units.iso(since)}", actor=actor)

    def told(one: Unsure) -> tuple[int, str, str | None]:
        known = config.lanes.get(one.lane)
        try:
            address = destinations.bare(
                one.channel, destinations.normalize(one.channel, one.address, config.phone_region or None)
            )
            now = keys.fingerprint(one.channel, address)
        except InputError:
            now = None  # nothing can have been sent to it; it will be refused once its doubt is settled
        return one.id, one.transport or (known.transport if known else ""), one.fingerprint or now

    after = 0

    def put(tx: Tx) -> list[Unsure]:
        some = restore.page(tx, after, _PAGE)
        restore.doubt(tx, some, [told(one) for one in some], since=since, run=run, actor=actor)
        return some

    ledger.transact(pause)
    while some := ledger.transact(put):
        after = some[-1].id
        done.in_doubt += len(some)
    ledger.transact(lambda tx: runs.finish(tx, run, 0, {"in_doubt": done.in_doubt}))
    return done
