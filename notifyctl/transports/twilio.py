"""Kind `twilio`: SMS by Twilio's Messages resource.

Source: twilio-oai `spec/json/twilio_api_v2010.json`; codes in `twilio_codes`.

Twilio offers neither an idempotency key nor a reference of ours, and lists lag (twilio-java#442: 10 to 15 minutes): a
lost answer is settled only where exactly one message to the number was made at that time; nothing proves that none was.
"""

# ruff: noqa: ARG002 - the boundary's arguments

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote, urlencode

from notifyctl import model
from notifyctl.clock import Deadline
from notifyctl.model import CannotTell, Channel, Found, Receipt, ReceiptStatus, Request
from notifyctl.settings import TransportSettings
from notifyctl.transports.base import Exchange
from notifyctl.transports.http import HttpTransport
from notifyctl.transports.http_answers import Reply, http_date, told
from notifyctl.transports.twilio_codes import CODES, REASONS, STATUSES

_VALIDITY = 36000  # seconds: the longest ValidityPeriod, and what holds without one
_SKEW = timedelta(seconds=2)  # between Twilio's whole seconds and our clock


class Twilio(HttpTransport):
    """Keys: `account_sid`, `auth_token` (secret), `api_key_sid`, `messaging_service_sid`."""

    URL = "https://api.twilio.com"
    ACCOUNT = ("{account}.json", "status", "type")
    CAPABILITIES = model.Capabilities(
        channels=frozenset({Channel.SMS}), search=model.Search.RECIPIENT_TIME, settle_delay=900.0,
        receipts=model.Receipts.LOOKUP, terminal_distinct=True, invalid_distinct=True,
        landline_distinct=True, optout_distinct=True,
        receipt_window=7 * 86400.0,  # 400 days, or as the owner sets: 7 at least
        status_rate="10/s",  # unverified: no figure is published
    )  # fmt: skip
    CODES = CODES

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
        path, form = f"{self.account}/Messages.json", request.body + lives.encode()
        return self.call("POST", path, exchange, form, kind="application/x-www-form-urlencoded")

    def read(self, document: Any) -> tuple[str, str]:
        return str(document.get("sid") or ""), str(document.get("code") or "")

    def receipt(self, sid: str, deadline: Deadline) -> Receipt:
        message = self.about(sid, self.get(f"{self.account}/Messages/{quote(sid, safe='')}.json", deadline), "sid")
        if message is None:
            return Receipt(ReceiptStatus.GONE, sid)
        code = str(message.get("error_code") or "")
        status, reason = told(message["status"], code, STATUSES, REASONS)
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
        if any(one.get("to") != recipient for one in page["messages"]):  # inbound ones are to us: they are not listed
            return CannotTell()
        ours = [one for one in page["messages"] if str(one.get("direction")).startswith("outbound")]
        made = [(http_date(one.get("date_created") or ""), str(one["sid"])) for one in ours]
        near = [(at, sid) for at, sid in made if at is None or since - _SKEW <= at <= until + _SKEW]
        return Found(near[0][1]) if len(near) == 1 and near[0][0] is not None else CannotTell()
