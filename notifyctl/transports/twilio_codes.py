"""What Twilio's codes mean, as data.

Source: of each code its page, twilio.com/docs/api/errors/CODE; of the statuses twilio-oai `twilio_api_v2010.json`
(message_enum_status). The text of an error is not for programs, as the specification says; its code is.
"""

from __future__ import annotations

from notifyctl.model import ReceiptStatus
from notifyctl.transports.http_answers import Statuses, Table, limited, mend, permanent, temporary

CODES: Table = {  # of an error
    **dict.fromkeys(("21211", "21614", "21635"), permanent("invalid_recipient")),  # 21635: a landline
    "21610": permanent("opted_out"),
    "21408": permanent("region_not_permitted"), "21612": permanent("route_unavailable"),
    "21608": permanent("trial_recipient_unverified"), "21617": permanent("too_large"),
    **dict.fromkeys(("21601", "21606", "21661"), mend("sender_rejected")),
    **dict.fromkeys(("20005", "30002"), mend("account_suspended")),
    "20003": mend("credentials_rejected"), "20404": mend("endpoint_not_found"),  # 20404: the account's SID
    "20429": limited("throttled"), "21611": limited("queue_full"), "30001": temporary("queue_full"),
}  # fmt: skip

_PENDING, _FAILED, _SOFT = ReceiptStatus.PENDING, ReceiptStatus.FAILURE, ReceiptStatus.SOFT_FAILURE
STATUSES: Statuses = {  # Message.status: what it means, where no error code says more
    **dict.fromkeys(("accepted", "scheduled", "queued", "sending", "sent"), (_PENDING, "")),
    **dict.fromkeys(("delivered", "read"), (ReceiptStatus.DELIVERED, "")),
    **dict.fromkeys(("undelivered", "failed", "canceled"), (_FAILED, "failed")),
    "partially_delivered": (_PENDING, "partially_delivered"),  # some parts are lost, or only their receipts
}
REASONS: Statuses = {  # Message.error_code of a failed one
    "21610": (ReceiptStatus.OPTED_OUT, "opted_out"),
    "30001": (_SOFT, "queue_full"),
    "30003": (_SOFT, "unreachable"),
    **dict.fromkeys(("30005", "30006"), (ReceiptStatus.INVALID, "invalid_recipient")),  # 30006: a landline
    "30007": (_FAILED, "filtered"),
    "30034": (_FAILED, "sender_unregistered"),
    "30036": (_FAILED, "expired"),
}
