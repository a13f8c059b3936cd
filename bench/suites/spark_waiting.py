"""Waiting for an event or a timeout on Spark: await_events beside Spark's own timers (transformWithState).

    .venv-spark/bin/python bench/suites/spark_waiting.py [--seconds 20] [--rate 50] [--json FILE]

Both get the same rows: `rate` rows a second, each with a timeout of 500 ms. Half of the rows get their event after a
random part of this time. Rows and events come from outside of Spark, on this machine. Both tools stamp a result with
CLOCK_MONOTONIC, in the Python code that makes the row. So no figure includes the time until a sink has the row. With
await_events a sink has it at the end of the task or stage, with transformWithState at the end of the micro-batch.

    await_events        a query for every four seconds of rows; a client of the daemon fires the events
    transformWithState  RocksDB, processing-time timers, micro-batches back to back; rows and events come by a socket

The columns show how long after its event a completed row was made, and how long after its deadline an expired row was
made. With await_events a row's timeout begins when the task gets the row's batch. The table `capacity` has await_events
alone: --capacity rows wait at once, first with a timeout of 10 ms, then with one of 8 s. The difference between the two
figures of memory is what the waiting rows cost a Python worker.

The suite needs `protobuf` (pip install protobuf), which transformWithState imports.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import psutil

import timerd as td
import timerd_spark
from bench.lib.common import Failed, Parser, Suite, amount, run_suite

TIMEOUT_S = 0.5
PATIENCE_S = 120.0
EPHEMERAL_S = 11.0  # a daemon that a client started ends 10 s after its last client
WARM_ROWS = 100  # rows that expire before the measurement: in the first micro-batches of a stream the JVM compiles
FEED_S = 0.05  # the period of rows without a timer. They keep micro-batches going: timers expire only in micro-batches
PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def quantiles(values_ns: list[int]) -> dict[str, float | None]:
    """p50, p95 and the maximum, in ms."""
    ordered = sorted(values_ns)
    if not ordered:
        return {"p50_ms": None, "p95_ms": None, "max_ms": None}
    return {
        f"{name}_ms": round(ordered[min(len(ordered) - 1, int(share * len(ordered)))] / 1e6, 1)
        for name, share in (("p50", 0.5), ("p95", 0.95), ("max", 1.0))
    }


def plan(rng: random.Random, rate: int, seconds: int) -> list[tuple[str, float, float | None]]:
    """Rows of (key, begin of the wait, time of the event or None), in seconds from the start."""
    planned = []
    for number in range(rate * seconds):
        begin = number / rate
        event = begin + rng.uniform(0.05, 0.9) * TIMEOUT_S if number % 2 else None
        planned.append((f"k{number}", begin, event))
    return planned


def report(suite: Suite, tool: str, offered: int, completed: list[int], expired: list[int]) -> None:
    late = quantiles(expired)
    suite.add(
        "waiting",
        tool=tool,
        offered=offered,
        completed=len(completed),
        **{f"event_{name}": value for name, value in quantiles(completed).items()},
        expired=len(expired),
        **{f"late_{name}": value for name, value in late.items()},
    )


# await_events ---------------------------------------------------------------------------------------------------------


def awaiting(instance: str) -> Any:
    """The function that await_events runs in a task, with the times at which a row came in and went out."""
    from timerd_spark.tasks.task import Sidecar
    from timerd_spark.tasks.waiter import Awaiting

    waits = Awaiting("k", TIMEOUT_S, 10_000, Sidecar.of(instance, None, False))

    def stamped(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow

        def came(batches: Iterator[Any]) -> Iterator[Any]:
            for batch in batches:
                yield batch.append_column("came_ns", pyarrow.array([time.monotonic_ns()] * batch.num_rows))

        for batch in waits(came(batches)):
            yield batch.append_column("there_ns", pyarrow.array([time.monotonic_ns()] * batch.num_rows))

    return stamped


def play_await_events(suite: Suite, spark: Any, instance: str, planned: list[tuple[str, float, float | None]]) -> None:
    """Run a query for every four seconds of rows. A row begins to wait when its task has registered it."""
    completed: list[int] = []
    expired: list[int] = []
    at_once = 4 * suite.args.rate
    schema = "k string, came_ns long, outcome string, value binary, waited_ms double, error string, there_ns long"
    with td.connect(instance) as client:
        for start in range(0, len(planned), at_once):
            waits = {key: event - begin for key, begin, event in planned[start : start + at_once] if event is not None}
            keys = [(key,) for key, _, _ in planned[start : start + at_once]]

            def fire(waits: dict[str, float] = waits, rows: int = len(keys)) -> None:
                """Fire each event at its time after all rows have begun to wait."""
                end = time.monotonic() + PATIENCE_S
                while counters(client)["pending"] < rows and time.monotonic() < end:
                    time.sleep(0.002)
                began = time.monotonic()
                for key, after in sorted(waits.items(), key=lambda wait: wait[1]):
                    time.sleep(max(0.0, began + after - time.monotonic()))
                    client.fire(key, value=str(time.monotonic_ns()).encode())

            firing = threading.Thread(target=fire)
            firing.start()
            df = spark.createDataFrame(keys, "k string").coalesce(1)
            for row in df.mapInArrow(awaiting(instance), schema).collect():
                if row.outcome == "completed":
                    completed.append(row.there_ns - int(row.value))
                else:
                    expired.append(row.there_ns - row.came_ns - int(TIMEOUT_S * 1e9))
            firing.join()
    report(suite, "await_events", len(planned), completed, expired)


def counters(client: td.Client) -> dict[str, int]:
    """The daemon's counters, from its arena."""
    from timerctl.instance import open_arena
    from timerd_shm.read.statistics import collect, look

    paths = client._link.connection.paths
    with open_arena(paths) as reader:
        seen = reader.between_turns(lambda: look(reader))
    found: dict[str, int] = collect(seen, paths)["counters"]
    return found


