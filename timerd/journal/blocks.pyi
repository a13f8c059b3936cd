"""Rows of the journal's buffer become blocks of a segment file."""

from _typeshed import ReadableBuffer

def write_blocks(buffer: ReadableBuffer, first: int, last: int, fd: int, segment: int, sequence: int) -> int:
    """Write the rows from `first`, the first of a block, up to `last` into the file of the segment that begins at row
    `segment`; or up to where another segment begins. The number of the first row that was not written.

    What was written before is written again where it was; a block that is not full has its CRC too. Raises OSError:
    then any part of it may have been written.
    """
