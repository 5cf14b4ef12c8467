"""DKIM signatures, as verifiers that other people wrote judge the bytes that an SMTP server received."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from notifyctl.compose.dkim import OVERSIGNED, Signer
from notifyctl.compose.mime import Part, write
from notifyctl.errors import InputError
from notifyctl.model import Mailbox, OutcomeKind
from tests import judges
from tests.cli.rig import environment
from tests.compose import keys
from tests.smtp_server import SmtpServer
from tests.transports.material import mail, relay, submit

CORPUS = Path(__file__).parents[2] / "../shared/corpora/dkim/unsigned"
DATE = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)
HEAD = b"From: a@shop.example\r\nTo: b@example.net\r\nSubject: x\r\n\r\n"
ALGORITHMS = ("rsa", "ed25519")
# What would not reach anybody unchanged.
REFUSED = dict.fromkeys(("line-1200", "mbox-from-line", "nul-byte"), "mail_malformed")

Verify = Callable[[Path, Mapping[str, str]], judges.Verdicts]


@pytest.fixture(params=ALGORITHMS)
def signer(request: pytest.FixtureRequest, tmp_path: Path) -> Signer:
    """A signer with one key."""
    return keys.made(tmp_path, keys.table(tmp_path, request.param))


def both(base: Path) -> Signer:
    return keys.made(base, [keys.table(base, one) for one in ALGORITHMS])


def received(mails: Mapping[str, bytes], **more: Any) -> dict[str, bytes]:
    """What a server has after each was sent to it by the SMTP transport."""
    with SmtpServer() as server:
        transport = relay(server.port)
        for number, raw in enumerate(mails.values()):
            assert submit(transport, mail(number, data=raw, **more)).kind is OutcomeKind.ACCEPTED
        transport.close()
        return dict(zip(mails, (message.raw for message in server.wait_for(len(mails))), strict=True))


def judged(verify: Verify, folder: Path, mails: Mapping[str, bytes], signer: Signer) -> judges.Verdicts:
    verdicts = verify(keys.save(folder / verify.__name__, mails), keys.records([signer]))
    assert verdicts.keys() == {f"{name}.eml" for name in mails}, "every mail is judged"
    return {name.removesuffix(".eml"): verdict for name, verdict in verdicts.items()}


def accepted_by_all(folder: Path, mails: Mapping[str, bytes], signer: Signer) -> None:
    """Every verifier that knows the algorithm accepts every signature, and there are three that know it."""
    ed25519 = signer.keys[0].algorithm.startswith("ed25519")
    for verify in judges.VERIFIERS:
        expected = [None if verify is judges.mail_dkim and ed25519 else True]
        verdicts = judged(verify, folder, mails, signer)
        assert {name: verdict for name, verdict in verdicts.items() if verdict != expected} == {}, verify.__name__


def signed_all(signer: Signer, mails: Mapping[str, bytes]) -> dict[str, bytes]:
    return {name: signer.sign(raw, DATE) for name, raw in mails.items()}


def composed() -> dict[str, bytes]:
    """Mails of our own writer, of every kind of body and header."""

    def raw(**more: Any) -> bytes:
        return write(**{
            "sender": Mailbox("no-reply@shop.example", "Shöp, the"), "recipient": Mailbox("j@example.net", "Doe, J."),
            "subject": "Your order", "text": "Hello\n", "html": "", "message_id": "<k1@shop.example>", "date": DATE,
            "reply_to": Mailbox("help@shop.example"), "headers": (), "boundary_seed": "k1", **more,
        })[0]  # fmt: skip

    table = "<table>\n" + "    <tr>\t<td>a  b</td> \n    </tr>\t\n" * 40 + "</table>\n \n\n"
    return {
        "plain": raw(),
        "empty": raw(text="\n"),
        "blank-ends": raw(text="  indented\ttext  \n\n \n\t\n\n"),
        "eight-bit": raw(text="Grüße €\n" * 30),
        "base64": raw(text="確認コード\n" * 60),
        "long-lines": raw(text="x" * 5000 + "\n" + "word " * 900),
        "html": raw(text="t", html=table),
        "subject": raw(subject="Grüße aus Köln und Österreich, " * 8),
        "one-click": raw(headers=[("List-Unsubscribe", "<https://shop.example/u/" + "a" * 200 + ">"),
                                  ("List-Unsubscribe-Post", "List-Unsubscribe=One-Click")]),
        "files": raw(html=table, files=[
            Part(bytes(range(256)) * 600, "application/pdf", "Rechnung März.pdf"),
            Part(b"\x89PNG" * 900, "image/png", "logo.png", "<logo@shop.example>"),
        ]),
        "dots": raw(text=".\n..\nFrom me\n. \n"),
    }  # fmt: skip


def test_composed_mails_are_accepted_as_they_were_received(signer: Signer, tmp_path: Path) -> None:
    mails = signed_all(signer, composed())
    assert max(len(line) for raw in mails.values() for line in raw.partition(b"\r\nDate:")[0].split(b"\r\n")) <= 78
    accepted_by_all(tmp_path, received(mails), signer)


def test_a_mail_with_an_address_in_utf8_is_accepted(signer: Signer, tmp_path: Path) -> None:
    raw = HEAD.replace(b"b@example.net", "Jürgen <jürgen@example.net>".encode()) + b"hi\r\n"
    with SmtpServer() as server:
        message = mail(to="jürgen@example.net", data=signer.sign(raw, DATE), smtputf8=True)
        assert submit(relay(server.port), message).kind is OutcomeKind.ACCEPTED
        (got,) = server.wait_for(1)
    accepted_by_all(tmp_path, {"utf8": got.raw}, signer)


def test_the_corpus_is_accepted_as_it_was_received(signer: Signer, tmp_path: Path) -> None:
    if not CORPUS.exists():
        pytest.skip("the test material dkim/unsigned is not beside this checkout")
    mails: dict[str, bytes] = {}
    refused: dict[str, str] = {}
    for path in CORPUS.glob("*.eml"):
        try:
            mails[path.stem] = signer.sign(path.read_bytes(), DATE)
        except InputError as error:
            refused[path.stem] = error.reason
    assert len(mails) + len(refused) == 41
    assert refused == REFUSED
    accepted_by_all(tmp_path, received(mails, eight_bit=True), signer)


def test_any_arrangement_of_white_space_is_accepted(signer: Signer, tmp_path: Path) -> None:
    dice = random.Random(6376)
    pieces = [b" ", b"\t", b"\r\n", b"  ", b" \r\n", b"a", b"-", b"\r\n\r\n", "ü".encode(), b"\v", b"\f", b"b: c"]
    mails = {}
    for number in range(150):
        body = b"".join(dice.choices(pieces, k=dice.randrange(40)))
        words = b"".join(dice.choices([b" ", b"\t", b"\r\n ", b"\r\n\t", b"x", b"=?", b":", b"\r\n  "], k=20)) + b"."
        mails[f"m{number}"] = signer.sign(HEAD.replace(b"Subject: x", b"Subject:" + words) + body, DATE)
    accepted_by_all(tmp_path, mails, signer)


def test_a_body_larger_than_what_is_hashed_at_once_is_accepted(signer: Signer, tmp_path: Path) -> None:
    lines = [b" " * (number % 7) + b"word\t" * (number % 180) + b"\r\n" for number in range(2000)]
    accepted_by_all(tmp_path, {"big": signer.sign(HEAD + b"".join(lines), DATE)}, signer)


def test_with_two_keys_both_signatures_are_accepted_in_the_order_of_the_configuration(tmp_path: Path) -> None:
    signer = both(tmp_path)
    mails = received(signed_all(signer, composed()))
    for verify in (judges.mailauth, judges.msgauth):
        assert set(map(tuple, judged(verify, tmp_path, mails, signer).values())) == {(True, True)}
    assert set(map(tuple, judged(judges.mail_dkim, tmp_path, mails, signer).values())) == {(True, None)}
    assert re.findall(rb"\ba=([a-z0-9-]+)", mails["plain"]) == [b"rsa-sha256", b"ed25519-sha256"]


def test_whatever_is_changed_or_added_on_the_way_is_refused(signer: Signer, tmp_path: Path) -> None:
    raw = signer.sign(composed()["one-click"], DATE)
    changed = {
        "body": raw.replace(b"Hello", b"Hallo"),
        "body-more": raw + b"and more\r\n",
        "subject": raw.replace(b"Your order", b"Your 0rder"),
        "one-click": raw.replace(b"List-Unsubscribe=One", b"List-Unsubscribe=Two"),
        "link": raw.replace(b"/u/aaa", b"/u/aab"),
        "stamp": raw.replace(b"; t=1796040000;", b"; t=1796040001;"),
        **{f"second-{name}": raw.replace(b"\r\nDate:", f"\r\n{name}: added@evil.example\r\nDate:".encode())
           for name in OVERSIGNED},
        **{f"first-{name}": f"{name}: added@evil.example\r\n".encode() + raw for name in OVERSIGNED},
    }  # fmt: skip
    assert all(one != raw for one in changed.values())
    for verify in judges.VERIFIERS:
        if verify is judges.mail_dkim and signer.keys[0].algorithm == "ed25519-sha256":
            continue
        verdicts = judged(verify, tmp_path, changed, signer)
        assert {name for name, verdict in verdicts.items() if True in verdict} == set(), verify.__name__
        assert judged(verify, tmp_path / "untouched", {"as-sent": raw}, signer) == {"as-sent": [True]}


def test_the_same_mail_and_date_give_the_same_bytes_in_another_process(tmp_path: Path) -> None:
    signed = both(tmp_path).sign(composed()["files"], DATE)
    (tmp_path / "raw").write_bytes(composed()["files"])
    probe = """
