"""Keeps the classes that Spark's tests load, to be mapped and not read from 280 jars: python .ci/classes.py FILE

Tests do without, somewhat later: where it fails there is no FILE, and the last line says why. A JVM looks whether FILE
is of its own kind and of these jars, and goes on without it where it is not.
"""

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
            sys.exit(f"Java ended with {status}")
        if not fresh.exists():
            sys.exit("this Java keeps no classes")
        fresh.replace(archive)
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {error}".splitlines()[0])
    finally:
        fresh.unlink(missing_ok=True)


def write(archive: Path) -> int:
    """How the JVM ended, which writes the archive then."""
    with tempfile.TemporaryDirectory() as directory:
        settings = {"spark.driver.extraJavaOptions": f"{ARCHIVING}{archive}", "spark.sql.warehouse.dir": directory}
        spark = local_session(2, **settings)
        gateway = SparkContext._gateway
        try:
            play(spark, directory)
            spark.stop()
            gateway.shutdown()
            gateway.proc.stdin.close()  # which ends it
            return gateway.proc.wait(PATIENCE_S)
        finally:
            gateway.proc.kill()
            gateway.proc.wait()


def play(spark: SparkSession, directory: str) -> None:
    """What most tests do."""
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    spark.conf.set("spark.sql.codegen.wholeStage", "false")
    spark.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    rolled = f"{directory}/rolled"
    rollup(planned_lives(workload(spark, ops=500), 0), window="1 second").write.parquet(rolled)
    report(spark.read.parquet(rolled)).collect()
    rows = spark.readStream.schema("n long").parquet(rolled).writeStream.format("noop")
    rows.option("checkpointLocation", f"{directory}/c").trigger(availableNow=True).start().awaitTermination()


main()
