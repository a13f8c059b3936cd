"""The offsets, times and keys of single records. Only this module reads and decompresses the records of batches.

Producers are not trusted: a batch of 1 MiB may state any number of records, or unpack to 32 GiB. So readers take a
few records at a time, and a batch that unpacks to more than ROOM_MAX is unreadable.
"""

from __future__ import annotations

import mmap
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import cramjam
from kio.serial.readers import read_signed_varint, read_signed_varlong

from timerd_kafka.log.batch import CODECS, SIZE, TIMESTAMP_IS_APPEND, Batch

ROOM_MIN, ROOM_MAX = 16 << 20, 256 << 20  # bytes of the unpacked records; memory that is not written costs nothing
RECORDS_MAX = 1_000_000  # of a compressed batch; clients write fewer. While it is read, others wait for the memory
XERIAL = b"\x82SNAPPY\x00"  # before the blocks of a stream of snappy-java
XERIAL_HEADER = 16
GZIP_WINDOW = 31  # for zlib: the largest window, with a header of gzip
TIME_END = 2**63


class Unreadable(Exception):
    """Records that cannot be read: damaged, or too large."""


class Record(NamedTuple):
    """The part of a record that is read: its offset, its time in milliseconds, and whether it has a key."""

    offset: int
    timestamp: int
    has_key: bool


def records_of(header: Batch, data: bytes | memoryview) -> Iterator[Record]:
    """The records of a batch. `data`: the records, unpacked. Raises Unreadable."""
    position = 0
    try:
        for _ in range(header.last_offset_delta + 1):
            length, size = read_signed_varint(data, position)
            inside = position + size + 1  # after the attributes
            time, time_size = read_signed_varlong(data, inside)
            delta, delta_size = read_signed_varint(data, inside + time_size)
            key_size, _ = read_signed_varint(data, inside + time_size + delta_size)  # below 0: the record has no key
            timestamp = header.base_timestamp + time
            if header.attributes & TIMESTAMP_IS_APPEND:
                timestamp = header.max_timestamp
            if not (-TIME_END <= timestamp < TIME_END and 0 <= delta <= header.last_offset_delta):
                raise Unreadable(f"a record with offset +{delta} and timestamp {timestamp}")
            position += size + length
            if length < 0 or position > len(data):
                raise Unreadable("a record ends beyond its batch")
            yield Record(header.base_offset + delta, timestamp, key_size >= 0)
    except Unreadable:
        raise
    except Exception as error:  # kio raises errors of its own
        raise Unreadable(f"{type(error).__name__}: {error}") from error


def unpacked(header: Batch, batch: bytes) -> bytes | memoryview:
    """The records of a batch, unpacked. A large batch takes 0.2 s. Raises Unreadable."""
    codec, data = header.attributes & CODECS, memoryview(batch)[SIZE:]
    if codec == 0:
        return data
    if header.last_offset_delta >= RECORDS_MAX:
        raise Unreadable(f"a compressed batch of {header.last_offset_delta + 1} records: {RECORDS_MAX} at most")
    try:
        return UNPACK[codec](data)
    except Unreadable:
        raise
    except Exception as error:  # each of the codecs raises errors of its own
        raise Unreadable(f"{type(error).__name__}: {error}") from error


def room_of(size: int) -> memoryview:
    """Memory for the records of a batch."""
    if size > ROOM_MAX:
        raise Unreadable(f"a batch unpacks to {size} bytes: {ROOM_MAX} at most")
    return memoryview(mmap.mmap(-1, max(size, 1)))


def unpack_gzip(data: memoryview) -> bytes:
    """Unpack the first gzip member only: clients write one, and 50,000 empty ones would take 0.2 s."""
    stream = zlib.decompressobj(GZIP_WINDOW)
    found = stream.decompress(data, ROOM_MAX)
    if stream.unconsumed_tail:
        raise Unreadable(f"a batch unpacks to more than {ROOM_MAX} bytes")
    return found


def unpack_snappy(data: memoryview) -> memoryview:
    """Unpack raw snappy, or the format of snappy-java: blocks, each after its size."""
    if bytes(data[: len(XERIAL)]) != XERIAL:
        return joined([data])
    blocks, position = list[memoryview](), XERIAL_HEADER
    while position < len(data):
        begin = position + 4
        position = begin + int.from_bytes(data[position:begin])
        blocks.append(data[begin:position])
    return joined(blocks)


def joined(blocks: list[memoryview]) -> memoryview:
    """Blocks of raw snappy, unpacked one after the other. Each states its size, perhaps a wrong one."""
    sizes = [cramjam.snappy.decompress_raw_len(block) for block in blocks]
    room, written = room_of(sum(sizes)), 0
    for block in blocks:
        written += cramjam.snappy.decompress_raw_into(block, room[written:])
    return room[:written].toreadonly()


def growing(unpack_into: Callable[[memoryview, memoryview], int], data: memoryview) -> memoryview:
    """Unpack into memory, and into more memory if that fails: codecs do not say whether the memory was too small."""
    size = ROOM_MIN
    while True:
        room = room_of(size)
        try:
            return room[: unpack_into(data, room)].toreadonly()
        except Exception as error:
            if size == ROOM_MAX:
                raise Unreadable(f"{error}; or it unpacks to more than {ROOM_MAX} bytes") from error
        size *= 4


UNPACK: dict[int, Callable[[memoryview], bytes | memoryview]] = {
    1: unpack_gzip,
    2: unpack_snappy,
    3: lambda data: growing(cramjam.lz4.decompress_into, data),
    4: lambda data: growing(cramjam.zstd.decompress_into, data),
}
