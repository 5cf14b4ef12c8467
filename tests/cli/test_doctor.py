"""`notifyctl doctor` as it is run, against real servers on loopback: what is wrong, its exit code, and its silence."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from notifyctl.transports import capabilities
from tests import docs
from tests.certificates import certificate
from tests.cli.rig import CONFIG, Folder
from tests.compose import keys
from tests.ledger.databases import Database
from tests.name_server import NameServer
from tests.smtp_server import Rule, SmtpServer
from tests.test_json_contract import hold
from tests.transports.servers import KEY, Provider, Server
from tests.transports.servers.postmark import Postmark
from tests.transports.servers.telnyx import Telnyx
from tests.transports.servers.twilio import Twilio

HEAD = 'instance = "test"\n[ledger]\nurl = "{url}"\npatience = "2s"\n'
LANE = '[lanes.email]\nchannel = "email"\ntransport = "relay"\n'
SECRET = "0pen-sesame"
ADDRESS = "ada@rcpt.example"


OUT = CONFIG.partition("[lanes.sms]")[0]  # its sender is none for SMS, as doctor would say


def relay(port: int, *lines: str) -> str:
    """An SMTP transport named `relay`, and its lane."""
    own = "\n".join(
        (f'kind = "smtp"\nhost = "127.0.0.1"\nport = {port}\nfrom = "Shop <no-reply@{keys.DOMAIN}>"', *lines)
    )
    return f"[transports.relay]\n{own}\n{LANE}"


def plain(folder: Path, url: str = "sqlite:///ledger.db") -> Folder:
    """Mails into a folder, nothing else."""
    made = Folder(folder, url)
    made.configure(OUT.replace("sqlite:///ledger.db", url))
    return made


def ready(folder: Folder, text: str, url: str = "sqlite:///ledger.db") -> Folder:
    """Configured with `text`, the ledger made, nobody else may read the file."""
    folder.configure(HEAD.format(url=url) + text)
    folder.config.chmod(0o600)
    if url == "sqlite:///ledger.db":
        assert folder.run("migrate").returncode == 0
    return folder


def examined(folder: Folder, *arguments: str, code: int = 0) -> dict[str, Any]:
    """The document of `doctor`, which exits with `code` and gives nothing away."""
    done = folder.run("doctor", "--json", *arguments)
    assert done.returncode == code, done.stdout + done.stderr
    assert [canary for canary in (SECRET, KEY, "rcpt.example") if canary in done.stdout + done.stderr] == []
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["healthy"] == (not wrong(document))
    return document


def wrong(document: dict[str, Any]) -> list[tuple[str, str]]:
    """(what, name) of the findings; each says what to do."""
    findings = [check for check in document["checks"] if not check["ok"]]
    assert all(check["detail"] for check in findings)
    return [(check["what"], check["name"]) for check in findings]


def check(document: dict[str, Any], what: str, name: str = "") -> dict[str, Any]:
    """The only check of this kind, a finding before the others."""
    found = [one for one in document["checks"] if one["what"] == what and name in one["name"]]
    found = [one for one in found if not one["ok"]] or found
    assert len(found) == 1, found
    return dict(found[0])


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def everything(path: Path) -> dict[str, Any]:
    """All files below a folder and what they hold, the database's own upkeep left out."""
    return {str(one): one.read_bytes() if one.is_file() else None for one in sorted(path.rglob("*"))
            if not one.name.endswith(("-wal", "-shm"))}  # fmt: skip


# -- the ledger and its clock -----------------------------------------------------------------------------------------


def test_a_new_installation_is_healthy_on_both_databases_and_nothing_is_written(
    tmp_path: Path, migrated_url: str
) -> None:
    folder = plain(tmp_path, migrated_url)
    before = everything(tmp_path)
    document = examined(folder)
    assert {one["what"] for one in document["checks"]} == {
        "config", "ledger", "clock", "transport", "lane", "template",
    }  # fmt: skip
    assert everything(tmp_path) == before
    with Database(migrated_url) as ledger:
        assert ledger.one("SELECT count(*) FROM notify_run") == 0
    done = folder.run("doctor")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("\nall is well\n")


