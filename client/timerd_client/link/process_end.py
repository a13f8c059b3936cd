"""The end of a process: unsent commands are flushed, and after that each call waits until its command is applied.

    atexit.register(lambda: td.client().fire("bye"))    # arrives, whether the handler runs before or after the flush

Handlers of atexit, finalizers of multiprocessing and flushes of loggers run in an order that nobody can know. So the
end of the process closes no client. This module has such handlers, too, and the first of them to run flushes all
clients. After that, each call that releases the lock of its link waits until its commands are applied. Each frame says
that the process is leaving. So the daemon treats the end of the connection as a goodbye.

Before 3.13, CPython runs no handlers of atexit in a forked child of multiprocessing. Since 3.13 it clears the handlers
in such a child. So a process registers with both, atexit and multiprocessing, when it makes its first link.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from time import monotonic
from types import TracebackType
from typing import Any, Final

from timerd_client.main_thread import main_has_ended
from timerd_client.transport.make import end_transports
from timerd_shm.declare.errors import TimerdError, TimerdUnavailableError
from timerd_shm.declare.limits import CLOSE_TIMEOUT_S
from timerd_shm.declare.wire import FrameFlag
from timerd_wire.native import ident

from .base import logger
from .link import Link, links, take_no_calls_locked
from .questions import query

PATIENCE_S: Final = 2.0  # how long an ending process waits for silent daemons, over all clients and calls
GOODBYE_S: Final = 0.2  # how long it waits for the answer to "this process is leaving", after everything else
LOCK_S: Final = 1.0  # how long it waits for a link's lock: a thread that the end has stopped may hold the lock
LIFESPAN_ENDS: Final = "the lifespan of the application ends"
PAUSE_FIRST_S: Final = 0.00005
PAUSE_LAST_S: Final = 0.001
PRIORITY: Final = -100  # among the finalizers of multiprocessing: late, after its children have been joined


class LastLock:
    """The lock of a link whose process ends. A thread that releases it waits until all issued commands are applied."""

    def __init__(self, lock: threading.Lock, settle: Callable[[], None]) -> None:
        self._lock = lock
        self._settle = settle

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Like any lock, but raises TimerdUnavailableError if a wait without a limit takes too long."""
        if not blocking or timeout >= 0:
            return self._lock.acquire(blocking, timeout)
        if not self._lock.acquire(timeout=LOCK_S):
            raise TimerdUnavailableError("the process ends, and a thread was stopped in the middle of a call")
        return True

    def release(self) -> None:
        """Like any lock."""
        self._lock.release()

    def locked(self) -> bool:
        """Like any lock."""
        return self._lock.locked()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()
        if kind is None:
            self._settle()


