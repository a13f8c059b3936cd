"""The records of a producer that are under way, their futures, and the order of a lane's callbacks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from .batch import Delivery

OnDelivery = Callable[[Delivery], object]


class Settable(Protocol):
    """A future of concurrent.futures or asyncio."""

    def set_result(self, result: Delivery, /) -> None:
        """Settle the future."""

    def done(self) -> bool:
        """Whether the future has settled or was cancelled."""


FutureT = TypeVar("FutureT", bound=Settable)


class Item(Generic[FutureT]):
    """A record under way."""

    __slots__ = ("added", "delivery", "future", "lane", "on_delivery", "record")

    def __init__(self, record: Any, lane: Hashable, on_delivery: OnDelivery | None, future: FutureT) -> None:
        self.record, self.lane, self.on_delivery, self.future = record, lane, on_delivery, future
        self.delivery: Delivery | None = None
        self.added = False


class UnderWay(Generic[FutureT]):
    """The items whose callbacks have not run. In a lane an item waits for the items before it."""

    def __init__(self, complain: Callable[[str, BaseException | None], None]) -> None:
        self._complain = complain
        self._lanes: dict[Hashable, deque[Item[FutureT]]] = {}
        self._without_lane: dict[Item[FutureT], None] = {}
        self.count = 0  # callbacks that have not returned

    def add(self, item: Item[FutureT]) -> None:
        """The accumulator takes the item in."""
        self.count += 1
        item.added = True
        if item.lane is None:
            self._without_lane[item] = None
        else:
            self._lanes.setdefault(item.lane, deque()).append(item)

    def settle(self, delivery: Delivery) -> Iterator[Item[FutureT]]:
        """The delivery of an item has come. Yields the items whose callbacks may run now, in order."""
        item, outcome, attempts, latency_ns, error = delivery
        item.delivery = Delivery(item.record, outcome, attempts, latency_ns, error)
        if not item.added:  # Ctrl-C came after the accumulator took the item, and before add()
            yield item
            return
        if item.lane is None:
            del self._without_lane[item]
            yield item
            return
        lane = self._lanes[item.lane]
        while lane and lane[0].delivery is not None:
            yield lane.popleft()
        if not lane:
            del self._lanes[item.lane]

    def all(self) -> list[Item[FutureT]]:
        """All items; the items of a lane are in order."""
        return [*self._without_lane, *(item for lane in self._lanes.values() for item in lane)]

    def call_back(self, item: Item[FutureT]) -> BaseException | None:
        """Settle the item's future, and call its callback. Call called_back() afterwards.

        Logs the error of the callback, and returns it: in an asyncio loop the caller raises SystemExit again.
        """
        assert item.delivery is not None, "the item has settled"
        try:
            if not item.future.done():
                item.future.set_result(item.delivery)
            if item.on_delivery is not None:
                item.on_delivery(item.delivery)
        except BaseException as error:  # also SystemExit and CancelledError: the next records need their callbacks
            self._complain(f"on_delivery={item.on_delivery!r} failed", error)
            return error
        return None

    def called_back(self, items: Iterable[Item[FutureT]]) -> None:
        """The callbacks of these items have returned."""
        self.count -= sum(item.added for item in items)
