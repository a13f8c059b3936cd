"""The calls of a purgatory: `register` and `fire` with the arguments that the fast path takes."""

from collections.abc import Callable
from threading import Lock
from typing import Any, TypeVar

from .ledger import Ledger

_Method = TypeVar("_Method", bound=Callable[..., Any])

class Line:
    """The parts of a link that a call uses: the clock, the lock, and whether another thread is about to send.

    Link derives from it (client/DESIGN.md, "What a request costs its client").
    """

    now_ns: Callable[[], int]
    lock: Lock
    closed: bool
    sealed: bool  # no more commands are issued: the link is closed, or is being closed
    idle: bool  # whether no thread or loop is about to send
    alarm: int  # see wake_if_due

    def __init__(self, now_ns: Callable[[], int]) -> None: ...
    def wake(self) -> None:
        """Have all unsent commands sent. Called with the lock held."""
    def wake_if_due(self, issued: int) -> None:
        """After each command or question, with the lock held: wake the sender, unless it sends in time by itself.

        `issued` is the number of the last command. While a sender is about to send (`idle` is false), a caller wakes
        it only from the number `alarm` on: so many commands have piled up then that the sender would be too late.
        """

class Caller:
    """The parts of a purgatory that `register` and `fire` use. `indices` has the index of each purgatory, by name.

    Surface derives from it: the look-up of a part would cost 11 % of `register` and 17 % of `fire`.
    """

    def __init__(
        self, line: Line, ledger: Ledger, indices: dict[str, int], name: str, operation: type[Any]
    ) -> None: ...
    @property
    def _name(self) -> str: ...
    @property
    def _link(self) -> Line: ...
    @property
    def _ledger(self) -> Ledger: ...
    @property
    def _indices(self) -> dict[str, int]: ...
    @property
    def _operation(self) -> type[Any]: ...

def takes_register(method: _Method) -> _Method:
    """Decorates `register` of a Caller: the fast path takes its calls before the method."""

def takes_fire(method: _Method) -> _Method:
    """Decorates `fire` of a Caller, like takes_register."""
