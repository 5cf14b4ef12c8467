"""Telnyx, after team-telnyx/openapi `openapi/spec3.json`: POST /v2/messages, GET /v2/messages/{id}, GET /v2/balance;
errors after developers.telnyx.com/development/api-fundamentals/api-errors (errors[]: code, title, detail, source);
Idempotency-Key after the SDK 4.189.0: only successes are replayed, another body under the same key is 422."""

from __future__ import annotations

from typing import Any, ClassVar

from tests.transports.servers import KEY, Answer, Asked, Provider


def error(code: str, status: int = 400, pointer: str = "/to", **headers: str) -> Answer:
    """An error of the API; its prose repeats the number."""
    one = {"code": code, "title": "Wrong", "detail": "+447700900123 is wrong", "source": {"pointer": pointer}}
    return Answer(status, {"errors": [one]}, headers)


class Telnyx(Provider):
    kind = "telnyx"
    options: ClassVar[dict[str, Any]] = {"api_key": KEY}

    def __init__(self) -> None:
        super().__init__()
        self.messages: dict[str, dict[str, Any]] = {}
        self.keys: dict[str, tuple[bytes, Answer]] = {}

    def submits(self, asked: Asked) -> bool:
        return (asked.method, asked.path) == ("POST", "/v2/messages")

    def allowed(self, asked: Asked) -> bool:
        return asked.headers.get("authorization") == f"Bearer {KEY}"

    def denial(self) -> Answer:
        """api-errors: 10009"""
        return error("10009", 401, "")

    def accept(self, asked: Asked) -> Answer:
        """200 with `data`, to[].status `queued`; under a known key the same answer again."""
        key = asked.headers["idempotency-key"]
        if key in self.keys:
            body, answer = self.keys[key]
            return answer if body == asked.body else error("10015", 422, "")
        said, number = asked.document, f"40385f64-5717-4562-b3fc-{len(self.messages):012x}"
        self.messages[number] = {
            "id": number, "record_type": "message", "direction": "outbound", "type": "SMS", "errors": [],
            "to": [{"phone_number": said["to"], "status": "queued"}], "text": said["text"], "sent_at": None,
            "completed_at": None,
        }  # fmt: skip
        self.keys[key] = (asked.body, Answer(200, {"data": self.messages[number]}))
        return self.keys[key][1]

    def tell(self, asked: Asked) -> Answer:
        """Operations GetMessage and GetUserBalance."""
        if asked.path == "/v2/balance":
            return Answer(200, {"data": {"record_type": "balance", "balance": "300.00", "currency": "USD"}})
        number = asked.path.removeprefix("/v2/messages/")
        if number in self.messages:
            return Answer(200, {"data": self.messages[number]})
        return error("10005", 404, "")
