"""Keeps the classes that Spark's tests load, to be mapped and not read from 280 jars: python .ci/classes.py FILE"""

import sys
import tempfile
from pathlib import Path

from pyspark import SparkContext

from timerd_spark import local_session, report, rollup, workload
from timerd_spark.plans import planned_lives

ARCHIVING = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:cds=off -Xlog:cds+dynamic=off -XX:ArchiveClassesAtExit="


def main() -> None:
    archive = Path(sys.argv[1]).resolve()
    fresh = archive.with_suffix(".new")
    with tempfile.TemporaryDirectory() as directory:
        settings = {"spark.driver.extraJavaOptions": f"{ARCHIVING}{fresh}", "spark.sql.warehouse.dir": directory}
        spark = local_session(2, **settings)
        spark.conf.set("spark.sql.adaptive.enabled", "false")
        spark.conf.set("spark.sql.codegen.wholeStage", "false")
        spark.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        rolled = f"{directory}/rolled"
        rollup(planned_lives(workload(spark, ops=500), 0), window="1 second").write.parquet(rolled)
        report(spark.read.parquet(rolled)).collect()
        rows = spark.readStream.schema("n long").parquet(rolled).writeStream.format("noop")
        rows.option("checkpointLocation", f"{directory}/c").trigger(availableNow=True).start().awaitTermination()
        gateway = SparkContext._gateway
        spark.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()  # which ends it
        gateway.proc.wait(120)
    if fresh.exists():  # not every Java can
        fresh.replace(archive)


main()
