"""KIP-91 inside a task: each row is delivered, fails or expires within delivery_timeout. The result is a DataFrame.

    ends = timerd_spark.deliver(df, post, id="order_id", delivery_timeout="120s", request_timeout="30s")
    ends.write.parquet(path)                                 # each further action sends all rows again

timerd_client/delivery has the rules (accumulator.py) and the threads (courier.py). This module converts rows from and
to Arrow batches, and makes the checks of deliver() on the driver.
"""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING
from zlib import crc32

from timerd_client.delivery.batch import Attempt, Delivery
from timerd_client.delivery.courier import Courier
from timerd_client.delivery.errors import is_retriable
from timerd_client.delivery.options import DeliveryOptions, S
from timerd_shm.declare.errors import InvalidValueError
from timerd_spark.durations import duration_ns

from .rows import check_columns, column_names, gather, rows_of, values_of
from .task import Sidecar, owner_name, warn_of_idle_kill

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

Duration = str | float | timedelta
Send = Callable[["pyarrow.RecordBatch"], object]

ADDED = ("outcome", "attempts", "latency_ms", "error")
BACKOFF_MAX_NS = S
LOOK_S = 1.0  # the longest wait for settled rows
NOT_RUN_BY_A_CALL = (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction)
PLAIN = "give a plain function, such as lambda batch: asyncio.run(send(batch))"


def deliver(
    df: DataFrame,
    send: Send,
    *,
    id: str | list[str],
    key: str | None = None,
    delivery_timeout: Duration = "120s",
    request_timeout: Duration = "30s",
    linger: Duration = "5ms",
    batch_size: int = 500,
    max_in_flight: int = 8,
    retries: int | None = None,
    retry_backoff: Duration = "100ms",
    retriable: Callable[[Exception], bool] = is_retriable,
    instance: str | None = None,
    runtime_dir: str | None = None,
    autostart: bool = False,
) -> DataFrame:
    """Send every row with `send(batch)`, in threads of the tasks. The result has the outcome of each row.

    `send` gets a pyarrow.RecordBatch of 1 to `batch_size` rows, a MiB or so. When it returns, the rows are delivered.
    When it raises a `retriable` error, the rows are sent again after a backoff that doubles up to a second. By default,
    timeouts, connection errors, HTTP 5xx, 408, 425, 429 and RetriableError are retriable. After another error, or after
    the last of `retries`, the rows have failed. `send` should give up by itself after `request_timeout`, because then
    another thread sends its rows again. `max_in_flight` is the number of batches in flight in each task. Rows of the
    same `key` (a column) are sent in order; without `key` there is no order.

    The time of a row begins when the row enters the task's accumulator. timerd keeps the deadlines, so a row expires
    even while its task is stuck. A task ends when all of its rows have outcomes: at most delivery_timeout after the
    last row came in, and a few seconds later if the daemon is lost. A task that is run again sends its rows again: the
    receiver should recognize rows by their id.

    Result: the columns `id`, outcome (string: delivered, failed, expired), attempts (int), latency_ms (double), error
    (string, null if delivered). Each action on the result sends again: write or cache it.

    Durations are "120s", "5ms" or seconds. `instance`, `runtime_dir` and `autostart` choose the daemon of each host, as
    in connect(). Their defaults come from the driver's environment. Raises InvalidValueError,
    DeliveryTimeoutTooShortError.
    """
    ids = column_names("id", id)
    check_columns(df, [("id", name) for name in ids] + ([("key", key)] if key is not None else []), ADDED, ids)
    for name, function in (("send", send), ("retriable", retriable)):
        if not callable(function):
            raise InvalidValueError(f"{name}={function!r} cannot be called")
        if any(is_kind(function) for is_kind in NOT_RUN_BY_A_CALL):
            raise InvalidValueError(f"{name}={function!r} is async or a generator, so a call would not run it: {PLAIN}")
    backoff_ns = duration_ns("retry_backoff", retry_backoff)
    options = DeliveryOptions(
        delivery_timeout_ns=duration_ns("delivery_timeout", delivery_timeout),
        request_timeout_ns=duration_ns("request_timeout", request_timeout),
        linger_ns=duration_ns("linger", linger),
        batch_size=batch_size,
        max_in_flight=max_in_flight,
        retries=retries,
        retry_backoff_ns=backoff_ns,
        retry_backoff_max_ns=max(backoff_ns, BACKOFF_MAX_NS),
    )
    warn_of_idle_kill(df, "delivery_timeout", options.delivery_timeout_ns)
    room = max(options.buffer_records, 2 * batch_size * max_in_flight)  # for the batches in flight, and the next ones
    delivering = Delivering(
        send, ids, key, replace(options, buffer_records=room), retriable, Sidecar.of(instance, runtime_dir, autostart)
    )
    return df.mapInArrow(delivering, result_schema(df, ids))


