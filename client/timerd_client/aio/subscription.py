"""The subscription of an asyncio client: `async for` awaits the next event."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

from timerd_client.events.event import Event, Gap
from timerd_client.events.subscription import Following
from timerd_client.types import Patience

from .link import drive


class Subscription(Following):
    """`async for` over a subscription gives events and gaps; `async with` closes it. `subscribe()` makes one.

    A subscription belongs to the loop and the process that have made it: a forked child gets ClosedError. It cannot be
    pickled, but its mark can. A cancelled await takes no event. Dropping the handle closes the subscription.
    """

    __slots__ = ()

    async def next(self, timeout: Patience = None) -> Event | Gap | None:
        return await drive(self._next(timeout))

    async def aclose(self) -> None:
        """As `close()`: `aclose` is the name that asynchronous iterators use."""
        self.close()

    def __aiter__(self) -> AsyncIterator[Event | Gap]:
        return self

    async def __anext__(self) -> Event | Gap:
        item = await drive(self._next(self._patience))
        if item is None:
            raise StopAsyncIteration
        return item

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
