"""The DKIM keys of a transport: `dkim = { domain, selector, key_file }`, or a list of such tables, one signature each.

Read once per run. A key file holds a PEM private key (RSA or Ed25519, line ends of any kind), or the bare base64 of
the 32 octets of an Ed25519 seed. Every complaint is a ConfigError that names `transports.NAME.dkim…`; nothing of a key
ever stands in one.
"""

from __future__ import annotations

import logging
import re
import stat
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping
from pathlib import Path

from notifyctl.compose import destinations
from notifyctl.compose.dkim import Signer, SigningKey
from notifyctl.errors import ConfigError, InputError
from notifyctl.settings import TransportSettings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

_KEYS = ("domain", "selector", "key_file")
_LEAST_BITS, _USUAL_BITS, _MOST_BITS = 1024, 2048, 4096  # RFC 8301 3.2
_LABELS = re.compile(
    r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9])?)*"
)
_EXAMPLE = 'write dkim = { domain = "example.com", selector = "s1", key_file = "dkim.pem" }'
_MAKE_ONE = "make one: openssl genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048 -out dkim.pem"


def signer(settings: TransportSettings) -> Signer | None:
    """The signer that a transport's `dkim` describes; None where it has none. Raises ConfigError."""
    given = settings.options.get("dkim")
    if given is None:
        return None
    tables = given if isinstance(given, list) else [given]
    if not tables:
        raise settings.error("dkim", "is an empty list", f"leave it out, or {_EXAMPLE}")
    keys: list[SigningKey] = []
    for number, table in enumerate(tables, 1):
        where = f"dkim[{number}]" if isinstance(given, list) else "dkim"
        keys.append(_key(settings, where, table))
    names = [(key.domain, key.selector) for key in keys]
    if len(set(names)) < len(names):
        raise settings.error("dkim", "names one selector twice", "each key needs a selector of its own in the DNS")
    return Signer(keys)


def _key(settings: TransportSettings, where: str, table: object) -> SigningKey:
    if not isinstance(table, Mapping):
        raise settings.error(where, "must be a table", _EXAMPLE)
    for name in table:
        if name not in _KEYS:
            raise settings.error(f"{where}.{name}", "is not a known key", f"known here: {', '.join(_KEYS)}")
    texts: list[str] = []
    for name in _KEYS:
        value = table.get(name)
        if not isinstance(value, str) or not value:
            problem = "is missing" if value in (None, "") else "must be a text in quotes"
            raise settings.error(f"{where}.{name}", problem, _EXAMPLE)
        texts.append(value)
    domain = _domain(settings, where, texts[0])
    selector = texts[1].lower()
    if not _LABELS.fullmatch(selector):
        raise settings.error(f"{where}.selector", "is not one or more DNS labels", 'for example "s1" or "2026.mail"')
    path = settings.base / texts[2]
    return _signing(settings, f"{where}.key_file", path, domain, selector)


def _domain(settings: TransportSettings, where: str, domain: str) -> str:
    """The domain as lowercase A-labels (IDNA 2008): what verifiers look up."""
    try:
        return destinations.email(f"postmaster@{domain.rstrip('.')}").domain
    except InputError:
        raise settings.error(f"{where}.domain", "is not a domain", 'for example "example.com"') from None


def _signing(settings: TransportSettings, where: str, path: Path, domain: str, selector: str) -> SigningKey:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ed25519, padding, rsa
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    key = _load(settings, where, path)
    if isinstance(key, ed25519.Ed25519PrivateKey):
        from hashlib import sha256

        edwards = key
        public = edwards.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        return SigningKey(
            domain, selector, "ed25519-sha256", f"v=DKIM1; k=ed25519; p={b64encode(public).decode()}",
            lambda data: edwards.sign(sha256(data).digest()),  # RFC 8463 3: over the digest
        )  # fmt: skip
    if not isinstance(key, rsa.RSAPrivateKey):
        raise settings.error(where, f"names {path}, whose key is neither RSA nor Ed25519", _MAKE_ONE)
    if key.key_size < _LEAST_BITS:
        raise _too_short(settings, where, path)
    if not _USUAL_BITS <= key.key_size <= _MOST_BITS:
        logging.getLogger(__name__).warning(
            "transports.%s.%s names an RSA key of %d bits: receivers are only sure to take %d to %d",
            settings.name, where, key.key_size, _USUAL_BITS, _MOST_BITS,
        )  # fmt: skip
    rivest, pad, algorithm = key, padding.PKCS1v15(), hashes.SHA256()
    public = rivest.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return SigningKey(
        domain, selector, "rsa-sha256", f"v=DKIM1; k=rsa; p={b64encode(public).decode()}",
        lambda data: rivest.sign(data, pad, algorithm),
    )  # fmt: skip


def _too_short(settings: TransportSettings, where: str, path: Path) -> ConfigError:
    return settings.error(
        where, f"names {path}, an RSA key of less than {_LEAST_BITS} bits, which receivers refuse", _MAKE_ONE
    )


def _load(settings: TransportSettings, where: str, path: Path) -> PrivateKeyTypes:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    content = _read(settings, where, path)
    if b"-----BEGIN" not in content:
        try:
            seed = b64decode(b"".join(content.split()), validate=True)
        except Base64Error:
            seed = b""
        if len(seed) != 32:
            problem = "which holds neither a PEM private key nor the base64 of an Ed25519 seed"
            raise settings.error(where, f"names {path}, {problem}", _MAKE_ONE)
        return Ed25519PrivateKey.from_private_bytes(seed)
    if b"PRIVATE KEY-----" not in content:
        raise settings.error(
            where, f"names {path}, which holds no private key", "name the private one of the two files"
        )
    try:
        return load_pem_private_key(content, password=None)
    except TypeError:
        raise settings.error(
            where, f"names {path}, which is encrypted", f"write a plain copy: openssl pkey -in {path} -out plain.pem"
        ) from None
    except UnsupportedAlgorithm:
        raise settings.error(where, f"names {path}, whose key is neither RSA nor Ed25519", _MAKE_ONE) from None
    except ValueError as error:
        if "key_size" in str(error) or "bit" in str(error):
            raise _too_short(settings, where, path) from None
        raise settings.error(
            where, f"names {path}, whose private key cannot be read: it is damaged or of another format",
            "openssl pkey -in FILE -noout tells whether a file is a key",
        ) from None  # fmt: skip


def _read(settings: TransportSettings, where: str, path: Path) -> bytes:
    try:
        mode = path.stat().st_mode
        content = path.read_bytes()
    except (OSError, ValueError) as problem:
        said = getattr(problem, "strerror", None) or "not a usable path"
        raise settings.error(where, f"names {path}, which cannot be read: {said}") from None
    if mode & stat.S_IROTH:
        logging.getLogger(__name__).warning(
            "transports.%s.%s names a file that every user of this host can read: chmod o-r %s",
            settings.name, where, path,
        )  # fmt: skip
    return content.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n")