def test_another_instances_ledger_is_a_finding_and_the_rest_is_still_looked_at(
    tmp_path: Path, migrated_url: str
) -> None:
    folder = plain(tmp_path, migrated_url)
    folder.configure(folder.config.read_text().replace('"test"', '"staging"', 1))
    document = examined(folder, code=78)
    assert wrong(document) == [("ledger", "instance")]
    assert "--adopt-instance" in check(document, "ledger", "instance")["hint"]
    assert document["transports"][0]["ok"]


def test_a_ledger_that_a_newer_tool_has_claimed_is_told(tmp_path: Path, migrated_url: str) -> None:
    with Database(migrated_url) as ledger:
        ledger.execute("UPDATE notify_schema SET min_reader = 99")
    document = examined(plain(tmp_path, migrated_url), code=78)
    assert wrong(document) == [("ledger", "version")]
    assert "99" in check(document, "ledger", "version")["detail"]


def test_a_ledger_that_is_not_there_yet_is_told(tmp_path: Path) -> None:
    document = examined(plain(tmp_path), code=78)
    assert wrong(document) == [("ledger", "connection")]
    assert "notifyctl migrate" in check(document, "ledger")["hint"]


def test_a_database_that_cannot_be_reached_is_for_later(tmp_path: Path) -> None:
    url = f"postgresql://nobody:{SECRET}@127.0.0.1:{unused_port()}/ledger"
    document = examined(ready(Folder(tmp_path), relay(unused_port()), url), code=75)
    assert wrong(document) == [("ledger", "connection"), ("transport", "relay")]


def test_a_clock_behind_the_ledgers_last_write_is_told(tmp_path: Path) -> None:
    folder = plain(tmp_path)
    assert folder.run("migrate").returncode == 0
    for mark, offset, code in (("2999-01-01 00:00:00.000000", "0", 75), ("", "7.5", 3)):
        with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as ledger:
            ledger.execute("UPDATE notify_meta SET value = ? WHERE key = 'clock_mark'", (mark,))
            ledger.execute("UPDATE notify_meta SET value = ? WHERE key = 'clock_offset'", (offset,))
        assert wrong(examined(folder, code=code)) == [("clock", "ledger")]


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    folder = plain(tmp_path)
    assert folder.run("migrate").returncode == 0
    with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as ledger:
        ledger.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (root,) = ledger.execute("SELECT rootpage FROM sqlite_master WHERE name = 'notify_attempt'").fetchone()
        (size,) = ledger.execute("PRAGMA page_size").fetchone()
    with (tmp_path / "ledger.db").open("r+b") as file:
        file.seek((root - 1) * size)
        file.write(b"\xff" * size)
    assert wrong(examined(folder, code=78))[0][0] == "ledger"


