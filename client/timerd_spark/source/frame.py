"""A journal as a DataFrame, from its own files or from the Parquet files of `timerctl journal export`."""

from __future__ import annotations

import glob
import os
from typing import TYPE_CHECKING

from timerd_shm.declare.errors import InvalidValueError
from timerd_spark.options import local_path

from .schema import VIEWS, spark_schema
from .segments import expanded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_journal(spark: SparkSession, path: str | os.PathLike[str], *, view: str = "terminal") -> DataFrame:
    """The terminal view (a row for each operation) or the events view of a journal or of its Parquet files.

    `path` is a journal, a directory with a journal for each host, a pattern, or a directory of exported Parquet. A path
    in another file system (s3://...) is read as Parquet. The columns are the same in all cases. Raises
    InvalidValueError, JournalError.
    """
    if view not in VIEWS:
        raise InvalidValueError(f"view={view!r}: give {' or '.join(VIEWS)}")
    where = os.fspath(path)
    if not is_parquet(where):
        return spark.read.format("timerd").option("view", view).load(where)
    columns = [column.name for column in VIEWS[view]]
    return spark.read.schema(spark_schema(VIEWS[view])).parquet(where).select(*columns)


def is_parquet(path: str) -> bool:
    """Whether the path has an export, or is in another file system, which only Spark can read."""
    plain = local_path(path)
    return (
        plain is None
        or path.endswith(".parquet")
        or any(
            glob.glob(os.path.join(one, pattern))
            for one in expanded(plain)
            for pattern in ("*.parquet", "date=*", "_exported")
        )
    )
