"""Write an archive of the classes that Spark's tests load: python .ci/classes.py FILE

A JVM maps the archive, instead of reading these classes from 280 jars, and so starts sooner. Tests also run without the
archive, only more slowly. So after a failure there is no FILE, and the last line of stderr has the reason. A JVM checks
that FILE belongs to its own build and to these jars. If it does not, the JVM ignores FILE. timerd_spark.local_session()
and the tests map FILE.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from timerd_spark import local_session, report, rollup, workload
from timerd_spark.pipeline.plans import planned_lives

ARCHIVING = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:cds=off -Xlog:cds+dynamic=off -XX:ArchiveClassesAtExit="
PATIENCE_S = 600.0


def main() -> None:
    archive = Path(sys.argv[1]).resolve()
    fresh = archive.with_suffix(".new")
    for old in (archive, fresh):
        old.unlink(missing_ok=True)
    try:
        if status := write(fresh):
            sys.exit(f"Java ended with status {status}")
        if not fresh.exists():
            sys.exit("this Java wrote no archive of classes")
        if status := mapped(fresh):
            sys.exit(f"Java ended with status {status} when it mapped the archive: is the disk full?")
        fresh.replace(archive)
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {error}".splitlines()[0])
    finally:
        fresh.unlink(missing_ok=True)


def write(archive: Path) -> int:
    """Run Spark once. Its JVM writes the archive when it ends. Returns the JVM's exit status."""
    with tempfile.TemporaryDirectory() as directory:
        settings = {"spark.driver.extraJavaOptions": f"{ARCHIVING}{archive}", "spark.sql.warehouse.dir": directory}
        spark = local_session(2, **settings)
        gateway = SparkContext._gateway
        try:
            play(spark, directory)
            spark.stop()
            gateway.shutdown()
            gateway.proc.stdin.close()  # this ends the JVM
            return gateway.proc.wait(PATIENCE_S)
        finally:
            gateway.proc.kill()
            gateway.proc.wait()


def mapped(archive: Path) -> int:
    """Let a JVM map the archive: it crashes if the file was cut. Returns the JVM's exit status."""
    java = Path(os.environ["JAVA_HOME"], "bin/java")  # local_session() has set it
    flags = [f"-XX:SharedArchiveFile={archive}", "-XX:-CreateCoredumpOnCrash", "-XX:ErrorFile=/dev/null"]
    return subprocess.run([java, *flags, "-version"], capture_output=True, timeout=PATIENCE_S).returncode


def play(spark: SparkSession, directory: str) -> None:
    """Do what most tests do, so that the JVM loads the classes that they need."""
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    spark.conf.set("spark.sql.codegen.wholeStage", "false")
    spark.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    rolled = f"{directory}/rolled"
    rollup(planned_lives(workload(spark, ops=500), 0), window="1 second").write.parquet(rolled)
    report(spark.read.parquet(rolled)).collect()
    rows = spark.readStream.schema("n long").parquet(rolled).writeStream.format("noop")
    rows.option("checkpointLocation", f"{directory}/c").trigger(availableNow=True).start().awaitTermination()


main()
