"""A journal as an older version would have written it."""

from __future__ import annotations

import struct
from pathlib import Path

from support.rig.damage import with_right_sums
from timerd_shm.declare.fields import fields, offset_of
from timerd_shm.declare.journal import BLOCK_SIZE, OLDER, ROW_SIZE, ROWS, SegmentHeader
from timerd_shm.read.segment import segment_path, segments_of


def as_older(directory: Path, layout: tuple[int, int]) -> None:
    """Turn all segments into segments of the older version `layout`: fields that it does not have yet become zero."""
    lacking = {
        int(kind): [(field.offset, field.storage.size) for field in fields(ROWS[kind]) if field.name in names]
        for kind, names in OLDER[layout].fields.items()
    }
    for sequence in segments_of(directory):
        path = segment_path(directory, sequence)
        content = bytearray(path.read_bytes())
        struct.pack_into("<II", content, offset_of(SegmentHeader, "version"), *layout)
        for block in range(BLOCK_SIZE, len(content), BLOCK_SIZE):
            for at in range(block + ROW_SIZE, block + BLOCK_SIZE, ROW_SIZE):
                for offset, size in lacking.get(content[at], ()):
                    content[at + offset : at + offset + size] = bytes(size)
        path.write_bytes(with_right_sums(content))
