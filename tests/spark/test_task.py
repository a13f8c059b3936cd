"""timerd_spark.task_client(): operations belong to the attempt until the attempt ends successfully."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import timerd_client as td
from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S, SPARK_PATIENCE_S, eventually
from timerd_shm.declare.errors import SessionGoneError, TimerdUnavailableError
from timerd_shm.declare.layout import Region
from timerd_shm.declare.states import ClientState
from timerd_shm.read.reader import ArenaReader
from timerd_spark import await_events, deliver
from timerd_spark.tasks.task import IDLE_S, KILL_IDLE, Sidecar, owner_name, task_client

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession


def counters(daemon: Daemon) -> dict[str, int]:
    found: dict[str, int] = daemon.stats()["counters"]
    return found


def owners() -> list[str]:
    """The names of all live clients."""
    with ArenaReader.open() as reader:
        return [
            bytes(record.name[: record.name_length]).decode()
            for record in reader.table(Region.CLIENTS)
            if record.state == ClientState.LIVE
        ]


# without Spark --------------------------------------------------------------------------------------------------------


def test_pending_operations_at_a_normal_end_outlive_their_worker(daemon: Daemon) -> None:
    with task_client() as client:
        client.register_many([f"k{number}" for number in range(1_000)], timeout=60)
        done = client.register("done", timeout=60)
        client.fire("done")
        assert done.result()
    assert client.closed and counters(daemon)["pending"] == 1_000
    with td.connect() as other:
        assert other.fire_wait("k7") == 1


def test_a_failure_cancels_pending_operations(daemon: Daemon) -> None:
    with pytest.raises(ZeroDivisionError), task_client() as client:
        client.register_wait("k", timeout=60)
        raise ZeroDivisionError
    assert (counters(daemon)["pending"], counters(daemon)["cancelled"]) == (0, 1)


def test_closing_a_generator_cancels_pending_operations(daemon: Daemon) -> None:
    def rows() -> Iterator[int]:
        with task_client() as client:
            for number in range(10):
                client.register_wait(str(number), timeout=60)
                yield number

    generator = rows()
    assert [next(generator), next(generator)] == [0, 1]
    generator.close()  # type: ignore[attr-defined]
    assert (counters(daemon)["pending"], counters(daemon)["cancelled"]) == (0, 2)


def test_a_kill_cancels_pending_operations_and_keeps_committed_ones(daemon: Daemon) -> None:
    script = """
        import sys
        from timerd_spark.tasks.task import task_client
        with task_client() as client:
            client.register("committed", timeout=60)
        with task_client() as client:
            client.register_wait("mine", timeout=60)
            print("ready", flush=True)
            sys.stdin.read()
    """
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], **pipes) as child:
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        assert counters(daemon)["pending"] == 2
        child.send_signal(signal.SIGKILL)
    eventually(lambda: counters(daemon)["pending"] == 1)
    with td.connect() as other:
        assert other.fire_wait("committed") == 1


def test_outcomes_of_committed_operations_are_delivered_to_the_group(daemon: Daemon) -> None:
    with td.connect(group="app") as driver:
        with task_client(group="app") as client:
            client.register("k", timeout=60, payload=b"row 1")
        driver.fire("k", value=b"answer")
        outcome = next(iter(driver.outcomes()))
        assert (outcome.payload, outcome.value) == (b"row 1", b"answer")
        outcome.ack_wait()


def test_a_retry_replaces_failed_registrations_and_keeps_committed_ones(daemon: Daemon) -> None:
    def attempt(*, fails: bool = False) -> None:
        with task_client() as client:
            client.register_wait("k", timeout=60, id="order/7", if_exists="replace_cancelled")
            assert not fails

    with pytest.raises(AssertionError):
        attempt(fails=True)
    assert counters(daemon)["pending"] == 0, "the operation was cancelled before the block was left"
    attempt()
    with pytest.raises(td.OperationExistsError, match="it is pending"):
        attempt()
    assert counters(daemon)["pending"] == 1


def test_a_forked_child_that_leaves_the_block_changes_nothing(daemon: Daemon) -> None:
    with task_client() as client:
        operation = client.register_wait("k", timeout=60)
        pid = os.fork()
        if pid == 0:
            os._exit(0 if leaves(client) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        client.fire("k")
        assert operation.result()


def leaves(client: td.Client) -> bool:
    """Runs in a forked child: the block's client connects anew here, and the child can use a block of its own."""
    client.register("x", timeout=1)
    with task_client() as own:
        return own.fire_wait("nobody") == 0 and own.incarnation != client.incarnation


def test_an_attempt_does_not_commit_after_its_arena_was_replaced(daemon: Daemon) -> None:
    with pytest.raises(SessionGoneError, match="retry"), task_client() as client:
        client.register_wait("k", timeout=60)
        daemon.destroy()
        daemon.start()
        eventually(lambda: client.connected and counters(daemon)["clients"] == 1)


