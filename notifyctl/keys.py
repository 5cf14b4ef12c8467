"""Keyed digests: each is an HMAC-SHA-256 under a key of its own, derived from the ledger's one random secret.

So nothing that leaves the ledger (wire keys, fingerprints in the trail) can be turned back into an address or an event
by guessing, and two ledgers that share a provider account never meet on a key.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence

from notifyctl.model import Attachment, Request

_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True)
# RFC 4648 base32 in lower case, two characters at a time: the standard library's takes ten times as long.
_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]


class Keys:
    """The derived keys of one ledger; `secret` is notify_meta's, in hex."""

    def __init__(self, secret: str) -> None:
        root = bytes.fromhex(secret)
        self._wire, self._fingerprint, self._content, self._verp, request = (
            hmac.digest(root, label, "sha256") for label in (b"wire", b"fingerprint", b"content", b"verp", b"request")
        )
        self._requests = hmac.new(request, digestmod=hashlib.sha256)  # copied for each: setting up is dear

    def wire(self, idempotency_key: str) -> str:
        """What providers see: 32 characters [a-z2-7], stable, telling nothing (it survives being lower-cased)."""
        number = int.from_bytes(hmac.digest(self._wire, idempotency_key.encode(), "sha256")[:20])
        return "".join([_PAIRS[number >> bits & 1023] for bits in range(150, -1, -10)])

    def return_path(self, wire: str) -> str:
        """The signature that makes a return path with this wire key ours: 80 bits as 16 characters [a-z2-7]."""
        number = int.from_bytes(hmac.digest(self._verp, wire.encode(), "sha256")[:10])
        return "".join([_PAIRS[number >> bits & 1023] for bits in range(70, -1, -10)])

    def fingerprint(self, channel: str, address: str) -> str:
        """The only form of an address outside its own columns; `address` is the bare normalized form."""
        return hmac.digest(self._fingerprint, f"{channel}:{address}".encode(), "sha256")[:16].hex()

    def content(
        self, variables: Mapping[str, object], attachments: Sequence[Attachment], destination: str | None
    ) -> str:
        """Over what a delivery says and to whom, in canonical form: still comparable once the content is erased."""
        document = [variables, [[a.key, a.sha256, a.filename, a.content_type] for a in attachments], destination]
        return hmac.digest(self._content, _CANONICAL.encode(document).encode(), "sha256").hex()

    def request(self, request: Request) -> str:
        """Over every byte that will be written, so that a replay that would differ is noticed."""
        mac = self._requests.copy()
        mac.update("\0".join((*request.envelope, "")).encode("utf-8", "surrogatepass"))
        mac.update(request.body)
        return mac.hexdigest()
