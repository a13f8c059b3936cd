"""Turns of connections: process after process, and the connections of a process one by one. Held processes get none.

As an example, one process has 400 connections with a large packet in each, and another process has one connection. The
turn of that connection comes after one packet of the first process, and not after 400.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from timerd.host.shares import Share

Connection = TypeVar("Connection")


class Turns(Generic[Connection]):
    """Connections in turn, by the share of their process."""

    def __init__(self) -> None:
        self._by_share: dict[Share, deque[Connection]] = {}  # in the order of their turns; no deque is empty
        self._held: dict[Share, deque[Connection]] = {}  # of processes that were held when their turn came

    def __bool__(self) -> bool:
        return bool(self._by_share or self._held)

    def begin(self) -> None:
        """Look again at the processes that were held. Call it once before a number of next()."""
        for share in [share for share in self._held if not share.is_held]:
            self._by_share[share] = self._held.pop(share)

    def add(self, share: Share, connection: Connection) -> None:
        """Add a connection behind the others of its process."""
        waiting = self._by_share.get(share) or self._held.get(share)
        if waiting is None:
            self._by_share[share] = deque((connection,))
        else:
            waiting.append(connection)

    def next(self) -> Connection | None:
        """The next connection. Its process then goes behind the others. None: the processes of all are held."""
        by_share = self._by_share
        while by_share:
            share = next(iter(by_share))
            waiting = by_share.pop(share)
            if share.is_held:
                self._held[share] = waiting
                continue
            connection = waiting.popleft()
            if waiting:
                by_share[share] = waiting
            return connection
        return None
