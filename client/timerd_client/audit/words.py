"""The words of findings: texts, keys, owners and codes for people."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final

from .records import Owner, Text, WatchKey

INCARNATION_SIZE: Final = 16  # a client's text begins with its incarnation
_SHOWN: Final = 4  # bytes of the incarnation: enough to distinguish two clients with the same name


def name_of(enum: type[IntEnum], value: int) -> str:
    """The name of a code, or its number if it has no name."""
    try:
        return enum(value).name
    except ValueError:
        return str(value)


def shown(text: Text) -> str:
    """A text in quotes."""
    if text is None:
        return "none"
    return repr(text.decode("utf-8", "backslashreplace") if isinstance(text, bytes) else text)


def shown_id(id_: Text) -> str:
    """An id as `timerctl journal` and Spark show it: in hexadecimal digits."""
    return "no id" if id_ is None else f"id {id_.hex() if isinstance(id_, bytes) else id_}"


def shown_key(key: WatchKey) -> str:
    """A key and its purgatory."""
    return f"{shown(key[1])} of purgatory {shown(key[0])}"


def shown_owner(owner: Owner) -> str:
    """A client by its name and the beginning of its incarnation, or a group."""
    if owner is None:
        return "nobody"
    text, group = owner
    if text is None:
        return "a text that cannot be read"
    if group:
        return f"group {shown(text)}"
    if isinstance(text, bytes):
        return f"client {shown(text[INCARNATION_SIZE:])} ({text[:_SHOWN].hex()})"
    return f"client {shown(text)}"


def shown_owners(owners: Sequence[Owner]) -> str:
    """Several owners, each of which would be right."""
    return " or ".join(map(shown_owner, owners))


def differing(names: Sequence[str], found: Sequence[object], wanted: Sequence[object]) -> str:
    """The differences between two rows of values with these names: "pid is 5, and should be 7"."""
    return ", ".join(
        f"{name} is {_plain(one)}, and should be {_plain(other)}"
        for name, one, other in zip(names, found, wanted, strict=True)
        if one != other
    )


def _plain(value: object) -> str:
    match value:
        case bytes() | str():
            return shown(value)
        case (bytes() | str() | None as text, bool() as group):
            return shown_owner((text, group))
        case (bytes() | str() | None as purgatory, bytes() | str() | None as name):
            return shown_key((purgatory, name))
    return str(value)


def counted(count: int, noun: str) -> str:
    """A number with its noun: "1 row", "2 rows"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def rows_are(first: int, last: int) -> str:
    """Rows from one number to another, as the beginning of a sentence: "row 5 is", "rows 5 to 9 are"."""
    return f"row {first} is" if first == last else f"rows {first} to {last} are"
