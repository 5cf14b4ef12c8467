"""The bounce mailbox of an SMTP transport: the same through a Maildir, IMAP and POP3."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from notifyctl.clock import Deadline
from notifyctl.errors import ConfigError
from notifyctl.keys import Keys
from notifyctl.model import Receipt, Receipts
from notifyctl.model import ReceiptStatus as S
from notifyctl.transports.base import FeedPage, Transport, Trouble
from notifyctl.transports.registry import open_transport
from notifyctl.transports.verp import return_path
from tests import dovecot
from tests.certificates import certificate
from tests.transports import letters, material

KEYS = Keys("11" * 32)
DOMAIN = "bounce.example"


def key(number: int) -> str:
    return KEYS.wire(f"delivery {number}")


def path(number: int) -> str:
    return return_path(key(number), KEYS.return_path, "bounces", DOMAIN)


def message_id(number: int) -> str:
    return f"<{key(number)}@shop.example>"


class Box:
    """A mailbox of one kind, and transports that read it."""

    def __init__(self, kind: str, tmp_path: Path, stack: ExitStack) -> None:
        self.kind, self.base, self.stack = kind, tmp_path, stack
        self.server: dovecot.Dovecot | None = None
        self.options: dict[str, Any] = {"return_path_domain": DOMAIN}
        if kind == "maildir":
            self.maildir = dovecot.maildir(tmp_path / "box")
            self.options["maildir"] = "box"
            return
        self.server = stack.enter_context(dovecot.Dovecot())
        self.maildir = self.server.maildir
        port = self.server.imap if kind == "imap" else self.server.pop3
        self.options |= {kind: f"127.0.0.1:{port}", "username": self.server.user, "password": self.server.password}
        if kind == "pop3":
            self.options["delete"] = True

    def open(self, **more: Any) -> Transport:
        """A new process, as it were."""
        options = {key: value for key, value in {**self.options, **more}.items() if value is not None}
        found = material.settings("smtp", self.base, host="127.0.0.1", port=1, bounces=options)
        transport = open_transport(found, KEYS.return_path)
        self.stack.callback(transport.close)
        return transport

    def deliver(self, *given: bytes) -> None:
        for letter in given:
            if self.server:
                self.server.deliver(letter)
            else:
                dovecot.deliver(self.maildir, letter)

    def waiting(self) -> list[bytes]:
        """The letters that nobody has seen."""
        found = [*(self.maildir / "new").iterdir(), *(self.maildir / "cur").iterdir()]
        return [one.read_bytes() for one in found if "S" not in one.name.partition(":2,")[2]]


@pytest.fixture(params=["maildir", "imap", "pop3"])
def box(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Box]:
    with ExitStack() as stack:
        yield Box(request.param, tmp_path, stack)


def soon() -> Deadline:
    return Deadline.after(30)


def page(transport: Transport, cursor: str = "", limit: int = 200) -> FeedPage:
    return transport.feed(cursor, limit, soon())


def drain(transport: Transport, cursor: str = "", limit: int = 200) -> tuple[list[Receipt], int, str]:
    """Read and mark to the end, as a run does: (receipts, unmatched, cursor)."""
    receipts: list[Receipt] = []
    unmatched = 0
    while True:
        read = page(transport, cursor, limit)
        assert len(read.receipts) <= limit
        receipts += read.receipts
        unmatched += read.unmatched
        cursor = read.cursor
        if read.receipts or read.unmatched or read.more:
            cursor = transport.fed(read, (), soon()) or cursor
        if not read.more:
            return receipts, unmatched, cursor


# -- whose it is --


def test_the_signed_return_path_comes_before_the_envelope_id_and_that_before_the_message_id(box: Box) -> None:
    envelope = path(2).partition("+")[2].partition("@")[0]
    box.deliver(
        letters.dsn(to=path(1), envelope_id=envelope, message_id=message_id(3)),
        letters.dsn(envelope_id=envelope, message_id=message_id(3)),
        letters.dsn(message_id=message_id(3)),
    )
    receipts, unmatched, _ = drain(box.open())
    assert [(one.key, one.remote_id) for one in receipts] == [(key(1), ""), (key(2), ""), ("", message_id(3))]
    assert {one.status for one in receipts} == {S.HARD_BOUNCE}
    assert unmatched == 0
    assert box.waiting() == []


def test_the_return_path_is_also_found_in_the_returned_original(box: Box) -> None:
    inner = letters.dsn(message_id=f"{message_id(1)}\nReturn-Path: <{path(1)}>")
    box.deliver(inner)
    (receipt,) = drain(box.open())[0]
    assert (receipt.key, receipt.remote_id) == (key(1), message_id(1))


def forgeries() -> list[bytes]:
    wrong = path(1).replace(KEYS.return_path(key(1)), "a" * 16)
    other = return_path(key(1), Keys("22" * 32).return_path, "bounces", DOMAIN)
    nowhere = "Message-ID: <original"
    plain = letters.dsn().replace(nowhere.encode(), b"X-Nothing: <original")
    return [
        letters.dsn(to=wrong),  # whatever else it names
        letters.dsn(to=wrong, message_id=message_id(1)),
        letters.dsn(to=other, message_id=message_id(1)),
        plain,  # nothing but the recipient's address
        plain.replace(b"reader@example.org", f"reader@example.org {path(1)}".encode()),  # in a text only
        letters.prose("reader@example.org: 550 5.1.1 user unknown").replace(b"Message-ID", b"X-Nothing"),
        letters.note(path(1)),
        letters.note(path(1)) + message_id(1).encode(),
    ]


@pytest.mark.parametrize("number", range(len(forgeries())))
def test_a_forged_or_foreign_bounce_says_nothing_of_anybody(number: int, tmp_path: Path) -> None:
    with ExitStack() as stack:
        box = Box("maildir", tmp_path, stack)
        box.deliver(forgeries()[number])
        assert drain(box.open())[:2] == ([], 1)
        assert len(box.waiting()) == 1


def test_a_complaint_a_delay_and_an_auto_reply_are_what_they_are(box: Box) -> None:
    box.deliver(
        letters.complaint(to=path(1)), letters.dsn("4.4.1", "delayed", to=path(2)), letters.vacation(to=path(3)),
        letters.complaint("not-spam", to=path(4)), letters.dsn("4.4.7", to=path(5)), letters.vacation(),
    )  # fmt: skip
    receipts, unmatched, _ = drain(box.open())
    assert [(one.key, one.status) for one in receipts] == [
        (key(1), S.COMPLAINED), (key(2), S.PENDING), (key(5), S.SOFT_FAILURE),
    ]  # fmt: skip
    assert unmatched == 1
    assert box.waiting() == [letters.vacation()]  # of no mail that we know


def test_letters_that_say_nothing_of_a_delivery_are_marked_all_the_same(box: Box) -> None:
    box.deliver(letters.vacation(to=path(1)))
    read = page(box.open())
    assert (read.receipts, read.unmatched, read.more) == ((), 0, True)  # so that it is marked
    assert drain(box.open())[:2] == ([], 0)
    assert box.waiting() == []


def test_an_address_that_stands_for_many_is_gone_only_if_they_all_are(tmp_path: Path) -> None:
    def group(status: str, action: str = "failed") -> str:
        return f"Final-Recipient: rfc822; {status}@example.org\nAction: {action}\nStatus: {status}\n"

    cases = [
        (("5.1.1", "5.1.2"), S.HARD_BOUNCE), (("5.1.1", "5.2.2"), S.FAILURE), (("5.2.2", "4.4.7"), S.FAILURE),
    ]  # fmt: skip
    with ExitStack() as stack:
        box = Box("maildir", tmp_path, stack)
        for number, (statuses, _) in enumerate(cases):
            box.deliver(letters.report("\n".join(map(group, statuses)), to=path(number)))
        box.deliver(letters.report(group("5.1.1") + "\n" + group("2.0.0", "delivered"), to=path(9)))
        found = {one.key: one.status for one in drain(box.open())[0]}
        assert found == {**{key(n): status for n, (_, status) in enumerate(cases)}, key(9): S.FAILURE}


def test_of_several_recipients_those_count_whom_the_mail_was_addressed_to(tmp_path: Path) -> None:
    def group(address: str, status: str) -> str:
        return f"Final-Recipient: rfc822; {address}\nAction: failed\nStatus: {status}\n"

    with ExitStack() as stack:
        box = Box("maildir", tmp_path, stack)
        box.deliver(
            letters.report(group("Reader@example.org", "5.1.1") + "\n" + group("x@example.net", "5.2.2"), to=path(1)),
            letters.report(group("x@example.net", "5.1.1") + "\n" + group("reader@example.org", "5.2.2"), to=path(2)),
        )
        found = {one.key: one.status for one in drain(box.open())[0]}
        assert found == {key(1): S.HARD_BOUNCE, key(2): S.FAILURE}


# -- the corpus, through each kind of mailbox --


def test_the_corpus_planted_on_our_own_mails_is_mapped_to_them(box: Box) -> None:
    plant, planted = letters.plant(), 0
    for number, row in enumerate(letters.corpus()):
        own = number % 3 != 2  # every third without a return path, by its Message-ID alone
        raw = plant(
            row["raw"], row, message_id(number)[1:-1], "r@rcpt.example", path(number) if own else "b@bounce.example"
        )
        if raw is not None:
            planted += 1
            box.deliver(raw if number % 2 else raw.replace(b"\r\n", b"\n"))
    assert planted > 250
    receipts, unmatched, cursor = drain(box.open())
    wires = {key(number): number for number in range(600)}
    named = {wires[one.key or one.remote_id[1:33]] for one in receipts}
    assert len(named) == len(receipts)  # each letter its own delivery, and no other
    assert len(receipts) >= 0.97 * planted
    assert len(receipts) + unmatched <= planted
    assert sum(bool(one.key) for one in receipts) > len(receipts) / 2
    assert drain(box.open(), cursor)[:2] == ([], 0)
    again = [one for one in drain(box.open())[0] if one not in receipts]
    assert again == []  # also read from the beginning, nothing new is said


# -- nothing is marked before the commit, and nothing lost --


def test_nothing_is_marked_before_the_receipts_are_committed(box: Box) -> None:
    box.deliver(*(letters.dsn(to=path(number)) for number in range(3)))
    transport = box.open()
    read = page(transport)
    assert len(read.receipts) == len(box.waiting()) == 3
    transport.fed(read, (), soon())
    assert box.waiting() == []


def test_who_dies_between_commit_and_marking_reads_the_same_again_and_marks_it(box: Box) -> None:
    box.deliver(*(letters.dsn(to=path(number)) for number in range(5)), letters.note())
    first = page(box.open(), limit=3)
    assert len(first.receipts) + first.unmatched == 3
    again = page(box.open(), first.cursor, limit=3)  # the cursor is in the ledger, the marks are not
    assert again.receipts == first.receipts
    receipts, unmatched, cursor = drain(box.open(), first.cursor, limit=3)
    assert receipts[: len(first.receipts)] == list(first.receipts)
    assert (len(receipts), unmatched) == (5, 1)
    assert box.waiting() == [letters.note()]
    assert drain(box.open(), cursor)[0] == []


def test_a_page_whose_commit_failed_is_read_again_by_the_same_process(box: Box) -> None:
    box.deliver(*(letters.dsn(to=path(number)) for number in range(4)))
    transport = box.open()
    assert page(transport, limit=2).receipts == page(transport, limit=2).receipts
    assert len(drain(transport, limit=2)[0]) == 4


def test_what_nobody_understands_stays_and_is_not_read_again(box: Box) -> None:
    box.deliver(letters.note(), letters.dsn(to=path(1)), letters.note())
    receipts, unmatched, cursor = drain(box.open())
    assert (len(receipts), unmatched, len(box.waiting())) == (1, 2, 2)
    _age(box)
    receipts, unmatched, cursor = drain(box.open(), cursor)
    assert receipts == []
    if box.kind != "maildir":  # which stays behind the present by two seconds
        assert unmatched == 0
    box.deliver(letters.dsn(to=path(2)))
    assert [one.key for one in drain(box.open(), cursor)[0]] == [key(2)]


def test_a_maildir_forgets_what_is_old_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from notifyctl.transports import mailbox_maildir

    monkeypatch.setattr(mailbox_maildir, "_MARGIN", 0)
    with ExitStack() as stack:
        box = Box("maildir", tmp_path, stack)
        box.deliver(letters.note(), letters.note())
        _, unmatched, cursor = drain(box.open())
        assert unmatched == 2
        assert drain(box.open(), cursor)[:2] == ([], 0)
        box.deliver(letters.dsn(to=path(1)))  # its name is lower than the others'
        assert len(drain(box.open(), cursor)[0]) == 1


def test_a_maildir_position_in_the_future_is_not_believed(tmp_path: Path) -> None:
    with ExitStack() as stack:
        box = Box("maildir", tmp_path, stack)
        box.deliver(letters.dsn(to=path(1)))
        assert len(drain(box.open(), f"{4 * 10**18}/x")[0]) == 1


def test_receipts_of_nobodys_deliveries_leave_their_letters_where_they_are(box: Box) -> None:
    foreign = letters.dsn(message_id="<somebody@else.example>")
    box.deliver(foreign, letters.dsn(to=path(1)))
    transport = box.open()
    read = page(transport)
    unknown = tuple(one for one in read.receipts if not one.key)
    assert len(unknown) == 1
    cursor = transport.fed(read, unknown, soon())
    assert box.waiting() == [foreign]
    assert cursor is not None
    assert page(transport, cursor).receipts == ()


def test_a_large_mailbox_is_read_in_bounded_pages(box: Box) -> None:
    box.deliver(*(letters.dsn(to=path(number)) for number in range(230)), *[letters.note()] * 20)
    transport = box.open()
    first = page(transport, limit=1000)
    assert (len(first.receipts) + first.unmatched, first.more) == (100, True)
    assert len(page(transport, limit=7).receipts) == 7
    receipts, unmatched, _ = drain(transport, limit=1000)
    assert ({one.key for one in receipts}, unmatched) == ({key(number) for number in range(230)}, 20)
    assert len(receipts) == 230


def test_small_limits_get_on_run_by_run(box: Box) -> None:
    box.deliver(*(letters.dsn(message_id=f"<{number}@else.example>") for number in range(6)), letters.dsn(to=path(1)))
    cursor, found = "", []
    for _ in range(5):  # each run takes two, of which nobody knows any
        transport = box.open()
        read = page(transport, cursor, limit=2)
        found += [one.key for one in read.receipts if one.key]
        cursor = transport.fed(read, [one for one in read.receipts if not one.key], soon()) or read.cursor
        if box.kind == "maildir":
            _age(box)
    if box.kind != "maildir":
        assert found == [key(1)]


def test_letters_that_are_moved_meanwhile_are_marked_where_they_are(tmp_path: Path) -> None:
    with ExitStack() as stack:
        box = Box("maildir", tmp_path, stack)
        box.deliver(letters.dsn(to=path(1)), letters.dsn(to=path(2)))
        transport = box.open()
        read = page(transport)
        for file in list((box.maildir / "new").iterdir()):  # as an IMAP server does with a folder it is asked for
            file.rename(box.maildir / "cur" / f"{file.name}:2,")
        transport.fed(read, (), soon())
        assert box.waiting() == []
        assert all(one.name.endswith(":2,S") for one in (box.maildir / "cur").iterdir())


def test_settled_letters_can_be_deleted(box: Box) -> None:
    box.deliver(letters.dsn(to=path(1)), letters.note())
    drain(box.open(delete=True))
    left = [*(box.maildir / "new").iterdir(), *(box.maildir / "cur").iterdir()]
    assert [one.read_bytes() for one in left] == [letters.note()]


def test_without_delete_a_pop3_mailbox_keeps_its_letters_and_is_not_read_anew(tmp_path: Path) -> None:
    with ExitStack() as stack:
        box = Box("pop3", tmp_path, stack)
        box.deliver(*(letters.dsn(to=path(number)) for number in range(5)))
        receipts, _, cursor = drain(box.open(delete=None), limit=2)
        assert (len(receipts), len(box.waiting())) == (5, 5)
        box.deliver(letters.dsn(to=path(7)))
        receipts, _, cursor = drain(box.open(delete=None), cursor, limit=2)
        assert [one.key for one in receipts] == [key(7)]
        assert len(drain(box.open(delete=None), "0123456789ab,|")[0]) == 6  # its anchors are gone: from the beginning


def test_a_new_uidvalidity_begins_anew_and_says_nothing_new(tmp_path: Path) -> None:
    with ExitStack() as stack:
        box = Box("imap", tmp_path, stack)
        box.deliver(letters.dsn(to=path(1)), letters.note())
        transport = box.open()
        receipts, unmatched, cursor = drain(transport)
        assert (len(receipts), unmatched) == (1, 1)
        transport.close()
        assert box.server
        box.server.renumber()
        box.deliver(letters.dsn(to=path(2)))
        receipts, unmatched, after = drain(box.open(), cursor)
        assert [one.key for one in receipts] == [key(2)]  # what was settled is known by its flag
        assert unmatched == 1  # the note is met once more
        assert after.partition(":")[0] != cursor.partition(":")[0]


def test_a_letter_larger_than_what_is_read_is_understood_by_its_beginning(box: Box) -> None:
    box.deliver(letters.dsn(to=path(1)) + b"x" * 70 + b"\r\n" + (b"y" * 76 + b"\r\n") * 30_000)
    assert [one.key for one in drain(box.open())[0]] == [key(1)]


def test_a_letter_with_very_long_lines_is_read(box: Box) -> None:
    box.deliver(letters.dsn(to=path(1)) + b"<p>" * 100_000 + b"\r\n")
    assert [one.key for one in drain(box.open())[0]] == [key(1)]


def test_the_mailbox_is_part_of_the_checkup(box: Box) -> None:
    box.deliver(letters.note())
    bounces = box.open()._bounces  # type: ignore[attr-defined]
    assert set(bounces.check(soon()).values()) == {"1"}


# -- servers --


@pytest.mark.parametrize("kind", ["imap", "pop3"])
@pytest.mark.parametrize("mode", ["implicit", "starttls"])
def test_tls_is_verified(kind: str, mode: str, tmp_path: Path) -> None:
    dovecot.need()
    trusted, _ = certificate(tmp_path, "localhost")
    both = tmp_path / "server.pem"
    with ExitStack() as stack:
        server = stack.enter_context(dovecot.Dovecot(pem=(both, both)))
        port = {"imap": (server.imap, server.imaps), "pop3": (server.pop3, server.pop3s)}[kind][mode == "implicit"]
        server.deliver(letters.dsn(to=path(1)))

        def read(host: str, **more: Any) -> list[Receipt]:
            options = {
                kind: f"{host}:{port}",
                "tls": mode,
                "username": server.user,
                "password": server.password,
                **more,
            }
            found = material.settings("smtp", tmp_path, host="127.0.0.1", port=1, bounces=options)
            transport = open_transport(found, KEYS.return_path)
            stack.callback(transport.close)
            return drain(transport)[0]

        for host, more in (("localhost", {}), ("127.0.0.1", {"ca_file": str(trusted)})):
            with pytest.raises(Trouble, match="certificate_invalid") as caught:
                read(host, **more)
            assert caught.value.config
        assert len(read("localhost", ca_file=str(trusted))) == 1


@pytest.mark.parametrize("kind", ["imap", "pop3"])
def test_what_a_person_must_mend_is_told_as_such(kind: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        box = Box(kind, tmp_path, stack)
        for more, reason in [
            ({"password": "wrong"}, "credentials_rejected"), ({"tls": "starttls"}, "starttls_missing"),
            *([({"folder": "Nowhere"}, "folder_missing")] if kind == "imap" else []),
        ]:  # fmt: skip
            with pytest.raises(Trouble, match=reason) as caught:
                page(box.open(**more))
            assert caught.value.config
            assert "wrong" not in str(caught.value)


def test_a_login_without_auth_plain_quotes_user_and_password(tmp_path: Path) -> None:
    import re
    import socket
    import threading

    listener = socket.create_server(("127.0.0.1", 0))
    heard: list[bytes] = []

    def talk() -> None:
        peer, _ = listener.accept()
        with peer, peer.makefile("rwb") as stream:
            stream.write(b"* OK hello\r\n")
            stream.flush()
            for line in stream:
                tag = line.partition(b" ")[0]
                heard.append(line)
                extra = b"* CAPABILITY IMAP4rev1\r\n" if b"CAPABILITY" in line else b""
                done = b"NO" if b"LOGIN" in line else b"OK"
                stream.write(extra + tag + b" " + done + b" done\r\n")
                stream.flush()

    thread = threading.Thread(target=talk, daemon=True)
    thread.start()
    table = {"imap": f"127.0.0.1:{listener.getsockname()[1]}", "username": 'a "b', "password": "c\\d"}
    found = material.settings("smtp", tmp_path, host="127.0.0.1", bounces=table)
    with pytest.raises(Trouble, match="credentials_rejected"):
        open_transport(found, KEYS.return_path).feed("", 10, soon())
    assert any(re.fullmatch(rb'\w+ LOGIN "a \\"b" "c\\\\d"\r\n', line) for line in heard)
    thread.join()
    listener.close()


@pytest.mark.parametrize("kind", ["imap", "pop3"])
@pytest.mark.parametrize("says", [b"", b"* OK [", b"x" * 100])
def test_a_server_that_hangs_or_drips_is_left_at_the_deadline(kind: str, says: bytes, tmp_path: Path) -> None:
    import socket
    import threading

    listener = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def drip() -> None:
        peer, _ = listener.accept()
        with peer:
            for byte in says:
                if over.wait(0.02):
                    return
                peer.sendall(bytes([byte]))
            over.wait(30)

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    options = {kind: f"127.0.0.1:{listener.getsockname()[1]}", "username": "u", "password": "p"}
    found = material.settings("smtp", tmp_path, host="127.0.0.1", port=1, bounces=options)
    try:
        with pytest.raises(Trouble, match="deadline"):
            open_transport(found, KEYS.return_path).feed("", 10, Deadline.after(0.4))
    finally:
        over.set()
        thread.join()
        listener.close()


@pytest.mark.parametrize("kind", ["imap", "pop3"])
@pytest.mark.parametrize("says", [b"\xff\0nonsense\r\n" * 50, b"+OK\r\n" * 50, b"* OK hi\r\n* BYE\r\n", b"-ERR no\r\n"])
def test_a_server_that_talks_nonsense_is_a_trouble(kind: str, says: bytes, tmp_path: Path) -> None:
    import socket
    import threading

    listener = socket.create_server(("127.0.0.1", 0))

    def talk() -> None:
        peer, _ = listener.accept()
        with peer:
            peer.sendall(says)
            peer.shutdown(socket.SHUT_WR)
            while peer.recv(1000):
                pass

    thread = threading.Thread(target=talk, daemon=True)
    thread.start()
    options = {kind: f"127.0.0.1:{listener.getsockname()[1]}", "username": "u", "password": "p"}
    found = material.settings("smtp", tmp_path, host="127.0.0.1", port=1, bounces=options)
    with pytest.raises(Trouble):
        open_transport(found, KEYS.return_path).feed("", 10, Deadline.after(5))
    thread.join()
    listener.close()


def test_a_folder_that_is_no_maildir_is_told(tmp_path: Path) -> None:
    found = material.settings("smtp", tmp_path, host="127.0.0.1", bounces={"maildir": "nowhere"})
    with pytest.raises(Trouble, match="maildir_missing") as caught:
        open_transport(found, KEYS.return_path).feed("", 10, soon())
    assert caught.value.config


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_letter_that_may_not_be_read_stays(tmp_path: Path) -> None:
    with ExitStack() as stack:
        box = Box("maildir", tmp_path, stack)
        dovecot.deliver(box.maildir, letters.dsn(to=path(1))).chmod(0)
        assert drain(box.open())[:2] == ([], 1)


# -- the configuration --


def test_collecting_bounces_is_declared() -> None:
    plain = open_transport(material.settings("smtp", Path("/"), host="127.0.0.1"))
    assert (plain.feeds, plain.capabilities.receipts) == (False, Receipts.NONE)
    assert plain.feed("c", 1, soon()) == FeedPage(cursor="c")
    found = material.settings("smtp", Path("/"), host="127.0.0.1", bounces={"maildir": "box"})
    collecting = open_transport(found, KEYS.return_path)
    assert (collecting.feeds, collecting.capabilities.receipts) == (True, Receipts.BOUNCES_ONLY)


LOGIN = {"username": "u", "password": "p"}


@pytest.mark.parametrize(
    ("bounces", "said"),
    [
        ("box", "relay.bounces must be a table"),
        ({}, "relay.bounces names no mailbox"),
        ({"maildir": "a", "imap": "b"}, "relay.bounces.maildir and imap are both given"),
        ({"maildir": ""}, "relay.bounces.maildir is empty"),
        ({"maildir": "a", "username": "u"}, "relay.bounces.username means nothing beside maildir"),
        ({"maildir": "a", "folder": "u"}, "relay.bounces.folder means nothing beside maildir"),
        ({"pop3": "a", **LOGIN, "folder": "u"}, "relay.bounces.folder means nothing beside pop3"),
        ({"maildir": "a", "delete": "yes"}, "relay.bounces.delete must be true or false"),
        ({"maildir": "a", "return_path_domain": "a b"}, "relay.bounces.return_path_domain is no domain"),
        ({"maildir": "a", "return_path_domain": "bücher.example"}, "relay.bounces.return_path_domain is no domain"),
        ({"maildir": "a", "return_path_user": "x"}, "relay.bounces.return_path_domain is missing"),
        ({"maildir": "a", "return_path_domain": "b.example", "return_path_user": "a" * 15}, "return_path_user must"),
        ({"imap": ""}, "relay.bounces.imap is no host"),
        ({"imap": "a:b"}, "relay.bounces.imap is no host"),
        ({"imap": "a:99999"}, "relay.bounces.imap is no host"),
        ({"imap": "a"}, "relay.bounces.username is missing"),
        ({"imap": "a", "username": "u"}, "relay.bounces.password is missing"),
        ({"imap": "a", "username": "u", "password_env": "NOTIFYCTL_NO_SUCH"}, "NOTIFYCTL_NO_SUCH, which is not set"),
        ({"imap": "a", **LOGIN, "tls": "maybe"}, "relay.bounces.tls is unknown"),
        ({"imap": "a", **LOGIN, "ca_file": "nowhere.pem"}, "relay.bounces.ca_file cannot be read"),
        ({"imap": "a", **LOGIN, "folder": "Zurück"}, "relay.bounces.folder must be"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_the_table_is_named(bounces: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        open_transport(material.settings("smtp", tmp_path, host="127.0.0.1", bounces=bounces))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "value", "tls", "expected"),
    [
        ("imap", "mail.example.com", None, ("mail.example.com", 993, "implicit")),
        ("imap", "mail.example.com:143", None, ("mail.example.com", 143, "starttls")),
        ("imap", "mail.example.com", "starttls", ("mail.example.com", 143, "starttls")),
        ("imap", "localhost", None, ("localhost", 143, "none")),
        ("imap", "[::1]:1143", None, ("::1", 1143, "none")),
        ("pop3", "mail.example.com", None, ("mail.example.com", 995, "implicit")),
        ("pop3", "mail.example.com:110", None, ("mail.example.com", 110, "starttls")),
        ("pop3", "127.0.0.1:1110", None, ("127.0.0.1", 1110, "none")),
    ],
)
def test_tls_is_the_default_except_on_this_machine(
    kind: str, value: str, tls: str | None, expected: tuple[str, int, str], tmp_path: Path
) -> None:
    from notifyctl.transports.mail_client import server

    options = {kind: value, **LOGIN, **({"tls": tls} if tls else {})}
    found = server(material.settings("smtp", tmp_path, **options), kind, {"imap": (143, 993), "pop3": (110, 995)}[kind])
    assert (found.host, found.port, found.mode) == expected
    assert "p'" not in repr(found)


def test_a_login_in_the_clear_to_another_machine_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = {"imap": "mail.example.com", "tls": "none", **LOGIN}
    open_transport(material.settings("smtp", tmp_path, host="127.0.0.1", bounces=table))
    assert "transports.relay.bounces.tls is none" in caplog.text


def _age(box: Box) -> None:
    """Nothing but a new process: time itself cannot be moved for the file system."""
    assert box.maildir.is_dir()