def play_capacity(suite: Suite, spark: Any, instance: str, rows: int) -> None:
    """Let many rows wait at once. Measures the memory of the largest worker, and the time for all rows."""
    df = spark.range(0, rows, 1, 2).selectExpr("concat('c', id) as k")
    maxima = [0, 0]  # pending operations, bytes of the largest worker
    stop = threading.Event()

    def watch() -> None:
        with td.connect(instance) as client:
            while not stop.wait(0.05):
                workers = map(resident, psutil.Process().children(recursive=True))
                maxima[0] = max(maxima[0], counters(client)["pending"])
                maxima[1] = max(maxima[1], max(workers, default=0))

    for timeout in (0.01, 8.0):  # the first timeout shows a worker without waiting rows
        stop.clear()
        maxima[:] = [0, 0]
        watching = threading.Thread(target=watch)
        watching.start()
        began = time.monotonic()
        counted = timerd_spark.await_events(df, key="k", timeout=timeout, in_flight=rows, instance=instance)
        found = {row.outcome: row["count"] for row in counted.groupBy("outcome").count().collect()}
        took = time.monotonic() - began
        stop.set()
        watching.join()
        suite.add(
            "capacity",
            timeout_s=timeout,
            rows=rows,
            waiting_at_once=maxima[0],
            expired=found.get("expired", 0),
            seconds=round(took, 1),
            largest_worker_mib=round(maxima[1] / 2**20),
        )
        suite.check("each_row_ended", sum(found.values()) == rows, "await_events gave each row once")


def resident(process: psutil.Process) -> int:
    """The memory of a Python worker, in bytes; 0 for any other process."""
    try:
        return int(process.memory_info().rss) if process.name().startswith("python") else 0
    except psutil.Error:
        return 0


# transformWithState ---------------------------------------------------------------------------------------------------


