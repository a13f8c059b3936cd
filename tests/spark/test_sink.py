"""Rows as registrations and events: each is acknowledged, and made once, whatever task runs again."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DoubleType, IntegerType, StringType, StructType, TimestampType

import timerd as td
from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S, SPARK_PATIENCE_S
from timerd_shm.declare.errors import InvalidConfigError, InvalidValueError, TimerdUnavailableError
from timerd_shm.declare.layout import Region
from timerd_shm.declare.limits import NO_DEADLINE
from timerd_shm.declare.states import OpState
from timerd_shm.read.reader import ArenaReader
from timerd_spark.sink.options import WriteOptions
from timerd_spark.sink.sender import EVENTS, Row, send
from timerd_spark.sink.writers import BatchSink, Sent

ROWS = 600


def options(**more: str) -> WriteOptions:
    if more.get("action") != "fire":
        more = {"timeout": "1h", **more}
    return WriteOptions.of({"opId": "order", "key": "order", **more})


def rows_of(count: int = ROWS, first: int = 0) -> list[Row]:
    return [Row(f"order-{n}", f"order-{n}", b"payload %d" % n, 3600.0) for n in range(first, first + count)]


def pending(daemon: Daemon) -> int:
    """The number of pending operations."""
    return int(daemon.stats()["counters"]["pending"])


def completed(daemon: Daemon) -> int:
    """The number of completed operations."""
    return int(daemon.stats()["counters"]["completed"])


def collected(client: td.Client, keys: list[str]) -> dict[str, td.Operation]:
    """An operation for each key that counts the events on the key: up to two, which is one too many."""
    return {key: client.register(key, timeout=3600, when=td.total(2)) for key in keys}


def counted(client: td.Client, watchers: dict[str, td.Operation]) -> Counter[str]:
    """How often each key was fired: 0, 1, or 2 = twice or more often."""
    client.flush()
    found: Counter[str] = Counter()
    for key, operation in watchers.items():
        twice = operation.done()
        once = twice or client.fire_wait(key) == 1
        found[key] = 2 if twice else 1 if once else 0
    return found


# without Spark --------------------------------------------------------------------------------------------------------


def test_registrations_outlive_the_task_and_are_made_once(sidecar: Daemon) -> None:
    assert send(options(), rows_of()) == (ROWS, 0)
    assert send(options(), rows_of(ROWS + 100)) == (100, ROWS)
    assert pending(sidecar) == ROWS + 100
    with td.connect(timeout=PATIENCE_S) as client:
        client.fire_many([row.key for row in rows_of(100)])
        client.flush()
    assert pending(sidecar) == ROWS
    assert send(options(), rows_of()) == (0, ROWS), "ids of settled operations are known as well"


def test_a_row_twice_in_a_task_is_registered_and_fired_once(sidecar: Daemon) -> None:
    assert send(options(), [*rows_of(10), *rows_of(10)]) == (10, 10)
    with td.connect(timeout=PATIENCE_S) as client:
        watchers = collected(client, ["a", "b"])
        client.flush()
        rows = [Row("1", "a", b"", None), Row("2", "b", b"", None), Row("1", "a", b"", None)]
        assert send(options(action="fire"), rows) == (2, 1)
        assert counted(client, watchers) == {"a": 1, "b": 1}


def test_events_are_fired_once_whatever_rows_are_sent_again(sidecar: Daemon) -> None:
    with td.connect(timeout=PATIENCE_S) as client:
        watchers = collected(client, [row.key for row in rows_of()])  # type: ignore[misc]
        client.flush()
        assert send(options(action="fire"), rows_of(300)) == (300, 0)
        assert send(options(action="fire"), rows_of()) == (ROWS - 300, 300)
        assert set(counted(client, watchers).values()) == {1}


def test_events_of_purgatories_with_a_common_long_prefix_are_independent(sidecar: Daemon) -> None:
    rows, name = [Row("1", "a", b"", None)], "a-name-of-thirty-one-characters"
    for purgatory in (f"{name}1", f"{name}2"):
        assert send(options(action="fire", purgatory=purgatory), rows) == (1, 0)
        assert send(options(action="fire", purgatory=purgatory), rows) == (0, 1)


def test_an_event_whose_claim_settled_without_it_does_not_count_as_fired(
    sidecar: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timerd_spark.sink.sender.FLUSH_TIMEOUT_S", 0.5)
    with td.connect(timeout=PATIENCE_S) as client:
        client.purgatory("default-claims").register("1", id="1", timeout=0.01).result(timeout=PATIENCE_S)
    with pytest.raises(TimerdUnavailableError, match=r"another attempt holds .* of 1 events \(the first opId is '1'\)"):
        send(options(action="fire"), [Row("1", "a", b"", None)])


KILLED = """
import sys, time
from timerd_spark.sink import sender
from timerd_spark.sink.options import WriteOptions
from timerd_spark.sink.sender import Row
import timerd_client as td
together = td.Client.fire_together_wait
done = 0
def stop(self, events, **more):
    global done
    if done == {chunks}:
        print("here", flush=True)
        time.sleep(60)
    done += 1
    refused = together(self, events, **more)
    if done == {chunks} and {after}:
        self._link.lock.acquire()
        print("here", flush=True)
        time.sleep(60)
    return refused
