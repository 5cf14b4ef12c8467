"""notifyctl: transactional email and SMS from a durable ledger.

For Python applications: `enqueue` puts an intent into the caller's own transaction. What is named here is loaded when
it is first used, because the command line imports this package for every idle tick.
"""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from notifyctl.api import Enqueued as Enqueued
    from notifyctl.api import enqueue as enqueue
    from notifyctl.errors import InputError as InputError
    from notifyctl.model import Attachment as Attachment
    from notifyctl.model import Channel as Channel
    from notifyctl.model import Intent as Intent

_PUBLIC = {"Enqueued": "api", "enqueue": "api", "InputError": "errors", "Attachment": "model", "Channel": "model",
           "Intent": "model"}  # fmt: skip

__all__ = ["Attachment", "Channel", "Enqueued", "InputError", "Intent", "__version__", "enqueue"]


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"notifyctl.{_PUBLIC[name]}"), name)
