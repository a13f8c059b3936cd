"""The calls of a purgatory: `register` and `fire` with the arguments that the fast path takes."""

from collections.abc import Callable
from threading import Lock
from typing import Any, TypeVar

from .ledger import Ledger

_Method = TypeVar("_Method", bound=Callable[..., Any])

class Line:
    """The parts of a link that a call uses: the clock, the lock, and whether another thread is about to send.

    Link derives from this class (client/DESIGN.md, "What a request costs its client").
    """

    now_ns: Callable[[], int]
    lock: Lock
    closed: bool
    sealed: bool  # no more commands are issued: the link is closed, or is being closed
    idle: bool  # whether no thread or loop is about to send
    alarm: int  # see wake_if_due

    def __init__(self, now_ns: Callable[[], int]) -> None: ...
    def wake(self) -> None:
        """Wake the sender of all unsent commands. Called with the lock held."""
    def wake_if_due(self, issued: int) -> None:
        """Wake the sender, unless it will send in time anyway. Called after each command, with the lock held.

        `issued` is the number of the last command. While a sender is about to send (`idle` is false), a caller wakes
        the sender only from the command number `alarm` on, because too many commands wait then.
        """

class Caller:
    """The parts of a purgatory that `register` and `fire` use. `indices` has the index of each purgatory, by name.

    Surface derives from this class: looking the parts up would cost 11 % of `register` and 17 % of `fire`.
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
    """Decorate `register` of a Caller: a call takes the fast path if it can, and otherwise calls the method."""

def takes_fire(method: _Method) -> _Method:
    """Decorate `fire` of a Caller, as takes_register decorates `register`."""
