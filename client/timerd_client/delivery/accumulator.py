"""KIP-91 as an accumulator without I/O: each record is delivered, failed or expired within delivery_timeout.

Records enter an open batch of their *lane* (Kafka's partition). A batch is ready when it is full, or `linger` after its
first record. The batch is sent, and sent again after errors that a retry may cure, until it is delivered, fails, or its
deadline has come. The deadline counts from the batch's first record, and covers batching, waiting, retries and attempts
in flight; the request timeout bounds one attempt. A batch takes records for `linger` only, so each record has at least
delivery_timeout - linger. (Kafka's batches take records until they are sent, so the last records have less time.)

The transport says whether a lane can be sent: while its `ready(lane)` is false, even the lane's ready batches wait in
the accumulator.

Order: the records of a lane are sent in order. One batch of a lane is under way at a time, and a batch that is tried
again goes to the front. If a batch expires during an attempt, the lane waits until the attempt ends (the request
timeout at most), and until the expiry is certain. Records without a lane (None) have no order, and wait for no other
record.

Deadlines: a `Deadlines` object, if there is one, alone decides how a batch settles. It holds each batch's deadline
elsewhere (deadlines.py: in timerd), so a deadline passes even when this process is stuck. The result of an attempt is
then a *claim*, which the Deadlines accepts or refuses. Because one object decides, no batch can be expired for one
process and delivered for another. If there is no decision within the grace after the deadline, the clock here decides.

Sources: KIP-91; KIP-19 (batches and linger), KIP-580 (exponential backoff with jitter). Times are ns of one monotonic
clock, which is passed in.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Hashable
from random import Random
from typing import Any, Final, Protocol

from timerd_shm.declare.errors import BackpressureError, ClosedError, InvalidValueError, PayloadTooLargeError

from .batch import Attempt, Batch, Delivery, DeliveryOutcome, Lane
from .options import NEVER, DeliveryOptions, seconds

LOOK_AGAIN_NS: Final = 1_000_000  # the least time until the transport is asked again for a lane that is not ready
JITTER: Final = 0.2  # a backoff varies at random by this share, up and down


class Transport(Protocol):
    """Sends batches."""

    def room(self) -> int:
        """How many attempts could be begun now."""

    def ready(self, lane: Hashable) -> bool:
        """Whether the lane can be sent now. If not, this is called again after `retry_backoff`, and at wake()."""

    def why(self, lane: Hashable) -> str:
        """Why the lane could not be sent, for the error of an expired record."""

    def send(self, attempt: Attempt) -> None:
        """Begin an attempt, without waiting. `Accumulator.finished` is called later, never from this method."""

    def abandon(self, attempt: Attempt) -> None:
        """The attempt's request timeout is over: the accumulator no longer waits for its result."""


class Deadlines(Protocol):
    """Holds the deadlines of batches. Calls `Accumulator.settled` for each batch: later, never from its own methods."""

    grace_ns: int  # after the deadline, the accumulator waits this long for the decision

    def hold(self, batch: Batch) -> bool:
        """Hold the deadline of the batch. Returns False if this is not possible: then the clock decides."""

    def claim(self, batch: Batch, outcome: DeliveryOutcome) -> bool:
        """Claim that the batch has settled with `outcome`, unless it has expired. False if this cannot be decided."""


