"""The share of each process: its connections, and the memory for the frames of these. Each share has bounds.

    connections of a process      connections_max
    memory of a process           MEMORY_MAX: large frames that come in, and messages that wait to be sent
    connections of all            total_max; beyond it the process with the largest excess loses its newest connection

A client that has shown its session has a right to two connections. The connections of a process beyond the rights of
its clients are its excess.

The kernel names the process (SO_PEERCRED). The pids of other pid namespaces are 0 here. All such processes have one
share together, with twice the connections.
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

    __slots__ = ("clients", "connections", "memory", "pid", "waiting")

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.connections: dict[int, Holder] = {}  # by number: the oldest first
        self.clients = 0  # connections that are admitted
        self.memory = 0
        self.waiting: deque[Holder] = deque()  # for memory

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
        self._by_pid: dict[int, Share] = {}
        self._total = 0
        self._made = 0
        self._refused: Counter[tuple[int, bool]] = Counter()

    def __len__(self) -> int:
        return self._total

    def open(self, pid: int) -> Share | None:
        """The share for a new connection of a process; None: there is no room. An older connection may end for it."""
        share = self._by_pid.get(pid) or Share(pid)
        if len(share.connections) >= self.most_of(pid):
            self._refused[pid, True] += 1
            return None
        if not self._make_room(share):
            self.turn_away(pid)
            return None
        return share

    def most_of(self, pid: int) -> int:
        """How many connections a process may have."""
        return self._connections_max * (1 if pid else 2)

    def turn_away(self, pid: int) -> None:
        """Note a connection that was closed because all connections are taken, not because of its process."""
        self._refused[pid, False] += 1

    def new_number(self) -> int:
        """A number for a connection, which is never used twice."""
        self._made += 1
        return self._made

    def add(self, share: Share, connection: Holder) -> None:
        """Charge a connection to the share that open() has given for it."""
        share.connections[connection.number] = connection
        self._by_pid[share.pid] = share
        self._total += 1

    def remove(self, share: Share, connection: Holder) -> None:
        """A connection has ended."""
        del share.connections[connection.number]
        share.clients -= connection.is_admitted
        self._total -= 1
        if not share.connections:
            del self._by_pid[share.pid]

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
        greediest = max(self._by_pid.values(), key=lambda share: share.excess)
        if greediest.excess <= newcomer.excess + 1:
            return False
        newest = next((each for each in reversed(greediest.connections.values()) if not each.is_admitted), None)
        if newest is None:
            return False
        self.turn_away(greediest.pid)
        newest.end()
        return True
