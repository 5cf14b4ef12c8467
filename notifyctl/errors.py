"""Everything that can go wrong for a reason a person can act on: message, exit code and hint live on the class.

Exit codes follow sysexits(3) where it has a word for the case: 65 EX_DATAERR, 75 EX_TEMPFAIL, 78 EX_CONFIG.
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_BUG = 1
EXIT_USAGE = 2
EXIT_PERSON = 3
EXIT_DATA = 65
EXIT_TEMPORARY = 75
EXIT_CONFIG = 78

# When several apply, the first of these that occurred is the exit code.
EXIT_PRECEDENCE = (EXIT_BUG, EXIT_CONFIG, EXIT_TEMPORARY, EXIT_PERSON, EXIT_DATA, EXIT_OK)


def worst(*codes: int) -> int:
    """The exit code that wins when several apply."""
    return next((code for code in EXIT_PRECEDENCE if code in codes), EXIT_OK)


class NotifyctlError(Exception):
    """Base of all reported errors: what is wrong and where, and (`hint`) what to do next.

    The text never holds an address, number, body, variable, attachment name or secret.
    """

    exit_code = EXIT_BUG
    code = "internal"

    def __init__(self, message: str, *, hint: str = "", code: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if code:
            self.code = code


class UsageError(NotifyctlError):
    """The command line is malformed."""

    exit_code = EXIT_USAGE
    code = "usage"


class InputError(NotifyctlError):
    """One input (a row, an address, a time, a template) is not acceptable; `field` names it."""

    exit_code = EXIT_DATA
    code = "input"

    def __init__(self, message: str, *, reason: str, field: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint, code=reason)
        self.reason = reason
        self.field = field


class ConfigError(NotifyctlError):
    """The configuration, the ledger's version or its instance is wrong."""

    exit_code = EXIT_CONFIG
    code = "config"


class LedgerUnavailable(NotifyctlError):
    """The ledger cannot be reached, or is locked beyond patience: try again later."""

    exit_code = EXIT_TEMPORARY
    code = "ledger_unavailable"
