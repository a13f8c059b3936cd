"""Common parts of the commands: how they are declared, and how their rows are printed."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from timerctl.show.table import Table
from timerctl.show.text import print_json, whole
from timerd_shm.declare.records import ArenaHeader
from timerd_shm.host.paths import InstancePaths
from timerd_shm.read.alive import is_alive

from .exits import Exit
from .instance import note_if_dead

LIMIT_DEFAULT = 50
LIMIT_MAX = 100_000
Row = dict[str, Any]


def declare(
    commands: Any,
    common: argparse.ArgumentParser,
    name: str,
    run: Callable[[argparse.Namespace], int],
    *,
    help: str,
    description: str,
    epilog: str | None = None,
    json: str = "print one JSON document",
) -> argparse.ArgumentParser:
    """Declare a command that prints rows, or with --json one document. Returns its parser."""
    command: argparse.ArgumentParser = commands.add_parser(
        name,
        parents=[common],
        help=help,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("--json", action="store_true", help=json)
    command.set_defaults(run=run)
    return command


def declare_act(
    commands: Any, parents: list[argparse.ArgumentParser], name: str, about: str, rest: str, epilog: str
) -> argparse.ArgumentParser:
    """Declare a command that acts and prints nothing. Returns its parser. `about` is the help, and its first line."""
    command: argparse.ArgumentParser = commands.add_parser(
        name,
        parents=parents,
        help=about,
        description=f"{about[0].upper()}{about[1:]}.\n{rest}",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return command


def add_limit(command: argparse.ArgumentParser) -> None:
    """Declare --limit."""
    about = f"print at most N (default {LIMIT_DEFAULT})"
    command.add_argument("--limit", metavar="N", type=whole(1, LIMIT_MAX), default=LIMIT_DEFAULT, help=about)


def show(
    arguments: argparse.Namespace,
    paths: InstancePaths,
    header: ArenaHeader,
    rows: Sequence[Row],
    table: Table,
    cells: Callable[[Row], Sequence[object]],
    nothing: str,
    more: str = "",
) -> int:
    """Print rows as JSON or as a table, and `more` below them. If there are no rows, print `nothing`."""
    if arguments.json:
        print_json(rows)
        return Exit.OK
    if note := note_if_dead(paths, is_alive(paths, header)):
        print(note)
    if rows:
        table.print([cells(row) for row in rows])
    else:
        print(nothing)
    if more:
        print(more)
    return Exit.OK
