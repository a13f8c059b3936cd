"""The handle of a subscriber: the part that threaded and asyncio clients (the two faces) have in common."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from timerd_client.arguments import U32_MAX, mark_of, patience_s, unsigned, watch
from timerd_client.conditions import OBSERVED
from timerd_client.link.flows import Flow, Settles, raise_unless_again
from timerd_client.link.surface import Surface
from timerd_client.mark import Mark
from timerd_client.one_process import OneProcess
from timerd_client.outcome import State
from timerd_client.scope import goes_on_from
from timerd_client.types import Key, Keys, Patience
from timerd_shm.declare.limits import CONNECT_TIMEOUT_S

from .event import Item
from .hub import subscribed

BUFFER: Final = 1_024  # events that wait for a subscriber
ANSWER_S: Final = CONNECT_TIMEOUT_S  # a caller that does not wait for events waits this long for the daemon


class Later(deque[Callable[[], object]]):
    """Chores that are done once: by the closing thread, or by the thread or loop that receives, if that comes first."""

    def notify(self) -> None:
        """Do the chores. Called without the lock."""
        with suppress(IndexError):
            while True:
                self.popleft()()


class Following(OneProcess):
    """A position in the events of some keys, from now on or from the given mark on. A Gap stands for missed events."""

    __slots__ = ("_feed", "_hub", "_keys", "_mark", "_patience", "_seen")
    IN_PLACE = "give its mark, and subscribe(keys, since=mark)"

    def __init__(
        self, surface: Surface[Any, Any], keys: Keys, since: Mark | None, buffer: int, timeout: Patience
    ) -> None:
        names = watch(keys, OBSERVED).names
        patience_s(timeout)
        if since is not None:
            goes_on_from(mark_of(since))
        unsigned("buffer", buffer, U32_MAX, 1)
        self._keys = names
        self._patience = timeout
        self._hub, self._feed = subscribed(surface, names, since, buffer)
        self._mark = self._feed.mark
        self._seen: Mark | None = None  # there was no event up to this mark

    @property
    def keys(self) -> tuple[Key, ...]:
        """The keys, as they were given."""
        return self._keys

    @property
    def mark(self) -> Mark:
        """The mark of the last event or gap that was taken. A subscription with `since=` this mark goes on here."""
        return self._mark

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._feed.closed

    def close(self) -> None:
        """End the subscription: waits and iterations end. Returns at once. A second call changes nothing."""
        link, hub, feed = self._hub.link, self._hub, self._feed
        if feed.closed:
            return
        feed.closed = True
        chores = Later()

        def leave() -> None:
            chores.extend(hub.leave(feed))
            link.protocol.incoming.ready.append(chores)  # if the receiving thread or loop runs leave(), it does these

        link.sender.soon(leave)
        chores.notify()

    def __del__(self) -> None:
        if hasattr(self, "_feed"):
            self.close()

    def _next(self, timeout: Patience) -> Flow[Item | None]:
        """The next item; None after `timeout` seconds without one, and when the subscription is closed.

        An event may be in the daemon's ring, and not in the feed yet: the watch asks for one event after another. So a
        caller with timeout 0 asks the daemon first.
        """
        if self._hub.link.is_left:
            self._begin_anew()
        link, feed = self._hub.link, self._feed
        looks = patience_s(timeout) == 0
        deadline = link.waiters.deadline(ANSWER_S if looks else timeout)
        while not link.is_left:
            if link.is_outlived() and not link.is_left:  # a link of the parent, or of an ended loop: no event comes
                link.refuse_closed()
            with link.lock:
                item = feed.take()
                if item is not None:
                    self._mark = item.mark
                    return item
                if feed.closed:
                    return None
                if link.is_left:
                    break
                if feed.error is not None:
                    raise feed.error
                if link.closed:
                    link.refuse_closed()
                arrival, mark = feed.arrival(link), feed.mark
            if looks and not (yield from self._is_coming(mark)):
                return None
            if not (yield Settles(arrival, link.waiters.seconds_left(deadline))):
                return None
        return None if feed.closed else (yield from self._next(timeout))  # the next link has a clock of its own

    def _begin_anew(self) -> None:
        """The client has left its link for another daemon: begin with the first event of the new daemon.

        If the new link is not connected yet, its arena is not known: begin with the events from now on.
        """
        before, surface, buffer = self._hub.link, self._hub.surface, self._feed.buffer
        link = surface._live()
        with link.lock:
            first = link.protocol.session.mark()
        if first.incarnation:
            first = Mark(first.incarnation, 0)
        with before.lock:  # only one of several threads begins anew
            if self._hub.link is before and not self._feed.closed:
                self._hub, self._feed = subscribed(surface, self._keys, first, buffer)
                self._mark, self._seen = first, None

    def _is_coming(self, mark: Mark) -> Flow[bool]:
        """Whether the daemon has an event after that mark, or a gap. False also while the daemon does not answer."""
        link, seen = self._hub.link, self._seen
        if not link.connection.may_answer():
            return False
        with link.lock:
            now = link.protocol.session.mark()
            if seen is not None and link.connection.has_exact_marks() and now == seen:
                return False
        look = self._hub.look(mark)
        yield Settles(look, ANSWER_S)
        outcome = look._outcome() if look.done() else None
        if outcome is None:
            return False
        raise_unless_again(outcome)
        if outcome.state is State.CANCELLED:
            # The mark as it would be read after the look's two commands, the registration and its cancel. If other
            # commands come in between, no later mark is equal to it.
            self._seen = now._replace(sequence=outcome.mark.sequence, command=look.command + 1)
        return outcome.state is not State.CANCELLED

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._keys!r} since {self._mark}{' closed' if self.closed else ''}>"

    # Each face overrides this call without a docstring of its own: help() and editors show the docstring below.

    def next(self, *given: Any, **named: Any) -> object:
        """The next item. None if none comes within `timeout` seconds, or the subscription is closed.

        Raises the same errors as iteration. With `timeout=0` the daemon is asked, and None means that there is no item
        yet. While the daemon is lost, the result is None, too.
        """
