"""The header of a record batch. What is behind the header, perhaps compressed, is the clients' own.

Source: Kafka, org.apache.kafka.common.record.DefaultRecordBatch (magic 2).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

HEADER = struct.Struct(">qiibIhiqqqhii")
SIZE = HEADER.size  # 61
PLACED = struct.Struct(">qi")  # base offset and length: what a leader, and no producer, decides, and what follows
EPOCH_AT = 12
CRC_FROM = 21  # the check sum is over all from here on: a leader may set the offset and its epoch
MAGIC = 2
LEADER_EPOCH = 0  # there is no election
CODECS = 0b111
CODEC_MAX = 4  # none, gzip, snappy, lz4, zstd
TIMESTAMP_IS_APPEND = 0b1000
TRANSACTIONAL = 0b10000
CONTROL = 0b100000
NO_PRODUCER = -1


class CorruptBatch(Exception):
    """Bytes that are no record batch: cut, of another format, or with a wrong check sum."""


class UnsupportedBatch(Exception):
    """A record batch of an older format, or one of a transaction."""


class Batch(NamedTuple):
    """A record batch, as its header says. Offsets are those of the header; timestamps are in milliseconds."""

    base_offset: int
    size: int  # of the whole batch, in bytes
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int

    @property
    def end_offset(self) -> int:
        """The offset behind its last record."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def is_idempotent(self) -> bool:
        """Whether its producer numbers its records."""
        return self.producer_id != NO_PRODUCER


def read_batches(data: bytes | memoryview, *, check: bool = True) -> Iterator[Batch]:
    """The batches that lie one behind the other in `data`. Raises CorruptBatch where one is damaged or cut.

    `check=False` trusts the check sums.
    """
    view = memoryview(data)
    position = 0
    while position < len(view):
        batch = read_header(view, position)
        if position + batch.size > len(view):
            raise CorruptBatch(f"a batch of {batch.size} bytes is cut after {len(view) - position}")
        if check:
            stated = HEADER.unpack_from(view, position)[4]
            if crc32c(view[position + CRC_FROM : position + batch.size]) != stated:
                raise CorruptBatch("the check sum of a batch is wrong")
        yield batch
        position += batch.size


def read_header(view: bytes | memoryview, position: int) -> Batch:
    """The batch whose header begins there. Raises CorruptBatch, UnsupportedBatch."""
    if len(view) - position >= EPOCH_AT + 5 and view[position + EPOCH_AT + 4] < MAGIC:
        raise UnsupportedBatch(f"records of format {view[position + EPOCH_AT + 4]}: this broker takes format {MAGIC}")
    if len(view) - position < SIZE:
        raise CorruptBatch(f"a batch is cut after {len(view) - position} bytes")
    (base, length, _, magic, _, attributes, delta, first, last, producer, epoch, sequence, count) = HEADER.unpack_from(
        view, position
    )
    if magic != MAGIC:
        raise CorruptBatch(f"records of format {magic}: this broker takes format {MAGIC}")
    if length + PLACED.size < SIZE:
        raise CorruptBatch(f"the header of a batch says {length} bytes")
    if delta < 0 or count != delta + 1:
        raise CorruptBatch(f"a batch has {count} records up to offset +{delta}")
    return Batch(base, length + PLACED.size, attributes, delta, first, last, producer, epoch, sequence)


def read_produced(data: bytes) -> list[Batch]:
    """The batches that a producer sent. Raises CorruptBatch, UnsupportedBatch."""
    batches = []
    for batch in read_batches(data):
        if not batch.attributes & CODECS and batch.last_offset_delta > batch.size:
            raise CorruptBatch(f"a batch of {batch.size} bytes has {batch.last_offset_delta + 1} records")
        if batch.attributes & CODECS > CODEC_MAX:
            raise CorruptBatch(f"a batch is compressed by codec {batch.attributes & CODECS}, which does not exist")
        if batch.attributes & CONTROL:
            raise CorruptBatch("a batch of control records, which producers do not send")
        if batch.attributes & TRANSACTIONAL:
            raise UnsupportedBatch("a batch of a transaction: this broker has no transactions")
        if batch.is_idempotent and (batch.producer_epoch < 0 or batch.base_sequence < 0):
            raise CorruptBatch(f"producer {batch.producer_id} gave no epoch, or no sequence")
        batches.append(batch)
    if not batches:
        raise CorruptBatch("no record batch")
    if len(batches) > 1 and any(batch.is_idempotent for batch in batches):
        raise CorruptBatch("an idempotent producer sends one batch a partition")
    return batches


def place(data: bytes, batches: list[Batch], offset: int) -> tuple[bytearray, list[Batch]]:
    """The same batches with offsets from `offset` on. The records are not touched."""
    placed, position, moved = bytearray(data), 0, []
    for batch in batches:
        PLACED.pack_into(placed, position, offset, batch.size - PLACED.size)
        placed[position + EPOCH_AT : position + EPOCH_AT + 4] = LEADER_EPOCH.to_bytes(4)
        moved.append(batch._replace(base_offset=offset))
        offset += batch.last_offset_delta + 1
        position += batch.size
    return placed, moved
