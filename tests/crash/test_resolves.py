"""SIGKILL at every point of a reconcile run: what it had not committed the next one decides, and nothing is sent."""

from __future__ import annotations

import signal
from itertools import count
from pathlib import Path

import pytest

from tests.cli.rig import environment
from tests.scripted import Desk, lines
from tests.site import DOMAIN, LONG_AGO

LOST = 3  # e1, e2, e3 were accepted, and the answers were lost; e4 has expired
TRIED = [f"reconcile.{name}" for name in ("expired", "claimed", "looked", "decided", "committed")]
GENERIC = ("ledger.statement", "ledger.commit", "ledger.committed")


def _doubtful(path: Path, url: str) -> Desk:
    desk = Desk(path, url)
    for number in range(1, LOST + 1):
        desk.intend(number, to=f"lost{number}@{DOMAIN}")
    assert desk.dispatched()["ambiguous"] == LOST
    desk.intend(LOST + 1, expires_at=LONG_AGO)
    desk.later()
    return desk


def _die(desk: Desk, point: str, nth: int = 1) -> bool:
    """One reconcile as a process of its own; returns whether it died there."""
    done = desk.start("reconcile", "--json", env=environment(NOTIFYCTL_FAILPOINT=f"{point}:{nth}")).result()
    desk.quiet()
    assert done.code in (0, -signal.SIGKILL), done
    return done.code == -signal.SIGKILL


def _heal(desk: Desk) -> None:
    """A normal reconcile; then everything is decided, once."""
    desk.later()
    assert desk.beside("reconcile").code == 0
    assert desk.states() == {"accepted": LOST, "expired": 1}
    assert desk.sql("SELECT count(*) FROM notify_attempt WHERE outcome <> 'accepted'") == [(0,)]
    assert desk.sql("SELECT count(*) FROM notify_work WHERE owner IS NOT NULL OR step <> 'check'") == [(0,)]
    assert len(lines(desk.provider / "sent.jsonl")) == LOST, "reconcile has sent something"
    assert desk.trail(1) == ["queued", "sending", "ambiguous", "accepted"]


@pytest.mark.parametrize("point", TRIED)
def test_a_reconcile_that_dies_there_is_made_up_for_by_the_next(point: str, tmp_path: Path, migrated_url: str) -> None:
    desk = _doubtful(tmp_path, migrated_url)
    assert _die(desk, point), f"{point} was never reached"
    _heal(desk)


@pytest.mark.soak
@pytest.mark.parametrize("point", GENERIC)
def test_a_reconcile_may_die_at_every_statement_and_every_commit(point: str, tmp_path: Path, migrated_url: str) -> None:
    desk = _doubtful(tmp_path, migrated_url)
    for nth in count(1):
        desk.later()
        if not _die(desk, point, nth):
            break
    assert nth > 2
    _heal(desk)
