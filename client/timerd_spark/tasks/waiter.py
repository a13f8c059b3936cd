"""Rows that wait for an event: a DataFrame's rows, each until a process on its host fires its key, or its time is over.

    answered = timerd_spark.await_events(df, key="callback_key", timeout="2s")

The task that has a row holds its slot while the row waits, so this is for short waits; SPARK.md beside this file has a
table of when Spark's own timers (transformWithState), or the sink and the journal, are the better tool.
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
from .task import Sidecar

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame

ADDED = ("outcome", "value", "waited_ms", "error")
LOOK_S = 1.0  # at most so long without a look at settled operations


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
    """Each row waits for an event on its key (a column: string or binary; an array of them: any), `timeout` at most.

    Events come from any process of the task's host: `client.fire(key, value=...)`. A row waits from when its task has
    registered it; an event before that completes nothing, unless it was limited and has something left. A task has
    `in_flight` rows waiting at most, within a client's quota at the daemon; the others come after them.

    Gives the rows in the order in which they settled, with the columns outcome (string: completed, expired, failed,
    cancelled; unavailable: nobody knows, the daemon was gone), value (binary, the event's; null if there was none),
    waited_ms (double) and error (string; null if there was none, also that of a key that cannot be watched).

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
        raise InvalidValueError(f"timeout={timeout!r}: 10 years at most")
    if type(in_flight) is not int or in_flight < 1:
        raise InvalidValueError(f"in_flight={in_flight!r}: an int from 1")
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


class Ended(NamedTuple):
    """A row whose wait is over."""

    row: Row
    outcome: str
    value: bytes | None
    waited_ns: int
    error: str | None


class Awaiting:
    """What a task does with its batches. Plain values only: it is pickled on the driver."""

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
                        ended = take(settled)
                        waiting -= len(ended)
                        yield from given(ended)
                    refused = self._register(client, row, key, settled)
                    if refused is None:
                        waiting += 1
                    else:
                        yield from given([refused])
            while waiting:
                ended = take(settled)
                waiting -= len(ended)
                yield from given(ended)

    def _register(
        self, client: Client, row: Row, key: Any, settled: SimpleQueue[tuple[Row, Operation]]
    ) -> Ended | None:
        """Have a row wait; its result, if it cannot wait."""
        try:
            operation = client.register(key, timeout=self._timeout_s)
        except TimerdError as error:
            return Ended(row, "failed", None, 0, f"{type(error).__name__}: {error}")
        operation.add_done_callback(lambda done: settled.put((row, done)))
        return None


def take(settled: SimpleQueue[tuple[Row, Operation]]) -> list[Ended]:
    """Operations that have settled since the last call; waits for the first."""
    ended: list[Ended] = []
    try:
        pair = settled.get(timeout=LOOK_S)
        while True:
            ended.append(ended_of(*pair))
            pair = settled.get_nowait()
    except Empty:
        return ended


def ended_of(row: Row, operation: Operation) -> Ended:
    """How a row's wait ended."""
    outcome: Outcome | None = operation.outcome()
    assert outcome is not None, f"{operation!r} has not settled"
    error = None if outcome.error is None else f"{type(outcome.error).__name__}: {outcome.error}"
    value = outcome.value if outcome or outcome.value else None
    return Ended(row, outcome.state.name.lower(), value, outcome.wait_ns, error)


def given(ended: list[Ended]) -> Iterator[pyarrow.RecordBatch]:
    """The rows with their results."""
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