def test_a_sidecar_is_found_in_the_directory_of_the_driver(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    sidecar = Sidecar.of(None, None, False)
    monkeypatch.delenv("TIMERD_RUNTIME_DIR")  # as on an executor
    with sidecar.client() as client:
        assert client.connected
    with pytest.raises(TimerdUnavailableError), task_client(runtime_dir="/nowhere/at-all"):
        pass


def test_each_host_starts_a_sidecar_with_autostart(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMERD_CAPACITY", "2048")
    monkeypatch.setenv("TIMERD_RING_EVENTS", "1024")
    monkeypatch.delenv("TIMERD_RUNTIME_DIR")
    with task_client("side", runtime_dir=str(runtime_dir), autostart=True) as client:
        assert client.fire_wait("k") == 0
        pid = client._protocol.session.daemon_pid
    os.kill(pid, signal.SIGTERM)
    eventually(lambda: not (runtime_dir / "side.arena").exists())


# in Spark -------------------------------------------------------------------------------------------------------------


def test_a_task_owns_its_registrations_and_commits_them(spark: SparkSession, daemon: Daemon) -> None:
    where = Sidecar.of(None, None, False)

    def register(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow

        with where.client() as client:
            for batch in batches:
                client.register_many([f"k{number}" for number in batch["id"].to_pylist()], timeout=60)
                yield pyarrow.RecordBatch.from_pydict({"owner": [owner_name()]})

    names = [row.owner for row in spark.range(0, 100, 1, 2).mapInArrow(register, "owner string").collect()]
    application = spark.conf.get("spark.app.id")
    assert len(set(names)) == 2 and all(len(name) <= 32 for name in names)
    assert application is not None
    for name in names:
        tail, attempt = name.split("/")
        assert application.endswith(tail) and attempt.startswith("s") and "a0t" in attempt
    assert counters(daemon)["pending"] == 100
    with td.connect() as other:
        assert other.fire_wait("k42") == 1


def test_tasks_in_pandas_and_in_foreach_partition_behave_the_same(spark: SparkSession, daemon: Daemon) -> None:
    where = Sidecar.of(None, None, False)

    def in_pandas(frames: Iterator[Any]) -> Iterator[Any]:
        with where.client() as client:
            for frame in frames:
                client.register_many([f"p{number}" for number in frame["id"]], timeout=60)
                yield frame

    def in_partition(rows: Iterator[Any]) -> None:
        with where.client() as client:
            client.register_many([f"f{row.id}" for row in rows], timeout=60)

    df = spark.range(0, 5, 1, 1)
    assert df.mapInPandas(in_pandas, "id long").count() == 5
    df.foreachPartition(in_partition)
    assert counters(daemon)["pending"] == 10
    with td.connect() as other:
        assert (other.fire_wait("p4"), other.fire_wait("f4")) == (1, 1)


@pytest.mark.long  # starts Spark's workers anew; the short form is the test of a task that commits its registrations
def test_what_a_task_fires_last_arrives_whether_its_worker_is_used_again_or_ends(
    spark: SparkSession, is_connect: bool, daemon: Daemon
) -> None:
    """A worker ends by os._exit(), so no handler of atexit flushes. The end of the block does, or a call that waits."""
    where = Sidecar.of(None, None, False)

    def fire(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow

        (rows,) = (batch["id"].to_pylist() for batch in batches)
        yield pyarrow.RecordBatch.from_pydict({"pid": [os.getpid()]})
        if rows[0] < 10:
            with where.client() as client:
                for row in rows:
                    client.fire(f"k{row}")
        else:
            with where.connect(name="task", timeout=PATIENCE_S, group=None, orphans="cancel") as client:
                client.fire_many([f"k{row}" for row in rows])

    pids: list[set[int]] = []
    with td.connect() as client:
        for reuse in ("true",) if is_connect else ("true", "false"):
            waiting = [client.register(f"k{row}", timeout=600) for row in range(20)]
            client.flush()
            if not is_connect:
                spark.sparkContext._conf.set("spark.python.worker.reuse", reuse)
            try:
                rows = spark.range(0, 20, 1, 2).mapInArrow(fire, "pid long").collect()
            finally:
                if not is_connect:
                    spark.sparkContext._conf.set("spark.python.worker.reuse", "true")
            pids.append({row.pid for row in rows})
            assert all(operation.result(timeout=PATIENCE_S) for operation in waiting), reuse
    assert is_connect or not pids[0] & pids[1], "a worker that is not used again has ended"
    assert counters(daemon)["clients_died"] == 0


def test_the_driver_warns_where_spark_kills_workers_that_wait(spark: SparkSession) -> None:
    df = spark.range(1).selectExpr("'k' AS key")

    def both() -> None:
        await_events(df, key="key", timeout="6s")
        deliver(df, print, id="key", delivery_timeout="6s", request_timeout="1s")

    try:
        spark.conf.set(KILL_IDLE[0], "true")
        for idle, warned in (("5", ["timeout", "delivery_timeout"]), ("7", []), ("0", [])):
            spark.conf.set(IDLE_S[0], idle)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", RuntimeWarning)
                both()
            said = [str(warning.message) for warning in caught if warning.category is RuntimeWarning]
            assert [text.split()[0] for text in said] == warned
            assert all(f"is 6 s, and Spark kills a Python worker that gives it no rows for {idle} s" in t for t in said)
            assert all(warning.filename == __file__ for warning in caught if warning.category is RuntimeWarning)
    finally:
        for name in (KILL_IDLE[0], IDLE_S[0]):
            spark.conf.unset(name)


@pytest.mark.long  # its short form is the kill of a task
def test_a_cancelled_job_leaves_no_operations(spark: SparkSession, daemon: Daemon) -> None:
    where = Sidecar.of(None, None, False)

    def hang(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        with where.client() as client:
            client.register_wait("k", timeout=600)
            for batch in batches:
                time.sleep(600)  # Spark kills the task
                yield batch

    def run() -> None:
        with pytest.raises(Exception, match=r"(?i)cancel"):
            spark.range(0, 1, 1, 1).mapInArrow(hang, "id long").collect()

    thread = threading.Thread(target=run)
    thread.start()
    eventually(lambda: counters(daemon)["pending"] == 1, seconds=SPARK_PATIENCE_S)
    assert any("/s" in name for name in owners())
    spark.interruptAll()
    thread.join(SPARK_PATIENCE_S)
    assert not thread.is_alive()
    eventually(lambda: counters(daemon)["pending"] == 0, seconds=SPARK_PATIENCE_S)
    assert counters(daemon)["orphans_cancelled"] == 1
