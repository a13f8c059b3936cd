"""Promises: one operation (`Handle`), or the rows of a batch (`Rows`)."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from timerd_client.types import Key
from timerd_client.waiter import RawSettlement

_Made = TypeVar("_Made", bound=type[Handle])

class Promised:
    """A promise: it settles once, and then its callbacks are called.

    Operation, Batch and Reply derive from it, so that each is one object (client/DESIGN.md). It has no slots: each of
    the three has its own, because an operation needs fewer bytes than the others.
    """

    _link: Any  # for derived classes; nothing here uses it
    _settlement: Any
    _callbacks: list[Callable[[Any], object]] | None

    @property
    def _unseen(self) -> Any: ...
    def done(self) -> bool:
        """Whether it has settled. A caller that gets True has looked at it."""
    def _has_settled(self) -> bool:
        """Whether it has settled. This does not count as a look."""
    def settle(self, command: int, settlement: RawSettlement) -> bool:
        """The protocol calls this with the lock held. The first settlement counts. Returns whether to call `notify`."""

class Handle(Promised):
    """An operation, as `register` makes it.

    Operation derives from it: a second object for each request would cost a third of the instructions of `register`.
    """

    command: int  # the command number of its registration; 0 = it was never sent
    deadline_ns: int  # CLOCK_MONOTONIC, as far as this client knows; NO_DEADLINE = none
    payload: bytes
    _names: Key | tuple[Key, ...]
    _id: tuple[Key, str, str] | None  # its id, purgatory and if_exists

    def __init__(
        self, link: Any, command: int, names: Key | tuple[Key, ...], payload: bytes, deadline_ns: int
    ) -> None: ...
    @property
    def _taken(self) -> Any:
        """The settlement, for a caller: from now on it counts as looked at. None = it is pending.

        Reading an attribute is one step: no handler of a signal runs between it and the `return` behind it. So if a
        handler interrupts a caller, the caller has either looked at the outcome and got it, or neither.
        """
    @property
    def _unseen(self) -> bool:
        """Whether a grant has completed it, and no caller has looked at it."""
    def revoke(self, command: int, settlement: RawSettlement) -> None:
        """Replace the outcome, at which no caller has looked, by this one: the grant goes to another operation."""

def without_collector(made: _Made) -> _Made:
    """Decorates a class of operations: its objects have no header of the garbage collector."""

class Rows(Promised):
    """Operations that were registered together. They settle row by row. It is done when all have settled."""

    left: int
    listed: int  # how many of its rows are in `grants` of settle_all

    def __init__(self, link: Any, rows: int) -> None: ...
    @property
    def _unseen(self) -> set[int]:
        """The rows that a grant has completed, and at which no caller has looked."""
    def add_part(self, first: int, row: int, rows: int) -> None:
        """The rows from `row` on have the command numbers from `first` on. Called with the lock held."""
    def row_of(self, command: int) -> int:
        """The row of a command number; -1 = it is in no part."""
    def commands(self) -> Iterator[int]:
        """The command numbers of all rows that were registered."""
    def revoke(self, command: int, settlement: RawSettlement) -> None:
        """See Handle.revoke."""
    def settle_rest(self, settlement: RawSettlement) -> None:
        """Settle all rows that are pending. Called with the lock held."""
    def settlement(self, row: int) -> RawSettlement | None:
        """The settlement of a row; None = it is pending."""
    def copy_records(self, into: bytearray, at: int) -> bool:
        """Copy the records of all rows, one after another, to byte `at` of a buffer. False if a row has no record.

        Raises IndexError, and copies nothing, if they do not fit.
        """
    def states_in_records(self) -> bytes:
        """The state of each row in its record; 0 where a row has no record."""
    def values_in_records(self) -> list[bytes]:
        """The value of each row; empty where there is none."""

def copy_records(handles: Sequence[Handle], into: bytearray, at: int) -> bool:
    """Copy the records of operations, as Rows.copy_records does. False if one has no record."""
