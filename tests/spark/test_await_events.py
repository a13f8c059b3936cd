"""timerd_spark.await_events(): each row waits for an event on its key, or times out."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow
import pytest

import timerd_client as td
import timerd_spark
from support.real.daemons import Daemon
from support.real.patience import eventually
from timerd_shm.declare.errors import InvalidValueError
from timerd_spark.tasks.task import Sidecar
from timerd_spark.tasks.waiter import Awaiting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SLOW_S = 90.0  # for the start of a query on a busy machine


def waiting(timeout_s: float, in_flight: int = 1_000) -> Awaiting:
    return Awaiting("k", timeout_s, in_flight, Sidecar.of(None, None, False))


def table(keys: list[Any]) -> pyarrow.RecordBatch:
    return pyarrow.RecordBatch.from_pydict({"n": list(range(len(keys))), "k": keys})


@contextmanager
def answering(client: td.Client, daemon: Daemon, waiting: int, keys: list[str]) -> Iterator[None]:
    """Fires each key when `waiting` rows are pending."""

    def answer() -> None:
        end = time.monotonic() + SLOW_S
        while daemon.stats()["counters"]["pending"] < waiting:
            assert time.monotonic() < end, f"{waiting} rows are not pending"
            time.sleep(0.005)
        client.fire_many(keys, values=[key.upper().encode() for key in keys])

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def test_a_row_settles_by_its_event_or_by_its_timeout(client: td.Client, daemon: Daemon) -> None:
    with answering(client, daemon, 3, ["a", "b"]):
        batches = list(waiting(1.5)(iter([table(["a", "b", "never"])])))
    assert batches[0].schema.names == ["n", "k", "outcome", "value", "waited_ms", "error"]
    found = {row["k"]: row for batch in batches for row in batch.to_pylist()}
    assert (found["a"]["outcome"], found["a"]["value"], found["a"]["error"]) == ("completed", b"A", None)
    assert (found["b"]["outcome"], found["b"]["n"]) == ("completed", 1)
    assert (found["never"]["outcome"], found["never"]["value"]) == ("expired", None)
    assert found["never"]["waited_ms"] >= 1_500


def test_no_more_rows_than_in_flight_are_pending_at_once(client: td.Client, daemon: Daemon) -> None:
    most = 0
    for _ in waiting(0.05, in_flight=4)(iter([table([f"k{number}" for number in range(20)])])):
        most = max(most, daemon.stats()["counters"]["pending"])
    assert most <= 4
    assert daemon.stats()["counters"]["expired"] == 20


def test_a_key_that_cannot_be_watched_fails_its_row_alone(client: td.Client) -> None:
    rows = [row for batch in waiting(0.01)(iter([table(["", None, "k" * 300, "good"])])) for row in batch.to_pylist()]
    by_row = {row["n"]: (row["outcome"], (row["error"] or "").partition(":")[0]) for row in rows}
    assert by_row == {
        0: ("failed", "InvalidKeyError"),
        1: ("failed", "InvalidKeyError"),
        2: ("failed", "KeyTooLongError"),
        3: ("expired", ""),
    }


def test_any_of_several_keys_completes_a_row(client: td.Client, daemon: Daemon) -> None:
    with answering(client, daemon, 1, ["y"]):
        rows = [row for batch in waiting(SLOW_S)(iter([table([["x", "y"]])])) for row in batch.to_pylist()]
    assert [(row["outcome"], row["value"]) for row in rows] == [("completed", b"Y")]


def test_a_task_that_is_closed_early_does_not_wait_for_its_rows(client: td.Client, daemon: Daemon) -> None:
    generator: Iterator[Any] = waiting(600, in_flight=2)(iter([table(["a", "b", "c"])]))
    with answering(client, daemon, 2, ["a"]):
        next(generator)
    generator.close()  # type: ignore[attr-defined]
    eventually(lambda: daemon.stats()["counters"]["pending"] == 0)


def test_rows_of_a_dataframe_wait_for_a_process_outside_of_spark(
    spark: SparkSession, client: td.Client, daemon: Daemon
) -> None:
    df = spark.range(0, 20, 1, 2).selectExpr("id", "concat('cb/', id) as callback")
    answered = timerd_spark.await_events(df, key="callback", timeout=SLOW_S)
    with answering(client, daemon, 20, [f"cb/{number}" for number in range(20)]):
        found = answered.collect()
    assert {(row.id, row.outcome, bytes(row.value)) for row in found} == {
        (number, "completed", f"CB/{number}".encode()) for number in range(20)
    }
    assert answered.schema.simpleString() == (
        "struct<id:bigint,callback:string,outcome:string,value:binary,waited_ms:double,error:string>"
    )


def test_a_wrong_argument_is_refused_on_the_driver(spark: SparkSession) -> None:
    df = spark.range(3).selectExpr("id", "string(id) as k", "id as value")

    def refused(match: str, **given: Any) -> None:
        with pytest.raises(InvalidValueError, match=match):
            timerd_spark.await_events(df.drop("value"), **{"key": "k", "timeout": "1s", **given})

    refused("key='nr' is no column", key="nr")
    refused("key='id' is bigint", key="id")
    refused("timeout='x' is no duration", timeout="x")
    refused("in_flight=0", in_flight=0)
    for name in ("value", "VALUE"):
        with pytest.raises(InvalidValueError, match=f"column '{name}' would be there twice"):
            timerd_spark.await_events(df.withColumnRenamed("value", name), key="k", timeout="1s")
    with pytest.raises(InvalidValueError, match="key='k': there are 2 such columns: rename one"):
        timerd_spark.await_events(df.selectExpr("k", "k"), key="k", timeout="1s")
    with pytest.raises(InvalidValueError, match="column 'id' would be there twice: rename or drop one"):
        timerd_spark.await_events(df.selectExpr("k", "id", "1 AS ID"), key="k", timeout="1s")
