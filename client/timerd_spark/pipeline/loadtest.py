"""loadtest(): a planned workload, played from Spark's Python workers against the daemons of their hosts.

The load test is an open loop: the schedule is fixed before the start, and each operation is sent at its time, even if
the daemon does not keep up. Waits count from the intended time (G. Tene, "How not to measure latency": no
coordinated omission). All tasks start together, behind a barrier.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from timerd_client.workload import MARGIN_NS
from timerd_shm.declare.errors import BackpressureError, InvalidValueError, TimerdUnavailableError
from timerd_shm.host.paths import INSTANCE_DEFAULT
from timerd_spark.source.schema import LONG, TERMINAL, Column, arrow_schema, ddl

from .plans import PLAN, need_plan

if TYPE_CHECKING:
    import numpy as np
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

    from timerd_client import Outcome
    from timerd_client.link.batch import ThreadedBatch

T = TypeVar("T")
PLAYERS_MAX: Final = 4_096
LEAD_NS: Final = 1_500_000_000  # tasks agree on the start this long before: Spark opens a barrier only once a second
PATIENCE_S: Final = 60.0  # the longest wait for outcomes after the last deadline, and for room in the window
BATCH: Final = 4_096  # operations in a call, at most
PAUSE_S: Final = 0.001  # the shortest sleep: operations whose times lie within it go out together
# The columns of a result: the terminal view, and the delays that the machine has added to the plan.
PLAYED: Final = (
    *TERMINAL,
    Column("behind_ns", LONG, "ns", "how long after its intended time register() was called", False),
    Column("added_ns", LONG, "ns", "wait beyond the plan, from the intended time", False),
)


class Part(NamedTuple):
    """The operations that one task plays, sorted by time: columns of equal length."""

    op: np.ndarray
    due_ns: np.ndarray
    delay_ns: np.ndarray
    timeout_ns: np.ndarray
    keys: list[str]


class Sent(NamedTuple):
    """One call of register_many(): the operations of the rows from `first` to `end`."""

    first: int
    end: int
    called_ns: int
    batch: ThreadedBatch


def loadtest(
    spark: SparkSession,
    workload: DataFrame,
    *,
    players: int = 2,
    instance: str = INSTANCE_DEFAULT,
    runtime_dir: str | None = None,
    payload: int = 100,
    run: str = "",
) -> DataFrame:
    """Play a plan. The result has a row for each operation: the terminal view, `behind_ns` and `added_ns`.

    `players` tasks run at the same time, so the cluster needs as many free slots. Task i % players registers and fires
    operation i. Each task has a client of its host's daemon: `instance`, in `runtime_dir` or the host's usual
    directory. `payload` is in bytes. `registered_at` is the intended time, and `wait_ns` counts from it. Each key
    begins with `run`, so that two runs share no key. Each action on the result plays the plan again, so write the
    result to a table before you use it.

    Raises InvalidValueError if `workload` is no plan. Without a daemon, the tasks raise TimerdUnavailableError.
    """
    from pyspark.sql import functions as F

    need_plan(workload, "loadtest()")
    if isinstance(players, bool) or not isinstance(players, int) or not 1 <= players <= PLAYERS_MAX:
        raise InvalidValueError(f"loadtest(): players={players!r}: give 1 to {PLAYERS_MAX:,}")
    shares = workload.repartitionById(players, (F.col("op") % players).cast("int"))

    def played(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        yield from play(part_of(batches, run), instance, runtime_dir, bytes(payload), common_start_ns)

    return shares.mapInArrow(played, ddl(PLAYED), barrier=True)


def common_start_ns() -> int:
    """The time at which all tasks start, in ns of this host's CLOCK_MONOTONIC. Hosts agree on it by wall clock."""
    from pyspark import BarrierTaskContext

    wall, monotonic = time.time_ns(), time.monotonic_ns()
    starts = BarrierTaskContext.get().allGather(str(wall + LEAD_NS))
    return monotonic + max(map(int, starts)) - wall


def part_of(batches: Iterable[pyarrow.RecordBatch], run: str) -> Part:
    """The rows of a task, sorted by time."""
    import numpy as np
    import pyarrow as pa

    # A task without rows gets no batch.
    schema = pa.schema([(name, pa.string() if kind == "string" else pa.int64()) for name, kind in PLAN.items()])
    table = pa.concat_tables([schema.empty_table(), *(pa.table(batch) for batch in batches)], promote_options="default")
    order = np.argsort(table["due_ns"].to_numpy(), kind="stable")
    op, due, delay, timeout = (table[name].to_numpy()[order] for name in ("op", "due_ns", "delay_ns", "timeout_ns"))
    keys = table["key"].to_pylist()
    return Part(op, due, delay, timeout, [run + keys[at] for at in order.tolist()])


