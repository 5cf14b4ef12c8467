"""Rates as the other side sees them: several processes against one server that notes when each mail came."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.site import Site, intent, reached
from tests.smtp_server import SmtpServer

SECOND = 0.9  # a busy machine may let the server see an arrival late, which brings the next one nearer to it


def most(times: list[float], seconds: float) -> int:
    """The largest number of arrivals in any window of so many seconds."""
    return max(sum(at <= other < at + seconds for other in times) for at in times)


@pytest.mark.parametrize(("rate", "count"), [(5, 16), (40, 120)])
def test_three_processes_together_never_exceed_a_rate_in_any_second(
    tmp_path: Path, migrated_url: str, rate: int, count: int
) -> None:
    with SmtpServer() as server, Site(tmp_path / "site", migrated_url, server.port) as site:
        site.configure(lane={"rate": f"{rate}/s", "batch": 50})
        site.publish()
        site.enqueue(count)
        processes = [site.start("dispatch", "--json", "--max-seconds", "25") for _ in range(3)]
        ended = [one.result() for one in processes]
        assert [one.code for one in ended] == [0, 0, 0]
        times = sorted(one.at for one in server.messages)
        print("sent", len(times), "in", times[-1] - times[0], "most", most(times, 1.0))
        assert sorted(reached(server.messages)) == list(range(1, count + 1))
        assert most(times, SECOND) <= rate
        site.audit(server)


def test_a_limit_of_the_transport_counts_for_all_its_lanes(tmp_path: Path, migrated_url: str) -> None:
    with SmtpServer() as server, Site(tmp_path / "site", migrated_url, server.port) as site:
        site.settings["lanes.otp"] = {"channel": "email", "transport": "relay"}
        site.configure(relay={"rate": "10/s"}, lane={"rate": ["8/s", "12/d"]})
        site.publish()
        site.enqueue(20)
        site.enqueue(10, first=21, lane="otp")
        run = site.dispatch("--max-seconds", "20").json
        assert {name: lane["accepted"] for name, lane in run["lanes"].items()} == {"email": 12, "otp": 10}
        assert run["lanes"]["email"]["stopped"] == "pace"
        assert most([one.at for one in server.messages], SECOND) <= 10
        waiting = site.sql("SELECT count(*) FROM notify_work WHERE owner IS NULL AND step = 'send'")
        assert waiting == [(8,)]


def test_a_crowded_address_uses_up_neither_the_run_nor_the_patience_of_others(
    tmp_path: Path, migrated_url: str
) -> None:
    with SmtpServer() as server, Site(tmp_path / "site", migrated_url, server.port) as site:
        site.configure(lane={"per_destination": "2/h"})
        site.publish()
        crowd = {"email": "crowd@rcpt.example"}
        site.enqueue_rows([{**intent(n), "to": crowd} for n in range(1, 41)])
        site.enqueue(10, first=101)
        run = site.dispatch("--limit", "15").json
        assert (run["accepted"], len(server.messages)) == (12, 12)
        assert sum(one.recipient == "crowd@rcpt.example" for one in server.messages) == 2
        assert site.dispatch("--limit", "15").json["claimed"] == 0
        assert site.sql("SELECT count(DISTINCT eligible_at), count(*) FROM notify_work") == [(38, 38)]


def test_a_limit_per_destination_is_kept_up_with_within_a_run(tmp_path: Path, migrated_url: str) -> None:
    with SmtpServer() as server, Site(tmp_path / "site", migrated_url, server.port) as site:
        site.configure(lane={"per_destination": "2/s"})
        site.publish()
        site.enqueue_rows([{**intent(n), "to": {"email": "crowd@rcpt.example"}} for n in range(1, 9)])
        run = site.dispatch("--max-seconds", "20").json
        assert run["accepted"] == 8
        assert most([one.at for one in server.messages], 1.0) <= 2
        site.audit(server)
