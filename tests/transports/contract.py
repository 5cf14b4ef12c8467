"""What every provider's codes must mean, written down without looking at the program: the tables of the modules are
compared with these row by row, by a real exchange each.

Sources: twilio.com/docs/api/errors/CODE · developers.telnyx.com/docs/messaging/messages/error-codes (40xxx) and
/development/api-fundamentals/api-errors (10xxx) · postmarkapp.com/developer/api/overview#error-codes and
/developer/api/bounce-api#bounce-types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from notifyctl.model import Message, OutcomeKind, ReceiptStatus, Scope
from tests.transports import material
from tests.transports.servers import Answer, Provider
from tests.transports.servers import postmark as postmark_server
from tests.transports.servers import telnyx as telnyx_server
from tests.transports.servers import twilio as twilio_server

PERMANENT, TEMPORARY = OutcomeKind.PERMANENT_FAILURE, OutcomeKind.TEMPORARY_FAILURE
UNAVAILABLE, LIMITED = OutcomeKind.UNAVAILABLE, OutcomeKind.RATE_LIMITED
R = ReceiptStatus

Codes = Mapping[str, tuple[OutcomeKind, str]]
Said = Mapping[str, tuple[ReceiptStatus, str]]

TWILIO: Codes = {
    "21211": (PERMANENT, "invalid_recipient"),
    "21614": (PERMANENT, "invalid_recipient"),
    "21635": (PERMANENT, "invalid_recipient"),
    "21610": (PERMANENT, "opted_out"),
    "21408": (PERMANENT, "region_not_permitted"),
    "21608": (PERMANENT, "trial_recipient_unverified"),
    "21612": (PERMANENT, "route_unavailable"),
    "21617": (PERMANENT, "too_large"),
    "21601": (UNAVAILABLE, "sender_rejected"),
    "21606": (UNAVAILABLE, "sender_rejected"),
    "21661": (UNAVAILABLE, "sender_rejected"),
    "20003": (UNAVAILABLE, "credentials_rejected"),
    "20005": (UNAVAILABLE, "account_suspended"),
    "30002": (UNAVAILABLE, "account_suspended"),
    "20404": (UNAVAILABLE, "endpoint_not_found"),
    "20429": (LIMITED, "throttled"),
    "21611": (LIMITED, "queue_full"),
    "30001": (TEMPORARY, "queue_full"),
}
TWILIO_STATUSES: Said = {
    "accepted": (R.PENDING, ""),
    "scheduled": (R.PENDING, ""),
    "queued": (R.PENDING, ""),
    "sending": (R.PENDING, ""),
    "sent": (R.PENDING, ""),
    "delivered": (R.DELIVERED, ""),
    "read": (R.DELIVERED, ""),
    "undelivered": (R.FAILURE, "failed"),
    "failed": (R.FAILURE, "failed"),
    "canceled": (R.FAILURE, "failed"),
    "partially_delivered": (R.PENDING, "partially_delivered"),
    "something new": (R.PENDING, ""),
}
TWILIO_REASONS: Said = {
    "21610": (R.OPTED_OUT, "opted_out"),
    "30001": (R.SOFT_FAILURE, "queue_full"),
    "30003": (R.SOFT_FAILURE, "unreachable"),
    "30005": (R.INVALID, "invalid_recipient"),
    "30006": (R.INVALID, "invalid_recipient"),
    "30007": (R.FAILURE, "filtered"),
    "30008": (R.FAILURE, "failed"),
    "30034": (R.FAILURE, "sender_unregistered"),
    "30036": (R.FAILURE, "expired"),
    "39999": (R.FAILURE, "failed"),
}
TELNYX: Codes = {
    "10002": (PERMANENT, "invalid_recipient"),
    "40001": (PERMANENT, "invalid_recipient"),
    "40012": (PERMANENT, "invalid_recipient"),
    "40310": (PERMANENT, "invalid_recipient"),
    "10001": (PERMANENT, "inactive_number"),
    "40300": (PERMANENT, "opted_out"),
    "40302": (PERMANENT, "too_large"),
    "40009": (PERMANENT, "content_rejected"),
    "40003": (PERMANENT, "filtered"),
    "40015": (PERMANENT, "filtered"),
    "40002": (TEMPORARY, "filtered"),
    "40006": (TEMPORARY, "unreachable"),
    "10011": (LIMITED, "throttled"),
    "40011": (LIMITED, "throttled"),
    "40318": (LIMITED, "queue_full"),
    "40013": (UNAVAILABLE, "sender_rejected"),
    "from:10002": (UNAVAILABLE, "sender_rejected"),
    "10009": (UNAVAILABLE, "credentials_rejected"),
    "10010": (UNAVAILABLE, "credentials_rejected"),
    "10005": (UNAVAILABLE, "endpoint_not_found"),
}
TELNYX_STATUSES: Said = {
    "queued": (R.PENDING, ""),
    "sending": (R.PENDING, ""),
    "sent": (R.PENDING, ""),
    "delivery_unconfirmed": (R.PENDING, "delivery_unconfirmed"),
    "delivered": (R.DELIVERED, ""),
    "sending_failed": (R.FAILURE, "failed"),
    "delivery_failed": (R.FAILURE, "failed"),
    "expired": (R.FAILURE, "expired"),
    "something new": (R.PENDING, ""),
}
TELNYX_REASONS: Said = {
    "40001": (R.INVALID, "invalid_recipient"),
    "40012": (R.INVALID, "invalid_recipient"),
    "40310": (R.INVALID, "invalid_recipient"),
    "40002": (R.FAILURE, "filtered"),
    "40003": (R.FAILURE, "filtered"),
    "40015": (R.FAILURE, "filtered"),
    "40005": (R.FAILURE, "expired"),
    "40014": (R.FAILURE, "expired"),
    "40006": (R.SOFT_FAILURE, "unreachable"),
    "40011": (R.SOFT_FAILURE, "unreachable"),
    "40318": (R.SOFT_FAILURE, "unreachable"),
    "40008": (R.FAILURE, "undeliverable"),
    "40300": (R.FAILURE, "blocked"),
    "49999": (R.FAILURE, "failed"),
}
POSTMARK: Codes = {
    "10": (UNAVAILABLE, "credentials_rejected"),
    "100": (TEMPORARY, "service_unavailable"),
    "300": (PERMANENT, "message_rejected"),
    "400": (UNAVAILABLE, "sender_rejected"),
    "401": (UNAVAILABLE, "sender_rejected"),
    "405": (UNAVAILABLE, "quota_exceeded"),
    "406": (PERMANENT, "provider_suppressed"),
    "411": (PERMANENT, "content_rejected"),
    "412": (UNAVAILABLE, "account_suspended"),
    "413": (UNAVAILABLE, "account_suspended"),
    "429": (LIMITED, "throttled"),
}
BOUNCES: Said = {
    "HardBounce": (R.HARD_BOUNCE, "hard_bounce"),
    "BadEmailAddress": (R.INVALID, "invalid_recipient"),
    "SpamComplaint": (R.COMPLAINED, "complained"),
    "SoftBounce": (R.SOFT_FAILURE, "soft_bounce"),
    "Transient": (R.PENDING, "delayed"),
    "DnsError": (R.PENDING, "delayed"),
    "Blocked": (R.FAILURE, "blocked"),
    "SpamNotification": (R.FAILURE, "blocked"),
    "VirusNotification": (R.FAILURE, "blocked"),
    "DMARCPolicy": (R.FAILURE, "authentication_rejected"),
    "Unknown": (R.FAILURE, "failed"),
    "ManuallyDeactivated": (R.FAILURE, "failed"),
    "SMTPApiError": (R.FAILURE, "failed"),
    "TemplateRenderingFailed": (R.FAILURE, "failed"),
}
NO_NEWS = ("AutoResponder", "Subscribe", "Unsubscribe", "AddressChange", "ChallengeVerification", "Something new")


@dataclass(frozen=True)
class Contract:
    """One provider as its tests see it: a server, what is sent, and how an error of its looks."""

    server: Callable[[], Provider]
    message: Callable[..., Message]
    codes: Codes
    error: Callable[[str], Answer]
    wire_key: Callable[[Any], str]  # our key in a submission; "": the provider takes none


def _telnyx_error(code: str) -> Answer:
    pointer, _, number = code.rpartition(":")
    return telnyx_server.error(number, pointer=f"/{pointer or 'to'}")


CONTRACTS: Mapping[str, Contract] = {
    "twilio": Contract(
        twilio_server.Twilio, material.sms, TWILIO, lambda code: twilio_server.error(int(code)), lambda asked: ""
    ),
    "telnyx": Contract(
        telnyx_server.Telnyx, material.sms, TELNYX, _telnyx_error, lambda asked: asked.headers["idempotency-key"]
    ),
    "postmark": Contract(
        postmark_server.Postmark, material.mail, POSTMARK, lambda code: postmark_server.error(int(code)),
        lambda asked: asked.document["Metadata"]["notifyctl"],
    ),
}  # fmt: skip
ROWS = [(kind, code) for kind, contract in CONTRACTS.items() for code in contract.codes]


def scope(kind: OutcomeKind) -> Scope:
    """Whom it concerns: an outage and a provider's limit everybody, a refusal its message."""
    return Scope.ACCOUNT if kind in (UNAVAILABLE, LIMITED) else Scope.DESTINATION
