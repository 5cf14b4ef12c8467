"""SQLite's surroundings fail: a full disk, a file that takes no more bytes, a clock that goes backwards.

(A locked ledger, for 3 seconds and beyond patience: `test_trouble`; unwritable files and folders too.)
"""

from __future__ import annotations

import os
import resource
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from notifyctl.errors import LedgerUnavailable
from notifyctl.ledger.database import Ledger
from tests import auditor
from tests.ledger.workbench import Workbench
from tests.site import Done, Running, Site, reached
from tests.smtp_server import Rule, SmtpServer

MAILS = 10


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of a megabyte and a half."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1536k", "tmpfs", str(place)]
    try:
        subprocess.run(mount, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting a small disk is not permitted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True, stdin=subprocess.DEVNULL)


@contextmanager
def _site(folder: Path, ledger: Path, migrated_file: Path, *rules: Rule) -> Iterator[tuple[Site, SmtpServer]]:
    """A site whose ledger lies elsewhere than its configuration."""
    shutil.copyfile(migrated_file, ledger)
    with SmtpServer(*rules) as server, Site(folder / "site", f"sqlite:///{ledger}", server.port) as site:
        site.configure(relay={"deadline": "3s"}, lane={"concurrency": 1}, ledger={"patience": "500ms"})
        site.publish()
        site.enqueue(MAILS)
        yield site, server


def _fill(disk: Path) -> None:
    """Take every byte that is left, however small the pieces must be."""
    size = 1 << 16
    with (disk / "filler").open("ab", buffering=0) as file:
        while size:
            try:
                file.write(b"\0" * size)
            except OSError:
                size //= 2


def _third() -> Rule:
    """The third mail is accepted, its answer withheld."""
    return Rule("dot", hang=True, after=2, times=1)


def _with_a_third_in_flight(site: Site, server: SmtpServer, *arguments: str) -> Running:
    process = site.start("dispatch", *arguments)
    process.until(server, lambda: server.accepted == 3)
    return process


def _said(done: Done, *words: str) -> None:
    assert done.code == 75, done
    assert done.out == ""
    assert 1 <= len(done.err.splitlines()) <= 3, done.err
    assert all(word in done.err for word in words), done.err


def _all_went_once(site: Site, server: SmtpServer) -> None:
    assert sorted(reached(server.messages)) == list(range(1, MAILS + 1))
    assert auditor.faults(site.url, server.messages, at_rest=True) == []


def test_a_disk_that_is_full_before_the_claim_means_later_and_nothing_is_sent(
    tmp_path: Path, disk: Path, migrated_file: Path
) -> None:
    with _site(tmp_path, disk / "ledger.db", migrated_file) as (site, server):
        _fill(disk)
        _said(site.run("dispatch"), "ledger.db", "disk is full")
        rows = site.path / "rows.csv"
        rows.write_text("event,recipient,channel,template,to.email,vars.name\ne99,r-99,email,note,a@rcpt.example,Ann\n")
        _said(site.run("enqueue", "--from", str(rows)), "disk is full")
        assert server.connections == []
        (disk / "filler").unlink()
        assert site.states() == {"queued": MAILS}
        assert site.dispatch().json["accepted"] == MAILS
        _all_went_once(site, server)


def test_an_outcome_that_a_full_disk_does_not_take_is_kept_until_there_is_room(
    tmp_path: Path, disk: Path, migrated_file: Path
) -> None:
    with _site(tmp_path, disk / "ledger.db", migrated_file, _third()) as (site, server):
        process = _with_a_third_in_flight(site, server, "--json")
        _fill(disk)
        server.release()
        assert process.goes_on_for(1), "it gave up an outcome that it knows"
        (disk / "filler").unlink()
        done = process.result()
        assert (done.code, done.json["accepted"]) == (0, MAILS), done
        _all_went_once(site, server)


def test_an_outcome_that_a_full_disk_never_takes_is_in_doubt_and_the_rest_stays_due(
    tmp_path: Path, disk: Path, migrated_file: Path
) -> None:
    with _site(tmp_path, disk / "ledger.db", migrated_file, _third()) as (site, server):
        process = _with_a_third_in_flight(site, server)
        _fill(disk)
        server.release()
        _said(process.result(), "disk is full")
        (disk / "filler").unlink()
        (third,) = site.open_attempts()
        site.later()
        assert site.dispatch().json["accepted"] == MAILS - 3
        assert site.numbers("d.state = 'ambiguous'") == {third}
        _all_went_once(site, server)


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits of another process cannot be set here")
@pytest.mark.parametrize("back", [True, False], ids=["for a while", "for good"])
def test_a_ledger_that_takes_no_byte_after_an_acceptance_is_waited_for(
    back: bool, tmp_path: Path, migrated_file: Path
) -> None:
    """As on a file system that turned read-only under it: open files stay open, and every write fails."""
    with _site(tmp_path, tmp_path / "ledger.db", migrated_file, _third()) as (site, server):
        process = _with_a_third_in_flight(site, server, "--json")
        limits = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, limits[1]))
        server.release()
        if back:
            assert process.goes_on_for(1), "it gave up an outcome that it knows"
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, limits)
            done = process.result()
            assert (done.code, done.json["accepted"]) == (0, MAILS), done
        else:
            done = process.result()
            assert done.code == 75, done
            assert "cannot be written" in done.err
            (third,) = site.open_attempts()
            site.later()
            assert site.dispatch().json["accepted"] == MAILS - 3
            assert site.numbers("d.state = 'ambiguous'") == {third}
        _all_went_once(site, server)


