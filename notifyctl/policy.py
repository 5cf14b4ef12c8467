"""May this delivery be sent now? Consent, suppression and expiry, decided from what was read; pure.

Asked when a delivery is enqueued, before it is composed, and again (as conditions of the statement itself) when an
attempt begins: only the last is the guarantee, the others spare work and name the reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from notifyctl.model import ConsentMode, State


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why it must not be sent: the state it ends in (`suppressed` or `expired`) and the reason code."""

    state: State
    reason: str


def check(
    *,
    consent_mode: ConsentMode,
    consent: bool | None,
    suppression: str | None,
    expires_at: datetime | None,
    now: datetime,
) -> Refusal | None:
    """The refusal, or None when it may go.

    `consent` is the newest answer of this (recipient, channel, topic): True granted, False revoked, None never asked.
    A revocation counts in every mode. `suppression` is the reason of an active suppression of the pair or of this
    address. What people said comes before expiry: it still holds when the delivery is requeued with a new expiry.
    """
    if suppression:
        return Refusal(State.SUPPRESSED, suppression)
    if consent is False:
        return Refusal(State.SUPPRESSED, "consent_revoked")
    if consent_mode is ConsentMode.REQUIRED and consent is None:
        return Refusal(State.SUPPRESSED, "consent_missing")
    if expires_at is not None and expires_at <= now:
        return Refusal(State.EXPIRED, "expired")
    return None
