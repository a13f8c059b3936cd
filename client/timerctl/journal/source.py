"""The journal that a command reads: its directory, and a reader that prints damage."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from timerctl.exits import NoInstanceError, UsageError
from timerctl.instance import paths_of
from timerd_shm.read.journal_reader import Damage, JournalReader
from timerd_shm.read.segment import SEGMENT_SUFFIX, JournalError, Offset, segments_of


@contextmanager
def opened(arguments: argparse.Namespace, start: Offset | None) -> Iterator[JournalReader]:
    """A reader of the journal that the command line means. Raises NoInstanceError, JournalError, UsageError."""
    directory = directory_of(arguments)
    with JournalReader(directory, start=start, on_damage=print_damage) as reader:
        segments = segments_of(directory)
        if not segments:
            raise JournalError(f"there is no journal in {directory}: it holds no *{SEGMENT_SUFFIX}")
        if start is not None:
            _check_start(start, reader.end(), segments[-1])
        yield reader


def _check_start(start: Offset, end: Offset, newest: int) -> None:
    """Raise UsageError for a position after the end. The beginning of the next segment is allowed."""
    if start > end and start not in (Offset(newest, 0), Offset(newest + 1, 0)):
        raise UsageError(f"--from {start} is after the journal's end, which is {end}")


def directory_of(arguments: argparse.Namespace) -> Path:
    """--directory, else the directory where the instance's daemon writes. Raises NoInstanceError, JournalError."""
    if arguments.directory is not None:
        return Path(arguments.directory)
    paths = paths_of(arguments)
    if not paths.journal.is_symlink():
        raise NoInstanceError(
            f"the daemon of {paths.instance!r} writes no journal: start it with --journal DIR, or give --directory"
        )
    directory = paths.journal.resolve()
    if not directory.exists():
        raise JournalError(
            f"there is no journal in {directory}, where the daemon of {paths.instance!r} writes: the directory was "
            "removed. A running daemon makes it again with its next row"
        )
    return directory


def print_damage(damage: Damage) -> None:
    print(f"timerctl: {damage.offset}: {damage.what}", file=sys.stderr)
