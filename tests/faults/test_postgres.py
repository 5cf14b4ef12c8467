"""Postgres misbehaves: connections cut at each statement and at COMMIT, errors that ask for another try, PgBouncer."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests import auditor
from tests.cli.rig import environment
from tests.postgres import Cluster
from tests.proxy import Cut, Proxy
from tests.site import Site, intent, reached
from tests.smtp_server import Rule, SmtpServer

MAILS = 6


@pytest.fixture
def url(postgres: Cluster, migrated_template: str) -> Iterator[str]:
    """A fresh ledger on Postgres."""
    url = postgres.create_database(template=migrated_template)
    yield url
    postgres.drop_database(url)


@contextmanager
def _cut(tmp_path: Path, postgres: Cluster, url: str, *cuts: Cut) -> Iterator[tuple[Site, SmtpServer, Proxy]]:
    """A site that reaches its ledger through a proxy only; its own SQL goes the straight way."""
    with Proxy(postgres.port, *cuts) as proxy, SmtpServer() as server, Site(tmp_path, url, server.port) as site:
        site.configure(lane={"concurrency": 2, "batch": 4})
        site.publish()
        site.enqueue(MAILS)
        site.configure(ledger={"url": proxy.url(url)})
        yield site, server, proxy


def _all_went_once(site: Site, server: SmtpServer) -> None:
    site.quiet()
    assert sorted(reached(server.messages)) == list(range(1, MAILS + 1))
    assert auditor.faults(site.url, server.messages, at_rest=True) == []


@pytest.mark.parametrize("reply", [False, True], ids=["request lost", "reply lost"])
@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_a_connection_cut_at_a_commit_is_reopened_and_the_work_done_once(
    nth: int, reply: bool, tmp_path: Path, postgres: Cluster, url: str
) -> None:
    """The second to fourth COMMIT end claim and turns; with the reply lost they have been done, and nobody knows."""
    with _cut(tmp_path, postgres, url, Cut("COMMIT", nth + 1, reply)) as (site, server, proxy):
        done = site.dispatch()
        assert proxy.cuts == 1
        assert (done.code, done.err) == (0, ""), done
        site.later()  # a claim whose COMMIT was not heard of is given back, or found by its lease
        again = site.dispatch()
        assert again.code == 0, again
        _all_went_once(site, server)
        assert site.sql("SELECT count(*) FROM notify_attempt") == [(MAILS,)], "something was tried twice"


@pytest.mark.soak
@pytest.mark.parametrize("reply", [False, True], ids=["request lost", "reply lost"])
@pytest.mark.parametrize("first", [1, 2, 3, 4])
def test_a_connection_cut_at_each_statement_is_reopened_and_the_work_done_once(
    first: int, reply: bool, tmp_path: Path, postgres: Cluster, migrated_template: str
) -> None:
    """Every fourth of them."""
    for nth in count(first, 4):
        url = postgres.create_database(template=migrated_template)
        folder = tmp_path / str(nth)
        folder.mkdir()
        with _cut(folder, postgres, url, Cut(nth=nth, reply=reply)) as (site, server, proxy):
            done = site.dispatch()
            if proxy.cuts:
                assert (done.code, done.err) == (0, ""), (proxy.statements[nth - 1][:60], done)
            site.later()
            site.dispatch()
            _all_went_once(site, server)
            assert site.sql("SELECT count(*) FROM notify_attempt") == [(MAILS,)], "something was tried twice"
        postgres.drop_database(url)
        if not proxy.cuts:
            break
    assert nth > 15 + first, 'cut hardly anywhere'


@pytest.mark.parametrize("reply", [False, True], ids=["request lost", "reply lost"])
def test_an_enqueue_cut_at_its_commit_enters_each_row_once(
    reply: bool, tmp_path: Path, postgres: Cluster, url: str
) -> None:
    with _cut(tmp_path, postgres, url, Cut("INSERT INTO notify_delivery", 1, False),
              Cut("COMMIT", 4, reply)) as (site, _, proxy):  # fmt: skip
        site.enqueue_rows([intent(number) for number in range(MAILS + 1, MAILS + 4)])
        assert proxy.cuts == 2
        assert site.states() == {"queued": MAILS + 3}


def test_a_server_that_cuts_every_connection_is_given_up_in_time_and_nothing_is_sent(
    tmp_path: Path, postgres: Cluster, url: str
) -> None:
    with _cut(tmp_path, postgres, url, Cut("COMMIT", 1, times=10_000)) as (site, server, proxy):
        site.configure(ledger={"patience": "1s"})
        done = site.run("dispatch")
        assert done.code == 75, done
        assert "cannot be reached" in done.err
        assert len(done.err.splitlines()) <= 3, done
        assert server.connections == []
        assert proxy.cuts > 1
        site.configure(ledger={"url": url})
        assert site.dispatch().json["accepted"] == MAILS
        _all_went_once(site, server)


# -- errors that ask for another try ---------------------------------------------------------------------------------

INJECT = """
CREATE SEQUENCE trouble;
CREATE FUNCTION trouble() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF nextval('trouble') <= {times} THEN RAISE EXCEPTION 'injected' USING ERRCODE = '{state}'; END IF;
  RETURN NULL;
