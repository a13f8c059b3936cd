"""Holds the deadline of each batch as an operation of timerd, so it passes on time even while this process is stuck.

Not here: settling a batch when its deadline passes. The accumulator does that (accumulator.py).

Each batch has an operation with the batch's deadline. The operation's key is fired when the batch was delivered, and
failed when the batch failed. Otherwise the operation expires on time. The operation's outcome is the outcome of the
batch's records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from timerd_client.errors import OperationFailed
from timerd_client.link.operation import Operation
from timerd_client.link.surface import Surface
from timerd_client.outcome import State, state_of
from timerd_client.waits.polling import GRACE_S
from timerd_shm.declare.errors import TimerdError

from .batch import Batch, DeliveryOutcome
from .options import S

Settled = Callable[[Batch, DeliveryOutcome | None], object]


class TimerdDeadlines:
    """An operation for each batch; `settled(batch, outcome)` is called in the client's thread or loop."""

    def __init__(self, purgatory: Surface[Any, Any], prefix: str, settled: Settled) -> None:
        """The keys are PREFIX/NUMBER. No other client may use this prefix."""
        self.grace_ns = round((GRACE_S + 0.5) * S)  # the client gives an operation up GRACE_S after its deadline
        self._purgatory = purgatory
        self._prefix = prefix
        self._settled = settled

    def _key(self, batch: Batch) -> str:
        return f"{self._prefix}/{batch.number}"

    def hold(self, batch: Batch) -> bool:
        left_ns = max(0, batch.deadline_ns - self._purgatory._link.now_ns())
        try:
            # Not the client's orphans policy: a batch is of no use to another process.
            operation = self._purgatory.register(self._key(batch), timeout=left_ns / S, orphans="cancel")
        except TimerdError:
            return False
        operation.add_done_callback(lambda operation: self._settled(batch, outcome_of(operation)))
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
    """The outcome of a batch. None if its operation decides nothing: refused, cancelled, or its end is unknown."""
    settlement = operation._settlement
    assert settlement is not None, f"{operation!r} has not settled"
    state = state_of(settlement)
    if state is State.EXPIRED:
        return DeliveryOutcome.EXPIRED
    if state is State.COMPLETED:
        return DeliveryOutcome.DELIVERED
    return DeliveryOutcome.FAILED if isinstance(operation._outcome().error, OperationFailed) else None
