"""The `file` transport: a real sink, idempotent by key across processes, kills and mail clients."""

from __future__ import annotations

import fcntl
import json
import mailbox
import os
import subprocess
import sys
from email import message_from_bytes
from pathlib import Path
from typing import Any

import pytest

from notifyctl.clock import Deadline
from notifyctl.errors import ConfigError
from notifyctl.model import Absent, Channel, Found, OutcomeKind, Receipts, ReceiptStatus, Scope
from notifyctl.transports.base import Transport
from notifyctl.transports.registry import open_transport
from tests.transports.material import mail, raw, settings, sms, submit, together

ACCEPTED, UNAVAILABLE = OutcomeKind.ACCEPTED, OutcomeKind.UNAVAILABLE
ROOT = Path(__file__).parents[2]


def folder(base: Path, **options: Any) -> Transport:
    return open_transport(settings("file", base, path="outbox", **options))


def lines(base: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (base / "outbox/sms.jsonl").read_bytes().splitlines()]


def mails(base: Path) -> list[Path]:
    return sorted((base / "outbox/mail").glob("*/*"))


def test_a_mail_lies_in_a_maildir_that_a_mail_client_opens(tmp_path: Path) -> None:
    outcome = submit(folder(tmp_path), mail(3))
    assert outcome.kind is ACCEPTED
    (path,) = mails(tmp_path)
    assert (path.parent.name, path.suffix) == ("new", ".eml")
    assert path.read_bytes() == raw(3)
    (read,) = mailbox.Maildir(tmp_path / "outbox/mail", create=False)
    assert message_from_bytes(bytes(read))["Message-ID"] == "<3@example.com>"


def test_a_text_message_is_one_line_with_everything_said_of_it(tmp_path: Path) -> None:
    assert submit(folder(tmp_path), sms(4)).kind is ACCEPTED
    assert lines(tmp_path) == [
        {
            "key": "key-4",
            "to": "+447700900123",
            "from": "Shop",
            "text": "Grüße €",
            "encoding": "gsm7",
            "segments": 1,
            "at": "2027-03-01T12:00:00Z",
        }
    ]


@pytest.mark.parametrize("message", [mail(), sms()], ids=["mail", "sms"])
def test_the_same_key_is_accepted_again_and_written_once(message: Any, tmp_path: Path) -> None:
    first, second = folder(tmp_path), folder(tmp_path)
    outcomes = [submit(one, message) for one in (first, second, first)]
    assert {one.kind for one in outcomes} == {ACCEPTED}
    assert len({one.remote_ids for one in outcomes}) == 1
    assert len(mails(tmp_path)) + (len(lines(tmp_path)) if message == sms() else 0) == 1


def test_a_mail_that_was_read_moved_or_deleted_is_not_written_again(tmp_path: Path) -> None:
    transport = folder(tmp_path)
    submit(transport, mail())
    (path,) = mails(tmp_path)
    path.rename(path.parents[1] / "cur" / f"{path.name}:2,S")
    assert submit(transport, mail()).kind is ACCEPTED
    assert len(mails(tmp_path)) == 1
    mails(tmp_path)[0].unlink()
    assert submit(transport, mail()).kind is ACCEPTED
    assert mails(tmp_path) == []


def test_a_kill_between_writing_and_remembering_makes_no_second_copy(tmp_path: Path) -> None:
    transport = folder(tmp_path)
    submit(transport, mail(1))
    submit(transport, mail(2))
    submit(transport, sms(3))
    (moved, _) = mails(tmp_path)
    moved.rename(moved.parents[1] / "cur" / f"{moved.name}:2,RS")
    for mark in (tmp_path / "outbox/.accepted").iterdir():
        mark.unlink()
    again = folder(tmp_path)
    assert [type(again.find(f"key-{n}")) for n in (1, 2, 3, 4)] == [Found, Found, Found, Absent]
    for mark in (tmp_path / "outbox/.accepted").iterdir():
        mark.unlink()
    for message in (mail(1), mail(2), sms(3)):
        assert submit(again, message).kind is ACCEPTED
    assert (len(mails(tmp_path)), len(lines(tmp_path))) == (2, 1)


def test_a_torn_last_line_is_removed_by_the_next_writer(tmp_path: Path) -> None:
    transport = folder(tmp_path)
    submit(transport, sms(1))
    with (tmp_path / "outbox/sms.jsonl").open("ab") as stream:
        stream.write(b'{"key": "key-2", "to": "+44')
    assert transport.find("key-2") == Absent()
    assert submit(transport, sms(2)).kind is ACCEPTED
    assert [one["key"] for one in lines(tmp_path)] == ["key-1", "key-2"]


_WRITER = """
import sys
from pathlib import Path
from tests.transports.material import mail, sms, settings, submit
from notifyctl.transports.registry import open_transport
transport = open_transport(settings("file", Path(sys.argv[1]), path="outbox", fail=[
    {"match": "r1@example.org", "outcome": "temporary_failure", "times": 3}]))
for number in range(2, 30):
    assert submit(transport, mail(number)).kind == "accepted"
    assert submit(transport, sms(100 + number)).kind == "accepted"
print(submit(transport, mail(1)).kind)
"""


