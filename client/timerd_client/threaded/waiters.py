"""The waits of threaded callers: at gates, where a caller may receive by itself, and for the link's progress."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from timerd_client.link.base import LinkBase
from timerd_client.link.waiters import Waiters
from timerd_client.waits.condition import Condition
from timerd_client.waits.gate import Gate
from timerd_client.waits.green import GreenCallback, GreenGate
from timerd_client.waits.slices import DrivenQueue
from timerd_wire import native

from .caller import CallerGate, Callers
from .io_thread import IoThread
from .no_thread import DrivenGate

if TYPE_CHECKING:
    import asyncio


class ThreadedWaiters(Waiters):
    """Threads that wait (with gevent, greenlets)."""

    callers: Callers
    thread: IoThread

    def __init__(self, link: LinkBase) -> None:
        super().__init__(link)
        self._green = native.is_green()
        self.moved: Condition = self._condition()  # notified when commands were applied or the state has changed

    def _condition(self) -> Condition:
        return Condition(self._link.lock, self._plain_gate)

    def gate(self) -> Gate:
        return self._plain_gate() if self._green or self._link.has_no_thread else CallerGate(self.callers)

    def _plain_gate(self) -> Gate:
        """The gate of a caller that does not receive by itself."""
        if self._link.has_no_thread:
            return DrivenGate(self._link.drive)
        return GreenGate() if self._green else Gate()

    def queue(self) -> SimpleQueue[Any]:
        return DrivenQueue(self._link.drive) if self._link.has_no_thread else super().queue()

    def callback(self, callback: Callable[[Any], object]) -> Callable[[Any], object]:
        if not self._green or isinstance(getattr(callback, "__self__", None), Gate):
            return callback
        return GreenCallback(callback, self._link.complain)

    def call_in_loop(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(call)

    def in_own_thread(self) -> bool:
        """Whether the caller is a callback, which runs in the thread of the sockets."""
        return self.thread.is_current()

    def may_block(self) -> None:
        if self.in_own_thread():
            raise RuntimeError(
                "a callback in the client's own thread must not wait for the client: it would wait for itself"
            )

    def must_not_wait(self) -> bool:
        """True for the thread of the sockets, and for a caller that receives in its place (seat.py)."""
        return self.in_own_thread() or self.callers.is_seated()

    def notify_locked(self) -> None:
        self.moved.notify_all()

    def progressed_locked(self) -> None:
        """Wake waiting callers after a report; of those that wait for the same thing, only one.

        Called with the lock held.
        """
        self.moved.notify()

    def some_wait(self) -> bool:
        return self.moved.callers > 0

    def new_thread(self, run: Callable[[], None], name: str) -> threading.Thread:
        """A new thread of this client (with gevent, a greenlet). The caller starts it."""
        return threading.Thread(target=run, name=name, daemon=True)
