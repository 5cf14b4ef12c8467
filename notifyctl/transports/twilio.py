"""Kind `twilio`: SMS by Twilio's Messages resource.

Source: twilio-oai `spec/json/twilio_api_v2010.json`; of each code its page, twilio.com/docs/api/errors/CODE.

Twilio offers neither an idempotency key nor a reference of ours, and lists lag (twilio-java#442: 10 to 15 minutes): a
lost answer is settled only where exactly one message to the number was made at that time; nothing proves that none was.
"""

# ruff: noqa: ARG002 - the boundary's arguments

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar
from urllib.parse import quote, urlencode

from notifyctl import model
from notifyctl.clock import Deadline
from notifyctl.model import CannotTell, Channel, Found, Receipt, ReceiptStatus, Request
from notifyctl.settings import TransportSettings
from notifyctl.transports.base import Exchange
from notifyctl.transports.http import HttpTransport
from notifyctl.transports.http_answers import Reply, Statuses, Table, http_date, limited, mend, permanent, temporary

_VALIDITY = 36000  # seconds: the longest ValidityPeriod, and what holds without one
_SKEW = timedelta(seconds=2)  # between Twilio's whole seconds and our clock

_PENDING, _FAILED, _SOFT = ReceiptStatus.PENDING, ReceiptStatus.FAILURE, ReceiptStatus.SOFT_FAILURE
_STATUSES: Statuses = {  # Message.status: what it means, where no error code says more
    **dict.fromkeys(("accepted", "scheduled", "queued", "sending", "sent"), (_PENDING, "")),
    **dict.fromkeys(("delivered", "read"), (ReceiptStatus.DELIVERED, "")),
    **dict.fromkeys(("undelivered", "failed", "canceled"), (_FAILED, "failed")),
    "partially_delivered": (_PENDING, "partially_delivered"),  # some parts are lost, or only their receipts
}
_REASONS: Statuses = {  # Message.error_code of a failed one
    "21610": (ReceiptStatus.OPTED_OUT, "opted_out"),
    "30001": (_SOFT, "queue_full"),
    "30003": (_SOFT, "unreachable"),
    **dict.fromkeys(("30005", "30006"), (ReceiptStatus.INVALID, "invalid_recipient")),  # 30006: a landline
    "30007": (_FAILED, "filtered"),
    "30034": (_FAILED, "sender_unregistered"),
    "30036": (_FAILED, "expired"),
}


class Twilio(HttpTransport):
    """Keys: `account_sid`, `auth_token` (secret), `api_key_sid`, `messaging_service_sid`."""

    URL = "https://api.twilio.com"
    ACCOUNT = ("{account}.json", "status", "type")
    CAPABILITIES = model.Capabilities(
        channels=frozenset({Channel.SMS}), search=model.Search.RECIPIENT_TIME, settle_delay=900.0,
        receipts=model.Receipts.LOOKUP, landline_distinct=True, optout_distinct=True,
        receipt_window=7 * 86400.0,  # 400 days, or as the owner sets: 7 at least
        status_rate="10/s",  # unverified: no figure is published
    )  # fmt: skip
    CODES: ClassVar[Table] = {
        **dict.fromkeys(("21211", "21614", "21635"), permanent("invalid_recipient")),  # 21635: a landline
        "21610": permanent("opted_out"),
        "21408": permanent("region_not_permitted"), "21612": permanent("route_unavailable"),
        "21608": permanent("trial_recipient_unverified"), "21617": permanent("too_large"),
        **dict.fromkeys(("21601", "21606", "21661"), mend("sender_rejected")),
        **dict.fromkeys(("20005", "30002"), mend("account_suspended")),
        "20003": mend("credentials_rejected"), "20404": mend("endpoint_not_found"),  # 20404: the account's SID
        "20429": limited("throttled"), "21611": limited("queue_full"), "30001": temporary("queue_full"),
    }  # fmt: skip

    def __init__(self, settings: TransportSettings) -> None:
        super().__init__(settings)
        self.account = f"/2010-04-01/Accounts/{quote(self.required('account_sid'), safe='')}"
        self._service = settings.text("messaging_service_sid")

    def credentials(self) -> Sequence[tuple[str, str]]:
        user = self.settings.text("api_key_sid") or self.required("account_sid")
        token = b64encode(f"{user}:{self.required('auth_token', secret=True)}".encode()).decode()
        return [("Authorization", f"Basic {token}")]

    def prepare(self, message: model.Message) -> Request:
        """Body: the form, to which `post` adds the time to live. Smart encoding would change what was counted."""
        assert isinstance(message, model.Sms)
        sender = ("MessagingServiceSid", self._service) if self._service else ("From", message.sender)
        form = [("To", message.recipient), sender, ("Body", message.text), ("SmartEncoded", "false")]
        return Request(message.key, (self.account,), urlencode(form).encode())

    def post(self, request: Request, validity: float | None, exchange: Exchange) -> Reply:
        lives = f"&ValidityPeriod={max(1, int(validity))}" if validity is not None and validity < _VALIDITY else ""
        kind = ("Content-Type", "application/x-www-form-urlencoded")
        return self.call("POST", f"{self.account}/Messages.json", exchange, request.body + lives.encode(), kind)

    def read(self, document: Any) -> tuple[str, str]:
        return str(document.get("sid") or ""), str(document.get("code") or "")

    def receipts(self, remote_ids: Iterable[str]) -> dict[str, Receipt]:
        return self.each(remote_ids, self._receipt)

    def _receipt(self, sid: str, deadline: Deadline) -> Receipt:
        message = self.get(f"{self.account}/Messages/{quote(sid, safe='')}.json", deadline)
        if message is None:
            return Receipt(ReceiptStatus.GONE, sid)
        code = str(message.get("error_code") or "")
        status, reason = _STATUSES.get(message["status"], (_PENDING, ""))
        if status is _FAILED:
            status, reason = _REASONS.get(code, (status, reason))
        return Receipt(status, sid, reason, code, http_date(message.get("date_updated") or ""))

    def find(
        self, key: str, recipient: str = "", since: datetime | None = None, until: datetime | None = None
    ) -> model.Finding:  # fmt: skip
        """Found where exactly one message to the number was made in that time; a list of 1,000 may be incomplete."""
        if since is None or until is None:
            return CannotTell()
        query = urlencode({"To": recipient, "PageSize": 1000})
        page = self.get(f"{self.account}/Messages.json?{query}", Deadline.after(self.settings.deadline)) or {}
        if not isinstance(page.get("messages"), list) or page.get("next_page_uri"):
            return CannotTell()
        ours = [one for one in page["messages"] if str(one.get("direction")).startswith("outbound")]
        made = [(one, http_date(one.get("date_created") or "")) for one in ours]
        near = [one for one, at in made if at is None or since - _SKEW <= at <= until + _SKEW]
        return Found(str(near[0]["sid"])) if len(near) == 1 else CannotTell()
