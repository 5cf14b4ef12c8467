"""Kind `telnyx`: SMS by Telnyx's API v2.

Sources: team-telnyx/openapi `openapi/spec3.json`; codes 40xxx by developers.telnyx.com/docs/messaging/messages/
error-codes, 10xxx by developers.telnyx.com/development/api-fundamentals/api-errors; Idempotency-Key by the SDK 4.189.0:
successes are replayed for up to 24 hours where the body is the same to the byte.

Telnyx knows no reference of ours, and a queued message stands in no report: a lost answer is settled by replaying the
request under its key. 40300 means STOP only in the answer to a submission; as a receipt, Telnyx's sources contradict
one another, so there it is a failure of this message alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar
from urllib.parse import quote

from notifyctl.clock import Deadline
from notifyctl.errors import InputError
from notifyctl.model import Capabilities, Channel, Message, Receipt, Receipts, ReceiptStatus, Request, Sms
from notifyctl.settings import TransportSettings
from notifyctl.transports.base import Exchange
from notifyctl.transports.http import HttpTransport
from notifyctl.transports.http_answers import Reply, Statuses, Table, instant, limited, mend, permanent, temporary, told

_PARTS = 10  # of one message (40302)

_INVALID, _PENDING, _FAILED, _SOFT = (
    ReceiptStatus.INVALID, ReceiptStatus.PENDING, ReceiptStatus.FAILURE, ReceiptStatus.SOFT_FAILURE,
)  # fmt: skip
_STATUSES: Statuses = {  # to[].status: what it means, where no error code says more
    **dict.fromkeys(("queued", "sending", "sent"), (_PENDING, "")),
    "delivery_unconfirmed": (_PENDING, "delivery_unconfirmed"),  # no news will come, which proves no failure
    "delivered": (ReceiptStatus.DELIVERED, ""),
    **dict.fromkeys(("sending_failed", "delivery_failed"), (_FAILED, "failed")),
    "expired": (_FAILED, "expired"),
}
_REASONS: Statuses = {  # errors[].code of a failed one
    **dict.fromkeys(("40001", "40012", "40310"), (_INVALID, "invalid_recipient")),  # 40001: a landline
    **dict.fromkeys(("40002", "40003", "40015"), (_FAILED, "filtered")),
    **dict.fromkeys(("40005", "40014"), (_FAILED, "expired")),
    **dict.fromkeys(("40006", "40011", "40318"), (_SOFT, "unreachable")),
    "40008": (_FAILED, "undeliverable"),
    "40300": (_FAILED, "blocked"),
}


class Telnyx(HttpTransport):
    """Keys: `api_key` (secret), `messaging_profile_id`, `replay_window`."""

    URL = "https://api.telnyx.com"
    ACCOUNT = ("/v2/balance", "balance", "currency", "available_credit")
    CAPABILITIES = Capabilities(
        channels=frozenset({Channel.SMS}), replay_window=86400.0, receipts=Receipts.LOOKUP,
        receipt_window=10 * 86400.0, status_rate="10/s",  # the rate is unverified: no figure is published
        max_segments=_PARTS, terminal_distinct=True, invalid_distinct=True,
        landline_distinct=True, optout_distinct=True,
    )  # fmt: skip
    CODES: ClassVar[Table] = {
        **dict.fromkeys(("10002", "40001", "40012", "40310"), permanent("invalid_recipient")),
        "10001": permanent("inactive_number"),  # which of the two it does not say
        "40300": permanent("opted_out"),
        "40302": permanent("too_large"),
        "40009": permanent("content_rejected"),
        **dict.fromkeys(("40003", "40015"), permanent("filtered")),
        "40002": temporary("filtered"), "40006": temporary("unreachable"),
        **dict.fromkeys(("10011", "40011"), limited("throttled")),
        "40318": limited("queue_full"),
        **dict.fromkeys(("40013", "from:10002"), mend("sender_rejected")),
        **dict.fromkeys(("10009", "10010"), mend("credentials_rejected")),
        "10005": mend("endpoint_not_found"),
    }  # fmt: skip

    def __init__(self, settings: TransportSettings) -> None:
        super().__init__(settings)
        self._profile = settings.text("messaging_profile_id")
        window = self._duration("replay_window", self.capabilities.replay_window)
        self.capabilities = replace(self.capabilities, replay_window=min(window, 86400.0))

    def credentials(self) -> Sequence[tuple[str, str]]:
        return [("Authorization", f"Bearer {self.required('api_key', secret=True)}")]

    def prepare(self, message: Message) -> Request:
        """Body: the JSON. The encoding is stated, so that what was counted is what goes out."""
        assert isinstance(message, Sms)
        if message.segments > _PARTS:
            raise InputError(f"Telnyx takes {_PARTS} parts", reason="too_many_segments", field="sms")
        fields = {"from": message.sender, "to": message.recipient, "text": message.text, "encoding": message.encoding}
        if self._profile:
            fields["messaging_profile_id"] = self._profile
        return Request(message.key, ("/v2/messages",), json.dumps(fields, ensure_ascii=False).encode())

    def post(self, request: Request, validity: float | None, exchange: Exchange) -> Reply:  # noqa: ARG002 - none known
        return self.call("POST", "/v2/messages", exchange, request.body, ("Idempotency-Key", request.key))

    def read(self, document: Any) -> tuple[str, str]:
        error = (document.get("errors") or [{}])[0]
        about_us = "from" in str((error.get("source") or {}).get("pointer", ""))
        code = str(error.get("code") or "")
        return str((document.get("data") or {}).get("id") or ""), f"from:{code}" if about_us else code

    def receipt(self, remote_id: str, deadline: Deadline) -> Receipt | None:
        reply = self.get(f"/v2/messages/{quote(remote_id, safe='')}", deadline) or {}
        message = self.about(remote_id, reply.get("data"), "id")
        if message is None:
            return None  # perhaps not yet: a new message may be missing for a moment
        code = next((str(error["code"]) for error in message.get("errors") or ()), "")
        status, reason = told(message["to"][0]["status"], code, _STATUSES, _REASONS)
        return Receipt(status, remote_id, reason, code, instant(message.get("completed_at") or message.get("sent_at")))
