"""Rows of the journal's buffer become blocks of a segment file."""

from _typeshed import ReadableBuffer

def write_blocks(buffer: ReadableBuffer, first: int, last: int, fd: int, segment: int, sequence: int) -> int:
    """Write rows into the file of the segment that begins at row `segment`: from `first`, the first row of a block, up
    to `last`, or up to the next segment. Returns the number of the first row that was not written.

    A row that was written before is written again in its place. A block that is not full has its CRC, too. Raises
    OSError: then any part may have been written.
    """
