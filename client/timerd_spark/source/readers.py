"""A journal as a data source, in batches and as a stream. docs/reference/spark.md has its options.

Spark pickles these objects and sends them to the executors, so they hold only paths and numbers. A task opens the files
that it reads, and imports pyarrow and numpy only then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow

from timerd_shm.declare.errors import InvalidConfigError
from timerd_shm.read.holds import hold, holds_of
from timerd_shm.read.segment import JournalError, Offset

from .options import ReadOptions
from .positions import EARLIEST, LATEST, Places, Start, offset_at, start_of
from .schema import VIEWS, Column, spark_schema
from .segments import (
    BEGINNING,
    Span,
    Walk,
    check_names,
    first_offset,
    journals_of,
    last_offset,
    pass_over,
    shown,
)

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

Vector = dict[str, dict[str, Any]]


def columns_of(schema: StructType, view: str) -> tuple[Column, ...]:
    """The columns that a schema names, in its order. Raises JournalError if the view has no such column."""
    declared = {column.name: column for column in VIEWS[view]}
    found = []
    for field in schema.fields:
        column = declared.get(field.name)
        if column is None:
            raise JournalError(f"the {view} view has no column {field.name!r}: it has {', '.join(declared)}")
        if field.dataType != spark_schema([column]).fields[0].dataType:
            kind = field.dataType.simpleString()
            raise JournalError(f"column {field.name!r} of the {view} view is of type {column.type}, not {kind}")
        if column.nullable and not field.nullable:
            raise JournalError(f"column {field.name!r} of the {view} view may be null: do not declare it NOT NULL")
        found.append(column._replace(nullable=field.nullable))
    if not found:
        raise JournalError(f"a schema without columns reads no rows: name one of {', '.join(declared)}")
    return tuple(found)


def beginnings(journals: Mapping[str, Path], options: ReadOptions, *, others: Start | None = None) -> dict[str, Offset]:
    """The offset at which reading begins in each journal. Raises JournalError, InvalidConfigError.

    `others`: the beginning of journals that the option does not name; None: the option has to name all journals.
    """
    if options.start_us is not None:
        return {host: offset_at(directory, options.start_us) for host, directory in journals.items()}
    start = options.start
    if others is not None and not isinstance(start, str):
        start = dict.fromkeys(journals, others) | dict(start)
    starts = starts_in(journals, start, "startingOffsets")
    return {host: start_of(directory, starts[host]) for host, directory in journals.items()}


def starts_in(journals: Mapping[str, Path], given: Start | Mapping[str, Start], option: str) -> Mapping[str, Start]:
    """The option's value for each journal. Raises InvalidConfigError if it does not name exactly these journals."""
    if isinstance(given, str):
        return dict.fromkeys(journals, given)
    if given.keys() != journals.keys():
        names = ", ".join(map(repr, sorted(journals))) or "none"
        raise InvalidConfigError(
            f"option {option} names {', '.join(map(repr, sorted(given))) or 'none'}; the journals are {names}"
        )
    return given


class Part(InputPartition):
    """The span that one task reads."""

    def __init__(self, span: Span) -> None:
        super().__init__(span)


class Reading:
    """Common to the batch reader and the stream reader: a task reads the columns of a span."""

    def __init__(self, options: ReadOptions, columns: Sequence[Column]) -> None:
        self.options, self.columns = options, columns

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """The rows of a part. Raises JournalError, which names the damaged blocks."""
        from .batches import batches

        if isinstance(partition.value, Span):
            yield from batches(partition.value, self.columns, self.options.view, skip=self.options.skip)


class JournalSource(Reading, DataSourceReader):
    """The rows that the journals have now.

    The reader takes no filters from Spark (`pushFilters`). Spark (4.2, 4.3) keeps one reader for all queries of a
    frame: if the reader remembered the filter of one query, the next query would lose rows.
    """

    def __init__(self, options: ReadOptions, columns: Sequence[Column]) -> None:
        if options.start == LATEST:
            raise InvalidConfigError(
                "option startingOffsets='latest' is for a stream: a batch query would read nothing"
            )
        super().__init__(options, columns)

    def partitions(self) -> Sequence[InputPartition]:
        options, found = self.options, list[InputPartition]()
        journals = journals_of(options.paths)
        ends = starts_in(journals, options.end, "endingOffsets") if options.end is not None else {}
        for host, begin in beginnings(journals, options).items():
            end = start_of(journals[host], ends[host]) if host in ends else None
            if end is None or begin < end:
                walk = Walk(journals[host], begin, end, skip=options.skip)
                found += [Part(span) for span in walk.spans()]
        return found


