"""Attachments: fetched by key from an object store (any fsspec URL), streamed under a cap, verified first of all.

What cannot heal (missing, changed, too large, a key that leaves the root) refuses the delivery; a store that does not
answer only delays it. Bytes whose SHA-256 is not the stated one are never used for anything.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from posixpath import basename
from typing import Any

from notifyctl.errors import InputError
from notifyctl.model import Attachment

CHUNK = 1 << 20  # bytes read at a time
_M_MMAP_THRESHOLD = -3  # malloc.h
LARGEST = 25 * 1000 * 1000  # bytes of one attachment: what mail systems commonly take, before base64


class StoreUnavailable(Exception):
    """The object store cannot be asked now; the delivery waits. Holds no key and no text of the store's."""


def _refuse(message: str, reason: str, hint: str = "") -> InputError:
    return InputError(message, reason=reason, field="attach", hint=hint)


class Objects:
    """The object store below one root. Safe to share between threads; opened when first used."""

    def __init__(self, root: str, largest: int = LARGEST) -> None:
        self._root = root
        self._largest = largest
        self._opened: tuple[Any, str] | None = None

    def fetch(self, attachment: Attachment) -> bytes:
        """The object's bytes, equal to the stated SHA-256. Raises InputError or StoreUnavailable."""
        if not attachment.sha256:
            raise _refuse(
                "an attachment has no SHA-256", "attachment_digest_missing",
                "state the SHA-256 of the bytes it must have",
            )  # fmt: skip
        content, digest = self._read(attachment.key)
        if digest != attachment.sha256.lower():
            raise _refuse("an attachment's bytes are not those that were enqueued", "attachment_changed")
        return content

    def digest(self, key: str) -> str:
        """The SHA-256 (hex) of an object as it is now. Raises InputError or StoreUnavailable."""
        return self._read(key, keep=False)[1]

    def _read(self, key: str, *, keep: bool = True) -> tuple[bytes, str]:
        checked(key)
        chunks: list[bytes] = []
        size, digest = 0, hashlib.sha256()
        try:
            with self._open(key) as stream:
                self._check_announced(stream)
                while chunk := stream.read(CHUNK):
                    size += len(chunk)
                    if size > self._largest:
                        break
                    digest.update(chunk)
                    if keep:
                        chunks.append(chunk)
        except InputError:
            raise
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            raise _refuse("an attachment does not exist", "attachment_missing") from None
        except Exception as error:  # whatever a store's driver raises: it may quote the key, so only its kind is kept
            raise StoreUnavailable(type(error).__name__) from None
        if size > self._largest:
            raise self._too_large()
        return b"".join(chunks), digest.hexdigest()

    def _check_announced(self, stream: Any) -> None:
        """Refuse what the store itself says: it opens a prefix of keys as an empty file, and fetches far ahead."""
        details = getattr(stream, "details", None)
        if isinstance(details, Mapping) and details.get("type") == "directory":
            raise IsADirectoryError
        size = getattr(stream, "size", None)
        if isinstance(size, int) and size > self._largest:
            raise self._too_large()

    def _too_large(self) -> InputError:
        return _refuse(f"an attachment is over {self._largest} bytes", "attachment_too_large")

    def _open(self, key: str) -> Any:
        if not self._root:
            raise _refuse(
                "there is no object store to attach from", "attachment_missing",
                "set [objects] root in the configuration",
            )  # fmt: skip
        if self._opened is None:
            from fsspec.core import url_to_fs  # type: ignore[import-untyped]

            self._opened = url_to_fs(self._root)
            _return_large_blocks()
        store, root = self._opened
        path = f"{root.rstrip('/')}/{key}"
        if "file" in store.protocol and not Path(path).resolve().is_relative_to(Path(root).resolve()):
            raise _refuse("an attachment's key leads out of the object store", "attachment_key_invalid")
        return store.open(path, "rb")


def _return_large_blocks() -> None:
    """Let freed blocks of the size of attachments go back to the system at once. Left to itself, glibc learns from the
    first one freed to keep them, in an arena for each thread, which adds half of what is in flight."""
    import ctypes

    with suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 1 << 20)


def checked(key: str) -> str:
    """`key`, if it names something below a root and nothing else."""
    parts = key.split("/")
    odd = len(key) > 1024 or not key.isprintable() or "\\" in key or "://" in key
    if odd or {"", ".", ".."} & set(parts):
        raise _refuse(
            "an attachment's key is not a relative path", "attachment_key_invalid", "as in reports/2027/march.pdf"
        )
    return key


def parse(text: str) -> Attachment:
    """KEY[=SHA256][;name=FILENAME] as written on the command line; without a digest it is still to be computed."""
    head, *options = text.split(";")
    key, _, sha256 = head.partition("=")
    if sha256 and (len(sha256) != 64 or not all(c in "0123456789abcdefABCDEF" for c in sha256)):
        raise _refuse("an attachment's SHA-256 is not 64 hexadecimal digits", "attachment_digest_invalid")
    filename = ""
    for option in options:
        name, equals, value = option.partition("=")
        if name.strip() != "name" or not equals or not value.strip():
            raise _refuse("an attachment has an unknown option", "invalid", "write KEY=SHA256;name=FILENAME")
        filename = value.strip()
    filename = filename or basename(key)
    return Attachment(checked(key), sha256.lower(), filename, content_type(filename))


def content_type(filename: str) -> str:
    """By the name's ending, from the interpreter's own table: what the host has installed must not change a mail."""
    from mimetypes import MimeTypes

    return MimeTypes(filenames=()).guess_type(filename)[0] or "application/octet-stream"
