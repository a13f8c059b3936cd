"""Operations in Spark's state: purgatory() beside a toy, by layout and partitions, what waits, and a hot group.

    .venv-spark/bin/python bench/suites/spark_purgatory.py [--rows 50k] [--batches 12] [--pending 100k,1M] [--json FILE]

The rows come from files, one of registrations and one of events for each batch, both half of `rows`. Each operation has
a timeout of 1 s and one event after a random time of 0 to 1.25 s, so a fifth expires. The outcomes are checked against
this plan. The first batches warm the JVM up and do not count.

    toy          a dictionary for each bucket, pickled, with one timer: no order, conditions, ids, marks or late rows
    one stage    purgatory() over operations of one key
    two stages   purgatory() over operations of --keys keys, of which one has the event

The table `expiry` has a source of --rate rows a second and a trigger of 0 s: how long after its deadline an expired
operation reaches the sink, beside the median time of a batch. `pending` has one batch beside many waiting operations.
`hot group` has by=, and half of all rows in one group.
"""

from __future__ import annotations

import os
import pickle
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

import timerd_spark
from bench.lib.common import Failed, Parser, Suite, amount, listed, run_suite

NS = 1_000_000_000
T0_NS = 1_790_000_000 * NS
STEP_NS = 1_000_000  # from one registration to the next one
WARM = 3  # batches that do not count
FAR_S = 1e6  # the timeout of operations that only wait
RATE_S = 20  # of the table `expiry`