def test_a_configuration_that_does_not_load_is_a_finding_in_the_document(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.configure('instance = "test"\nledgr = 1\n')
    document = examined(folder, code=78)
    assert [one["what"] for one in document["checks"]] == ["config"]
    assert "ledgr" in check(document, "config")["detail"]
    done = folder.run("doctor")
    assert (done.returncode, done.stdout) == (78, "")
    assert "ledgr" in done.stderr


def test_a_secret_that_others_can_read_is_a_warning(tmp_path: Path) -> None:
    with SmtpServer(users={"shop": SECRET}) as server:
        folder = ready(Folder(tmp_path), relay(server.port, 'username = "shop"', f'password = "{SECRET}"'))
        folder.config.chmod(0o644)
        assert wrong(examined(folder, code=3)) == [("config", "notifyctl.toml")]


# -- transports -------------------------------------------------------------------------------------------------------


def test_a_wrong_login_is_told_and_nothing_is_sent(tmp_path: Path) -> None:
    with SmtpServer(users={"shop": "another"}) as server:
        login = ('username = "shop"', f'password = "{SECRET}"')
        document = examined(ready(Folder(tmp_path), relay(server.port, *login)), code=78)
        assert wrong(document) == [("transport", "relay")]
        assert "535 5.7.8" in check(document, "transport")["detail"]
        assert "password" in check(document, "transport")["hint"]
        assert (server.login_attempts, server.accepted) == (1, 0)


def test_an_expired_certificate_is_told(tmp_path: Path) -> None:
    trusted, context = certificate(tmp_path, "127.0.0.1", days=-1)
    with SmtpServer(context=context) as server:
        tls = ('tls = "starttls"', f'ca_file = "{trusted.name}"')
        document = examined(ready(Folder(tmp_path), relay(server.port, *tls)), code=78)
    assert wrong(document) == [("transport", "relay")]
    assert document["transports"][0]["reason"] == "certificate_invalid"
    assert "ca_file" in check(document, "transport")["hint"]


def test_a_secret_that_is_not_there_is_told_and_the_other_transport_is_asked(tmp_path: Path) -> None:
    with SmtpServer() as server:
        other = '[transports.out]\nkind = "file"\npath = "outbox"\nfrom = "a@example.com"\n'
        text = relay(server.port, 'username = "shop"', 'password_file = "nowhere"') + other
        document = examined(ready(Folder(tmp_path), text), code=78)
    assert wrong(document) == [("transport", "relay")]
    assert "password_file" in check(document, "transport", "relay")["detail"]
    assert [one["ok"] for one in document["transports"]] == [False, True]


def test_one_out_of_reach_is_for_later_and_a_wrong_one_beside_it_outweighs_it(tmp_path: Path) -> None:
    away = relay(unused_port())
    assert wrong(examined(ready(Folder(tmp_path), away), code=75)) == [("transport", "relay")]
    with SmtpServer(users={"shop": "another"}) as server:
        login = f'kind = "smtp"\nhost = "127.0.0.1"\nport = {server.port}\nusername = "shop"\npassword = "{SECRET}"\n'
        text = f"{away}[transports.second]\n{login}"
        document = examined(ready(Folder(tmp_path), text), code=78)
        assert wrong(document) == [("transport", "relay"), ("transport", "second")]
        assert wrong(examined(ready(Folder(tmp_path), text), "--transport", "relay", code=75)) == [
            ("transport", "relay")
        ]


def test_a_server_that_hangs_is_left_after_its_deadline_and_holds_up_no_other(tmp_path: Path) -> None:
    with SmtpServer(Rule("banner", hang=True)) as server, SmtpServer(Rule("banner", hang=True)) as other:
        text = relay(server.port, 'deadline = "1s"') + relay(other.port, 'deadline = "1s"').replace(
            "relay", "second", 1
        )
        text = text.replace(LANE, "", 1)
        document = examined(
            ready(Folder(tmp_path), text + "[lanes.x]\nchannel = 'email'\ntransport = 'second'\n"), code=75
        )
        assert {("transport", "relay"), ("transport", "second")} <= set(wrong(document))
        server.wait_until("banner")
        other.wait_until("banner")


def test_a_sender_that_is_no_address_is_told(tmp_path: Path) -> None:
    with SmtpServer() as server:
        text = relay(server.port).replace(f"Shop <no-reply@{keys.DOMAIN}>", "nonsense at rcpt.example")
        document = examined(ready(Folder(tmp_path), text), code=78)
    assert "`from`" in check(document, "transport")["detail"]


@pytest.mark.parametrize("provider", [Postmark, Telnyx, Twilio])
def test_a_providers_key_is_tried_by_a_look_up(provider: type[Provider], tmp_path: Path) -> None:
    channel, sender = ("email", "a@shop.example") if provider.kind == "postmark" else ("sms", "+15005550006")
    lane = f'[lanes.{channel}]\nchannel = "{channel}"\ntransport = "out"\nreceipt.deadline = "24h"\n'
    with Server(provider()) as server:
        options = server.options(kind=provider.kind)
        options["from"] = sender

        def write(**more: Any) -> Folder:
            own = "\n".join(f"{key} = {json.dumps(value)}" for key, value in {**options, **more}.items())
            return ready(Folder(tmp_path), f"[transports.out]\n{own}\n{lane}")

        assert wrong(examined(write())) == []
        secret = next(key for key, value in provider.options.items() if value == KEY)
        document = examined(write(**{secret: SECRET}), code=78)
        assert wrong(document) == [("transport", "out")]
        assert document["transports"][0]["reason"] == "credentials_rejected"
        assert server.provider.submissions == []


# -- DKIM -------------------------------------------------------------------------------------------------------------


def signing(folder: Folder, port: int, resolver: str, algorithm: str = "rsa") -> Folder:
    table = keys.table(folder.path, algorithm)
    written = ", ".join(f'{key} = "{value}"' for key, value in table.items())
    return ready(folder, relay(port, f"dkim = {{ {written} }}") + f'[dns]\nresolver = "{resolver}"\n')


@pytest.mark.parametrize("algorithm", ["rsa", "ed25519"])
def test_a_published_key_that_is_ours_is_fine(algorithm: str, tmp_path: Path) -> None:
    records = keys.records([keys.made(tmp_path, keys.table(tmp_path, algorithm))])
    with SmtpServer() as server, NameServer({name: [text] for name, text in records.items()}) as names:
        document = examined(signing(Folder(tmp_path), server.port, names.address, algorithm))
        assert check(document, "dkim")["name"] == f"{algorithm}._domainkey.{keys.DOMAIN}"
        assert names.asked


def test_a_long_record_comes_over_tcp(tmp_path: Path) -> None:
    ((name, text),) = keys.records([keys.made(tmp_path, keys.table(tmp_path, "rsa"))]).items()
    with SmtpServer() as server, NameServer({name: [f"{text}; n={'x' * 300}"]}) as names:
        examined(signing(Folder(tmp_path), server.port, names.address))
        assert [way for way, _ in names.asked] == ["udp", "tcp"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda ours: [], "no record"),
        (lambda ours: ["v=spf1 -all"], "none with a key"),
        (lambda ours: [ours.replace("p=MII", "p=MIJ")], "not the one that signs"),
        (lambda ours: ["v=DKIM1; k=rsa; p="], "revoked"),
        (lambda ours: [ours.replace("k=rsa", "k=ed25519")], "another kind"),
        (lambda ours: [f"{ours}; h=sha1"], "sha256"),
        (lambda ours: [f"{ours}; t=y"], "t=y"),
        (lambda ours: [ours, "v=DKIM1; k=rsa; p=AAAA"], "2 keys"),
    ],
)
def test_a_published_key_that_is_wrong_is_told_with_the_right_one(change: Any, said: str, tmp_path: Path) -> None:
    ((name, ours),) = keys.records([keys.made(tmp_path, keys.table(tmp_path, "rsa"))]).items()
    with SmtpServer() as server, NameServer({name: change(ours)}) as names:
        document = examined(signing(Folder(tmp_path), server.port, names.address), code=3)
    found = check(document, "dkim")
    assert wrong(document) == [("dkim", name)]
    assert said in found["detail"]
    assert ours in found["hint"]


