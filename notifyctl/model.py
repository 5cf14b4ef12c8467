"""The vocabulary of the whole program: frozen values, no I/O, no clock, imports nothing of ours.

Instants are aware UTC datetimes, durations are seconds as float. Texts that name a cause are `snake_case` reason
codes; none of these values prints an address (`repr` of what carries one is redacted).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum


class Channel(StrEnum):
    """How a person is reached."""

    EMAIL = "email"
    SMS = "sms"


class State(StrEnum):
    """Where a delivery stands; the comment says who moves it on."""

    QUEUED = "queued"  # dispatch, when due
    SENDING = "sending"  # dispatch records the outcome; any tick marks it ambiguous once its deadline has passed
    TEMPORARY_FAILURE = "temporary_failure"  # dispatch, after backoff or Retry-After
    AMBIGUOUS = "ambiguous"  # reconcile: look up, mandate a replay, or hold for a person
    ACCEPTED = "accepted"  # poll-receipts, or nobody where no receipt is expected
    PENDING = "pending"  # poll-receipts, until the receipt deadline
    DELIVERED = "delivered"  # nobody; a later receipt may correct it
    PERMANENT_FAILURE = "permanent_failure"  # nobody; requeue by a person
    SUPPRESSED = "suppressed"  # nobody; requeue by a person once policy passes
    EXPIRED = "expired"  # nobody; requeue by a person with a new expiry
    CANCELLED = "cancelled"  # nobody; requeue by a person
    DEAD_LETTER = "dead_letter"  # a person: review, requeue
    UNRESOLVED = "unresolved"  # a person: review; requeue makes another check, never another send


LIVE_STATES = frozenset(
    {State.QUEUED, State.SENDING, State.TEMPORARY_FAILURE, State.AMBIGUOUS, State.ACCEPTED, State.PENDING}
)
SETTLED_STATES = frozenset(State) - LIVE_STATES  # `accepted` may also be at rest: it then has no work row


class Step(StrEnum):
    """What must happen next to a live delivery."""

    SEND = "send"
    CHECK = "check"
    RESOLVE = "resolve"


class Mandate(StrEnum):
    """Why dispatch may submit a delivery that is in doubt."""

    REPLAY = "replay"  # the provider's idempotency window is open: the same bytes under the same key
    DUPLICATE = "duplicate"  # a policy or an operator accepted the risk


class OutcomeKind(StrEnum):
    """What one attempt proved."""

    ACCEPTED = "accepted"
    TEMPORARY_FAILURE = "temporary_failure"
    RATE_LIMITED = "rate_limited"
    UNAVAILABLE = "unavailable"
    PERMANENT_FAILURE = "permanent_failure"
    AMBIGUOUS = "ambiguous"


CHARGED = frozenset(
    {OutcomeKind.ACCEPTED, OutcomeKind.TEMPORARY_FAILURE, OutcomeKind.PERMANENT_FAILURE, OutcomeKind.AMBIGUOUS}
)


class Scope(StrEnum):
    """Whom a wait or an outage concerns."""

    ACCOUNT = "account"  # everything that goes through this transport
    DESTINATION = "destination"  # this row only


class Receipts(StrEnum):
    """How a transport says what became of a message."""

    NONE = "none"
    LOOKUP = "lookup"
    FEED = "feed"
    BOUNCES_ONLY = "bounces_only"


class Search(StrEnum):
    """How a transport finds a message whose outcome is unknown."""

    NONE = "none"
    OWN_KEY = "own_key"
    RECIPIENT_TIME = "recipient_time"


class OnAmbiguous(StrEnum):
    """A lane's policy for doubt that no evidence settles."""

    AUTO = "auto"  # look up or replay where the provider's contract allows, else hold for a person
    HOLD = "hold"
    RESEND = "resend"  # the lane accepts a possible duplicate


class ConsentMode(StrEnum):
    """What a topic asks of its recipients."""

    REQUIRED = "required"
    OPT_OUT = "opt_out"
    NONE = "none"


