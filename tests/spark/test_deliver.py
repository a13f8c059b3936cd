"""timerd_spark.deliver(): each row is delivered, failed or expired in time. Most of the tests need no session."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow
import pytest

import timerd_spark
from support.real.daemons import Daemon
from support.real.endpoint import Endpoint
from support.real.patience import PATIENCE_S, eventually
from timerd_client.delivery.errors import DeliveryTimeoutTooShortError, is_retriable
from timerd_client.delivery.options import MS, DeliveryOptions, S
from timerd_shm.declare.errors import InvalidValueError
from timerd_spark.durations import duration_ns
from timerd_spark.tasks.deliveries import Delivering
from timerd_spark.tasks.rows import gather, rows_of
from timerd_spark.tasks.task import Sidecar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as made:
        yield made


def table(start: int, end: int) -> pyarrow.RecordBatch:
    ids = range(start, end)
    return pyarrow.RecordBatch.from_pydict(
        {"id": pyarrow.array(ids, pyarrow.int64()), "customer": [f"c{number % 3}" for number in ids]}
    )


def delivering(send: Callable[[pyarrow.RecordBatch], object], *, key: str | None = None, **given: Any) -> Delivering:
    short = {"delivery_timeout_ns": 20 * S, "request_timeout_ns": 1 * S, "linger_ns": MS, "retry_backoff_ns": 5 * MS}
    options = DeliveryOptions(**{**short, **given})
    return Delivering(send, ["id"], key, options, is_retriable, Sidecar.of(None, None, False))


def rows(batches: Iterator[pyarrow.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


# without a session ----------------------------------------------------------------------------------------------------


def test_rows_come_out_once_with_their_ids_in_the_declared_types(daemon: Daemon) -> None:
    seen: list[int] = []
    task = delivering(lambda batch: seen.extend(batch["id"].to_pylist()), batch_size=7)
    batches = list(task(iter([table(0, 50), table(50, 51), table(51, 51)])))
    schema = pyarrow.schema(
        [
            ("id", pyarrow.int64()),
            ("outcome", pyarrow.string()),
            ("attempts", pyarrow.int32()),
            ("latency_ms", pyarrow.float64()),
            ("error", pyarrow.string()),
        ]
    )
    assert all(batch.schema == schema for batch in batches)
    found = rows(iter(batches))
    assert sorted(row["id"] for row in found) == list(range(51)) == sorted(seen)
    assert {(row["outcome"], row["attempts"], row["error"]) for row in found} == {("delivered", 1, None)}
    assert daemon.stats()["counters"]["pending"] == 0


def test_rows_of_a_key_are_sent_in_order(daemon: Daemon) -> None:
    sent: list[tuple[str, int]] = []
    refusals = iter([True, False, True])
    lock = threading.Lock()

    def send(batch: pyarrow.RecordBatch) -> None:
        with lock:
            if next(refusals, False):
                raise ConnectionResetError("again")
            sent.extend(zip(batch["customer"].to_pylist(), batch["id"].to_pylist(), strict=True))

    found = rows(delivering(send, key="customer", batch_size=4, max_in_flight=4)(iter([table(0, 60), table(60, 90)])))
    assert {row["outcome"] for row in found} == {"delivered"} and len(found) == 90
    for customer in ("c0", "c1", "c2"):
        ids = [number for name, number in sent if name == customer]
        assert ids == sorted(ids) and len(ids) == 30


def test_a_stuck_send_does_not_hold_the_task_beyond_the_delivery_timeout(daemon: Daemon) -> None:
    go_on = threading.Event()
    begun = time.monotonic()
    task = delivering(lambda batch: go_on.wait(PATIENCE_S), delivery_timeout_ns=500 * MS, request_timeout_ns=400 * MS)
    found = rows(task(iter([table(0, 3)])))
    took = time.monotonic() - begun
    go_on.set()
    assert [row["outcome"] for row in found] == ["expired"] * 3
    assert all(row["latency_ms"] >= 500 for row in found)
    assert took < PATIENCE_S / 2, took
    assert "delivery_timeout=0.5 s is over after" in found[0]["error"]


def test_an_error_of_a_row_fails_that_row_alone(daemon: Daemon) -> None:
    def send(batch: pyarrow.RecordBatch) -> None:
        if 3 in batch["id"].to_pylist():
            raise ValueError("three")

    found = rows(delivering(send, batch_size=1)(iter([table(0, 6)])))
    failed = [row for row in found if row["outcome"] != "delivered"]
    assert [(row["id"], row["outcome"], row["attempts"], row["error"]) for row in failed] == [
        (3, "failed", 1, "ValueError: three")
    ]


def test_rows_of_an_async_send_are_failed_and_not_delivered(daemon: Daemon) -> None:
    async def send(batch: pyarrow.RecordBatch) -> None:
        raise AssertionError("the coroutine was run")

    (row,) = rows(delivering(lambda batch: send(batch))(iter([table(0, 1)])))
    assert row["outcome"] == "failed" and "send(batch)" in row["error"] and "asyncio.run" in row["error"]


def test_rows_and_their_task_end_when_the_daemon_is_lost(daemon: Daemon) -> None:
    seen: list[int] = []

    def send(batch: pyarrow.RecordBatch) -> None:
        os.kill(daemon.pid, signal.SIGSTOP)
        seen.extend(batch["id"].to_pylist())

    begun = time.monotonic()
    try:
        found = rows(delivering(send, delivery_timeout_ns=1 * S, request_timeout_ns=500 * MS)(iter([table(0, 3)])))
    finally:
        os.kill(daemon.pid, signal.SIGCONT)
    assert [(row["id"], row["outcome"]) for row in found] == [(0, "delivered"), (1, "delivered"), (2, "delivered")]
    assert seen == [0, 1, 2] and time.monotonic() - begun < PATIENCE_S / 2


def test_rows_of_any_size_and_keys_of_any_bytes_are_delivered(daemon: Daemon) -> None:
    keys = pyarrow.array([b"\xff\xfe", b"ok", None]).view(pyarrow.string())
    strange = pyarrow.RecordBatch.from_pydict({"id": pyarrow.array(range(3), pyarrow.int64()), "customer": keys})
    found = rows(delivering(lambda batch: None, key="customer", buffer_bytes=10)(iter([strange])))
    assert sorted((row["id"], row["outcome"]) for row in found) == [(at, "delivered") for at in range(3)]


def test_a_task_that_is_closed_early_leaves_no_operations(daemon: Daemon) -> None:
    go_on = threading.Event()
    calls = iter([None])

    def send(batch: pyarrow.RecordBatch) -> None:
        if next(calls, True):
            go_on.wait(PATIENCE_S)

    generator = delivering(send, batch_size=1)(iter([table(0, 1), table(1, 50)]))
    next(generator)
    assert daemon.stats()["counters"]["clients"] == 1
    generator.close()  # type: ignore[attr-defined]
    go_on.set()
    eventually(lambda: daemon.stats()["counters"]["clients"] == 0 and daemon.stats()["counters"]["pending"] == 0)


def test_rows_are_gathered_from_any_batches_in_any_order() -> None:
    first, second = rows_of(table(0, 5)), rows_of(table(10, 15))
    picked = [*first[1:4], second[0], first[4], first[2], second[2], second[1]]
    assert gather(picked)["id"].to_pylist() == [1, 2, 3, 10, 4, 2, 12, 11]


@pytest.mark.parametrize(
    ("given", "ns"),
    [
        ("120s", 120 * S),
        ("5ms", 5 * MS),
        ("1 minute 30 seconds", 90 * S),
        ("0.5s", 500 * MS),
        (2, 2 * S),
        ("2", 2 * S),
        ("2 hours", 7_200 * S),
    ],
)
def test_durations_are_read_as_people_write_them(given: Any, ns: int) -> None:
    assert duration_ns("linger", given) == ns


@pytest.mark.parametrize("given", ["", " ", "5 parsecs", "ms", "-1s", -1, None, True, "1s and a bit", float("nan")])
def test_a_value_that_is_no_duration_is_named(given: Any) -> None:
    with pytest.raises(InvalidValueError, match="linger="):
        duration_ns("linger", given)


# with a session -------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_rows_reach_an_endpoint_that_fails_stalls_and_recovers(
    spark: SparkSession, daemon: Daemon, endpoint: Endpoint
) -> None:
    url = endpoint.url

    def send(batch: pyarrow.RecordBatch) -> None:
        import json
        import urllib.request

        body = json.dumps(batch["id"].to_pylist()).encode()
        with urllib.request.urlopen(urllib.request.Request(url, body, method="POST"), timeout=0.5) as response:
            response.read()

    def trouble() -> None:
        for mode in ("stall", "fail", "ok"):
            while endpoint.asked() < 25:  # some of the 20 batches have been sent again
                time.sleep(0.01)
            endpoint.mode(mode)

    endpoint.mode("fail")
    thread = threading.Thread(target=trouble)
    ends = timerd_spark.deliver(
        spark.range(0, 400, 1, 2), send, id="id", delivery_timeout="60s", request_timeout="1s", batch_size=20
    )
    thread.start()
    found = ends.collect()
    thread.join()
    assert sorted(row.id for row in found) == list(range(400))
    assert {(row.outcome, row.error) for row in found} == {("delivered", None)}
    assert set(endpoint.taken()) == set(range(400))
    assert ends.schema.simpleString() == (
        "struct<id:bigint,outcome:string,attempts:int,latency_ms:double,error:string>"
    )
    assert daemon.stats()["counters"]["pending"] == 0


def test_a_wrong_argument_is_refused_on_the_driver(spark: SparkSession) -> None:
    df = spark.range(3).selectExpr("id", "id as outcome")

    def send(batch: pyarrow.RecordBatch) -> None:
        raise AssertionError("it was sent")

    async def later(batch: pyarrow.RecordBatch) -> bool:
        raise AssertionError("it was sent")

    def refused(match: str, *, send: Any = send, error: type[Exception] = InvalidValueError, **given: Any) -> None:
        with pytest.raises(error, match=match):
            timerd_spark.deliver(df, send, **{"id": "id", **given})

    refused("id='nr' is no column; there are id, outcome", id="nr")
    refused("column 'outcome' would be there twice", id=["id", "outcome"])
    refused("key='nr' is no column", key="nr")
    refused("send=7 cannot be called", send=7)
    refused("is async or a generator, so a call would not run it: give a plain function", send=later)
    refused("retriable=.* is async or a generator", retriable=later)
    refused("linger='soon' is no duration", linger="soon")
    refused("max_in_flight=0", max_in_flight=0)
    refused("batch_size='many'", batch_size="many")
    refused("delivery_timeout=1 s < linger", delivery_timeout="1s", error=DeliveryTimeoutTooShortError)