def test_a_name_that_does_not_exist_is_no_record(tmp_path: Path) -> None:
    with SmtpServer() as server, NameServer({}) as names:
        document = examined(signing(Folder(tmp_path), server.port, names.address), code=3)
    assert "no record" in check(document, "dkim")["detail"]


@pytest.mark.parametrize("mode", ["silent", "broken"])
def test_a_dns_that_fails_is_a_finding_for_later(mode: str, tmp_path: Path) -> None:
    with SmtpServer() as server, NameServer({}, mode) as names:
        document = examined(signing(Folder(tmp_path), server.port, names.address), code=75)
        assert "dns_failed" in check(document, "dkim")["detail"]
        assert names.asked


def test_a_key_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with SmtpServer() as server:
        folder = signing(Folder(tmp_path), server.port, "127.0.0.1:1")
        (tmp_path / "rsa.pem").unlink()
        assert wrong(examined(folder, code=78)) == [("dkim", "relay")]


def test_a_signature_of_another_domain_than_the_senders_is_told(tmp_path: Path) -> None:
    ((name, ours),) = keys.records([keys.made(tmp_path, keys.table(tmp_path, "rsa"))]).items()
    with SmtpServer() as server, NameServer({name: [ours]}) as names:
        folder = signing(Folder(tmp_path), server.port, names.address)
        folder.configure(folder.config.read_text().replace(f"no-reply@{keys.DOMAIN}", "no-reply@elsewhere.example"))
        assert "DMARC" in check(examined(folder, code=3), "dkim")["detail"]


