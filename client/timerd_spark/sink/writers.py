"""format("timerd") as a sink: rows become registrations or events, from the executors; docs/howto/spark-write.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.taskcontext import TaskContext

from timerd_shm.declare.errors import InvalidConfigError, InvalidValueError
from timerd_shm.declare.limits import TIMEOUT_NS_MAX
from timerd_spark.tasks.rows import values_of

from .options import AUTO, WriteOptions

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.types import StructType

    from .sender import Row

TEXT = ("string", "binary")
WHOLE = ("tinyint", "smallint", "int", "bigint")
NUMBER = (*WHOLE, "float", "double")
TIMEOUT_S_MAX = TIMEOUT_NS_MAX // 1_000_000_000
NO_DEADLINE_HERE = (
    "without a deadline, an operation that belongs to nobody is kept for an hour only (the daemon's "
    "--group-retention). Give seconds, up to ten years, or give the operations to a group: orphans=group, group=NAME"
)
QUERY, BATCH, EXECUTION, APPLICATION = (
    "sql.streaming.queryId",
    "streaming.sql.batchId",
    "spark.sql.execution.id",
    "spark.app.id",
)


@dataclass
class Sent(WriterCommitMessage):
    """The counts of a task: new rows, and rows that the daemon knew."""

    added: int
    known: int


class Sending:
    """Common to the writers of batches and of streams: a task sends its rows, and returns its counts."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        """Raises InvalidConfigError if the rows lack a column that the options name."""
        self.options = options
        types = {field.name: field.dataType.simpleString() for field in schema.fields}
        for option, column, kinds in (
            ("opId", None if options.op_id == AUTO else options.op_id, (*TEXT, *WHOLE)),
            ("key", options.key, (*TEXT, *WHOLE)),
            ("timeoutColumn", options.timeout_column, NUMBER),
            ("payload or value", options.body, TEXT),
        ):
            if column is not None and column not in types:
                raise InvalidConfigError(f"option {option} names column {column!r}: the rows have {', '.join(types)}")
            if column is not None and (count := schema.fieldNames().count(column)) > 1:
                raise InvalidConfigError(f"option {option}: there are {count} columns {column!r}: rename one")
            if column is not None and types[column] not in kinds:
                raise InvalidConfigError(
                    f"option {option}: column {column!r} is of type {types[column]}, and has to be {' or '.join(kinds)}"
                )

    def write(self, iterator: Iterator[RecordBatch]) -> Sent:
        """Write the rows of a task. Returns when all are acknowledged. Raises the daemon's refusals."""
        from .sender import send

        return Sent(*send(self.options, self._rows(iterator)))

    def _rows(self, batches: Iterator[RecordBatch]) -> Iterator[Row]:
        from .sender import Row

        options, number = self.options, 0
        begin = task_name() if options.op_id == AUTO else ""
        for batch in batches:
            rows = batch.num_rows
            keys = column(batch, options.key)
            if options.op_id == AUTO:
                ids: list[Any] = [f"{begin}/{number + row}" for row in range(rows)]
            else:
                ids = column(batch, options.op_id)
            bodies = [b""] * rows if options.body is None else column(batch, options.body, null=b"")
            times = [options.timeout] * rows
            if options.timeout_column is not None:
                times = batch.column(options.timeout_column).to_pylist()
                check_times(options, times, ids)
            for op_id, key, body, timeout in zip(ids, keys, bodies, times, strict=True):
                yield Row(op_id, key, body, timeout)
            number += rows


class BatchSink(Sending, DataSourceArrowWriter):
    """`df.write.format("timerd").mode("append")`."""


class StreamSink(Sending, DataSourceStreamArrowWriter):
    """`df.writeStream.format("timerd")`."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """There is nothing to do: the daemon has acknowledged all rows of the tasks."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Acknowledged rows stay. When the batch is run again, it adds only the others."""


def column(batch: RecordBatch, name: str, null: bytes | None = None) -> list[Any]:
    """The values of a column as bytes, numbers as str. `null` replaces a null; without it, raises InvalidValueError."""
    values = values_of(batch.column(name))
    if batch.column(name).null_count:
        if null is None:
            raise InvalidValueError(f"column {name!r} is null in a row: an id and a key are needed")
        values = [null if value is None else value for value in values]
    return values if not values or isinstance(values[0], bytes) else [str(value) for value in values]


def check_times(options: WriteOptions, times: Sequence[float | None], ids: Sequence[Any]) -> None:
    """Raises InvalidValueError for a timeout that no operation can have, and for a null if the options name no group.

    A null is an operation without a deadline, which stays only while it has an owner. The sink's client ends with its
    task, so only a group can be the owner. An operation without an owner gets the daemon's retention as its deadline.
    """
    for time, op_id in zip(times, ids, strict=True):
        if (time is None and options.group is not None) or (time is not None and 0 <= time <= TIMEOUT_S_MAX):
            continue
        name = op_id.decode("utf-8", "backslashreplace") if isinstance(op_id, bytes) else op_id
        raise InvalidValueError(
            f"column {options.timeout_column!r} is {'null' if time is None else time} in the row of opId {name!r}: "
            + (f"give seconds from 0 to {TIMEOUT_S_MAX} (ten years)" if time is not None else NO_DEADLINE_HERE)
        )


def task_name() -> str:
    """A task's name, the same when the task is run again.

    For a stream it is QUERY/BATCH/PARTITION, else APPLICATION/EXECUTION/PARTITION (of a query in Spark SQL).
    """
    context = TaskContext.get()
    if context is None:
        raise InvalidValueError("opId=auto works only in a task of Spark, and no task runs here")
    names = [context.getLocalProperty(name) for name in (QUERY, BATCH)]
    if None in names:
        names = [context.getLocalProperty(name) for name in (APPLICATION, EXECUTION)]
    return f"{names[0]}/{names[1]}/{context.partitionId()}"


def refuse_overwrite(overwrite: bool) -> None:
    if overwrite:
        raise InvalidConfigError('a write adds rows and replaces none: use mode("append")')
