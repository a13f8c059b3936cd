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
    """Print the newest rows, and with --follow the rows that are written later."""
    start = arguments.start
    with opened(arguments, start) as reader:
        show = RowFormat(reader)
        found = lines(reader, show, arguments.json)
        if start is None:
            reader.position = before(reader, arguments.rows, arguments.json)
            found = iter(deque(found, arguments.rows))
        for line in found:
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


def before(reader: JournalReader, rows: int, as_json: bool) -> Offset:
    """A position with at least `rows` lines after it, or the oldest position. Rows without a line do not count."""
    oldest, back = reader.position, 8 * rows + 64
    while True:
        with JournalReader(reader.directory) as ahead:
            ahead.position = start = max(ahead.before_end(back), oldest)
            if start == oldest or sum(1 for _ in lines(ahead, RowFormat(ahead), as_json)) >= rows:
                return start
        back *= 4
