"""An audit of outcomes: a batch query computes them again from the same rows, and says where they differ."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from timerd_shm.declare.errors import InvalidValueError

from .purgatory import PROCESSING_TIME, purgatory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COMPARED: Final = ("outcome", "settled_key", "seq", "settled_at", "error", "value")
NEEDED: Final = ("op_id", "deadline", *COMPARED)


def audit_outcomes(
    outcomes: DataFrame,
    registrations: DataFrame,
    events: DataFrame,
    *,
    until: datetime | None = None,
    **arguments: Any,
) -> DataFrame:
    """Compute the outcomes of purgatory() again, as a batch. The result has a row for each finding; none: all is right.

    `outcomes`: what a query has written, read as a batch. `registrations`, `events`: the rows that it has read, as
    batches. `arguments`: those that purgatory() got. `until`: operations that settled before this time must have an
    outcome (default: the newest settled_at of `outcomes`, so that a query that still runs has no findings).

    Columns of the result: op_id, id, purgatory, what (the finding in words), found and expected (the outcome, or null).
    Findings are: no outcome, several outcomes, an operation that nobody has registered, another outcome than expected,
    and an expiry before the deadline. If the query applies rows as they come (ordered=False, ProcessingTime), another
    outcome is no finding. Rows that came later than `delay` are findings, too: the batch counts them.

    Raises InvalidValueError for streams, for outcomes without the columns of purgatory(), and as purgatory() does.
    """
    from pyspark.sql import functions as F

    if any(df.isStreaming for df in (outcomes, registrations, events)):
        raise InvalidValueError("audit_outcomes(): it reads batches: give spark.read..., not spark.readStream...")
    if missing := [name for name in NEEDED if name not in outcomes.columns]:
        raise InvalidValueError(f"audit_outcomes(): the outcomes lack {', '.join(missing)}: give those of purgatory()")
    is_exact = arguments.get("ordered", True) and arguments.get("time_mode") != PROCESSING_TIME
    again = purgatory(registrations, events, **{**arguments, "idle_after": None})
    end = F.lit(until) if until is not None else outcomes.agg(F.max("settled_at").alias("end")).first()["end"]
    count = F.count("*").over(_by_operation())
    row_of = F.row_number().over(_by_operation().orderBy("settled_at"))
    once = outcomes.withColumn("times", count).withColumn("nth", row_of).where("nth = 1")
    f = once.select("op_id", "times", F.struct("id", "purgatory", "deadline", *COMPARED).alias("f"))
    e = again.select("op_id", F.struct("id", "purgatory", *COMPARED).alias("e"))
    differs = F.lit(False)
    for name in COMPARED if is_exact else ():
        differs = differs | ~F.col(f"f.{name}").eqNullSafe(F.col(f"e.{name}"))
    what = (
        F.when(F.col("f").isNull() & (F.col("e.settled_at") < end), "it has no outcome")
        .when(F.col("f").isNull(), None)
        .when(F.col("e").isNull(), "nobody has registered it")
        .when(F.col("times") > 1, F.concat(F.lit("it has "), F.col("times"), F.lit(" outcomes")))
        .when(
            (F.col("f.outcome") == "expired") & (F.col("f.settled_at") < F.col("f.deadline")),
            "it has expired before its deadline",
        )
        .when(differs, "it has another outcome, key, event, time or value")
    )
    either = [F.coalesce(F.col(f"f.{name}"), F.col(f"e.{name}")).alias(name) for name in ("id", "purgatory")]
    joined = f.join(e, "op_id", "full_outer").withColumn("what", what).where("what IS NOT NULL")
    return joined.select(
        "op_id", *either, "what", F.col("f.outcome").alias("found"), F.col("e.outcome").alias("expected")
    )


def _by_operation() -> Any:
    from pyspark.sql import Window

    return Window.partitionBy("op_id")
