"""KIP-91 as an accumulator without I/O: each record is delivered, failed or expired within delivery_timeout.

Records enter an open batch of their *lane* (Kafka's partition). A batch is ready when it is full or `linger` is over;
it is sent, and sent again after errors that a retry may cure, until it is delivered, fails, or its deadline has come.
The deadline counts from the batch's first record and covers batching, waiting, retries and what is in flight; the
request timeout bounds one attempt. A batch takes records for `linger` only, so a record has delivery_timeout - linger
at least (Kafka's takes them until it is sent, which leaves the last ones what is left).

Order: the records of a lane are sent in order. One batch of it is under way at a time; a batch that is tried again
goes to the front; and while an attempt whose batch has expired is still under way, the lane waits for it, for the
request timeout at most. What is in no lane (None) has no order and waits for nobody.

Who decides: `Deadlines`, if there are some. They hold each batch's deadline elsewhere (timerd: courier.py), so that
it comes whatever this process is stuck in, and what was found out here is a *claim* that they confirm or refuse: that
is one arbiter, so nobody is told "expired" of what others were told is delivered. If they say nothing for their grace
after the deadline, the clock decides.

Sources: KIP-91; KIP-19 (batches and linger), KIP-580 (exponential backoff with jitter). Times are ns of one monotonic
clock, which is passed in.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Any, Final, NamedTuple, Protocol

from timerd_shm.declare.errors import BackpressureError, ClosedError, InvalidValueError, PayloadTooLargeError
from timerd_shm.declare.limits import TIMEOUT_NS_MAX

NEVER: Final = (1 << 63) - 1
MS: Final = 1_000_000
S: Final = 1_000_000_000
JITTER: Final = 0.2  # a backoff is drawn from within so much of it, up and down


class DeliveryOutcome(Enum):
    """How the delivery of a record ended."""

    DELIVERED = "delivered"
    FAILED = "failed"
    EXPIRED = "expired"


class DeliveryTimeoutTooShortError(InvalidValueError):
    """delivery_timeout < linger + request_timeout: no attempt would have its whole time. Give more, or those less."""


class RetriableError(Exception):
    """What a send may raise to be tried again, whatever the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryOptions:
    """Times in ns; the defaults are Kafka's where it has them. Raises InvalidValueError and its kin."""

    delivery_timeout_ns: int = 120 * S
    request_timeout_ns: int = 30 * S
    linger_ns: int = 5 * MS
    batch_size: int = 500  # records
    batch_bytes: int = 1 << 20
    max_in_flight: int = 8  # batches, over all lanes
    retries: int | None = None  # after the first attempt; None: until the deadline
    retry_backoff_ns: int = 100 * MS  # doubles with each attempt
    retry_backoff_max_ns: int = 1 * S
    buffer_records: int = 10_000  # in the accumulator, in flight included
    buffer_bytes: int = 32 << 20

    def __post_init__(self) -> None:
        for name, smallest in _SMALLEST.items():
            value = getattr(self, name)
            if name == "retries" and value is None:
                continue
            largest = TIMEOUT_NS_MAX if name.endswith("_ns") else NEVER
            if type(value) is not int or not smallest <= value <= largest:
                raise InvalidValueError(f"{name}={value!r}: an int from {smallest} to {largest}")
        least_ns = self.linger_ns + self.request_timeout_ns
        if self.delivery_timeout_ns < least_ns:
            raise DeliveryTimeoutTooShortError(
                f"delivery_timeout={_seconds(self.delivery_timeout_ns)} < linger={_seconds(self.linger_ns)} + "
                f"request_timeout={_seconds(self.request_timeout_ns)}: give a delivery_timeout of "
                f"{_seconds(least_ns)} at least, or a shorter request_timeout"
            )
        if self.retry_backoff_max_ns < self.retry_backoff_ns:
            raise InvalidValueError(
                f"retry_backoff_max={_seconds(self.retry_backoff_max_ns)} < "
                f"retry_backoff={_seconds(self.retry_backoff_ns)}: give no less"
            )


