"""When a client abandons an operation: at its deadline + grace, and only while the daemon is lost.

While the daemon lives, the operation's outcome will come, even if late, and nothing here runs. When the daemon is
lost, the deadlines of all pending operations are collected once, and then the deadline of each later registration.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from typing import Final
from typing import Protocol as Interface

from timerd_shm.declare.limits import NO_DEADLINE

NEVER: Final = 0xFFFF_FFFF_FFFF_FFFF  # a time in ns that does not come


class Deadlined(Interface):
    """The waiter of pending operations, which it knows by their command numbers."""

    def due_ns(self, command: int) -> int:
        """The deadline of this operation; NO_DEADLINE or more = no deadline."""


class Deadlines:
    """The deadlines of pending operations, while the daemon is lost."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []  # (deadline, command); two entries if the deadline has moved
        self._seen = 0  # commands up to this one have been collected

    def clear(self) -> None:
        """Forget all deadlines: the daemon is back."""
        self._heap.clear()
        self._seen = 0

    def collect(self, waiting: Mapping[int, Deadlined], issued: int) -> None:
        """Collect the deadlines of registrations since the last call, up to command `issued`."""
        if not self._seen:
            self._heap = [(one.due_ns(command), command) for command, one in waiting.items()]
            heapify(self._heap)
        else:
            for command in range(self._seen + 1, issued + 1):
                if command in waiting:
                    self.move(command, waiting[command].due_ns(command))
        self._seen = issued

    def behind(self, issued: int) -> bool:
        """Whether there is something to collect."""
        return self._seen < issued

    def move(self, command: int, due_ns: int) -> None:
        """Note the new or moved deadline of an operation."""
        heappush(self._heap, (due_ns, command))

    @property
    def first_ns(self) -> int:
        """The earliest deadline; it may have moved meanwhile. NO_DEADLINE or more = no operation has a deadline."""
        return self._heap[0][0] if self._heap else NO_DEADLINE

    def take_due(self, until_ns: int, waiting: Mapping[int, Deadlined]) -> list[int]:
        """The pending commands with a deadline up to `until_ns`, in the order of their deadlines."""
        due: list[int] = []
        while self._heap and self._heap[0][0] <= until_ns:
            _, command = heappop(self._heap)
            one = waiting.get(command)
            if one is not None and one.due_ns(command) <= until_ns:
                due.append(command)
        return due
