"""The newest batches of each idempotent producer of a partition, so that a batch that is sent twice is kept once.

Source: Kafka, ProducerAppendInfo and ProducerStateEntry; KIP-98. The last five batches of each producer are known, as
in Kafka: a producer has five requests in flight at most.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import NamedTuple

from timerd_kafka.log.batch import Batch

BATCHES_KEPT = 5
PRODUCERS_MAX = 10_000  # of a partition: if there are more, the producer that was quiet for longest is forgotten
SEQUENCES = 2**31  # after the highest sequence comes 0


class OutOfOrder(Exception):
    """A batch is missing before this batch, or this batch is older than all known batches."""


class Fenced(Exception):
    """A producer with the same id and a later epoch has sent since."""


class Sent(NamedTuple):
    """A batch that a producer has sent."""

    first: int
    last: int
    base_offset: int


class _Producer(NamedTuple):
    epoch: int
    sent: deque[Sent]


class Producers:
    """The producers of one partition. A start computes them again from the headers of the log's batches."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, _Producer] = OrderedDict()

    def duplicate_of(self, batch: Batch) -> int | None:
        """The offset at which this batch was appended before; None if it is new. Raises OutOfOrder, Fenced."""
        known = self._known.get(batch.producer_id)
        if known is None:
            return None  # as in Kafka: the batches of a forgotten producer cannot be checked
        if batch.producer_epoch < known.epoch:
            raise Fenced(f"epoch {batch.producer_epoch} of producer {batch.producer_id}, which is at {known.epoch}")
        if batch.producer_epoch > known.epoch:
            if batch.base_sequence != 0:
                raise OutOfOrder(f"epoch {batch.producer_epoch} begins with sequence {batch.base_sequence}, not 0")
            return None
        last = (batch.base_sequence + batch.last_offset_delta) % SEQUENCES
        for sent in known.sent:
            if (sent.first, sent.last) == (batch.base_sequence, last):
                return sent.base_offset
        expected = (known.sent[-1].last + 1) % SEQUENCES
        if batch.base_sequence != expected:
            raise OutOfOrder(f"sequence {batch.base_sequence} of producer {batch.producer_id}: {expected} is next")
        return None

    def add(self, batch: Batch) -> None:
        """Remember a batch that was appended."""
        known = self._known.get(batch.producer_id)
        if known is None or known.epoch != batch.producer_epoch:
            known = self._known[batch.producer_id] = _Producer(batch.producer_epoch, deque(maxlen=BATCHES_KEPT))
        last = (batch.base_sequence + batch.last_offset_delta) % SEQUENCES
        known.sent.append(Sent(batch.base_sequence, last, batch.base_offset))
        self._known.move_to_end(batch.producer_id)
        if len(self._known) > PRODUCERS_MAX:
            self._known.popitem(last=False)
