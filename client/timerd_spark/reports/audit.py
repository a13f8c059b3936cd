"""audit(): every outcome of a journal computed again on Spark, with the one implementation in timerd_client/audit.

Operations depend on each other only through their keys, their ids, and the grants of limited events on their keys. The
states of clients and the clocks of turns matter to all operations. So rows are grouped by (host, incarnation,
purgatory, key) if all operations of the purgatory have one key and an id of their own, else by (host, incarnation,
purgatory). Each group is audited in the order of its rows. Each task gets all CLIENT, SEGMENT, TURN, GAP and END rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Final

from timerd_client.audit.audit import NEEDS_BEGINNING, NEEDS_COLUMNS, NEEDS_EVENTS
from timerd_client.audit.journal import OPEN_END
from timerd_shm.declare.errors import InvalidValueError

from .audit_rows import COLUMNS, FINDINGS, FRAGMENT, PACKED, audited, join_fragments, pack
from .inputs import need_view

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PARTITIONS: Final = 8
OF_ALL: Final = ("client", "segment", "turn", "anchor", "gap", "end")  # kinds of rows that go to each task
OF_KEYS: Final = ("register", "event", "outcome", "watermark")  # that go to the task of their key
OF_OPERATIONS: Final = ("action", "group")  # that go to the task of their operation's registration


log = logging.getLogger("timerd_spark")


def audit(
    df: DataFrame,
    partitions: int = PARTITIONS,
    *,
    open_end: bool = False,
    show: Callable[[str], None] = log.info,
) -> DataFrame:
    """Compute all outcomes again from a journal's events. The result has a row for each defect of the daemon.

    `df` is the events view of whole journals, of any number of hosts, from before their first operation on; it may have
    been stored as Parquet. Columns of the result: host, incarnation, row (the number of the row that shows the defect;
    -1: the journal's end), op_id (null: no operation) and what (the defect in words).

    A journal without an END row at its end may lack its last rows: that is a finding as well, unless `open_end`. `show`
    gets a line for each arena, such as "web1: 4,711 outcomes, 2 segments, complete to row 29,873".

    The call does all the work. It reads `df` once, keeps the needed parts meanwhile (in memory, else on the disk), and
    runs `partitions` tasks. Each task holds the events and the pending operations of its share. The findings stay on
    the executors as long as the result is referred to.

    Raises InvalidValueError for another DataFrame, and for a journal of level outcomes or without its beginning.
    """
    from pyspark.sql import functions as F

    need_view(df, "events", COLUMNS, "audit()")
    if isinstance(partitions, bool) or not isinstance(partitions, int) or not 1 <= partitions <= 100_000:
        raise InvalidValueError(f"audit(): partitions={partitions!r}: give 1 to 100,000")
    # Spark uses persisted rows for each plan that looks the same, and a path looks the same after its files changed. A
    # killed audit may have left persisted rows. So this plan has a condition of its own, which Spark folds away.
    new = F.lit(token_hex()).isNotNull()
    packed = df.select(*COLUMNS).where(new).mapInArrow(pack, PACKED).persist()
    try:
        # Findings are not persisted, for the same reason. A checkpoint is freed with its last reference.
        return _findings(packed, partitions, open_end, show).localCheckpoint()
    finally:
        packed.unpersist()


def _findings(packed: DataFrame, partitions: int, open_end: bool, show: Callable[[str], None]) -> DataFrame:
    """The findings of packed rows, with the columns FINDINGS."""
    from pyspark.sql import functions as F

    arenas = _arenas(packed)
    for a in arenas:
        show(
            f"{a['host']}: {a['outcomes']:,} outcomes, {a['segments']:,} segments, complete to row {a['newest']:,}"
            + (f"; arena {a['incarnation']}" if len(arenas) > 1 else "")
        )
    kind = F.col("kind")
    rows = packed.where(kind != FRAGMENT)
    if any(arena["fragments"] for arena in arenas):
        of_operation = ("host", "incarnation", "operation")
        fragments = packed.where(kind == FRAGMENT).repartition(*of_operation).sortWithinPartitions(*of_operation, "row")
        rows = rows.unionByName(fragments.mapInArrow(join_fragments, PACKED))
    registrations = rows.where(kind == "register")
    bucket = _bucket(_shared(registrations), partitions)
    every = F.explode(F.sequence(F.lit(0), F.lit(partitions - 1)))
    parts = [rows.where(kind.isin(*OF_KEYS)).withColumn("bucket", bucket)]
    parts.append(rows.where(kind.isin(*OF_ALL)).withColumn("bucket", every))
    if any(arena["others"] for arena in arenas):
        of_operation = ("host", "incarnation", "operation")
        buckets = registrations.select(*of_operation, bucket.alias("bucket")).dropDuplicates(of_operation)
        others = rows.where(kind.isin(*OF_OPERATIONS)).join(buckets, list(of_operation), "left")
        parts.append(others.withColumn("bucket", F.coalesce("bucket", F.lit(0))))
    order = ("bucket", "host", "incarnation", "row")
    sent = parts[0].select(*order, "kind", "operation", "arguments")
    for part in parts[1:]:
        sent = sent.unionByName(part.select(*sent.columns))
    ordered = sent.repartitionById(partitions, F.col("bucket")).sortWithinPartitions(*order)
    found = ordered.mapInArrow(audited, FINDINGS).dropDuplicates()
    missing = [(a["host"], a["incarnation"], -1, None, a["missing"]) for a in arenas if a["missing"]]
    if not open_end:
        missing += [
            (a["host"], a["incarnation"], a["newest"], None, OPEN_END) for a in arenas if a["end"] != a["newest"]
        ]
    if missing:
        found = found.unionByName(packed.sparkSession.createDataFrame(missing, FINDINGS))
    return found


def _arenas(packed: DataFrame) -> list[dict[str, Any]]:
    """Facts about each arena, from one pass over all rows: host, incarnation, counts, and missing events.

    Raises InvalidValueError for a journal without events, or without its beginning.
    """
    from pyspark.sql import functions as F

    kind = F.col("kind")
    rows = (
        packed.groupBy("host", "incarnation")
        .agg(
            F.max("lacks").alias("lacks"),
            F.min("row").alias("oldest"),
            F.max("row").alias("newest"),
            F.max(F.when(kind == "end", F.col("row"))).alias("end"),
            F.count(F.when(kind == "outcome", 1)).alias("outcomes"),
            F.count(F.when(kind == "segment", 1)).alias("segments"),
            F.count(F.when(kind == FRAGMENT, 1)).alias("fragments"),
            F.count(F.when(kind.isin(*OF_OPERATIONS), 1)).alias("others"),
            F.min("sequence").alias("first"),
            F.max("sequence").alias("last"),
            F.count("sequence").alias("events"),
        )
        .collect()
    )
    found = []
    for row in rows:
        journal = f"the journal of {row['host']}"
        if row["lacks"] == "events":
            raise InvalidValueError("audit(): " + NEEDS_EVENTS.format(journal))
        if row["lacks"]:
            raise InvalidValueError("audit(): " + NEEDS_COLUMNS.format(journal))
        if row["oldest"]:
            raise InvalidValueError("audit(): " + NEEDS_BEGINNING.format(journal, row["oldest"]))
        arena = row.asDict()
        wanted = row["last"] - row["first"] + 1 if row["events"] else 0
        arena["missing"] = f"{wanted} events are numbered, and {row['events']} are there" * (wanted != row["events"])
        found.append(arena)
    return found


def _shared(registrations: DataFrame) -> list[str]:
    """The purgatories whose keys are not independent: an operation has several, or two operations have one id."""
    from pyspark.sql import functions as F

    ids = registrations.where("id IS NOT NULL").groupBy(_purgatory().alias("name"), "id")
    again = ids.agg((F.min("operation") != F.max("operation")).alias("again")).where("again").select("name")
    several = registrations.where("keys > 1").select(_purgatory().alias("name"))
    return sorted(row.name for row in several.unionByName(again).distinct().collect())


def _purgatory() -> Column:
    from pyspark.sql import functions as F

    return F.concat_ws("/", "host", "incarnation", "purgatory")


def _bucket(shared: Sequence[str], partitions: int) -> Column:
    """The number of the task that audits a row with a purgatory and a key."""
    from pyspark.sql import functions as F

    key = F.col("key")
    if shared:
        key = F.when(_purgatory().isin(*shared), F.lit("")).otherwise(key)
    return F.pmod(F.xxhash64("host", "incarnation", "purgatory", key), F.lit(partitions)).cast("int")
