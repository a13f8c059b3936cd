"""Durations as people write them to timerd ("120s", "5ms") and to Spark ("1 minute 30 seconds")."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

from timerd_shm.declare.errors import InvalidValueError
from timerd_shm.host import quantity

# The names that Spark has for timerd's units. Each name may end with an s.
WORDS: Final = {
    "nanosecond": "ns",
    "microsecond": "us",
    "millisecond": "ms",
    "second": "s",
    "minute": "m",
    "hour": "h",
    "day": "d",
}
_PART = re.compile(r"\s*([\d.]+)\s*([A-Za-z]*)\s*", re.ASCII)


def duration_ns(what: str, given: str | float | timedelta) -> int:
    """A duration in ns; a number is in seconds. Raises InvalidValueError, which names the argument `what`."""
    ns = -1
    if isinstance(given, timedelta):
        ns = given // timedelta(microseconds=1) * 1_000
    elif isinstance(given, (int, float)) and not isinstance(given, bool) and abs(given) < 1e10:
        ns = round(given * 1e9)
    elif isinstance(given, str) and given.strip():
        ns = _sum(given)
    if ns < 0:
        raise InvalidValueError(
            f'{what}={given!r} is no duration: give "120s", "5ms", "1 minute 30 seconds", or seconds as a number'
        )
    return ns


def _sum(text: str) -> int:
    """The sum of all parts in ns; -1 if a part is not a duration."""
    total = at = 0
    while at < len(text):
        match = _PART.match(text, at)
        if match is None:
            return -1
        unit = match[2]
        try:
            total += quantity.duration_ns(match[1] + WORDS.get(unit.lower().removesuffix("s"), unit))
        except ValueError:
            return -1
        at = match.end()
    return total
