"""Finds the pending operation that has an id. Called with the lock held, also by the fast path.

The table has command numbers, not operations. So it needs no update when an operation settles, and an operation needs
no slot for weak references (8 bytes in each).
"""

from __future__ import annotations

from typing import Any, Final

_FIRST: Final = 1_024  # number of entries at which settled operations are first removed


class Ids:
    """Command numbers by purgatory and hash of the id. Callers give the ledger's `pending`, which may be replaced."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, bytes], int] = {}
        self._room = _FIRST

    def __len__(self) -> int:
        return len(self._numbers)

    def find(self, pending: Any, purgatory: str, hashed: bytes) -> Any:
        """The pending operation with this id; None if there is none."""
        return pending.get(self._numbers.get((purgatory, hashed), 0))

    def add(self, pending: Any, purgatory: str, hashed: bytes, number: int) -> None:
        """Note the id of the pending operation with this command number. Sometimes, forget settled operations."""
        if len(self._numbers) >= self._room:
            self._numbers = {key: one for key, one in self._numbers.items() if one in pending}
            self._room = max(_FIRST, 2 * len(self._numbers))
        self._numbers[purgatory, hashed] = number

    def clear(self) -> None:
        """Forget all ids: the command numbers begin anew."""
        self._numbers.clear()
