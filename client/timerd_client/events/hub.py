"""The hub of some keys in a process: one watch, whose events all subscribers of these keys get.

A subscriber whose mark is earlier than the mark of the watch must catch up first. A second watch polls the ring from
the earlier mark, for all subscribers that are behind. The second watch ends when it has reached the first watch. So
there are at most two watches for the keys, and subscribers that have caught up never wait for the others.

Each link has one hub for each purgatory and each set of keys. A hub changes with the link's lock held.
"""

from __future__ import annotations

import weakref
from typing import Any, TypeAlias

from timerd_client.link.link import Link
from timerd_client.link.operation import Operation
from timerd_client.link.promise import Reply
from timerd_client.link.surface import Surface
from timerd_client.mark import Mark
from timerd_client.types import Key
from timerd_shm.declare.errors import TimerdError

from .event import Event, Gap
from .feed import Feed
from .watch import Chores, Watch, do, observe

HubKey: TypeAlias = tuple[str, tuple[Key, ...]]

_hubs: weakref.WeakKeyDictionary[Link, dict[HubKey, Hub]] = weakref.WeakKeyDictionary()


class Hub:
    """The subscribers of some keys. Each feed is with one of the two watches, or waits for the second one."""

    def __init__(self, surface: Surface[Any, Any], keys: tuple[Key, ...], mark: Mark) -> None:
        self.link: Link = surface._link
        self.surface = surface
        self._keys = keys
        self._live = Watch(surface, keys, self, mark)
        self._late: Watch | None = None
        self._feeds: dict[Feed, None] = {}  # at the first watch
        self._behind: dict[Feed, None] = {}  # at the second watch
        self._waiting: dict[Feed, None] = {}  # for the second watch

    def begin(self, feed: Feed) -> Chores:
        """Begin with the first subscriber."""
        self._feeds[feed] = None
        return [self._live.go_on]

    def join(self, feed: Feed) -> Chores:
        """Take in a subscriber."""
        if self._covers(self._live, feed.mark):
            self._feeds[feed] = None
        elif self._late is not None and self._covers(self._late, feed.mark):
            self._behind[feed] = None
        else:
            self._waiting[feed] = None
        return self._catch_up()

    def leave(self, feed: Feed) -> Chores:
        """Remove a subscriber. After the last one, end the watches."""
        for feeds in (self._feeds, self._behind, self._waiting):
            feeds.pop(feed, None)
        chores = woken([feed.close()])
        if not (self._feeds or self._behind or self._waiting):
            self._end()
            return chores
        return chores + self._merge()

    def look(self, mark: Mark) -> Operation:
        """An operation that settles at once: completed if there is an event after the mark, or else cancelled."""
        return observe(self.surface, self._keys, mark, polls=True)

    # calls of the watches -------------------------------------------------------------------------------------------

    def seen(self, watch: Watch, event: Event) -> Chores:
        feeds = self._feeds if watch is self._live else self._behind
        return woken([feed.put(event) for feed in feeds]) + self._merge()

    def reached(self, watch: Watch) -> Chores:
        for feed in self._behind:
            feed.reach(watch.mark)
        return self._merge()

    def missed(self, watch: Watch, before: Mark, gap: Gap) -> Chores:
        feeds = self._feeds if watch is self._live else self._behind
        arrivals: list[Reply | None] = []
        for feed in list(feeds):
            if feed.mark.incarnation == before.incarnation and feed.mark.sequence > before.sequence:
                del feeds[feed]  # this feed has got further: the events that it lacks may still be in the ring
                self._waiting[feed] = None
            else:
                arrivals.append(feed.miss(gap))
        return woken(arrivals) + self._merge()

    def failed(self, watch: Watch, error: TimerdError) -> Chores:
        feeds: list[Feed] = [*self._feeds, *self._behind, *self._waiting]
        self._end()
        return woken([feed.end(error) for feed in feeds])

    # which feed is with which watch -----------------------------------------------------------------------------------

    def _covers(self, watch: Watch, mark: Mark) -> bool:
        """Whether the watch has not passed this mark yet, so that a subscriber from this mark on misses nothing."""
        reached = watch.mark
        if not reached.incarnation:
            return not mark.incarnation  # both marks are from before the connection, and begin with the first event
        # A mark may come from another process, and be newer than all events that this client has seen.
        return mark.incarnation == reached.incarnation and mark.sequence >= reached.sequence

    def _merge(self) -> Chores:
        """Move feeds that have caught up to the first watch. Begin a new second watch for the feeds that wait."""
        for feed in list(self._behind):
            if not self._live.mark.incarnation or self._covers(self._live, feed.mark):
                del self._behind[feed]
                self._feeds[feed] = None
        if self._late is not None and not self._behind:
            self._late.end()
            self._late = None
        return self._catch_up()

    def _catch_up(self) -> Chores:
        """Begin the second watch at the oldest mark of the feeds that wait, unless there is a second watch."""
        if self._late is not None or not self._waiting:
            return []
        first = next(iter(self._waiting)).mark.incarnation
        group = [feed for feed in self._waiting if feed.mark.incarnation == first]
        for feed in group:
            del self._waiting[feed]
            self._behind[feed] = None
        oldest = min((feed.mark for feed in group), key=lambda mark: mark.sequence)
        self._late = Watch(self.surface, self._keys, self, oldest, polls=True)
        return [self._late.go_on]

    def _end(self) -> None:
        for watch in (self._live, self._late):
            if watch is not None:
                watch.end()
        hubs = _hubs.get(self.link, {})
        if hubs.get((self.surface._name, self._keys)) is self:
            del hubs[self.surface._name, self._keys]


def woken(arrivals: list[Reply | None]) -> Chores:
    """The calls that wake the waiters of these promises."""
    return [arrival.notify for arrival in arrivals if arrival is not None]


def subscribed(surface: Surface[Any, Any], keys: tuple[Key, ...], since: Mark | None, buffer: int) -> tuple[Hub, Feed]:
    """A new subscriber of these keys, since a mark or from now on. Raises ClosedError."""
    link = surface._live()
    with link.lock:
        link.check_open()
        mark = link.protocol.session.mark() if since is None else since
        feed = Feed(mark, buffer)
        hubs = _hubs.setdefault(link, {})
        hub = hubs.get((surface._name, keys))
        if hub is None:
            hub = hubs[surface._name, keys] = Hub(surface, keys, mark)
            chores = hub.begin(feed)
        else:
            chores = hub.join(feed)
    do(chores)
    return hub, feed
