"""Senders: the threads that send batches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from queue import SimpleQueue

from .batch import Attempt

Send = Callable[[Attempt], object]
Ready = Callable[[Hashable], bool]


def always_ready(_lane: Hashable) -> bool:
    """Every lane can be sent at any time."""
    return True


def guarded(
    ready: Callable[[Hashable], bool | None] | None, complain: Callable[[str, BaseException | None], None]
) -> Ready:
    """The `ready` of a user, whose error is logged; the lane then waits."""
    if ready is None:
        return always_ready

    def is_ready(lane: Hashable) -> bool:
        try:
            return bool(ready(lane))
        except Exception as error:
            complain(f"ready({lane!r}) failed; the lane waits", error)
            return False

    return is_ready


class Senders:
    """A transport of threads. They are made when they are needed: one for each attempt under way, stuck ones included.

    A thread cannot be stopped. A thread that is stuck beyond its request timeout is left alone, and another does its
    work, up to twice `threads` in all; it ends with its process.
    """

    def __init__(
        self,
        send: Send,
        threads: int,
        finished: Callable[[Attempt, BaseException | None], object],
        ready: Ready = always_ready,
    ) -> None:
        """`finished` is called in a sender's thread; `ready` in the one that polls the accumulator."""
        self._send = send
        self.ready = ready
        self._limit = 2 * threads
        self._finished = finished
        self._jobs: SimpleQueue[Attempt | None] = SimpleQueue()
        self._threads = 0
        self._busy = 0

    def room(self) -> int:
        return self._limit - self._busy

    def send(self, attempt: Attempt) -> None:
        self._busy += 1
        if self._busy > self._threads:
            self._threads += 1
            threading.Thread(target=self._run, name=f"timerd-sender-{self._threads}", daemon=True).start()
        self._jobs.put(attempt)

    def returned(self) -> None:
        """An attempt that was begun has ended, abandoned or not. Called by the thread that calls `send`."""
        self._busy -= 1

    def abandon(self, attempt: Attempt) -> None:
        pass

    def stop(self) -> None:
        """End the threads; a thread that is stuck ends when its send returns."""
        for _ in range(self._threads):
            self._jobs.put(None)

    def _run(self) -> None:
        while (attempt := self._jobs.get()) is not None:
            error: BaseException | None = None
            try:
                self._send(attempt)
            except BaseException as raised:  # also SystemExit: the attempt must be reported
                error = raised
            self._finished(attempt, error)
