"""Attachments out of S3: the same promises as from a folder, against moto's server as the other end."""

from __future__ import annotations

import email
import email.policy
import hashlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from notifyctl.compose.attachments import Objects, StoreUnavailable
from notifyctl.errors import InputError
from notifyctl.model import Attachment
from tests.cli.rig import environment
from tests.site import Site
from tests.smtp_server import SmtpServer

s3fs = pytest.importorskip("s3fs", reason="the s3 extra is not installed: pip install notifyctl[s3]")
moto_server = pytest.importorskip("moto.server", reason="moto is not installed: pip install notifyctl[test]")

REPORT = bytes(range(256)) * 10_000  # more than two of the chunks that are read
SHA = hashlib.sha256(REPORT).hexdigest()
ROOT = "s3://reports/clinic"
KEY = "2027/march.pdf"


class Store:
    """A running S3 and the environment by which clients find it, as AWS's own tools do."""

    def __init__(self, port: int) -> None:
        import boto3

        self.environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true", "AWS_MAX_ATTEMPTS": "1",
        }  # fmt: skip
        self.client: Any = boto3.client(
            "s3", endpoint_url=self.environment["AWS_ENDPOINT_URL"], region_name="us-east-1", aws_access_key_id="id",
            aws_secret_access_key="secret",
        )  # fmt: skip

    def put(self, content: bytes, key: str = KEY) -> None:
        """Store an object below the root."""
        self.client.put_object(Bucket="reports", Key=f"clinic/{key}", Body=content)


@pytest.fixture(scope="module")
def running() -> Iterator[Store]:
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    store = Store(server.get_host_and_port()[1])
    store.client.create_bucket(Bucket="reports")
    yield store
    server.stop()


@pytest.fixture
def store(running: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """The store with one report, found by this process too; no client of an earlier test is used."""
    for name, value in running.environment.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    running.put(REPORT)
    running.client.delete_object(Bucket="reports", Key="clinic/2027/april.pdf")
    yield running
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def nowhere() -> str:
    """The URL of a store that is down."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def reason(objects: Objects, attachment: Attachment) -> str:
    with pytest.raises(InputError) as refused:
        objects.fetch(attachment)
    assert attachment.key not in f"{refused.value} {refused.value.hint}"
    return refused.value.reason


def test_an_objects_bytes_are_fetched_and_its_digest_is_taken(store: Store) -> None:
    assert Objects(ROOT).fetch(Attachment(KEY, SHA)) == REPORT
    assert Objects(f"{ROOT}/").digest(KEY) == SHA


def test_a_missing_key_and_a_folder_are_missing_attachments(store: Store) -> None:
    objects = Objects(ROOT)
    assert reason(objects, Attachment("2027/april.pdf", SHA)) == "attachment_missing"
    assert reason(objects, Attachment("2027", SHA)) == "attachment_missing"
    with pytest.raises(InputError) as refused:  # S3 opens a prefix as if it were an empty object
        objects.digest("2027")
    assert refused.value.reason == "attachment_missing"
    store.put(b"", "empty")
    assert objects.fetch(Attachment("empty", hashlib.sha256(b"").hexdigest())) == b""


def test_what_appears_or_changes_later_is_seen_by_the_same_client(store: Store) -> None:
    objects = Objects(ROOT)
    later = Attachment("2027/april.pdf", SHA)
    assert reason(objects, later) == "attachment_missing"
    store.put(REPORT, later.key)
    assert objects.fetch(later) == REPORT
    store.put(REPORT[:-1] + b"?", later.key)
    assert reason(objects, later) == "attachment_changed"


def test_a_large_object_is_refused_before_it_is_read_whole(store: Store) -> None:
    assert reason(Objects(ROOT, largest=len(REPORT) - 1), Attachment(KEY, SHA)) == "attachment_too_large"
    assert Objects(ROOT, largest=len(REPORT)).fetch(Attachment(KEY, SHA)) == REPORT


def test_a_store_that_is_down_is_not_a_missing_attachment(
    store: Store, nowhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", nowhere)
    with pytest.raises(StoreUnavailable) as down:
        Objects(ROOT).fetch(Attachment(KEY, SHA))
    assert "march" not in str(down.value)
    assert "reports" not in str(down.value)


@pytest.fixture
def site(tmp_path: Path, migrated_url: str, store: Store) -> Iterator[Site]:
    with Site(tmp_path / "site", migrated_url) as made:
        made.settings["objects"] = {"root": ROOT}
        made.configure()
        made.publish()
        yield made


def test_a_delivery_waits_for_its_store_and_then_carries_the_verified_bytes(
    site: Site, store: Store, nowhere: str
) -> None:
    up, down = environment(**store.environment), environment(**{**store.environment, "AWS_ENDPOINT_URL": nowhere})
    with SmtpServer() as server:
        site.configure(relay={"port": server.port})
        site.enqueue(1, attach=[f"{KEY}={SHA};name=Befund.pdf"])
        site.enqueue(1, first=2)
        done = site.dispatch(env=down)
        assert (done.code, done.json["deferred"], done.json["accepted"]) == (0, 1, 1)
        assert "march" not in done.out + done.err
        assert site.delivery(1, "state, reason, attempts_used") == ("queued", "object_store_unavailable", 0)
        assert len(server.messages) == 1
        site.later()
        assert site.dispatch(env=up).json["accepted"] == 1
        message = email.message_from_bytes(server.messages[1].raw, policy=email.policy.default)
        (part,) = message.iter_attachments()
        assert (part.get_filename(), part.get_payload(decode=True)) == ("Befund.pdf", REPORT)
        site.audit(server)


def test_bytes_that_changed_after_the_enqueue_and_keys_that_are_gone_are_never_sent(site: Site, store: Store) -> None:
    up = environment(**store.environment)
    with SmtpServer() as server:
        site.configure(relay={"port": server.port})
        row = {"recipient": "r-1", "channel": "email", "template": "note", "vars": {"name": "x"}}
        rows = [
            {**row, "event": "e1", "to": {"email": "r1@rcpt.example"}, "attach": [KEY]},
            {**row, "event": "e2", "to": {"email": "r1@rcpt.example"}, "attach": [f"2027/april.pdf={SHA}"]},
        ]
        file = site.path / "rows.ndjson"
        file.write_text("".join(f"{json.dumps(one)}\n" for one in rows), encoding="utf-8")
        assert site.run("enqueue", "--from", str(file), env=up).code == 0
        store.put(REPORT + b"!")
        done = site.dispatch(env=up)
        assert (done.code, done.json["permanent_failure"]) == (3, 2)
        assert site.delivery(1, "state, reason") == ("permanent_failure", "attachment_changed")
        assert site.delivery(2, "state, reason") == ("permanent_failure", "attachment_missing")
        assert server.messages == []
        assert "april" not in done.out + done.err
