"""Spans as record batches, for the readers of Spark and for the export."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from timerd_shm.declare.journal import RowKind

from .decode import SegmentRows, Terminal
from .events import Events
from .schema import Column, arrow_schema, shown_kinds
from .segments import Span


def batches(span: Span, columns: Sequence[Column], view: str, *, skip: bool = False) -> Iterator[pa.RecordBatch]:
    """The rows of a span, up to PART_LINES in a batch. Raises JournalError."""
    terminal, schema = view == "terminal", arrow_schema(columns)
    source = SegmentRows(span, skip=skip)
    try:
        for left_out in () if terminal else source.left_out:
            yield left_out.batch(columns, source.header, source.host, source.instance)
        for records, lines in source.parts([RowKind.OUTCOME] if terminal else shown_kinds()):
            rows: Terminal | Events = (Terminal if terminal else Events)(source, records, lines)
            yield pa.RecordBatch.from_arrays([rows.column(column.name) for column in columns], schema=schema)
    finally:
        source.close()
