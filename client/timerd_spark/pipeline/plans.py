"""workload(): the operations of a load test as a DataFrame. A seed gives the same plan for any number of partitions.

Arrivals and delays are distributed as in timerd_client.workload. Row i takes its random numbers from Philox (J. K.
Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) with the key (seed, stream) and the counter i, so
a row does not depend on the task that makes it. Arrivals are planned in blocks of BLOCK rows. Where the number of
arrivals of a Poisson process is given, their times are distributed like sorted uniform times. So a block sorts uniform
times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from timerd_client.workload import COUNT_MAX, NS, QUANTILES, Workload, check, delays
from timerd_shm.declare.errors import InvalidValueError
from timerd_spark.durations import duration_ns
from timerd_spark.reports.inputs import types_of

if TYPE_CHECKING:
    import numpy as np
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

BLOCK: Final = 1 << 16
ARRIVALS, DELAYS = 0, 1  # streams of random numbers
PARTITIONS_MAX: Final = 100_000
SEED_MAX: Final = (1 << 63) - 1
# The columns of a plan: the number of the operation, the time of its registration (from the start), the delay from its
# registration to its event, its timeout, and its key.
DRAWN: Final = {"op": "bigint", "due_ns": "bigint", "delay_ns": "bigint"}
PLAN: Final = {**DRAWN, "timeout_ns": "bigint", "key": "string"}


class Profile(NamedTuple):
    """Timeout and delays of a workload, in milliseconds."""

    timeout_ms: int
    p50_ms: int
    p75_ms: int


PROFILES: Final = {"seed": Profile(200, 20, 60), "slow": Profile(200, 200, 400)}


def workload(
    spark: SparkSession,
    profile: str = "seed",
    *,
    ops: int = 100_000,
    rate: float = 10_000.0,
    seed: int = 1,
    partitions: int = 2,
    timeout: str | None = None,
    first: int = 0,
) -> DataFrame:
    """Operations `first` to `first + ops - 1` of a workload, in any order, with the columns PLAN.

    With the profile "seed" 7.9 % of the operations expire, with "slow" half. `rate` is in operations a second;
    `timeout` ("150ms") replaces the profile's. Raises InvalidValueError for an argument out of range.
    """
    from pyspark.sql import functions as F

    for name, value, low, high in (
        ("partitions", partitions, 1, PARTITIONS_MAX),
        ("ops", ops, 1, COUNT_MAX),
        ("first", first, 0, COUNT_MAX),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise InvalidValueError(f"workload(): {name}={value!r}: give {low:,} to {high:,}")
    shape = shape_of(profile, ops=first + ops, rate=rate, seed=seed, timeout=timeout)
    blocks = spark.range(first // BLOCK, -(-(first + ops) // BLOCK), 1, partitions)

    def planned(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        for batch in batches:
            for block in batch["id"].to_pylist():
                yield block_of(shape, block, first)

    drawn = blocks.mapInArrow(planned, ", ".join(f"{name} {kind}" for name, kind in DRAWN.items()))
    key = F.concat(F.lit("w"), F.lower(F.hex("op")))  # Spark makes the keys, and only those that are read
    return drawn.select("*", F.lit(shape.timeout_ns).cast("bigint").alias("timeout_ns"), key.alias("key"))


def shape_of(profile: str, *, ops: int, rate: float, seed: int, timeout: str | None) -> Workload:
    """The parameters of a plan, as a Workload of the load test. Raises InvalidValueError."""
    known = PROFILES.get(profile)
    if known is None:
        raise InvalidValueError(f"workload(): profile={profile!r}: give {' or '.join(PROFILES)}")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= SEED_MAX:
        raise InvalidValueError(f"workload(): seed={seed!r}: give 0 to {SEED_MAX:,}")
    timeout_ns = known.timeout_ms * 1_000_000 if timeout is None else duration_ns("timeout", timeout)
    p50_ns, p75_ns = known.p50_ms * 1_000_000, known.p75_ms * 1_000_000
    return check(Workload(rate=rate, count=ops, timeout_ns=timeout_ns, p50_ns=p50_ns, p75_ns=p75_ns, seed=seed))


def draws(seed: int, stream: int, first: int, count: int) -> np.ndarray:
    """The random numbers of `count` rows from `first` on, 64 bits each, always the same. `first` is a multiple of 4."""
    import numpy as np

    assert first % 4 == 0, f"first={first}"
    philox = np.random.Philox(key=np.array([seed, stream], np.uint64), counter=first // 4)
    drawn: np.ndarray = philox.random_raw(count)
    return drawn


def block_of(shape: Workload, block: int, first: int = 0) -> pyarrow.RecordBatch:
    """The columns DRAWN of a block, without rows before `first` and beyond the workload's count."""
    import numpy as np
    import pyarrow as pa

    begin = block * BLOCK
    uniform = (draws(shape.seed, ARRIVALS, begin, BLOCK) >> np.uint64(11)) * 2.0**-53
    due = ((block + np.sort(uniform)) * (BLOCK / shape.rate * NS)).astype(np.int64)
    quantile = draws(shape.seed, DELAYS, begin, BLOCK) & np.uint64(QUANTILES - 1)
    delay = np.array(delays(shape.p50_ns, shape.p75_ns), np.int64)[quantile.astype(np.int64)]
    rows = slice(max(first - begin, 0), min(shape.count - begin, BLOCK))
    columns = (np.arange(begin, begin + BLOCK), due, delay)
    return pa.RecordBatch.from_arrays([pa.array(column[rows]) for column in columns], names=list(DRAWN))