def waiter() -> Any:
    """A StatefulProcessor. A function makes its class, because the base class needs Spark."""
    from pyspark.sql.streaming import StatefulProcessor
    from pyspark.sql.types import Row

    class Waiter(StatefulProcessor):  # type: ignore[misc]
        """Sets a timer for each row that waits, and deletes it when the row's event comes."""

        def init(self, handle: Any) -> None:
            self.handle = handle
            self.waiting = handle.getValueState("waiting", "due_ns long, timer_ms long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            for row in rows:
                if row.kind == "wait":
                    timer_ms = timerValues.getCurrentProcessingTimeInMs() + int(TIMEOUT_S * 1e3)
                    self.waiting.update((row.stamp_ns + int(TIMEOUT_S * 1e9), timer_ms))
                    self.handle.registerTimer(timer_ms)
                elif self.waiting.exists():
                    self.handle.deleteTimer(self.waiting.get()[1])
                    self.waiting.clear()
                    yield Row(k=key[0], outcome="completed", late_ns=time.monotonic_ns() - row.stamp_ns)

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
            due_ns = self.waiting.get()[0]
            self.waiting.clear()
            yield Row(k=key[0], outcome="expired", late_ns=time.monotonic_ns() - due_ns)

        def close(self) -> None:
            pass

    return Waiter()


def play_transform_with_state(suite: Suite, spark: Any, planned: list[tuple[str, float, float | None]]) -> None:
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", PROVIDER)
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    lines = [(begin, f"wait,{key}") for key, begin, _ in planned]
    lines += [(event, f"event,{key}") for key, _, event in planned if event is not None]
    directory = Path(tempfile.mkdtemp(prefix="spark-waiting-"))
    server = socket.create_server(("127.0.0.1", 0))
    found: dict[str, list[int]] = {"completed": [], "expired": []}
    warm: list[str] = []

    def serve() -> None:
        with contextlib.suppress(OSError):
            connection, _ = server.accept()
            with connection:

                def say(line: str) -> None:
                    connection.sendall(f"{line},{time.monotonic_ns()}\n".encode())

                for number in count():
                    if len(warm) >= WARM_ROWS:
                        break
                    say(f"wait,warm{number}")
                    time.sleep(FEED_S)
                began = time.monotonic()
                for when, line in sorted(lines):
                    time.sleep(max(0.0, began + when - time.monotonic()))
                    say(line)
                while True:
                    time.sleep(FEED_S)
                    say("event,nobody")

    def keep(batch: Any, _: int) -> None:
        for row in batch.collect():
            if row.k.startswith("warm"):
                warm.append(row.k)
            else:
                found[row.outcome].append(row.late_ns)

    threading.Thread(target=serve, daemon=True).start()
    read = spark.readStream.format("socket").option("host", "127.0.0.1").option("port", server.getsockname()[1]).load()
    parts = read.selectExpr("split(value, ',') as p")
    parsed = parts.selectExpr("p[0] as kind", "p[1] as k", "bigint(p[2]) as stamp_ns")
    query = (
        parsed.groupBy("k")
        .transformWithState(
            statefulProcessor=waiter(),
            outputStructType="k string, outcome string, late_ns long",
            outputMode="Append",
            timeMode="ProcessingTime",
        )
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(directory))
        .start()
    )
    try:
        end = time.monotonic() + suite.args.seconds + 2 * PATIENCE_S
        while sum(map(len, found.values())) < len(planned) and time.monotonic() < end:
            if query.exception() is not None:
                raise Failed(f"the stream ended: {query.exception()}")
            time.sleep(0.2)
        progress = query.recentProgress
    finally:
        query.stop()
        server.close()
        shutil.rmtree(directory, ignore_errors=True)
    batches = sorted(one["durationMs"]["triggerExecution"] for one in progress if one["numInputRows"])
    report(suite, "transformWithState", len(planned), found["completed"], found["expired"])
    suite.add("micro_batches", count=len(batches), median_ms=batches[len(batches) // 2] if batches else None)


def play(suite: Suite) -> None:
    """Measure both tools, one after the other, in one session."""
    planned = plan(random.Random(suite.seed), suite.args.rate, suite.args.seconds)
    directory = Path(tempfile.mkdtemp(prefix="tdw-"))
    os.environ["TIMERD_RUNTIME_DIR"] = str(directory)
    os.environ.setdefault("TIMERD_CAPACITY", str(max(16_384, 4 * suite.args.capacity)))
    try:
        with td.connect("waiting", autostart=True):  # this client keeps the daemon until the end
            suite.say("starting Spark")
            spark = timerd_spark.local_session(2, **{"spark.driver.memory": "1g"})
            spark.sparkContext.setLogLevel("ERROR")
            suite.say("await_events")
            play_await_events(suite, spark, "waiting", planned)
            suite.say(f"{suite.args.capacity} rows at once")
            play_capacity(suite, spark, "waiting", suite.args.capacity)
            suite.say("transformWithState")
            play_transform_with_state(suite, spark, planned)
            spark.stop()
        time.sleep(EPHEMERAL_S)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def parser() -> Parser:
    made = Parser("spark_waiting", __doc__)
    made.size("--seconds", amount(1, 600), "20", "5", "seconds in which rows come")
    made.size("--rate", amount(1, 1_000), "50", "20", "rows a second")
    made.size("--capacity", amount(100, 65_000), "20k", "2k", "rows that wait at once")
    return made


if __name__ == "__main__":
    sys.exit(run_suite(parser(), play))
