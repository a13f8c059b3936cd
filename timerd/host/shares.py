"""The share of each process: its connections, and the memory for the frames of these. Each share has bounds.

    connections of a process      connections_max
    memory of a process           MEMORY_MAX: large frames that come in, and messages that wait to be sent
    connections of all            total_max; beyond it the process with the largest excess loses its newest connection

A client that has shown its session has a right to two connections. The connections of a process beyond the rights of
its clients are its excess.

The kernel names the process (listener.py). Processes of other pid namespaces that it cannot tell apart have the
number 0, and one share together, with twice the connections.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Protocol

from timerd.host.descriptors import CONNECTIONS_PER_CLIENT

MEMORY_MAX = 24 << 20


class Holder(Protocol):
    """A connection, as far as shares know it."""

    number: int
    is_admitted: bool  # whether it has shown the session of a client

    @property
    def wanted_memory(self) -> int:
        """The memory that it needs to go on."""

    def wake(self) -> None:
        """Go on: there may be memory."""

    def end(self) -> None:
        """Close this connection; another one gets its place."""


class Share:
    """The share of one process."""

    __slots__ = ("clients", "connections", "is_held", "memory", "process", "waiting")

    def __init__(self, process: int) -> None:
        self.process = process
        self.connections: dict[int, Holder] = {}  # by number: the oldest first
        self.clients = 0  # connections that are admitted
        self.memory = 0
        self.waiting: deque[Holder] = deque()  # for memory
        self.is_held = False  # whether its connections are not to be read

    @property
    def excess(self) -> int:
        """Connections beyond what its clients have a right to."""
        return len(self.connections) - CONNECTIONS_PER_CLIENT * self.clients

    def has_room(self, size: int) -> bool:
        """Whether `size` bytes of memory are left. A process that holds none may always take some."""
        return not self.memory or self.memory + size <= MEMORY_MAX

    def give(self, size: int) -> None:
        """Give memory back. Connections that wait for it go on."""
        self.memory -= size
        while self.waiting and self.has_room(self.waiting[0].wanted_memory):
            self.waiting.popleft().wake()


class Shares:
    """The shares of all processes that are connected."""

    def __init__(self, connections_max: int, total_max: int) -> None:
        self._connections_max = connections_max
        self._total_max = total_max
        self._by_process: dict[int, Share] = {}
        self._total = 0
        self._made = 0
        self._refused: Counter[tuple[int, bool]] = Counter()

    def __len__(self) -> int:
        return self._total

    def open(self, process: int) -> Share | None:
        """The share for a new connection of a process; None: there is no room. An older connection may end for it."""
        share = self._by_process.get(process) or Share(process)
        if len(share.connections) >= self.most_of(process):
            self._refused[process, True] += 1
            return None
        if not self._make_room(share):
            self.turn_away(process)
            return None
        return share

    def most_of(self, process: int) -> int:
        """How many connections a process may have."""
        return self._connections_max * (1 if process else 2)

    def turn_away(self, process: int) -> None:
        """Note a connection that was closed because all connections are taken, not because of its process."""
        self._refused[process, False] += 1

    def new_number(self) -> int:
        """A number for a connection, which is never used twice."""
        self._made += 1
        return self._made

    def add(self, share: Share, connection: Holder) -> None:
        """Charge a connection to the share that open() has given for it."""
        share.connections[connection.number] = connection
        self._by_process[share.process] = share
        self._total += 1

    def remove(self, share: Share, connection: Holder) -> None:
        """A connection has ended."""
        del share.connections[connection.number]
        share.clients -= connection.is_admitted
        self._total -= 1
        self._drop_empty(share)

    def hold(self, process: int, is_held: bool) -> None:
        """Read no connection of a process, also none that it makes from now on; or read them again."""
        share = self._by_process.get(process)
        if share is None:
            share = self._by_process[process] = Share(process)
        share.is_held = is_held
        self._drop_empty(share)

    def _drop_empty(self, share: Share) -> None:
        if not share.connections and not share.is_held:
            del self._by_process[share.process]

    @property
    def has_refused(self) -> bool:
        return bool(self._refused)

    def take_refused(self) -> Counter[tuple[int, bool]]:
        """Connections closed since the last call, by process, and by whether the process was at its own bound."""
        refused, self._refused = self._refused, Counter()
        return refused

    def _make_room(self, newcomer: Share) -> bool:
        if self._total < self._total_max:
            return True
        greediest = max(self._by_process.values(), key=lambda share: share.excess)
        if greediest.excess <= newcomer.excess + 1:
            return False
        newest = next((each for each in reversed(greediest.connections.values()) if not each.is_admitted), None)
        if newest is None:
            return False
        self.turn_away(greediest.process)
        newest.end()
        return True
