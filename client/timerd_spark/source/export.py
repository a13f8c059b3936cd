"""A journal as Parquet: DIR/date=2026-11-21/hour=09/host=web1/SEGMENT.VIEW.00.parquet, for `timerctl journal export`.

Each finished segment is exported once, and later runs leave it out. So cron may run the command. Dates and hours are
UTC. Files are compressed with zstd, and their rows are in the order of the journal. Several hosts may export to one
directory, because the names of files contain the incarnation of the arena.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from timerd_shm.declare.errors import InvalidValueError
from timerd_shm.read.segment import Segment

from .batches import batches
from .schema import VIEWS, arrow_schema
from .segments import Span, Walk, first_offset, list_segments

TIME = {"terminal": "settled_at", "events": "at"}
DONE = "_exported"  # a directory with a file for each exported segment; readers of Parquet ignore it


class Exported(NamedTuple):
    """The counts of an export."""

    segments: int
    rows: int
    files: int


def export(
    directory: Path,
    output: Path,
    *,
    view: str = "terminal",
    all_segments: bool = False,
    skip: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Exported:
    """Write the finished segments of a journal that are not in `output` yet; with `all_segments` also the newest.

    Raises JournalError for damaged parts, which `skip` leaves out. Raises InvalidValueError for an unknown view, and if
    `output` has files of another view.
    """
    if view not in VIEWS:
        raise InvalidValueError(f"view={view!r}: give {' or '.join(VIEWS)}")
    done = output / DONE
    done.mkdir(parents=True, exist_ok=True)
    if others := [path.name for path in done.glob("*") if not path.name.endswith(f".{view}")]:
        raise InvalidValueError(f"{output} holds another view ({others[0]}): give each view a directory of its own")
    (done / f"view.{view}").touch()
    newest = max(list_segments(directory), default=0)  # this segment, and later ones, still grow
    segments = rows = files = 0
    for sequence, spans in by_segment(Walk(directory, first_offset(directory), skip=skip).spans()):
        if sequence >= newest and not all_segments:
            break
        name = f"{segment_name(directory, sequence)}.{view}"
        if (done / name).exists():
            continue
        written = 0
        for number, span in enumerate(spans):
            for path, table in tables(span, view, skip):
                target = output / path / f"{name}.{number:02}.parquet"
                write(table, target)
                written, files = written + table.num_rows, files + 1
        if sequence < newest:
            (done / name).write_text(f"{written}\n")
        segments, rows = segments + 1, rows + written
        progress(f"segment {sequence}: {written:,} rows")
    return Exported(segments, rows, files)


def by_segment(spans: Iterator[Span]) -> Iterator[tuple[int, list[Span]]]:
    """Each segment's number, with all spans of the segment."""
    held: list[Span] = []
    for span in spans:
        if held and held[0].segment != span.segment:
            yield held[0].segment, held
            held = []
        held.append(span)
    if held:
        yield held[0].segment, held


def segment_name(directory: Path, sequence: int) -> str:
    """A segment's name, unique among all hosts: the incarnation, the first row's number, and the segment's number."""
    segment = Segment(directory, sequence, older=True)
    try:
        return f"{segment.header.incarnation:016x}-{segment.header.first_row:012}-{sequence:012}"
    finally:
        segment.close()


def tables(span: Span, view: str, skip: bool) -> Iterator[tuple[str, pa.Table]]:
    """The rows of a span, in a table for each directory, whose name has the rows' date, hour (UTC) and host."""
    columns = VIEWS[view]
    table = pa.Table.from_batches(list(batches(span, columns, view, skip=skip)), schema=arrow_schema(columns))
    if table.num_rows == 0:
        return
    at = pc.fill_null_forward(table[TIME[view]])
    hours = pc.fill_null(at, pa.scalar(0, at.type)).combine_chunks().view(pa.int64()).to_numpy() // 3_600_000_000
    host = table["host"][0].as_py()
    for hour in np.unique(hours).tolist():
        when = np.datetime64(hour, "h")
        path = f"date={when.astype('M8[D]')}/hour={hour % 24:02}/host={escaped(host) or '_'}"
        yield path, table.filter(pa.array(hours == hour)).drop_columns(["host"])


def escaped(host: str) -> str:
    """A host's name in a path, escaped as Hive and Spark escape it: a=b becomes a%3Db."""
    return re.sub(r"""[\x00-\x1f\x7f"#%'*/:=?\\{\[\]^]""", lambda found: f"%{ord(found[0]):02X}", host)


def write(table: pa.Table, target: Path) -> None:
    """Write a file under another name, then rename it: readers see the whole file, or no file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        parquet.write_table(table, fresh, compression="zstd")
        os.rename(fresh, target)
    finally:
        fresh.unlink(missing_ok=True)