class Accumulator:
    """See the module's docstring. One thread at a time may call the methods. No method blocks."""

    def __init__(
        self,
        options: DeliveryOptions,
        transport: Transport,
        deadlines: Deadlines | None = None,
        random: Random | None = None,
    ) -> None:
        """`random` draws the jitter of the backoff."""
        self._options = options
        self._transport = transport
        self._deadlines = deadlines
        self._random = random if random is not None else Random()
        self._lanes: dict[Hashable, Lane] = {}
        self._number = 0
        self._live: OrderedDict[int, Batch] = OrderedDict()  # by number: deadlines in order
        self._overdue: OrderedDict[int, Batch] = OrderedDict()  # past the deadline; `Deadlines` has not decided
        self._in_flight: OrderedDict[Attempt, None] = OrderedDict()  # request deadlines in order
        self._wakes: list[tuple[int, int, Lane]] = []  # a heap: when a lane may be ready (linger, backoff)
        self._wake_number = 0
        self._candidates: OrderedDict[Lane, None] = OrderedDict()  # lanes that may be ready
        self._unready: dict[Lane, int] = {}  # lanes with a batch that could not be sent: when to ask again
        self._deliveries: list[Delivery] = []
        self._closed = False
        self.records = 0  # records that have not settled
        self.size = 0  # bytes of these records

    # input --------------------------------------------------------------------------------------------------------

    def append(self, record: Any, now_ns: int, *, lane: Hashable = None, size: int = 0) -> None:
        """Take in a record of `size` bytes. The record's time begins now.

        Raises BackpressureError if the accumulator is full: then open batches are sent without lingering; try again
        when a record has settled. Raises PayloadTooLargeError for a record that would never fit, and ClosedError.
        """
        options = self._options
        if self._closed:
            raise ClosedError("the accumulator is closed: it takes no more records")
        self.refuse_larger(size)
        if self.records >= options.buffer_records or self.size + size > options.buffer_bytes:
            self.flush()
            raise BackpressureError(
                f"the accumulator holds {self.records} of {options.buffer_records} records, {self.size} of "
                f"{options.buffer_bytes} bytes: wait until some have settled"
            )
        line = self._lanes.get(lane)
        if line is None:
            line = self._lanes[lane] = Lane(lane, ordered=lane is not None)
        batch = line.open
        if batch is not None and (
            batch.sealed or now_ns > batch.opened_ns + options.linger_ns or batch.size + size > options.batch_bytes
        ):
            self._seal(batch)
            batch = None
        if batch is None:
            batch = self._open(line, now_ns)
        batch.add(record, size, now_ns)
        self.records += 1
        self.size += size
        if len(batch.records) >= options.batch_size or batch.size >= options.batch_bytes:
            self._seal(batch)

    def refuse_larger(self, size: int) -> None:
        """Raises PayloadTooLargeError if a record of `size` bytes would never fit, and InvalidValueError."""
        if type(size) is not int or size < 0:
            raise InvalidValueError(f"size={size!r}: give the bytes of the record, an int from 0")
        if size > self._options.buffer_bytes:
            raise PayloadTooLargeError(
                f"a record of {size} bytes; buffer_bytes={self._options.buffer_bytes}: give more"
            )

    def flush(self) -> None:
        """Send the open batches without lingering."""
        for lane in self._lanes.values():
            if lane.open is not None:
                self._seal(lane.open)

    def close(self) -> None:
        """Take no more records. Present records settle as usual, without lingering."""
        self._closed = True
        self.flush()

    def give_up(self, why: str, now_ns: int) -> None:
        """Settle all remaining batches at once: claimed batches as claimed, the others as failed because of `why`."""
        for batch in [*self._overdue.values(), *self._live.values()]:
            if batch.claimed is None:
                batch.error = why if batch.error is None else f"{why}; the last error: {batch.error}"
                if batch.held and self._deadlines is not None:
                    self._deadlines.claim(batch, DeliveryOutcome.FAILED)  # nobody waits for the answer
            self._settle(batch, batch.claimed or DeliveryOutcome.FAILED, now_ns)

    def _open(self, lane: Lane, now_ns: int) -> Batch:
        self._number += 1
        batch = Batch(self._number, lane, now_ns, now_ns + self._options.delivery_timeout_ns)
        lane.queue.append(batch)
        lane.open = batch
        self._live[batch.number] = batch
        self._wake_at(now_ns + self._options.linger_ns, lane)
        if self._deadlines is not None:
            batch.held = self._deadlines.hold(batch)
        return batch

    def _seal(self, batch: Batch) -> None:
        batch.sealed = True
        if batch.lane.open is batch:
            batch.lane.open = None
        self._candidates[batch.lane] = None

    def _wake_at(self, when_ns: int, lane: Lane) -> None:
        self._wake_number += 1
        heapq.heappush(self._wakes, (when_ns, self._wake_number, lane))

    # time ---------------------------------------------------------------------------------------------------------

    def due_ns(self) -> int:
        """When poll() will have something to do, unless something happens earlier."""
        due_ns = NEVER
        if self._live:
            due_ns = next(iter(self._live.values())).deadline_ns
        if self._overdue:
            due_ns = min(due_ns, next(iter(self._overdue.values())).deadline_ns + self._grace_ns)
        if self._in_flight:
            due_ns = min(due_ns, next(iter(self._in_flight)).deadline_ns)
        if self._wakes:
            due_ns = min(due_ns, self._wakes[0][0])
        return due_ns

    @property
    def _grace_ns(self) -> int:
        return self._deadlines.grace_ns if self._deadlines is not None else 0

    def poll(self, now_ns: int) -> None:
        """Do what is due: deadlines first, then attempts that take too long, then batches that are ready."""
        self._pass_deadlines(now_ns)
        while self._in_flight and (attempt := next(iter(self._in_flight))).deadline_ns <= now_ns:
            self._transport.abandon(attempt)
            took = seconds(self._options.request_timeout_ns)
            self.finished(attempt, now_ns, f"attempt {attempt.number} took longer than request_timeout={took}")
        while self._wakes and self._wakes[0][0] <= now_ns:
            self._candidates[heapq.heappop(self._wakes)[2]] = None
        self._send_ready(now_ns)

    def _pass_deadlines(self, now_ns: int) -> None:
        while self._live and (batch := next(iter(self._live.values()))).deadline_ns <= now_ns:
            del self._live[batch.number]
            if batch.held:
                self._overdue[batch.number] = batch
            else:
                self._settle_by_clock(batch, now_ns)
        while self._overdue:
            batch = next(iter(self._overdue.values()))
            if batch.deadline_ns + self._grace_ns > now_ns:
                return
            self._settle_by_clock(batch, now_ns)

    def _send_ready(self, now_ns: int) -> None:
        candidates = self._candidates
        room = self._room()
        while candidates and room > 0:
            lane = candidates.popitem(last=False)[0]
            batch = lane.head(now_ns)
            if batch is None:
                self._let_go(lane)
                continue
            if not self._is_ready(batch, now_ns) or lane.busy is not None:
                continue  # the lane becomes a candidate again when it may be ready
            if not self._transport.ready(batch.key):
                if self._unready.get(lane, now_ns) <= now_ns:  # otherwise its wake-up is set already
                    again_ns = self._unready[lane] = now_ns + max(self._options.retry_backoff_ns, LOOK_AGAIN_NS)
                    self._wake_at(again_ns, lane)
                continue
            self._unready.pop(lane, None)
            lane.queue.popleft()
            self._send(batch, now_ns)
            room -= 1
            if lane.queue and lane.busy is None:
                candidates[lane] = None  # behind the other lanes

    def _room(self) -> int:
        """How many attempts may be begun."""
        return min(self._options.max_in_flight - len(self._in_flight), self._transport.room())

    def _is_ready(self, batch: Batch, now_ns: int) -> bool:
        if not batch.sealed and now_ns >= batch.opened_ns + self._options.linger_ns:
            self._seal(batch)
            self._candidates.pop(batch.lane, None)
        return batch.sealed and batch.wait_until_ns <= now_ns < batch.deadline_ns

    def _send(self, batch: Batch, now_ns: int) -> None:
        batch.attempts += 1
        attempt = Attempt(batch, now_ns, self._options.request_timeout_ns)
        self._in_flight[attempt] = None
        if batch.lane.ordered:
            batch.lane.busy = attempt
        self._transport.send(attempt)

    def wake(self) -> None:
        """A lane that could not be sent may be ready now: the next poll() asks for each such lane."""
        self._candidates.update(dict.fromkeys(self._unready))

    def _let_go(self, lane: Lane) -> None:
        """Forget an empty lane. The next record of the lane makes a new object for it."""
        self._unready.pop(lane, None)
        if lane.busy is None and not lane.queue and self._lanes.get(lane.key) is lane:
            del self._lanes[lane.key]

    # reports of transport and deadlines ---------------------------------------------------------------------------

    def finished(self, attempt: Attempt, now_ns: int, error: str | None = None, *, retriable: bool = True) -> None:
        """An attempt has ended, perhaps with an error. The call is ignored if the attempt was abandoned before."""
        if attempt not in self._in_flight:
            return
        del self._in_flight[attempt]
        batch, lane = attempt.batch, attempt.batch.lane
        if error is not None and not batch.settled:
            batch.error = error
        if now_ns >= batch.deadline_ns and not batch.settled:
            return  # too late: `Deadlines` or the clock settles the batch soon, and until then the lane waits
        lane.busy = None  # an ordered lane has no other attempt under way
        self._candidates[lane] = None
        if batch.settled:
            return
        if error is None:
            self._claim(batch, DeliveryOutcome.DELIVERED, now_ns)
        elif not retriable or (self._options.retries is not None and attempt.number > self._options.retries):
            self._claim(batch, DeliveryOutcome.FAILED, now_ns)
        else:
            self._try_again(batch, now_ns)

    def _try_again(self, batch: Batch, now_ns: int) -> None:
        lane = batch.lane
        if not lane.ordered:  # other batches do not wait for this one
            lane = batch.lane = Lane(None, ordered=False)
        lane.queue.appendleft(batch)
        options = self._options
        backoff_ns = min(options.retry_backoff_ns << min(batch.attempts - 1, 30), options.retry_backoff_max_ns)
        batch.wait_until_ns = now_ns + round(backoff_ns * self._random.uniform(1 - JITTER, 1 + JITTER))
        self._wake_at(batch.wait_until_ns, lane)

    def _claim(self, batch: Batch, outcome: DeliveryOutcome, now_ns: int) -> None:
        batch.claimed = outcome
        if not batch.held or self._deadlines is None or not self._deadlines.claim(batch, outcome):
            self._settle(batch, outcome, now_ns)

    def settled(self, batch: Batch, outcome: DeliveryOutcome | None, now_ns: int) -> None:
        """`Deadlines` has decided how the batch settles. None: it cannot decide, so the clock decides."""
        if batch.settled:
            return
        if outcome is not None:
            self._settle(batch, outcome, now_ns)
            return
        batch.held = False
        if batch.claimed is not None or batch.number in self._overdue:
            self._settle_by_clock(batch, now_ns)

    def _settle_by_clock(self, batch: Batch, now_ns: int) -> None:
        self._settle(batch, batch.claimed or DeliveryOutcome.EXPIRED, now_ns)

    def _settle(self, batch: Batch, outcome: DeliveryOutcome, now_ns: int) -> None:
        self._live.pop(batch.number, None)
        self._overdue.pop(batch.number, None)
        if outcome is DeliveryOutcome.EXPIRED:
            batch.error = self._why_expired(batch)
        if batch.lane.open is batch:
            batch.lane.open = None
        self.records -= len(batch.records)
        self.size -= batch.size
        self._deliveries += batch.settle(outcome, now_ns)
        busy = batch.lane.busy
        if busy is not None and busy.batch is batch and busy not in self._in_flight:
            batch.lane.busy = None
        self._candidates[batch.lane] = None

    def _why_expired(self, batch: Batch) -> str:
        text = f"delivery_timeout={seconds(self._options.delivery_timeout_ns)} is over after {batch.attempts} attempts"
        if batch.error is not None:
            return f"{text}; the last error: {batch.error}"
        if batch.attempts:
            return text
        if batch.lane in self._unready:
            return f"{text}: {self._transport.why(batch.key)}"
        if self._room() <= 0:
            return f"{text}: all attempts of max_in_flight={self._options.max_in_flight} were in use"
        return text

    # output -------------------------------------------------------------------------------------------------------

    @property
    def has_settled(self) -> bool:
        """Whether take() would return something."""
        return bool(self._deliveries)

    def take(self) -> list[Delivery]:
        """The deliveries of records that have settled since the last call, in the order of their settlement."""
        deliveries, self._deliveries = self._deliveries, []
        return deliveries
