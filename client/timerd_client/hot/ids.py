"""Finds the pending operation of an id. The fast path holds the lock for a registration with an id.

It holds command numbers, not operations. So it needs no update when an operation settles, and an operation needs no
slot for weak references (8 bytes in each). Called with the lock held.
"""

from __future__ import annotations

from typing import Any, Final

_FIRST: Final = 1_024  # entries before it first looks for settled ones


class Ids:
    """Command numbers by purgatory and hash of the id. `pending` is the ledger's, which may replace it."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, bytes], int] = {}
        self._room = _FIRST

    def __len__(self) -> int:
        return len(self._numbers)

    def find(self, pending: Any, purgatory: str, hashed: bytes) -> Any:
        """The pending operation with this id; None if there is none."""
        return pending.get(self._numbers.get((purgatory, hashed), 0))

    def add(self, pending: Any, purgatory: str, hashed: bytes, number: int) -> None:
        """The pending operation with this command number has this id. When there are many, forget settled ones."""
        if len(self._numbers) >= self._room:
            self._numbers = {key: one for key, one in self._numbers.items() if one in pending}
            self._room = max(_FIRST, 2 * len(self._numbers))
        self._numbers[purgatory, hashed] = number

    def clear(self) -> None:
        """The numbers begin anew."""
        self._numbers.clear()
