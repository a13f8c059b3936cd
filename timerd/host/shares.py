"""The share of each process: its connections, and the memory for their frames. Each share has bounds.

    connections of a process      connections_max
    memory of all                 one budget, which the processes share (budget.py)
    connections of all            total_max; beyond it the process with the largest excess loses its oldest newcomer, or
                                  else its newest connection that has not shown a client's session. If no process has
                                  a larger excess than the one that connects, the oldest newcomer of this process ends,
                                  or else the oldest of all newcomers. But a process with more than NEWCOMERS_MAX
                                  newcomers is refused: that costs a tenth of what an end costs

A newcomer has shown nothing yet (newcomers.py). A client that has shown its session has a right to two connections. The
connections of a process beyond the rights of its clients are its excess.

The kernel names the process (listener.py). Processes of other pid namespaces that the kernel does not tell apart have
the number 0, and one share together, with twice the connections.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import Enum
from typing import Protocol

from timerd.host.budget import Account, Budget, Waiter
from timerd.host.descriptors import CONNECTIONS_PER_CLIENT
from timerd.host.newcomers import Newcomers

NEWCOMERS_MAX = 16


class Why(Enum):
    """The reason for which a connection was closed, or frames were dropped."""

    HAS_ALL = "its process has as many connections as it may"
    NO_FILES = "all connections are taken"
    SILENT = "it has shown nothing for too long"
    OVER_SHARE = "the memory for frames is spent, and its process is over its share"
    FRAMES_OVER_SHARE = "as OVER_SHARE, for frames that waited to be applied"


class Holder(Waiter, Protocol):
    """A connection, as far as shares know it."""

    number: int
    share: Share
    is_listed: bool  # whether bytes of it may wait to be read
    is_admitted: bool  # whether it has shown the session of a client
    is_new: bool  # whether it has shown nothing yet

    @property
    def memory(self) -> int:
        """The memory that it holds."""

    def end(self) -> None:
        """Close this connection; another one gets its place."""


class Share(Account):
    """The share of one process."""

    __slots__ = ("_shares", "clients", "connections", "deferred", "is_held", "newcomers", "process")

    def __init__(self, process: int, shares: Shares) -> None:
        super().__init__(shares.budget)
        self._shares = shares
        self.process = process
        self.connections: dict[int, Holder] = {}  # by number: the oldest first
        self.clients = 0  # connections that are admitted
        self.newcomers = 0  # connections that have shown nothing yet
        self.deferred = 0  # memory of frames that wait to be applied
        self.is_held = False  # whether its connections are not to be read

    @property
    def excess(self) -> int:
        """Connections beyond what its clients have a right to."""
        return len(self.connections) - CONNECTIONS_PER_CLIENT * self.clients

    def oldest_newcomer(self) -> Holder | None:
        """Its connection that has shown nothing for the longest time."""
        return next((each for each in self.connections.values() if each.is_new), None)

    def shed(self) -> None:
        """Close the connection that holds the most memory; or drop the deferred frames, if these are more."""
        fattest = max(self.connections.values(), key=_memory_of, default=None)
        if fattest is None or fattest.memory < self.deferred:
            self._shares.turn_away(self.process, Why.FRAMES_OVER_SHARE)
            self._shares.drop_deferred(self.process)
        else:
            self._shares.turn_away(self.process, Why.OVER_SHARE)
            fattest.end()


class Shares:
    """The shares of all processes that are connected.

    `drop_deferred` is called with a process whose deferred frames have to go.
    """

    def __init__(self, connections_max: int, total_max: int, budget: Budget) -> None:
        self._connections_max = connections_max
        self._total_max = total_max
        self.budget = budget
        self.drop_deferred: Callable[[int], None] = lambda process: None
        self._by_process: dict[int, Share] = {}
        self._newcomers: Newcomers[Holder] = Newcomers()
        self._total = 0
        self._made = 0
        self._refused: Counter[tuple[int, Why]] = Counter()

    def __len__(self) -> int:
        return self._total

    @property
    def due_ns(self) -> int:
        """When to call tend() even if nothing has come."""
        return min(self._newcomers.due_ns, self.budget.due_ns)

    def renew(self, now_ns: int) -> None:
        """This process stood still: the time of every newcomer begins anew."""
        self._newcomers.renew(now_ns)

    def tend(self, now_ns: int) -> None:
        """End newcomers whose time is over, and free memory that nobody needs. Call it when the sockets were read."""
        if self._newcomers:
            for connection in self._newcomers.overdue(now_ns):
                self._end(connection, Why.SILENT)
        self.budget.tend(now_ns)

    def open(self, process: int) -> Share | None:
        """The share for a new connection of a process; None: there is no room. An older connection may end for this."""
        share = self._by_process.get(process) or Share(process, self)
        if len(share.connections) >= self.most_of(process):
            self.turn_away(process, Why.HAS_ALL)
            return None
        if not self._make_room(share):
            self.turn_away(process, Why.NO_FILES)
            return None
        return share

    def most_of(self, process: int) -> int:
        """How many connections a process may have."""
        return self._connections_max * (1 if process else 2)

    def turn_away(self, process: int, why: Why) -> None:
        """Note a connection that was closed, or frames that were dropped."""
        self._refused[process, why] += 1

    def new_number(self) -> int:
        """A number for a connection, which is never used twice."""
        self._made += 1
        return self._made

    def add(self, share: Share, connection: Holder) -> None:
        """Charge a connection to the share that open() has given for it."""
        share.connections[connection.number] = connection
        share.newcomers += 1
        self._newcomers.add(connection)
        self._by_process[share.process] = share
        self._total += 1

    def shown(self, share: Share, connection: Holder) -> None:
        """A connection is no newcomer any more."""
        if connection.is_new:
            connection.is_new = False
            share.newcomers -= 1
            self._newcomers.remove(connection)

    def remove(self, share: Share, connection: Holder) -> None:
        """A connection has ended. It has given its memory back."""
        del share.connections[connection.number]
        share.clients -= connection.is_admitted
        self.shown(share, connection)
        self._total -= 1
        self._drop_empty(share)

    def hold(self, process: int, is_held: bool) -> None:
        """Read no connection of a process, also none that it makes from now on; or read them again."""
        share = self._of(process)
        share.is_held = is_held
        self._drop_empty(share)

    def defer(self, process: int, size: int) -> bool:
        """Charge a process for frames that wait to be applied; a negative size: give back. False: hold the process."""
        share = self._of(process)
        share.deferred += size
        if size < 0:
            share.give(-size)
        else:
            share.charge(size)
        self._drop_empty(share)
        return not share.is_short

    def _of(self, process: int) -> Share:
        share = self._by_process.get(process)
        if share is None:
            share = self._by_process[process] = Share(process, self)
        return share

    def _drop_empty(self, share: Share) -> None:
        if not (share.connections or share.is_held or share.memory):
            self._by_process.pop(share.process, None)

    @property
    def has_refused(self) -> bool:
        return bool(self._refused)

    def take_refused(self) -> Counter[tuple[int, Why]]:
        """Connections closed and frames dropped since the last call, by process and reason."""
        refused, self._refused = self._refused, Counter()
        return refused

    def _make_room(self, newcomer: Share) -> bool:
        if self._total < self._total_max:
            return True
        greediest = max(self._by_process.values(), key=_excess_of)
        if greediest.excess > newcomer.excess + 1:
            newest_first = reversed(greediest.connections.values())
            last = greediest.oldest_newcomer() or next((each for each in newest_first if not each.is_admitted), None)
        elif newcomer.process and newcomer.newcomers > NEWCOMERS_MAX:  # process 0 stands for several
            last = None
        else:
            last = newcomer.oldest_newcomer() or self._newcomers.oldest()
        if last is None:
            return False
        self._end(last, Why.NO_FILES)
        return True

    def _end(self, connection: Holder, why: Why) -> None:
        self.turn_away(connection.share.process, why)
        connection.end()


def _memory_of(connection: Holder) -> int:
    return connection.memory


def _excess_of(share: Share) -> int:
    return share.excess
