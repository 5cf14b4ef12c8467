"""From a claimed delivery to the exact request, or the reason why not. Runs in worker threads; touches no database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from posixpath import basename

from notifyctl.compose import destinations, message
from notifyctl.compose.attachments import Objects, StoreUnavailable, content_type
from notifyctl.compose.dkim import Signer
from notifyctl.compose.mime import Part
from notifyctl.compose.templates import Renderer
from notifyctl.config import Config
from notifyctl.errors import InputError
from notifyctl.failpoints import reach
from notifyctl.keys import Keys
from notifyctl.ledger.begin import Ready
from notifyctl.lifecycle import MARGIN, Trigger
from notifyctl.model import Channel, ConsentMode, Delivery, Lane, Mandate, Request, Sms, State, Template, Topic
from notifyctl.pacing import limits
from notifyctl.policy import check
from notifyctl.transports.base import Transport


@dataclass(frozen=True, slots=True)
class Prepared:
    """A delivery ready to begin, with its request."""

    ready: Ready
    request: Request


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a claimed delivery is not attempted: the lifecycle's trigger and a reason code; `local`: the caller's
    mistake, which a person should see."""

    delivery: Delivery
    trigger: Trigger
    reason: str
    local: bool = False


@dataclass(frozen=True, slots=True)
class Preparer:
    """What one lane's workers need to compose: all of it immutable or safe to share."""

    config: Config
    lane: Lane
    transport: Transport
    renderer: Renderer
    keys: Keys
    objects: Objects
    signer: Signer | None = None

    def prepare(
        self, delivery: Delivery, templates: Mapping[tuple[str, str | None], Template | None], now: datetime
    ) -> Prepared | Refusal:
        """Compose one delivery. Never raises: whatever goes wrong is a refusal of this delivery alone."""
        reach("compose.begun")
        try:
            return self._prepare(delivery, templates.get((delivery.template, delivery.template_version)), now)
        except InputError as error:
            if error.reason == SENDER:
                return Refusal(delivery, Trigger.CAN_HEAL, SENDER, local=True)
            return Refusal(delivery, Trigger.CANNOT_HEAL, error.reason, local=error.reason not in _NOT_THE_CALLER)
        except StoreUnavailable:
            return Refusal(delivery, Trigger.CAN_HEAL, "object_store_unavailable")
        except Exception as error:  # one unbuildable message must never stop the rows behind it
            return Refusal(delivery, Trigger.CANNOT_HEAL, f"compose_failed:{type(error).__name__}", local=True)

    def _prepare(self, delivery: Delivery, template: Template | None, now: datetime) -> Prepared | Refusal:
        if delivery.defect:
            return Refusal(delivery, Trigger.CANNOT_HEAL, delivery.defect, local=True)
        topic = self.config.topics.get(delivery.topic) if delivery.topic else None
        if delivery.topic and topic is None:
            return Refusal(delivery, Trigger.CAN_HEAL, "topic_unknown", local=True)
        if delivery.channel is not self.lane.channel:
            return Refusal(delivery, Trigger.CAN_HEAL, "lane_serves_another_channel", local=True)
        mode = topic.consent if topic else ConsentMode.NONE
        refused = check(
            consent_mode=mode, consent=delivery.consent, suppression=delivery.suppression,
            expires_at=delivery.expires_at, now=now,
        )  # fmt: skip
        if refused is not None:
            trigger = Trigger.EXPIRY if refused.state is State.EXPIRED else Trigger.POLICY
            return Refusal(delivery, trigger, refused.reason)
        if template is None:
            return Refusal(delivery, Trigger.CAN_HEAL, "template_unknown", local=True)
        return self._compose(delivery, template, topic, mode, now)

    def _compose(
        self, delivery: Delivery, template: Template, topic: Topic | None, mode: ConsentMode, now: datetime
    ) -> Prepared | Refusal:
        recipient = self._recipient(delivery)
        fingerprint = self.keys.fingerprint(delivery.channel, destinations.bare(delivery.channel, recipient))
        if delivery.first_tried_at and delivery.fingerprint and delivery.fingerprint != fingerprint:
            return Refusal(delivery, Trigger.CANNOT_HEAL, "destination_changed")
        settings = self.transport.settings
        replayed = delivery.mandate is Mandate.REPLAY
        sender = (delivery.sender if replayed else None) or settings.sender
        date = delivery.message_date or now.replace(microsecond=0)
        key = self.keys.wire(delivery.idempotency_key)
        is_mail = delivery.channel is Channel.EMAIL
        composed = message.compose(
            channel=delivery.channel, key=key, template=template, renderer=self.renderer, locale=delivery.locale,
            variables=delivery.variables, sender=sender, recipient=recipient,
            reply_to=(topic.reply_to if topic else "") or settings.reply_to or None,
            message_id=message.message_id(key, sender) if is_mail else "", date=date, topic=topic,
            recipient_id=delivery.recipient_id, max_bytes=self.lane.max_bytes,
            max_segments=self.lane.max_segments, transliterate=self.lane.transliterate,
            files=self._files(delivery), sign=self.signer.sign if self.signer else None,
        )  # fmt: skip
        request = self.transport.prepare(composed)
        digest = self.keys.request(request)
        if replayed and (delivery.transport != settings.name or digest != delivery.doubtful_digest):
            return Refusal(delivery, Trigger.CANNOT_HEAL, "content_changed")
        window = timedelta(seconds=self.transport.capabilities.replay_window - settings.deadline - MARGIN)
        sms = composed if isinstance(composed, Sms) else None
        ready = Ready(
            delivery=delivery, transport=settings.name, sender=sender, message_date=date,
            endpoint_id=None if delivery.destination else delivery.current_endpoint_id, fingerprint=fingerprint,
            content_digest=self.keys.content(delivery.variables, delivery.attachments, delivery.destination),
            request_digest=digest, deadline=settings.deadline + MARGIN, consent_mode=mode,
            limits=limits(self.lane, settings.rates, fingerprint), template_version=template.version,
            locale=composed.locale,
            replay_until=delivery.doubt_since + window if replayed and delivery.doubt_since else None,
            encoding=sms.encoding if sms else None, segments=sms.segments if sms else None,
            bytes=len(request.body), wire_key=key,
        )  # fmt: skip
        reach("compose.done")
        return Prepared(ready, request)

    def _files(self, delivery: Delivery) -> list[Part]:
        """The attachments' verified bytes: nothing else happens to them before they are known to be the stated ones."""
        if delivery.attachments and delivery.channel is not Channel.EMAIL:
            raise InputError("only a mail has attachments", reason="attachment_unsupported", field="attach")
        named = [(a, a.filename or basename(a.key)) for a in delivery.attachments]
        return [Part(self.objects.fetch(a), a.content_type or content_type(name), name) for a, name in named]

    def _recipient(self, delivery: Delivery) -> str:
        stored = delivery.destination or delivery.address
        if not stored:
            raise InputError("the recipient has no address on this channel", reason="destination_missing", field="to")
        # what plain SQL stored was never validated; what enqueue stored normalizes to itself
        return destinations.normalize(delivery.channel, stored, self.config.phone_region or None)


SENDER = "sender_invalid"  # the transport's `from`: it waits until the configuration has been mended

# Refusals in which nobody made a mistake that a person must mend.
_NOT_THE_CALLER = frozenset({"smtputf8_unsupported"})
