"""`recipient erase`: nothing of a person's is left to read, what happened stays, and nothing goes out any more."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from notifyctl import Channel, Intent, enqueue
from tests.site import DOMAIN, Site, intent, reached
from tests.smtp_server import Rule, SmtpServer
from tests.test_api import raw


def test_nothing_is_left_to_read_and_nothing_goes_out_any_more(tmp_path: Path, migrated_url: str) -> None:
    with SmtpServer() as server, Site(tmp_path, migrated_url, server.port) as site:
        site.publish()
        rows = [intent(n, recipient="ada", to={"email": f"ada@{DOMAIN}"}, vars={"name": "Countess"}) for n in (1, 2, 3)]
        site.enqueue_rows([rows[0], intent(9)])
        assert site.dispatch().json["accepted"] == 2
        site.enqueue_rows([rows[1], {**rows[2], "at": "2099-01-01T00:00:00Z"}])
        looked = site.run("recipient", "erase", "ada", "--dry-run", "--json").json
        assert (looked["addresses"], looked["emptied"], looked["withdrawn"]) == (1, 3, 2)
        done = site.run("recipient", "erase", "ada", "--reason", "a letter", "--json")
        assert (done.code, done.json) == (0, {**looked, "dry_run": False}), done
        for table in ("delivery", "endpoint", "attempt", "transition", "suppression"):
            for row in site.sql(f"SELECT * FROM notify_{table}"):
                if "r-9" not in row:
                    assert f"ada@{DOMAIN}" not in str(row)
                    assert "Countess" not in str(row)
        assert [site.delivery(n, "state, reason") for n in (1, 2, 3)] == [
            ("accepted", "no_receipt_expected"), ("suppressed", "recipient_erased"), ("suppressed", "recipient_erased"),
        ]  # fmt: skip
        assert site.delivery(9, "variables") not in ("{}", {}), "others are as they were"
        assert site.dispatch().json["claimed"] == 0
        assert sorted(reached([m for m in server.messages if "ada" not in m.recipient])) == [9]
        again = site.run("recipient", "erase", "ada", "--json").json
        assert (again["addresses"], again["emptied"], again["withdrawn"], again["left"]) == (0, 0, 0, 0)
        which = str(site.delivery(2, "id"))
        refused = site.run("requeue", which, "--reason", "x", "--json").json["refusals"][0]
        assert refused["reason"] == "content_erased"


def test_an_application_that_commits_the_same_event_after_an_erasure_is_told_of_a_duplicate(
    tmp_path: Path, migrated_url: str
) -> None:
    """It knows no digest; and what was never claimed has none to compare with either."""
    with Site(tmp_path, migrated_url) as site:
        site.publish()
        stated = Intent(
            event_id="order-1", recipient_id="ada", channel=Channel.EMAIL, template="note", variables={"name": "Ada"},
            destination=f"ada@{DOMAIN}",
        )  # fmt: skip
        with raw(migrated_url) as connection:
            assert enqueue(connection, stated).status == "enqueued"
            connection.commit()
        assert site.run("recipient", "erase", "ada").code == 0
        with raw(migrated_url) as connection:
            assert enqueue(connection, stated).status == "duplicate"
            assert enqueue(connection, replace(stated, template="other")).status == "conflict"
        row = {"event": "order-1", "recipient": "ada", "channel": "email", "template": "note",
               "to": {"email": f"ada@{DOMAIN}"}, "vars": {"name": "Ada"}}  # fmt: skip
        file = site.path / "again.ndjson"
        file.write_text(json.dumps(row) + "\n")
        again = site.run("enqueue", "--from", str(file), "--json")
        assert (again.code, again.json["duplicate"]) == (0, 1), again
        assert site.states() == {"suppressed": 1}


def test_the_same_enqueue_after_an_erasure_is_a_duplicate_and_another_a_conflict(
    tmp_path: Path, migrated_url: str
) -> None:
    with Site(tmp_path, migrated_url) as site:
        site.publish()
        row = intent(1)
        site.enqueue_rows([row])
        assert site.run("recipient", "erase", "r-1", "--json").json["withdrawn"] == 1
        words = ["enqueue", "--event", "e1", "--recipient", "r-1", "--channel", "email", "--template", "note",
                 "--to", f"email=r1@{DOMAIN}", "--json"]  # fmt: skip
        assert site.run(*words, "--var", "name=Reader 1").json["duplicate"] == 1
        assert site.run(*words, "--var", "name=another").json["conflict"] == 1


def test_what_is_being_sent_is_left_until_it_has_ended(tmp_path: Path, migrated_url: str) -> None:
    with SmtpServer(Rule("dot", hang=True)) as server, Site(tmp_path, migrated_url, server.port) as site:
        site.publish()
        site.enqueue(1)
        run = site.start("dispatch", "--json")
        run.until(server, lambda: server.accepted == 1)
        busy = site.run("recipient", "erase", "r-1", "--json")
        assert (busy.code, busy.json["left"], busy.json["emptied"]) == (75, 1, 0), busy
        server.release()
        assert run.result().json["accepted"] == 1
        assert site.run("recipient", "erase", "r-1", "--json").json["emptied"] == 1
        site.audit(server)