# Reasons that suppress one address only; every other suppression reason concerns the recipient's whole channel.
FINGERPRINT_REASONS = frozenset({"invalid_recipient", "hard_bounce"})


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a transport can do and prove, declared as data; no other code asks which provider it is."""

    channels: frozenset[Channel]
    raw_mime: bool = False
    max_batch: int = 1
    replay_window: float = 0.0  # seconds an idempotency key is honoured; 0: no such contract
    search: Search = Search.NONE
    settle_delay: float = 0.0  # seconds until a look-up can be trusted
    absence_proves_unsent: bool = False
    receipts: Receipts = Receipts.NONE
    receipt_window: float = 0.0  # seconds the provider keeps statuses; 0: no limit known
    status_rate: str = ""
    max_bytes: int = 0  # 0: no limit declared
    max_segments: int = 0
    smtputf8: bool = False
    durable_id: bool = True  # what was accepted has an id that receipts or bounces name for good
    terminal_distinct: bool = False  # delivered is told apart from handed on
    invalid_distinct: bool = False  # an invalid recipient is told by a code
    landline_distinct: bool = False
    optout_distinct: bool = False

    @property
    def can_settle_doubt(self) -> bool:
        """Whether an unknown outcome can be settled by evidence or by a safe replay."""
        return self.search is not Search.NONE or self.replay_window > 0


@dataclass(frozen=True, slots=True)
class Rate:
    """`count` messages per `seconds`, as configured (`text`)."""

    count: int
    seconds: int  # 1, 60, 3600 or 86400
    text: str


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential delays with full jitter: uniform over [0, min(cap, base * 2^n)]."""

    base: float = 15.0
    cap: float = 960.0


@dataclass(frozen=True, slots=True)
class ReceiptPolicy:
    """When receipts are asked for, and when asking ends; `soft_bounces` in a row suppress an address, 0: never."""

    first: float = 15.0
    cap: float = 960.0
    deadline: float = 72 * 3600.0
    soft_bounces: int = 0


@dataclass(frozen=True, slots=True)
class Lane:
    """A named class of traffic with its own budget."""

    name: str
    channel: Channel
    transport: str
    batch: int = 100
    concurrency: int = 10
    rates: tuple[Rate, ...] = ()
    per_destination: tuple[Rate, ...] = ()
    lease: float = 60.0
    max_attempts: int = 8
    give_up_after: float = 3 * 86400.0
    ambiguous_review_after: float = 86400.0
    backoff: Backoff = Backoff()
    on_ambiguous: OnAmbiguous = OnAmbiguous.AUTO
    receipt: ReceiptPolicy = ReceiptPolicy()
    oldest_age: float = 300.0  # objective
    max_segments: int = 0
    max_bytes: int = 0
    transliterate: bool = False


@dataclass(frozen=True, slots=True)
class Topic:
    """What a recipient consents to."""

    name: str
    consent: ConsentMode = ConsentMode.NONE
    lane: str = ""
    list_unsubscribe: str = ""
    reply_to: str = ""


@dataclass(frozen=True, slots=True)
class Attachment:
    """One object to attach: its key, the SHA-256 (hex) its bytes must have, and how it is named."""

    key: str = field(repr=False)
    sha256: str
    filename: str = field(default="", repr=False)
    content_type: str = ""


