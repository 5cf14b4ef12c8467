"""Bad rows and bad single enqueues through the command line: each is named, and the rest goes on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.site import DOMAIN, Done, Site, intent
from tests.smtp_server import SmtpServer

HUGE = 10 << 20  # bytes: far more than a row may have, and more than is read at once


def _line(number: int, **more: Any) -> bytes:
    return json.dumps(intent(number, **more), ensure_ascii=False).encode()


NDJSON: list[tuple[bytes, str]] = [
    (_line(1), ""),
    (_line(2).replace(b"Reader", b"R\xe9ader"), "row_undecodable"),
    (_line(3)[:-1], "row_undecodable"),
    (_line(4, vars={"name": "x" * HUGE}), "row_too_large"),
    (_line(5, vars={"name": "Zoë, ünd, 山田"}), ""),
    (b"[1, 2]", "row_undecodable"),
    (b'{"event": NaN}', "row_undecodable"),
    (b"[" * 100_000, "row_undecodable"),
    (b"", "blank"),
    (_line(10, vars={}), "variable_missing"),
    (_line(11, colour="red"), "unknown_key"),
    (_line(12, to={"email": "no address"}), "destination_invalid"),
    (_line(13, at="2099-01-01T10:00"), "time"),
    (_line(14, expires_at="2001-01-01T10:00Z"), "expired"),
    (_line(15, template="unheard-of"), "template_unknown"),
    (_line(16, template="note@99"), "template_unknown"),
    (_line(17, event=f"r17@{DOMAIN}"), "invalid"),
    (_line(18, vars={"name": "a\0b"}), "invalid"),
    (_line(19), ""),
    (b'{"event": "e20", "recipient": "r-20", "channel": "email", "template": "note", "vars": {"name": "\\ud83d"}}',
     "invalid"),
    (_line(21, event="e1", recipient="r-1", to={"email": f"r1@{DOMAIN}"}, vars={"name": "Somebody else"}), "conflict"),
    (_line(22), ""),
]  # fmt: skip

HEADER = b"event,recipient,channel,template,to.email,vars.name\n"


def _cells(number: int, name: bytes = b"Ann", address: bytes = b"", template: bytes = b"note") -> bytes:
    address = address or f"r{number}@{DOMAIN}".encode()
    return f"e{number},r-{number},email,".encode() + template + b"," + address + b"," + name


CSV: list[tuple[bytes, str]] = [
    (_cells(1), ""),
    (_cells(2, b"R\xe9ader"), "row_undecodable"),
    (_cells(3) + b",one,too,many", "row_undecodable"),
    (_cells(4, b"x" * HUGE), "row_too_large"),
    (_cells(5, b'"Doe,\nJane ""J"" D"'), ""),
    (_cells(6, address=b"no address"), "destination_invalid"),
    (_cells(7, template=b"unheard-of"), "template_unknown"),
    (_cells(8, b'"a"b'), "row_undecodable"),
    (_cells(9, "Zoë 山田".encode()), ""),
    (_cells(10, b"x" * ((1 << 20) + 1)), "row_too_large"),
    (b",r-11,email,note,,Ann", "missing"),
    (_cells(12), ""),
]


@pytest.mark.parametrize(("way", "format"), [("file", "csv"), ("stdin", "ndjson")])
def test_bad_rows_are_named_by_their_number_and_the_rest_goes_on(
    way: str, format: str, tmp_path: Path, migrated_url: str
) -> None:
    rows = NDJSON if format == "ndjson" else CSV
    file = tmp_path / f"rows.{format}"
    file.write_bytes((HEADER if format == "csv" else b"") + b"\n".join(row for row, _ in rows))
    good = {number for number, (_, reason) in enumerate(rows, 1) if reason == ""}
    bad = {number: reason for number, (_, reason) in enumerate(rows, 1) if reason not in ("", "blank")}
    with SmtpServer() as server, Site(tmp_path, migrated_url, server.port) as site:
        site.publish(subject="A note")  # a line break in a name is fine where it is in no header
        with file.open("rb") as stream:
            source = ["--from", str(file)] if way == "file" else ["--from", "-", "--format", format]
            options = {} if way == "file" else {"stdin": stream}
            done = site.run("enqueue", *source, "--json", **options)
        assert done.code == 65, done
        assert {error["row"]: error["reason"] for error in done.json["errors"]} == bad
        assert done.json["enqueued"] == len(good)
        assert done.json["rejected"] + done.json["conflict"] == len(bad)
        assert done.json["selected"] == len(good) + len(bad)
        assert site.numbers("1 = 1") == good
        # the same again: what is there is a duplicate, what was bad is bad
        again = site.run("enqueue", "--from", str(file))
        assert again.code == 65
        assert again.out == ""
        assert all(f"row {number}: {reason}" in again.err for number, reason in list(bad.items())[:10]), again.err
        assert len(again.err.splitlines()) <= 14
        assert site.dispatch().json["accepted"] == len(good)
        site.audit(server)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory, migrated_file: Path) -> str:
    """A ledger with the template, for what leaves nothing behind."""
    folder = tmp_path_factory.mktemp("published")
    shutil.copyfile(migrated_file, folder / "ledger.db")
    url = f"sqlite:///{folder / 'ledger.db'}"
    with Site(folder, url) as site:
        site.publish()
    return url


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "no header"),
        (b"event,recipient,event\n1,2,3\n", "twice"),
        (b"colour\nred\n", "not a header"),
        (b"jane@rcpt.example,Ann\n", "not a header"),
        (b"event;recipient;vars.name\n1;2;3\n", "by commas"),
        (b"\xff\xfe,recipient\n1,2\n", "not UTF-8"),
    ],
)
def test_a_csv_without_a_usable_header_is_refused(text: bytes, words: str, tmp_path: Path, published: str) -> None:
    with Site(tmp_path, published) as site:
        (tmp_path / "rows.csv").write_bytes(text)
        done = site.run("enqueue", "--from", "rows.csv")
        assert done.code == 65, done
        assert words in done.err
        assert site.states() == {}


def test_a_csv_from_a_spreadsheet_is_read_with_its_byte_order_mark(tmp_path: Path, migrated_url: str) -> None:
    with Site(tmp_path, migrated_url) as site:
        site.publish()
        text = b"\xef\xbb\xbf" + HEADER.replace(b"\n", b"\r\n") + _cells(1, b'"Doe, Jane"') + b"\r\n\r\n" + _cells(2)
        (tmp_path / "rows.csv").write_bytes(text)
        done = site.run("enqueue", "--from", "rows.csv", "--json")
        assert (done.code, done.json["enqueued"]) == (0, 2), done


def _one(**options: str) -> list[str]:
    given = {"event": "e1", "recipient": "r-1", "channel": "email", "template": "note", "var": "name=Ann",
             "to": f"email=r1@{DOMAIN}", **options}  # fmt: skip
    return [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value)]


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ({"at": "2099-01-01T10:00"}, 65, "zone"),
        ({"at": "2099-03-29T02:30 Europe/Berlin"}, 65, "02:30"),
        ({"at": "next tuesday"}, 65, "at"),
        ({"expires_at": "2001-01-01T00:00Z"}, 65, "past"),
        ({"expires_in": "15"}, 65, "unit"),
        ({"template": "unheard-of"}, 65, "template list"),
        ({"template": "note@99"}, 65, "note@99"),
        ({"var": "nam=Ann"}, 65, "name"),
        ({"to": "email=nobody"}, 65, ""),
        ({"lane": "slow"}, 65, "email"),
        ({"topic": "gossip"}, 65, "gossip"),
        ({"recipient": f"r1@{DOMAIN}"}, 65, "recipient"),
        ({"channel": "pigeon"}, 65, "email"),
        ({"to": "r1"}, 2, "--to"),
        ({"vars": "{"}, 65, "--vars"),
        ({"vars": "@nowhere.json"}, 2, "--vars"),
    ],
)
def test_a_bad_single_enqueue_says_what_is_wrong_and_leaves_no_row(
    options: dict[str, str], code: int, words: str, tmp_path: Path, published: str
) -> None:
    with Site(tmp_path, published) as site:
        done = site.run("enqueue", *_one(**options))
        assert done.code == code, done
        assert words in done.err
        _in_three_lines(done)
        assert site.states() == {}


def _in_three_lines(done: Done) -> None:
    assert done.out == ""
    assert 1 <= len(done.err.splitlines()) <= 3, done.err


@pytest.mark.parametrize("arguments", [["--from", "nowhere.csv"], ["--from", "."]])
def test_a_file_that_cannot_be_read_is_named(arguments: list[str], tmp_path: Path, published: str) -> None:
    with Site(tmp_path, published) as site:
        done = site.run("enqueue", *arguments)
        assert done.code == 65, done
        assert arguments[1] in done.err
        _in_three_lines(done)
