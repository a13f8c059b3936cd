"""The times of single records in a batch, to find the first record at or after a time.

Only this module reads and decompresses the records of batches. Producers are not trusted, so each loop here is bounded.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from functools import cached_property

import cramjam
from kio.serial.readers import read_signed_varint, read_signed_varlong

from timerd_kafka.log.batch import CODECS, SIZE, read_header

RECORDS_MAX = 20_000  # read for one request at most: the broker serves no other request meanwhile
BATCH_RECORDS = 16  # reading a batch from the file takes as long as 16 records
KIB = 1024  # reading 1 KiB counts as one record; to decompress 1 KiB takes as long as three records at most
DECOMPRESSED_MAX = 16 << 20  # the most bytes to which one batch is decompressed: a hostile batch may have any size
XERIAL = b"\x82SNAPPY\x00"  # before the blocks of a stream of snappy-java
XERIAL_HEADER = 16
GZIP_WINDOW = 31  # for zlib: the largest window, with a header of gzip
TIME_END = 2**63


class Unreadable(Exception):
    """Records that cannot be read: damaged, too large, or too many for one request."""


class Work:
    """The work that is left for one request, counted in records, and the request's buffer for decompression."""

    def __init__(self) -> None:
        self.left = RECORDS_MAX

    @cached_property
    def room(self) -> memoryview:
        """The records of one batch, until the next batch is decompressed."""
        return memoryview(bytearray(DECOMPRESSED_MAX))

    def spend(self, records: int) -> None:
        """Count this work. Raises Unreadable if the request has less work left; then every later call raises, too."""
        self.left -= records
        if self.left < 0:
            raise Unreadable("too much for one request")


def records_of(batch: bytes, work: Work) -> Iterator[tuple[int, int]]:
    """The offset and the timestamp (ms) of each record of a batch. Raises Unreadable."""
    header = read_header(batch, 0)
    try:
        data, position = decompressed(header.attributes & CODECS, batch[SIZE:], work), 0
        for _ in range(header.last_offset_delta + 1):
            work.spend(1)
            length, size = read_signed_varint(data, position)
            inside = position + size + 1  # behind the attributes
            time, time_size = read_signed_varlong(data, inside)
            delta, _ = read_signed_varint(data, inside + time_size)
            timestamp = header.base_timestamp + time
            if not (-TIME_END <= timestamp < TIME_END and 0 <= delta <= header.last_offset_delta):
                raise Unreadable(f"a record with offset +{delta} and timestamp {timestamp}")
            yield header.base_offset + delta, timestamp
            position += size + length
            if length < 0 or position > len(data):
                raise Unreadable("a record ends behind its batch")
    except Unreadable:
        raise
    except Exception as error:  # kio and four codecs raise errors of their own
        raise Unreadable(f"{type(error).__name__}: {error}") from error


def decompressed(codec: int, data: bytes, work: Work) -> bytes | memoryview:
    """The records of a batch, valid until the next batch is decompressed."""
    if codec == 0:
        work.spend(len(data) // KIB)
        return data
    size = DECOMPRESSED_MAX  # counts if the codec fails, because it may have filled the buffer before
    try:
        size = INTO[codec](data, work)
    finally:
        work.spend(max(size, len(data)) // KIB)  # `data` may be larger: a megabyte of 100,000 empty frames, for example
    return work.room[:size].toreadonly()


def gzip_into(data: bytes, work: Work) -> int:
    """Decompress the first gzip member only: clients write one member, and 50,000 empty members would take 0.2 s."""
    found = zlib.decompressobj(GZIP_WINDOW).decompress(data, DECOMPRESSED_MAX)
    work.room[: len(found)] = found
    return len(found)


def snappy_into(data: bytes, work: Work) -> int:
    """Decompress raw snappy, or the format of snappy-java: blocks, each behind its size."""
    if not data.startswith(XERIAL):
        return cramjam.snappy.decompress_raw_into(data, work.room)
    position, written = XERIAL_HEADER, 0
    while position < len(data):
        work.spend(1)
        begin = position + 4
        position = begin + int.from_bytes(data[position:begin])
        written += cramjam.snappy.decompress_raw_into(data[begin:position], work.room[written:])
    return written


# Each function writes into the buffer. None allocates the size that a batch states: a block of snappy may state 4 GiB.
INTO: dict[int, Callable[[bytes, Work], int]] = {
    1: gzip_into,
    2: snappy_into,
    3: lambda data, work: cramjam.lz4.decompress_into(data, work.room),
    4: lambda data, work: cramjam.zstd.decompress_into(data, work.room),
}
