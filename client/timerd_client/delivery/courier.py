"""Deliveries in threads: an accumulator, a thread that drives it, threads that send, and deadlines that timerd holds.

    courier = Courier(client, post, options)            # post(records) delivers them, or raises
    taken = courier.offer(records, lanes, sizes)        # how many of them there was room for
    for delivery in courier.take(timeout=1.0): ...      # what has ended
    courier.close(); courier.stop()

A batch is an operation: its key is fired when the batch was delivered, and failed when it failed; else the operation
expires, in the daemon, on time, whatever this process does. What timerd says is the outcome of the batch's records.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from queue import Empty, SimpleQueue
from random import Random
from typing import Any, Final

from timerd_client.errors import OperationFailed
from timerd_client.link.operation import Operation
from timerd_client.link.polling import GRACE_S
from timerd_client.outcome import State
from timerd_client.threaded.purgatory import Purgatory
from timerd_shm.declare.errors import BackpressureError, TimerdError

from .accumulator import (
    NEVER,
    Accumulator,
    Attempt,
    Batch,
    Delivery,
    DeliveryOptions,
    DeliveryOutcome,
    RetriableError,
    S,
)

Send = Callable[[Sequence[Any]], object]
Retriable = Callable[[Exception], bool]

ERROR_SIZE_MAX: Final = 1_000  # characters of an error that are kept
IDLE_S: Final = 60.0
STATUS_RETRIABLE: Final = (408, 425, 429)  # of those below 500: timeout, too early, too many requests


def is_retriable(error: Exception) -> bool:
    """Whether to send again: RetriableError, and OSError (timeouts, connections) and errors of http.client, unless they
    say that the request is wrong: by a status of HTTP (4xx, but 408, 425 and 429), or by being a ValueError or
    InvalidURL as well.
    """
    status = _status_of(error)
    if status is not None:
        return status >= 500 or status in STATUS_RETRIABLE
    if isinstance(error, RetriableError):
        return True
    from http.client import HTTPException, InvalidURL  # it takes a while to import, and most never need it

    return isinstance(error, (OSError, HTTPException)) and not isinstance(error, (ValueError, InvalidURL))


def _status_of(error: Exception) -> int | None:
    """The HTTP status that an error of urllib, requests, httpx or aiohttp carries."""
    for holder in (error, getattr(error, "response", None)):
        for name in ("code", "status_code", "status"):
            status = getattr(holder, name, None)
            if type(status) is int and 400 <= status < 600:
                return status
    return None


def text_of(error: BaseException) -> str:
    """An error as a delivery tells it: text that can be encoded, whatever name of a file it tells."""
    said = f"{type(error).__name__}: {error}"[:ERROR_SIZE_MAX]
    return said.encode(errors="backslashreplace").decode()


class TimerdDeadlines:
    """An operation for each batch; `tell` is called in the client's thread with the batch and how it ended."""

    def __init__(
        self, purgatory: Purgatory, prefix: str, tell: Callable[[Batch, DeliveryOutcome | None], object]
    ) -> None:
        """`prefix` begins the keys, PREFIX/NUMBER; nobody else uses them."""
        self.grace_ns = round((GRACE_S + 0.5) * S)  # the client gives an operation up after GRACE_S
        self._purgatory = purgatory
        self._prefix = prefix
        self._tell = tell

    def _key(self, batch: Batch) -> str:
        return f"{self._prefix}/{batch.number}"

    def hold(self, batch: Batch) -> bool:
        left_ns = max(0, batch.deadline_ns - self._purgatory._link.now_ns())
        try:
            operation = self._purgatory.register(self._key(batch), timeout=left_ns / S)
        except TimerdError:
            return False
        operation.add_done_callback(lambda settled: self._tell(batch, outcome_of(settled)))
        return True

    def claim(self, batch: Batch, outcome: DeliveryOutcome) -> bool:
        try:
            if outcome is DeliveryOutcome.DELIVERED:
                self._purgatory.fire(self._key(batch))
            else:
                self._purgatory.fail(self._key(batch), value=(batch.error or "").encode())
        except TimerdError:
            return False
        return True


def outcome_of(operation: Operation) -> DeliveryOutcome | None:
    """What the end of a batch's operation says; None if it says nothing: refused, not known, cancelled by somebody."""
    outcome = operation.outcome()
    assert outcome is not None, f"{operation!r} has not settled"
    if outcome.state is State.COMPLETED:
        return DeliveryOutcome.DELIVERED
    if outcome.state is State.EXPIRED:
        return DeliveryOutcome.EXPIRED
    return DeliveryOutcome.FAILED if isinstance(outcome.error, OperationFailed) else None


