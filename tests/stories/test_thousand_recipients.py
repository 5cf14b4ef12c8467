"""A thousand recipients from a CSV file: enqueued, enqueued again, and sent once by two dispatches at a time.

The SMTP server is a process of its own that answers after 50 ms and logs each message before it answers.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.site import DOMAIN, PATIENT, Site

CORPUS = Path(__file__).parents[2] / "../shared/corpora/addresses/addresses.json"
SERVER = Path(__file__).parents[1] / "smtp_server.py"
COUNT = 1000
NAMES = ("Doe, Jane", "Müller, Jürgen (Büro)", 'O"Neill, "Tip"', "Ελένη Παπαδοπούλου", "山田 太郎", "Zoë 😀", "")
# Syntax that is easily got wrong, where the corpus is not at hand.
OWN = (
    "o'brien@reader.example", "user+mailbox@reader.example", "{_test_}@reader.example", "a@b.co-foo.example",
    "customer/department@reader.example", "юзер@екзампл.example", "jeff@臺網中心.example",
)  # fmt: skip


def _addresses() -> list[str]:
    accepted = list(OWN)
    if CORPUS.exists():
        accepted += [one["address"] for one in json.loads(CORPUS.read_text()) if one["verdict"] == "accept"]
    return accepted + [f"r{number}@{DOMAIN}" for number in range(COUNT - len(accepted))]


def _write(file: Path) -> list[str]:
    """A CSV as a spreadsheet makes it, byte order mark and CRLF included; returns the bare addresses."""
    addresses = _addresses()
    with file.open("w", encoding="utf-8-sig", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["event", "recipient", "channel", "template", "to.email", "vars.name"])
        for number, address in enumerate(addresses):
            name = NAMES[number % len(NAMES)]
            quoted = name.replace('"', '\\"')
            to = f'"{quoted}" <{address}>' if name and number % 2 else address
            writer.writerow([f"e{number}", f"r-{number}", "email", "note", to, name])
    return addresses


@contextmanager
def _slow_server(log: Path) -> Iterator[int]:
    """The port of a server process that answers each message after 50 ms."""
    process = subprocess.Popen(
        [sys.executable, str(SERVER), "--log", str(log), "--delay", "0.05"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.stdin.close()
        process.wait(PATIENT)
        process.stdout.close()


def test_a_thousand_recipients_each_get_one_mail_from_two_dispatches(tmp_path: Path, ledger_url: str) -> None:
    log = tmp_path / "server.ndjson"
    with _slow_server(log) as port, Site(tmp_path / "site", ledger_url, port) as site:
        site.init()
        site.publish(html="<p>Hello {{ name }},</p>\n<p>your note.</p>\n")
        addresses = _write(site.path / "readers.csv")
        first = _enqueue(site)
        assert {name: first[name] for name in COUNTS} == {**NOTHING, "selected": COUNT, "enqueued": COUNT}, first
        again = _enqueue(site)
        assert {name: again[name] for name in COUNTS} == {**NOTHING, "selected": COUNT, "duplicate": COUNT}, again

        running = [site.start("dispatch", "--json") for _ in range(2)]
        done = [process.result() for process in running]

        assert [one.code for one in done] == [0, 0], [one.err for one in done]
        shares = [one.json["accepted"] for one in done]
        assert sum(shares) == COUNT
        assert min(shares) >= 300, shares
        assert all(one.json["claimed"] == one.json["accepted"] + one.json["released"] for one in done)
        assert site.states() == {"accepted": COUNT}
        shown = site.run("inspect", "deliveries", "--state", "accepted", "--limit", str(2 * COUNT), "--json")
        assert len({json.loads(line)["id"] for line in shown.out.splitlines()}) == COUNT
        messages = [json.loads(line) for line in log.read_text().splitlines()]
        _judge(site, messages, addresses)
        idle = site.run("dispatch")
        assert (idle.code, idle.out, idle.err) == (0, "", "")
        assert len(log.read_text().splitlines()) == COUNT


COUNTS = ("selected", "enqueued", "duplicate", "conflict", "suppressed", "rejected")
NOTHING = dict.fromkeys(COUNTS, 0)


def _enqueue(site: Site) -> dict[str, Any]:
    done = site.run("enqueue", "--from", "readers.csv", "--json")
    assert done.code == 0, (done.err, done.json["errors"])
    document: dict[str, Any] = done.json
    return document


def _judge(site: Site, messages: list[dict[str, Any]], addresses: list[str]) -> None:
    """One copy each, to the address that was meant, one recipient per message."""
    site.audit(messages)
    assert len(messages) == COUNT
    assert {len(message["recipients"]) for message in messages} == {1}
    to = {message["message_id"]: message["recipients"][0] for message in messages}
    meant = {}
    for event, remote in site.sql("SELECT event_id, remote_id FROM notify_delivery"):
        meant[remote] = addresses[int(event[1:])]
    assert to.keys() == meant.keys()
    same = Counter(_as_ascii(to[remote]) == _as_ascii(meant[remote]) for remote in to)
    assert same == {True: COUNT}, [meant[remote] for remote in to if _as_ascii(to[remote]) != _as_ascii(meant[remote])]


def _as_ascii(address: str) -> str:
    """Local part as it is, domain as it stands in DNS: what makes two spellings one mailbox."""
    from unicodedata import normalize

    import idna

    local, _, domain = address.rpartition("@")
    return f"{normalize('NFC', local)}@{idna.encode(domain.lower(), uts46=True).decode()}"
