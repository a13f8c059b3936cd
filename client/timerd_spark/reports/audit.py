"""audit(): every outcome of a journal computed again on Spark, with the one implementation in timerd_client/audit.

Most operations are plain: audit_plain.py accepts them by numpy, and only the others go through the implementation.
Operations depend on each other only through their keys, their ids, and the grants of limited events on their keys. The
states of clients and the clocks of turns matter to all operations. So rows are grouped by (host, incarnation,
purgatory, key) if each operation of the purgatory has one key and no two share an id, else by (host, incarnation,
purgatory). Each group is audited in the order of its rows. Each task gets all CLIENT, SEGMENT, TURN, ANCHOR, GAP and
END rows. Spark handles no single rows: audit_parcels.py packs rows that stay together into parcels.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from secrets import token_hex
from typing import TYPE_CHECKING, NamedTuple

from timerd_client.audit.audit import NEEDS_BEGINNING, NEEDS_COLUMNS, NEEDS_EVENTS
from timerd_client.audit.journal import OPEN_END
from timerd_shm.declare.errors import InvalidValueError

from .audit_parcels import (
    ABOUT,
    BOUND,
    EVERY,
    FINDINGS,
    FRAGMENTS,
    INDEX,
    ORDERED,
    PARCELS,
    PLACED,
    SHARES,
    bound,
    index,
    ordered,
    parcels,
    parcels_of_fragments,
    placed,
    rows_of,
    twice,
)
from .audit_rows import COLUMNS, NEVER, Facts, facts_of
from .audit_tasks import audited
from .inputs import need_view

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PARTITIONS_MIN, OUTCOMES_OF_TASK = 4, 500_000

log = logging.getLogger("timerd_spark")


class AuditedArena(NamedTuple):
    """How much of one arena's journal an audit has read, and whether rows are missing. str() is a line for people."""

    host: str
    incarnation: str  # of the arena: each fresh start makes a new one
    outcomes: int
    segments: int
    gaps: int  # times in which the daemon could not write its journal
    left_out: int  # rows that failOnDataLoss=false has left out
    row: int  # the last row up to which no row is missing; -1: there is none, or it is not known
    ended: bool  # the last row is an END row, so no row is missing after it

    def __str__(self) -> str:
        parts = [
            f"{self.host}, arena {self.incarnation}: {self.outcomes:,} outcomes",
            counted(self.segments, "segment"),
            counted(self.gaps, "gap"),
            *([f"{counted(self.left_out, 'row')} left out"] if self.left_out else []),
            f"complete to row {self.row:,}" if self.row >= 0 else "rows are missing",
            *([] if self.ended else ["its end is not known"]),
        ]
        return ", ".join(parts)


def counted(count: int, what: str) -> str:
    """ "no gaps", "1 segment", "2 segments"."""
    return f"{f'{count:,}' if count else 'no'} {what}{'s' * (count != 1)}"


def audit(
    df: DataFrame,
    partitions: int | None = None,
    *,
    open_end: bool = False,
    show: Callable[[AuditedArena], object] = log.info,
) -> DataFrame:
    """Compute all outcomes again from a journal's events. The result has a row for each finding: none, if all is right.

    `df` is the events view of the journals of any number of hosts, each from its row 0 on. It may have been stored as
    Parquet. Columns of the result: host, incarnation, row (the number of the row that shows the defect; -1: no single
    row shows it), op_id (null: no operation), what (the finding in words), cause and follows (booleans).

    A *cause* says that rows are missing, which is no defect of the daemon. Rows were left out (`failOnDataLoss` is
    `false`) or dropped, or the journal does not end with an END row, so that it may lack its last rows. With `open_end`
    a journal without an END row is no finding. A finding that `follows` comes after a cause, and may come from it. The
    causes come first in the result, and the findings that follow come last.

    `show` gets an AuditedArena of each arena, whose text is "web1, arena 5e1f: 4,711 outcomes, 2 segments, no gaps,
    complete to row 29,873".

    The call does all the work, not the later actions. It reads `df` once, keeps the needed parts until it returns (in
    memory, else on the disk), and runs `partitions` tasks (by default one for each 500,000 operations, and at least
    four). A task holds the rows of its share in memory, some 600 bytes an operation, and 3,000,000 rows at most beside
    pending operations. The findings stay on the executors as long as the program refers to the result.

    Raises InvalidValueError if `df` is no events view, or if its journal is of level outcomes, lacks its beginning, or
    lacks columns because an older version wrote it.
    """
    from pyspark.sql import functions as F

    need_view(df, "events", COLUMNS, "audit()")
    is_number = isinstance(partitions, int) and not isinstance(partitions, bool)
    if partitions is not None and not (is_number and 1 <= partitions <= 100_000):
        raise InvalidValueError(f"audit(): partitions={partitions!r}: give 1 to 100,000")
    # Spark uses persisted rows again for each plan that is equal to the plan that made them, even if the files have
    # changed. A killed audit may have left persisted rows. So this plan has a random condition, which Spark folds away.
    new = F.lit(token_hex()).isNotNull()
    sent = df.select(*COLUMNS).where(new).mapInArrow(parcels, PARCELS).persist()
    try:
        # Findings are not persisted, because persisted rows would stay. A checkpoint is freed with its last reference.
        return _findings(sent, partitions, open_end, show).localCheckpoint()
    finally:
        sent.unpersist()