class Senders:
    """A transport of threads, made when they are needed: as many as attempts are under way, stuck ones included.

    A thread cannot be stopped. One that is stuck beyond its request timeout is left alone, and others take its place,
    up to twice `threads` in all; it ends with its process.
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
        """An attempt that was begun has ended, given up or not; by the thread that calls `send`."""
        self._busy -= 1

    def abandon(self, attempt: Attempt) -> None:
        pass

    def stop(self) -> None:
        """End the threads; those that are stuck end when they are no longer."""
        for _ in range(self._threads):
            self._jobs.put(None)

    def _run(self) -> None:
        while (attempt := self._jobs.get()) is not None:
            error: BaseException | None = None
            try:
                self._send(attempt.records)
            except BaseException as raised:  # SystemExit of a send is no reason to lose what it was about
                error = raised
            self._finished(attempt, error)


class Courier:
    """Delivers records; each one offered and taken comes out of `take()`, in time. One thread offers and takes."""

    def __init__(
        self,
        purgatory: Purgatory,
        send: Send,
        options: DeliveryOptions,
        *,
        prefix: str,
        retriable: Retriable = is_retriable,
        random: Random | None = None,
    ) -> None:
        """`send(records)` runs in several threads; `prefix` names this courier's batches among all clients'."""
        self._now_ns = purgatory._link.now_ns
        self._retriable = retriable
        # The first is for everybody: to put something in never blocks. The second is for who takes.
        self._news: SimpleQueue[Callable[[int], None] | None] = SimpleQueue()
        self._ended: SimpleQueue[list[Delivery]] = SimpleQueue()
        self._broken: BaseException | None = None
        self._senders = Senders(send, options.max_in_flight, self._sent)
        self._accumulator = Accumulator(options, self._senders, TimerdDeadlines(purgatory, prefix, self._told), random)
        self._lock = threading.Lock()  # of the accumulator
        self._stopping = False
        self.pending = 0  # offered and taken in, and not given out by take()
        self._thread = threading.Thread(target=self._run, name="timerd-courier", daemon=True)
        self._thread.start()

    def offer(
        self, records: Sequence[Any], lanes: Sequence[Hashable] | None = None, sizes: Sequence[int] | None = None
    ) -> int:
        """Take in as many of the records, from the first on, as there is room for; how many. Does not wait.

        Raises PayloadTooLargeError for one that is larger than the buffer, and ClosedError: then none is taken.
        """
        taken = 0
        self._accumulator.refuse_larger(max(() if sizes is None else sizes, default=0))
        try:
            with self._lock:
                now_ns = self._now_ns()
                try:
                    for record in records:
                        self._accumulator.append(
                            record,
                            now_ns,
                            lane=None if lanes is None else lanes[taken],
                            size=0 if sizes is None else sizes[taken],
                        )
                        taken += 1
                except BackpressureError:
                    pass
                finally:
                    self.pending += taken
        finally:
            self._news.put(_look)
        return taken

    def take(self, timeout: float | None = None) -> list[Delivery]:
        """What has ended since; waits for the first, `timeout` seconds at most (None: as long as it takes).

        Raises what has ended the courier's thread, if something has, when what ended before that has been given.
        """
        deliveries: list[Delivery] = []
        try:
            deliveries += self._ended.get(timeout=timeout if self._broken is None else 0)
            while True:
                deliveries += self._ended.get_nowait()
        except Empty:
            pass
        self.pending -= len(deliveries)
        if self._broken is not None and not deliveries:
            raise self._broken
        return deliveries

    def close(self) -> None:
        """No more is offered: what is there is sent without lingering. Does not wait."""
        with self._lock:
            self._accumulator.close()
        self._news.put(_look)

    def stop(self) -> None:
        """End the threads that can be ended; what has not ended never will. Waits for no send."""
        self._stopping = True
        self._news.put(None)
        self._thread.join()
        self._senders.stop()

    # in the courier's thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._drive()
        except BaseException as error:  # who takes is told; it would wait for ever
            self._broken = error
            self._ended.put([])

    def _drive(self) -> None:
        due_ns = 0
        while not self._stopping:
            wait_s = IDLE_S if due_ns == NEVER else min(max(0.0, (due_ns - self._now_ns()) / S), IDLE_S)
            try:
                news: list[Callable[[int], None] | None] = [self._news.get(timeout=wait_s)]
                while not self._news.empty():
                    news.append(self._news.get_nowait())
            except Empty:
                news = []
            with self._lock:
                now_ns = self._now_ns()
                for happened in news:
                    if happened is not None:
                        happened(now_ns)
                self._accumulator.poll(now_ns)
                due_ns = self._accumulator.due_ns()
                ended = self._accumulator.take()
            if ended:
                self._ended.put(ended)

    # in others ----------------------------------------------------------------------------------------------------

    def _sent(self, attempt: Attempt, error: BaseException | None) -> None:
        retriable, said = True, None
        if error is not None:
            try:
                retriable, said = isinstance(error, Exception) and self._retriable(error), text_of(error)
            except BaseException as worse:  # of the user's code: it must not end the sender's thread
                retriable, said = False, f"{type(error).__name__}, and {type(worse).__name__} when it was looked at"

        def happened(now_ns: int) -> None:
            self._senders.returned()
            self._accumulator.finished(attempt, now_ns, said, retriable=retriable)

        self._news.put(happened)

    def _told(self, batch: Batch, outcome: DeliveryOutcome | None) -> None:
        self._news.put(lambda now_ns: self._accumulator.ended(batch, outcome, now_ns))


def _look(_now_ns: int) -> None:
    """There is something new in the accumulator."""