class ProcessEnd:
    """The end of this process: what its clients do at that time."""

    def __init__(self) -> None:
        self._is_armed = False
        self._has_begun = False
        self._patience_s = PATIENCE_S  # how much of PATIENCE_S is left
        self._losses: dict[Link, int] = {}  # how often commands of a link were lost
        self._flushing: set[int] = set()  # threads that are in flush(): they release locks, and must not flush again

    def watch(self, link: Link) -> None:
        """A link was made. If the process is already ending, each call of it waits until its command is applied."""
        self._arm()
        if self._has_begun or link.has_no_thread or main_has_ended() or _is_exiting():
            self._take(link)

    def forked(self) -> None:
        """In a forked child: forget the state of the parent's end. The child ends by itself."""
        self._is_armed = False
        self._patience_s = PATIENCE_S
        self._losses.clear()
        self._flushing.clear()

    def _arm(self) -> None:
        """Register `_begin`, so that this process calls it when it ends."""
        if self._is_armed:
            return
        self._is_armed = True
        atexit.unregister(self._begin)  # a child may have inherited the registration of its parent
        atexit.register(self._begin)
        util: Any = sys.modules.get("multiprocessing.util")  # a child of multiprocessing has always loaded this
        if hasattr(util, "Finalize"):
            util.Finalize(None, self._begin, exitpriority=PRIORITY)
            util.register_after_fork(self, ProcessEnd._arm_again)

    def _arm_again(self) -> None:
        """Register again in a forked child of multiprocessing, which has just cleared all registrations."""
        self._is_armed = False
        self._arm()

    def _begin(self) -> None:
        """Wait for running handlers, and flush all clients. From now on a call waits until its command is applied."""
        self._has_begun = True
        new = [link for link in links if not (link.closed or link.ends_with_process)]
        for link in new:
            with suppress(Exception):
                link.end_handlers(CLOSE_TIMEOUT_S)
            self._take(link)
        self.flush([link for link in links if not link.closed])
        for link in filter(_is_applied, new):  # on the others, a call's acknowledgement may still be on its way
            link.sender.soon(partial(take_no_calls_locked, link))
        self._say_goodbye(new)
        if not links:
            end_transports()

    def _say_goodbye(self, ending: Collection[Link]) -> None:
        """Let the daemon know that the process is leaving, over the links whose commands are all applied."""
        answers = {link: asked for link in ending if _is_applied(link) and (asked := _goodbye(link)) is not None}
        self._wait(answers, lambda link: answers[link].done(), GOODBYE_S)

    def flush_before_a_signal(self, ending: Collection[Link]) -> None:
        """Flush these links, and say goodbye for them: the process may be about to end by a signal, without handlers.

        If the process does not end, the links go on, too: the next frame says that the process is not leaving. So
        each such flush has PATIENCE_S of its own, and reports its own losses.
        """
        try:
            self._wait_applied(ending, PATIENCE_S)
        finally:
            for link in ending:
                if not _is_applied(link):
                    say(link, lost(LIFESPAN_ENDS, link))
        with as_leaving(*ending):
            self._say_goodbye(ending)

    def _take(self, link: Link) -> None:
        """From now on, calls of this link wait until their commands are applied, and frames say "leaving"."""
        if link.ends_with_process:
            return
        link.ends_with_process = True
        link.protocol.leaving = int(FrameFlag.LEAVING)
        link.alarm = 0  # each call goes through the lock
        lock: Any = LastLock(link.lock, partial(self._settle, link))
        link.lock = lock

    def _settle(self, link: Link) -> None:
        if not (_is_applied(link) or link.closed or link.waiters.must_not_wait() or ident() in self._flushing):
            self.flush([link])

    def flush(self, ending: Collection[Link]) -> None:
        """Wait until all commands of these links are applied, as long as the patience lasts. Report lost commands."""
        began = monotonic()
        try:
            if not self._wait_applied(ending, self._patience_s):
                self._patience_s = max(0.0, self._patience_s - (monotonic() - began))
        except BaseException:  # Ctrl-C: the end does not wait any more
            self._patience_s = 0.0
            raise
        finally:
            for link in ending:
                if not _is_applied(link):
                    self._say_lost(link)

    def _wait_applied(self, ending: Collection[Link], patience_s: float) -> bool:
        """Wait until all commands of these links are applied. Returns False if the patience was too short."""
        me = ident()
        self._flushing.add(me)
        try:
            for link in ending:
                _hasten(link)
            return self._wait(ending, _is_applied, patience_s)
        finally:
            self._flushing.discard(me)

    @staticmethod
    def _wait(ending: Collection[Link], is_done: Callable[[Link], bool], silence_s: float) -> bool:
        """Wait until `is_done(link)` for all. Returns False if no frame came for `silence_s`, or the time is over.

        It does not wait for a daemon that is known to be lost. For one that answers it waits CLOSE_TIMEOUT_S at most.
        """
        waiting = list(ending)
        began = heard = monotonic()
        newest: dict[Link, int] = {}
        pause_s = PAUSE_FIRST_S
        while waiting := [
            link for link in waiting if not (is_done(link) or link.closed) and link.connection.may_answer()
        ]:
            now = monotonic()
            frames = {link: link.protocol.silence.last_frame_ns for link in waiting}
            if any(newest.get(link, at_ns) != at_ns for link, at_ns in frames.items()):
                heard = now
            newest = frames
            if now - heard >= silence_s or now - began >= CLOSE_TIMEOUT_S:
                return False
            for link in waiting:
                link.drive(pause_s / len(waiting))
            pause_s = min(2 * pause_s, PAUSE_LAST_S)
        return True

    def _say_lost(self, link: Link) -> None:
        """Report a loss: with a full message the first time, with a short message the second time, then never."""
        before = self._losses.get(link, 0)
        self._losses[link] = before + 1
        if before < 2:
            again = f"all that follows to {link.connection.paths.instance!r} is lost as well"
            say(link, again if before else lost("the process ends", link))


