"""An audit of a query's outcomes finds nothing in right ones, and names what is wrong in falsified ones."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark.purgatory.feeds import streams, tables, write
from spark.purgatory.queries import OPTIONS, rows_of
from timerd_shm.declare.errors import InvalidValueError
from timerd_spark.purgatory.audited import audit_outcomes
from timerd_spark.purgatory.purgatory import purgatory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)


@pytest.mark.long
def test_an_audit_finds_what_is_missing_doubled_strange_early_or_different(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    from pyspark.sql import functions as F

    rows, _ = rows_of(random.Random(seed), "ab", 100, limits=True)
    write(tmp_path, [rows])
    registrations, events = tables(spark, tmp_path)
    options = {**OPTIONS, "by": "group"}
    purgatory(registrations, events, **options).write.parquet(str(tmp_path / "out"))
    right = spark.read.parquet(str(tmp_path / "out"))
    assert audit_outcomes(right, registrations, events, **options).collect() == []
    expired, completed = (right.where(f"outcome = '{name}'").orderBy("op_id") for name in ("expired", "completed"))
    early, (changed, missing, doubled) = expired.first(), completed.limit(3).collect()
    assert early is not None
    wrong = (
        right.where(f"op_id != '{missing.op_id}'")
        .selectExpr(
            f"if(op_id = '{changed.op_id}', 'failed', outcome) AS outcome",
            f"if(op_id = '{early.op_id}', deadline - interval 1 microsecond, settled_at) AS settled_at",
            *(f"`{name}`" for name in right.columns if name not in ("outcome", "settled_at")),
        )
        .unionByName(right.where(f"op_id = '{doubled.op_id}'"))
        .unionByName(right.where(f"op_id = '{doubled.op_id}'").withColumn("op_id", F.lit("ffff")))
    )
    found = {row.what: row for row in audit_outcomes(wrong, registrations, events, **options).collect()}
    assert {what: row.op_id for what, row in found.items() if row.expected is not None} == {
        "it has no outcome": missing.op_id,
        "it has 2 outcomes": doubled.op_id,
        "it has expired before its deadline": early.op_id,
        "it has another outcome, key, event, time or value": changed.op_id,
    }
    assert "nobody has registered it" in found
    changed_row = found["it has another outcome, key, event, time or value"]
    assert (changed_row.found, changed_row.expected) == ("failed", "completed")
    live = audit_outcomes(wrong, registrations, events, ordered=False, **options).collect()
    assert "it has another outcome, key, event, time or value" not in {row.what for row in live}


def test_an_audit_refuses_streams_and_other_tables(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, [[]])
    registrations, events = streams(spark, tmp_path)
    with pytest.raises(InvalidValueError, match=r"reads batches: give spark\.read"):
        audit_outcomes(registrations, registrations, events)
    registrations, events = tables(spark, tmp_path)
    with pytest.raises(InvalidValueError, match="the outcomes lack op_id, deadline, outcome"):
        audit_outcomes(events.drop("seq", "value"), registrations, events)
