"""The selector of the daemon: one epoll for all descriptors, and an owner for each of them.

    poll(-1) --> sleeps until something is ready, and calls its owner with (descriptor, events)

An owner notes its ready descriptors, and deals with them in its own step of the turn. A descriptor that is still ready
is reported again, because the epoll is level-triggered.
"""

from __future__ import annotations

import select
from collections.abc import Callable

EVENTS_PER_POLL = 1_023  # ready descriptors beyond these are reported by the next call

Owner = Callable[[int, int], None]  # (descriptor, events of epoll)


class Selector:
    """Knows a descriptor from register() until forget(). Forget a descriptor before you close it."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._owners: dict[int, Owner] = {}
        self.is_full = False  # whether the last poll() may have left something that is ready

    def fileno(self) -> int:
        """Readable while something is ready."""
        return self._epoll.fileno()

    def register(self, descriptor: int, interest: int, owner: Owner) -> None:
        """Watch a descriptor. Raises OSError if the kernel watches no more (ENOSPC: fs.epoll.max_user_watches)."""
        self._epoll.register(descriptor, interest)
        self._owners[descriptor] = owner

    def modify(self, descriptor: int, interest: int) -> None:
        self._epoll.modify(descriptor, interest)

    def forget(self, descriptor: int) -> None:
        """Forget a descriptor. Does nothing if it is not registered."""
        if self._owners.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def poll(self, timeout: int) -> None:
        """Call the owners of ready descriptors: of those that are ready now (0), or after a wait for one (-1)."""
        found = self._epoll.poll(timeout, EVENTS_PER_POLL)
        self.is_full = len(found) == EVENTS_PER_POLL
        for descriptor, events in found:
            self._owners[descriptor](descriptor, events)

    def close(self) -> None:
        self._epoll.close()
