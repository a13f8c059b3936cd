"""timerctl journal tail: the newest rows, and with --follow the rows that are written later."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import deque
from collections.abc import Iterator

from timerctl.exits import Exit
from timerd_shm.read.journal_reader import JournalReader
from timerd_shm.read.segment import Offset

from .rows import HIDDEN, RowFormat
from .source import opened

POLL_S = 0.2


def run_tail(arguments: argparse.Namespace) -> int:
    """Print the newest rows, and with --follow new ones."""
    start = arguments.start
    with opened(arguments, start) as reader:
        show = RowFormat(reader)
        if start is None:
            reader.position = before(reader, arguments.rows)
            for line in deque(lines(reader, show, arguments.json), arguments.rows):
                print(line)
        else:
            for line in lines(reader, show, arguments.json):
                print(line)
        while arguments.follow:
            sys.stdout.flush()
            time.sleep(POLL_S)
            for line in lines(reader, show, arguments.json):
                print(line)
    return Exit.OK


def lines(reader: JournalReader, show: RowFormat, as_json: bool) -> Iterator[str]:
    """A line for each row that exists now and is shown."""
    for row in reader.rows():
        show.follow(row)
        if row.record.kind in HIDDEN:
            continue
        if as_json:
            yield json.dumps(show.fields(row))
        elif line := show.line(row):
            yield line


def before(reader: JournalReader, rows: int) -> Offset:
    """A position before the end. Very likely, the last `rows` rows that are shown are behind it."""
    end, back = reader.end(), 8 * rows + 64
    if end.record >= back or end.segment <= reader.position.segment:
        return max(Offset(end.segment, max(end.record - back, 0)), reader.position)
    return max(Offset(end.segment - 1, 0), reader.position)