END $$;
CREATE {constraint} TRIGGER trouble AFTER {what} ON {table} {deferred} FOR EACH {level} EXECUTE FUNCTION trouble();
"""
STATES = {
    "serialization failure": "40001", "deadlock": "40P01", "lock timeout": "55P03", "cancelled": "57014",
    "out of memory": "53200", "disk full": "53100",
}  # fmt: skip
WRITES = {
    "claim": ("UPDATE", "notify_work"), "attempt": ("INSERT", "notify_attempt"), "record": ("UPDATE", "notify_attempt"),
    "state": ("UPDATE", "notify_delivery"), "trail": ("INSERT", "notify_transition"), "run": ("INSERT", "notify_run"),
}  # fmt: skip


def _inject(site: Site, state: str, what: str, table: str, *, times: int = 2, at_commit: bool = False) -> None:
    site.sql(
        INJECT.format(
            times=times, state=state, what=what, table=table, constraint="CONSTRAINT" if at_commit else "",
            deferred="DEFERRABLE INITIALLY DEFERRED" if at_commit else "", level="ROW" if at_commit else "STATEMENT",
        )
    )  # fmt: skip


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("state", ["serialization failure", "deadlock", "lock timeout"])
def test_a_transaction_that_the_server_turns_back_is_run_again_whole(
    state: str, write: str, tmp_path: Path, url: str
) -> None:
    _turned_back(tmp_path, url, state, write, at_commit=False)


@pytest.mark.parametrize("state", [name for name in STATES if name not in ("deadlock", "lock timeout")])
def test_a_commit_that_the_server_turns_back_is_run_again_whole(state: str, tmp_path: Path, url: str) -> None:
    _turned_back(tmp_path, url, state, "trail", at_commit=True)


@pytest.mark.parametrize("at_commit", [False, True], ids=["statement", "commit"])
@pytest.mark.parametrize("state", STATES)
def test_an_enqueue_that_the_server_turns_back_is_run_again_whole(
    state: str, at_commit: bool, tmp_path: Path, url: str
) -> None:
    with Site(tmp_path, url) as site:
        site.publish()
        _inject(site, STATES[state], "INSERT", "notify_delivery", at_commit=at_commit)
        site.enqueue_rows([intent(number) for number in range(1, MAILS + 1)])
        assert site.states() == {"queued": MAILS}
        assert site.sql("SELECT count(*) FROM notify_work") == [(MAILS,)]
        assert site.sql("SELECT last_value > 2 FROM trouble") == [(True,)], "the trouble was never met"


def test_a_requeue_that_the_server_turns_back_says_so_and_changes_nothing(tmp_path: Path, url: str) -> None:
    """A person sees it and runs it again: an audit row must not be written twice."""
    with SmtpServer(Rule("rcpt", reply="554 5.7.1 no", times=1)) as server, Site(tmp_path, url, server.port) as site:
        site.publish()
        site.enqueue(1)
        site.run("dispatch")
        _inject(site, STATES["deadlock"], "UPDATE", "notify_delivery", times=1)
        asked = ("requeue", "--state", "permanent_failure", "--reason", "the filter was wrong", "--yes")
        first = site.run(*asked)
        if first.code:
            assert first.code == 75, first
            assert 1 <= len(first.err.splitlines()) <= 3, first.err
            assert site.states() == {"permanent_failure": 1}
            assert site.run(*asked).code == 0
        assert site.dispatch().json["accepted"] == 1
        assert len(site.sql("SELECT 1 FROM notify_transition WHERE note LIKE '%filter%'")) == 1
        assert auditor.faults(url, server.messages, at_rest=True) == []


def _turned_back(tmp_path: Path, url: str, state: str, write: str, *, at_commit: bool) -> None:
    with SmtpServer() as server, Site(tmp_path, url, server.port) as site:
        site.configure(lane={"concurrency": 2, "batch": 4})
        site.publish()
        site.enqueue(MAILS)
        _inject(site, STATES[state], *WRITES[write], at_commit=at_commit)
        done = site.dispatch()
        assert (done.code, done.err) == (0, ""), done
        (tried,) = site.sql("SELECT last_value FROM trouble")[0]
        assert tried > 2, "the trouble was never met"
        site.later()
        site.dispatch()
        _all_went_once(site, server)
        assert site.sql("SELECT count(*) FROM notify_attempt") == [(MAILS,)]


@pytest.mark.parametrize(("state", "words"), [("deadlock", "locked"), ("disk full", "out of disk")])
def test_a_server_that_turns_everything_back_ends_the_run_with_nothing_sent(
    state: str, words: str, tmp_path: Path, url: str
) -> None:
    with SmtpServer() as server, Site(tmp_path, url, server.port) as site:
        site.configure(ledger={"patience": "500ms"})
        site.publish()
        site.enqueue(MAILS)
        _inject(site, STATES[state], "INSERT", "notify_attempt", times=10**9)
        done = site.run("dispatch")
        assert (done.code, done.out) == (75, ""), done
        assert words in done.err
        assert len(done.err.splitlines()) <= 3, done
        assert server.messages == []
        site.sql("DROP TRIGGER trouble ON notify_attempt")
        site.later()
        assert site.dispatch().json["accepted"] == MAILS
        _all_went_once(site, server)


def test_a_ledger_that_turns_read_only_after_an_acceptance_is_waited_for(
    tmp_path: Path, postgres: Cluster, url: str
) -> None:
    """As after a fail-over to a standby: the connection is lost, and what is reached next takes no writes."""
    name = url.rpartition("/")[2]
    with SmtpServer(Rule("dot", hang=True, after=2, times=1)) as server, Site(tmp_path, url, server.port) as site:
        site.configure(lane={"concurrency": 1}, ledger={"patience": "500ms"})
        site.publish()
        site.enqueue(MAILS)
        process = site.start("dispatch", "--json")
        process.until(server, lambda: server.accepted == 3)
        with postgres.connect() as admin:
            admin.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'notifyctl' AND datname = %s", (name,),
            )  # fmt: skip
            server.release()
            assert process.goes_on_for(1.5), "it gave up an outcome that it knows"
            admin.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'notifyctl' AND datname = %s", (name,),
            )  # fmt: skip
        done = process.result()
        assert done.code == 0, done
        site.later()
        site.dispatch()
        _all_went_once(site, server)


def test_a_connection_that_is_refused_after_an_acceptance_is_waited_for(
    tmp_path: Path, postgres: Cluster, url: str
) -> None:
    """A password that is being changed, a fail-over half done: a person's matter, but the outcome is known and kept."""
    name = url.rpartition("/")[2]
    with SmtpServer(Rule("dot", hang=True, after=2, times=1)) as server, Site(tmp_path, url, server.port) as site:
        site.configure(lane={"concurrency": 1}, ledger={"patience": "500ms"})
        site.publish()
        site.enqueue(MAILS)
        process = site.start("dispatch", "--json")
        process.until(server, lambda: server.accepted == 3)
        with postgres.connect() as admin:
            admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
            admin.execute(f'ALTER DATABASE "{name}" RENAME TO "{name}_away"')
            server.release()
            assert process.goes_on_for(1.5), "it gave up an outcome that it knows"
            admin.execute(f'ALTER DATABASE "{name}_away" RENAME TO "{name}"')
        done = process.result()
        assert done.code == 0, done
        site.later()
        site.dispatch()
        _all_went_once(site, server)