def test_a_resolver_that_is_no_address_is_told(tmp_path: Path) -> None:
    with SmtpServer() as server:
        document = examined(signing(Folder(tmp_path), server.port, "somewhere"), code=78)
    assert "dns.resolver" in check(document, "dkim")["detail"]


# -- lanes ------------------------------------------------------------------------------------------------------------


def test_a_provider_that_forgets_before_the_receipt_deadline_is_told(tmp_path: Path) -> None:
    with Server(Telnyx()) as server:
        own = "\n".join(f"{key} = {json.dumps(value)}" for key, value in server.options(receipt_window="24h").items())
        lane = '[lanes.sms]\nchannel = "sms"\ntransport = "out"\n'
        text = f'[transports.out]\nkind = "telnyx"\nfrom = "Shop"\n{own}\n{lane}'
        document = examined(ready(Folder(tmp_path), text), code=3)
    assert wrong(document) == [("lane", "sms")]
    assert "lanes.sms.receipt.deadline" in check(document, "lane")["hint"]
    (lane,) = document["lanes"]
    assert (lane["receipt_window_s"], lane["receipt_deadline_s"]) == (86400.0, 259200.0)
    assert lane["doubt_ends"] == {"cannot_tell": "replayed"}


def test_deliveries_that_would_go_to_no_lane_are_told(tmp_path: Path) -> None:
    with SmtpServer() as server:
        text = relay(server.port).replace("[lanes.email]", "[lanes.mails]")
        folder = ready(Folder(tmp_path), text)
        folder.template("hello/1", sms="Hello")
        assert folder.run("template", "publish").returncode == 0
        assert wrong(examined(folder, code=3)) == [("template", "hello"), ("lane", "email")]


# -- a test message ---------------------------------------------------------------------------------------------------


def test_a_test_message_goes_out_once_marked_signed_and_past_the_ledger(tmp_path: Path, migrated_url: str) -> None:
    ((name, ours),) = keys.records([keys.made(tmp_path, keys.table(tmp_path, "rsa"))]).items()
    with SmtpServer() as server, NameServer({name: [ours]}) as names:
        folder = signing(Folder(tmp_path), server.port, names.address)
        folder.configure(folder.config.read_text().replace("sqlite:///ledger.db", migrated_url))
        document = examined(folder, "--send-test", f"email={ADDRESS}", "--yes")
        (mail,) = server.wait_for(1)
    assert mail.recipient == ADDRESS
    assert b"Subject: notifyctl test message (test)" in mail.raw
    assert b"DKIM-Signature:" in mail.raw
    assert document["test"]["outcome"] == "accepted"
    assert document["test"]["remote_id"] == mail.message_id
    with Database(migrated_url) as ledger:
        for table in ("delivery", "work", "attempt", "run", "endpoint"):
            assert ledger.one(f"SELECT count(*) FROM notify_{table}") == 0