def test_eight_processes_write_every_key_once_and_count_scripts_together(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for _ in range(8)
    ]
    said = [writer.communicate(timeout=60)[0].strip() for writer in writers]
    assert [writer.returncode for writer in writers] == [0] * 8
    assert said.count("temporary_failure") == 3
    assert said.count("accepted") == 5
    assert len(mails(tmp_path)) == 29
    assert sorted(one["key"] for one in lines(tmp_path)) == sorted(f"key-{100 + n}" for n in range(2, 30))


def test_a_writer_killed_at_any_moment_leaves_whole_lines_and_whole_mails(tmp_path: Path) -> None:
    for _ in range(6):
        writer = subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE)
        before = len(mails(tmp_path))
        while writer.poll() is None and len(mails(tmp_path)) <= before + 3:
            pass
        writer.kill()
        writer.communicate()
    finished = subprocess.run([sys.executable, "-c", _WRITER, str(tmp_path)], cwd=ROOT, check=True, capture_output=True)
    assert finished.stdout.strip() in {b"accepted", b"temporary_failure"}
    assert sorted(one["key"] for one in lines(tmp_path)) == sorted(f"key-{100 + n}" for n in range(2, 30))
    whole = list((tmp_path / "outbox/mail/new").iterdir())
    assert len(whole) in {28, 29}
    assert all(one.read_bytes().endswith(b"Hello\r\n") for one in whole)


def test_threads_share_one_folder(tmp_path: Path) -> None:
    transport = folder(tmp_path)

    def work(_: int) -> list[OutcomeKind]:
        return [submit(transport, one).kind for i in range(10) for one in (mail(i), sms(100 + i))]

    assert together(10, work) == [[ACCEPTED] * 20] * 10
    assert (len(lines(tmp_path)), len(mails(tmp_path))) == (10, 10)


def test_what_was_accepted_is_delivered_and_found(tmp_path: Path) -> None:
    transport = folder(tmp_path)
    (remote_id,) = submit(transport, mail()).remote_ids
    receipts = transport.receipts([remote_id, "unknown", "../../etc/passwd"])
    assert receipts[remote_id].status is ReceiptStatus.DELIVERED
    assert receipts[remote_id].provider_time is not None
    assert receipts["unknown"].status is ReceiptStatus.GONE
    assert transport.find("key-1") == Found(remote_id)
    assert transport.find("key-2") == Absent()


def test_the_capabilities_say_that_doubt_can_be_settled(tmp_path: Path) -> None:
    capabilities = folder(tmp_path).capabilities
    assert capabilities.can_settle_doubt
    assert capabilities.absence_proves_unsent
    assert capabilities.receipts is Receipts.LOOKUP
    assert capabilities.channels == {Channel.EMAIL, Channel.SMS}


# -- trouble --


@pytest.mark.parametrize("message", [mail(), sms()], ids=["mail", "sms"])
def test_a_path_that_is_no_folder_is_a_matter_of_configuration(message: Any, tmp_path: Path) -> None:
    (tmp_path / "outbox").write_text("in the way")
    outcome = submit(folder(tmp_path), message)
    assert (outcome.kind, outcome.reason, outcome.config) == (UNAVAILABLE, "folder_not_writable", True)
    assert outcome.scope is Scope.ACCOUNT
    checked = folder(tmp_path).check(Deadline.after(1)).outcome
    assert checked is not None
    assert checked.reason == "folder_not_writable"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_a_matter_of_configuration(tmp_path: Path) -> None:
    (tmp_path / "outbox").mkdir(mode=0o500)
    outcome = submit(folder(tmp_path), mail())
    assert (outcome.reason, outcome.config) == ("folder_not_writable", True)


_FULL = """
import resource, sys
from pathlib import Path
from tests.transports.material import mail, raw, sms, settings, submit
from notifyctl.transports.registry import open_transport
transport = open_transport(settings("file", Path(sys.argv[1]), path="outbox"))
submit(transport, sms(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))
for message in (sms(2), mail(3, data=raw(3, b"x" * 500))):
    outcome = submit(transport, message)
    print(outcome.kind, outcome.reason, outcome.config)
"""


