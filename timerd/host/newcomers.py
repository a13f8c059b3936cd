"""Connections that have shown nothing yet: neither their protocol's handshake nor, over packets, a client's session.

A newcomer has a few seconds to show something. When connections run out, a newcomer is closed before other connections
of its process (shares.py).
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from timerd_shm.declare.limits import NO_DEADLINE

SHOWN_WITHIN_NS = 5_000_000_000
ENDS_PER_TURN = 64


class Newcomer(Protocol):
    """A connection, as far as this room knows it."""

    number: int
    is_listed: bool  # whether bytes of it may wait to be read


Connection = TypeVar("Connection", bound=Newcomer)


class Newcomers(Generic[Connection]):
    """The newcomers, the oldest first, each with the time until which it has to show itself."""

    def __init__(self) -> None:
        self._until_ns: dict[int, int] = {}  # by number
        self._fresh: dict[int, Connection] = {}  # those that have come since the last turn
        self._known: dict[int, Connection] = {}

    def __len__(self) -> int:
        return len(self._fresh) + len(self._known)

    @property
    def due_ns(self) -> int:
        """When the time of the oldest newcomer is over."""
        return next(iter(self._until_ns.values()), NO_DEADLINE)

    def add(self, connection: Connection) -> None:
        self._fresh[connection.number] = connection

    def remove(self, connection: Connection) -> None:
        """Forget a newcomer that has shown itself, or has ended."""
        if self._fresh.pop(connection.number, None) is None:
            del self._known[connection.number], self._until_ns[connection.number]

    def oldest(self) -> Connection | None:
        """The oldest newcomer; None if all have come in this turn."""
        return next(iter(self._known.values()), None)

    def renew(self, now_ns: int) -> None:
        """Let the time of every newcomer begin anew."""
        self._until_ns = dict.fromkeys(self._until_ns, now_ns + SHOWN_WITHIN_NS)

    def overdue(self, now_ns: int) -> list[Connection]:
        """Newcomers whose time is over, a bounded number of them. Call it in each turn, after the sockets were read."""
        for number, connection in self._fresh.items():
            self._known[number], self._until_ns[number] = connection, now_ns + SHOWN_WITHIN_NS
        self._fresh.clear()
        found: list[Connection] = []
        while self._until_ns and len(found) < ENDS_PER_TURN:
            number, until_ns = next(iter(self._until_ns.items()))
            if now_ns < until_ns:
                break
            del self._until_ns[number]
            # More time for a connection that does not end now, because bytes of it wait to be read.
            self._until_ns[number] = now_ns + SHOWN_WITHIN_NS
            if not self._known[number].is_listed:
                found.append(self._known[number])
        return found
