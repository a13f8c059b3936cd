"""timerctl errors: the distinct errors of an instance, with their counts and times."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from typing import Any

from timerctl.instance import NS, open_arena, paths_of
from timerctl.listing import Row, declare, show
from timerctl.show.table import Column, Table
from timerd_shm.declare.errors import ErrorCode
from timerd_shm.declare.records import ErrorRecord
from timerd_shm.read.reader import ArenaReader
from timerd_shm.read.text import label

EPILOG = """\
Every refusal that was sent to a client is counted here, by its reason, except
refusals because of an id: to refuse a second registration is what ids are for.
`refused_by_id` of `timerctl stats` counts them, and `rejected` counts all other
refusals. Errors of the daemon itself are here too: a journal that cannot be
written, a seed that others could read. The log is in the arena: it outlives the
daemon, and `timerctl destroy` removes it.

examples:
  timerctl errors
  timerctl errors --json | jq '.rows[] | select(.error == "ARENA_FULL")'
  timerctl clients                          who holds how much
"""


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declare the command."""
    declare(
        commands,
        common,
        "errors",
        run,
        help="distinct errors, how often and when",
        description="The distinct errors that the daemon has logged in its arena, the newest\nlast. Times are UTC.",
        epilog=EPILOG,
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the errors."""
    paths = paths_of(arguments)
    with open_arena(paths) as reader:
        rows, header = rows_of(reader), reader.header()
    return show(arguments, paths, header, rows, ERRORS_TABLE, cells_of, "No errors.")


def rows_of(reader: ArenaReader) -> list[dict[str, Any]]:
    """The distinct errors, the newest last."""
    # A row is in use if it has a count: the number of used rows does not outlive a restart.
    records = [record for record in reader.errors if record.count]
    return [row_of(record) for record in sorted(records, key=lambda each: each.last_wall_ns)]


ERRORS_TABLE = Table(
    Column("count", right=True),
    Column("first", optional=True),
    Column("last"),
    Column("error"),
    Column("message", flexible=True, wraps=True),
)


def cells_of(row: Row) -> tuple[object, ...]:
    return row["count"], row["first"], row["last"], row["error"], row["message"]


def row_of(record: ErrorRecord) -> dict[str, Any]:
    try:
        name = ErrorCode(record.code).name
    except ValueError:
        name = f"code {record.code}"  # of a newer daemon
    return {
        "error": name,
        "code": record.code,
        "count": record.count,
        "first": when(record.first_wall_ns),
        "last": when(record.last_wall_ns),
        "message": label(record.message),
    }


def when(wall_ns: int) -> str:
    """Wall-clock time to the second, UTC."""
    return datetime.fromtimestamp(wall_ns // NS, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
