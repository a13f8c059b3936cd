"""Rows that wait for events: a row is pending until a process on the task's host fires its key, or until its timeout.

    answered = timerd_spark.await_events(df, key="callback_key", timeout="2s")

A task holds its slot while its rows wait, so this is for short waits. For longer waits, use Spark's own timers
(transformWithState), or the sink and the journal: a table in docs/howto/spark-tasks.md compares them.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from timerd_client import Client, Operation, Outcome
from timerd_shm.declare.errors import InvalidValueError, TimerdError
from timerd_shm.declare.limits import TIMEOUT_NS_MAX
from timerd_spark.durations import duration_ns

from .rows import Row, check_columns, gather, rows_of, values_of
from .task import Sidecar, warn_of_idle_kill

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame

ADDED = ("outcome", "value", "waited_ms", "error")
LOOK_S = 1.0  # the longest wait for settled operations


def await_events(
    df: DataFrame,
    *,
    key: str,
    timeout: str | float | timedelta,
    in_flight: int = 10_000,
    instance: str | None = None,
    runtime_dir: str | None = None,
    autostart: bool = False,
) -> DataFrame:
    """Let each row wait for an event on its key, `timeout` at most.

    `key` is a column of strings or binaries, or of arrays of them: then any key of the array completes the row. Any
    process of the task's host may fire: `client.fire(key, value=...)`. The wait begins when the task registers the row.
    Earlier events do not count. At most `in_flight` rows of a task wait at once, within a client's quota at the daemon.
    The other rows follow when these have settled.

    Result: the rows in the order in which they settled, with these columns: outcome (string: completed, expired,
    failed, cancelled; or unavailable if the daemon was lost, and the outcome is not known), value (binary, the event's
    value or null), waited_ms (double) and error (string or null). A row whose key cannot be watched has failed.

    `instance`, `runtime_dir`, `autostart`: as for `deliver()`. Raises InvalidValueError.
    """
    from pyspark.sql import types

    check_columns(df, [("key", key)], ADDED, df.columns)
    kind = df.schema[key].dataType
    of = kind.elementType if isinstance(kind, types.ArrayType) else kind
    if not isinstance(of, (types.StringType, types.BinaryType)):
        raise InvalidValueError(
            f"key={key!r} is {kind.simpleString()}: give a column of string, binary, or arrays of them"
        )
    duration = duration_ns("timeout", timeout)
    if duration > TIMEOUT_NS_MAX:
        raise InvalidValueError(f"timeout={timeout!r}: give 10 years at most")
    if type(in_flight) is not int or in_flight < 1:
        raise InvalidValueError(f"in_flight={in_flight!r}: give an int from 1 on")
    warn_of_idle_kill(df, "timeout", duration)
    schema = types.StructType(
        [
            *df.schema.fields,
            types.StructField("outcome", types.StringType(), False),
            types.StructField("value", types.BinaryType()),
            types.StructField("waited_ms", types.DoubleType(), False),
            types.StructField("error", types.StringType()),
        ]
    )
    return df.mapInArrow(Awaiting(key, duration / 1e9, in_flight, Sidecar.of(instance, runtime_dir, autostart)), schema)


class SettledRow(NamedTuple):
    """A row that has settled, with its outcome."""

    row: Row
    outcome: str
    value: bytes | None
    waited_ns: int
    error: str | None


class Awaiting:
    """The function that a task calls with its batches. Plain values only, because the driver pickles it."""

    def __init__(self, key: str, timeout_s: float, in_flight: int, sidecar: Sidecar) -> None:
        self._key = key
        self._timeout_s = timeout_s
        self._in_flight = in_flight
        self._sidecar = sidecar

    def __call__(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        with self._sidecar.row_client() as client:
            settled: SimpleQueue[tuple[Row, Operation]] = SimpleQueue()
            waiting = 0
            for batch in batches:
                for row, key in zip(rows_of(batch), values_of(batch[self._key]), strict=True):
                    while waiting >= self._in_flight:
                        ended = take_settled(settled)
                        waiting -= len(ended)
                        yield from result_batches(ended)
                    refused = self._register(client, row, key, settled)
                    if refused is None:
                        waiting += 1
                    else:
                        yield from result_batches([refused])
            while waiting:
                ended = take_settled(settled)
                waiting -= len(ended)
                yield from result_batches(ended)

    def _register(
        self, client: Client, row: Row, key: Any, settled: SimpleQueue[tuple[Row, Operation]]
    ) -> SettledRow | None:
        """Register a row's operation. Returns None, or the failed row if its key is refused."""
        try:
            operation = client.register(key, timeout=self._timeout_s)
        except TimerdError as error:
            return SettledRow(row, "failed", None, 0, f"{type(error).__name__}: {error}")
        operation.add_done_callback(lambda done: settled.put((row, done)))
        return None


def take_settled(settled: SimpleQueue[tuple[Row, Operation]]) -> list[SettledRow]:
    """The rows that have settled since the last call. Waits for the first, LOOK_S at most."""
    ended: list[SettledRow] = []
    try:
        pair = settled.get(timeout=LOOK_S)
        while True:
            ended.append(settled_row(*pair))
            pair = settled.get_nowait()
    except Empty:
        return ended


def settled_row(row: Row, operation: Operation) -> SettledRow:
    """A row with the outcome of its operation."""
    outcome: Outcome | None = operation.outcome()
    assert outcome is not None, f"{operation!r} has not settled"
    error = None if outcome.error is None else f"{type(outcome.error).__name__}: {outcome.error}"
    value = outcome.value if outcome or outcome.value else None
    return SettledRow(row, outcome.state.name.lower(), value, outcome.wait_ns, error)


def result_batches(ended: list[SettledRow]) -> Iterator[pyarrow.RecordBatch]:
    """A batch of the rows, with the added columns. Yields nothing if there are no rows."""
    if not ended:
        return
    import pyarrow

    rows = gather([one.row for one in ended])
    yield pyarrow.RecordBatch.from_arrays(
        [
            *rows.columns,
            pyarrow.array([one.outcome for one in ended], pyarrow.string()),
            pyarrow.array([one.value for one in ended], pyarrow.binary()),
            pyarrow.array([one.waited_ns / 1e6 for one in ended], pyarrow.float64()),
            pyarrow.array([one.error for one in ended], pyarrow.string()),
        ],
        names=[*rows.schema.names, *ADDED],
    )
