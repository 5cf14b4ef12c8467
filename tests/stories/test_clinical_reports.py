"""Clinical reports by email: key and digest are committed, the bytes are verified, and changed ones never go out."""

from __future__ import annotations

import email.policy
import hashlib
from pathlib import Path

import pytest

from tests.site import Site, intent
from tests.smtp_server import Rule, SmtpServer

REPORT = bytes(range(256)) * 400
SHA = hashlib.sha256(REPORT).hexdigest()


@pytest.fixture
def site(tmp_path: Path, migrated_url: str) -> Site:
    made = Site(tmp_path / "site", migrated_url)
    made.settings["objects"] = {"root": "objects"}
    (made.path / "objects" / "reports").mkdir(parents=True)
    (made.path / "objects" / "reports" / "r1.pdf").write_bytes(REPORT)
    made.configure()
    made.publish()
    return made


def attached(raw: bytes) -> list[tuple[str | None, str, bytes]]:
    message = email.message_from_bytes(raw, policy=email.policy.default)
    parts = message.iter_attachments()
    return [(part.get_filename(), part.get_content_type(), part.get_payload(decode=True)) for part in parts]


def test_a_verified_report_arrives_byte_for_byte_and_a_retry_is_the_same_mail(site: Site) -> None:
    with SmtpServer(Rule("dot", reply="451 4.3.0 later", times=1)) as server, site:
        site.configure(relay={"port": server.port})
        site.enqueue_rows([intent(1, attach=[f"reports/r1.pdf={SHA};name=Befund März.pdf"])])
        assert site.dispatch().json["temporary_failure"] == 1
        site.later()
        assert site.dispatch().json["accepted"] == 1
        (message,) = server.messages
        assert site.sql("SELECT count(*), count(DISTINCT request_digest) FROM notify_attempt") == [(2, 1)]
        assert attached(message.raw) == [("Befund März.pdf", "application/pdf", REPORT)]


def test_a_digest_that_is_not_stated_is_taken_at_enqueue(site: Site) -> None:
    with SmtpServer() as server, site:
        site.configure(relay={"port": server.port})
        site.enqueue_rows([intent(1, attach="reports/r1.pdf")])
        (site.path / "objects" / "reports" / "r1.pdf").write_bytes(REPORT + b"!")
        done = site.dispatch()
        assert (done.code, done.json["permanent_failure"]) == (3, 1)
        assert site.delivery(1, "state, reason, attempts_used") == ("permanent_failure", "attachment_changed", 0)
        assert server.messages == []


def test_a_missing_report_fails_its_delivery_alone_and_is_named_nowhere(site: Site) -> None:
    with SmtpServer() as server, site:
        site.configure(relay={"port": server.port})
        site.enqueue_rows([intent(1, attach=[f"reports/secret-name.pdf={SHA}"])])
        site.enqueue(1, first=2)
        done = site.dispatch()
        assert (done.json["permanent_failure"], done.json["accepted"]) == (1, 1)
        assert site.delivery(1, "reason") == "attachment_missing"
        assert "secret-name" not in done.out + done.err


def test_reports_beyond_the_concurrency_all_go_and_few_are_in_memory_at_once(site: Site) -> None:
    with SmtpServer() as server, site:
        site.configure(relay={"port": server.port}, lane={"concurrency": 3})
        site.enqueue_rows([intent(n, attach=[f"reports/r1.pdf={SHA}"]) for n in range(1, 21)])
        site.enqueue(5, first=21)
        assert site.dispatch().json["accepted"] == 25
        assert len(server.messages) == 25
        site.audit(server)


@pytest.mark.parametrize("attach", ["../notifyctl.toml", "nowhere.pdf", ["a=1"], 7])
def test_what_cannot_be_attached_is_refused_at_enqueue(site: Site, attach: object) -> None:
    import json

    row = {"event": "e", "recipient": "r", "channel": "email", "template": "note", "vars": {"name": "x"},
           "to": {"email": "r@rcpt.example"}, "attach": attach}  # fmt: skip
    (site.path / "rows.ndjson").write_text(json.dumps(row) + "\n", encoding="utf-8")
    done = site.run("enqueue", "--from", "rows.ndjson", "--json")
    assert done.code == 65
    assert done.json["errors"][0]["field"] == "attach"
    assert site.states() == {}
