"""Rows of a journal, as an audit on Spark gets them, and changes that make them false."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from timerd_shm.declare.fields import struct_of
from timerd_shm.declare.journal import ROWS, RowKind
from timerd_spark.reports.audit_rows import COLUMNS
from timerd_spark.source.batches import batches
from timerd_spark.source.schema import EVENTS, TEXTS
from timerd_spark.source.segments import Walk, first_offset


def rows_for_audit(directory: Path) -> pa.Table:
    """The events view of a journal, with the columns that an audit needs."""
    columns = [column for column in EVENTS if column.name in COLUMNS]
    spans = Walk(directory, first_offset(directory)).spans()
    return pa.Table.from_batches([batch for span in spans for batch in batches(span, columns, "events")])


def of_kind(rows: list[dict[str, Any]], kind: RowKind) -> list[dict[str, Any]]:
    return [row for row in rows if row["bytes"][0] == kind]


def record_of(row: dict[str, Any]) -> Any:
    """The fields of a row of the events view."""
    record = ROWS[RowKind(row["bytes"][0])]
    return record(*struct_of(record).unpack(row["bytes"]))


def changed(row: dict[str, Any], **values: Any) -> dict[str, Any]:
    """The row with other values of some fields or texts."""
    texts = {name: value for name, value in values.items() if name in TEXTS}
    record = record_of(row)._replace(**{name: value for name, value in values.items() if name not in TEXTS})
    return {**row, **texts, "bytes": struct_of(type(record)).pack(*record)}
