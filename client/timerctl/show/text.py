"""Numbers, times and keys as people write and read them."""

from __future__ import annotations

import argparse
import codecs
import json
import shlex
import sys
import unicodedata
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from timerd_shm.declare.limits import TIMEOUT_NS_MAX
from timerd_shm.host import quantity
from timerd_shm.read.text import plain

QUOTED = frozenset(" ,")  # in a sentence, nobody sees where a key with one of these ends
U64_MAX = (1 << 64) - 1
U32_MAX = (1 << 32) - 1


def duration_ns(text: str) -> int:
    """Type of an argument: 30, 1.5s, 200ms, 2h (a bare number is seconds), in ns."""
    try:
        result = quantity.duration_ns(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r:.40} is not a duration: {error}") from None
    if result > TIMEOUT_NS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r:.40} is longer than ten years")
    return result


def whole(least: int, most: int) -> Callable[[str], int]:
    """Type of an argument: a whole number within these limits."""

    def read(text: str) -> int:
        # The length is checked first: int() refuses a text of thousands of digits.
        if not (text.isascii() and text.isdecimal()) or len(text) > len(str(U64_MAX)) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r:.40} is not a whole number from {least} to {most}")
        return int(text)

    return read


def span(ns: int) -> str:
    """A duration in three digits and a unit: 1.52 ms, 3.00 s; from a minute on in two units: 2 h 5 min."""
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    for limit, unit, name in ((1_000, 1, "ns"), (10**6, 1_000, "us"), (10**9, 10**6, "ms"), (60 * 10**9, 10**9, "s")):
        if ns < limit:
            value = ns / unit
            digits = 0 if unit == 1 or value >= 100 else 1 if value >= 10 else 2
            return f"{sign}{value:.{digits}f} {name}"
    minutes = ns // (60 * 10**9)
    if minutes < 60:
        return f"{sign}{minutes} min {ns // 10**9 % 60} s"
    if minutes < 48 * 60:
        return f"{sign}{minutes // 60} h {minutes % 60} min"
    return f"{sign}{minutes // 1440} d {minutes // 60 % 24} h"


def due_row(due_wall_ns: int | None, left_ns: int | None) -> dict[str, Any]:
    """When something is due, for people and programs: its time (UTC; None: not known), and how long until then.

    `left_ns` None: never.
    """
    return {
        "due": None if due_wall_ns is None else utc(due_wall_ns),
        "due_in_ns": left_ns,
        "due_in": "never" if left_ns is None else span(left_ns),
    }


def utc(wall_ns: int) -> str | None:
    """A wall-clock time to the millisecond in ISO 8601; None for a time that no calendar has."""
    try:
        at = datetime.fromtimestamp(wall_ns / 10**9, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def word(text: str) -> str:
    """A printable key or name for a sentence: quoted if it is empty, or has one of QUOTED."""
    return text if text and not set(text) & QUOTED else f"'{text}'"


def size(count: float) -> str:
    """Bytes: 512 B, 1.5 KiB, 62.0 MiB."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def columns_of(text: str) -> int:
    """Columns that a text takes at a terminal: East Asian wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in "WF") for char in text)


def key_of(text: str) -> bytes:
    """The bytes of a key from the command line. Bytes that are not UTF-8 stay as they were typed."""
    return text.encode("utf-8", "surrogateescape")


def shell_word(data: bytes) -> str:
    """Bytes as one word of a command line of bash, to be copied from a terminal: orders/7, 'a b', $'\\xff\\x1b'."""
    text = data.decode("utf-8", "surrogateescape")
    if text.isprintable():
        return shlex.quote(text)
    parts = (
        char.replace("\\", "\\\\").replace("'", "\\'")
        if char.isprintable()
        else "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogateescape"))
        for char in text
    )
    return f"$'{''.join(parts)}'"


def begun(data: bytes, most: int) -> dict[str, Any]:
    """The beginning of a payload or value, safe to show: how many bytes it has, and a text of the first `most`."""
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    text = decoder.decode(data[:most], final=most >= len(data))
    return {"bytes": len(data), "text": plain(text.encode()), "cut": len(data) > most}


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    json.dump(value, sys.stdout, indent=2)
    print()
