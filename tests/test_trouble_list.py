"""Further trouble from the outside, each with its message, its exit code, and nothing lost: secrets, NUL bytes, address
lists, long replies, templates that are gone.

Where the rest of the list is: rows of 10 MB and undecodable ones `test_trouble_input`; closed and full stdout, locks,
signals, bare PATH and no locale `test_trouble` and `cli/test_basics`; full disks `faults/test_sqlite`; servers
`test_trouble_server` and `transports/test_smtp_phases`; what only plain SQL can store `test_poisoned_rows`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.ledger.databases import Database
from tests.site import DOMAIN, Site, intent, reached
from tests.smtp_server import Rule, SmtpServer

LISTS = [
    f"a@{DOMAIN}, b@{DOMAIN}",
    f"a@{DOMAIN};b@{DOMAIN}",
    f"a@{DOMAIN} b@{DOMAIN}",
    f"Ann <a@{DOMAIN}>, Bob <b@{DOMAIN}>",
    f"Friends: a@{DOMAIN}, b@{DOMAIN};",
    f"a@{DOMAIN}\nb@{DOMAIN}",
    f"<a@{DOMAIN}><b@{DOMAIN}>",
    f"a@{DOMAIN},",
]


# -- secrets ---------------------------------------------------------------------------------------------------------


def test_a_secret_file_that_is_missing_is_named_and_nothing_is_sent_or_charged(
    tmp_path: Path, migrated_url: str
) -> None:
    with SmtpServer(users={"shop": "right"}) as server, Site(tmp_path, migrated_url, server.port) as site:
        site.configure(relay={"username": "shop", "password_file": "secret/password"})
        site.publish()
        site.enqueue(3)
        done = site.run("dispatch")
        assert done.code == 78, done
        assert done.out == ""
        assert "transports.relay.password_file" in done.err
        assert str(tmp_path / "secret" / "password") in done.err
        assert len(done.err.splitlines()) <= 3, done.err
        assert server.connections == []
        assert site.sql("SELECT count(*) FROM notify_delivery WHERE attempts_used = 0 AND state = 'queued'") == [(3,)]
        (tmp_path / "secret").mkdir()
        (tmp_path / "secret" / "password").write_text("right\n")
        (tmp_path / "secret" / "password").chmod(0o600)
        assert site.dispatch().json["accepted"] == 3
        site.audit(server)


def test_a_secret_file_that_everybody_can_read_is_warned_of_and_works(tmp_path: Path, migrated_url: str) -> None:
    with SmtpServer(users={"shop": "right"}) as server, Site(tmp_path, migrated_url, server.port) as site:
        secret = tmp_path / "password"
        secret.write_text("right\n")
        secret.chmod(0o644)
        site.configure(relay={"username": "shop", "password_file": "password"})
        site.publish()
        site.enqueue(3)
        done = site.run("dispatch")
        assert (done.code, done.out) == (0, "")
        assert f"chmod o-r {secret}" in done.err
        assert "right" not in done.err
        assert len(done.err.splitlines()) == 1, done.err
        assert site.states() == {"accepted": 3}
        secret.chmod(0o600)
        site.enqueue(1, first=4)
        quiet = site.run("dispatch")
        assert (quiet.code, quiet.out, quiet.err) == (0, "", "")
        site.audit(server)


# -- NUL bytes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [{"event": "e\0 1"}, {"recipient": "r\0"}, {"template": "no\0te"}, {"to": {"email": f"a\0@{DOMAIN}"}},
     {"vars": {"name": "A\0"}}, {"vars": {"na\0me": "A", "name": "A"}}, {"topic": "n\0ews"}, {"locale": "d\0e"},
     {"lane": "e\0mail"}, {"attach": [{"key": "a\0b", "sha256": "0" * 64}]}],
)  # fmt: skip
def test_a_nul_byte_anywhere_rejects_its_row_alone(change: dict[str, Any], tmp_path: Path, migrated_url: str) -> None:
    with Site(tmp_path, migrated_url) as site:
        site.publish()
        file = tmp_path / "rows.ndjson"
        rows = [intent(1), intent(2, **change), intent(3)]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        done = site.run("enqueue", "--from", str(file), "--json")
        assert done.code == 65, done
        assert (done.json["enqueued"], done.json["rejected"]) == (2, 1), done.json
        assert [error["row"] for error in done.json["errors"]] == [2]
        assert "\0" not in done.out + done.err
        assert site.numbers("1 = 1") == {1, 3}


def test_a_nul_byte_in_a_csv_rejects_its_row_alone(tmp_path: Path, migrated_url: str) -> None:
    with Site(tmp_path, migrated_url) as site:
        site.publish()
        file = tmp_path / "rows.csv"
        cells = (f"e{n},r-{n},email,note,r{n}@{DOMAIN},{name}" for n, name in ((1, "Ann"), (2, "A\0n"), (3, "Ann")))
        file.write_text("event,recipient,channel,template,to.email,vars.name\n" + "\n".join(cells) + "\n")
        done = site.run("enqueue", "--from", str(file), "--json")
        assert done.code == 65, done
        assert [error["row"] for error in done.json["errors"]] == [2]
        assert site.numbers("1 = 1") == {1, 3}


# -- several addresses where one belongs -----------------------------------------------------------------------------


def test_a_list_of_addresses_is_refused_by_every_way_in(tmp_path: Path, migrated_url: str) -> None:
    with Site(tmp_path, migrated_url) as site:
        site.publish()
        file = tmp_path / "rows.ndjson"
        rows = [intent(number, to={"email": text}) for number, text in enumerate(LISTS, 1)]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        done = site.run("enqueue", "--from", str(file), "--json")
        assert (done.code, done.json["enqueued"], done.json["rejected"]) == (65, 0, len(LISTS)), done
        assert {(error["reason"], error["field"]) for error in done.json["errors"]} == {("destination_invalid", "to")}
        for text in LISTS:
            one = site.run("enqueue", "--event", "e1", "--recipient", "r-1", "--channel", "email", "--template", "note",
                           "--var", "name=Ann", "--to", f"email={text}")  # fmt: skip
            assert one.code == 65, one
            assert len(one.err.splitlines()) <= 3
            kept = site.run("recipient", "set", "r-1", "--email", text)
            assert kept.code in (2, 65), kept
        assert site.states() == {}
        assert site.sql("SELECT count(*) FROM notify_endpoint") == [(0,)]


def test_a_list_of_addresses_that_plain_sql_stored_reaches_nobody(tmp_path: Path, migrated_url: str) -> None:
    with SmtpServer() as server, Site(tmp_path, migrated_url, server.port) as site:
        site.publish()
        with Database(site.url) as database:
            for number, text in enumerate(LISTS, 1):
                database.insert("notify_delivery", event_id=f"e{number}", recipient_id=f"r-{number}", channel="email",
                                template="note", variables='{"name": "Ann"}', destination=text)  # fmt: skip
        site.enqueue(1, first=100)
        done = site.run("dispatch")
        assert done.code == 3, done
        assert f"destination_invalid ({len(LISTS)})" in done.err
        assert reached(server.messages) == [100]
        site.audit(server)


# -- what servers say ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "state"), [("550 5.7.1", "permanent_failure"), ("450 4.7.1", "temporary_failure")])
@pytest.mark.parametrize("phase", ["rcpt", "dot"])
def test_a_reply_of_four_kilobytes_leaves_a_code_and_none_of_its_words(
    phase: str, code: str, state: str, tmp_path: Path, migrated_url: str
) -> None:
    said = f"the mailbox r1@{DOMAIN} of Canary Wharf said no; "
    number, words = code[:3], said * 90
    reply = f"{number}-{words[:450]}\r\n" * 8 + f"{code} {words[:400]}"
    assert len(reply) > 4000
    with SmtpServer(Rule(phase, reply=reply, times=1)) as server, Site(tmp_path, migrated_url, server.port) as site:
        site.configure(lane={"concurrency": 1})
        site.publish()
        site.enqueue(2)
        done = site.run("dispatch", "--verbose")
        assert done.code in (0, 3), done
        assert site.states() == {state: 1, "accepted": 1}
        ((outcome, kept),) = site.sql("SELECT outcome, code FROM notify_attempt WHERE outcome <> 'accepted'")
        assert outcome == state
        assert kept.startswith(number)
        assert len(kept) < 40
        for columns in ("reason, code, remote_id FROM notify_attempt", "reason, note FROM notify_transition"):
            assert all("Canary" not in repr(row) for row in site.sql(f"SELECT {columns}"))
        assert "Canary" not in done.out + done.err
        site.audit(server)


# -- templates -------------------------------------------------------------------------------------------------------


def test_a_row_of_a_template_that_no_longer_exists_waits_for_it_and_holds_up_nobody(
    tmp_path: Path, migrated_url: str
) -> None:
    with SmtpServer() as server, Site(tmp_path, migrated_url, server.port) as site:
        site.publish("1")
        site.enqueue(2)
        with Database(site.url) as database:  # pinned to version 1, which then disappears
            for number in (3, 4):
                database.insert("notify_delivery", event_id=f"e{number}", recipient_id=f"r-{number}", channel="email",
                                template="gone", template_version="7", variables="{}",
                                destination=f"r{number}@{DOMAIN}")  # fmt: skip
        site.publish("2", body="Other words for {{ name }}\n")
        site.sql("DELETE FROM notify_template WHERE version = '1'")
        site.enqueue(1, first=5)
        done = site.run("dispatch")
        assert done.code == 3, done
        assert "template_unknown (4)" in done.err
        assert len(done.err.splitlines()) == 1
        assert reached(server.messages) == [5]
        waiting = "SELECT state, reason, attempts_used FROM notify_delivery WHERE event_id <> 'e5'"
        assert site.sql(waiting) == [("queued", "template_unknown", 0)] * 4
        assert site.run("template", "publish").code == 0  # it is back
        site.later()
        assert site.dispatch().json["accepted"] == 2
        assert sorted(reached(server.messages)) == [1, 2, 5]
        site.audit(server)
