"""Twilio, after twilio-oai `spec/json/twilio_api_v2010.json`: /2010-04-01/Accounts/{AccountSid}/Messages.json (create,
list), Messages/{Sid}.json (fetch), Accounts/{Sid}.json; errors after www.twilio.com/docs/usage/twilios-response
("Error and Warning": code, message, more_info, status)."""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any, ClassVar

from tests.transports.servers import KEY, Answer, Asked, Provider

SID = "AC" + "0" * 32


def error(code: int, status: int = 400, **headers: str) -> Answer:
    """An error of the API; its prose repeats the number, as Twilio's does."""
    document = {"code": code, "message": "The 'To' number +447700900123 is wrong", "status": status,
                "more_info": f"https://www.twilio.com/docs/errors/{code}"}  # fmt: skip
    return Answer(status, document, headers)


class Twilio(Provider):
    kind = "twilio"
    options: ClassVar[dict[str, Any]] = {"account_sid": SID, "auth_token": KEY}

    def __init__(self) -> None:
        super().__init__()
        self.messages: dict[str, dict[str, Any]] = {}
        self.now: datetime | None = None

    def submits(self, asked: Asked) -> bool:
        return (asked.method, asked.path) == ("POST", f"/2010-04-01/Accounts/{SID}/Messages.json")

    def allowed(self, asked: Asked) -> bool:
        return asked.headers.get("authorization") == "Basic " + b64encode(f"{SID}:{KEY}".encode()).decode()

    def denial(self) -> Answer:
        """www.twilio.com/docs/api/errors/20003"""
        return error(20003, 401)

    def accept(self, asked: Asked) -> Answer:
        """201 with the resource, status `queued` (operation CreateMessage)."""
        form, sid = asked.form, f"SM{len(self.messages):032x}"
        date = format_datetime(self.now or datetime.now(UTC))
        self.messages[sid] = {
            "sid": sid, "to": form["To"], "from": form.get("From"), "body": form["Body"], "status": "queued",
            "direction": "outbound-api", "error_code": None, "error_message": None, "date_created": date,
            "date_updated": date, "date_sent": None, "num_segments": "1", "account_sid": SID,
        }  # fmt: skip
        return Answer(201, self.messages[sid])

    def tell(self, asked: Asked) -> Answer:
        """Operations ListMessage, FetchMessage and FetchAccount."""
        base = f"/2010-04-01/Accounts/{SID}"
        if asked.path == f"{base}.json":
            return Answer(200, {"sid": SID, "status": "active", "type": "Full", "auth_token": KEY})
        if asked.path == f"{base}/Messages.json":
            found = [one for one in self.messages.values() if one["to"] == asked.query["To"]]
            return Answer(200, {"messages": found[::-1], "next_page_uri": None, "page": 0})
        sid = asked.path.removeprefix(f"{base}/Messages/").removesuffix(".json")
        if sid in self.messages:
            return Answer(200, self.messages[sid])
        return error(20404, 404)  # www.twilio.com/docs/api/errors/20404
