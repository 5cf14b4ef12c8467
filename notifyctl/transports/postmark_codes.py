"""What Postmark's codes mean, as data.

Sources, all below postmarkapp.com/developer: api/overview#error-codes (ErrorCode; its numbers collide with HTTP
statuses, so the body is read first) · api/bounce-api#bounce-types · api/messages-api (events) · api/suppressions-api.
300 says in prose only whether it was the recipient, and 406 not why: neither suppresses by itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from notifyctl.model import ReceiptStatus
from notifyctl.transports.http_answers import Statuses, Table, limited, mend, permanent, temporary

CODES: Table = {  # ErrorCode
    "10": mend("credentials_rejected"),
    "100": temporary("service_unavailable"),
    "300": permanent("message_rejected"),
    **dict.fromkeys(("400", "401"), mend("sender_rejected")),
    "405": mend("quota_exceeded"),
    "406": permanent("provider_suppressed"),
    "411": permanent("content_rejected"),
    **dict.fromkeys(("412", "413"), mend("account_suspended")),
    "429": limited("throttled"),
}
SUPPRESSED: Mapping[str, str] = {  # SuppressionReason and Origin of a 406: the reason that suppresses here too
    "HardBounce": "invalid_recipient",
    "SpamComplaint": "opted_out",
    "ManualSuppression Recipient": "opted_out",
}

_FAILED = ReceiptStatus.FAILURE
EVENTS: Statuses = {  # MessageEvents[].Type; opens and clicks are no news of the delivery
    "Delivered": (ReceiptStatus.DELIVERED, ""),
    "Transient": (ReceiptStatus.PENDING, "delayed"),
    "Bounced": (_FAILED, "failed"),  # where its bounce cannot be found
}
TYPES: Statuses = {  # Type of a bounce; what does not stand here is no news either (auto-replies, subscriptions)
    "HardBounce": (ReceiptStatus.HARD_BOUNCE, "hard_bounce"),
    "BadEmailAddress": (ReceiptStatus.INVALID, "invalid_recipient"),
    "SpamComplaint": (ReceiptStatus.COMPLAINED, "complained"),
    "SoftBounce": (ReceiptStatus.SOFT_FAILURE, "soft_bounce"),
    **dict.fromkeys(("Transient", "DnsError"), (ReceiptStatus.PENDING, "delayed")),
    **dict.fromkeys(("Blocked", "SpamNotification", "VirusNotification"), (_FAILED, "blocked")),
    "DMARCPolicy": (_FAILED, "authentication_rejected"),
    **dict.fromkeys(("Unknown", "ManuallyDeactivated", "SMTPApiError", "TemplateRenderingFailed"), (_FAILED, "failed")),
}