def result_schema(df: DataFrame, ids: Sequence[str]) -> StructType:
    """The columns of the result."""
    from pyspark.sql import types

    return types.StructType(
        [
            *(df.schema[name] for name in ids),
            types.StructField("outcome", types.StringType(), False),
            types.StructField("attempts", types.IntegerType(), False),
            types.StructField("latency_ms", types.DoubleType(), False),
            types.StructField("error", types.StringType()),
        ]
    )


class Delivering:
    """The function that a task calls with its batches. Plain values only, because the driver pickles it."""

    def __init__(
        self,
        send: Send,
        ids: Sequence[str],
        key: str | None,
        options: DeliveryOptions,
        retriable: Callable[[Exception], bool],
        sidecar: Sidecar,
    ) -> None:
        self._send = send
        self._ids = ids
        self._key = key
        self._options = options
        self._retriable = retriable
        self._sidecar = sidecar

    def __call__(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        with self._sidecar.row_client() as client:
            # An attempt's name is unique only within its application. The token makes the prefix unique.
            prefix = f"deliver/{owner_name()}/{secrets.token_hex(4)}"
            courier = Courier(client, self._post, self._options, prefix=prefix, retriable=self._retriable)
            try:
                for batch in batches:
                    yield from self._offer(courier, batch)
                courier.close()
                while courier.pending:
                    yield from self._results(courier.take(LOOK_S))
            finally:
                courier.stop()

    def _post(self, attempt: Attempt) -> None:
        given = self._send(gather(attempt.records))
        if inspect.iscoroutine(given):
            given.close()
            raise InvalidValueError(f"send returned the coroutine {given!r}, which was not run: {PLAIN}")

    def _offer(self, courier: Courier, batch: pyarrow.RecordBatch) -> Iterator[pyarrow.RecordBatch]:
        """Offer every row, and yield the rows that settle meanwhile."""
        rows = rows_of(batch)
        lanes = self._lanes(batch)
        # The average size. A row larger than the buffer counts as the buffer's size, and so is alone in the buffer.
        sizes = [min(batch.nbytes // max(1, batch.num_rows), self._options.buffer_bytes)] * batch.num_rows
        start = 0
        while start < len(rows):
            taken = courier.offer(rows[start:], None if lanes is None else lanes[start:], sizes[start:])
            start += taken
            yield from self._results(courier.take(0 if taken else LOOK_S))

    def _lanes(self, batch: pyarrow.RecordBatch) -> list[int] | None:
        """The lane of each row. Keys share `max_in_flight` lanes, as they share partitions in Kafka."""
        if self._key is None:
            return None
        lanes = self._options.max_in_flight
        return [crc32(repr(key).encode()) % lanes for key in values_of(batch[self._key])]

    def _results(self, deliveries: list[Delivery]) -> Iterator[pyarrow.RecordBatch]:
        if not deliveries:
            return
        import pyarrow

        ids = gather([delivery.record for delivery in deliveries]).select(self._ids)
        yield pyarrow.RecordBatch.from_arrays(
            [
                *ids.columns,
                pyarrow.array([delivery.outcome.value for delivery in deliveries], pyarrow.string()),
                pyarrow.array([delivery.attempts for delivery in deliveries], pyarrow.int32()),
                pyarrow.array([delivery.latency_ns / 1e6 for delivery in deliveries], pyarrow.float64()),
                pyarrow.array([delivery.error for delivery in deliveries], pyarrow.string()),
            ],
            names=[*self._ids, *ADDED],
        )
