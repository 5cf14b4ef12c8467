"""What replies mean: one line per reply that providers really give."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notifyctl.model import OutcomeKind, Scope
from notifyctl.transports.smtp_codes import DATA, DOT, MAIL, RCPT, classify

PERMANENT, TEMPORARY = OutcomeKind.PERMANENT_FAILURE, OutcomeKind.TEMPORARY_FAILURE
UNAVAILABLE, LIMITED = OutcomeKind.UNAVAILABLE, OutcomeKind.RATE_LIMITED

REPLIES = [
    # the address does not exist
    (RCPT, "550 5.1.1 no such user", PERMANENT, "invalid_recipient"),
    (RCPT, "550 5.1.2 bad domain", PERMANENT, "invalid_recipient"),
    (RCPT, "553 5.1.3 bad syntax", PERMANENT, "invalid_recipient"),
    (RCPT, "550 5.1.6 moved", PERMANENT, "invalid_recipient"),
    (RCPT, "556 5.1.10 null MX", PERMANENT, "invalid_recipient"),
    (DOT, "550 5.1.1 no such user", PERMANENT, "invalid_recipient"),
    # final, but it says nothing lasting of the address
    (RCPT, "550 no such user here", PERMANENT, "recipient_rejected"),
    (RCPT, "550", PERMANENT, "recipient_rejected"),
    (RCPT, "550 5.1.0 rejected", PERMANENT, "recipient_rejected"),
    (RCPT, "550 5.1.11 what is this", PERMANENT, "recipient_rejected"),
    (RCPT, "550 5.1.1x not a code", PERMANENT, "recipient_rejected"),
    (RCPT, "550 5.2.1 disabled", PERMANENT, "mailbox_disabled"),
    (RCPT, "552 5.2.2 mailbox full", PERMANENT, "mailbox_full"),
    (RCPT, "550 5.4.1 access denied", PERMANENT, "recipient_rejected"),
    (RCPT, "554 5.7.1 Relay access denied", PERMANENT, "relay_denied"),
    (RCPT, "550 relaying not permitted", PERMANENT, "relay_denied"),
    (RCPT, "550 5.7.1 blocked by policy", PERMANENT, "policy_rejected"),
    (DOT, "554 5.6.0 malformed", PERMANENT, "content_rejected"),
    (DOT, "554 transaction failed", PERMANENT, "message_rejected"),
    (DOT, "552-5.7.0 attachment blocked".replace("-", " "), PERMANENT, "policy_rejected"),
    # full, but only for now
    (RCPT, "452 4.2.2 mailbox full", TEMPORARY, "mailbox_full"),
    (DOT, "452 4.2.2 mailbox full", TEMPORARY, "mailbox_full"),
    # too large
    (MAIL, "552 5.3.4 too big", PERMANENT, "too_large"),
    (DOT, "552 message size exceeds limit", PERMANENT, "too_large"),
    (RCPT, "552 5.2.3 too big for this mailbox", PERMANENT, "too_large"),
    (DOT, "523 5.3.4 too big", PERMANENT, "too_large"),
    # not believed to be who we are
    (DOT, "550 5.7.26 unauthenticated", PERMANENT, "authentication_rejected"),
    (DOT, "550 5.7.20 no passing DKIM", PERMANENT, "authentication_rejected"),
    (MAIL, "550 5.7.23 SPF", PERMANENT, "authentication_rejected"),
    (DOT, "550 5.7.509 DMARC", PERMANENT, "authentication_rejected"),
    (DOT, "550 5.7.1 rejected due to DMARC policy", PERMANENT, "authentication_rejected"),
    (DOT, "550 message fails SPF check", PERMANENT, "authentication_rejected"),
    (DOT, "421 4.7.26 rate limited because unauthenticated", TEMPORARY, "authentication_rejected"),
    # the transport's own matter
    (MAIL, "530 5.7.0 Must issue a STARTTLS command first", UNAVAILABLE, "authentication_required"),
    (MAIL, "530 5.5.1 Authentication Required", UNAVAILABLE, "authentication_required"),
    (RCPT, "530 5.7.1 authenticate", UNAVAILABLE, "authentication_required"),
    (RCPT, "550 5.7.1 Authentication required", UNAVAILABLE, "authentication_required"),
    (MAIL, "535 5.7.8 bad credentials", UNAVAILABLE, "authentication_required"),
    (MAIL, "550 5.1.8 bad sender domain", UNAVAILABLE, "sender_rejected"),
    (MAIL, "553 5.7.1 sender not owned by user", UNAVAILABLE, "sender_rejected"),
    (MAIL, "550 5.1.1 unknown sender", UNAVAILABLE, "sender_rejected"),
    (MAIL, "503 5.5.1 nested MAIL", UNAVAILABLE, "protocol_error"),
    (MAIL, "555 5.5.4 unsupported parameter", UNAVAILABLE, "protocol_error"),
    (MAIL, "550 5.6.7 non-ASCII not permitted", PERMANENT, "smtputf8_unsupported"),
    # pace
    (RCPT, "450 4.2.1 receiving mail too quickly", LIMITED, "destination_rate"),
    (MAIL, "454 Throttling failure: Maximum sending rate exceeded.", LIMITED, "throttled"),
    (RCPT, "454 4.7.1 Relay access denied", TEMPORARY, "policy_deferred"),
    # for now
    (MAIL, "421 4.7.0 too many", TEMPORARY, "service_closing"),
    (MAIL, "421", TEMPORARY, "service_closing"),
    (RCPT, "451 4.7.1 greylisted", TEMPORARY, "policy_deferred"),
    (RCPT, "450 mailbox busy", TEMPORARY, "deferred"),
    (MAIL, "452 4.3.1 no space", TEMPORARY, "server_busy"),
    (DATA, "451 local error", TEMPORARY, "deferred"),
    (RCPT, "450 5.1.1 a class that contradicts itself", TEMPORARY, "deferred"),
]


@pytest.mark.parametrize(("step", "reply", "kind", "reason"), REPLIES)
def test_a_reply_means_what_its_codes_say(step: str, reply: str, kind: OutcomeKind, reason: str) -> None:
    code, _, text = reply.partition(" ")
    outcome = classify(step, int(code), text.encode())
    assert outcome is not None
    assert (outcome.kind, outcome.reason) == (kind, reason)
    mend = reason in {"authentication_required", "sender_rejected"}
    assert outcome.config is mend
    assert (outcome.scope is Scope.ACCOUNT) == (kind is UNAVAILABLE or reason == "throttled")


@given(
    st.sampled_from([MAIL, RCPT, DATA, DOT]),
    st.integers(200, 599),
    st.sampled_from([b"", b"5.1.1", b"4.2.2", b"5.7.26", b"5.999.999", b"2.0.0"]),
    st.binary(max_size=30),
)
def test_every_refusal_has_a_meaning_that_fits_its_class(step: str, code: int, enhanced: bytes, prose: bytes) -> None:
    outcome = classify(step, code, enhanced + b" " + prose)
    if not 400 <= code < 600:
        assert outcome is None
        return
    assert outcome is not None
    assert outcome.code.split()[0] == str(code)
    if outcome.kind is PERMANENT:
        assert code >= 500
    if outcome.reason == "invalid_recipient":
        assert (enhanced, step != MAIL) == (b"5.1.1", True)
    assert outcome.kind is not OutcomeKind.ACCEPTED
    assert outcome.kind is not OutcomeKind.AMBIGUOUS
