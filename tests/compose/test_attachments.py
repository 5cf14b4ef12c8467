"""Attachments come from a store, under a cap, with exactly the bytes that were enqueued, or not at all."""

from __future__ import annotations

import hashlib
from pathlib import Path

import fsspec
import pytest

from notifyctl.compose.attachments import Objects, StoreUnavailable, parse
from notifyctl.errors import InputError
from notifyctl.model import Attachment

REPORT = b"%PDF-1.7 report" * 1000
SHA = hashlib.sha256(REPORT).hexdigest()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "objects"
    (folder / "2027").mkdir(parents=True)
    (folder / "2027" / "march.pdf").write_bytes(REPORT)
    (tmp_path / "secret.txt").write_bytes(b"not yours")
    return folder


def reason(objects: Objects, attachment: Attachment) -> str:
    with pytest.raises(InputError) as refused:
        objects.fetch(attachment)
    assert attachment.key == "" or attachment.key not in f"{refused.value} {refused.value.hint}"
    return refused.value.reason


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_bytes_with_the_stated_digest_are_fetched(root: Path, scheme: str) -> None:
    assert Objects(f"{scheme}{root}").fetch(Attachment("2027/march.pdf", SHA)) == REPORT
    assert Objects(f"{scheme}{root}/").fetch(Attachment("2027/march.pdf", SHA.upper())) == REPORT


def test_changed_missing_and_undeclared_bytes_are_refused(root: Path) -> None:
    objects = Objects(str(root))
    assert reason(objects, Attachment("2027/march.pdf", "0" * 64)) == "attachment_changed"
    assert reason(objects, Attachment("2027/april.pdf", SHA)) == "attachment_missing"
    assert reason(objects, Attachment("2027", SHA)) == "attachment_missing"
    assert reason(objects, Attachment("2027/march.pdf", "")) == "attachment_digest_missing"
    assert reason(Objects(str(root), largest=100), Attachment("2027/march.pdf", SHA)) == "attachment_too_large"


@pytest.mark.parametrize(
    "key", ["../secret.txt", "2027/../../secret.txt", "/etc/passwd", "", "a//b", "./a", "http://x/y", "a\\b", "a\0b"]
)
def test_a_key_never_leads_out_of_the_store(root: Path, key: str) -> None:
    assert reason(Objects(str(root)), Attachment(key, SHA)) == "attachment_key_invalid"


def test_a_link_never_leads_out_of_the_store(root: Path) -> None:
    (root / "link").symlink_to(root.parent / "secret.txt")
    assert reason(Objects(str(root)), Attachment("link", SHA)) == "attachment_key_invalid"


def test_a_store_of_another_kind_works_the_same() -> None:
    store = fsspec.filesystem("memory")
    store.pipe("/reports/a.pdf", REPORT)
    assert Objects("memory://reports").fetch(Attachment("a.pdf", SHA)) == REPORT
    assert reason(Objects("memory://reports"), Attachment("b.pdf", SHA)) == "attachment_missing"


def test_a_store_that_does_not_answer_is_not_a_missing_attachment(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    from fsspec.implementations.local import LocalFileSystem

    def refuse(*_: object, **__: object) -> None:
        raise ConnectionError("store of 2027/march.pdf is down")

    monkeypatch.setattr(LocalFileSystem, "open", refuse)
    with pytest.raises(StoreUnavailable) as down:
        Objects(str(root)).fetch(Attachment("2027/march.pdf", SHA))
    assert "march" not in str(down.value)


def test_the_command_lines_form_is_read() -> None:
    key, pdf = "2027/march.pdf", "application/pdf"
    assert parse(f"{key}={SHA};name=März.pdf") == Attachment(key, SHA, "März.pdf", pdf)
    assert parse(key) == Attachment(key, "", "march.pdf", pdf)
    for wrong in ("a=123", "a;size=3", "../a", "a;name="):
        with pytest.raises(InputError):
            parse(wrong)