# -- PgBouncer -------------------------------------------------------------------------------------------------------


@pytest.fixture
def bouncer(postgres: Cluster, url: str, tmp_path: Path) -> Iterator[str]:
    """The ledger's URL through PgBouncer in transaction mode, with fewer server connections than clients."""
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        pytest.skip("PgBouncer is not installed here (.ci/run installs it)")
    folder = tmp_path / "bouncer"
    folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    (folder / "users.txt").write_text('"postgres" ""\n')
    (folder / "pgbouncer.ini").write_text(
        f"[databases]\n* = host=127.0.0.1 port={postgres.port}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
        f"listen_port = {port}\nauth_type = trust\nauth_file = {folder}/users.txt\npool_mode = transaction\n"
        f"default_pool_size = 2\nmax_client_conn = 50\nlogfile = {folder}/log\nunix_socket_dir =\n"
    )
    options: dict[str, Any] = {}
    if os.geteuid() == 0:  # it refuses to run as root
        entry = pwd.getpwnam("nobody")
        folder = _lent(folder, entry)
        options = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    process = subprocess.Popen(
        [program, str(folder / "pgbouncer.ini")], cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, env=environment(), **options,
    )  # fmt: skip
    try:
        until = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                assert process.poll() is None, "PgBouncer has ended"
                assert time.monotonic() < until, "PgBouncer does not answer"
                time.sleep(0.02)
        yield url.replace(f":{postgres.port}/", f":{port}/")
    finally:
        process.kill()
        process.wait()
        if os.geteuid() == 0:
            shutil.rmtree(folder, ignore_errors=True)


