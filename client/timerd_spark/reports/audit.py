"""audit(): every outcome of a journal computed again on Spark, with the one implementation in timerd_client/audit.

Operations have to do with each other only through the keys that they watch, their ids, and what limited events on their
keys hand over; the states of clients matter to all. So rows are grouped by (host, incarnation, purgatory, key), where
all operations of a purgatory have one key and an id of their own, else by (host, incarnation, purgatory); each group is
audited in the order of its rows, and CLIENT, SEGMENT and GAP rows are given to each task.
"""

from __future__ import annotations

from collections.abc import Sequence
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Final

from timerd_client.audit.audit import NEEDS_BEGINNING, NEEDS_EVENTS
from timerd_shm.declare.errors import InvalidValueError

from .audit_rows import COLUMNS, FINDINGS, HALF, PACKED, audited, join_again, pack
from .inputs import need_view

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PARTITIONS: Final = 8
OF_ALL: Final = ("client", "segment", "gap")  # kinds of rows that each task is given
OF_KEYS: Final = ("register", "event", "outcome", "watermark")
OF_OPERATIONS: Final = ("action", "group")


def audit(df: DataFrame, partitions: int = PARTITIONS) -> DataFrame:
    """What a journal's events say should have happened, and did not: no row, or a defect of the daemon.

    `df` is the events view of whole journals, of any number of hosts, from before their first operation on; it may be
    stored as Parquet between. Columns: host, incarnation, row (number of the row that shows it; -1: the journal's end),
    op_id (null: of no operation) and what is wrong. All is done when this is called: `df` is read once, what an audit
    needs of it is kept meanwhile (in memory, else on the disk), and `partitions` tasks each hold the events and the
    pending operations of their share. What is found stays on the executors for as long as it is referred to.

    Raises InvalidValueError for another DataFrame, and for a journal of level outcomes or without its beginning.
    """
    from pyspark.sql import functions as F

    need_view(df, "events", COLUMNS, "audit()")
    if isinstance(partitions, bool) or not isinstance(partitions, int) or not 1 <= partitions <= 100_000:
        raise InvalidValueError(f"audit(): partitions={partitions!r}: give 1 to 100,000")
    # Spark takes what is persisted for any plan that looks the same, and a path looks the same whatever it holds now.
    # An audit that was killed may have left such rows, so these look like no others; Spark folds the condition.
    new = F.lit(token_hex()).isNotNull()
    packed = df.select(*COLUMNS).where(new).mapInArrow(pack, PACKED).persist()
    try:
        # Not persisted, for the same reason; and it goes with the last reference to it.
        return _found(packed, partitions).localCheckpoint()
    finally:
        packed.unpersist()


def _found(packed: DataFrame, partitions: int) -> DataFrame:
    """The findings of packed rows."""
    from pyspark.sql import functions as F

    heads = _heads(packed)
    kind = F.col("kind")
    rows = packed.where(kind != HALF)
    if any(head["halves"] for head in heads):
        place = ("host", "incarnation", "operation")
        halves = packed.where(kind == HALF).repartition(*place).sortWithinPartitions(*place, "row")
        rows = rows.unionByName(halves.mapInArrow(join_again, PACKED))
    registrations = rows.where(kind == "register")
    bucket = _bucket(_tied(registrations), partitions)
    every = F.explode(F.sequence(F.lit(0), F.lit(partitions - 1)))
    parts = [rows.where(kind.isin(*OF_KEYS)).withColumn("bucket", bucket)]
    parts.append(rows.where(kind.isin(*OF_ALL)).withColumn("bucket", every))
    if any(head["others"] for head in heads):
        place = ("host", "incarnation", "operation")
        places = registrations.select(*place, bucket.alias("bucket")).dropDuplicates(place)
        others = rows.where(kind.isin(*OF_OPERATIONS)).join(places, list(place), "left")
        parts.append(others.withColumn("bucket", F.coalesce("bucket", F.lit(0))))
    order = ("bucket", "host", "incarnation", "row")
    sent = parts[0].select(*order, "kind", "operation", "told")
    for part in parts[1:]:
        sent = sent.unionByName(part.select(*sent.columns))
    ordered = sent.repartitionById(partitions, F.col("bucket")).sortWithinPartitions(*order)
    found = ordered.mapInArrow(audited, FINDINGS).dropDuplicates()
    missing = [(h["host"], h["incarnation"], -1, None, h["missing"]) for h in heads if h["missing"]]
    if missing:
        found = found.unionByName(packed.sparkSession.createDataFrame(missing, FINDINGS))
    return found


def _heads(packed: DataFrame) -> list[dict[str, Any]]:
    """What has to be known of each arena before: one look at the whole. Raises InvalidValueError."""
    from pyspark.sql import functions as F

    kind = F.col("kind")
    rows = (
        packed.groupBy("host", "incarnation")
        .agg(
            F.max("silent").alias("silent"),
            F.min("row").alias("oldest"),
            F.count(F.when(kind == HALF, 1)).alias("halves"),
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
        if row["silent"]:
            raise InvalidValueError("audit(): " + NEEDS_EVENTS.format(journal))
        if row["oldest"]:
            raise InvalidValueError("audit(): " + NEEDS_BEGINNING.format(journal, row["oldest"]))
        head = row.asDict()
        wanted = row["last"] - row["first"] + 1 if row["events"] else 0
        head["missing"] = f"{wanted} events are numbered, and {row['events']} are there" * (wanted != row["events"])
        found.append(head)
    return found


def _tied(registrations: DataFrame) -> list[str]:
    """The purgatories in which operations share more than a key, as _purgatory() names them."""
    from pyspark.sql import functions as F

    ids = registrations.where("id IS NOT NULL").groupBy(_purgatory().alias("name"), "id")
    again = ids.agg((F.min("operation") != F.max("operation")).alias("again")).where("again").select("name")
    several = registrations.where("keys > 1").select(_purgatory().alias("name"))
    return sorted(row.name for row in several.unionByName(again).distinct().collect())


def _purgatory() -> Column:
    from pyspark.sql import functions as F

    return F.concat_ws("/", "host", "incarnation", "purgatory")


def _bucket(tied: Sequence[str], partitions: int) -> Column:
    """The task that audits a row which has a purgatory and a key."""
    from pyspark.sql import functions as F

    key = F.col("key")
    if tied:
        key = F.when(_purgatory().isin(*tied), F.lit("")).otherwise(key)
    return F.pmod(F.xxhash64("host", "incarnation", "purgatory", key), F.lit(partitions)).cast("int")
