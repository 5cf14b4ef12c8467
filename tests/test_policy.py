"""Whether a delivery may be sent: every combination of topic, consent, suppression and expiry."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import product

import pytest

from notifyctl.model import ConsentMode, State
from notifyctl.policy import Refusal, check

NOW = datetime(2027, 3, 28, 9, 0, tzinfo=UTC)


def ask(
    mode: ConsentMode = ConsentMode.NONE,
    consent: bool | None = None,
    suppression: str | None = None,
    expires_at: datetime | None = None,
) -> Refusal | None:
    return check(consent_mode=mode, consent=consent, suppression=suppression, expires_at=expires_at, now=NOW)


@pytest.mark.parametrize(
    ("mode", "consent", "reason"),
    [
        (ConsentMode.REQUIRED, True, None),
        (ConsentMode.REQUIRED, None, "consent_missing"),
        (ConsentMode.REQUIRED, False, "consent_revoked"),
        (ConsentMode.OPT_OUT, True, None),
        (ConsentMode.OPT_OUT, None, None),
        (ConsentMode.OPT_OUT, False, "consent_revoked"),
        (ConsentMode.NONE, True, None),
        (ConsentMode.NONE, None, None),
        (ConsentMode.NONE, False, "consent_revoked"),
    ],
)
def test_consent_is_asked_as_the_topic_says(mode: ConsentMode, consent: bool | None, reason: str | None) -> None:
    assert ask(mode, consent) == (Refusal(State.SUPPRESSED, reason) if reason else None)


@pytest.mark.parametrize(("mode", "consent"), list(product(ConsentMode, (True, False, None))))
def test_a_suppression_refuses_whatever_was_consented_to(mode: ConsentMode, consent: bool | None) -> None:
    assert ask(mode, consent, "hard_bounce", NOW) == Refusal(State.SUPPRESSED, "hard_bounce")


def test_it_expires_at_the_instant_and_not_before() -> None:
    assert ask(expires_at=NOW) == Refusal(State.EXPIRED, "expired")
    assert ask(expires_at=NOW + timedelta(microseconds=1)) is None


def test_a_revocation_is_named_before_expiry() -> None:
    assert ask(consent=False, expires_at=NOW) == Refusal(State.SUPPRESSED, "consent_revoked")
