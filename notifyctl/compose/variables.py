"""Template variables as both databases can store them: JSON without what only some JSON writers know."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from math import isfinite
from typing import Any

from notifyctl.errors import InputError

DIGITS = 4000  # of a whole number: what Python still converts


def checked(variables: Mapping[str, Any]) -> Mapping[str, Any]:
    """`variables`, if they are text, finite numbers, booleans, null, lists and objects of such.

    Raises InputError(reason="invalid", field="vars"); the message holds no value.
    """
    stack: list[Any] = [variables]
    while stack:
        value = stack.pop()
        if isinstance(value, str):
            if "\0" in value or (not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value)):
                raise _refuse("a variable holds a NUL or half a surrogate pair")
        elif isinstance(value, Mapping):
            if not all(isinstance(name, str) for name in value):
                raise _refuse("a variable's name is not text")
            stack += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple):
            stack += value
        elif isinstance(value, float):
            if not isfinite(value):
                raise _refuse("a variable is not a finite number")
        elif isinstance(value, int):
            if abs(value) >= 10**DIGITS:
                raise _refuse(f"a variable is a number of over {DIGITS} digits")
        elif value is not None:
            kind = "a date or time" if isinstance(value, date) else f"a {type(value).__name__}"
            raise _refuse(f"a variable is {kind}", "pass text, a number, true, false, null, a list or an object")
    return variables


def _refuse(message: str, hint: str = "") -> InputError:
    return InputError(message, reason="invalid", field="vars", hint=hint)
