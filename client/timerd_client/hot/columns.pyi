"""The columns of `register_many` and `fire_many`: they are checked, then written as commands row by row."""

from collections.abc import Sequence
from typing import Any

from timerd_client.conditions import When
from timerd_client.types import Key

from .commands import Head
from .ledger import Ledger

def are_bodies(column: list[Any]) -> bool:
    """Whether each element is bytes that may be a payload or value: not too long."""

def durations_of(timeouts: list[Any]) -> list[int]:
    """A column of timeouts in ns; raises TimeoutOutOfRangeError."""

def amounts_of(amounts: list[Any]) -> list[int]:
    """A column of amounts, checked; raises InvalidValueError."""

def plain_keys(keys: list[Key]) -> Sequence[Key]:
    """A column of keys, checked, for issue_events. Raises InvalidKeyError, KeyTooLongError."""

class Watches:
    """The keys of a column of registrations, checked and encoded for issue_registrations.

    Raises the errors of a registration with wrong keys, and names the row.
    """

    names: list[Any]  # the keys of each row as its operation has them: one key, or a tuple

    def __init__(self, keys: list[Any], when: When) -> None: ...

def issue_registrations(
    ledger: Ledger,
    head: Head,
    watches: Watches,
    payloads: Sequence[bytes] | bytes,
    durations_ns: Sequence[int] | int,
    start: int,
    rows: int,
) -> int:
    """Issue `rows` registrations, from row `start` of the columns on. Returns the command number of the first."""

def issue_events(
    ledger: Ledger,
    purgatory: int,
    keys: Sequence[Any],
    values: Sequence[bytes] | bytes,
    amounts: Sequence[int] | int,
    start: int,
    rows: int,
) -> None:
    """Fire `rows` events, from row `start` of the columns on. `keys` come from plain_keys."""