def play(
    part: Part, instance: str, runtime_dir: str | None, payload: bytes, start: Callable[[], int]
) -> Iterator[pyarrow.RecordBatch]:
    """Play a part. `start` is called when the client is connected, and returns the time (ns) when the part begins."""
    from timerd_client import connect

    with connect(instance, runtime_dir=runtime_dir) as client:
        start_ns = start()
        # Both clocks are read at one moment, because the result has times of the wall clock.
        origin_us = (time.time_ns() - time.monotonic_ns() + start_ns) // 1_000
        sent: list[Sent] = []
        order, fires_ns = fires_of(part)
        uniform = len(part.op) and (part.timeout_ns == part.timeout_ns[0]).all()
        at = fired = 0
        rows, events = len(part.op), len(order)
        while at < rows or fired < events:
            now = time.monotonic_ns() - start_ns
            due = min(int(part.due_ns.searchsorted(now, "right")), at + BATCH)
            if due > at:
                timeouts: Any = (part.timeout_ns[at:due] / 1e9).tolist()
                keys, timeout = part.keys[at:due], timeouts[0] if uniform else timeouts
                batch = _when_room(partial(client.register_many, keys, timeout=timeout, payloads=payload))
                called_ns = batch.registered_ns - start_ns
                sent.append(Sent(at, due, called_ns, batch))
                at = due
            # No event is fired before its registration. The plan has the registration MARGIN_NS earlier, but the
            # registration may be late.
            until = min(int(fires_ns.searchsorted(now, "right")), fired + BATCH)
            ready = order[fired:until]
            registered = int((ready >= at).argmax()) if len(ready) and (ready >= at).any() else len(ready)
            if registered:
                _when_room(partial(client.fire_many, [part.keys[row] for row in ready[:registered].tolist()]))
                fired += registered
            upcoming = [int(part.due_ns[at])] if at < rows else []
            upcoming += [int(fires_ns[fired])] if fired < events else []
            if upcoming and (wait := min(upcoming) - (time.monotonic_ns() - start_ns)) > 0:
                time.sleep(max(wait / 1e9, PAUSE_S))
        patience = (float(part.timeout_ns.max()) / 1e9 if rows else 0.0) + PATIENCE_S
        yield from results(part, sent, instance, origin_us, patience)


def _when_room(call: Callable[[], T]) -> T:
    """Repeat a call until the client's window has room. If the daemon is late, the figures show the delay."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            return call()
        except BackpressureError:
            if time.monotonic() > end:
                raise


def fires_of(part: Part) -> tuple[np.ndarray, np.ndarray]:
    """(rows, times): rows in the order in which their events are fired. Events after all deadlines are left out."""
    import numpy as np

    if not len(part.op):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    when = part.due_ns + part.delay_ns
    end = int((part.due_ns + part.timeout_ns).max()) + MARGIN_NS
    order = np.argsort(when, kind="stable")
    order = order[when[order] <= end]
    return order, when[order]


def results(
    part: Part, sent: Iterable[Sent], instance: str, origin_us: int, patience: float
) -> Iterator[pyarrow.RecordBatch]:
    """The results of the operations of all calls, in the order of the part's rows.

    A call registers only a few operations, and a batch of Arrow has many columns. So a batch has the results of many
    calls.
    """
    import numpy as np

    outcomes: list[Outcome] = []
    behind: list[np.ndarray] = []
    for one in sent:
        outcomes += one.batch.outcomes(timeout=patience)
        behind.append(np.maximum(one.called_ns - part.due_ns[one.first : one.end], 0))
        if len(outcomes) >= BATCH:
            yield results_of(part, one.end, outcomes, np.concatenate(behind), instance, origin_us)
            outcomes, behind = [], []
    if outcomes:
        yield results_of(part, len(part.op), outcomes, np.concatenate(behind), instance, origin_us)


def results_of(
    part: Part, end: int, outcomes: Sequence[Outcome], behind: np.ndarray, instance: str, origin_us: int
) -> pyarrow.RecordBatch:
    """The results of the last rows of a part before `end`: as many rows as there are outcomes."""
    import numpy as np
    import pyarrow as pa

    rows = slice(end - len(outcomes), end)
    due, timeout = part.due_ns[rows], part.timeout_ns[rows]
    waits = np.array([outcome.wait_ns for outcome in outcomes], np.int64) + behind
    planned = np.minimum(part.delay_ns[rows], timeout)
    states = [outcome.state.name.lower() for outcome in outcomes]
    if unknown := sum(state == "unavailable" for state in states):
        raise TimerdUnavailableError(f"{unknown} operations have no outcome: the daemon was lost")
    registered = origin_us + due // 1_000
    count = len(outcomes)
    columns: dict[str, Any] = {
        "op_id": [f"{platform.node()}-{origin_us:x}-{op:x}" for op in part.op[rows].tolist()],
        "host": [platform.node()] * count,
        "instance": [instance] * count,
        "purgatory": ["default"] * count,
        "key": part.keys[rows],
        "outcome": states,
        "settled_key": [0 if state == "completed" else None for state in states],
        "registered_at": registered,
        "deadline": registered + timeout // 1_000,
        "settled_at": registered + waits // 1_000,
        "timeout_ns": timeout,
        "wait_ns": waits,
        "lateness_ns": [
            o.lateness_ns if state == "expired" else None for o, state in zip(outcomes, states, strict=True)
        ],
        "flags": [0] * count,
        "behind_ns": behind,
        "added_ns": np.maximum(waits - planned, 0),
    }
    schema = arrow_schema(PLAYED)
    arrays = []
    for field in schema:
        values = columns.get(field.name)
        if values is None:
            arrays.append(pa.nulls(count, field.type))
        elif pa.types.is_timestamp(field.type):
            arrays.append(pa.array(values, pa.int64()).cast(field.type))
        else:
            arrays.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
