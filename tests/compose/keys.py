"""Private keys for the tests of DKIM, in every form a file may have them, and what the DNS would say of them."""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from notifyctl.compose.dkim import Signer
from notifyctl.compose.dkim_keys import signer
from notifyctl.settings import TransportSettings

DOMAIN = "shop.example"


def pem(key: Any, form: PrivateFormat = PrivateFormat.PKCS8) -> bytes:
    """The private key as PEM."""
    data: bytes = key.private_bytes(Encoding.PEM, form, NoEncryption())
    return data


@cache
def rsa_pem(bits: int = 2048) -> bytes:
    """An RSA key, the same one in all of a session's tests."""
    return pem(generate_private_key(65537, bits))


@cache
def seed() -> bytes:
    """The bare base64 of an Ed25519 seed."""
    key = Ed25519PrivateKey.generate()
    return b64encode(key.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())) + b"\n"


def write(path: Path, content: bytes) -> Path:
    """A key file that only its owner may read."""
    path.touch(0o600)
    path.write_bytes(content)
    return path


def table(base: Path, algorithm: str, domain: str = DOMAIN) -> dict[str, str]:
    """A `dkim` table for `rsa` or `ed25519`, its key file written below `base`."""
    write(base / f"{algorithm}.pem", rsa_pem() if algorithm == "rsa" else seed())
    return {"domain": domain, "selector": algorithm, "key_file": f"{algorithm}.pem"}


def made(base: Path, dkim: Any) -> Signer:
    """The signer that this `dkim` describes."""
    found = signer(TransportSettings("relay", "smtp", {"dkim": dkim}, base))
    assert found is not None
    return found


def records(signers: Sequence[Signer]) -> Mapping[str, str]:
    """The TXT records that would be published."""
    return {f"{key.selector}._domainkey.{key.domain}": key.record for one in signers for key in one.keys}


def save(folder: Path, mails: Mapping[str, bytes]) -> Path:
    """Write the mails as `NAME.eml` for the judges."""
    os.makedirs(folder, exist_ok=True)
    for name, raw in mails.items():
        (folder / f"{name}.eml").write_bytes(raw)
    return folder