def due_of(shape: Workload, op: int) -> int:
    """The time at which an operation of a plan is to be registered, in ns from the start of the plan."""
    due: int = block_of(shape, op // BLOCK, op)["due_ns"][0].as_py()
    return due


def need_plan(df: DataFrame, what: str) -> None:
    """Raise InvalidValueError if a DataFrame is not a plan."""
    there = types_of(df)
    for name, kind in PLAN.items():
        if there.get(name) != kind:
            raise InvalidValueError(
                f"{what} needs the column {name!r} of type {kind}, as workload() makes it; there are "
                f"{', '.join(f'{one} {of}' for one, of in there.items()) or 'none'}"
            )


def planned_lives(plan: DataFrame, start_us: int, host: str = "planned") -> DataFrame:
    """The terminal view of a plan, as a daemon that is never late would write it. None of the operations was played.

    `start_us` is the start of the plan, in microseconds since 1970. `host` is the host's name in the result.
    """
    from pyspark.sql import functions as F

    from timerd_spark.source.schema import TERMINAL

    need_plan(plan, "planned_lives()")
    expired = F.col("delay_ns") > F.col("timeout_ns")
    wait = F.least("delay_ns", "timeout_ns")
    registered_us = F.lit(start_us) + F.floor(F.col("due_ns") / 1_000)
    columns = {
        "op_id": F.concat(F.lit("planned-"), F.lpad(F.lower(F.hex("op")), 16, "0")),
        "host": F.lit(host),
        "instance": F.lit("planned"),
        "purgatory": F.lit("default"),
        "key": F.col("key"),
        "outcome": F.when(expired, F.lit("expired")).otherwise(F.lit("completed")),
        "settled_key": F.when(~expired, F.lit(0)),
        "registered_at": F.timestamp_micros(registered_us),
        "deadline": F.timestamp_micros(registered_us + F.floor(F.col("timeout_ns") / 1_000)),
        "settled_at": F.timestamp_micros(registered_us + F.floor(wait / 1_000)),
        "timeout_ns": F.col("timeout_ns"),
        "wait_ns": wait,
        "lateness_ns": F.when(expired, F.lit(0)),
        "flags": F.lit(0),
    }
    return plan.select(*(columns.get(c.name, F.lit(None)).cast(c.type).alias(c.name) for c in TERMINAL))
