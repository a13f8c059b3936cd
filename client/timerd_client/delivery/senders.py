"""Senders: the threads that send batches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

from .batch import Attempt

Send = Callable[[Sequence[Any]], object]


class Senders:
    """A transport of threads. They are made when they are needed: one for each attempt under way, stuck ones included.

    A thread cannot be stopped. A thread that is stuck beyond its request timeout is left alone, and another does its
    work, up to twice `threads` in all; it ends with its process.
    """

    def __init__(self, send: Send, threads: int, finished: Callable[[Attempt, BaseException | None], object]) -> None:
        """`finished` is called in a sender's thread."""
        self._send = send
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
                self._send(attempt.records)
            except BaseException as raised:  # also SystemExit: the attempt must be reported
                error = raised
            self._finished(attempt, error)
