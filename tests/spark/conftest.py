"""The tests on Spark: one session in each process, for all its tests. Without Spark they are skipped, and say why."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.real.daemons import Daemon, arenas_of
from support.real.trees import TESTS
from timerd_shm.host.places import RUNTIME_DIR_VARIABLE
from timerd_spark.session import MAP_CLASSES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Loading 25,000 classes takes much of the time. So they are mapped from an archive if the environment has one, they are
# not verified, and they are compiled once at most. The heap has from the start the size that it reaches in the end.
JAVA = (
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote -XX:TieredStopAtLevel=1 "
    f"-XX:+UseSerialGC -Xms1g -Xmn600m -XX:MetaspaceSize=256m {MAP_CLASSES}"
)
MISSING = [name for name in ("pyspark", "pyarrow", "numpy") if importlib.util.find_spec(name) is None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--connect", action="store_true", help="the session is a client of Spark Connect")


class NotHere(pytest.Module):
    """A module of tests that cannot be imported here."""

    def collect(self) -> Any:
        pytest.skip(
            f"no {', '.join(MISSING)} in this environment: `make test` makes .venv-spark and runs these tests there",
            allow_module_level=True,
        )


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    return NotHere.from_parent(parent, path=module_path) if MISSING else None


@pytest.fixture(scope="session")
def sidecar_dir() -> Iterator[Path]:
    """The runtime directory of the session's workers: they keep the environment that the session had at its start."""
    directory = Path(tempfile.mkdtemp(prefix="tds-"))
    yield directory
    left = [str(path) for path in arenas_of(directory)]
    shutil.rmtree(directory, ignore_errors=True)
    assert not left, f"left behind: {', '.join(left)}"


@pytest.fixture
def sidecar(sidecar_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """A daemon that the workers of the session and this process find."""
    monkeypatch.setenv(RUNTIME_DIR_VARIABLE, str(sidecar_dir))
    daemon = Daemon(sidecar_dir, "--capacity=8192", "--ids=8192")
    yield daemon
    daemon.destroy()


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The journal of a random program, with groups, kills and long keys, in several segments."""
    from support.spark.spans import random_journal

    return random_journal(tmp_path_factory.mktemp("journal"))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal of three segments: Spark takes a long time for each."""
    from support.spark.spans import small_journal

    return small_journal(tmp_path_factory.mktemp("small"))


def connected(settings: dict[str, str]) -> SparkSession:
    """A client of a Spark Connect server, which pyspark starts beside it."""
    from pyspark.sql import SparkSession

    from timerd_spark.session import DEFAULTS, prepare

    prepare()
    builder = SparkSession.builder.remote("local[2]")
    own = {"spark.connect.grpc.binding.address": "127.0.0.1"}  # its port is always 15002: one server at a time
    for name, value in {**DEFAULTS, **settings, **own}.items():
        builder = builder.config(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # pyspark warns that the server already has some of these settings
        return builder.getOrCreate()


@pytest.fixture(scope="session")
def is_connect(request: pytest.FixtureRequest) -> bool:
    """Whether the session is a client of Spark Connect. Such a session gives no access to the JVM."""
    return bool(request.config.getoption("connect"))


@pytest.fixture(scope="session")
def spark(is_connect: bool, sidecar_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session of the whole run: two cores, little memory, and a directory of its own for all files."""
    from timerd_spark import JavaMissingError, local_session

    directory = tmp_path_factory.mktemp("spark")
    settings = {
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": f"{JAVA} -Dderby.system.home={directory}",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "local"),
        "spark.python.task.killTimeout": "200ms",
        "spark.python.daemon.module": "spark.preloaded",
        "spark.python.sql.dataFrameDebugging.enabled": "false",  # it would look at the stack at each use of a column
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(RUNTIME_DIR_VARIABLE, str(sidecar_dir))
        patch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
        try:
            session = connected(settings) if is_connect else local_session(2, **settings)
        except JavaMissingError as error:
            pytest.skip(str(error))
    session.conf.set("spark.sql.adaptive.enabled", "false")  # plans run as they are written, and start sooner
    # With a few rows, compiling the plans would take most of the time.
    session.conf.set("spark.sql.codegen.wholeStage", "false")
    session.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    yield session
    session.stop()
    os.environ.pop("PYSPARK_GATEWAY_PORT", None)
