"""Writes the mails of test material with the mail writer alone: `python write_cases.py CASES.json INJECTIONS.json OUT`.

A program of its own, so that every Python at hand can run it; it needs nothing but this checkout. Each mail becomes
`OUT/NAME.eml`; stdout is one JSON object: NAME → null, or the reason it was refused for.
"""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from notifyctl.compose.mime import Part, write
from notifyctl.errors import InputError
from notifyctl.model import Mailbox

EVIL = "Bcc: evil@example.org"
PIXEL = Part(b"GIF89a", "image/gif", "p.gif", "<p@example.com>")
JANE = "jane@example.net"

# What the material describes by its name only.
BY_NAME: dict[str, dict[str, Any]] = {
    "subj-lf": {"subject": f"x\n{EVIL}"},
    "subj-cr": {"subject": f"x\r{EVIL}"},
    "subj-vt": {"subject": f"x\v{EVIL}"},
    "subj-ff": {"subject": f"x\f{EVIL}"},
    "subj-ls": {"subject": f"x\u2028{EVIL}"},
    "subj-fs": {"subject": f"x\x1c{EVIL}"},
    "subj-encoded-crlf": {"subject": "=?utf-8?q?x=0D=0ABcc:_evil@example.org?="},
    "name-lf-address": {"recipient": Mailbox(JANE, f"x\n{EVIL}")},
    "custom-header-lf": {"headers": [("X-Note", f"x\n{EVIL}")]},
    "header-name-space": {"headers": [("X Note", "x")]},
    "to-utf8-domain-smtp-policy": {"recipient": Mailbox("j@bücher.example")},
    "file-lf": {"files": [Part(b"x", "text/csv", f"x\n{EVIL}")]},
    "body-bare-cr": {"text": "a\rb"},
    "body-crlf": {"text": "a\r\nb"},
    "body-surrogate": {"text": "x\ud800"},
    "html-alt-inline": {"text": "plain ü", "html": '<p>ü <img src="cid:p@example.com"></p>', "files": [PIXEL]},
}
PLACES = {
    "subject": lambda value: {"subject": value},
    "to_name": lambda value: {"recipient": Mailbox(JANE, value)},
    "header_value": lambda value: {"headers": [("X-Note", value)]},
    "list_unsubscribe": lambda value: {"headers": [("List-Unsubscribe", value)]},
    "filename": lambda value: {"files": [Part(b"x", "text/csv", value)]},
    "to": lambda value: {"recipient": Mailbox(value)},
    "from": lambda value: {"sender": Mailbox(value)},
    "reply_to": lambda value: {"reply_to": Mailbox(value)},
}


def arguments(case: dict[str, Any]) -> list[dict[str, Any]]:
    """What to write for a case: one mail, or one per recipient."""
    want = case["want"]
    if case["name"] in BY_NAME:
        return [BY_NAME[case["name"]]]
    if "subject" in want:
        return [{"subject": want["subject"]}]
    if "to" in want:
        return [{"recipient": mailbox(name, address)} for name, address in want["to"]]
    if "filename" in want:
        return [{"files": [Part(b"x", "text/csv", want["filename"])]}]
    if "rawheader" in want:
        name, value = want["rawheader"]
        return [{"message_id": value} if name == "message-id" else {"headers": [(name, value)]}]
    return [{"text": want["body"]}] if "body" in want else []


def mailbox(name: str, address: str) -> Mailbox:
    """As addresses are stored: the domain an A-label."""
    local, _, domain = address.rpartition("@")
    return Mailbox(f"{local}@{domain.encode('idna').decode()}", name)


def main(cases: str, injections: str, out: str) -> None:
    """Write them all."""
    wanted: dict[str, dict[str, Any]] = {}
    for case in json.loads(Path(cases).read_text(encoding="utf-8")):
        for number, given in enumerate(arguments(case)):
            wanted[f"{case['name']}.{number}"] = given
    for number, case in enumerate(json.loads(Path(injections).read_text(encoding="utf-8"))):
        wanted[f"injection.{number}"] = PLACES[case["field"]](case["value"])
    results: dict[str, str | None] = {}
    for name, given in wanted.items():
        try:
            raw, _ = write(**{
                "sender": Mailbox("no-reply@example.com", "Shop"), "recipient": Mailbox(JANE), "subject": "Hello",
                "text": "Hi\n", "html": "", "message_id": "<k1@example.com>", "reply_to": None, "headers": (),
                "date": datetime(2026, 3, 1, 9, 5, 7, tzinfo=UTC), "boundary_seed": "k1", **given,
            })  # fmt: skip
        except InputError as error:
            results[name] = error.reason
            continue
        results[name] = None
        Path(out, f"{name}.eml").write_bytes(raw)
    print(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
