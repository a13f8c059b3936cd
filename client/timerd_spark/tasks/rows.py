"""Rows of Arrow batches, gathered into new batches in another order, and checks of columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from timerd_shm.declare.errors import InvalidValueError

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame


class Row(NamedTuple):
    """A row: a batch, and a position in the batch."""

    batch: pyarrow.RecordBatch
    at: int


def rows_of(batch: pyarrow.RecordBatch) -> list[Row]:
    """All rows of a batch."""
    return [Row(batch, at) for at in range(batch.num_rows)]


def gather(rows: Sequence[Row]) -> pyarrow.RecordBatch:
    """A batch of these rows, in this order. There must be at least one row."""
    import pyarrow

    parts: list[pyarrow.RecordBatch] = []
    start = 0
    while start < len(rows):
        batch, first = rows[start]
        end = start + 1
        while end < len(rows) and rows[end].batch is batch:
            end += 1
        indices = [row.at for row in rows[start:end]]
        if indices == list(range(first, first + len(indices))):
            parts.append(batch.slice(first, len(indices)))
        else:
            parts.append(batch.take(pyarrow.array(indices)))
        start = end
    if len(parts) == 1:
        return parts[0]
    (gathered,) = pyarrow.Table.from_batches(parts).combine_chunks().to_batches()
    return gathered


def values_of(column: pyarrow.Array) -> list[Any]:
    """The values of a column. Strings, also in arrays, become bytes, because Spark's strings need not be UTF-8."""
    from pyarrow import binary, list_, types

    kind = column.type
    if types.is_list(kind) and (types.is_string(kind.value_type) or types.is_large_string(kind.value_type)):
        column = column.cast(list_(binary()))
    elif types.is_string(kind) or types.is_large_string(kind):
        column = column.cast(binary())
    values: list[Any] = column.to_pylist()
    return values


def check_columns(df: DataFrame, wanted: Iterable[tuple[str, str]], added: Sequence[str], kept: Iterable[str]) -> None:
    """Raise InvalidValueError if an argument names no column, or if the result would have a name twice.

    `wanted`: pairs of an argument's name and its column. The result has the columns `kept` and `added`. For Spark,
    names that differ only in upper and lower case are the same.
    """
    columns = list(df.columns)
    for argument, column in wanted:
        if column not in columns:
            raise InvalidValueError(f"{argument}={column!r} is no column; there are {', '.join(columns)}")
        if columns.count(column) > 1:
            raise InvalidValueError(
                f"{argument}={column!r}: there are {columns.count(column)} such columns: rename one"
            )
    there = [name.lower() for name in kept]
    if twice := [name for name in kept if there.count(name.lower()) > 1]:
        raise InvalidValueError(f"column {twice[0]!r} would be there twice: rename or drop one")
    if taken := sorted(name for name in kept if name.lower() in added):
        raise InvalidValueError(f"column {taken[0]!r} would be there twice: rename yours (added: {', '.join(added)})")


def column_names(argument: str, given: Any) -> list[str]:
    """An argument that is one column's name or a list of names, as a list. Raises InvalidValueError."""
    found = [given] if isinstance(given, str) else given
    if not isinstance(found, (list, tuple)) or not found or not all(isinstance(name, str) for name in found):
        raise InvalidValueError(f"{argument}={given!r}: give a column's name, or a list of names")
    return list(found)
