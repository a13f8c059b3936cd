"""Bytes of an arena as text that may be shown at a terminal."""

from __future__ import annotations


def plain(data: bytes) -> str:
    """Bytes of a key, name or message for one line of a terminal. Unprintable characters are escaped."""
    text = data.decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def label(raw: bytes) -> str:
    """The text of a name that is padded with zero bytes."""
    return plain(raw.rstrip(b"\0"))