def _lent(folder: Path, entry: pwd.struct_passwd) -> Path:
    """A copy that another account can reach."""
    import tempfile

    lent = Path(tempfile.mkdtemp(prefix="notifyctl-bouncer-"))
    for file in folder.iterdir():
        text = file.read_text().replace(str(folder), str(lent))
        (lent / file.name).write_text(text)
        os.chown(lent / file.name, entry.pw_uid, entry.pw_gid)
    os.chown(lent, entry.pw_uid, entry.pw_gid)
    return lent


def test_everything_works_through_pgbouncer_in_transaction_mode(
    tmp_path: Path, url: str, bouncer: str
) -> None:
    """Four dispatchers at once over two server connections, then bad news, a requeue, and an enqueue."""
    with SmtpServer(Rule("rcpt", reply="554 5.7.1 no", times=2)) as server, Site(tmp_path, url, server.port) as site:
        site.publish()
        site.configure(ledger={"url": bouncer}, lane={"concurrency": 3, "batch": 5})
        site.enqueue_rows([intent(number) for number in range(1, 41)])
        ended = [process.result() for process in [site.start("dispatch", "--json") for _ in range(4)]]
        assert {done.code for done in ended} <= {0, 3}, ended
        assert sum(done.json["accepted"] for done in ended) == 38
        assert site.states() == {"accepted": 38, "permanent_failure": 2}
        site.later()
        failed = ("--state", "permanent_failure", "--reason", "the filter was wrong", "--yes", "--json")
        done = site.run("requeue", *failed)
        assert (done.code, done.json["requeued"]) == (0, 2), done
        assert site.dispatch().json["accepted"] == 2
        assert sorted(reached(server.messages)) == list(range(1, 41))
        idle = site.run("dispatch")
        assert (idle.code, idle.out, idle.err) == (0, "", "")
        shown = site.run("inspect", "--json")
        assert shown.code == 0, shown
        assert auditor.faults(url, server.messages, at_rest=True) == []
