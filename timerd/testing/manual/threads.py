"""The threads of a test on a manual clock: which of them wait for timerd, and which run a handler of a named call.

The clock stands still while a handler runs. A handler that uses timerd again and again may run for any time. A handler
that does not use timerd for `handler_timeout_s` of real time hangs: this is an error. After the error nobody waits for
that handler, until it uses timerd again. So `close()` and the end of the test take no further time.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

from .errors import HangsError

HANDLER_TIMEOUT_S: Final = 10.0
OURS: Final = ("timerd", "timerd_client", "timerd_wire", "timerd_shm")
RUNS_HANDLER: Final = ("timerd_client.threaded.member", "_error_of")  # the function that calls a handler


class Killed(BaseException):
    """Ends a handler whose client was killed in it: a process that was killed does not go on, either."""


class Helper(threading.Thread):
    """The thread in which a client calls handlers. It runs while the test's thread waits for it."""

    def __init__(self, threads: Threads, run: Callable[[], None], name: str, link: object) -> None:
        super().__init__(name=name, daemon=True)
        self.link = link
        self.used_at = 0.0  # when it used timerd last, in real time
        self._threads = threads
        self._body = run

    def start(self) -> None:
        self._threads.begin(self)
        super().start()

    def run(self) -> None:
        try:
            self._body()
        finally:
            self._threads.end(self)


class Threads:
    """Which threads run, and which wait until something has changed."""

    def __init__(self) -> None:
        self.handler_timeout_s = HANDLER_TIMEOUT_S
        self.monotonic: Callable[[], float] = time.monotonic  # real time
        self.changes = 0
        self.ends: list[int] = []  # the times at which waits of threads end
        self._changed = threading.Condition(threading.Lock())  # a leaf: whoever holds it takes no other lock
        self._running: set[Helper] = set()
        self._parked: set[Helper] = set()
        self._hanging: set[Helper] = set()
        self._others_parked = 0  # threads that the test has begun, and that wait

    def begin(self, helper: Helper) -> None:
        """A helper is about to start: from now on it runs."""
        with self._changed:
            helper.used_at = self.monotonic()
            self._running.add(helper)

    def end(self, helper: Helper) -> None:
        """A helper has ended."""
        with self._changed:
            self._running.discard(helper)
            self._hanging.discard(helper)
            self._changed.notify_all()

    def used(self) -> bool:
        """The calling thread uses timerd. Returns whether it is a helper."""
        me = threading.current_thread()
        if not isinstance(me, Helper):
            return False
        with self._changed:
            me.used_at = self.monotonic()
            self._hanging.discard(me)
        return True

    def changed(self) -> None:
        """Make all waiting threads look again. The caller may hold any lock."""
        with self._changed:
            self.changes += 1
            # Handlers count as running before they have woken, so that a thread that moves the clock waits for them.
            now = self.monotonic()
            for helper in self._parked:
                helper.used_at = now
            self._running |= self._parked
            self._parked.clear()
            self._changed.notify_all()

    def park(self, seen: int, end_ns: int | None) -> None:
        """Wait, in any thread but the test's, until there were more than the `seen` changes."""
        me = threading.current_thread()
        with self._changed:
            if self.changes != seen:
                return
            if end_ns is not None:
                self.ends.append(end_ns)
            if isinstance(me, Helper):
                self._running.discard(me)
                self._parked.add(me)  # changed() counts it as running again
            else:
                self._others_parked += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.changes != seen)
            if end_ns is not None:
                self.ends.remove(end_ns)
            if not isinstance(me, Helper):
                self._others_parked -= 1

    def until_waiting(self, threads: int, timeout_s: float | None) -> None:
        """Return when this number of threads wait. Raises AssertionError after `timeout_s` of real time."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._others_parked >= threads, timeout_s):
                parked = self._others_parked
                raise AssertionError(f"{parked} of {threads} threads wait for timerd after {timeout_s} s")

    def forget(self, link: object) -> None:
        """Do not wait for the handlers of a client that was killed."""
        with self._changed:
            self._hanging |= {helper for helper in self._running if helper.link is link}
            self._changed.notify_all()

    def hang(self, link: object) -> bool:
        """Whether a handler of this link hangs."""
        with self._changed:
            return any(helper.link is link for helper in self._hanging)

    def until_helpers_rest(self) -> bool:
        """Wait until no handler runs. Returns whether any has run. Raises HangsError."""
        with self._changed:
            if not self._running - self._hanging:
                return False
            late: set[Helper] = set()
            try:
                while not late and (running := self._running - self._hanging):
                    now = self.monotonic()
                    late = {helper for helper in running if helper.used_at + self.handler_timeout_s <= now}
                    if not late:
                        first = min(helper.used_at for helper in running)
                        self._changed.wait(first + self.handler_timeout_s - now)
            except BaseException:  # Ctrl-C, or a time limit of the test: the end of the test then waits for no handler
                self._hanging |= self._running
                raise
            self._hanging |= late
            whats = [_what_hangs(helper) for helper in late]
        if late:
            raise HangsError(
                f"{' and '.join(sorted(whats))}: still there after {self.handler_timeout_s:g} s of real time. The "
                "clock stands still until the handler returns or waits for timerd, so its time_limit never comes. "
                "Replace what it waits for by something that returns, end its worker by "
                "timerd_manual.kill(client), or increase timerd_manual.handler_timeout"
            )
        return True


def place_in(thread: int | None) -> str:
    """Where the innermost code of the test's program stands in a thread."""
    for frame in _frames(thread):
        root = _module(frame).partition(".")[0]
        if root not in sys.stdlib_module_names and root not in OURS:
            return f"in {frame.f_code.co_name}() at {frame.f_code.co_filename}:{frame.f_lineno}"
    return "in code of the standard library"


def _what_hangs(helper: Helper) -> str:
    """The call of a helper, and where its handler stands."""
    what = f"the thread {helper.name!r} of a client"
    for frame in _frames(helper.ident):
        if (_module(frame), frame.f_code.co_name) == RUNS_HANDLER:
            arguments: tuple[Any, ...] = frame.f_locals["arguments"]
            what = f"the handler of {arguments[0].name!r}"
    return f"{what} hangs {place_in(helper.ident)}"


def _frames(thread: int | None) -> Iterator[FrameType]:
    """The frames of a thread, from the innermost one on."""
    frame: FrameType | None = sys._current_frames().get(thread or 0)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
