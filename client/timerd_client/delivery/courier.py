"""The courier: an accumulator, the thread that drives it, threads that send, and deadlines that timerd holds.

courier = Courier(client, post, options)            # post(attempt) delivers attempt.records, or raises
taken = courier.offer(records, lanes, sizes)        # the number of records that had room
for delivery in courier.take(timeout=1.0): ...      # records that have settled
courier.close(); courier.stop()
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from queue import Empty, SimpleQueue
from random import Random
from typing import Any, Final

from timerd_client.link.operation import ThreadedOperation
from timerd_client.link.surface import Surface
from timerd_client.waits.slices import SlicedQueue
from timerd_shm.declare.errors import BackpressureError

from .accumulator import Accumulator
from .batch import Attempt, Batch, Delivery, DeliveryOutcome
from .deadlines import TimerdDeadlines
from .errors import Retriable, is_retriable, judged
from .options import NEVER, DeliveryOptions, S
from .senders import Ready, Send, Senders, always_ready

IDLE_S: Final = 60.0


class Courier:
    """Delivers records. take() returns each record that offer() took in, when the record has settled.

    One thread at a time may call offer(), and one take(). `pending` is exact if the same thread calls both.
    """

    def __init__(
        self,
        purgatory: Surface[ThreadedOperation, Any],
        send: Send,
        options: DeliveryOptions,
        *,
        prefix: str,
        retriable: Retriable = is_retriable,
        random: Random | None = None,
        ready: Ready = always_ready,
        settled: Callable[[list[Delivery]], object] | None = None,
    ) -> None:
        """`send(attempt)` runs in several threads; `prefix` distinguishes this courier's batches from other clients'.

        `ready(lane)` says whether a lane can be sent; it is called with the accumulator's lock held. If `settled` is
        given, the courier's thread calls it with the deliveries, and take() returns none. After wake(), and after an
        error that has ended the courier's thread, `settled` is also called without deliveries (an empty list).
        """
        self._now_ns = purgatory._link.now_ns
        self._retriable = retriable
        # Functions that the courier's thread calls. Any thread puts them in, and never blocks.
        self._work: SimpleQueue[Callable[[int], None] | None] = SimpleQueue()
        self._decided: deque[tuple[Batch, DeliveryOutcome | None]] = deque()  # batches whose operations have settled
        self._is_told = False  # a wake-up for `_decided` is under way
        self._deliveries: SimpleQueue[list[Delivery]] = SlicedQueue()
        self._settled_call = settled or self._deliveries.put
        self._woken = False
        self.broken: BaseException | None = None  # the error that has ended the courier's thread
        self._senders = Senders(send, options.max_in_flight, self._sent, ready)
        self._accumulator = Accumulator(
            options, self._senders, TimerdDeadlines(purgatory, prefix, self._settled), random
        )
        self._lock = threading.Lock()  # guards the accumulator
        self._stopping = False
        self.pending = 0  # records that were taken in, and not returned by take()
        self._thread = threading.Thread(target=self._run, name="timerd-courier", daemon=True)
        self._thread.start()

    def offer(
        self, records: Sequence[Any], lanes: Sequence[Hashable] | None = None, sizes: Sequence[int] | None = None
    ) -> int:
        """Take in the first records, as many as there is room for. Returns how many were taken. Does not wait.

        Raises PayloadTooLargeError if a record is larger than the buffer, and ClosedError; then no record is taken.
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
            self._work.put(_look)
        return taken

    def take(self, timeout: float | None = None) -> list[Delivery]:
        """Records that settled since the last call. Waits for one or for wake(), `timeout` s at most (None: no limit).

        If an error has ended the courier's thread, take() returns all settled records first, and raises the error then.
        """
        deliveries: list[Delivery] = []
        try:
            deliveries += self._deliveries.get(timeout=timeout if self.broken is None else 0)
            while True:
                deliveries += self._deliveries.get_nowait()
        except Empty:
            pass
        self.pending -= len(deliveries)
        if self.broken is not None and not deliveries:
            raise self.broken
        return deliveries

    def wake(self) -> None:
        """A lane may have become ready: call `ready` again for each lane that waits. Returns at once; takes no lock."""
        self._work.put(self._wake)

    def _wake(self, _now_ns: int) -> None:
        self._woken = True
        self._accumulator.wake()

    def flush(self) -> None:
        """Send the present records without lingering. Does not wait."""
        with self._lock:
            self._accumulator.flush()
        self._work.put(_look)

    def close(self) -> None:
        """Take no more records, and send the present records without lingering. Does not wait."""
        with self._lock:
            self._accumulator.close()
        self._work.put(_look)

    def give_up(self, why: str) -> None:
        """Settle the remaining records at once, as failed because of `why`. Does not wait."""
        self._work.put(lambda now_ns: self._accumulator.give_up(why, now_ns))

    @property
    def in_own_thread(self) -> bool:
        """Whether this is the courier's thread."""
        return threading.current_thread() is self._thread

    def stop(self) -> None:
        """End all threads except those in a send. Records that have not settled never settle."""
        self._stopping = True
        self._work.put(None)
        self._thread.join()
        self._senders.stop()

    # in the courier's thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._drive()
        except BaseException as error:  # take() raises this error; else take() would wait without end
            self.broken = error
            self._settled_call([])

    def _drive(self) -> None:
        due_ns = 0
        while not self._stopping:
            wait_s = IDLE_S if due_ns == NEVER else min(max(0.0, (due_ns - self._now_ns()) / S), IDLE_S)
            try:
                work: list[Callable[[int], None] | None] = [self._work.get(timeout=wait_s)]
                while not self._work.empty():
                    work.append(self._work.get_nowait())
            except Empty:
                work = []
            with self._lock:
                now_ns = self._now_ns()
                for happened in work:
                    if happened is not None:
                        happened(now_ns)
                self._accumulator.poll(now_ns)
                due_ns = self._accumulator.due_ns()
                deliveries = self._accumulator.take()
            if deliveries or self._woken:
                self._woken = False
                self._settled_call(deliveries)

    def _take_decided(self, now_ns: int) -> None:
        self._is_told = False  # set first, so that a later decision wakes this thread again
        while self._decided:
            self._accumulator.settled(*self._decided.popleft(), now_ns)

    # in other threads ---------------------------------------------------------------------------------------------

    def _sent(self, attempt: Attempt, error: BaseException | None) -> None:
        text, retriable = judged(error, self._retriable)

        def happened(now_ns: int) -> None:
            if self._senders.returned(attempt):
                self._accumulator.wake()
            self._accumulator.finished(attempt, now_ns, text, retriable=retriable)

        self._work.put(happened)

    def _settled(self, batch: Batch, outcome: DeliveryOutcome | None) -> None:
        # After a pause of the process hundreds of batches settle together: one wake-up serves all that come meanwhile.
        self._decided.append((batch, outcome))
        if not self._is_told:
            self._is_told = True
            self._work.put(self._take_decided)


def _look(_now_ns: int) -> None:
    """Do nothing: this entry wakes the courier's thread, because the accumulator has changed."""
