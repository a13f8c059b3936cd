"""timerctl journal export: rows as JSON lines, or finished files in a format of another package."""

from __future__ import annotations

import argparse
import json
import sys
from importlib.metadata import entry_points
from typing import TextIO

from timerctl.exits import Exit, UsageError
from timerd_shm.declare.errors import InvalidConfigError
from timerd_shm.read.journal_reader import JournalReader
from timerd_shm.read.segment import Offset

from .rows import HIDDEN, RowFormat
from .source import directory_of, opened


def run_export(arguments: argparse.Namespace) -> int:
    """Print all rows, and the position after the last. Raises UsageError, NoInstanceError, JournalError."""
    if arguments.format != "json":
        return run_export_files(arguments)
    if arguments.start is not None and arguments.end is not None and arguments.end < arguments.start:
        raise UsageError(f"--to {arguments.end} is before --from {arguments.start}")
    with opened(arguments, arguments.start) as reader:
        if arguments.output is None:
            export_rows(reader, arguments.end, sys.stdout)
        else:
            with arguments.output.open("a") as file:
                export_rows(reader, arguments.end, file)
        print(f"the journal goes on at: --from {reader.position}", file=sys.stderr)
    return Exit.OK


def run_export_files(arguments: argparse.Namespace) -> int:
    """Write the finished files in a format of another package.

    Raises UsageError, JournalError, InvalidConfigError.
    """
    if arguments.output is None or arguments.start or arguments.end:
        raise UsageError("--format parquet needs --output DIR, and takes whole files: no --from, no --to")
    (found,) = entry_points(group="timerd.journal_formats", name=arguments.format) or (None,)
    try:
        if found is None:
            raise ImportError("timerd was installed without its Spark package")
        export = found.load()
    except ImportError as error:
        raise InvalidConfigError(f"--format parquet needs pip install 'timerd[spark]': {error}") from None
    done = export(
        directory_of(arguments), arguments.output, view=arguments.view, all_segments=arguments.all, progress=print
    )
    print(f"{done.rows:,} rows of {done.segments} segments in {done.files} new files", file=sys.stderr)
    return Exit.OK


def export_rows(reader: JournalReader, end: Offset | None, out: TextIO) -> None:
    show = RowFormat(reader)
    for row in reader.rows(end):
        show.follow(row)
        if row.record.kind not in HIDDEN:
            out.write(json.dumps(show.fields(row)) + "\n")
