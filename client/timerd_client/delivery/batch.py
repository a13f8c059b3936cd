"""Batches of records, the attempts to send a batch, and the lanes that keep batches in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from enum import Enum
from typing import Any, NamedTuple


class DeliveryOutcome(Enum):
    """The outcome of a record's delivery."""

    DELIVERED = "delivered"
    FAILED = "failed"
    EXPIRED = "expired"


class Delivery(NamedTuple):
    """The delivery of one record, after it has settled."""

    record: Any
    outcome: DeliveryOutcome
    attempts: int  # attempts that were begun
    latency_ns: int  # from the record's entry into the accumulator until it settled
    error: str | None  # the last error; None if the record was delivered


class Batch:
    """Records that are sent together, and settle together."""

    __slots__ = (
        "_entered",
        "attempts",
        "claimed",
        "deadline_ns",
        "error",
        "held",
        "key",
        "lane",
        "number",
        "opened_ns",
        "records",
        "sealed",
        "settled",
        "size",
        "wait_until_ns",
    )

    def __init__(self, number: int, lane: Lane, now_ns: int, deadline_ns: int) -> None:
        self.number = number  # from 1, in order of opening
        self.lane = lane
        self.key = lane.key
        self.opened_ns = now_ns
        self.deadline_ns = deadline_ns
        self.records: list[Any] = []
        self.size = 0
        self.attempts = 0
        self.error: str | None = None
        self.sealed = False  # takes no more records
        self.wait_until_ns = now_ns  # the batch is not sent before this time
        self.held = False  # `Deadlines` holds the deadline
        self.claimed: DeliveryOutcome | None = None  # the outcome of the attempts, which `Deadlines` has to confirm
        self.settled = False
        self._entered: list[int] = []  # when each record entered, in ns

    def add(self, record: Any, size: int, now_ns: int) -> None:
        """Add a record."""
        self.records.append(record)
        self._entered.append(now_ns)
        self.size += size

    def settle(self, outcome: DeliveryOutcome, now_ns: int) -> list[Delivery]:
        """Settle the batch, and forget its records. Returns the delivery of each record."""
        error = None if outcome is DeliveryOutcome.DELIVERED else self.error
        deliveries = [
            Delivery(record, outcome, self.attempts, now_ns - entered_ns, error)
            for record, entered_ns in zip(self.records, self._entered, strict=True)
        ]
        self.settled = True
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


class Lane:
    """Batches in order. In an `ordered` lane, one batch is under way at a time."""

    __slots__ = ("busy", "key", "open", "ordered", "queue")

    def __init__(self, key: Hashable, *, ordered: bool) -> None:
        self.key = key
        self.ordered = ordered
        self.queue: deque[Batch] = deque()  # the batches that are not under way; the last may be open
        self.open: Batch | None = None
        self.busy: Attempt | None = None  # the attempt that an ordered lane waits for

    def head(self, now_ns: int) -> Batch | None:
        """The first batch that has not settled. A lane that is not `ordered` skips batches past their deadlines."""
        queue = self.queue
        while queue and (queue[0].settled or (not self.ordered and queue[0].deadline_ns <= now_ns)):
            queue.popleft()
        return queue[0] if queue else None
