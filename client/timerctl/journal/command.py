"""timerctl journal: declares its commands, tail, export and audit."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from timerctl.listing import add_json
from timerctl.show.text import whole
from timerd_shm.read.segment import JournalError, Offset

from .audit import run_audit
from .export import run_export
from .tail import run_tail

EPILOG = """\
The directory is --directory, else the one where the instance's daemon writes.
Each row has a position in the journal, SEGMENT:RECORD. An export prints the
position after its last row to standard error; with --from, a later export goes
on at that position.

examples:
  timerctl journal tail -f
  timerctl journal export --from 17:40960 --output outcomes.jsonl
  timerctl journal audit
"""
TAIL_EPILOG = """\
examples:
  timerctl journal tail -n 100
  timerctl journal tail -f --json | jq 'select(.outcome == "EXPIRED")'
  timerctl journal tail --directory /var/lib/timerd/journal --from 17:0
"""
EXPORT_EPILOG = """\
examples:
  timerctl journal export --from 17:40960 --output outcomes.jsonl
  timerctl journal export --format parquet --output /var/lib/timerd/parquet
"""
AUDIT_EPILOG = """\
The journal has to be of level events from its first row on, and its daemon has
to be idle, or ended. The arena says how many rows the journal has to have. If
the arena is gone, the last row has to be that of an orderly end.

Missing and damaged rows come first, then counts of the findings that may follow
from them. --json has each finding, with its arena.

examples:
  timerctl journal audit
  timerctl journal audit --directory /mnt/copy --open-end --json
"""


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declare the commands."""
    journal = commands.add_parser(
        "journal",
        help="rows of the journal: tail, export, audit",
        description="Read the journal that the daemon writes with --journal.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = journal.add_subparsers(title="actions", metavar="ACTION", required=True)
    place = argparse.ArgumentParser(add_help=False, parents=[common])
    place.add_argument("--directory", metavar="DIR", type=Path, help="the journal's directory")

    tail = actions.add_parser(
        "tail",
        parents=[place],
        help="the newest rows",
        description="Print the newest rows.",
        epilog=TAIL_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    tail.add_argument("-f", "--follow", action="store_true", help="go on with new rows, until Ctrl-C")
    tail.add_argument("-n", "--rows", metavar="N", type=whole(1, 100_000), default=10, help="how many (default 10)")
    tail.add_argument("--from", dest="start", metavar="OFFSET", type=offset, help="all rows from this position on")
    add_json(tail, "print one JSON object on each line")
    tail.set_defaults(run=run_tail)

    export = actions.add_parser(
        "export",
        parents=[place],
        help="rows as JSON lines, or finished files as Parquet",
        description="Print rows as JSON objects, one on each line; or write the finished\nfiles as Parquet.",
        epilog=EXPORT_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    export.add_argument(
        "--format",
        choices=("json", "parquet"),
        default="json",
        help="parquet: write below --output DIR, by date, hour (UTC) and host; "
        "each segment is written once; needs timerd[spark]",
    )
    export.add_argument(
        "--view",
        choices=("terminal", "events"),
        default="terminal",
        help="with parquet: a row for each operation that has settled (default), or all rows",
    )
    export.add_argument("--all", action="store_true", help="with parquet: also the unfinished segment")
    export.add_argument(
        "--from", dest="start", metavar="OFFSET", type=offset, help="begin at this row (default: the oldest)"
    )
    export.add_argument(
        "--to", dest="end", metavar="OFFSET", type=offset, help="end before this row (default: after the newest)"
    )
    export.add_argument("--output", metavar="FILE", type=Path, help="append to this file; with parquet: the directory")
    export.set_defaults(run=run_export)

    audit = actions.add_parser(
        "audit",
        parents=[place],
        help="compute every outcome again",
        description="Compute every outcome again from the events, and list what disagrees.",
        epilog=AUDIT_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    audit.add_argument("--open-end", action="store_true", help="the daemon was killed, and its arena is gone")
    add_json(audit)
    audit.set_defaults(run=run_audit)


def offset(text: str) -> Offset:
    """Type of an argument: SEGMENT:RECORD."""
    try:
        return Offset.parse(text)
    except JournalError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
