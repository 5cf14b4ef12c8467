"""One message, ready for a transport: template, variables, sender and stored destination become a Mail or an Sms.

Pure: what is sent depends on the arguments alone. A replay with the same key, date and content is byte-identical.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from hashlib import sha256
from urllib.parse import quote

from notifyctl.compose import destinations, mime, sms
from notifyctl.compose.templates import Renderer
from notifyctl.errors import InputError
from notifyctl.model import Channel, Mail, Mailbox, Sms, Template, Topic

_DOT_ATOM = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*")


def compose(
    *,
    channel: Channel,
    key: str,
    template: Template,
    renderer: Renderer,
    locale: str | None,
    variables: Mapping[str, object],
    sender: str,
    recipient: str,
    reply_to: str | None,
    message_id: str,
    date: datetime,
    topic: Topic | None = None,
    recipient_id: str = "",
    max_bytes: int = 0,
    max_segments: int = 0,
    transliterate: bool = False,
    files: Sequence[mime.Part] = (),
    sign: Callable[[bytes, datetime], bytes] | None = None,
    trial: bool = False,
) -> Mail | Sms:
    """Compose one message; limits of 0 mean none, `recipient` is in its stored form.

    `files` are a mail's attachments. A topic's `reply_to` wins over the transport's (`reply_to`). `sign` turns the
    finished bytes of a mail and its date into what is sent; `max_bytes` counts that. `trial`: only to see whether it
    can be composed; a mail's `raw` then lacks its body unless `max_bytes` counts it. Raises InputError with reason
    variable_missing, template_syntax, template_error, template_part_missing, destination_invalid, header_invalid,
    sender_invalid, too_many_segments or too_large.
    """
    rendered = renderer.render(template, channel, locale, variables)
    if channel is Channel.SMS:
        text, encoding, segments = sms.prepare(rendered.sms, transliterate=transliterate)
        if not text:
            raise InputError("the SMS is empty", reason="template_error", field="sms")
        if max_segments and segments > max_segments:
            raise InputError(
                f"the SMS takes {segments} segments ({encoding}), allowed are {max_segments}",
                reason="too_many_segments",
                field="sms",
                hint="shorten the template, raise the lane's max_segments, or set transliterate"
                if encoding == sms.UCS2
                else "shorten the template or raise the lane's max_segments",
            )
        return Sms(
            key=key,
            sender=sms.check_sender(sender),
            recipient=destinations.bare(channel, recipient),
            text=text,
            encoding=encoding,
            segments=segments,
            date=date,
            locale=rendered.locale,
        )
    from_box = _configured(sender, "from")
    to_box = destinations.email(recipient)
    answer_to = (topic.reply_to if topic else "") or reply_to
    reply_box = _configured(answer_to, "reply_to") if answer_to else None
    headers = _unsubscribe(topic.list_unsubscribe, recipient_id) if topic and topic.list_unsubscribe else ()
    raw, smtputf8 = mime.head(
        sender=from_box, recipient=to_box, subject=rendered.subject, message_id=message_id, date=date,
        reply_to=reply_box, headers=headers,
    )  # fmt: skip
    if max_bytes or not trial:
        raw = mime.with_body(raw, rendered.text, rendered.html, boundary_seed=message_id, files=files)
    if sign is not None:
        raw = sign(raw, date)
    if max_bytes and len(raw) > max_bytes:
        raise InputError(
            f"the mail has {len(raw)} bytes, allowed are {max_bytes}",
            reason="too_large",
            field="template",
            hint="shorten the template or its variables, or raise max_bytes",
        )
    return Mail(
        key=key,
        sender=from_box,
        recipient=to_box,
        subject=rendered.subject,
        text=rendered.text,
        html=rendered.html,
        message_id=message_id,
        date=date,
        raw=raw,
        reply_to=reply_box,
        headers=headers,
        smtputf8=smtputf8,
        locale=rendered.locale,
        files=tuple((file.content, file.content_type, file.filename) for file in files),
    )


def message_id(key: str, sender: str) -> str:
    """`<key@domain>`, the domain being the sender's; a key that cannot stand there is replaced by its digest.

    Raises InputError(reason="sender_invalid").
    """
    local = key if len(key) <= 200 and _DOT_ATOM.fullmatch(key) else sha256(key.encode()).hexdigest()
    return f"<{local}@{_configured(sender, 'from').domain}>"


@lru_cache(maxsize=256)
def _configured(address: str, field: str) -> Mailbox:
    """A sender or reply address out of the configuration: there are few of them, used for every mail."""
    try:
        return destinations.email(address)
    except InputError as error:
        raise InputError(
            f"`{field}` is not one mail address", reason="sender_invalid", field=field, hint=error.hint
        ) from None


def _unsubscribe(url: str, recipient_id: str) -> tuple[tuple[str, str], ...]:
    """RFC 2369 and, for an https link, RFC 8058: mail programs then unsubscribe with one POST."""
    link = url.replace("{recipient}", quote(recipient_id, safe=""))
    if not re.fullmatch(r"(?:https?://|mailto:)[!-;=?-~]+", link, re.IGNORECASE):
        raise InputError(
            "list_unsubscribe is not one https or mailto link in ASCII",
            reason="header_invalid",
            field="List-Unsubscribe",
            hint='set it under [topics.NAME], like "https://example.com/unsubscribe?r={recipient}"',
        )
    one_click = (("List-Unsubscribe-Post", "List-Unsubscribe=One-Click"),)
    return (("List-Unsubscribe", f"<{link}>"), *(one_click if link.lower().startswith("https:") else ()))
