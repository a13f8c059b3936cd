"""Durations and sizes as people write them: timerd and timerctl read them alike.

    duration_ns("1.5s")      a number and a unit of ns, us, ms, s, m, h, d; a bare number is seconds, as for sleep(1)
    byte_count("16MiB")      a number of bytes, or one with KiB, MiB or GiB

No float is used: a duration is a whole number of nanoseconds, not the nearest float.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

DURATIONS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9, "d": 86_400 * 10**9}
SIZES = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
QUANTITY = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", re.ASCII)
DIGITS_MAX = 40  # Python refuses an int of thousands of digits


def duration_ns(text: str) -> int:
    """The nanoseconds of a text such as "250ms". Raises ValueError with the reason, or with the form to write."""
    remedy = 'write seconds, or a number and one of ns, us, ms, s, m, h, d, as in "1ms"'
    return _quantity(text, {**DURATIONS, "": DURATIONS["s"]}, "ns", remedy)


def byte_count(text: str) -> int:
    """The number of bytes of a text such as "16MiB". Raises ValueError with the reason, or with the form to write."""
    return _quantity(text, SIZES, "bytes", 'write a number of bytes, or one with KiB, MiB or GiB, as in "16MiB"')


def _quantity(text: str, units: Mapping[str, int], smallest: str, remedy: str) -> int:
    match = QUANTITY.fullmatch(text.strip())
    if match is None or match[2] not in units or len(match[1]) > DIGITS_MAX:
        raise ValueError(remedy)
    whole, _, fraction = match[1].partition(".")
    scale: int = 10 ** len(fraction)
    value, rest = divmod(int(whole + fraction) * units[match[2]], scale)
    if rest:
        raise ValueError(f"it is not a whole number of {smallest}")
    return value
