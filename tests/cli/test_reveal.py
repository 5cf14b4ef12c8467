"""`--reveal`: who asks sees addresses in full, and nobody sees one without leaving a line in the trail first."""

from __future__ import annotations

import getpass
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.rig import Folder, environment, failure
from tests.ledger.databases import Database

MAIL = '"Doe, Jane" <jane.doe@rcpt.example>'
NUMBER = "+4915112345678"


class Desk:
    """An installation with a delivery to a named address (1), one to an endpoint (2), and an SMS (3)."""

    def __init__(self, path: Path, url: str) -> None:
        self.folder = Folder(path, url)
        self.database = Database(url)
        self.database.insert("notify_endpoint", recipient_id="r-2", channel="email", address="old@rcpt.example")
        self.database.insert("notify_endpoint", recipient_id="r-2", channel="email", address="new@rcpt.example")
        self.database.insert("notify_endpoint", recipient_id="r-2", channel="sms", address=NUMBER)
        variables = {"variables": '{"name": "Wonderland"}'}
        self.database.intend("named", recipient_id="r-1", destination=MAIL, **variables)
        self.database.intend("endpoint", recipient_id="r-2")
        self.database.intend("text", recipient_id="r-1", channel="sms", destination=NUMBER)

    def id(self, event: str) -> int:
        """The number of the delivery of this event."""
        return int(self.database.delivery(event, "id"))

    def show(self, *arguments: str, **options: Any) -> str:
        """What a command prints."""
        done = self.folder.run(*arguments, **options)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def trail(self) -> list[tuple[Any, ...]]:
        """What is kept of revealing: event, from, to, actor, note."""
        return self.database.execute(
            """SELECT d.event_id, t."from", t."to", t.actor, t.note FROM notify_transition t
            JOIN notify_delivery d ON d.id = t.delivery_id WHERE t.reason = 'revealed' ORDER BY t.id"""
        )


@pytest.fixture
def desk(tmp_path: Path, migrated_url: str) -> Iterator[Desk]:
    made = Desk(tmp_path, migrated_url)
    yield made
    made.database.connection.close()


def test_one_delivery_shows_its_address_and_the_look_at_it(desk: Desk) -> None:
    number = str(desk.id("named"))
    masked = desk.folder.json("inspect", "delivery", number)
    assert masked["destination"] == "j…@rcpt.example"
    assert desk.trail() == []
    document = desk.folder.json("inspect", "delivery", number, "--reveal")
    assert document["destination"] == MAIL
    assert document["variables"] == {"name": "…"}
    line = document["transitions"][-1]
    assert (line["from"], line["to"], line["reason"], line["attempt"]) == ("queued", "queued", "revealed", None)
    assert desk.trail() == [("named", "queued", "queued", getpass.getuser(), "inspect delivery --reveal")]
    same = ("state", "reason", "updated_at", "fencing_token", "work")
    assert {name: document[name] for name in same} == {name: masked[name] for name in same}
    assert f"revealed, by {getpass.getuser()}, inspect delivery --reveal" in desk.show("inspect", "delivery", number)


def test_an_endpoints_address_and_a_number_are_shown_to_people(desk: Desk) -> None:
    shown = desk.show("inspect", "delivery", str(desk.id("endpoint")), "--reveal")
    assert "destination  new@rcpt.example (endpoint)" in shown
    assert NUMBER in desk.show("inspect", "delivery", str(desk.id("text")), "--reveal")
    assert [line[0] for line in desk.trail()] == ["endpoint", "text"]
    assert "Wonderland" not in desk.show("inspect", "delivery", str(desk.id("named")), "--reveal")


def test_a_list_leaves_one_line_for_every_delivery_shown_and_none_for_the_others(desk: Desk) -> None:
    lines = desk.show("inspect", "deliveries", "--recipient", "r-1", "--reveal", "--json").splitlines()
    assert {one["event_id"]: one["destination"] for one in map(json.loads, lines)} == {"named": MAIL, "text": NUMBER}
    who = getpass.getuser()
    assert desk.trail() == [
        (event, "queued", "queued", who, "inspect deliveries --reveal") for event in ("named", "text")
    ]
    assert MAIL in desk.show("inspect", "deliveries", "--limit", "3", "--reveal")
    assert [line[0] for line in desk.trail()] == ["named", "text", "named", "endpoint", "text"]


def test_many_pages_leave_a_line_each(desk: Desk) -> None:
    for number in range(250):  # more than the first page
        desk.database.intend(f"many-{number}", recipient_id=f"m-{number}", destination=f"m{number}@rcpt.example")
    shown = desk.show("inspect", "deliveries", "--limit", "240", "--reveal", "--json")
    events = [json.loads(line)["event_id"] for line in shown.splitlines()]
    assert len(events) == 240
    assert sorted(line[0] for line in desk.trail()) == sorted(events)


def test_behind_sudo_the_person_is_named(desk: Desk) -> None:
    desk.show("inspect", "delivery", str(desk.id("named")), "--reveal", env=environment(SUDO_USER="ada"))
    assert desk.trail()[0][3] == "ada"


def test_a_recipients_addresses_are_shown_under_the_newest_delivery_of_their_channel(desk: Desk) -> None:
    desk.database.intend("later", recipient_id="r-2")
    done = desk.folder.run("recipient", "show", "r-2", "--reveal", "--json")
    assert done.returncode == 0
    addresses = [one["address"] for one in json.loads(done.stdout)["endpoints"]]
    assert addresses == ["+49…78", "new@rcpt.example", "old@rcpt.example"]
    assert "sms: still masked" in done.stderr
    assert desk.trail() == [("later", "queued", "queued", getpass.getuser(), "recipient show --reveal")]
    assert "rcpt" in desk.show("recipient", "show", "r-2")
    assert "new@" not in desk.show("recipient", "show", "r-2")


@pytest.mark.parametrize("name", ["inspect delivery", "inspect deliveries", "recipient show"])
def test_where_no_line_can_be_left_nothing_is_shown(desk: Desk, name: str) -> None:
    desk.folder.configure(desk.folder.config.read_text().replace('patience = "2s"', 'patience = "0.2s"'))
    more = {"inspect delivery": [str(desk.id("endpoint"))], "recipient show": ["r-2"]}.get(name, [])
    with Database(desk.database.url) as other:
        other.begin()
        if other.dialect == "postgresql":
            other.execute("LOCK TABLE notify_transition IN EXCLUSIVE MODE")  # readers pass, writers wait
        done = desk.folder.run(*name.split(), *more, "--reveal", "--json")
    assert (done.returncode, done.stdout) == (75, "")
    assert failure(done)["code"] == "ledger_locked"
    assert "rcpt.example" not in done.stderr
    assert desk.trail() == []


def test_an_unknown_delivery_leaves_no_line(desk: Desk) -> None:
    assert desk.folder.run("inspect", "delivery", "4711", "--reveal").returncode == 65
    assert desk.folder.run("recipient", "show", "nobody", "--reveal").returncode == 0
    assert desk.show("inspect", "deliveries", "--event", "none", "--reveal") == "no delivery matches\n"
    assert desk.trail() == []
