"""Keys of DKIM: every form a file has them in, and a clear word for each way to get it wrong."""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateNumbers, RSAPublicNumbers
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from notifyctl.compose.dkim_keys import signer
from notifyctl.errors import ConfigError
from notifyctl.settings import TransportSettings
from tests.compose import keys


def short() -> bytes:
    """An RSA key of 511 bits, out of two well-known primes: libraries refuse to make one."""
    p, q, e = 2**256 - 189, 2**255 - 19, 65537
    d = pow(e, -1, (p - 1) * (q - 1))
    numbers = RSAPrivateNumbers(p, q, d, d % (p - 1), d % (q - 1), pow(q, -1, p), RSAPublicNumbers(e, p * q))
    return keys.pem(numbers.private_key(unsafe_skip_rsa_key_validation=True))


def table(**changes: Any) -> dict[str, Any]:
    return {"domain": "shop.example", "selector": "s1", "key_file": "key.pem", **changes}


def complaint(base: Path, dkim: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        keys.made(base, dkim)
    return caught.value


def test_no_dkim_means_no_signer(tmp_path: Path) -> None:
    assert signer(TransportSettings("relay", "smtp", {}, tmp_path)) is None


def test_a_key_is_read_whatever_its_form(tmp_path: Path) -> None:
    rsa = load_pem_private_key(keys.rsa_pem(), None)
    curve = Ed25519PrivateKey.from_private_bytes(b64decode(keys.seed()))
    forms = {
        "pkcs8": (keys.rsa_pem(), "rsa-sha256"),
        "pkcs1": (keys.pem(rsa, PrivateFormat.TraditionalOpenSSL), "rsa-sha256"),
        "crlf": (keys.rsa_pem().replace(b"\n", b"\r\n"), "rsa-sha256"),
        "bom": (b"\xef\xbb\xbf" + keys.rsa_pem(), "rsa-sha256"),
        "with a text before it": (b"our key of 2026\n\n" + keys.rsa_pem(), "rsa-sha256"),
        "ed25519": (keys.pem(curve), "ed25519-sha256"),
        "seed": (keys.seed(), "ed25519-sha256"),
        "seed without a line end": (keys.seed().strip(), "ed25519-sha256"),
    }
    published = set()
    for name, (content, algorithm) in forms.items():
        keys.write(tmp_path / "key.pem", content)
        (key,) = keys.made(tmp_path, table()).keys
        assert (key.domain, key.selector, key.algorithm) == ("shop.example", "s1", algorithm), name
        published.add(key.record)
    assert len(published) == 2, "one public key each, whatever the form"


def test_a_domain_is_converted_as_it_stands_in_the_dns(tmp_path: Path) -> None:
    keys.write(tmp_path / "key.pem", keys.seed())
    for given, found in (("Bücher.example", "xn--bcher-kva.example"), ("SHOP.Example.", "shop.example"),
                         ("straße.example", "xn--strae-oqa.example")):  # fmt: skip
        assert keys.made(tmp_path, table(domain=given)).keys[0].domain == found


@pytest.mark.parametrize(
    ("changes", "key", "says"),
    [
        ({"key_file": "absent.pem"}, "key_file", "cannot be read: No such file"),
        ({"key_file": "."}, "key_file", "cannot be read: Is a directory"),
        ({"key_file": "a\0b"}, "key_file", "cannot be read"),
        ({"key_file": "encrypted.pem"}, "key_file", "is encrypted"),
        ({"key_file": "old-encrypted.pem"}, "key_file", "is encrypted"),
        ({"key_file": "public.pem"}, "key_file", "no private key"),
        ({"key_file": "text"}, "key_file", "neither a PEM private key nor"),
        ({"key_file": "empty"}, "key_file", "neither a PEM private key nor"),
        ({"key_file": "cut.pem"}, "key_file", "damaged"),
        ({"key_file": "curve.pem"}, "key_file", "neither RSA nor Ed25519"),
        ({"key_file": "short.pem"}, "key_file", "less than 1024 bits"),
        ({"key_file": ""}, "key_file", "is missing"),
        ({"key_file": 7}, "key_file", "must be a text"),
        ({"domain": ""}, "domain", "is missing"),
        ({"domain": "shop example"}, "domain", "is not a domain"),
        ({"domain": "shop.example; x=1"}, "domain", "is not a domain"),
        ({"selector": "s1; d=evil.example"}, "selector", "is not one or more DNS labels"),
        ({"selector": "s1\n"}, "selector", "is not one or more DNS labels"),
        ({"selectro": "s1"}, "selectro", "is not a known key"),
    ],
)
def test_a_key_that_cannot_be_used_is_named_and_not_shown(
    changes: dict[str, Any], key: str, says: str, tmp_path: Path
) -> None:
    rsa = load_pem_private_key(keys.rsa_pem(), None)
    hush = BestAvailableEncryption(b"hush")
    for name, content in {
        "key.pem": keys.rsa_pem(),
        "encrypted.pem": rsa.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, hush),
        "old-encrypted.pem": rsa.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, hush),
        "public.pem": rsa.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        "text": b"hello there, this is no key",
        "empty": b"",
        "cut.pem": keys.rsa_pem()[:300] + b"\n-----END PRIVATE KEY-----\n",
        "curve.pem": keys.pem(ec.generate_private_key(ec.SECP256R1())),
        "short.pem": short(),
    }.items():
        keys.write(tmp_path / name, content)
    for given, where in ((table(**changes), "dkim"), ([keys.table(tmp_path, "rsa"), table(**changes)], "dkim[2]")):
        error = complaint(tmp_path, given)
        assert error.message.startswith(f"transports.relay.{where}.{key} ")
        assert says in error.message
        assert "MII" not in error.message + error.hint


@pytest.mark.parametrize(
    ("dkim", "says"),
    [
        ("dkim.pem", "transports.relay.dkim must be a table"),
        ([], "transports.relay.dkim is an empty list"),
        (["x"], r"transports.relay.dkim[1] must be a table"),
        ([table(), table(selector="S1")], "transports.relay.dkim names one selector twice"),
    ],
)
def test_a_dkim_of_another_shape_is_refused_with_an_example(dkim: Any, says: str, tmp_path: Path) -> None:
    keys.write(tmp_path / "key.pem", keys.seed())
    error = complaint(tmp_path, dkim)
    assert error.message.startswith(says)
    assert error.hint


def test_a_weak_key_and_one_that_everybody_can_read_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys.write(tmp_path / "key.pem", keys.rsa_pem())
    keys.made(tmp_path, table())
    assert not caplog.records
    keys.write(tmp_path / "key.pem", keys.rsa_pem(1024))
    keys.made(tmp_path, table())
    assert "transports.relay.dkim.key_file names an RSA key of 1024 bits" in caplog.text
    (tmp_path / "key.pem").chmod(0o644)
    keys.made(tmp_path, table())
    assert "chmod o-r" in caplog.text


def test_nothing_of_a_key_is_shown_by_repr(tmp_path: Path) -> None:
    keys.write(tmp_path / "key.pem", keys.rsa_pem())
    assert "lambda" not in repr(keys.made(tmp_path, table()).keys)