td.Client.fire_together_wait = stop
sender.EVENTS = 50
options = WriteOptions.of({{"opId": "order", "key": "order", "action": "fire"}})
sender.send(options, [Row(f"order-{{n}}", f"order-{{n}}", b"", None) for n in range({rows})])
"""


@pytest.mark.parametrize(("chunks", "after"), [(0, False), (3, False), (2, True)])
def test_a_task_killed_between_claim_and_event_loses_and_repeats_no_event(
    chunks: int, after: bool, sidecar: Daemon
) -> None:
    with td.connect(timeout=PATIENCE_S) as client:
        watchers = collected(client, [row.key for row in rows_of(300)])  # type: ignore[misc]
        client.flush()
        program = KILLED.format(chunks=chunks, after=after, rows=300)
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as task:
            assert task.stdout is not None and task.stdout.readline() == b"here\n"
            time.sleep(0.05 if after else 0)  # in this time the client's thread may send the frame
            task.kill()
        counts = send(options(action="fire"), rows_of(300))
        assert counts == (300 - counts.known, counts.known) and counts.known in (50 * chunks, 50 * max(chunks - 1, 0))
        assert set(counted(client, watchers).values()) == {1}


@pytest.mark.parametrize(
    ("action", "where"),
    [
        ("register", "register_many_wait"),
        ("fire", "register_many_wait"),
        ("fire", "fire_together_wait"),
    ],
)
def test_a_daemon_killed_while_rows_are_written_loses_and_repeats_no_row(
    action: str, where: str, sidecar: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = td.Client if where == "fire_together_wait" else td.Purgatory
    real = getattr(owner, where)
    killed: list[int] = []

    def interrupted(purgatory: Any, given: Any, **more: Any) -> Any:
        result = real(purgatory, given, **more)  # the commands are on their way
        if not killed:
            killed.append(sidecar.kill())
            sidecar.start()
        return result

    monkeypatch.setattr(owner, where, interrupted)
    rows = [row._replace(body=b"") for row in rows_of(100)]
    with td.connect(timeout=PATIENCE_S) as client:
        watchers = collected(client, [row.key for row in rows] if action == "fire" else [])  # type: ignore[misc]
        client.flush()
        assert send(options(action=action), rows) == (100, 0)
        assert send(options(action=action), rows) == (0, 100)
        assert killed and set(counted(client, watchers).values()) <= {1}
    assert pending(sidecar) == (100 if action == "register" else 0)


def test_an_event_without_room_for_its_value_is_fired_when_there_is_room(sidecar: Daemon) -> None:
    large = b"x" * 32_768
    with td.connect(timeout=PATIENCE_S) as client, contextlib.ExitStack() as stack:
        waiting = [client.register(f"order-{n}", timeout=3600) for n in range(3)]
        client.flush()
        filling = []
        full = False
        while not full:  # a client may take half of the arena
            other = stack.enter_context(td.connect(timeout=PATIENCE_S))
            with contextlib.suppress(td.QuotaExceededError):
                try:
                    while True:
                        filling.append(other.register_wait("room", timeout=3600, payload=large))
                except td.ArenaFullError:
                    full = True
        again = threading.Timer(0.2, lambda: [one.cancel_wait() for one in filling])
        again.start()
        rows = [Row(str(n), f"order-{n}", large, None) for n in range(3)]
        assert send(options(action="fire"), rows) == (3, 0)
        again.join()
        assert [operation.result().value for operation in waiting] == [large] * 3


def test_a_daemon_is_found_by_the_runtime_directory_option(sidecar: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    where = options(runtimeDir=os.environ["TIMERD_RUNTIME_DIR"])
    monkeypatch.delenv("TIMERD_RUNTIME_DIR")  # as on an executor
    assert send(where, rows_of(10)) == (10, 0)


def test_a_client_at_its_quota_is_followed_by_the_next_until_the_last_quarter_of_the_arena(sidecar: Daemon) -> None:
    """The operations of these clients outlive them, so the last quarter is for other users."""
    with pytest.raises(td.QuotaExceededError, match=r"keep 6145 operations, and may keep 6144: the rest is for others"):
        send(options(), [row._replace(body=b"") for row in rows_of(9000)])
    assert pending(sidecar) == 6145, "registrations before the refusal stay"


# checks on the driver -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"opId": ""}, "option opId names column ''"),
        ({"opId": None}, "option opId is missing"),
        ({"key": None}, "option key is missing"),
        ({"key": "missing"}, "option key names column 'missing': the rows have order, n, at"),
        ({"key": "at"}, "column 'at' is of type timestamp, and has to be string or binary"),
        ({"timeout": "soon"}, "option timeout='soon' is no duration"),
        ({"timeout": "20000d"}, "longer than ten years"),
        ({"timeout": None}, "one of the options timeout"),
        ({"timeoutColumn": "n"}, "one of the options timeout"),
        ({"timeout": None, "timeoutColumn": "order"}, "column 'order' is of type string"),
        ({"payload": "n"}, "column 'n' is of type int"),
        ({"action": "cancel"}, "give register or fire"),
        ({"action": "fire"}, "option timeout is not for action=fire"),
        ({"orphans": "group"}, "go together"),
        ({"purgatory": "A b"}, "purgatory='A b'"),
        ({"instance": "../x"}, "instance='../x'"),
        ({"opID2": "x"}, "no option 'opID2'"),
    ],
)
def test_a_wrong_option_is_refused_before_a_task_runs(given: dict[str, str | None], said: str) -> None:
    all_given = {"opId": "order", "key": "order", "timeout": "30s", **given}
    schema = StructType().add("order", StringType()).add("n", IntegerType()).add("at", TimestampType())
    with pytest.raises(InvalidConfigError) as caught:
        BatchSink(WriteOptions.of({name: value for name, value in all_given.items() if value is not None}), schema)
    assert said in str(caught.value)


def test_a_duplicate_column_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match="option opId: there are 2 columns 'order': rename one"):
        BatchSink(options(), StructType().add("order", StringType()).add("order", StringType()))


def test_ids_and_keys_need_not_be_utf8(sidecar: Daemon) -> None:
    sink = BatchSink(options(), StructType().add("order", StringType()))
    strange = pa.array([b"\xff\xfe", b"a\0\n'"]).view(pa.string())
    assert sink.write(iter([pa.record_batch({"order": strange})])) == Sent(2, 0)
    assert sink.write(iter([pa.record_batch({"order": strange})])) == Sent(0, 2)


def test_a_null_key_is_refused_by_name(sidecar: Daemon) -> None:
    sink = BatchSink(options(), StructType().add("order", StringType()))
    with pytest.raises(InvalidValueError, match="column 'order' is null"):
        sink.write(iter([pa.record_batch({"order": ["a", None]})]))
    assert sink.write(iter([pa.record_batch({"order": ["a", "b"]})])) == Sent(2, 0)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, r"is null in the row of opId 'b': .* for an hour .*--group-retention.*orphans=group"),
        (float("nan"), "is nan in the row of opId 'b': give seconds from 0 to 316224000"),
        (-1.0, "is -1.0 in the row of opId 'b'"),
        (4e9, "is 4000000000.0 in the row of opId 'b'"),
    ],
)
def test_a_timeout_that_an_operation_cannot_have_is_refused_by_name(
    value: float | None, said: str, sidecar: Daemon
) -> None:
    given = WriteOptions.of({"opId": "order", "key": "order", "timeoutColumn": "left"})
    sink = BatchSink(given, StructType().add("order", StringType()).add("left", DoubleType()))
    with pytest.raises(InvalidValueError, match=f"column 'left' {said}"):
        sink.write(iter([pa.record_batch({"order": ["a", "b"], "left": pa.array([1.5, value])})]))
    assert pending(sidecar) == 0, "no row of the refused batch is registered"
    assert sink.write(iter([pa.record_batch({"order": ["a", "b"], "left": [60.0, 0.0]})])) == Sent(2, 0)


def test_in_a_group_a_null_timeout_is_no_deadline(sidecar: Daemon) -> None:
    given = {"opId": "order", "key": "order", "timeoutColumn": "left", "orphans": "group", "group": "web"}
    sink = BatchSink(WriteOptions.of(given), StructType().add("order", StringType()).add("left", IntegerType()))
    assert sink.write(iter([pa.record_batch({"order": ["a"], "left": pa.array([None], pa.int32())})])) == Sent(1, 0)
    with ArenaReader.open() as reader:
        found = [r.deadline_ns for r in reader.table(Region.OPS) if r.state == OpState.PENDING]
    assert found == [NO_DEADLINE]


# on Spark -------------------------------------------------------------------------------------------------------------


def orders(spark: SparkSession, count: int = ROWS, partitions: int = 2) -> DataFrame:
    return spark.range(0, count, 1, partitions).selectExpr("concat('order-', id) as order", "id")


WIDE = "order string, id long, padding string"


def wide(frame: DataFrame) -> DataFrame:
    """Rows of some KiB: Spark buffers 64 KiB on the way to a worker, and a test needs the first rows early."""
    return frame.selectExpr("order", "id", "repeat('x', 4000) as padding")


def writing(frame: DataFrame, **more: str) -> Any:
    given = {"opId": "order", "key": "order", **({} if more.get("action") == "fire" else {"timeout": "1h"}), **more}
    return frame.write.format("timerd").mode("append").options(**given)


def test_a_batch_is_registered_from_the_workers(spark: SparkSession, sidecar: Daemon) -> None:
    writing(orders(spark)).save()
    writing(orders(spark, partitions=3)).save()
    assert pending(sidecar) == ROWS
    with pytest.raises(Exception, match='mode\\("append"\\)'):
        writing(orders(spark)).mode("overwrite").save()
    with pytest.raises(Exception, match="option key names column 'no'"):
        writing(orders(spark), key="no").save()


@pytest.mark.long  # its short form is the lost commit of a micro-batch
def test_a_task_that_fails_after_its_first_chunk_adds_nothing_twice(spark: SparkSession, sidecar: Daemon) -> None:
    def late(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            time.sleep(0.03)
            assert number < 29, "the row that fails"
            yield batch

    with td.connect(timeout=PATIENCE_S) as client:
        watchers = collected(client, [row.key for row in rows_of()])  # type: ignore[misc]
        client.flush()
        failing = wide(orders(spark, partitions=1)).mapInArrow(late, WIDE)
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "20")
        try:
            with pytest.raises(Exception, match="the row that fails"):
                writing(failing, action="fire").save()
        finally:
            spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
        events = int(sidecar.stats()["counters"]["events"])
        assert EVENTS <= events // 2 < ROWS, (
            "before the failure, a frame of events and claims was sent, but not all frames"
        )
        writing(orders(spark), action="fire").save()
        assert set(counted(client, watchers).values()) == {1}


def test_a_micro_batch_whose_commit_is_lost_adds_nothing_twice(
    spark: SparkSession, sidecar: Daemon, tmp_path: Path
) -> None:
    source = tmp_path / "orders"

    def run() -> None:
        rows = spark.readStream.schema("order string, id long").option("maxFilesPerTrigger", "1").parquet(str(source))
        query = rows.writeStream.format("timerd").options(opId="order", key="order", action="fire")
        query = query.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination()

    orders(spark).write.parquet(str(source))
    with td.connect(timeout=PATIENCE_S) as client:
        watchers = collected(client, [row.key for row in rows_of()])  # type: ignore[misc]
        client.flush()
        run()
        commits = sorted((tmp_path / "checkpoint/commits").glob("[0-9]*"), key=lambda path: int(path.name))
        commits[-1].unlink()
        commits[-1].with_name(f".{commits[-1].name}.crc").unlink()
        run()
        assert set(counted(client, watchers).values()) == {1}


@pytest.mark.long  # its short form is the lost commit of a micro-batch
def test_a_job_that_is_cancelled_while_it_writes_adds_nothing_twice(spark: SparkSession, sidecar: Daemon) -> None:
    def some(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number == 10:
                time.sleep(PATIENCE_S)  # Spark kills the task
            yield batch

    with td.connect(timeout=PATIENCE_S) as client:
        done = threading.Event()

        def cancel() -> None:
            # The result of fire_wait() shows nothing: an event between an operation's mark and its registration
            # completes the operation later.
            while not completed(sidecar) and not done.is_set():
                client.fire_wait("order-300")
            spark.interruptAll()

        thread = threading.Thread(target=cancel)
        thread.start()
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")  # else all rows come at once
        try:
            with pytest.raises(Exception, match=r"(?i)cancel"):
                writing(wide(orders(spark, 3000)).mapInArrow(some, WIDE)).save()
        finally:
            spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
            done.set()
            thread.join(SPARK_PATIENCE_S)
        assert 0 < pending(sidecar) < 3000
        writing(orders(spark, 3000)).save()
        assert pending(sidecar) == 2999, "all but the settled one"
