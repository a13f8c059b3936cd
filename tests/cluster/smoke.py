"""The first steps of a user, on any Spark: python smoke.py MASTER RUNTIME_DIR JOURNAL. Prints its results as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import timerd_spark
from timerd_spark.session import prepare
from timerd_spark.tasks.task import owner_name

ROWS = 400
CONNECT = "connect"
SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.cores.max": "2",
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
    "spark.executor.pyspark.memory": "1g",  # bounds the address space of the workers and of their child processes
}


def session(master: str) -> Any:
    prepare()
    from pyspark.sql import SparkSession

    if master == CONNECT:
        return SparkSession.builder.remote("local[2]").getOrCreate()
    builder = SparkSession.builder.master(master).appName("smoke")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def main() -> None:
    master, runtime_dir, journal = sys.argv[1:]
    spark = session(master)
    rows = spark.range(0, ROWS, 1, 2).selectExpr("concat('order-', id) as id")
    where = {"runtimeDir": runtime_dir, "autostart": "true"}

    def write(**more: str) -> None:
        rows.write.format("timerd").mode("append").options(opId="id", key="id", **where, **more).save()

    def attempts(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow

        with timerd_spark.task_client(runtime_dir=runtime_dir) as client:
            for batch in batches:
                client.register_many([f"task-{id}" for id in batch["id"].to_pylist()], timeout=3600)
                yield pyarrow.RecordBatch.from_pydict({"owner": [owner_name()]})

    write(timeout="1 hour")
    write(timeout="1 hour")  # adds nothing: the daemon knows each id
    write(action="fire", value="id")
    owners = {row.owner for row in rows.mapInArrow(attempts, "owner string").collect()}
    waited = timerd_spark.await_events(rows.limit(2), key="id", timeout="100ms", runtime_dir=runtime_dir)
    outcomes = sorted(row.outcome for row in waited.collect())
    found: dict[str, Any] = {"owners": len(owners), "waited": outcomes}
    if journal:
        operations = spark.read.format("timerd").load(journal)
        found["journal"] = sorted(map(list, operations.groupBy("purgatory", "outcome").count().collect()))
        found["reported"] = timerd_spark.report(operations, by="purgatory").count()
    print(json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
