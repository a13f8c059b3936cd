"""audit(): every outcome of a journal computed again on Spark, with the one implementation in timerd_client/audit.

Most operations are plain: audit_plain.py accepts them by numpy, and only the others are given to the implementation.
Operations depend on each other only through their keys, their ids, and the grants of limited events on their keys. The
states of clients and the clocks of turns matter to all operations. So rows are grouped by (host, incarnation,
purgatory, key) if all operations of the purgatory have one key and an id of their own, else by (host, incarnation,
purgatory). Each group is audited in the order of its rows. Each task gets all CLIENT, SEGMENT, TURN, GAP and END rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from secrets import token_hex
from typing import TYPE_CHECKING, Final

from timerd_client.audit.audit import NEEDS_BEGINNING, NEEDS_COLUMNS, NEEDS_EVENTS
from timerd_client.audit.journal import OPEN_END
from timerd_shm.declare.errors import InvalidValueError
from timerd_shm.declare.journal import RowKind

from .audit_rows import (
    COLUMNS,
    FACTS,
    FINDINGS,
    FRAGMENT,
    OF_ALL,
    PACKED,
    Facts,
    audited,
    facts_of,
    join_fragments,
    pack,
)
from .inputs import need_view

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PARTITIONS_MIN, OUTCOMES_OF_TASK = 4, 500_000
OF_OPERATIONS: Final = (RowKind.ACTION, RowKind.GROUP)  # rows that go to the task of their operation's registration

log = logging.getLogger("timerd_spark")


def audit(
    df: DataFrame,
    partitions: int | None = None,
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
    runs `partitions` tasks (None: one for each 500,000 operations, and at least four). A task holds the rows of its
    share in memory, some 600 bytes an operation; of more than 3,000,000 rows it holds only what is pending. The
    findings stay on the executors as long as the result is referred to.

    Raises InvalidValueError for another DataFrame, and for a journal of level outcomes or without its beginning.
    """
    from pyspark.sql import functions as F

    need_view(df, "events", COLUMNS, "audit()")
    is_number = isinstance(partitions, int) and not isinstance(partitions, bool)
    if partitions is not None and not (is_number and 1 <= partitions <= 100_000):
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


def _findings(packed: DataFrame, partitions: int | None, open_end: bool, show: Callable[[str], None]) -> DataFrame:
    """The findings of packed rows, with the columns FINDINGS."""
    from pyspark.sql import functions as F

    arenas = _arenas(packed)
    for (host, incarnation), facts in arenas.items():
        show(
            f"{host}: {facts.outcomes:,} outcomes, {facts.segments:,} segments, complete to row {facts.newest:,}"
            + (f"; arena {incarnation}" if len(arenas) > 1 else "")
        )
    outcomes = sum(facts.outcomes for facts in arenas.values())
    partitions = partitions or max(PARTITIONS_MIN, -(-outcomes // OUTCOMES_OF_TASK))
    kind, of_operation = F.col("kind"), ("host", "incarnation", "operation")
    rows = packed.where(kind > 0)
    if any(facts.fragments for facts in arenas.values()):
        fragments = packed.where(kind == FRAGMENT).repartition(1).sortWithinPartitions(*of_operation, "row")
        rows = rows.unionByName(fragments.mapInArrow(join_fragments, PACKED))
    registrations = rows.where(kind == int(RowKind.REGISTER))
    is_bound = any(facts.bound for facts in arenas.values())
    bucket = _bucket(_shared(registrations) if is_bound else [], partitions)
    every = F.sequence(F.lit(0), F.lit(partitions - 1))
    its = F.when(kind.isin(*map(int, OF_ALL)), every).otherwise(F.array(bucket))
    of_operations = kind.isin(*map(int, OF_OPERATIONS))
    sent = rows.where(~of_operations).select(F.explode(its).alias("bucket"), "*")
    if any(facts.others for facts in arenas.values()):
        theirs = registrations.select(*of_operation, bucket.alias("bucket")).dropDuplicates(of_operation)
        others = rows.where(of_operations).join(theirs, list(of_operation), "left")
        sent = sent.unionByName(others.withColumn("bucket", F.coalesce("bucket", F.lit(0))))
    buckets = sent.repartitionById(partitions, F.col("bucket")).sortWithinPartitions("host", "incarnation", "row")
    found = buckets.mapInArrow(audited, FINDINGS).dropDuplicates()
    if missing := _missing(arenas, open_end):
        found = found.unionByName(packed.sparkSession.createDataFrame(missing, FINDINGS))
    return found


def _arenas(packed: DataFrame) -> dict[tuple[str, str], Facts]:
    """Facts about each arena, by host and incarnation.

    Raises InvalidValueError for a journal without events, or without its beginning.
    """
    from pyspark.sql import functions as F

    found: dict[tuple[str, str], Facts] = {}
    for row in packed.where(F.col("kind") == FACTS).select("host", "incarnation", "bytes").collect():
        of, facts = (row["host"], row["incarnation"]), facts_of(bytes(row["bytes"]))
        found[of] = found[of].with_more(facts) if of in found else facts
    for (host, _), facts in found.items():
        journal = f"the journal of {host}"
        if facts.lacks == "events":
            raise InvalidValueError("audit(): " + NEEDS_EVENTS.format(journal))
        if facts.lacks:
            raise InvalidValueError("audit(): " + NEEDS_COLUMNS.format(journal))
        if facts.oldest:
            raise InvalidValueError("audit(): " + NEEDS_BEGINNING.format(journal, facts.oldest))
    return dict(sorted(found.items()))


def _missing(arenas: Mapping[tuple[str, str], Facts], open_end: bool) -> list[tuple[str, str, int, None, str]]:
    """The findings that say that rows are not there."""
    found = []
    for (host, incarnation), facts in arenas.items():
        wanted = facts.last - facts.first + 1 if facts.events else 0
        if wanted != facts.events:
            what = f"{wanted} events are numbered, and {facts.events} are there"
            found.append((host, incarnation, -1, None, what))
        if facts.end != facts.newest and not open_end:
            found.append((host, incarnation, facts.newest, None, OPEN_END))
    return found


def _shared(registrations: DataFrame) -> list[str]:
    """The purgatories whose keys are not independent: an operation has several, or two operations have one id."""
    from pyspark.sql import functions as F

    ids = registrations.where("id IS NOT NULL").groupBy(_purgatory().alias("name"), "id")
    again = ids.agg((F.min("operation") != F.max("operation")).alias("again")).where("again").select("name")
    several = registrations.where("names IS NOT NULL").select(_purgatory().alias("name"))
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