class JournalStream(Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The rows that come into the journals. An offset has a position for each host (positions.py).

    Example of an offset: {"web1": {"segment": 17, "row": 40960, "incarnation": "5d0c..."}}. Positions are in files that
    do not change once they are written, so a batch that is read again after a crash is the same. With `consumer`, the
    files that the query still needs are held until Spark calls commit() for their batch, which it does when it plans
    the next batch.
    """

    def __init__(self, options: ReadOptions, columns: Sequence[Column]) -> None:
        if options.end is not None:
            raise InvalidConfigError("option endingOffsets is for a query of a table: a stream has no end")
        super().__init__(options, columns)
        self._until: dict[str, Offset] | None = None  # availableNow reads up to here
        self._held: dict[str, int] = {}

    def initialOffset(self) -> Vector:
        places, hosts = Places(), self._hosts()
        for host, offset in beginnings(hosts, self.options, others=EARLIEST).items():
            places.begin(host, hosts[host], offset)
        self._hold(places.offsets, first=True)
        return places.vector()

    def getDefaultReadLimit(self) -> ReadLimit:
        rows = self.options.rows_per_trigger
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def prepareForTriggerAvailableNow(self) -> None:
        self._until = self._ends()

    def latestOffset(self, start: Vector, limit: ReadLimit) -> Vector:
        """The end of the next batch. The limit counts rows of the journal, with texts; hosts share it evenly."""
        places, hosts = Places(start), self._hosts()
        check_names(places.offsets, hosts, self.options.paths)
        for host, directory in hosts.items():
            if host in places.offsets:
                places.check(host, directory)
                places.back(host)
            else:
                places.begin(host, directory, self._begin_of_new(directory))
        for host in sorted(places.offsets.keys() - hosts.keys()):
            if not places.away(host):
                self._vanished(host, f"it was read to {places.where(host)}, and may have more rows")
        self._hold(places.offsets)
        left = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        waiting = sorted(hosts)
        while waiting:  # if some hosts do not use up their shares, the others may use the rest
            share = None if left is None else max(left // len(waiting), 1)
            more = []
            for host in waiting:
                if left is not None and left <= 0:
                    break
                at = places.offsets[host]
                expected = places.expected(host, at)
                walk = Walk(hosts[host], at, self._end_of(host), skip=self.options.skip, expected=expected)
                used = sum(span.end - span.first for span in walk.spans(share))
                places.move(host, hosts[host], walk.position)
                if left is not None:
                    left -= used
                    if used == share:
                        more.append(host)
            waiting = more
        return places.vector()

    def reportLatestOffset(self) -> Vector:
        return self._places(self._ends()).vector()

    def partitions(self, start: Vector, end: Vector) -> Sequence[InputPartition]:
        begin, until, hosts = Places(start), Places(end), self._hosts()
        found: list[InputPartition] = []
        for host, last in until.offsets.items():
            first = begin.first(host, until)
            if first >= last:
                continue
            if host not in hosts:
                self._vanished(
                    host, f"a batch reads it from segment {first.segment}, row {first.record} to {until.where(host)}"
                )
                continue
            until.check(host, hosts[host])
            if host in begin.offsets:
                begin.check(host, hosts[host])
            expected = begin.expected(host, first)
            walk = Walk(hosts[host], first, last, skip=self.options.skip, expected=expected)
            found += [Part(span) for span in walk.spans()]
        return found

    def commit(self, end: Vector) -> None:
        self._hold(Places(end).offsets)

    # files ---------------------------------------------------------------------------------------------------------

    def _vanished(self, host: str, why: str) -> None:
        """Log that a journal is away, if rows may be left out. Else raises JournalError."""
        what = f"the journal {host!r} is not in {shown(self.options.paths)} any more: {why}"
        if not self.options.skip:
            raise JournalError(
                f'{what}. Mount it again. If it is gone for good, go on without it by option("failOnDataLoss", '
                '"false"): one run with this option is enough'
            )
        pass_over(what)

    def _hosts(self) -> Mapping[str, Path]:
        return journals_of(self.options.paths)

    def _begin_of_new(self, directory: Path) -> Offset:
        """The beginning of reading in a journal that has come since the query began."""
        since = self.options.start_us
        return first_offset(directory) if since is None else offset_at(directory, since)

    def _places(self, offsets: Mapping[str, Offset]) -> Places:
        places, hosts = Places(), self._hosts()
        for host, offset in offsets.items():
            places.move(host, hosts[host], offset)
        return places

    def _ends(self) -> dict[str, Offset]:
        return {host: last_offset(directory) for host, directory in self._hosts().items()}

    def _end_of(self, host: str) -> Offset | None:
        return None if self._until is None else self._until.get(host, BEGINNING)

    def _hold(self, offsets: Mapping[str, Offset], *, first: bool = False) -> None:
        """Hold the files that come after these offsets.

        `first`: at the beginning, also hold files that an earlier run has held. Spark asks for the beginning also when
        it reads the first batch again, and then it needs these files.
        """
        consumer = self.options.consumer
        if consumer is None:
            return
        for host, directory in self._hosts().items():
            segment = offsets[host].segment if host in offsets else None
            if segment is not None and first:
                segment = min(segment, holds_of(directory).get(consumer, segment))
            if segment is not None and self._held.get(host) != segment:
                hold(directory, consumer, segment)
                self._held[host] = segment
