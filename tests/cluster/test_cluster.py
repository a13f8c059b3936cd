"""timerd_spark on more than a local session: Spark Connect, local-cluster, and a standalone cluster on loopback.

`make test-cluster` runs these tests. Each has Java processes of its own and takes half a minute.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.real.daemons import Daemon
from support.real.patience import eventually
from timerd_shm.host.paths import daemon_running
from timerd_shm.host.search import find_instance

pyspark = pytest.importorskip("pyspark", reason="no Spark in this environment: `make test-cluster` makes .venv-spark")
HOME = Path(pyspark.__file__).parent
SMOKE = Path(__file__).with_name("smoke.py")
ROWS = 400
PATIENCE_S = 240.0
pytestmark = pytest.mark.timeout(PATIENCE_S + 40)


def run(master: str, runtime_dir: Path, journal: Path | str = "", **environment: str) -> dict[str, Any]:
    """Run smoke.py on this master. Returns its results."""
    program = [sys.executable, str(SMOKE), master, str(runtime_dir), str(journal)]
    done = subprocess.run(
        program, env={**os.environ, **environment}, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture
def directory() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="tdc-"))
    yield made
    shutil.rmtree(made)


@pytest.fixture
def journaled(directory: Path) -> Iterator[tuple[Daemon, Path]]:
    """A daemon on this machine, and its journal."""
    journal = directory / "journal"
    runtime_dir = directory / "rt"
    runtime_dir.mkdir(0o700)
    daemon = Daemon(runtime_dir, "--capacity=8192", "--ids=8192", f"--journal={journal}")
    yield daemon, journal
    daemon.destroy()


EXPECTED = {
    "owners": 2,
    "waited": ["expired", "expired"],
    "journal": [["default", "completed", ROWS], ["default", "expired", 2], ["default-claims", "completed", ROWS]],
    "reported": 2,
}


def test_everything_works_on_spark_connect(journaled: tuple[Daemon, Path], directory: Path) -> None:
    daemon, journal = journaled
    assert run("connect", directory / "rt", journal) == EXPECTED
    assert int(daemon.stats()["counters"]["pending"]) == ROWS, "the operations of the tasks are pending"


def test_everything_works_on_several_executors(journaled: tuple[Daemon, Path], directory: Path) -> None:
    daemon, journal = journaled
    work = HOME / "work"  # where a local cluster's workers live
    before = set(work.iterdir()) if work.exists() else None
    try:
        assert run("local-cluster[2,1,1024]", directory / "rt", journal) == EXPECTED
    finally:
        for made in set(work.iterdir()) - (before or set()) if work.exists() else ():
            shutil.rmtree(made)
        if before is None and work.exists():
            work.rmdir()
    assert int(daemon.stats()["counters"]["pending"]) == ROWS


@contextmanager
def started(log: Path, *arguments: str, **environment: str) -> Iterator[str]:
    """A master or worker process of Spark. Yields its log up to the line that says that it runs."""
    from timerd_spark.session import java_home

    settings = {"JAVA_HOME": str(java_home()), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
    settings |= {"PYSPARK_PYTHON": sys.executable, **environment}
    command = [str(HOME / "bin/spark-class"), *arguments]
    with log.open("wb") as file:
        process = subprocess.Popen(command, env={**os.environ, **settings}, stdout=file, stderr=subprocess.STDOUT)
    try:
        end = time.monotonic() + PATIENCE_S
        while not re.search("Starting Spark master at|registered with master", log.read_text()):
            assert process.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.1)
        yield log.read_text()
    finally:
        process.terminate()
        process.wait(30)


def test_executors_of_a_standalone_cluster_start_one_daemon_which_outlives_them(directory: Path) -> None:
    runtime_dir = directory / "rt"
    runtime_dir.mkdir(0o700)
    master = ("org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    worker = ("org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    bounds = {"TIMERD_CAPACITY": "8192", "TIMERD_RING_EVENTS": "4096"}  # for the daemon that the workers start
    seen: list[int] = []
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.2):
            try:
                seen.append(int(find_instance(None, str(runtime_dir)).lock.read_text()))
            except Exception:
                continue

    watcher = threading.Thread(target=look)
    with started(directory / "master.log", *master) as log:
        found = re.search(r"spark://[\d.]+:\d+", log)
        assert found is not None
        each = [(*worker, "--cores", "1", "--memory", "1g", "--work-dir", str(directory / f"w{n}")) for n in range(2)]
        with (
            started(directory / "w0.log", *each[0], found[0], **bounds),
            started(directory / "w1.log", *each[1], found[0], **bounds),
        ):
            watcher.start()
            try:
                result = run(found[0], runtime_dir)
            finally:
                done.set()
                watcher.join()
    assert result == {"owners": 2, "waited": ["expired", "expired"]}
    assert len(set(seen)) == 1, "one daemon for both executors, all the time"
    paths = find_instance(None, str(runtime_dir))
    assert daemon_running(paths), "the daemon has a session of its own: it outlives the executors for ten seconds"
    eventually(lambda: not daemon_running(paths))