def test_a_full_disk_is_unavailable_and_leaves_nothing_that_counts(tmp_path: Path) -> None:
    """A limit on the size of files cuts a write short, as a full disk does."""
    full = subprocess.run([sys.executable, "-c", _FULL, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert full.stdout.splitlines() == ["unavailable disk_full False"] * 2, full.stderr
    assert mails(tmp_path) == []
    transport = folder(tmp_path)
    assert transport.find("key-2") == transport.find("key-3") == Absent()
    assert submit(transport, sms(2)).kind is ACCEPTED
    assert [one["key"] for one in lines(tmp_path)] == ["key-1", "key-2"]


def test_a_lock_held_by_somebody_else_ends_with_the_deadline(tmp_path: Path) -> None:
    transport = folder(tmp_path)
    submit(transport, sms(1))
    with (tmp_path / "outbox/sms.jsonl").open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        outcome = submit(transport, sms(2), 0.1)
    assert (outcome.kind, outcome.reason) == (OutcomeKind.TEMPORARY_FAILURE, "deadline")
    assert len(lines(tmp_path)) == 1


def test_after_the_deadline_nothing_is_written(tmp_path: Path) -> None:
    assert submit(folder(tmp_path), mail(), -1).kind is OutcomeKind.TEMPORARY_FAILURE
    assert not (tmp_path / "outbox").exists()


def test_a_folder_that_was_emptied_is_made_again(tmp_path: Path) -> None:
    import shutil

    transport = folder(tmp_path)
    submit(transport, mail(1))
    shutil.rmtree(tmp_path / "outbox")
    assert submit(transport, mail(2)).kind is ACCEPTED
    assert len(mails(tmp_path)) == 1


# -- scripts --


def test_scripts_apply_in_order_and_run_out(tmp_path: Path) -> None:
    fail = [
        {"match": "*@BAD.example", "outcome": "permanent_failure", "reason": "invalid_recipient", "times": 1},
        {"match": "*@bad.example", "outcome": "rate_limited", "retry_after": "2m", "scope": "account", "times": 2},
        {"match": "+44*", "outcome": "unavailable"},
    ]
    transport = folder(tmp_path, fail=fail)
    first = submit(transport, mail(to="a@bad.example"))
    assert (first.kind, first.reason) == (OutcomeKind.PERMANENT_FAILURE, "invalid_recipient")
    second = submit(folder(tmp_path, fail=fail), mail(to="a@Bad.Example"))
    assert (second.kind, second.retry_after, second.scope) == (OutcomeKind.RATE_LIMITED, 120.0, Scope.ACCOUNT)
    assert submit(transport, mail(to="a@bad.example")).kind is OutcomeKind.RATE_LIMITED
    assert submit(transport, mail(to="a@bad.example")).kind is ACCEPTED
    assert submit(transport, sms(2)).scope is Scope.ACCOUNT
    assert submit(transport, sms(2)).kind is UNAVAILABLE


def test_a_lost_answer_can_be_scripted_and_is_found_again(tmp_path: Path) -> None:
    transport = folder(tmp_path, fail=[{"match": "*", "outcome": "ambiguous", "after_accept": True, "times": 1}])
    assert submit(transport, mail()).kind is OutcomeKind.AMBIGUOUS
    assert len(mails(tmp_path)) == 1
    assert isinstance(transport.find("key-1"), Found)
    assert submit(transport, mail()).kind is ACCEPTED
    assert len(mails(tmp_path)) == 1


def test_doubt_without_acceptance_can_be_scripted(tmp_path: Path) -> None:
    transport = folder(tmp_path, fail=[{"match": "*", "outcome": "ambiguous", "times": 1}])
    assert submit(transport, mail()).kind is OutcomeKind.AMBIGUOUS
    assert transport.find("key-1") == Absent()


@pytest.mark.parametrize(
    ("fail", "key"),
    [
        ("x", "fail"),
        (["x"], r"fail\[0\]"),
        ([{"outcome": "unavailable"}], r"fail\[0\]\.match"),
        ([{"match": "*"}], r"fail\[0\]\.outcome"),
        ([{"match": "*", "outcome": "accepted"}], r"fail\[0\]\.outcome"),
        ([{"match": "*", "outcome": ["unavailable"]}], r"fail\[0\]\.outcome"),
        ([{"match": "*", "outcome": "unavailable"}, {"match": "*", "outcome": "nonsense"}], r"fail\[1\]\.outcome"),
        ([{"match": "*", "outcome": "unavailable", "times": 0}], r"fail\[0\]\.times"),
        ([{"match": "*", "outcome": "unavailable", "times": True}], r"fail\[0\]\.times"),
        ([{"match": "*", "outcome": "unavailable", "reason": "Two words"}], r"fail\[0\]\.reason"),
        ([{"match": "*", "outcome": "unavailable", "retry_after": "soon"}], r"fail\[0\]\.retry_after"),
        ([{"match": "*", "outcome": "unavailable", "retry_after": -1}], r"fail\[0\]\.retry_after"),
        ([{"match": "*", "outcome": "unavailable", "scope": "all"}], r"fail\[0\]\.scope"),
        ([{"match": "*", "outcome": "unavailable", "after_accept": True}], r"fail\[0\]\.after_accept"),
        ([{"match": "*", "outcome": "unavailable", "matsch": 1}], r"fail\[0\]\.matsch"),
    ],
)
def test_a_wrong_script_is_refused_naming_its_key(fail: Any, key: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"transports\.relay\.{key} "):
        folder(tmp_path, fail=fail)


def test_a_missing_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"transports\.relay\.path is missing"):
        open_transport(settings("file", tmp_path))
