"""timerctl errors: the distinct errors of an instance, with how often and when."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from typing import Any

from timerd_shm.errors import ErrorCode
from timerd_shm.layout import ErrorRecord

from .exits import Exit
from .instance import NS, is_alive, note_if_dead, open_arena, paths_of
from .table import Column, Table
from .text import label, print_json


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "errors",
        parents=[common],
        help="distinct errors, with how often and when",
        description="The distinct errors that the daemon has logged in its arena, the newest last. Times are UTC.",
    )
    command.add_argument("--json", action="store_true", help="print one JSON document")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print them."""
    paths = paths_of(arguments)
    with open_arena(paths) as reader:
        # A row is used once it counts something; there is no other count of them that a restart keeps.
        records = sorted((record for record in reader.errors if record.count), key=lambda each: each.last_wall_ns)
        alive = is_alive(paths, reader.header())
    rows = [row_of(record) for record in records]
    if arguments.json:
        print_json(rows)
        return Exit.OK
    if note := note_if_dead(paths, alive):
        print(note)
    if not rows:
        print("No errors.")
        return Exit.OK
    Table(
        Column("count", right=True),
        Column("first", optional=True),
        Column("last"),
        Column("error"),
        Column("message", flexible=True),
    ).print([(row["count"], row["first"], row["last"], row["error"], row["message"]) for row in rows])
    return Exit.OK


def row_of(record: ErrorRecord) -> dict[str, Any]:
    try:
        name = ErrorCode(record.code).name
    except ValueError:
        name = f"code {record.code}"  # a newer daemon's
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
