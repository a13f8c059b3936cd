"""Senders: the threads that send batches."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable
from queue import SimpleQueue
from typing import Final

from .batch import Attempt

STUCK_MAX: Final = 2  # a lane is not sent while this many of its attempts go on after their request timeout

Send = Callable[[Attempt], object]
Ready = Callable[[Hashable], bool]


def always_ready(_lane: Hashable) -> bool:
    """Every lane can be sent at any time."""
    return True


def guarded(
    ready: Callable[[Hashable], bool | None] | None, complain: Callable[[str, BaseException | None], None]
) -> Ready:
    """The user's `ready`. If it raises, the error is logged, and the lane waits."""
    if ready is None:
        return always_ready

    def is_ready(lane: Hashable) -> bool:
        try:
            return bool(ready(lane))
        except Exception as error:
            complain(f"ready({lane!r}) failed; the lane waits", error)
            return False

    return is_ready


class Stuck:
    """Counts stuck attempts, which go on after their request timeout. A lane with STUCK_MAX of them is not sent.

    A stuck attempt takes up room in the transport. Without this bound a single lane could use up all the room. Attempts
    without a lane are not counted.
    """

    def __init__(self, ready: Ready) -> None:
        self._ready = ready
        self._attempts: set[Attempt] = set()
        self._lanes: Counter[Hashable] = Counter()

    def ready(self, lane: Hashable) -> bool:
        return self._lanes[lane] < STUCK_MAX and self._ready(lane)

    def why(self, lane: Hashable) -> str:
        if self._lanes[lane] >= STUCK_MAX:
            return f"{STUCK_MAX} attempts of its lane go on after request_timeout, and more are not begun"
        return "its lane was not ready"

    def abandon(self, attempt: Attempt) -> None:
        if attempt.batch.key is not None:
            self._attempts.add(attempt)
            self._lanes[attempt.batch.key] += 1

    def returned(self, attempt: Attempt) -> bool:
        """The attempt has ended. Returns whether it was stuck: if so, its lane may be ready now."""
        if attempt not in self._attempts:
            return False
        self._attempts.discard(attempt)
        self._lanes[attempt.batch.key] -= 1
        if not self._lanes[attempt.batch.key]:
            del self._lanes[attempt.batch.key]
        return True


class Senders:
    """A transport with a thread for each attempt under way, stuck attempts too. Threads are made when needed.

    A thread cannot be stopped. If a thread is stuck beyond its request timeout, another thread does its work. There are
    at most twice `threads` threads, and a lane has at most STUCK_MAX stuck ones. A thread whose send
    never returns ends with the process.
    """

    def __init__(
        self,
        send: Send,
        threads: int,
        finished: Callable[[Attempt, BaseException | None], object],
        ready: Ready = always_ready,
    ) -> None:
        """`finished` is called in a sender's thread, `ready` in the thread that polls the accumulator."""
        self._send = send
        self._stuck = Stuck(ready)
        self.ready, self.why, self.abandon = self._stuck.ready, self._stuck.why, self._stuck.abandon
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

    def returned(self, attempt: Attempt) -> bool:
        """An attempt has ended. Returns whether its lane may be ready now. The thread that calls `send` calls this."""
        self._busy -= 1
        return self._stuck.returned(attempt)

    def stop(self) -> None:
        """End the threads. A stuck thread ends when its send returns."""
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
