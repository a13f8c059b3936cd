"""The subscription of a threaded client: a loop over it blocks."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self

from timerd_client.events.event import Event, Gap
from timerd_client.events.subscription import Following
from timerd_client.types import Patience

from .link import drive


class Subscription(Following):
    """Iterate over it for events and gaps; `with` closes it. `subscribe()` makes it.

    It belongs to the process that has made it: a forked child gets ClosedError. Any thread may use it, and each item
    goes to one of the threads that iterate. It cannot be pickled, but its mark can. If it is dropped, it is closed.
    """

    __slots__ = ()

    def next(self, timeout: Patience = None) -> Event | Gap | None:
        return drive(self._next(timeout))

    def __iter__(self) -> Iterator[Event | Gap]:
        return self

    def __next__(self) -> Event | Gap:
        item = drive(self._next(self._patience))
        if item is None:
            raise StopIteration
        return item

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
