"""Durations, rates and instants as people write them.

Everything raises `InputError` naming what is wrong; the caller says where it stood. Durations are seconds as float,
instants are aware UTC datetimes. Imports nothing heavy: an idle tick reads the configuration through this module.
"""

from __future__ import annotations

from notifyctl.errors import InputError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from datetime import datetime

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PER = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_FIRST_YEAR = 1970  # what the ledger's columns hold
_LONGEST = 36525 * 86400.0  # a century: beyond it, sums with dates overflow
_DURATION_HINT = 'write a number and a unit (ms, s, m, h, d, w), such as "15s", "16m", "72h" or "1h30m"'


def duration(text: str) -> float:
    """Seconds meant by `15s`, `16m`, `72h`, `3d`, `1h30m`, `1.5h`; a bare number is refused."""
    total, rest = 0.0, text.strip()
    if not rest:
        raise InputError("a duration is empty", reason="duration", hint=_DURATION_HINT)
    while rest:
        number = _leading(rest, "0123456789.")
        rest = rest[len(number) :]
        unit = _leading(rest, "abcdefghijklmnopqrstuvwxyz")
        rest = rest[len(unit) :]
        if number and not unit and not rest:
            raise InputError(f"the duration {text!r} has no unit", reason="duration", hint=_DURATION_HINT)
        try:
            total += float(number) * _SECONDS[unit]
        except (KeyError, ValueError):
            raise InputError(f"{text!r} is not a duration", reason="duration", hint=_DURATION_HINT) from None
    if total > _LONGEST:
        raise InputError(f"the duration {text!r} is over 100 years", reason="duration", hint=_DURATION_HINT)
    return total


def short(seconds: float) -> str:
    """A duration as it is written: `15s`, `16m`, `72h` as `3d`; what `duration` reads."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s"


def rate(text: str) -> tuple[int, int, str]:
    """(count, seconds, text) meant by `50/s`, `600/m`, `5/h`, `10000/d`."""
    number, slash, unit = text.replace(" ", "").partition("/")
    if not slash or unit not in _PER or not (number.isascii() and number.isdigit()) or int(number[:12]) < 1:
        raise InputError(
            f"{text!r} is not a rate",
            reason="rate",
            hint='write a whole number of at least 1 per s, m, h or d, such as "50/s", "600/m" or "10000/d"',
        )
    return int(number[:12]), _PER[unit], text


def instant(text: str) -> datetime:
    """The instant meant by `2027-03-28T09:00+02:00`, `2027-03-28T07:00Z` or `2027-03-28T09:00 Europe/London`.

    Refused: no offset and no zone, both, a date without a time, and a local hour that the zone's clock change skips
    or repeats (the message names the two candidates).
    """
    from datetime import UTC, datetime

    stated, zone = text.strip(), ""
    head, space, tail = stated.rpartition(" ")
    if space and tail[:1].isalpha():
        stated, zone = head.strip(), tail
    try:
        local = datetime.fromisoformat(stated)
        if ":" not in stated and "T" not in stated.upper():
            raise ValueError("a date without a time")  # noqa: TRY301 - both are the same fault to the reader
    except ValueError:
        raise _time_error(f"{text!r} is not a date and time") from None
    if local.tzinfo is not None and zone:
        raise _time_error(f"{text!r} has both an offset and a zone")
    if local.tzinfo is None and not zone:
        raise _time_error(f"{text!r} has neither an offset nor a zone")
    try:
        moment = (_in_zone(local, zone, text) if zone else local).astimezone(UTC)
    except OverflowError:
        moment = None
    if moment is None or moment.year < _FIRST_YEAR:
        raise _time_error(f"{text!r} lies outside the years {_FIRST_YEAR} to 9999")
    return moment


def iso(moment: datetime) -> str:
    """`moment` as UTC ISO 8601 ending in `Z`; a fraction only where there is one."""
    from datetime import UTC

    return moment.astimezone(UTC).isoformat().removesuffix("+00:00") + "Z"


def _leading(text: str, allowed: str) -> str:
    return text[: len(text) - len(text.lstrip(allowed))]


def _time_error(message: str, hint: str = "") -> InputError:
    example = "write 2027-03-28T09:00+02:00, 2027-03-28T07:00Z or 2027-03-28T09:00 Europe/London"
    return InputError(message, reason="time", hint=hint or example)


def _in_zone(local: datetime, name: str, text: str) -> datetime:
    """`local` in the named zone, refused where the zone's clock never or twice shows it."""
    from datetime import UTC
    from zoneinfo import ZoneInfo

    try:
        zone = ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # ZoneInfoNotFoundError is a KeyError; a folder of zones is an OSError
        raise _time_error(f"{name!r} is not a time zone", _nearest_zone(name)) from None
    early, late = (local.replace(tzinfo=zone, fold=fold) for fold in (0, 1))
    if early.utcoffset() == late.utcoffset():
        return early
    candidates = [moment.astimezone(UTC).astimezone(zone) for moment in (early, late)]
    repeated = candidates[0].replace(tzinfo=None, fold=0) == local
    first, second = (moment.isoformat(timespec="minutes") for moment in sorted(candidates))
    happens = "happens twice" if repeated else "does not exist"
    raise _time_error(f"{text!r} {happens}: the clocks change in {name}", f"state which is meant: {first} or {second}")


def _nearest_zone(name: str) -> str:
    from difflib import get_close_matches
    from zoneinfo import available_timezones

    near = get_close_matches(name, sorted(available_timezones()), n=1)
    return f"did you mean {near[0]}?" if near else "zones are named as in Europe/London"
