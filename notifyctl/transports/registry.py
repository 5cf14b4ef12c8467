"""The kinds of transport as light data: the configuration is checked against it at every idle tick.

A provider's module is imported when one of its transports is opened, never earlier; and neither `model` nor
`dataclasses` is imported here, because the two alone would double what an idle tick costs.
"""

from __future__ import annotations

from typing import NamedTuple

from notifyctl.errors import ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from notifyctl.settings import TransportSettings
    from notifyctl.transports.base import Transport


class Table(NamedTuple):
    """The keys of a table inside a transport's, and which of them are secrets."""

    keys: frozenset[str]
    secrets: frozenset[str] = frozenset()


class Kind(NamedTuple):
    """One kind: `module` is `MODULE:CLASS` below this package, `keys` those only this kind has, secrets included.

    `channels` by name (a `Channel` is found in it too). Each of `secrets` may be given as KEY, KEY_env, KEY_file or
    KEY_command. `feeds`: the key that, where it is given, makes a transport one whose feed or mailbox is read (`kind`:
    always), so that an idle poll knows without the transport's module; `Transport.feeds` says the same. `tables`: those
    of `keys` that are tables with known keys of their own.
    """

    module: str
    channels: frozenset[str]
    keys: frozenset[str]
    secrets: frozenset[str] = frozenset()
    feeds: str = ""
    tables: Mapping[str, Table] = {}


COMMON_KEYS = frozenset(
    {"kind", "from", "reply_to", "rate", "deadline", "drain", "settle_delay", "cooldown", "status_rate", "poll_every"}
)

_HTTP = frozenset({"base_url", "ca_file", "receipt_window"})  # of every provider reached by HTTPS

KINDS: dict[str, Kind] = {
    "smtp": Kind(
        module="smtp:Smtp",
        channels=frozenset({"email"}),
        keys=frozenset(
            {"host", "port", "tls", "ca_file", "username", "password", "max_messages_per_connection", "dkim", "bounces"}
        ),
        secrets=frozenset({"username", "password"}),  # at many providers the user name is an API key
        feeds="bounces",
        tables={
            "bounces": Table(
                keys=frozenset(
                    {"maildir", "imap", "pop3", "return_path_domain", "return_path_user", "folder", "tls", "ca_file",
                     "username", "password", "delete"}
                ),
                secrets=frozenset({"username", "password"}),
            )
        },
    ),
    "file": Kind(
        module="file:Folder",
        channels=frozenset({"email", "sms"}),
        keys=frozenset({"path", "fail"}),
    ),
    "postmark": Kind(
        module="postmark:Postmark",
        channels=frozenset({"email"}),
        keys=_HTTP | {"server_token", "message_stream"},
        secrets=frozenset({"server_token"}),
    ),
    "telnyx": Kind(
        module="telnyx:Telnyx",
        channels=frozenset({"sms"}),
        keys=_HTTP | {"api_key", "messaging_profile_id", "replay_window"},
        secrets=frozenset({"api_key"}),
    ),
    "twilio": Kind(
        module="twilio:Twilio",
        channels=frozenset({"sms"}),
        keys=_HTTP | {"account_sid", "auth_token", "api_key_sid", "messaging_service_sid"},
        secrets=frozenset({"auth_token"}),
    ),
}


def open_transport(settings: TransportSettings, sign: Callable[[str], str] | None = None) -> Transport:
    """The transport that `settings` describes, ready to submit. Nothing is sent yet.

    `sign`: the ledger's signature for return paths (`Keys.return_path`), for all that sends or reads receipts.

    Raises ConfigError naming `transports.NAME.KEY` for what is missing, malformed or unreadable.
    """
    from dataclasses import replace
    from importlib import import_module

    kind = KINDS.get(settings.kind)
    if kind is None:
        raise settings.error("kind", "is unknown", f"it may be {', '.join(sorted(KINDS))}")
    module, _, name = kind.module.partition(":")
    transport: type[Transport] = getattr(import_module(f"notifyctl.transports.{module}"), name)
    try:
        return transport(replace(settings, sign=sign) if sign else settings)
    except UnicodeError:  # an embedded NUL or a lone surrogate in a path or host
        raise ConfigError(f"transports.{settings.name} holds a text that cannot be encoded") from None
