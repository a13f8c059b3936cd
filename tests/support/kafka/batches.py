"""Record batches whose headers state what a test wants, true or not, in each codec."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import cramjam
from crc32c import crc32c

from support.kafka.rawkafka import record
from timerd_kafka.log.batch import HEADER

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
CODECS = [0, GZIP, SNAPPY, LZ4, ZSTD]


def packed(codec: int, records: bytes) -> bytes:
    """These records, compressed."""
    if codec == 0:
        return records
    if codec == SNAPPY:
        return bytes(cramjam.snappy.compress_raw(records))
    return bytes({GZIP: cramjam.gzip, LZ4: cramjam.lz4, ZSTD: cramjam.zstd}[codec].compress(records))


def stating(
    records: bytes, *, codec: int = 0, count: int = 1, base_timestamp: int = 0, max_timestamp: int = 0
) -> bytes:
    """A batch whose header states the given values, true or not, with a right check sum."""
    size = HEADER.size - 12 + len(records)
    header = (0, size, 0, 2, 0, codec, count - 1, base_timestamp, max_timestamp, -1, -1, -1, count)
    made = bytearray(HEADER.pack(*header) + records)
    struct.pack_into(">I", made, 17, crc32c(bytes(made[21:])))
    return bytes(made)


def keyed(keys: Sequence[bytes | None], *, codec: int = 0) -> bytes:
    """A batch with a record for each of these keys."""
    records = b"".join(record(b"v", delta, key=key) for delta, key in enumerate(keys))
    return stating(packed(codec, records), codec=codec, count=len(keys))
