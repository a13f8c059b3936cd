"""The times of single records in a batch, for who asks from which offset on records are of a time or later.

This alone looks inside of batches, and decompresses them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import cramjam
from kio.serial.readers import read_signed_varint, read_signed_varlong

from timerd_kafka.log.batch import CODECS, SIZE, read_header

DECOMPRESSED_MAX = 16 << 20  # of one batch: a hostile one may be of any size
XERIAL = b"\x82SNAPPY\x00"  # before the blocks of a stream of snappy-java
XERIAL_HEADER = 16


class Unreadable(Exception):
    """Records that cannot be read: damaged, or too large."""


def records_of(batch: bytes) -> Iterator[tuple[int, int]]:
    """The offset and the timestamp (ms) of each record of a batch. Raises Unreadable."""
    header = read_header(batch, 0)
    try:
        data, position = decompressed(header.attributes & CODECS, batch[SIZE:]), 0
        for _ in range(header.last_offset_delta + 1):
            length, size = read_signed_varint(data, position)
            inside = position + size + 1  # behind the attributes
            time, time_size = read_signed_varlong(data, inside)
            delta, _ = read_signed_varint(data, inside + time_size)
            yield header.base_offset + delta, header.base_timestamp + time
            position += size + length
            if length < 0 or position > len(data):
                raise Unreadable("a record ends behind its batch")
    except Unreadable:
        raise
    except Exception as error:  # of kio and of four codecs
        raise Unreadable(f"{type(error).__name__}: {error}") from error


def decompressed(codec: int, data: bytes) -> bytes | memoryview:
    """The records of a batch."""
    if codec == 0:
        return data
    if codec == 2 and data.startswith(XERIAL):
        return b"".join(xerial_blocks(data))
    into: dict[int, Callable[[bytes, bytearray], int]] = {
        1: cramjam.gzip.decompress_into,
        2: cramjam.snappy.decompress_raw_into,
        3: cramjam.lz4.decompress_into,
        4: cramjam.zstd.decompress_into,
    }
    room = bytearray(DECOMPRESSED_MAX)  # the system gives pages when they are written
    return memoryview(room)[: into[codec](data, room)].toreadonly()


def xerial_blocks(data: bytes) -> Iterator[bytes]:
    """The blocks of a stream as snappy-java writes it: each has its size before it."""
    position, room = XERIAL_HEADER, DECOMPRESSED_MAX
    while position < len(data):
        size = int.from_bytes(data[position : position + 4])
        block = bytes(cramjam.snappy.decompress_raw(data[position + 4 : position + 4 + size]))
        room -= len(block)
        if room < 0:
            raise Unreadable(f"a batch of more than {DECOMPRESSED_MAX} bytes")
        yield block
        position += 4 + size
