"""Durations as people write them to Spark: "120s", "5ms", "1 minute 30 seconds"."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

from timerd_shm.errors import InvalidValueError

UNITS_NS: Final = {
    **dict.fromkeys(("ns", "nanosecond", "nanoseconds"), 1),
    **dict.fromkeys(("us", "microsecond", "microseconds"), 1_000),
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1_000_000),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1_000_000_000),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60_000_000_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000_000_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000_000_000),
}
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.ASCII | re.IGNORECASE)


def duration_ns(what: str, given: str | float | timedelta) -> int:
    """A duration in ns; a number is seconds. Raises InvalidValueError, which names the argument `what`."""
    if isinstance(given, timedelta):
        ns = given // timedelta(microseconds=1) * 1_000
    elif isinstance(given, (int, float)) and not isinstance(given, bool) and abs(given) < 1e10:
        ns = round(given * 1e9)
    elif isinstance(given, str) and (parts := _parts(given)):
        ns = sum(parts)
    else:
        ns = -1
    if ns < 0:
        raise InvalidValueError(
            f'{what}={given!r} is no duration: give "120s", "5ms", "1 minute 30 seconds", or seconds as a number'
        )
    return ns


def _parts(text: str) -> list[int]:
    """The ns of each number with its unit; empty if the text is something else."""
    parts, at = [], 0
    while at < len(text):
        match = _PART.match(text, at)
        if match is None or match[2].lower() not in UNITS_NS:
            return []
        parts.append(round(float(match[1]) * UNITS_NS[match[2].lower()]))
        at = match.end()
    return parts
