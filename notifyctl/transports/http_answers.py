"""What the answer of an HTTP provider proves. The first line that fits decides:

| answer | proves |
|---|---|
| 2xx with an id | `accepted` |
| 3xx | `unavailable`, configuration: never followed, since the credentials would travel |
| a code of the provider's table, also behind a 2xx | what its row says |
| 429, 420 | `rate_limited`, for the account |
| 401, 403 · 402 | `unavailable`, configuration: key, permission · the account's means |
| 404, 405, 407, 410 | `unavailable`, configuration: `base_url` or the account lead to something else |
| 503, 408, 425 | `temporary_failure` |
| any other 2xx (unreadable, without an id), 5xx | `ambiguous` |
| any other 4xx: an unknown code is a failure of its class | `permanent_failure`, which never suppresses |

No text of an answer is kept: codes and ids only where they look like ones, since providers repeat addresses in their
messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from notifyctl.clock import wall
from notifyctl.model import Outcome, OutcomeKind, ReceiptStatus, Scope

_CODE = re.compile(r"[A-Za-z][A-Za-z0-9_.:-]{0,39}|[0-9]{1,6}")  # more digits could be a number to call
_ID = re.compile(r"[A-Za-z0-9_.:-]{1,200}")
_HOST = re.compile(r"[a-z0-9.-]{1,100}(:[0-9]{1,5})?")
_LONGEST_WAIT = 86400.0  # seconds: what a provider asks beyond it is a mistake
_RESETS = ("x-ratelimit-reset", "ratelimit-reset", "x-rate-limit-reset")  # seconds, or an epoch (also in ms)
_WAITING = (OutcomeKind.RATE_LIMITED, OutcomeKind.TEMPORARY_FAILURE)


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a provider's code proves: one row of its table."""

    kind: OutcomeKind
    reason: str
    scope: Scope = Scope.DESTINATION
    config: bool = False


def permanent(reason: str) -> Meaning:
    """Certainly not accepted and not worth retrying; `invalid_recipient` and `opted_out` also suppress."""
    return Meaning(OutcomeKind.PERMANENT_FAILURE, reason)


def temporary(reason: str) -> Meaning:
    """Certainly not accepted, for now."""
    return Meaning(OutcomeKind.TEMPORARY_FAILURE, reason)


def limited(reason: str, scope: Scope = Scope.ACCOUNT) -> Meaning:
    """Not accepted: too fast."""
    return Meaning(OutcomeKind.RATE_LIMITED, reason, scope)


def mend(reason: str) -> Meaning:
    """Nothing of this account is accepted until a person has mended something."""
    return Meaning(OutcomeKind.UNAVAILABLE, reason, Scope.ACCOUNT, config=True)


Table = Mapping[str, Meaning]
Statuses = Mapping[str, tuple[ReceiptStatus, str]]  # a provider's status or code: what it means, and the reason

_BY_STATUS: Mapping[int, Meaning] = {
    401: mend("credentials_rejected"),
    402: mend("quota_exceeded"),
    403: mend("credentials_rejected"),
    **dict.fromkeys((404, 405, 407, 410), mend("endpoint_not_found")),
    **dict.fromkeys((420, 429), limited("throttled")),
    **dict.fromkeys((408, 425, 503), temporary("service_unavailable")),
}


@dataclass(frozen=True)
class Reply:
    """One answer: HTTP status, header fields (their names in lower case, or compared without regard to it), body."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)

    @cached_property
    def document(self) -> Any:
        """The JSON it holds; None where it holds none."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    @property
    def wait(self) -> float | None:
        """Seconds until the provider wants to hear from us again; None: it does not say."""
        said = self.headers.get("retry-after", "").strip()
        if said:
            return _bounded(float(said) if _number(said) else self._until(said))
        for name in _RESETS:
            said = self.headers.get(name, "").strip()
            if _number(said):
                value = float(said)
                value = value / 1000 if value > 1e11 else value
                return _bounded(value - self._date.timestamp() if value > 1e9 else value)
        return None

    def _until(self, date: str) -> float | None:
        moment = http_date(date)
        return None if moment is None else (moment - self._date).total_seconds()

    @property
    def _date(self) -> datetime:
        """The provider's clock: what it means by its dates does not depend on ours."""
        return http_date(self.headers.get("date", "")) or wall()


def http_date(text: str) -> datetime | None:
    """The instant meant by `Tue, 01 Dec 2026 12:00:00 GMT` (RFC 9110 5.6.7, RFC 5322); None: it is none."""
    from email.utils import parsedate_to_datetime

    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


def instant(text: str | None) -> datetime | None:
    """The instant of an ISO 8601 text, UTC where it names no offset; None: it is none."""
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


def _number(text: str) -> bool:
    return bool(re.fullmatch(r"[0-9]{1,15}(\.[0-9]{1,9})?", text))


def _bounded(seconds: float | None) -> float | None:
    return None if seconds is None else min(max(seconds, 0.0), _LONGEST_WAIT)


def judge(reply: Reply, table: Table, remote: str, code: str) -> Outcome:
    """What an answer with this id and this code of the provider's ("": none) proves."""
    code = code if _CODE.fullmatch(code) else ""
    row = table.get(code)
    if row is None and 200 <= reply.status < 300 and _ID.fullmatch(remote):
        return Outcome(OutcomeKind.ACCEPTED, remote_ids=(remote,))
    if 300 <= reply.status < 400:
        row = mend(f"redirected_to:{target}" if (target := _target(reply)) else "redirected")
    row = row or _BY_STATUS.get(reply.status)
    if row is None and 400 <= reply.status < 500:
        row = permanent("refused")
    elif row is None:
        row = Meaning(OutcomeKind.AMBIGUOUS, "server_error" if reply.status >= 500 else "unreadable_reply")
    return Outcome(
        row.kind, row.reason, retry_after=reply.wait if row.kind in _WAITING else None, scope=row.scope,
        code=code or _described(reply), config=row.config,
    )  # fmt: skip


def told(status: object, code: str, statuses: Statuses, codes: Statuses) -> tuple[ReceiptStatus, str]:
    """What a provider's status means, for a failure by its code; one that stands in no table is no news."""
    meaning = statuses.get(str(status), (ReceiptStatus.PENDING, ""))
    return codes.get(code, meaning) if meaning[0] is ReceiptStatus.FAILURE else meaning


def _target(reply: Reply) -> str:
    """The host a redirect names, if it looks like one."""
    try:
        host = urlsplit(reply.headers.get("location", "")).netloc.lower()
    except ValueError:
        return ""
    return host if _HOST.fullmatch(host) else ""


def _described(reply: Reply) -> str:
    """An answer without a code of the provider's: its HTTP status, and its type where it is no JSON."""
    kind = reply.headers.get("content-type", "").partition(";")[0].strip().lower()
    plain = reply.document is not None or not re.fullmatch(r"[a-z]{1,20}/[a-z0-9.+-]{1,40}", kind)
    return str(reply.status) if plain else f"{reply.status} {kind}"
