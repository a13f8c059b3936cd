"""How callers wait for a link: the part that threaded/ and aio/ complete."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from timerd_client.arguments import patience_s
from timerd_client.types import Patience
from timerd_client.waits.gate import Gate
from timerd_client.waits.slices import SlicedQueue

from .base import LinkBase

if TYPE_CHECKING:
    import asyncio


class Waiters:
    """The waits of callers: gates, queues, callbacks, conditions. Nothing here knows frames."""

    def __init__(self, link: LinkBase) -> None:
        self._link = link

    def gate(self) -> Gate:
        """Where a caller waits for one promise."""
        return Gate()

    def queue(self) -> SimpleQueue[Any]:
        """Where a caller waits for many promises."""
        return SlicedQueue()

    def callback(self, callback: Callable[[Any], object]) -> Callable[[Any], object]:
        """A callback, wrapped so that it runs where callers expect it: for example, with gevent in a new greenlet."""
        return callback

    def call_in_loop(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        """Run `call` in a loop, because a promise has settled."""
        raise NotImplementedError

    def may_block(self) -> None:
        """Raises RuntimeError if only the calling thread itself could end the wait."""

    def must_not_wait(self) -> bool:
        """Whether the caller receives for this link, so that it would wait for itself."""
        return False

    def notify_locked(self) -> None:
        """Wake all waiting callers, so that they look at their conditions. Called with the lock held."""
        raise NotImplementedError

    def progressed_locked(self) -> None:
        """There is something to take: with threads, wake one caller that waits for it. Called with the lock held."""

    def some_wait(self) -> bool:
        """Whether callers wait for the progress of the link."""
        return False

    def deadline(self, timeout: Patience) -> float | None:
        """The time at which `timeout` is over, by the link's clock in seconds; None = never."""
        seconds = patience_s(timeout)
        return None if seconds is None else self._link.now_ns() / 1e9 + seconds

    def seconds_left(self, deadline: float | None) -> float | None:
        """The seconds that are left until the deadline, at least 0."""
        return None if deadline is None else max(0.0, deadline - self._link.now_ns() / 1e9)
