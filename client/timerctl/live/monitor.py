"""timerctl monitor: outcomes as they come, from the journal."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from timerctl.exits import Exit
from timerctl.journal.rows import RowFormat
from timerctl.journal.source import opened
from timerctl.journal.tail import POLL_S
from timerctl.listing import declare
from timerctl.show.text import whole
from timerd_shm.declare.journal import RowKind
from timerd_shm.declare.states import Outcome
from timerd_shm.read.journal_reader import JournalReader

EPILOG = """\
A line has the time (UTC), the outcome, the key, how long the operation was
pending, how late an expired one was, and its owner. The daemon needs --journal:
without a journal, only the owners learn of outcomes. Rows reach the journal
within a second. `timerctl journal tail -f` shows rows of all kinds.

examples:
  timerctl monitor
  timerctl monitor --match 'orders/*' --outcome expired
  timerctl monitor --json | jq -r 'select(.lateness_ns > 50000000) | .key'
  timerctl monitor --count 1 --match job/7      wait for one outcome
"""


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declare the command."""
    command = declare(
        commands,
        common,
        "monitor",
        run,
        help="outcomes as they come, from the journal",
        description="Print each outcome when it comes, from the journal, until Ctrl-C.",
        epilog=EPILOG,
        json="print one JSON object on each line",
    )
    command.add_argument("--purgatory", metavar="NAME", help="only of this purgatory")
    command.add_argument("--match", metavar="PATTERN", help="only keys that match (*, ?, [...])")
    command.add_argument("--outcome", choices=[each.name.lower() for each in Outcome], help="only this outcome")
    command.add_argument("--count", metavar="N", type=whole(1, 1_000_000_000), help="end after N outcomes")
    command.add_argument("--directory", metavar="DIR", type=Path, help="the journal's directory")


def run(arguments: argparse.Namespace) -> int:
    """Print outcomes until Ctrl-C, or until there were --count."""
    left = arguments.count
    with opened(arguments, None) as reader:
        reader.position = reader.end()
        show = RowFormat(reader)
        while True:
            for line in lines(reader, show, arguments):
                print(line)
                left = None if left is None else left - 1
                if left == 0:
                    return Exit.OK
            sys.stdout.flush()
            time.sleep(POLL_S)


def lines(reader: JournalReader, show: RowFormat, arguments: argparse.Namespace) -> Iterator[str]:
    """A line for each outcome that exists now and is asked for; and one for rows that the journal lacks."""
    for row in reader.rows():
        show.follow(row)
        if row.record.kind == RowKind.GAP and not arguments.json:
            yield show.line(row)
        if row.record.kind != RowKind.OUTCOME:
            continue
        fields = show.fields(row)
        if arguments.purgatory not in (None, fields["purgatory"]):
            continue
        if arguments.match is not None and not fnmatchcase(fields["key"] or "", arguments.match):
            continue
        if arguments.outcome is None or fields["outcome"].lower() == arguments.outcome:
            yield json.dumps(fields) if arguments.json else show.line(row)