@contextmanager
def as_leaving(*ending: Link) -> Iterator[None]:
    """Frames of these links, sent in this block, say that the process is leaving."""
    leaving = [link for link in ending if not link.ends_with_process]
    for link in leaving:
        link.protocol.leaving = int(FrameFlag.LEAVING)
    try:
        yield
    finally:
        for link in leaving:
            link.protocol.leaving = 0


def _is_exiting() -> bool:
    """Whether multiprocessing runs its finalizers in this process."""
    is_exiting = getattr(sys.modules.get("multiprocessing.util"), "is_exiting", None)
    return is_exiting is not None and bool(is_exiting())


def _is_applied(link: Link) -> bool:
    return link.protocol.ledger.applied >= link.protocol.ledger.issued


def _hasten(link: Link) -> None:
    """Send all issued commands now, and ask the daemon to confirm them at once."""
    if not _is_applied(link) and link.lock.acquire(timeout=LOCK_S):
        try:
            link.sender.confirm_locked()
        finally:
            link.lock.release()


def _goodbye(link: Link) -> Any:
    """Ask the daemon for an answer, in a frame that says that the process is leaving. Returns the reply, or None."""
    with suppress(TimerdError):
        return query(link, {"query": "ping"})
    return None


def lost(event: str, link: Link) -> str:
    """The message about the commands of a link that are lost by this event, with the reason and the remedy."""
    ledger, name = link.protocol.ledger, link.protocol.session.identity.name
    left = ledger.issued - max(ledger.applied, link.protocol.outgoing.offered)
    unsent = left == ledger.issued - ledger.applied
    count = ledger.issued - ledger.applied
    what = "1 command" if count == 1 else f"{count} commands"
    verb = ("is" if count == 1 else "are") + (" lost" if unsent else " unacknowledged, and may be lost")
    by = f" of client {name!r}" if name else ""
    connection, paths = link.connection, link.connection.paths
    why = connection.sockets.trouble() or f"{connection.status()}: is it running? ({paths.command})"
    return f"{event}, and {what}{by} to instance {paths.instance!r} {verb}: {why}"


def say(link: Link, what: str) -> None:
    """Log a message, and write it to stderr if the log does not go there."""
    is_shown = _reaches_stderr(logger)
    link.complain(what)
    if not is_shown and sys.stderr is not None:
        sys.stderr.write(f"timerd client: {what}\n")


def _reaches_stderr(of: logging.Logger) -> bool:
    """Whether warnings of this logger reach stderr."""
    level: logging.Logger | None = of
    if not of.isEnabledFor(logging.WARNING):
        return False
    if not of.hasHandlers():
        return logging.lastResort is not None
    while level is not None:
        for handler in level.handlers:
            if handler.level <= logging.WARNING and getattr(handler, "stream", None) in (sys.stderr, sys.__stderr__):
                return True
        level = level.parent if level.propagate else None
    return False


process_end: Final = ProcessEnd()
os.register_at_fork(after_in_child=process_end.forked)