def _findings(
    sent: DataFrame, partitions: int | None, open_end: bool, show: Callable[[AuditedArena], object]
) -> DataFrame:
    """The findings about the rows in the parcels `sent`, with the columns ORDERED."""
    from pyspark.sql import functions as F

    arenas = _arenas(sent)
    for (host, incarnation), facts in arenas.items():
        left_out, ended = sum(rows for _, rows, _ in facts.left_out), facts.end == facts.newest
        shown = (facts.outcomes, facts.segments, facts.gaps, left_out, facts.complete_to, ended)
        show(AuditedArena(host, incarnation, *shown))
    outcomes = sum(facts.outcomes for facts in arenas.values())
    partitions = partitions or max(PARTITIONS_MIN, -(-outcomes // OUTCOMES_OF_TASK))
    share = F.col("share")
    of_keys, of_operations = sent.where(share.between(0, SHARES - 1)), sent.where(share >= SHARES)
    is_index, by = F.col("first") == INDEX, ("host", "incarnation", "share")
    numbers, of_operations = of_operations.where(is_index), of_operations.where(~is_index)
    if any(facts.fragments for facts in arenas.values()):
        fragments = sent.where(share == FRAGMENTS).repartition(1).mapInArrow(parcels_of_fragments, PARCELS)
        of_keys, numbers = (
            of_keys.unionByName(fragments.where(~is_index)),
            numbers.unionByName(fragments.where(is_index)),
        )
    shared = _shared(of_keys) if any(facts.bound for facts in arenas.values()) else []
    every = F.explode(F.sequence(F.lit(0), F.lit(partitions - 1))).alias("bucket")
    of_keys = of_keys.withColumn("bucket", _bucket(shared, partitions))
    given = of_keys.unionByName(sent.where(share == EVERY).select("*", every))
    if any(facts.others for facts in arenas.values()):
        both = of_keys.mapInArrow(index, PLACED).unionByName(of_operations.withColumn("bucket", F.lit(0)))
        those = both.repartition(partitions, *by).sortWithinPartitions(*by, "first")
        given = given.unionByName(those.mapInArrow(placed, PLACED))
    buckets = given.repartitionById(partitions, F.col("bucket")).sortWithinPartitions("host", "incarnation", "first")
    again = numbers.repartition(partitions, *by).mapInArrow(twice, FINDINGS)
    found = buckets.mapInArrow(audited, FINDINGS).unionByName(again).dropDuplicates()
    if missing := _missing(arenas, open_end):
        found = found.unionByName(sent.sparkSession.createDataFrame(missing, FINDINGS))
    return found.repartition(1).mapInArrow(ordered, ORDERED)


def _arenas(sent: DataFrame) -> dict[tuple[str, str], Facts]:
    """Facts about each arena, by host and incarnation.

    Raises InvalidValueError for a journal without events, or without its beginning.
    """
    from pyspark.sql import functions as F

    parts = sent.where(F.col("share") == ABOUT).select("host", "incarnation", "content").collect()
    found = facts_of(
        (part["host"], part["incarnation"], data)
        for part in parts
        for data in rows_of(bytes(part["content"]))["bytes"].to_pylist()
    )
    for (host, _), facts in found.items():
        journal = f"the journal of {host}"
        if facts.lacks == "events":
            raise InvalidValueError("audit(): " + NEEDS_EVENTS.format(journal))
        if facts.lacks:
            raise InvalidValueError("audit(): " + NEEDS_COLUMNS.format(journal))
        if facts.oldest:
            oldest = facts.oldest if facts.oldest < NEVER else max(first + rows for first, rows, _ in facts.left_out)
            why = "".join(f". {what}" for _, _, what in sorted(facts.left_out)[:1])
            raise InvalidValueError("audit(): " + NEEDS_BEGINNING.format(journal, oldest) + why)
    return dict(sorted(found.items()))


def _missing(arenas: Mapping[tuple[str, str], Facts], open_end: bool) -> list[tuple[str, str, int, None, str, bool]]:
    """The findings about missing rows, and about rows that are not in order."""
    found = []
    for (host, incarnation), facts in arenas.items():
        found += [(host, incarnation, row, None, what, True) for row, _, what in facts.left_out]
        if facts.lost_events:
            what = f"{facts.events + facts.lost_events} events are numbered, and {facts.events} are there"
            is_cause = facts.lost_events > 0 and not (facts.left_out or facts.gaps)
            found.append((host, incarnation, -1, None, what, is_cause))
        if facts.apart != NEVER:
            what = "it is a later row of a registration, and the row before it is not of that registration"
            found.append((host, incarnation, facts.apart, None, what, False))
        if facts.fall != NEVER:
            what = "the number of this event is not above that of the event before it"
            found.append((host, incarnation, facts.fall, None, what, False))
        if facts.end != facts.newest and not open_end:
            found.append((host, incarnation, facts.newest + 1, None, OPEN_END, True))
    return found


def _shared(of_keys: DataFrame) -> list[str]:
    """The purgatories whose keys are not independent: an operation has several keys, or two operations share an id."""
    from pyspark.sql import functions as F

    registered = of_keys.mapInArrow(bound, BOUND).select(_purgatory().alias("name"), "id", "operation", "several")
    ids = registered.where("id IS NOT NULL").groupBy("name", "id")
    again = ids.agg((F.min("operation") != F.max("operation")).alias("again")).where("again").select("name")
    several = registered.where("several").select("name")
    return sorted(row.name for row in several.unionByName(again).distinct().collect())


def _purgatory() -> Column:
    from pyspark.sql import functions as F

    return F.concat_ws("/", "host", "incarnation", "purgatory")


def _bucket(shared: Sequence[str], partitions: int) -> Column:
    """The number of the task that audits a parcel: by its purgatory, and its share of the keys."""
    from pyspark.sql import functions as F

    share = F.col("share")
    if shared:
        share = F.when(_purgatory().isin(*shared), F.lit(-1)).otherwise(share)
    return F.pmod(F.xxhash64("host", "incarnation", "purgatory", share), F.lit(partitions)).cast("int")