_SMALLEST = {
    "delivery_timeout_ns": 1,
    "request_timeout_ns": 1,
    "linger_ns": 0,
    "batch_size": 1,
    "batch_bytes": 1,
    "max_in_flight": 1,
    "retries": 0,
    "retry_backoff_ns": 0,
    "retry_backoff_max_ns": 0,
    "buffer_records": 1,
    "buffer_bytes": 1,
}


def _seconds(ns: int) -> str:
    return f"{ns / S:g} s"


class Delivery(NamedTuple):
    """The end of one record."""

    record: Any
    outcome: DeliveryOutcome
    attempts: int  # that were begun
    latency_ns: int  # since it entered the accumulator
    error: str | None  # the last one; None if it was delivered


class Batch:
    """Records that are sent together, and end together."""

    __slots__ = (
        "_entered",
        "attempts",
        "claimed",
        "deadline_ns",
        "ended",
        "error",
        "held",
        "lane",
        "number",
        "opened_ns",
        "records",
        "sealed",
        "size",
        "wait_until_ns",
    )

    def __init__(self, number: int, lane: _Lane, now_ns: int, deadline_ns: int) -> None:
        self.number = number  # from 1, in order of opening
        self.lane = lane
        self.opened_ns = now_ns
        self.deadline_ns = deadline_ns
        self.records: list[Any] = []
        self.size = 0
        self.attempts = 0
        self.error: str | None = None
        self.sealed = False  # takes no more records
        self.wait_until_ns = now_ns  # not tried again before
        self.held = False  # its deadline is held elsewhere
        self.claimed: DeliveryOutcome | None = None  # what was found out here
        self.ended = False
        self._entered: list[int] = []  # ns, of each record

    def add(self, record: Any, size: int, now_ns: int) -> None:
        """One more record."""
        self.records.append(record)
        self._entered.append(now_ns)
        self.size += size

    def end(self, outcome: DeliveryOutcome, now_ns: int) -> list[Delivery]:
        """The end of each of its records, which are let go of."""
        error = None if outcome is DeliveryOutcome.DELIVERED else self.error
        deliveries = [
            Delivery(record, outcome, self.attempts, now_ns - entered_ns, error)
            for record, entered_ns in zip(self.records, self._entered, strict=True)
        ]
        self.ended = True
        self.records, self._entered = [], []
        return deliveries


class Attempt:
    """One sending of a batch."""

    __slots__ = ("batch", "deadline_ns", "number", "records")

    def __init__(self, batch: Batch, now_ns: int, request_timeout_ns: int) -> None:
        self.batch = batch
        self.number = batch.attempts  # from 1
        self.records: Sequence[Any] = batch.records
        self.deadline_ns = now_ns + request_timeout_ns


class Transport(Protocol):
    """Who sends."""

    def room(self) -> int:
        """How many attempts could be begun now."""

    def send(self, attempt: Attempt) -> None:
        """Begin an attempt, without waiting; `Accumulator.finished` is called for it later, never from here."""

    def abandon(self, attempt: Attempt) -> None:
        """Its request timeout is over: nobody waits for it any more."""


class Deadlines(Protocol):
    """Who holds the deadlines of batches and says how each ended, by `Accumulator.ended`, later and never from here."""

    grace_ns: int  # after the deadline, in which their word is waited for

    def hold(self, batch: Batch) -> bool:
        """From now to its deadline; then it has expired. False if that cannot be: then the clock decides."""

    def claim(self, batch: Batch, outcome: DeliveryOutcome) -> bool:
        """It has ended so, unless it has expired. False if they cannot say."""


class _Lane:
    """Batches in order, of which one at a time is under way if `ordered`."""

    __slots__ = ("busy", "key", "open", "ordered", "queue")

    def __init__(self, key: Hashable, *, ordered: bool) -> None:
        self.key = key
        self.ordered = ordered
        self.queue: deque[Batch] = deque()  # not under way; the last may be open
        self.open: Batch | None = None
        self.busy: Attempt | None = None  # what an ordered lane waits for

    def head(self, now_ns: int) -> Batch | None:
        """The first that has not ended, and where there is no order is not past its deadline: that is sent no more."""
        queue = self.queue
        while queue and (queue[0].ended or (not self.ordered and queue[0].deadline_ns <= now_ns)):
            queue.popleft()
        return queue[0] if queue else None