@dataclass(frozen=True, slots=True)
class Intent:
    """The request to notify one recipient on one channel: what is enqueued.

    `destination` is a normalized address (see compose.destinations), None: the recipient's current endpoint.
    `template_version` None: the newest published. `stated` names the columns the caller gave: only they are compared
    when the same event is enqueued again.
    """

    event_id: str
    recipient_id: str
    channel: Channel
    template: str
    template_version: str | None = None
    variables: Mapping[str, object] = field(default_factory=dict, repr=False)
    locale: str | None = None
    lane: str | None = None
    region: str | None = None
    topic: str | None = None
    destination: str | None = field(default=None, repr=False)
    due_at: datetime | None = None
    expires_at: datetime | None = None
    attachments: tuple[Attachment, ...] = ()
    sensitive: bool = False
    stated: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Template:
    """One published version: `parts` maps (locale, part) to its source.

    A part is `subject`, `text`, `html` or `sms`; locale "" holds what was published outside any locale folder.
    """

    name: str
    version: str
    parts: Mapping[tuple[str, str], str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Delivery:
    """One claimed delivery with everything needed to send it, so that no row costs a query of its own.

    The columns of notify_delivery, then what the claim gave (`token`, `tries`, `mandate`, `was_eligible_at`,
    `recovered`: taken over from an owner whose lease had passed), then what was joined in: the recipient's current
    endpoint, newest consent for the topic, a matching suppression's reason, and the digest of the earliest attempt
    whose outcome is unknown.
    """

    id: int
    event_id: str
    recipient_id: str
    channel: Channel
    lane: str
    region: str
    topic: str | None
    template: str
    template_version: str | None
    locale: str | None
    variables: Mapping[str, object] = field(repr=False)
    attachments: tuple[Attachment, ...]
    destination: str | None = field(repr=False)
    due_at: datetime
    expires_at: datetime | None
    content_digest: str | None
    idempotency_key: str
    state: State
    attempts_used: int
    first_tried_at: datetime | None
    doubt_since: datetime | None
    accepted_at: datetime | None
    endpoint_id: int | None
    fingerprint: str | None
    transport: str | None
    sender: str | None
    message_date: datetime | None
    token: int = 0
    tries: int = 0
    mandate: Mandate | None = None
    was_eligible_at: datetime | None = None
    recovered: bool = False
    current_endpoint_id: int | None = None
    address: str | None = field(default=None, repr=False)
    consent: bool | None = None
    suppression: str | None = None
    doubtful_digest: str | None = None
    defect: str = ""  # why its content cannot be read, as plain SQL may have stored it


@dataclass(frozen=True, slots=True)
class Mailbox:
    """One mail address with an optional display name; `address` is normalized (IDNA domain, local part as is)."""

    address: str = field(repr=False)
    name: str = field(default="", repr=False)

    @property
    def domain(self) -> str:
        """The part behind the last @."""
        return self.address.rpartition("@")[2]


@dataclass(frozen=True, slots=True)
class Mail:
    """A composed mail: structured for providers that take fields, `raw` for those that take MIME bytes.

    `raw` has CRLF line ends and no dot-stuffing. `smtputf8`: an address in it needs the SMTPUTF8 extension.
    """

    key: str
    sender: Mailbox
    recipient: Mailbox
    subject: str = field(repr=False)
    text: str = field(repr=False)
    html: str = field(repr=False)
    message_id: str
    date: datetime
    raw: bytes = field(repr=False)
    reply_to: Mailbox | None = None
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    smtputf8: bool = False
    eight_bit: bool = False
    locale: str = ""
    files: tuple[tuple[bytes, str, str], ...] = field(default=(), repr=False)  # content, content type, file name


@dataclass(frozen=True, slots=True)
class Sms:
    """A composed SMS: the text as it goes out, with its encoding (`gsm7` or `ucs2`) and number of segments."""

    key: str
    sender: str
    recipient: str = field(repr=False)
    text: str = field(repr=False)
    encoding: str
    segments: int
    date: datetime
    locale: str = ""


Message = Mail | Sms


@dataclass(frozen=True, slots=True)
class Request:
    """The exact request of one message: everything that will be written, credentials excluded.

    The attempt's digest is taken over `envelope` and `body`, so a replay that would differ is noticed.
    """

    key: str
    envelope: tuple[str, ...] = field(repr=False)
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one submission proved, as mapped by its transport.

    `retry_after` is in seconds. `code` is the provider's machine-readable code (never prose: prose can hold
    addresses). `config`: a person must mend the configuration (credentials, sender, certificate, redirect).
    """

    kind: OutcomeKind
    reason: str = ""
    remote_ids: tuple[str, ...] = ()
    retry_after: float | None = None
    scope: Scope = Scope.DESTINATION
    code: str = ""
    config: bool = False

    @property
    def charged(self) -> bool:
        """Whether this outcome counts against `max_attempts`."""
        return self.kind in CHARGED


class ReceiptStatus(StrEnum):
    """What a provider says of an accepted message, mapped."""

    PENDING = "pending"
    DELIVERED = "delivered"
    SOFT_FAILURE = "soft_failure"  # final for this message; says nothing lasting of the address
    FAILURE = "failure"  # final for this message; says nothing lasting of the address
    HARD_BOUNCE = "hard_bounce"  # the address does not exist
    INVALID = "invalid_recipient"
    OPTED_OUT = "opted_out"
    COMPLAINED = "complained"
    UNKNOWN_YET = "unknown_yet"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Receipt:
    """One thing a provider said of a message.

    `key` is our wire key, given only where the transport has verified that the message is ours (a signed return path,
    a reference of ours that the provider's own authenticated feed repeats); it proves acceptance.
    """

    status: ReceiptStatus
    remote_id: str = ""
    reason: str = ""
    code: str = ""
    provider_time: datetime | None = None
    part: int = 0
    key: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """A look-up found the message: it was accepted under this id."""

    remote_id: str


@dataclass(frozen=True, slots=True)
class Absent:
    """A look-up, made after the settle delay, did not find the message."""


@dataclass(frozen=True, slots=True)
class CannotTell:
    """A look-up could not decide (no search, or several candidates)."""


Finding = Found | Absent | CannotTell