def make_files(directory: Path, suite: Suite, batches: int, rows: int, keys: int | None, hot: bool) -> int:
    """The files of `batches` batches. `keys`: None for a string. Returns the number of operations that complete."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(suite.seed)
    half, completed = rows // 2, 0
    for number in range(batches):
        at = np.arange(number * half, (number + 1) * half)
        names = [f"key{each}" for each in at]
        columns = {
            "at": T0_NS + at * STEP_NS,
            "seq": 2 * at,
            "keys": names if keys is None else [[one, *(f"{one}.{n}" for n in range(keys - 1))] for one in names],
            "timeout": np.ones(half),
        }
        after = rng.integers(0, 1_250, half)
        completed += int((after < 1_000).sum())
        fired = {"at": columns["at"] + after * STEP_NS, "seq": 2 * at + 1, "key": names}
        if hot:
            columns["team"] = fired["team"] = ["hot" if each % 2 else f"team{each % 1_000}" for each in at]
        for name, table in (("r", columns), ("e", fired)):
            path = directory / name / f"{number}.parquet"
            path.parent.mkdir(exist_ok=True)
            pq.write_table(pa.table(table), path)
            os.utime(path, (1e9 + number, 1e9 + number))  # sources take files in the order of their times
    return completed


def cpu_s() -> tuple[float, float]:
    """The CPU time of the JVM, and that of the Python workers."""
    jvm = python = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            times, is_jvm = process.cpu_times(), process.name().startswith("java")
        except psutil.Error:
            continue
        if is_jvm:
            jvm += times.user + times.system
        else:
            python += times.user + times.system
    return jvm, python


def toy() -> Any:
    """A StatefulProcessor. A function makes its class, because the base class needs Spark."""
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    made = Row("op_id", "outcome")

    class Toy(StatefulProcessor):  # type: ignore[misc]
        """Keeps the deadline of each key."""

        def init(self, handle: Any) -> None:
            self.handle, self.state = handle, handle.getValueState("state", "deadlines binary")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            waiting = self.waiting()
            for _, at, name, deadline, _ in sorted(rows, key=lambda row: row[1]):
                if deadline:
                    waiting[name] = deadline
                elif (due := waiting.pop(name, None)) is not None:
                    yield made(name, "completed" if at < due else "expired")
            yield from self.expire(waiting, timerValues.getCurrentWatermarkInMs() * 1_000_000)

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
            yield from self.expire(self.waiting(), timerValues.getCurrentWatermarkInMs() * 1_000_000)

        def waiting(self) -> dict[str, int]:
            found = self.state.get()
            return {} if found is None else pickle.loads(bytes(found[0]))

        def expire(self, waiting: dict[str, int], until_ns: int) -> Iterator[Any]:
            for name in [name for name, due in waiting.items() if due <= until_ns]:
                del waiting[name]
                yield made(name, "expired")
            if waiting:
                self.state.update((pickle.dumps(waiting),))
                self.handle.registerTimer(-(-min(waiting.values()) // 1_000_000))
            else:
                self.state.clear()

        def close(self) -> None:
            pass

    return Toy()


def toy_over(registrations: Any, events: Any, buckets: int) -> Any:
    of = f"int(pmod(xxhash64({{}}), {buckets})) AS bucket"
    made = registrations.selectExpr(of.format("keys"), "at", "keys AS k", "at + bigint(timeout * 1e9) AS deadline")
    fired = events.selectExpr(of.format("key"), "at", "key AS k", "0L AS deadline")
    rows = made.unionByName(fired).selectExpr("*", "timestamp_micros(at div 1000) AS time")
    return (
        rows.withWatermark("time", "1 second")
        .groupBy("bucket")
        .transformWithState(
            statefulProcessor=toy(),
            outputStructType="op_id string, outcome string",
            outputMode="append",
            timeMode="EventTime",
        )
    )


def sources(spark: Any, directory: Path, keys: int | None, hot: bool) -> tuple[Any, Any]:
    reader = spark.readStream.option("maxFilesPerTrigger", 1)
    kind, more = "string" if keys is None else "array<string>", ", team string" if hot else ""
    return (
        reader.schema(f"at bigint, seq bigint, keys {kind}, timeout double{more}").parquet(str(directory / "r")),
        reader.schema(f"at bigint, seq bigint, key string{more}").parquet(str(directory / "e")),
    )


def run(suite: Suite, spark: Any, layout: str, partitions: int, keys: int | None, hot: bool = False) -> None:
    """One row of the table `throughput`: the batches after the warm ones."""
    rows, batches = suite.args.rows, suite.args.batches
    directory = Path(tempfile.mkdtemp(prefix="spark-purgatory-"))
    spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
    suite.say(f"{layout}, {partitions} partitions")
    try:
        completed = make_files(directory, suite, batches, rows, keys, hot)
        registrations, events = sources(spark, directory, keys, hot)
        if layout == "toy":
            outcomes = toy_over(registrations, events, suite.args.buckets)
        else:
            outcomes = timerd_spark.purgatory(
                registrations, events, by="team" if hot else None, delay="1s", marks="2s", idle_after=None,
                buckets=suite.args.buckets,
            )  # fmt: skip
        writer = outcomes.writeStream.format("parquet").option("path", str(directory / "out"))
        query = writer.option("checkpointLocation", str(directory / "checkpoint")).trigger(availableNow=True).start()
        took: dict[int, tuple[int, float]] = {}
        used: dict[int, tuple[float, float]] = {}
        while query.isActive:
            for one in query.recentProgress:
                if one["batchId"] not in took:
                    took[one["batchId"]] = one["numInputRows"], one["durationMs"].get("triggerExecution", 0) / 1e3
                    used[one["batchId"]] = cpu_s()
            time.sleep(0.1)
        if query.exception() is not None:
            raise Failed(f"{layout}: the query has ended: {query.exception()}")
        full = sorted(number for number, (count, _) in took.items() if count >= rows)
        first, last, counted = full[WARM - 1], full[-1], full[WARM:]
        count = sum(took[number][0] for number in counted)
        jvm, python = (after - before for before, after in zip(used[first], used[last], strict=True))
        seconds = sorted(took[number][1] for number in counted)
        suite.add(
            "throughput",
            layout=layout,
            keys=keys or 1,
            partitions=partitions,
            rows=count,
            rows_s=round(rows / seconds[len(seconds) // 2]),
            slowest_batch_s=round(seconds[-1], 2),
            jvm_us=round(jvm / count * 1e6, 1),
            python_us=round(python / count * 1e6, 1),
        )
        found = {row.outcome: row["count"] for row in _read(spark, directory).groupBy("outcome").count().collect()}
        suite.check(
            f"outcomes_{layout}_{partitions}_{keys}".replace(" ", "_"),
            # The last operations wait for a later row. The toy and purgatory() have the same.
            0 <= completed - found.get("completed", 0) <= 2_000
            and sum(found.values()) == _read(spark, directory).select("op_id").distinct().count(),
            f"{layout}: {found}, {completed} planned to complete; none twice",
        )
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _read(spark: Any, directory: Path) -> Any:
    return spark.read.parquet(str(directory / "out"))


def run_expiry(suite: Suite, spark: Any, mode: str, keys: int | None) -> None:
    """Operations without events, at a rate: how late their expiry reaches the sink."""
    directory = Path(tempfile.mkdtemp(prefix="spark-purgatory-"))
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    rate = spark.readStream.format("rate").option("rowsPerSecond", suite.args.rate).load()
    name = "concat('k', value)" if keys is None else "array(concat('k', value), concat('o', value))"
    registrations = rate.selectExpr("timestamp AS at", "value AS seq", f"{name} AS keys", "0.5D AS timeout")
    events = rate.where("value < 0").selectExpr("timestamp AS at", "'none' AS key")
    outcomes = timerd_spark.purgatory(registrations, events, time_mode=mode, delay="0 s", idle_after="1s")
    late: list[float] = []
    lock = threading.Lock()

    def keep(batch: Any, _: int) -> None:
        deadlines = [row.deadline.timestamp() for row in batch.select("deadline").collect()]
        now = time.time()
        with lock:
            late.extend(1e3 * (now - deadline) for deadline in deadlines)

    suite.say(f"expiry, {mode}, {'one stage' if keys is None else 'two stages'}")
    query = timerd_spark.start(outcomes, str(directory), foreach_batch=keep, every=0)
    try:
        time.sleep(RATE_S / 2)  # the JVM compiles
        with lock:
            late.clear()
        time.sleep(RATE_S)
        took = sorted(one["durationMs"]["triggerExecution"] for one in query.recentProgress if one["numInputRows"])
    finally:
        query.stop()
        shutil.rmtree(directory, ignore_errors=True)
    ordered = sorted(late)
    if not ordered:
        raise Failed(f"expiry, {mode}: no operation has expired")
    suite.add(
        "expiry",
        time_mode=mode,
        stages=1 if keys is None else 2,
        expired=len(ordered),
        batch_ms=took[len(took) // 2],
        **{f"p{share}_ms": round(ordered[len(ordered) * share // 100]) for share in (50, 95, 99)},
        max_ms=round(ordered[-1]),
    )
    suite.check(f"never_early_{mode}_{keys}", ordered[0] >= 0, f"{mode}: the earliest came {ordered[0]:.0f} ms late")


def run_pending(suite: Suite, spark: Any, pending: int) -> None:
    """One full batch beside `pending` operations that wait."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    directory, rows = Path(tempfile.mkdtemp(prefix="spark-purgatory-")), suite.args.rows
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    suite.say(f"{pending} pending")
    try:
        for number in range(5):  # the first file has what waits; the last one lets nothing wait for the watermark
            count = pending if number == 0 else rows
            at = np.arange(count) + number * 10_000_000
            names = [f"{'waits' if number == 0 else 'key'}{each}" for each in at]
            timeout = np.full(count, FAR_S if number == 0 else 1.0)
            columns = {"at": T0_NS + at * 1_000, "seq": at, "keys": names, "timeout": timeout}
            fired = {"at": columns["at"][-1:] + 1, "seq": at[-1:], "key": ["nobody"]}
            for name, table in (("r", columns), ("e", fired)):
                path = directory / name / f"{number}.parquet"
                path.parent.mkdir(exist_ok=True)
                pq.write_table(pa.table(table), path)
                os.utime(path, (1e9 + number, 1e9 + number))
        outcomes = timerd_spark.purgatory(
            *sources(spark, directory, None, hot=False),
            delay="1s",
            marks="2s",
            idle_after=None,
            buckets=suite.args.buckets,
        )
        query = timerd_spark.start(
            outcomes, str(directory / "checkpoint"), path=str(directory / "out"), available_now=True
        )
        query.awaitTermination()
        progress = [one for one in query.recentProgress if one["numInputRows"]]
        state = sum(path.stat().st_size for path in (directory / "checkpoint" / "state").rglob("*") if path.is_file())
        suite.add(
            "pending",
            pending=pending,
            batch_s=round(sorted(one["durationMs"]["triggerExecution"] for one in progress[1:])[1] / 1e3, 2),
            state_mb=round(state / 1e6, 1),
        )
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def play(suite: Suite) -> None:
    """Measure everything in one session."""
    spark = timerd_spark.local_session(2, **{"spark.driver.memory": "2g"})
    spark.sparkContext.setLogLevel("ERROR")
    try:
        for partitions in suite.args.partitions:
            run(suite, spark, "toy", partitions, None)
            run(suite, spark, "one stage", partitions, None)
        run(suite, spark, "two stages", 2, 1)
        run(suite, spark, "two stages", 2, suite.args.keys)
        run(suite, spark, "hot group", 2, None, hot=True)
        for pending in suite.args.pending:
            run_pending(suite, spark, pending)
        for mode in ("ProcessingTime", "EventTime"):
            run_expiry(suite, spark, mode, None)
            run_expiry(suite, spark, mode, 2)
    finally:
        spark.stop()


def parser() -> Parser:
    made = Parser("spark_purgatory", __doc__)
    made.size("--rows", amount(100, 1_000_000), "50k", "2k", "rows of a batch, half of them registrations")
    made.size("--batches", amount(5, 1_000), "12", "6", "batches, the first three of which do not count")
    made.size("--partitions", listed(amount(1, 64)), "1,2,4", "2", "shuffle partitions")
    made.size("--pending", listed(amount(100, 10_000_000)), "100k,1M", "10k", "operations that wait beside a batch")
    made.size("--keys", amount(1, 64), "2", "2", "keys of an operation in the last row of two stages")
    made.size("--buckets", amount(1, 4096), "64", "16", "buckets of the state")
    made.size("--rate", amount(1, 10_000), "200", "100", "rows a second of the table `expiry`")
    return made


if __name__ == "__main__":
    sys.exit(run_suite(parser(), play))
