"""What APIs for mail want as one text."""

from __future__ import annotations

from base64 import b64encode

from notifyctl.model import Mail, Mailbox


def written(mailbox: Mailbox | None) -> str:
    """`"Name" <address>`, the name always quoted, so that nothing in it reads as a second address; None: empty."""
    if mailbox is None:
        return ""
    if not mailbox.name:
        return mailbox.address
    name = mailbox.name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{name}" <{mailbox.address}>'


def bare(text: str) -> str:
    """The address in such a text, to be compared: in lower case, without the name."""
    return text.rpartition("<")[2].rstrip("> ").strip().lower()


def attached(mail: Mail, name: str, content: str, kind: str) -> list[dict[str, str]]:
    """The attachments as JSON objects with these three keys, the bytes in base64."""
    return [{name: n, content: b64encode(data).decode(), kind: k} for data, k, n in mail.files]