# -- clocks ----------------------------------------------------------------------------------------------------------

NOON = datetime(2031, 3, 3, 12, tzinfo=UTC)
LEASE = 60.0


class Clock:
    """A host's wall clock, as wrong as a test wants it."""

    def __init__(self) -> None:
        self.at = NOON

    def __call__(self) -> datetime:
        return self.at

    def step(self, **by: float) -> None:
        """Time passes, or is set."""
        self.at += timedelta(**by)


@pytest.fixture
def hosts(tmp_path: Path, migrated_file: Path) -> Iterator[tuple[Clock, Workbench, Workbench]]:
    """Two owners on one machine, whose clock the test holds; three deliveries are due."""
    path = tmp_path / "ledger.db"
    shutil.copyfile(migrated_file, path)
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM notify_meta WHERE key = 'clock_mark'")
    connection.close()
    clock = Clock()
    benches = [Workbench(f"sqlite:///{path}", run) for run in ("one", "other")]
    for bench in benches:
        bench.ledger.wall = clock
    benches[0].deliveries(3, due_at=f"'{NOON - timedelta(hours=1):%Y-%m-%d %H:%M:%S.%f}'")
    yield clock, benches[0], benches[1]
    for bench in benches:
        bench.ledger.close()


def test_a_clock_set_back_two_hours_neither_steals_a_lease_nor_keeps_it(
    hosts: tuple[Clock, Workbench, Workbench],
) -> None:
    clock, one, other = hosts
    held = one.claim(lease=LEASE)
    assert len(held) == 3
    clock.step(hours=-2)
    assert other.claim() == []
    clock.step(seconds=LEASE - 1)
    assert other.claim() == [], "the lease still runs"
    clock.step(seconds=2)
    assert len(other.claim()) == 3, "the dead owner's rows would be kept for two hours"
    assert set(one.begin(held)) == {d.id for d in held}
    assert one.state(held[0].id) == "queued", "the old owner began what is another's"


def test_a_deadline_set_before_the_clock_went_back_passes_in_time(hosts: tuple[Clock, Workbench, Workbench]) -> None:
    clock, one, other = hosts
    one.begin(one.claim())
    clock.step(hours=-2)
    assert other.lapse() == []
    clock.step(seconds=31)  # the workbench's exchanges take 30
    assert len(other.lapse()) == 3
    assert one.states() == {"ambiguous": 3}


def test_a_clock_that_is_set_right_again_goes_on_from_there(hosts: tuple[Clock, Workbench, Workbench]) -> None:
    clock, one, other = hosts
    one.claim(lease=LEASE)
    clock.step(hours=-2)
    one.execute("UPDATE notify_work SET tries = tries")
    clock.step(hours=2, seconds=LEASE + 1)
    assert len(other.claim()) == 3
    assert other.execute("SELECT value FROM notify_meta WHERE key = 'clock_offset'") == [("0.0",)]


def test_a_ledger_from_days_ahead_stops_everything_until_a_person_says_which_time_is_right(
    hosts: tuple[Clock, Workbench, Workbench],
) -> None:
    clock, one, other = hosts
    one.claim()
    clock.step(days=-2)
    with pytest.raises(LedgerUnavailable, match="clock") as raised:
        other.claim()
    assert "--reset-clock" in raised.value.hint
    assert raised.value.exit_code == 75


def test_hosts_whose_clocks_are_ten_minutes_apart_share_postgres_without_stealing(
    postgres: object, migrated_template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's clock alone counts there."""
    from notifyctl import clock
    from tests.postgres import Cluster

    assert isinstance(postgres, Cluster)
    url = postgres.create_database(template=migrated_template)
    real = clock.wall
    try:
        one = Workbench(url, "one")
        one.deliveries(3)
        held = one.claim(lease=LEASE)
        for minutes in (10, -10):
            with monkeypatch.context() as patch:
                patch.setattr(clock, "wall", lambda by=minutes: real() + timedelta(minutes=by))
                other = Workbench(url, f"ahead {minutes}")
                assert other.claim() == []
                other.deliveries(1, prefix=f"m{minutes}-")
                assert len(other.claim()) == 1, "due now is due now on every host"
                other.ledger.close()
        begun = one.begin(held)
        assert one.states()["sending"] == 3
        assert all(abs((b.started - real()).total_seconds()) < 60 for b in begun.values() if hasattr(b, "started"))
        one.ledger.close()
    finally:
        with suppress(Exception):
            one.ledger.close()
        postgres.drop_database(url)


def test_a_ledger_keeps_time_although_nobody_here_knows_the_right_one(tmp_path: Path, migrated_file: Path) -> None:
    """A clock that jumps back between two transactions of one run moves nothing that is on disk."""
    path = tmp_path / "ledger.db"
    shutil.copyfile(migrated_file, path)
    os.utime(path)
    ledger = Ledger(f"sqlite:///{path}")
    before = ledger.transact(lambda tx: tx.now)
    ledger.wall = lambda: datetime.now(UTC) - timedelta(minutes=30)
    assert ledger.transact(lambda tx: tx.now) >= before
    assert abs((ledger.now() - before).total_seconds()) < 60
    ledger.close()
