"""Promises: one operation (`Handle`), or the rows of a batch (`Rows`)."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from timerd_client.types import Key
from timerd_client.waiter import RawSettlement

_Made = TypeVar("_Made", bound=type[Handle])

class Promised:
    """A promise settles once, and then its callbacks are called.

    Operation, Batch and Reply derive from this class, so that each is one object (client/DESIGN.md). The class has no
    slots. Each of the three declares its own slots, because an operation needs fewer bytes than the others.
    """

    _link: Any  # for derived classes; nothing here uses it
    _settlement: Any
    _callbacks: list[Callable[[Any], object]] | None

    @property
    def _unseen(self) -> Any: ...
    def done(self) -> bool:
        """Whether the promise has settled. If so, this counts as a look at the outcome."""
    def _has_settled(self) -> bool:
        """Whether the promise has settled. This does not count as a look."""
    def settle(self, command: int, settlement: RawSettlement) -> bool:
        """The protocol calls this with the lock held. The first settlement counts. Returns whether to call `notify`."""

class Handle(Promised):
    """An operation, as `register` makes it.

    Operation derives from this class: with a second object for each request, `register` would need a third more
    instructions.
    """

    command: int  # the command number of the registration; 0 = it was never sent
    deadline_ns: int  # CLOCK_MONOTONIC, as far as this client knows; NO_DEADLINE = none
    payload: bytes
    _names: Key | tuple[Key, ...]
    _id: tuple[Key, str, str] | None  # its id, purgatory and if_exists

    def __init__(
        self, link: Any, command: int, names: Key | tuple[Key, ...], payload: bytes, deadline_ns: int
    ) -> None: ...
    @property
    def _taken(self) -> Any:
        """The settlement, for a caller: reading this counts as a look at the outcome. None = the operation is pending.

        Reading an attribute is one step: no signal handler runs between the read and the `return` after it. So if a
        signal handler interrupts a caller, either the caller gets the outcome, or it counts as not looked at.
        """
    @property
    def _unseen(self) -> bool:
        """Whether a grant has completed the operation, and no caller has looked at the outcome."""
    def revoke(self, command: int, settlement: RawSettlement) -> None:
        """Replace the outcome by `settlement`. No caller has looked at it, and its grant goes to another operation."""

def without_collector(made: _Made) -> _Made:
    """Decorate a class of operations: its objects get no header for the garbage collector."""

class Rows(Promised):
    """Operations that were registered together. They settle row by row. The batch is done when all have settled."""

    left: int
    listed: int  # how many rows of this batch are in `grants` of settle_all

    def __init__(self, link: Any, rows: int) -> None: ...
    @property
    def _unseen(self) -> set[int]:
        """The rows that a grant has completed, and at which no caller has looked."""
    def add_part(self, first: int, row: int, rows: int) -> None:
        """The rows from `row` on have the command numbers from `first` on. Called with the lock held."""
    def row_of(self, command: int) -> int:
        """The row of a command number; -1 = this batch does not have the number."""
    def commands(self) -> Iterator[int]:
        """The command numbers of all rows that were registered."""
    def revoke(self, command: int, settlement: RawSettlement) -> None:
        """See Handle.revoke."""
    def settle_rest(self, settlement: RawSettlement) -> None:
        """Settle all rows that are pending. Called with the lock held."""
    def settlement(self, row: int) -> RawSettlement | None:
        """The settlement of a row; None = the row is pending."""
    def copy_records(self, into: bytearray, at: int) -> bool:
        """Copy the records of all rows, one after another, to byte `at` of a buffer. False if a row has no record.

        Raises IndexError, and copies nothing, if the records do not fit.
        """
    def states_in_records(self) -> bytes:
        """The state of each row, from its record; 0 if a row has no record."""
    def values_in_records(self) -> list[bytes]:
        """The value of each row; empty if a row has no value."""

def copy_records(handles: Sequence[Handle], into: bytearray, at: int) -> bool:
    """Copy the records of operations, as Rows.copy_records does. False if an operation has no record."""
