"""What `enqueue` and `dispatch` really send, as an SMTP server received it and other people's programs read it.

Every mail here is signed with both algorithms, so that composing, signing and sending are judged together.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import idna
import pytest

from tests import judges
from tests.compose import keys, write_cases
from tests.compose.test_foreign_parsers import CASES, INJECTIONS, OURS
from tests.site import Done, Site, intent
from tests.smtp_server import EXTENSIONS, Received, Rule, SmtpServer

pytestmark = pytest.mark.parametrize("dialect", ["sqlite"])  # what is sent does not depend on the ledger's database

SIGNED = {*OURS, "dkim-signature"}
DOMAIN = "shop.example"
LINK = "https://shop.example/u/" + "a" * 300 + "?r={recipient}"


def site_with_keys(path: Path, url: str, port: int) -> Site:
    site = Site(path / "site", url, port)
    site.settings["topics.digest"] = {"list_unsubscribe": LINK}
    site.configure(relay={"dkim": [keys.table(site.path, one, DOMAIN) for one in ("rsa", "ed25519")]})
    site.publish(subject="{{ subject }}", body="{{ body }}\n", html="<p>{{ body }}</p>\n")
    return site


def row(number: int, *, subject: str = "Hello", body: str = "Hi", **more: Any) -> dict[str, Any]:
    return intent(number, **{"vars": {"subject": subject, "body": body}, **more})


def enqueued(site: Site, rows: list[dict[str, Any]]) -> Done:
    (site.path / "rows.ndjson").write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")
    return site.run("enqueue", "--from", "rows.ndjson", "--json")


def by_number(site: Site, messages: list[Received]) -> dict[str, bytes]:
    """`e1` … → the mail that was received for it."""
    events = {remote: event for event, remote in site.sql("SELECT event_id, remote_id FROM notify_delivery")}
    return {events[message.message_id]: message.raw for message in messages}


def signatures_hold(site: Site, folder: Path) -> None:
    tables = site.settings["transports.relay"]["dkim"]
    records = keys.records([keys.made(site.path, tables)])
    for verify in (judges.mailauth, judges.msgauth):
        assert set(map(tuple, verify(folder, records).values())) == {(True, True)}, verify.__name__
    assert set(map(tuple, judges.mail_dkim(folder, records).values())) == {(True, None)}
    assert set(map(tuple, judges.opendkim(folder, records).values())) == {(True,)}


def as_stored(boxes: list[list[str]]) -> list[list[str]]:
    """Domains as A-labels: some readers show them as U-labels."""
    parted = [(name, *address.rpartition("@")[::2]) for name, address in boxes]
    return [[name, f"{local}@{idna.encode(domain, uts46=True).decode()}"] for name, local, domain in parted]


def material(path: Path) -> Any:
    if not path.exists():
        pytest.skip(f"the test material {path.parent.name}/{path.name} is not beside this checkout")
    return json.loads(path.read_text(encoding="utf-8"))


def test_every_case_that_templates_can_express_is_read_as_it_was_meant(tmp_path: Path, migrated_url: str) -> None:
    rows: list[dict[str, Any]] = []
    meant: dict[str, dict[str, Any]] = {}
    refused: set[int] = set()
    for case in material(CASES):
        want, given = case["want"], write_cases.BY_NAME.get(case["name"], {})
        number = len(rows) + 1
        if "subject" in want or "subject" in given:
            subject = given.get("subject", want.get("subject"))
            rows.append(row(number, subject=subject))
            meant[f"e{number}"] = {"subject": subject.strip()}  # a template's subject is trimmed
            if re.search("[\n\r\v\f\x1c\u2028]", subject):
                refused.add(number)
        elif "body" in want or "text" in given:
            body = given.get("text", want.get("body"))
            rows.append(row(number, body=body))
            meant[f"e{number}"] = {"text": re.sub("\r\n?", "\n", body) + "\n"}
            if want.get("raises"):
                refused.add(number)
        for name, address in want.get("to", ()):
            number = len(rows) + 1
            quoted = name.replace("\\", "\\\\").replace('"', '\\"')
            rows.append(row(number, to={"email": f'"{quoted}" <{address}>'}))
            meant[f"e{number}"] = {"to": as_stored([[name, address]])}
            if address.startswith('"'):  # quoted local parts are not taken in
                refused.add(number)
    assert len(rows) >= 50
    rows.append(row(len(rows) + 1, topic="digest"))
    meant[f"e{len(rows)}"] = {"list-unsubscribe": f"<{LINK.replace('{recipient}', f'r-{len(rows)}')}>"}
    with SmtpServer() as server, site_with_keys(tmp_path, migrated_url, server.port) as site:
        done = enqueued(site, rows)
        assert {error["row"] for error in done.json["errors"]} == refused, done.json
        assert site.dispatch().json["accepted"] == len(rows) - len(refused)
        mails = by_number(site, server.messages)
    folder = keys.save(tmp_path / "received", mails)
    signatures_hold(site, folder)
    for parse in judges.PARSERS:
        shown = parse(folder)
        for event in mails:
            one, want = shown[f"{event}.eml"], meant[event]
            got = {
                "subject": one["subject"], "text": one["text"].replace("\r\n", "\n"), "to": as_stored(one["to"]),
                "list-unsubscribe": one["headers"].get("list-unsubscribe"),
            }  # fmt: skip
            assert {what: got[what] for what in want} == want, (parse.__name__, event)
            assert one["others"] == []
            assert Counter(one["names"])["to"] == Counter(one["names"])["from"] == 1


def test_no_injection_gets_a_header_or_a_recipient_past_enqueue_and_dispatch(
    tmp_path: Path, migrated_url: str
) -> None:
    rows = []
    for number, case in enumerate(material(INJECTIONS), 1):
        value = case["value"]
        rows.append(
            row(number, subject=value, body=value) if case["field"] == "subject"
            else row(number, to={"email": f'"{value}" <jane@example.net>'}) if case["field"] == "to_name"
            else row(number, to={"email": value}) if case["field"] in ("to", "from", "reply_to")
            else row(number, recipient=value, topic="digest", body=value)
        )  # fmt: skip
    with SmtpServer() as server, site_with_keys(tmp_path, migrated_url, server.port) as site:
        done = enqueued(site, rows)
        assert done.json["enqueued"] + done.json["rejected"] == len(rows)
        assert 0 < done.json["enqueued"] < len(rows)
        site.dispatch()
        assert len(server.messages) == done.json["enqueued"]
        mails = by_number(site, server.messages)
        stored = dict(site.sql("SELECT event_id, destination FROM notify_delivery"))
    assert len({message.message_id for message in server.messages}) == len(server.messages)
    assert all(len(message.recipients) == 1 for message in server.messages)
    folder = keys.save(tmp_path / "received", mails)
    signatures_hold(site, folder)
    for parse in judges.PARSERS:
        for event, one in ((name.removesuffix(".eml"), one) for name, one in parse(folder).items()):
            assert set(one["names"]) <= {*SIGNED, "list-unsubscribe", "list-unsubscribe-post"}, event
            assert {name for name, count in Counter(one["names"]).items() if count > 1} <= {"dkim-signature"}, event
            assert (len(one["from"]), len(one["to"]), one["others"]) == (1, 1, []), event
            address = stored[event].removesuffix(">").rpartition("<")[2]
            assert as_stored(one["to"])[0][1] == address, event


def test_a_second_attempt_in_a_new_process_sends_the_same_bytes(tmp_path: Path, migrated_url: str) -> None:
    busy = Rule("dot", reply="451 4.3.0 try later", accept=True, times=3)
    with SmtpServer(busy) as server, site_with_keys(tmp_path, migrated_url, server.port) as site:
        assert enqueued(site, [row(n, subject="Grüße", body="ü" * 2000) for n in (1, 2, 3)]).code == 0
        assert site.dispatch().json["temporary_failure"] == 3
        site.later()
        assert site.dispatch().json["accepted"] == 3
        first, second = server.messages[:3], server.messages[3:]
        assert {one.message_id: one.raw for one in first} == {one.message_id: one.raw for one in second}
        mails = by_number(site, second)
    signatures_hold(site, keys.save(tmp_path / "received", mails))


def test_an_address_that_needs_smtputf8_fails_for_good_where_the_relay_lacks_it(
    tmp_path: Path, migrated_url: str
) -> None:
    plain = [one for one in EXTENSIONS if one != "SMTPUTF8"]
    with SmtpServer(extensions=plain) as server, site_with_keys(tmp_path, migrated_url, server.port) as site:
        assert enqueued(site, [row(1, to={"email": "jürgen@bücher.example"})]).code == 0
        site.dispatch()
        assert site.delivery(1) == "permanent_failure"
        assert server.messages == []


def test_a_key_that_cannot_be_read_stops_dispatch_before_anything_is_claimed(
    tmp_path: Path, migrated_url: str
) -> None:
    with SmtpServer() as server, site_with_keys(tmp_path, migrated_url, server.port) as site:
        assert enqueued(site, [row(1)]).code == 0
        (site.path / "rsa.pem").unlink()
        done = site.dispatch()
        assert done.code == 78
        assert "transports.relay.dkim[1].key_file" in done.err
        assert (site.delivery(1), server.messages) == ("queued", [])
