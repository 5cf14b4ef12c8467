"""SIGKILL at every point of a receipts run, by look-up and by feed: each receipt counts once, and nothing is sent."""

from __future__ import annotations

import signal
from itertools import count
from pathlib import Path

import pytest

from tests import auditor
from tests.cli.rig import environment
from tests.scripted import Desk, lines

DELIVERED, PENDING, BOUNCED = 1, 2, 3  # what the provider says of e1, e2, e3; of e4 it says nothing
MAILS = 4
TRIED = [
    *[("lookup", f"poll.{name}") for name in ("claimed", "asked", "begun", "kept", "committed")],
    *[("feed", f"poll.{name}") for name in ("claimed", "read", "begun", "kept", "committed", "marked")],
]
GENERIC = ("ledger.statement", "ledger.commit", "ledger.committed")


def _sent(path: Path, url: str, way: str) -> Desk:
    """Four accepted mails, of three of which the provider has something to say."""
    desk = Desk(path, url, way)
    desk.send(MAILS)
    desk.says(DELIVERED, "delivered")
    desk.says(PENDING, "pending")
    desk.says(BOUNCED, "failure", reason="hard_bounce")
    desk.due()
    return desk


def _die(desk: Desk, point: str, nth: int = 1) -> bool:
    """One poll as a process of its own; returns whether it died there."""
    done = desk.start("poll-receipts", "--json", env=environment(NOTIFYCTL_FAILPOINT=f"{point}:{nth}")).result()
    desk.quiet()
    assert done.code in (0, 3, -signal.SIGKILL), done
    return done.code == -signal.SIGKILL


def _heal(desk: Desk) -> None:
    """Normal polls; then everything that was said is known, once."""
    for _ in range(2):
        desk.due()
        desk.polled()
    assert [desk.delivery(number) for number in (DELIVERED, PENDING, BOUNCED)] == [
        "delivered", "pending", "permanent_failure",
    ]  # fmt: skip
    assert [desk.receipts(number) for number in range(1, MAILS + 1)] == [["delivered"], ["pending"], ["failure"], []]
    assert desk.sql("SELECT count(*) FROM notify_work WHERE owner IS NOT NULL") == [(0,)]
    assert len(lines(desk.provider / "sent.jsonl")) == MAILS, "a receipt was answered by sending"
    seen = [{"at": 2e9, "sha256": "", "message_id": one["ids"][0]} for one in lines(desk.provider / "sent.jsonl")]
    assert auditor.faults(desk.url, [*seen], by_remote=True) == []


@pytest.mark.parametrize(("way", "point"), TRIED)
def test_a_poll_that_dies_there_is_made_up_for_by_the_next(
    way: str, point: str, tmp_path: Path, migrated_url: str
) -> None:
    desk = _sent(tmp_path, migrated_url, way)
    assert _die(desk, point), f"{point} was never reached"
    _heal(desk)


@pytest.mark.soak
@pytest.mark.parametrize("point", GENERIC)
@pytest.mark.parametrize("way", ["lookup", "feed"])
def test_a_poll_may_die_at_every_statement_and_every_commit(
    way: str, point: str, tmp_path: Path, migrated_url: str
) -> None:
    desk = _sent(tmp_path, migrated_url, way)
    for nth in count(1):
        desk.due()
        if not _die(desk, point, nth):
            break
    assert nth > 2
    _heal(desk)
