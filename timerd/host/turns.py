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

    def __bool__(self) -> bool:
        return bool(self._by_share)

    def add(self, share: Share, connection: Connection) -> None:
        """Add a connection behind the others of its process."""
        waiting = self._by_share.get(share)
        if waiting is None:
            self._by_share[share] = deque((connection,))
        else:
            waiting.append(connection)

    def next(self) -> Connection | None:
        """The next connection. Its process then goes behind the others. None: all these processes are held."""
        for share in self._by_share:
            if not share.is_held:
                break
        else:
            return None
        waiting = self._by_share.pop(share)
        connection = waiting.popleft()
        if waiting:
            self._by_share[share] = waiting
        return connection
