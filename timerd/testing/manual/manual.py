"""A daemon in this process on a clock of its own, with the calls for a test: fixture `timerd_manual`.

    timerd_manual.advance(30)              # everything happens that is due within 30 s, and then the call returns
    with timerd_manual.autojump(): ...     # a wait moves the clock itself to what is due next
    timerd_manual.run(main())              # a coroutine, in a loop on the same clock
    timerd_manual.kill(worker)             # a client ends as if its process was killed

All pending work is done in the thread that waits or moves the clock. So every run takes the same steps. Only handlers
of named calls have a thread. A thread that moves the clock waits for the handlers.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Self, TypeVar

from timerd.testing.clients import connected_anew
from timerd_client.aio.link import LoopLink
from timerd_client.arguments import TIMEOUT_S_MAX, patience_s, shown
from timerd_client.discovery.target import Target
from timerd_client.groups.membership import serving
from timerd_client.link import lazy
from timerd_client.types import Patience

from .driver import Driver, S
from .errors import HangsError
from .loop import ManualLoop, ManualLoopLink
from .threaded import ManualLink
from .threads import Killed

if TYPE_CHECKING:
    import timerd as td

Value = TypeVar("Value")


class Manual:
    """A daemon, the clock, and the clients of this process. A context manager; the fixture enters it."""

    def __init__(self) -> None:
        self._driver = Driver()

    def __enter__(self) -> Self:
        lazy.openers.append(self._open)
        self._driver.daemon.start()
        self._clients = connected_anew(lambda target: True, self.autojump)  # nothing waits in real time at the end
        self._clients.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        driver = self._driver
        lazy.openers.remove(self._open)  # a thread that goes on with its subscription does so outside of this test
        try:
            self._clients.__exit__(None, None, None)
        finally:
            for link in list(driver.links):
                with suppress(HangsError):
                    link.stop(0)
            driver.is_over = True
            driver.threads.changed()
            driver.daemon.stop()

    @property
    def now(self) -> float:
        """Seconds since the clock began."""
        return self._driver.now

    @property
    def handler_timeout(self) -> float:
        """How many seconds of real time a handler may run without using timerd: 10 by default. Beyond them it hangs.

        The call that waits for the handler, such as `advance()`, then raises HangsError. No later call waits for it.
        """
        return self._driver.threads.handler_timeout_s

    @handler_timeout.setter
    def handler_timeout(self, seconds: float) -> None:
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds <= TIMEOUT_S_MAX:
            raise ValueError(f"handler_timeout={shown(seconds)}: give seconds of real time, above 0")
        self._driver.threads.handler_timeout_s = float(seconds)

    def advance(self, seconds: float | timedelta = 0.0) -> None:
        """Move the clock by `seconds`, rounded up to a tick of 1 ms, and return when everything due by then is done.

        `advance(0)` does what is under way: for example, it calls the callbacks of operations that a fire has
        completed. Raises HangsError if a handler runs for longer than `handler_timeout`.
        """
        wanted_s = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
        if not isinstance(wanted_s, (int, float)) or isinstance(wanted_s, bool) or not 0 <= wanted_s <= TIMEOUT_S_MAX:
            raise ValueError(f"advance({seconds!r}): give the seconds from now, 0 to {TIMEOUT_S_MAX}, or a timedelta")
        tick_ns = self._driver.daemon.tick_ns
        self._driver.move_to(-(-(self._driver.clock.now_ns() + math.ceil(wanted_s * S)) // tick_ns) * tick_ns)

    @contextmanager
    def autojump(self) -> Iterator[None]:
        """Within this block a wait moves the clock to the next due time, again and again, until the wait ends."""
        before, self._driver.jumps = self._driver.jumps, True
        try:
            yield
        finally:
            self._driver.jumps = before

    def run(self, main: Coroutine[Any, Any, Value]) -> Value:
        """As asyncio.run(), in a loop on this clock. The clock moves when all tasks wait: sleep(30) takes no time."""
        runner = asyncio.Runner(loop_factory=lambda: ManualLoop(self._driver))
        try:
            value = runner.run(main)
        except HangsError:
            with suppress(AssertionError):  # the function still hangs, so closing raises HangsError again
                runner.close()
            raise
        finally:
            runner.close()
        return value

    def set_wall_clock(self, to: datetime) -> None:
        """Set the wall clock, by which `cron=` and `call_at` go. Raises ValueError for a datetime without a zone.

        Before the clock has moved, this sets the time at which the test begins: no point of a schedule is missed.
        After that, points of a schedule between the old and the new time are missed points.
        """
        if to.tzinfo is None:
            raise ValueError(f"{to!r} has no time zone: datetime(..., tzinfo=UTC)")
        driver = self._driver
        with self._planned_anew() if driver.now == 0 else nullcontext():
            driver.clock.jump(round(to.timestamp() * S) - driver.clock.wall_ns())
            for link in list(driver.links):
                link.wall.was_set()
            driver.daemon.wall_clock_set()
            driver.settle()

    @contextmanager
    def _planned_anew(self) -> Iterator[None]:
        """Members forget their cron schedules at the beginning of this block, and begin them at its end."""
        by_wall = [
            (client, client._carrier.to_begin, name)
            for client in list(serving)
            if isinstance(client, lazy.CommonClient) and client._carrier is not None
            if client._lazy.made in self._driver.links
            for name, job in client._carrier.jobs.items()
            if job.schedule is not None and job.schedule.by_wall
        ]
        self._driver.settle()
        for client, _, name in by_wall:
            client.cancel_call(name)
        yield
        for _, to_begin, name in by_wall:
            to_begin.add(name)
        self._driver.settle()

    def stop(self) -> None:
        """End the daemon, as if it was killed. Its arena stays."""
        with self._driver.working():
            self._driver.daemon.stop()
        self._driver.settle()

    def start(self) -> None:
        """Start the daemon again, on its arena. Raises RuntimeError if it has not been stopped."""
        if self._driver.daemon.serves:
            raise RuntimeError("start(): the daemon of this test runs; timerd_manual.stop() ends it")
        with self._driver.working():
            self._driver.daemon.start()
        self._driver.settle()

    def kill(self, client: td.Client | td.aio.Client) -> None:
        """End a client as if its process was killed: what it has not sent is lost, and other members get its calls.

        In a handler of that client this does not return, as `os._exit()` does not: it raises an error, which no
        `except Exception` catches. An asyncio client cancels its handlers instead. The daemon acts upon the end 10 ms
        later, as it does upon a real one. At its next use the client connects anew, and stands for the next process of
        that worker. The client then serves nothing before `client.serve(calls)`. Raises ValueError for a client without
        a connection in this test.
        """
        link = client._lazy.made
        if not isinstance(link, (ManualLink, ManualLoopLink)) or link not in self._driver.links:
            raise ValueError(f"kill({shown(client)}): it has no connection in this test; it connects at its first use")
        client._lazy.leave()
        client._served = client._at_once = None
        serving.discard(client)
        link.why_closed = "timerd_manual.kill() has ended it"
        link.die()
        if isinstance(link, ManualLink) and link.is_in_handler():
            raise Killed("timerd_manual.kill()")
        self._driver.settle()

    def until_waiting(self, threads: int = 1, timeout: Patience = 10) -> None:
        """Return when `threads` threads that the test has begun wait for timerd. `timeout` is real time."""
        self._driver.threads.until_waiting(threads, patience_s(timeout))

    def _open(self, make: object, target: Target, purgatories: Sequence[str]) -> ManualLink | ManualLoopLink:
        """The link of a client that connects; `make` is the class of the link that it would have otherwise."""
        kind = ManualLoopLink if make is LoopLink else ManualLink
        link = kind(self._driver, target, purgatories)
        self._driver.links.append(link)
        return link
