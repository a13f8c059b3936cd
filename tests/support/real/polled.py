"""The daemon's sockets without its loop: each class polls its own selector before a call, as the loop does."""

from __future__ import annotations

import select
from collections.abc import Iterable, Iterator
from typing import Any

from timerd.clients.liveness import Sign, Watches
from timerd.conductor.transport import OutletMessage, SocketTransport
from timerd.config.config import FRAME_MEMORY
from timerd.host.budget import Budget
from timerd.host.selector import Selector
from timerd_shm.host.paths import InstancePaths


def would_wake(selector: Selector) -> bool:
    """Whether a sleeping loop would be woken now."""
    return bool(select.select([selector], [], [], 0)[0])


class PolledTransport(SocketTransport):
    """The sockets for commands and outcomes."""

    def __init__(self, paths: InstancePaths, **bounds: Any) -> None:
        self.selector = Selector()
        self.paths = paths
        self.adopted: list[tuple[int, bytes | bool]] = []  # first (watch, session), at the end (watch, is_client)
        self._watches = 0
        super().__init__(paths, self.selector, self, **{"budget": Budget(FRAME_MEMORY), **bounds})

    def adopt(self, session: bytes) -> int:
        self._watches += 1
        self.adopted.append((self._watches, session))
        return self._watches

    def adopted_ended(self, watch: int, *, is_client: bool) -> None:
        self.adopted.append((watch, is_client))

    def receive(self, limit: int) -> Iterator[tuple[int, bytes]]:
        self.selector.poll(0)
        return super().receive(limit)

    def outlet_messages(self, limit: int) -> Iterable[OutletMessage]:
        self.selector.poll(0)
        return super().outlet_messages(limit)

    def close(self) -> None:
        super().close()
        self.selector.close()


class PolledWatches(Watches):
    """The socket NAME.live, and pidfds."""

    def __init__(self, paths: InstancePaths, **bounds: Any) -> None:
        self.selector = Selector()
        super().__init__(paths, self.selector, **bounds)

    def signs(self, limit: int, now_ns: int) -> list[Sign]:
        self.selector.poll(0)
        return super().signs(limit, now_ns)

    def close(self) -> None:
        super().close()
        self.selector.close()
