"""A journal as a DataFrame, from its own files or from what `timerctl journal export` has made of them."""

from __future__ import annotations

import glob
import os
from typing import TYPE_CHECKING

from timerd_shm.declare.errors import InvalidValueError

from .schema import VIEWS, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_journal(spark: SparkSession, path: str | os.PathLike[str], *, view: str = "terminal") -> DataFrame:
    """The terminal view (a row for each operation) or the events view of a journal: the same columns either way.

    `path` is a journal, a directory with one for each host, a pattern, or a directory of exported Parquet; what is no
    path of this machine (s3://...) is taken for Parquet. Raises InvalidValueError, JournalError.
    """
    if view not in VIEWS:
        raise InvalidValueError(f"view={view!r}: give {' or '.join(VIEWS)}")
    where = os.fspath(path)
    if not is_parquet(where):
        return spark.read.format("timerd").option("view", view).load(where)
    columns = [column.name for column in VIEWS[view]]
    return spark.read.schema(spark_schema(VIEWS[view])).parquet(where).select(*columns)


def is_parquet(path: str) -> bool:
    """Whether an export stands there, or what only Spark can look into."""
    if "://" in path and not path.startswith("file://"):
        return True
    plain = path.removeprefix("file://")
    return path.endswith(".parquet") or any(
        glob.glob(os.path.join(plain, pattern)) for pattern in ("*.parquet", "date=*", "_exported")
    )
