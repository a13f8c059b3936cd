"""A stretch of rows that a query leaves out, because failOnDataLoss is false: one row of the events view.

    kind = left_out, row = the number of the first row that was left out, rows = their number, segment and record: where

No file has such a row. An audit needs it, because the journal is not complete from these rows on.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from timerd_shm.declare.journal import BLOCK_ROWS, ROW_SIZE, SegmentHeader

from .schema import LEFT_OUT, Column, arrow_schema

if TYPE_CHECKING:
    from pyarrow import RecordBatch

CODE: Final = 0xFF  # the first byte of its column `bytes`, where rows of a file have their RowKind
_FORM: Final = struct.Struct("<B?6xQQQQ")  # CODE, is_damaged, row, rows, segment, record


class LeftOut(NamedTuple):
    """Rows that were left out. `is_damaged`: they are in damaged blocks of the segment; else they are in no segment."""

    is_damaged: bool
    row: int
    rows: int
    segment: int
    record: int

    def __str__(self) -> str:
        """For people: the rows, and the blocks or the segment."""
        rows = f"rows {self.row} to {self.row + self.rows - 1} were left out"
        if not self.is_damaged:
            return f"{rows}: they are in no segment, and segment {self.segment} begins after them"
        first, last = self.record // BLOCK_ROWS, (self.record + self.rows - 1) // BLOCK_ROWS
        return f"{rows}: segment {self.segment} is damaged in blocks {first} to {last}"

    @classmethod
    def of(cls, data: bytes) -> Self:
        """From the column `bytes`."""
        return cls(*_FORM.unpack_from(data)[1:])

    @property
    def data(self) -> bytes:
        """The column `bytes`."""
        return _FORM.pack(CODE, *self).ljust(ROW_SIZE, b"\0")

    def batch(self, columns: Sequence[Column], header: SegmentHeader, host: str, instance: str) -> RecordBatch:
        """A batch of the events view with this one row. Its time is that of its segment's beginning."""
        import pyarrow as pa

        values: dict[str, Any] = {
            "host": host,
            "instance": instance,
            "incarnation": f"{header.incarnation:016x}",
            "row": self.row,
            "segment": self.segment,
            "record": self.record,
            "kind": LEFT_OUT,
            "bytes": self.data,
            "at": datetime.fromtimestamp(header.wall_ns / 1e9, UTC),
            "rows": self.rows,
        }
        schema = arrow_schema(columns)
        arrays = [pa.array([values.get(field.name)], field.type) for field in schema]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)
