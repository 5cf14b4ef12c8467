"""Exchanges on kept sessions are advanced by the main thread: none of them holds up another, none is lost."""

from __future__ import annotations

import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.site import Site, reached
from tests.smtp_server import Connection, Rule, SmtpServer

CONCURRENCY = 6


def urgent(site: Site) -> None:
    """A second lane on the same relay, with every tenth delivery."""
    site.settings["lanes.otp"] = {"channel": "email", "transport": "relay", "concurrency": 2}
    site.configure()
    for table in ("notify_delivery", "notify_work"):
        column = "id" if table == "notify_delivery" else "delivery_id"
        site.sql(
            f"UPDATE {table} SET lane = 'otp' WHERE {column} IN "
            "(SELECT id FROM notify_delivery WHERE event_id LIKE 'e%0')"
        )


def test_kept_sessions_that_hang_hold_up_nobody_else(tmp_path: Path, migrated_url: str) -> None:
    def warm(connection: Connection) -> bool:
        """The lane's own mails beyond the first of each session."""
        return "dot" in connection.phases[:-1] and not connection.recipient.partition("@")[0].endswith("0")

    with (
        SmtpServer(Rule("dot", hang=True, when=warm)) as server,
        Site(tmp_path / "site", migrated_url, server.port) as site,
    ):
        site.configure(relay={"deadline": "2s"}, lane={"concurrency": CONCURRENCY})
        site.publish()
        site.enqueue(20)
        urgent(site)
        running = site.start("dispatch", "--json")
        server.wait(lambda: {10, 20} <= set(reached(server.messages)))
        done = running.result().json
        assert done["ambiguous"] > 0
        assert done["accepted"] + done["ambiguous"] == 20, done
        assert max(Counter(reached(server.messages)).values()) == 1
        assert site.sql("SELECT count(*) FROM notify_attempt") == [(20,)]
        doubt = site.sql("SELECT DISTINCT reason FROM notify_attempt WHERE outcome = 'ambiguous'")
        assert doubt == [("deadline",)]
        server.release()
        site.audit(server)


def test_exchanges_that_wait_for_one_another_are_all_under_way_long_before_their_deadline(
    tmp_path: Path, migrated_url: str
) -> None:
    """The server answers none of them before all have come."""
    with (
        SmtpServer(Rule("dot", hang=True, after=1)) as server,
        Site(tmp_path / "site", migrated_url, server.port) as site,
    ):
        site.configure(relay={"deadline": "2s"}, lane={"concurrency": CONCURRENCY})
        site.publish()
        site.enqueue(1 + CONCURRENCY)
        running = site.start("dispatch", "--json")
        server.wait_until("dot", 1 + CONCURRENCY)
        server.release()
        done = running.result().json
        assert (done["accepted"], done["ambiguous"]) == (1 + CONCURRENCY, 0)


def test_a_slow_relay_gets_as_many_sessions_as_the_lane_may_use_and_a_quick_one_few(
    tmp_path: Path, migrated_url: str
) -> None:
    with SmtpServer() as server, Site(tmp_path / "site", migrated_url, server.port) as site:
        site.configure(lane={"concurrency": CONCURRENCY})
        site.publish()
        site.enqueue(30)
        assert site.dispatch().json["accepted"] == 30
        quick = len(server.connections)
        server.rule("dot", delay=0.1)
        site.enqueue(30, 31)
        assert site.dispatch().json["accepted"] == 30
        assert len(server.connections) - quick == CONCURRENCY
        assert Counter(reached(server.messages)) == Counter(range(1, 61))


@pytest.mark.parametrize(
    "how", [{"close": True}, {"reset": True}, {"reply": "421 4.4.2 idle for too long", "close": True}]
)
def test_kept_sessions_that_die_between_two_mails_are_replaced_and_nobody_fails(
    tmp_path: Path, migrated_url: str, how: dict[str, object]
) -> None:
    def tired(connection: Connection) -> bool:
        return connection.phases.count("dot") >= 3

    with (
        SmtpServer(Rule("mail", when=tired, **how)) as server,  # type: ignore[arg-type]
        Site(tmp_path / "site", migrated_url, server.port) as site,
    ):
        site.configure(lane={"concurrency": CONCURRENCY})
        site.publish()
        site.enqueue(40)
        done = site.dispatch().json
        assert (done["accepted"], done["ambiguous"], done["temporary_failure"]) == (40, 0, 0)
        assert Counter(reached(server.messages)) == Counter(range(1, 41))
        assert len(server.connections) >= 40 // 3
        assert site.sql("SELECT max(number) FROM notify_attempt") == [(1,)]


def test_a_signal_that_comes_while_sockets_are_waited_for_ends_the_run_once_they_are_done(
    tmp_path: Path, migrated_url: str
) -> None:
    with (
        SmtpServer(Rule("dot", hang=True, after=1)) as server,
        Site(tmp_path / "site", migrated_url, server.port) as site,
    ):
        site.configure(lane={"concurrency": 1, "batch": 4})
        site.publish()
        site.enqueue(4)
        running = site.start("dispatch", "--json")
        server.wait_until("dot", 2)
        running.signal(signal.SIGTERM)
        assert running.goes_on_for(0.3)  # it waits for what it has begun
        server.release()
        done = running.result().json
        assert (done["accepted"], done["released"]) == (2, 2)
        site.audit(server)


BUG = """
import sys
from notifyctl.cli import main
from notifyctl.transports import smtp

sound = smtp.transact

def unsound(session, request, *, kept):
    if kept and request.envelope[1].startswith("r7@"):
        yield from session.writing(b"NOOP\\r\\n")
        raise KeyError(request.envelope[1])
    return (yield from sound(session, request, kept=kept))

smtp.transact = unsound
del sys.argv[:3]
sys.exit(main())
"""


def test_a_bug_in_one_conversation_is_doubt_about_one_delivery(tmp_path: Path, migrated_url: str) -> None:
    with SmtpServer() as server, Site(tmp_path / "site", migrated_url, server.port) as site:
        site.configure(lane={"concurrency": 1})
        site.publish()
        site.enqueue(12)
        done = site.dispatch(wrapper=[sys.executable, "-c", BUG])
        assert (done.code, done.json["accepted"], done.json["ambiguous"]) == (1, 11, 1), done
        assert site.sql("SELECT reason FROM notify_attempt WHERE outcome = 'ambiguous'") == [
            ("transport_failed:KeyError",)
        ]
        assert sorted(reached(server.messages)) == [n for n in range(1, 13) if n != 7]
