"""The ledger of a client: `Pending`, its pending operations, and `Ledger`, its unacknowledged commands."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar, final, overload

from timerd_client.waiter import Waiter

from .ids import Ids

_Default = TypeVar("_Default")

@final
class Pending(Mapping[int, Waiter]):
    """Pending operations: the waiter of each command number. Iterates in the order of the numbers."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[int]: ...
    def __getitem__(self, number: int, /) -> Waiter: ...
    def __setitem__(self, number: int, waiter: Waiter, /) -> None: ...
    @overload
    def get(self, number: int, default: None = None) -> Waiter | None: ...
    @overload
    def get(self, number: int, default: _Default) -> Waiter | _Default: ...
    @overload
    def pop(self, number: int, default: None = None) -> Waiter | None:
        """Remove the waiter of this number, and return it. Returns `default` if there is none; raises no error."""
    @overload
    def pop(self, number: int, default: _Default) -> Waiter | _Default: ...
    def add_all(self, first: int, rows: int, waiter: Waiter) -> None:
        """Add `rows` numbers from `first` on, all with the same waiter."""

class Ledger:
    """The ledger of a client: unacknowledged commands, numbered one by one; pending operations; the newest event."""

    window: int
    issued: int
    applied: int
    pending: Pending
    incarnation: bytes
    arena: int

    def __init__(self, window: int) -> None: ...
    @property
    def ids(self) -> Ids: ...
    @property
    def kept(self) -> int:
        """How many commands are kept."""
    def issue(self, command: bytes) -> int:
        """Add a command. Returns its number. The caller has checked that the window has room."""
    def issue_all(self, commands: Sequence[bytes]) -> int:
        """Add several commands at once. Returns the number of the first."""
    def command(self, number: int) -> bytes:
        """The kept command with this number."""
    def replace(self, number: int, command: bytes) -> None:
        """Replace a command that is kept."""
    def fit(self, first: int, count: int, size: int) -> int:
        """How many commands from `first` on fit into `size` bytes: `count`, half of it, a quarter, and so on."""
    def join(self, header: bytes, first: int, count: int) -> bytes:
        """A frame: the header, then `count` commands from `first` on."""
    def drop(self, applied: int) -> None:
        """Forget the commands up to the number `applied`: the daemon has applied them."""
    def begin_after(self, number: int) -> None:
        """Forget all commands. The next command gets the number after `number`."""
    def move_purgatories(self, moved: dict[int, int]) -> None:
        """Change the purgatory in all kept commands, for a new arena: {old index: new index}."""
    def count_from_first(self) -> None:
        """Let all events of the arena count for kept registrations: their callers have not seen this arena."""
    def newest(self) -> int:
        """Sequence of the newest event that this client can see."""
    def use_arena(self, words: Sequence[int], index: int) -> None:
        """Read the sequence of the newest event from `words[index]`: a list, or an arena that stays mapped."""
