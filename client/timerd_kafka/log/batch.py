"""The header of a record batch. This module does not decode the records after it, which may be compressed.

Source: Kafka, org.apache.kafka.common.record.DefaultRecordBatch (magic 2).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

HEADER = struct.Struct(">qiibIhiqqqhii")
SIZE = HEADER.size  # 61
RECORD_MIN = 7  # the bytes of an empty record: its size, its attributes, and five more numbers
PLACED = struct.Struct(">qi")  # base offset, which only the leader decides, and length
EPOCH_AT = 12
CRC, CRC_AT = struct.Struct(">I"), 17
ATTRIBUTES, ATTRIBUTES_AT = struct.Struct(">h"), 21
LATEST, LATEST_AT = struct.Struct(">q"), 35  # the largest timestamp
CRC_FROM = 21  # the check sum covers all bytes from here on; so a leader may set the fields before: offset and epoch
MAGIC = 2
LEADER_EPOCH = 0  # there is no election
CODECS = 0b111
CODEC_MAX = 4  # none, gzip, snappy, lz4, zstd
TIMESTAMP_IS_APPEND = 0b1000
TRANSACTIONAL = 0b10000
CONTROL = 0b100000
NO_PRODUCER = -1
NO_TIMESTAMP = -1


class CorruptBatch(Exception):
    """Bytes that are not a record batch: cut, of another format, or with a wrong check sum."""


class InvalidBatch(CorruptBatch):
    """A batch that arrived undamaged, but is not valid: sending it again does not help."""


class UnsupportedBatch(Exception):
    """A record batch of an older format, or one of a transaction."""


class Batch(NamedTuple):
    """The header of a record batch. Offsets are those of the header; timestamps are in milliseconds."""

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
        """The offset after the last record."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def is_idempotent(self) -> bool:
        """Whether the producer numbers its records."""
        return self.producer_id != NO_PRODUCER


def read_batches(data: bytes | memoryview, *, check: bool = True) -> Iterator[Batch]:
    """The consecutive batches in `data`. Raises CorruptBatch if a batch is damaged or cut, or UnsupportedBatch.

    With `check=False` the check sums are not verified.
    """
    view = memoryview(data)
    position = 0
    while position < len(view):
        size = read_size(view, position)
        if position + size > len(view):
            raise CorruptBatch(f"a batch of {size} bytes is cut after {len(view) - position}")
        if check:
            stated = HEADER.unpack_from(view, position)[4]
            if crc32c(view[position + CRC_FROM : position + size]) != stated:
                raise CorruptBatch("the check sum of a batch is wrong")
        yield read_header(view, position)
        position += size


def read_size(view: bytes | memoryview, position: int) -> int:
    """The size of the batch at `position`, if it has this format. Raises CorruptBatch, UnsupportedBatch."""
    if len(view) - position >= EPOCH_AT + 5 and view[position + EPOCH_AT + 4] < MAGIC:
        raise UnsupportedBatch(f"records of format {view[position + EPOCH_AT + 4]}: this broker takes format {MAGIC}")
    if len(view) - position < SIZE:
        raise CorruptBatch(f"a batch is cut after {len(view) - position} bytes")
    (_, length, _, magic, *_) = HEADER.unpack_from(view, position)
    if magic != MAGIC:
        raise CorruptBatch(f"records of format {magic}: this broker takes format {MAGIC}")
    if length + PLACED.size < SIZE:
        raise CorruptBatch(f"the header of a batch says {length} bytes")
    return int(length) + PLACED.size


def read_header(view: bytes | memoryview, position: int) -> Batch:
    """The batch whose header is at `position`. Raises CorruptBatch, UnsupportedBatch."""
    size = read_size(view, position)
    (base, _, _, _, _, attributes, delta, first, last, producer, epoch, sequence, count) = HEADER.unpack_from(
        view, position
    )
    if delta < 0 or count != delta + 1:
        raise InvalidBatch(f"a batch has {count} records up to offset +{delta}")
    return Batch(base, size, attributes, delta, first, last, producer, epoch, sequence)


def read_produced(data: bytes) -> Batch:
    """The one batch that a producer may send to a partition. Raises CorruptBatch, InvalidBatch, UnsupportedBatch.

    InvalidBatch stands for Kafka's INVALID_RECORD: org.apache.kafka.storage.internals.log.LogValidator.
    """
    batch = next(read_batches(data), None)
    if batch is None:
        raise InvalidBatch("no record batch")
    if len(data) > batch.size:  # the further batches are not read: a frame has room for a million of them
        raise InvalidBatch(f"{len(data) - batch.size} bytes after a batch: a producer sends one for each partition")
    count, codec = batch.last_offset_delta + 1, batch.attributes & CODECS
    if not codec and count * RECORD_MIN > batch.size - SIZE:
        raise InvalidBatch(f"a batch of {batch.size} bytes has {count} records")
    if codec > CODEC_MAX:
        raise InvalidBatch(f"a batch is compressed by codec {codec}, which does not exist")
    if batch.attributes & CONTROL:
        raise InvalidBatch("a batch of control records, which producers do not send")
    if batch.attributes & TRANSACTIONAL:
        raise UnsupportedBatch("a batch of a transaction: this broker has no transactions")
    if batch.is_idempotent and (batch.producer_epoch < 0 or batch.base_sequence < 0):
        raise InvalidBatch(f"producer {batch.producer_id} gave no epoch, or no sequence")
    return batch


def place(data: bytes, batch: Batch, offset: int, append_time: int | None) -> tuple[bytearray, Batch]:
    """A copy of the batch that begins with `offset` instead, and its header. The records stay as they are.

    `append_time`: the time (ms) that all records of the batch get; None: the records have their own times.
    """
    placed = bytearray(data)
    PLACED.pack_into(placed, 0, offset, batch.size - PLACED.size)
    placed[EPOCH_AT : EPOCH_AT + 4] = LEADER_EPOCH.to_bytes(4)
    attributes = batch.attributes & ~TIMESTAMP_IS_APPEND  # as in Kafka, the bit of the producer does not count
    latest = batch.max_timestamp
    if append_time is not None:
        attributes, latest = attributes | TIMESTAMP_IS_APPEND, append_time
    return placed, set_times(placed, batch._replace(base_offset=offset), attributes, latest)


def with_latest(data: bytes, batch: Batch, latest: int) -> tuple[bytes, Batch]:
    """The batch whose header states `latest` as the largest timestamp."""
    if latest == batch.max_timestamp:
        return data, batch
    changed = bytearray(data)
    batch = set_times(changed, batch, batch.attributes, latest)
    return bytes(changed), batch


def set_times(data: bytearray, batch: Batch, attributes: int, latest: int) -> Batch:
    """Set the attributes and the largest timestamp in a header, and the check sum. Returns the new header."""
    if (attributes, latest) != (batch.attributes, batch.max_timestamp):
        ATTRIBUTES.pack_into(data, ATTRIBUTES_AT, attributes)
        LATEST.pack_into(data, LATEST_AT, latest)
        CRC.pack_into(data, CRC_AT, crc32c(memoryview(data)[CRC_FROM:]))
    return batch._replace(attributes=attributes, max_timestamp=latest)
