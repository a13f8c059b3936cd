"""percentiles(): exact percentiles of measures, from the rows themselves.

Example: of 500,000 waits, the p99 is the 495,000th when they are sorted. report() reads percentiles from histograms,
which merge, and are up to rollups.ERROR too large. So a page that has the rows takes their percentiles from here.

Spark's percentile_disc() would hold all values of a group in memory. A window sorts them, and spills to disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from .rollups import OUTCOMES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SHARES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p999": 0.999, "max": 1.0}
# Measures of a terminal view, in ns, as SQL. Rows for which a measure is null do not count for it.
LATENCY: Final = "CASE outcome WHEN 'completed' THEN wait_ns END"
LATENESS: Final = "CASE outcome WHEN 'expired' THEN lateness_ns END"


def percentiles(df: DataFrame, measures: Mapping[str, str], by: str) -> DataFrame:
    """A row for each value of the column `by`, and one for all rows, in which `of_all` is true and `by` is null.

    `df` is a terminal view. `measures` has SQL in ns by the measure's name. Columns: `by`, of_all, n, then the numbers
    of OUTCOMES, start_us and end_us (the first registration and the last outcome, since 1970), timeout_low_ns and
    timeout_high_ns (the least and the largest timeout), and for each measure NAME_p50_ms .. NAME_max_ms.
    """
    every = _of(df, measures, by).unionByName(_of(df, measures, None), allowMissingColumns=True)
    return every.orderBy("of_all", by)


def _of(df: DataFrame, measures: Mapping[str, str], by: str | None) -> DataFrame:
    """The rows of percentiles() for each value of `by`, or the one for all."""
    name = f"`{by}`, " if by else ""
    group = f"GROUP BY `{by}`" if by else ""
    stacked = ", ".join(f"'{measure}', bigint({sql})" for measure, sql in measures.items())
    ranked = f"""
        SELECT {name} measure, value, row_number() OVER (PARTITION BY {name} measure ORDER BY value) AS place,
               count(*) OVER (PARTITION BY {name} measure) AS total
        FROM (SELECT {name} stack({len(measures)}, {stacked}) AS (measure, value) FROM {{rows}})
        WHERE value IS NOT NULL"""
    found = ", ".join(
        f"max(CASE WHEN measure = '{measure}' AND place = ceil({share!r}D * total) THEN value END) / 1e6D "
        f"AS {measure}_{short}_ms"
        for measure in measures
        for short, share in SHARES.items()
    )
    outcomes = ", ".join(f"count(CASE outcome WHEN '{one}' THEN 1 END) AS {one}" for one in OUTCOMES)
    counted = f"""
        SELECT {name} {"false" if by else "true"} AS of_all, count(*) AS n, {outcomes},
               unix_micros(timestamp(min(registered_at))) AS start_us,
               unix_micros(timestamp(max(settled_at))) AS end_us,
               min(timeout_ns) AS timeout_low_ns, max(timeout_ns) AS timeout_high_ns
        FROM {{rows}} {group}"""
    same = f"counted.`{by}` <=> found.`{by}`" if by else "true"
    columns = ", ".join(f"found.{measure}_{short}_ms" for measure in measures for short in SHARES)
    return df.sparkSession.sql(
        f"SELECT counted.*, {columns} FROM ({counted}) AS counted "
        f"LEFT JOIN (SELECT {name} {found} FROM ({ranked}) {group}) AS found ON {same}",
        rows=df,
    )