import sys
from datetime import datetime
from pathlib import Path
from tests.compose import keys
base = Path(sys.argv[1])
tables = [{"domain": keys.DOMAIN, "selector": one, "key_file": f"{one}.pem"} for one in ("rsa", "ed25519")]
signer = keys.made(base, tables)
sys.stdout.buffer.write(signer.sign((base / "raw").read_bytes(), datetime.fromisoformat(sys.argv[2])))
"""
    command = [sys.executable, "-c", probe, str(tmp_path), "2026-11-30T13:00:00+01:00"]
    assert subprocess.run(command, capture_output=True, check=True, env=environment()).stdout == signed


def test_the_time_of_the_signature_is_the_mails_own_and_it_never_expires(signer: Signer) -> None:
    field = signer.sign(composed()["plain"], DATE).partition(b"\r\nDate:")[0]
    assert b" t=%d;" % DATE.timestamp() in field
    assert not re.search(rb"[ ;][xl]=", field)


def test_every_header_that_readers_act_on_is_signed_and_the_visible_ones_cannot_be_added(signer: Signer) -> None:
    field = signer.sign(composed()["one-click"], DATE).partition(b"\r\nDate:")[0]
    found = re.search(rb"h=([^;]+);", field)
    assert found
    names = re.sub(rb"\s", b"", found[1]).decode().split(":")
    for name in OVERSIGNED:
        assert names.count(name) == 2, name
    for name in ("list-unsubscribe", "list-unsubscribe-post", "mime-version", "content-transfer-encoding"):
        assert names.count(name) == 1, name


def test_headers_a_provider_rewrites_can_be_left_out_and_others_added(tmp_path: Path) -> None:
    one = keys.made(tmp_path, keys.table(tmp_path, "rsa"))
    signer = Signer(one.keys, extra_headers=["X-Note"], never=["Date", "Message-ID"])
    raw = composed()["plain"].replace(b"MIME-Version", b"X-Note: n\r\nMIME-Version")
    changed = signer.sign(raw, DATE).replace(b"<k1@", b"<other@").replace(b"\r\nDate: Mon", b"\r\nDate: Tue")
    accepted_by_all(tmp_path, {"rewritten": changed}, signer)
    verdicts = judged(judges.mailauth, tmp_path / "n", {"note": changed.replace(b"X-Note: n", b"X-Note: m")}, signer)
    assert verdicts == {"note": [False]}


@pytest.mark.parametrize(
    "raw",
    [
        HEAD + b"a\0b",
        HEAD + b"x" * 999,
        HEAD.replace(b"Subject: x", b"Subject: " + b"x" * 1000),
        b"Subject: no sender\r\n\r\nhi",
        b"From: a@shop.example\r\n" + HEAD,
        b"From a@shop.example Mon Nov 30\r\n" + HEAD,
        HEAD.replace(b"To:", b"To\xff:"),
        b" folded\r\n" + HEAD,
        b"\r\n" + HEAD,
        b"",
    ],
)
def test_what_cannot_be_signed_faithfully_is_refused(raw: bytes, signer: Signer) -> None:
    with pytest.raises(InputError) as caught:
        signer.sign(raw, DATE)
    assert caught.value.reason == "mail_malformed"
    assert "shop.example" not in f"{caught.value!r}{caught.value.hint}"


def test_signing_neither_imports_a_resolver_nor_dkimpy() -> None:
    probe = "import sys, notifyctl.compose.dkim_keys; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True).stdout.split()
    assert not [name for name in loaded if name.partition(".")[0] in {"dns", "dkim", "nacl", "cryptography"}]
