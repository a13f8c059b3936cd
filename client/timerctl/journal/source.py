"""The journal that a command reads: its directory, and a reader of it that prints what is damaged."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from timerctl.exits import NoInstanceError
from timerctl.instance import paths_of
from timerd_shm.read.journal_reader import Damage, JournalReader
from timerd_shm.read.segment import SEGMENT_SUFFIX, JournalError, Offset, segments_of


@contextmanager
def opened(arguments: argparse.Namespace, start: Offset | None) -> Iterator[JournalReader]:
    """A reader of the journal that the command line means. Raises NoInstanceError, JournalError."""
    directory = directory_of(arguments)
    with JournalReader(directory, start=start, on_damage=print_damage) as reader:
        if not segments_of(directory):
            raise JournalError(f"there is no journal in {directory}: it holds no *{SEGMENT_SUFFIX}")
        yield reader


def directory_of(arguments: argparse.Namespace) -> Path:
    """The directory of --directory, else that of the instance's daemon. Raises NoInstanceError."""
    if arguments.directory is not None:
        return Path(arguments.directory)
    paths = paths_of(arguments)
    if not paths.journal.exists():
        raise NoInstanceError(
            f"the daemon of {paths.instance!r} writes no journal: start it with --journal DIR, or give --directory"
        )
    return paths.journal.resolve()


def print_damage(damage: Damage) -> None:
    print(f"timerctl: {damage.offset}: {damage.what}", file=sys.stderr)
