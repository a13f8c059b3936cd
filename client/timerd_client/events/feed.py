"""The buffer of one subscriber. It is bounded, so a subscriber that does not read takes a bounded amount of memory.

While the buffer is full, events are left out. One Gap after the items in the buffer stands for all of these events. The
caller of each method holds the link's lock, which the hub and the subscriber share.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from timerd_client.link.promise import Reply
from timerd_client.mark import Mark
from timerd_client.scope import current_scope
from timerd_shm.declare.errors import TimerdError

from .event import Event, Gap, Item

BYTES_MAX: Final = 4 << 20  # bytes of the values in a buffer


class Arrival(Reply):
    """Settles when an item comes. If the caller's request ends, the wait ends, and the item stays in the feed."""

    __slots__ = ()
    _scope = staticmethod(current_scope)

    def _end_wait(self) -> bool:
        return not self.done()


class Feed:
    """The items that the hub has for one subscriber, and the mark that they reach."""

    __slots__ = ("_arrival", "_bytes", "_gap", "_items", "buffer", "closed", "error", "mark")

    def __init__(self, mark: Mark, buffer: int) -> None:
        self.mark = mark  # events up to it are in the buffer or its gap, or taken, or before the subscription
        self.error: TimerdError | None = None  # why the feed has ended
        self.closed = False
        self.buffer = buffer
        self._items: deque[Item] | None = None  # made with the first item: an empty deque has 600 bytes
        self._bytes = 0
        self._gap: Gap | None = None  # after the items: stands for the events that did not fit in the buffer
        self._arrival: Arrival | None = None  # settles when an item comes

    def put(self, event: Event) -> Arrival | None:
        """Take an event, if it is after this feed's mark. Returns the promise to notify without the lock."""
        if event.mark.incarnation == self.mark.incarnation and event.mark.sequence <= self.mark.sequence:
            return None
        self.mark = event.mark
        size = len(event.value)
        items = self._items
        if self._gap is None and (
            not items or (len(items) < self.buffer and self._bytes + size <= BYTES_MAX)
        ):  # a single event always has room
            self._bytes += size
            self._append(event)
        else:
            self._gap = Gap(event.mark, "buffer" if self._gap is None else self._gap.reason)
        return self._arrived()

    def reach(self, mark: Mark) -> None:
        """There was no event between the feed's mark and this one: the feed's mark moves on."""
        if mark.incarnation != self.mark.incarnation or mark.sequence > self.mark.sequence:
            self.mark = mark

    def miss(self, gap: Gap) -> Arrival | None:
        """Events were missed. Returns the promise to notify without the lock."""
        self.mark = gap.mark
        if self._gap is not None:
            self._gap = Gap(gap.mark, self._gap.reason)
        else:
            self._append(gap)
        return self._arrived()

    def end(self, error: TimerdError) -> Arrival | None:
        """End the feed with this error. Returns the promise to notify without the lock."""
        self.error = error
        return self._arrived()

    def close(self) -> Arrival | None:
        """The subscriber has left. Returns the promise to notify without the lock."""
        self.closed = True
        self._items = self._gap = None
        return self._arrived()

    def take(self) -> Item | None:
        """The next item, if there is one."""
        if self._items:
            item = self._items.popleft()
            if isinstance(item, Event):
                self._bytes -= len(item.value)
            if not self._items:
                self._items = None
            return item
        gap, self._gap = self._gap, None
        return gap

    def arrival(self, link: Any) -> Arrival:
        """A promise that settles when the next item, or the end of the feed, comes."""
        if self._arrival is None:
            self._arrival = Arrival(link)
        return self._arrival

    def _append(self, item: Item) -> None:
        if self._items is None:
            self._items = deque()
        self._items.append(item)

    def _arrived(self) -> Arrival | None:
        arrival, self._arrival = self._arrival, None
        return arrival if arrival is not None and arrival.answer(None) else None
