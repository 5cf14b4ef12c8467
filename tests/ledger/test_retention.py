"""Retention beside others: what somebody takes up again while it is looked at stays, whole."""

from __future__ import annotations

from pathlib import Path

from tests.ledger.databases import Database
from tests.site import DOMAIN, LONG_AGO, Site


def _ended(site: Site, count: int) -> None:
    """Deliveries that were accepted and ended long ago."""
    site.enqueue(count)
    site.sql("DELETE FROM notify_work")
    site.sql(
        "UPDATE notify_delivery SET state = 'permanent_failure', settled_at = ?, created_at = ?", LONG_AGO, LONG_AGO
    )


def test_what_is_requeued_meanwhile_is_not_removed(tmp_path: Path, migrated_url: str) -> None:
    with Site(tmp_path, migrated_url) as site, Database(migrated_url) as operator:
        site.publish()
        _ended(site, 3)
        operator.begin()
        operator.execute("UPDATE notify_delivery SET state = 'queued', settled_at = NULL WHERE event_id = 'e2'")
        operator.execute(
            "INSERT INTO notify_work (delivery_id, step, lane, region, due_at, eligible_at) "
            "SELECT id, 'send', lane, region, due_at, due_at FROM notify_delivery WHERE event_id = 'e2'"
        )
        run = site.start("prune", "--json")
        assert run.goes_on_for(1.0), "it did not wait for the row"
        operator.execute("COMMIT")
        done = run.result()
        assert (done.code, done.json["pruned"]) == (0, 2), done
        assert site.numbers("1 = 1") == {2}
        assert site.sql("SELECT count(*) FROM notify_transition") == [(1,)], "its trail is whole"
        assert site.sql("SELECT count(*) FROM notify_key") == [(3,)]


def test_two_at_once_remove_everything_once(tmp_path: Path, migrated_url: str) -> None:
    with Site(tmp_path, migrated_url) as site:
        site.publish()
        _ended(site, 1300)
        runs = [site.start("prune", "--yes", "--json") for _ in range(2)]
        ends = [run.result() for run in runs]
        assert [done.code for done in ends] == [0, 0], ends
        assert sum(done.json["pruned"] for done in ends) == 1300
        assert site.sql("SELECT count(*) FROM notify_transition") == [(0,)]


def test_what_was_pruned_is_a_duplicate_for_an_application_too(tmp_path: Path, migrated_url: str) -> None:
    with Site(tmp_path, migrated_url) as site:
        site.publish()
        _ended(site, 1)
        assert site.run("prune", "--json").json["pruned"] == 1
        with Database(migrated_url) as application:
            application.intend("e1", recipient_id="r-1", template="note", destination=f"r1@{DOMAIN}")
        assert site.sql("SELECT count(*) FROM notify_delivery") == [(0,)]