def test_a_test_message_ends_with_the_code_of_its_outcome(tmp_path: Path) -> None:
    for reply, code, kind in (
        ("550 5.1.1 no such user", 3, "permanent_failure"),
        ("451 4.3.0 later", 75, "temporary_failure"),
    ):
        with SmtpServer(Rule("rcpt", reply=reply)) as server:
            folder = ready(Folder(tmp_path), relay(server.port))
            done = folder.run("doctor", "--json", "--send-test", f"email={ADDRESS}", "--yes")
        assert (done.returncode, json.loads(done.stdout)["test"]["outcome"]) == (code, kind)
        assert ADDRESS not in done.stdout + done.stderr


def test_a_transport_that_did_not_let_us_in_gets_no_test_message(tmp_path: Path) -> None:
    folder = ready(Folder(tmp_path), relay(unused_port()))
    document = examined(folder, "--send-test", f"email={ADDRESS}", "--yes", code=75)
    assert document["test"]["outcome"] == "not_sent"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--send-test", f"email={ADDRESS}"), 2),  # nobody is there to agree
        (("--send-test", f"fax={ADDRESS}", "--yes"), 2),
        (("--send-test", ADDRESS, "--yes"), 2),
        (("--send-test", "email=not an address at rcpt.example", "--yes"), 65),
        (("--send-test", "sms=+12025550123", "--yes"), 78),  # no lane
        (("--transport", "nowhere"), 2),
    ],
)
def test_what_cannot_be_asked_for_is_refused_before_anything_happens(
    arguments: tuple[str, ...], code: int, tmp_path: Path
) -> None:
    with SmtpServer() as server:
        folder = ready(Folder(tmp_path), relay(server.port))
        done = folder.run("doctor", *arguments)
        assert (done.returncode, done.stdout) == (code, "")
        assert "rcpt.example" not in done.stderr
        assert server.connections == []


@pytest.mark.parametrize(("answer", "sent"), [(b"n\n", 0), (b"y\n", 1)])
def test_a_person_is_asked_before_a_test_message_goes(answer: bytes, sent: int, tmp_path: Path) -> None:
    with SmtpServer() as server:
        folder = ready(Folder(tmp_path), relay(server.port))
        leader, follower = os.openpty()
        try:
            os.write(leader, answer)
            done = folder.run(
                "doctor", "--send-test", f"email={ADDRESS}", stdin=follower, stdout=subprocess.PIPE, stderr=follower
            )
            asked = os.read(leader, 65536).decode()
        finally:
            os.close(leader)
            os.close(follower)
        assert (server.accepted, done.returncode) == (sent, 0 if sent else 130)
        assert "through relay (lane email)?" in asked
        assert ADDRESS not in asked + done.stdout
        assert ("accepted" in done.stdout) == bool(sent)


# -- the contract -----------------------------------------------------------------------------------------------------


def test_the_documents_have_the_keys_that_are_pinned(tmp_path: Path) -> None:
    with SmtpServer() as server:
        folder = ready(Folder(tmp_path), relay(server.port))
        hold("doctor", folder.json("doctor", "--send-test", f"email={ADDRESS}", "--yes"))
        hold("doctor --kinds", folder.json("doctor", "--kinds"))


def test_the_readme_and_doctor_show_one_table(tmp_path: Path) -> None:
    done = Folder(tmp_path).run(
        "doctor", "--kinds", env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(docs.README.parent)}
    )
    shown = [" ".join(line.split()) for line in done.stdout.splitlines()]
    heading, rows = capabilities.table()
    assert shown == [" ".join(" ".join(row).split()) for row in (heading, *rows)]
    readme = docs.README.read_text(encoding="utf-8")
    for row in rows:
        assert f"| {' | '.join(row)} |" in readme.replace("**", "")


def test_the_kinds_are_shown_where_nothing_is_configured(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.config.unlink()
    assert set(folder.json("doctor", "--kinds")["kinds"]) == set(capabilities.declared())
