"""One test message through a lane's transport, past the ledger: no delivery, no attempt, no receipt of it is kept."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import uuid4

from notifyctl import clock
from notifyctl.clock import Deadline
from notifyctl.compose import destinations, dkim_keys, message
from notifyctl.compose.templates import Renderer
from notifyctl.config import Config
from notifyctl.errors import EXIT_OK, ConfigError, InputError, UsageError
from notifyctl.keys import Keys
from notifyctl.model import Channel, Lane, Outcome, OutcomeKind, Template
from notifyctl.ticks.doctor import exit_code
from notifyctl.transports.base import Transport, Trouble

_TEXT = (
    "This is a test message of notifyctl, instance {{ instance }}, sent by hand with `notifyctl doctor` through the "
    "transport {{ transport }}. Nobody needs to answer it.\n"
)
_TEMPLATE = Template(
    "doctor",
    "1",
    {
        ("", "subject"): "notifyctl test message ({{ instance }})",
        ("", "text"): _TEXT,
        ("", "sms"): "notifyctl test message ({{ instance }}, {{ transport }})",
    },
)


@dataclass(frozen=True, slots=True)
class Aim:
    """Where a test message goes: a lane, and a destination in its stored form."""

    lane: Lane
    destination: str


def aim(config: Config, given: str, transports: tuple[str, ...] = ()) -> Aim:
    """What `channel=ADDRESS` means: the channel's own lane, else the first that serves it, by these transports if any.

    Raises UsageError, InputError for the address (which no text repeats), ConfigError where no lane serves it.
    """
    name, equals, address = given.partition("=")
    if not equals or name not in set(Channel) or not address:
        raise UsageError(
            "--send-test is not CHANNEL=ADDRESS", hint="for example email=me@example.com or sms=+12025550123"
        )
    channel = Channel(name)
    serving = [
        lane
        for lane in config.lanes.values()
        if lane.channel is channel and (not transports or lane.transport in transports)
    ]
    if not serving:
        raise ConfigError(f"no lane serves {channel} by these transports", hint="add one, or leave --transport out")
    serving.sort(key=lambda lane: lane.name != config.lane_for(channel))
    return Aim(serving[0], destinations.normalize(channel, address, config.phone_region or None))


def send(config: Config, target: Aim, transport: Transport, keys: Keys) -> Outcome:
    """Compose and submit it once. Raises InputError or ConfigError for what cannot be composed."""
    settings, channel = transport.settings, target.lane.channel
    key = keys.wire(f"doctor:{uuid4()}")
    signer = dkim_keys.signer(settings)
    try:
        composed = message.compose(
            channel=channel, key=key, template=_TEMPLATE, renderer=Renderer(config.default_locale), locale=None,
            variables={"instance": config.instance, "transport": settings.name}, sender=settings.sender,
            recipient=target.destination, reply_to=settings.reply_to or None,
            message_id=message.message_id(key, settings.sender) if channel is Channel.EMAIL else "",
            date=clock.wall().replace(microsecond=0), sign=signer.sign if signer else None,
            transliterate=target.lane.transliterate,
        )  # fmt: skip
    except InputError as error:
        if error.reason == "sender_invalid":
            raise settings.error("from", "is not a sender for this channel", error.hint) from None
        raise
    try:
        return transport.submit([transport.prepare(composed)], Deadline.after(settings.deadline), None)[0]
    except (Trouble, OSError) as error:
        reason = error.reason if isinstance(error, Trouble) else "connection_lost"
        return Outcome(OutcomeKind.AMBIGUOUS, reason)


def code(outcome: Outcome) -> int:
    """The exit code that its outcome asks for."""
    return EXIT_OK if outcome.kind is OutcomeKind.ACCEPTED else exit_code(outcome)
