"""The passes of an asyncio client: its loop watches the sockets, and nothing blocks.

One pass takes all frames that have come, and sends what is due. Passes follow each other until no frame came in after
the last send. Then waiters look at their conditions, and a timer is set.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import warnings

from timerd_client.link.link import Link
from timerd_client.protocol.deadlines import NEVER
from timerd_wire import native

from .waiters import LoopWaiters

PASSES_MAX = 16  # in a row: a daemon that sends without end must not hold up the loop
TIMER_SLACK_S = 0.0005  # loops sleep for whole milliseconds: this saves a second wake-up


class LoopPasses:
    """Makes passes in the loop that runs when this object is made."""

    def __init__(self, link: Link, waiters: LoopWaiters) -> None:
        self._link = link
        self._waiters = waiters
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NEVER
        self._goes_on = False  # whether the loop will call make() soon
        self._descriptors: list[int] = []  # of the sockets

    def watch(self, descriptor: int) -> None:
        """Call `Link.readable` when this descriptor is readable."""
        self._loop.add_reader(descriptor, self._on_readable, descriptor)

    def unwatch(self, descriptor: int) -> None:
        """Stop watching this descriptor: it is about to be closed."""
        self._loop.remove_reader(descriptor)

    def watch_sockets(self) -> None:
        """Make a pass when the sockets are readable."""
        self._descriptors = self._link.connection.sockets.filenos()
        for number in self._descriptors:
            self._loop.add_reader(number, self.make)

    def held_up(self) -> str:
        """Always empty: no callback holds up this loop, because the loop runs the caller that asks."""
        return ""

    def received(self) -> None:
        """Do nothing: callers that wait look at their conditions at the end of the pass."""

    def _on_readable(self, descriptor: int) -> None:
        self._link.readable(descriptor)
        self._rest()

    def make(self) -> None:
        """Make passes, until no frame came in after the last send: the descriptors are edge-triggered."""
        for _ in range(PASSES_MAX):
            if self._link.closed or not self._exchange():
                self._rest()
                return
        self._waiters.look()
        if not self._goes_on:
            self._goes_on = True
            self._loop.call_soon(self._go_on_soon)  # the loop's other tasks come first

    def _go_on_soon(self) -> None:
        self._goes_on = False
        self.make()

    def _exchange(self) -> bool:
        """Take all frames, and send what is due. Returns whether there may be more."""
        link, connection = self._link, self._link.connection
        busy = connection.receive_some()
        if link.closed:  # a callback has closed it
            return False
        now_ns = link.now_ns()
        if link.sender.chores:
            with link.lock:
                link.sender.do_chores()
        connection.tick(now_ns)
        if link.closed:
            return False
        return connection.send_some(now_ns) or busy

    def _rest(self) -> None:
        """Rest until a socket, a call or the timer starts a pass."""
        link = self._link
        if link.closed:
            return
        self._waiters.look()
        if link.is_abandoned():
            link.stop()
            warnings.warn(
                f"unclosed client of {link.connection.paths.instance!r}: nobody refers to it any more, so it was "
                "closed; `await client.close()`, or `async with`",
                ResourceWarning,
                stacklevel=2,
            )
            return
        link.idle = True
        if link.sender.chores or (link.protocol.wants_to_send() and link.connection.unsent is None):
            link.wake()  # another thread has issued a command, or has left a chore, since this pass looked
            return
        self._arm(min(link.protocol.poll_deadline(), link.connection.sockets.due_ns))

    def _arm(self, at_ns: int) -> None:
        if at_ns >= self._timer_at:
            return  # the present timer is earlier, and sets the next one
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at_ns
        wait_s = max(0, at_ns - self._link.now_ns()) / 1e9 + TIMER_SLACK_S
        self._timer = self._loop.call_later(wait_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._timer_at = None, NEVER
        self.make()

    def go_on(self, seconds: float) -> None:
        """Send and receive without the loop, at the end of the process. If the loop still runs, sleep."""
        if self._loop.is_running():
            native.sleep(seconds)
            return
        with contextlib.suppress(RuntimeError):  # a closed loop cannot wake its waiters
            self._exchange()
        poll = native.poll()
        for number in self._descriptors:
            poll.register(number, select.POLLIN)
        poll.poll(seconds * 1e3)

    def end(self) -> None:
        """Make no more passes."""
        if self._timer is not None:
            self._timer.cancel()
        if not self._loop.is_closed():
            for number in self._descriptors:
                self._loop.remove_reader(number)
