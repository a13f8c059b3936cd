"""Rows of the terminal view, made by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from timerd_spark.source.schema import TERMINAL, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START = datetime(2026, 1, 1, tzinfo=UTC)
MS = 1_000_000


def life(at_ms: float, wait_ms: float, outcome: str = "completed", **more: Any) -> dict[str, Any]:
    """An operation that was registered `at_ms` after START, and settled `wait_ms` later.

    Its timeout is 200 ms, unless `timeout_ns` is given. Further arguments are other columns.
    """
    wait_ns = round(wait_ms * MS)
    timeout_ns = more.pop("timeout_ns", 200 * MS)
    registered = START + timedelta(milliseconds=at_ms)
    row: dict[str, Any] = dict.fromkeys(column.name for column in TERMINAL)
    row |= {
        "op_id": f"{at_ms}-{wait_ms}",
        "host": "a",
        "instance": "default",
        "purgatory": "default",
        "key": "k",
        "outcome": outcome,
        "registered_at": registered,
        "deadline": None if timeout_ns is None else registered + timedelta(microseconds=timeout_ns // 1_000),
        "settled_at": registered + timedelta(milliseconds=wait_ms),
        "timeout_ns": timeout_ns,
        "wait_ns": wait_ns,
        "lateness_ns": wait_ns - timeout_ns if outcome == "expired" else None,
        "flags": 0,
    }
    return row | more


def lives(spark: SparkSession, *rows: dict[str, Any], partitions: int = 1) -> DataFrame:
    """These rows as a terminal view. With one partition Spark shuffles nothing: a report takes a third of the time."""
    names = [column.name for column in TERMINAL]
    tuples = [tuple(row[name] for name in names) for row in rows]
    return spark.createDataFrame(tuples, spark_schema(TERMINAL)).coalesce(partitions)
