"""Kind `postmark`: mail by Postmark's API.

Sources, all below postmarkapp.com: developer/api/email-api, developer/user-guide/send-email-with-api/batch-emails,
developer/api/messages-api, support/article/1125-custom-metadata-faq (search by one field); codes in `postmark_codes`.
Postmark writes the mail itself: our DKIM signature and Message-ID do not survive.
"""

# ruff: noqa: ARG002 - the boundary's arguments

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from operator import itemgetter
from typing import Any
from urllib.parse import quote

from notifyctl import model
from notifyctl.clock import Deadline
from notifyctl.errors import InputError
from notifyctl.model import Absent, CannotTell, Channel, Found, Outcome, Receipt, Request
from notifyctl.transports.base import Exchange, Trouble
from notifyctl.transports.http_answers import Reply, instant
from notifyctl.transports.http_batch import BatchTransport
from notifyctl.transports.http_mail import attached, bare, written
from notifyctl.transports.postmark_codes import CODES, EVENTS, SUPPRESSED, TYPES

_FIELD = "notifyctl"  # of the metadata: our key


class Postmark(BatchTransport):
    """Keys: `server_token` (secret), `message_stream`."""

    URL = "https://api.postmarkapp.com"
    MOST_BYTES = 50_000_000
    ACCOUNT = ("/server", "Name", "DeliveryType")
    CAPABILITIES = model.Capabilities(
        channels=frozenset({Channel.EMAIL}), max_batch=500, search=model.Search.OWN_KEY,
        settle_delay=1800.0,  # unverified: how long a message may be missing from the search is not published
        absence_proves_unsent=True, receipts=model.Receipts.LOOKUP, receipt_window=45 * 86400.0,
        status_rate="10/s",  # unverified: no figure is published
        max_bytes=10_000_000, terminal_distinct=True, invalid_distinct=True, optout_distinct=True,
    )  # fmt: skip
    CODES = CODES

    def credentials(self) -> Sequence[tuple[str, str]]:
        return [("X-Postmark-Server-Token", self.required("server_token", secret=True))]

    def prepare(self, message: model.Message) -> Request:
        """Envelope: path and recipient. Body: the JSON of one message, as a batch holds it too."""
        assert isinstance(message, model.Mail)
        if not message.recipient.address.isascii():
            raise InputError("Postmark takes ASCII addresses only", reason="smtputf8_unsupported", field="to")
        fields: dict[str, Any] = {
            "From": written(message.sender), "To": written(message.recipient), "Subject": message.subject,
            "TextBody": message.text, "HtmlBody": message.html, "ReplyTo": written(message.reply_to),
            "Headers": [{"Name": n, "Value": v} for n, v in (*message.headers, ("Auto-Submitted", "auto-generated"))],
            "Attachments": attached(message, "Name", "Content", "ContentType"),
            "Metadata": {_FIELD: message.key}, "TrackOpens": False, "TrackLinks": "None",
            "MessageStream": self.settings.text("message_stream", "outbound"),
        }  # fmt: skip
        body = json.dumps({name: value for name, value in fields.items() if value not in ("", [])}, ensure_ascii=False)
        return Request(message.key, ("/email", message.recipient.address), body.encode())

    def read(self, document: Any) -> tuple[str, str]:
        return str(document.get("MessageID") or ""), str(document.get("ErrorCode") or "")

    def post_many(self, requests: Sequence[Request], exchange: Exchange) -> Reply:
        return self.call("POST", "/email/batch", exchange, b"[%b]" % b",".join(one.body for one in requests))

    def recipient(self, request: Request) -> str:
        return request.envelope[1].lower()

    def named(self, result: Any) -> str:
        return bare(str(result.get("To") or ""))

    def explain(self, outcome: Outcome, request: Request, deadline: Deadline) -> Outcome:
        """406 is Postmark's own suppression: its list says why."""
        if outcome.code != "406":
            return outcome
        stream, address = self.settings.text("message_stream", "outbound"), request.envelope[1]
        path = f"/message-streams/{quote(stream, safe='')}/suppressions/dump?EmailAddress={quote(address, safe='')}"
        try:
            (one,) = self.get(path, deadline)["Suppressions"]
            why = one["SuppressionReason"]
            why += f" {one['Origin']}" if why == "ManualSuppression" else ""
        except (Trouble, KeyError, TypeError, ValueError):
            return outcome
        return replace(outcome, reason=SUPPRESSED.get(why, outcome.reason))

    def receipt(self, remote_id: str, deadline: Deadline) -> Receipt | None:
        """What the newest event says that is news of the delivery."""
        path = f"/messages/outbound/{quote(remote_id, safe='')}/details"
        message = self.about(remote_id, self.get(path, deadline), "MessageID")
        for event in sorted(message["MessageEvents"] if message else (), key=itemgetter("ReceivedAt"), reverse=True):
            said, kind = EVENTS.get(event["Type"]), ""
            if event["Type"] == "Bounced" and (number := str(event["Details"].get("BounceID") or "")).isdecimal():
                bounce = self.about(number, self.get(f"/bounces/{number}", deadline), "ID") or {}
                kind = str(bounce.get("Type", ""))
                said = TYPES.get(kind) if kind else said
            if said is not None:
                return Receipt(said[0], remote_id, said[1], kind, instant(event["ReceivedAt"]))
        return None

    def find(
        self, key: str, recipient: str = "", since: datetime | None = None, until: datetime | None = None
    ) -> model.Finding:  # fmt: skip
        """By our own key. An answer that holds another key has not been filtered: it tells nothing."""
        path = f"/messages/outbound?count=10&offset=0&metadata_{_FIELD}={quote(key, safe='')}"
        page = self.get(path, Deadline.after(self.settings.deadline)) or {}
        found = page.get("Messages")
        if found == [] and page.get("TotalCount") == 0:
            return Absent()
        if not isinstance(found, list) or len(found) != 1 or (found[0].get("Metadata") or {}).get(_FIELD) != key:
            return CannotTell()
        return Found(str(found[0]["MessageID"]))