class Accumulator:
    """See the module. One thread at a time calls it; nothing in it blocks."""

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
        self._lanes: dict[Hashable, _Lane] = {}
        self._number = 0
        self._live: OrderedDict[int, Batch] = OrderedDict()  # by number: deadlines in order
        self._overdue: OrderedDict[int, Batch] = OrderedDict()  # past the deadline, without a word of who holds it
        self._in_flight: OrderedDict[Attempt, None] = OrderedDict()  # request deadlines in order
        self._wakes: list[tuple[int, int, _Lane]] = []  # a heap: when a lane may be ready (linger, backoff)
        self._wake_number = 0
        self._candidates: OrderedDict[_Lane, None] = OrderedDict()  # lanes that may be ready
        self._ended: list[Delivery] = []
        self._closed = False
        self.records = 0  # that have not ended
        self.size = 0  # of those, bytes

    # what goes in -------------------------------------------------------------------------------------------------

    def append(self, record: Any, now_ns: int, *, lane: Hashable = None, size: int = 0) -> None:
        """A record of `size` bytes enters; its time begins.

        Raises BackpressureError when the accumulator is full (what is open is then sent without lingering; try again
        when something has ended), PayloadTooLargeError for a record that would never fit, ClosedError.
        """
        options = self._options
        if self._closed:
            raise ClosedError("the accumulator is closed: it takes no more records")
        self.refuse_larger(size)
        if self.records >= options.buffer_records or self.size + size > options.buffer_bytes:
            self.flush()
            raise BackpressureError(
                f"the accumulator holds {self.records} of {options.buffer_records} records, {self.size} of "
                f"{options.buffer_bytes} bytes: wait until some have ended"
            )
        line = self._lanes.get(lane)
        if line is None:
            line = self._lanes[lane] = _Lane(lane, ordered=lane is not None)
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
        """Raises PayloadTooLargeError for a record of so many bytes, if it would never fit."""
        if size > self._options.buffer_bytes:
            raise PayloadTooLargeError(
                f"a record of {size} bytes; buffer_bytes={self._options.buffer_bytes}: give more"
            )

    def flush(self) -> None:
        """What is in the accumulator is sent without lingering."""
        for lane in self._lanes.values():
            if lane.open is not None:
                self._seal(lane.open)

    def close(self) -> None:
        """No more records come; those that are there end as they would."""
        self._closed = True
        self.flush()

    def _open(self, lane: _Lane, now_ns: int) -> Batch:
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

    def _wake_at(self, when_ns: int, lane: _Lane) -> None:
        self._wake_number += 1
        heapq.heappush(self._wakes, (when_ns, self._wake_number, lane))

    # what time brings ---------------------------------------------------------------------------------------------

    def due_ns(self) -> int:
        """When poll() has something to do, if nothing happens before."""
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
        """Do what is due: deadlines first, then attempts that take too long, then what is to be sent."""
        self._pass_deadlines(now_ns)
        while self._in_flight and (attempt := next(iter(self._in_flight))).deadline_ns <= now_ns:
            self._transport.abandon(attempt)
            took = _seconds(self._options.request_timeout_ns)
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
                self._end_by_clock(batch, now_ns)
        while self._overdue:
            batch = next(iter(self._overdue.values()))
            if batch.deadline_ns + self._grace_ns > now_ns:
                return
            self._end_by_clock(batch, now_ns)

    def _send_ready(self, now_ns: int) -> None:
        candidates = self._candidates
        room = min(self._options.max_in_flight - len(self._in_flight), self._transport.room())
        while candidates and room > 0:
            lane = candidates.popitem(last=False)[0]
            batch = lane.head(now_ns)
            if batch is None:
                self._let_go(lane)
                continue
            if not self._is_ready(batch, now_ns) or lane.busy is not None:
                continue  # what it waits for makes it a candidate again
            lane.queue.popleft()
            self._send(batch, now_ns)
            room -= 1
            if lane.queue and lane.busy is None:
                candidates[lane] = None  # behind the others

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

    def _let_go(self, lane: _Lane) -> None:
        """A lane that holds nothing is forgotten; it is made again."""
        if lane.busy is None and not lane.queue and self._lanes.get(lane.key) is lane:
            del self._lanes[lane.key]

    # what others say ----------------------------------------------------------------------------------------------

    def finished(self, attempt: Attempt, now_ns: int, error: str | None = None, *, retriable: bool = True) -> None:
        """An attempt has ended, by an error if there is one; nothing if it was given up before."""
        if attempt not in self._in_flight:
            return
        del self._in_flight[attempt]
        batch, lane = attempt.batch, attempt.batch.lane
        lane.busy = None  # an ordered one has no other attempt under way
        self._candidates[lane] = None
        if batch.ended:
            return
        if error is not None:
            batch.error = error
        if now_ns >= batch.deadline_ns:
            return  # it has expired, and who holds its deadline will say so
        if error is None:
            self._claim(batch, DeliveryOutcome.DELIVERED, now_ns)
        elif not retriable or (self._options.retries is not None and attempt.number > self._options.retries):
            self._claim(batch, DeliveryOutcome.FAILED, now_ns)
        else:
            self._try_again(batch, now_ns)

    def _try_again(self, batch: Batch, now_ns: int) -> None:
        lane = batch.lane
        if not lane.ordered:  # the others do not wait for it
            lane = batch.lane = _Lane(None, ordered=False)
        lane.queue.appendleft(batch)
        options = self._options
        backoff_ns = min(options.retry_backoff_ns << min(batch.attempts - 1, 30), options.retry_backoff_max_ns)
        batch.wait_until_ns = now_ns + round(backoff_ns * self._random.uniform(1 - JITTER, 1 + JITTER))
        self._wake_at(batch.wait_until_ns, lane)

    def _claim(self, batch: Batch, outcome: DeliveryOutcome, now_ns: int) -> None:
        batch.claimed = outcome
        if not batch.held or self._deadlines is None or not self._deadlines.claim(batch, outcome):
            self._end(batch, outcome, now_ns)

    def ended(self, batch: Batch, outcome: DeliveryOutcome | None, now_ns: int) -> None:
        """The word of who holds the deadline: it has ended so. None: they do not know, so the clock decides."""
        if batch.ended:
            return
        if outcome is not None:
            self._end(batch, outcome, now_ns)
            return
        batch.held = False
        if batch.claimed is not None or batch.number in self._overdue:
            self._end_by_clock(batch, now_ns)

    def _end_by_clock(self, batch: Batch, now_ns: int) -> None:
        self._end(batch, batch.claimed or DeliveryOutcome.EXPIRED, now_ns)

    def _end(self, batch: Batch, outcome: DeliveryOutcome, now_ns: int) -> None:
        self._live.pop(batch.number, None)
        self._overdue.pop(batch.number, None)
        if outcome is DeliveryOutcome.EXPIRED:
            batch.error = self._why_expired(batch)
        if batch.lane.open is batch:
            batch.lane.open = None
        self.records -= len(batch.records)
        self.size -= batch.size
        self._ended += batch.end(outcome, now_ns)
        self._candidates[batch.lane] = None

    def _why_expired(self, batch: Batch) -> str:
        said = f"delivery_timeout={_seconds(self._options.delivery_timeout_ns)} is over after {batch.attempts} attempts"
        return f"{said}; the last error: {batch.error}" if batch.error is not None else said

    # what comes out -----------------------------------------------------------------------------------------------

    @property
    def has_ended(self) -> bool:
        """Whether take() would give something."""
        return bool(self._ended)

    def take(self) -> list[Delivery]:
        """The records that have ended since the last call, in that order."""
        ended, self._ended = self._ended, []
        return ended
