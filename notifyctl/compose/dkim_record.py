"""Whether the DNS publishes the key that mails are signed with (RFC 6376 3.6.1, RFC 8463 for Ed25519). Pure."""

from __future__ import annotations

from collections.abc import Sequence

from notifyctl.compose.dkim import SigningKey


def name(key: SigningKey) -> str:
    """Where its record must stand."""
    return f"{key.selector}._domainkey.{key.domain}"


def fault(key: SigningKey, records: Sequence[str]) -> str:
    """What is wrong with the TXT records found there, "": receivers can verify."""
    keys = [tags for record in records if (tags := _tags(record)) is not None]
    if not keys:
        return "other records stand there, but none with a key" if records else "no record is published"
    if len(keys) > 1:
        return f"{len(keys)} keys are published under one name: receivers may take any of them"
    (tags,) = keys
    ours = _tags(key.record) or {}
    if tags.get("v", "DKIM1") != "DKIM1":
        return "its v= is not DKIM1"
    if not tags["p"]:
        return "the key was revoked: its p= is empty"
    if tags.get("k", "rsa") != ours["k"]:
        return f"the published key is of another kind than {ours['k']}"
    if tags["p"] != ours["p"]:
        return "the published key is not the one that signs: every signature fails"
    if "sha256" not in tags.get("h", "sha256").split(":"):
        return "its h= does not allow sha256: every signature fails"
    if not {"*", "email"} & set(tags.get("s", "*").split(":")):
        return "its s= does not allow email"
    if "y" in tags.get("t", "").split(":"):
        return "its t=y says that signatures are only being tried out: receivers may ignore them"
    return ""


def _tags(record: str) -> dict[str, str] | None:
    """Tag → value without white space; None for what is no record of a key."""
    tags = {}
    for part in record.split(";"):
        tag, equals, value = part.partition("=")
        if equals:
            tags[tag.strip()] = "".join(value.split())
    return tags if "p" in tags else None
