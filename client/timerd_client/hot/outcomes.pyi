"""The outcomes of a report settle the operations that are pending."""

from collections.abc import Callable
from typing import TypeAlias

from timerd_client.waiter import Notified

from .ledger import Pending
from .promises import Handle, Rows

_Grant: TypeAlias = tuple[int, Handle | Rows]
"""A registration that a limited event has completed: its command number, and its waiter."""

def settle_all(
    pending: Pending,
    ready: list[Notified],
    frame: bytes,
    outcomes: int,
    behind: int,
    arena: int,
    unclaimed: Callable[[int, bytes, bytes, int], None],
    grants: dict[int, _Grant],
) -> None:
    """Settle the operations of a report. Each keeps a copy of its record and value, but not the frame.

    `behind` is how many bytes of answers and looks lie between the outcomes and the heap.
    Waiters to notify are added to `ready`. If nobody waits for a record, `unclaimed` is called with its command number,
    the record, the frame, and the offset of the frame's heap. An operation that a limited event has completed is added
    to `grants`, under the number of the outcome. Raises ValueError for a frame that is too short. A value that would
    lie beyond the end of the frame is cut.
    """

def is_held(pending: Pending, grant: _Grant) -> bool:
    """Whether anything except this client's tables refers to the operation (or batch) of a grant.

    Every caller that waits for the operation refers to it. So does `ready`, while a callback is about to be called.
    """
