"""DKIM signatures per CPU second, as a share of the bare RSA-2048 rate. By hand: it asserts nothing.

    python -m tests.bench.dkim_rate [ROUNDS]

Each round measures the bare operation and every kind of mail for 0.3 s of CPU time, interleaved, so that a change of
the machine's speed meets all of them; printed are medians and the median of the rounds' own ratios. Goal (P7): at
least 0.6 on a mail of 4 KB, against `cryptography` (whose signing is OpenSSL's) and against `openssl speed`.
"""

from __future__ import annotations

import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from notifyctl.compose.mime import Part, write
from notifyctl.model import Mailbox
from tests.compose import keys

SECONDS = 0.3
DATE = datetime(2026, 3, 1, tzinfo=UTC)


def mail(text: str, html: str = "", file: bytes = b"") -> bytes:
    """A written mail."""
    raw, _ = write(
        sender=Mailbox("no-reply@shop.example", "Shop"), recipient=Mailbox("jane@example.net", "Doe, Jane"),
        subject="Your order 4711", text=text, html=html, message_id="<k1@shop.example>", date=DATE, reply_to=None,
        headers=(), boundary_seed="k1", files=[Part(file, "application/pdf", "a.pdf")] if file else [],
    )  # fmt: skip
    return raw


MAILS = {
    "plain": mail("Thank you for your order.\n" * 140),
    "text+HTML": mail("Thank you.\n" * 60, "<table>\n" + "    <tr>\t<td>Thank you.</td></tr>\n" * 85),
    "base64": mail("確認コード\n" * 180),
    "with a file": mail("Your bill.\n", "<p>Your bill.</p>\n", bytes(range(256)) * 570),
}


def rate(work: Callable[[], object]) -> float:
    """Calls per second of this process' CPU time."""
    count, start = 0, time.process_time()
    while (spent := time.process_time() - start) < SECONDS:
        for _ in range(20):
            work()
        count += 20
    return count / spent


def main(rounds: int) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as name:
        signers = {one: keys.made(Path(name), keys.table(Path(name), one)) for one in ("rsa", "ed25519")}
    key = load_pem_private_key(keys.rsa_pem(), None)
    assert isinstance(key, RSAPrivateKey)
    works: dict[str, Callable[[], object]] = {
        "bare RSA-2048": partial(key.sign, b"x" * 500, padding.PKCS1v15(), hashes.SHA256()),
        **{
            f"{one}, {kind}, {len(raw) / 1000:.1f} KB": partial(signer.sign, raw, DATE)
            for one, signer in signers.items()
            for kind, raw in MAILS.items()
        },
    }
    rates: dict[str, list[float]] = {label: [] for label in works}
    for _ in range(rounds):
        for label, work in works.items():
            rates[label].append(rate(work))
    bare = rates["bare RSA-2048"]
    for label, found in rates.items():
        ratio = statistics.median(one / other for one, other in zip(found, bare, strict=True))
        print(f"{label:32} {statistics.median(found):8.0f}/s  {ratio:5.2f} x bare")
    if shutil.which("openssl"):
        said = subprocess.run(["openssl", "speed", "-seconds", "1", "rsa2048"], capture_output=True, text=True).stdout
        if found_rate := re.search(r"rsa 2048 bits\s+\S+\s+\S+\s+([0-9.]+)", said):
            print(f"{'openssl speed rsa2048':32} {float(found_rate[1]):8.0f}/s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
