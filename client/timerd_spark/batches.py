"""Spans as record batches: what source and export have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from timerd_shm.journal import RowKind

from .decode import SegmentRows, Terminal
from .events import Events
from .schema import Column, arrow_schema, shown_kinds
from .segments import Span

Where = Callable[[Callable[[str], pa.Array]], pa.Array]  # from a column's name to that column, to true or false a row


def batches(
    span: Span, columns: Sequence[Column], view: str, *, where: Where | None = None, skip: bool = False
) -> Iterator[pa.RecordBatch]:
    """The rows of a span, up to PART_LINES in a batch; those alone for which `where` is true. Raises JournalError."""
    terminal, schema = view == "terminal", arrow_schema(columns)
    source = SegmentRows(span, skip=skip)
    try:
        for records, lines in source.parts([RowKind.OUTCOME] if terminal else shown_kinds()):
            rows: Terminal | Events = (Terminal if terminal else Events)(source, records, lines)
            if where is not None:
                wanted = np.flatnonzero(where(rows.column).fill_null(False).to_numpy(zero_copy_only=False))
                if len(wanted) == 0:
                    continue
                if len(wanted) < len(rows):
                    rows = type(rows)(source, records[wanted], lines[wanted])
            yield pa.RecordBatch.from_arrays([rows.column(column.name) for column in columns], schema=schema)
    finally:
        source.close()
