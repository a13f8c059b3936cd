"""Common parts of the commands: how they are declared, and how their rows are printed."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, TextIO

from timerctl.show.table import Table
from timerctl.show.text import print_json, whole
from timerd_shm.declare.limits import PAYLOAD_SIZE_MAX
from timerd_shm.declare.records import ArenaHeader
from timerd_shm.host.paths import InstancePaths

from .exits import Exit
from .instance import life_of

LIMIT_DEFAULT = 50
LIMIT_MAX = 100_000
BYTES_DEFAULT = 200
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
    add_json(command, json)
    command.set_defaults(run=run)
    return command


def declare_act(
    commands: Any,
    parents: list[argparse.ArgumentParser],
    name: str,
    about: str,
    rest: str,
    epilog: str,
    *,
    prints: bool = True,
) -> argparse.ArgumentParser:
    """Declare a command that acts. Returns its parser.

    `about` stands in the list of commands, and begins the command's own help. There `rest` follows it.
    """
    command: argparse.ArgumentParser = commands.add_parser(
        name,
        parents=parents,
        help=about,
        description=f"{about[0].upper()}{about[1:]}.\n{rest}",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if prints:
        add_json(command)
    return command


def add_json(command: argparse.ArgumentParser, about: str = "print one JSON document") -> None:
    """Declare --json. It may also stand before an action: `timerctl calls --json cancel 7`."""
    command.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=about)


def hint(kind: str, text: str, command: str | None = None, **more: str | None) -> dict[str, Any]:
    """A hint for people and programs: a sentence, and the command line that follows from it."""
    return {"kind": kind, "text": text, "command": command, **more}


def print_hints(hints: Sequence[Row], file: TextIO | None = None) -> None:
    """Print what may have been meant: sentences, each with a command line."""
    for each in hints:
        text = f"{each['text'][0].upper()}{each['text'][1:]}."
        print(f"{text} Did you mean this?\n  {each['command']}" if each["command"] else text, file=file)


def add_limit(command: argparse.ArgumentParser) -> None:
    """Declare --limit."""
    about = f"print at most N (default {LIMIT_DEFAULT})"
    command.add_argument("--limit", metavar="N", type=whole(1, LIMIT_MAX), default=LIMIT_DEFAULT, help=about)


def add_bytes(command: argparse.ArgumentParser, of: str, default: int = BYTES_DEFAULT) -> None:
    """Declare --bytes: how many bytes of payloads are shown, or of other things that `of` names."""
    about = f"show N bytes of {of} (default {default}; 0: none)"
    command.add_argument("--bytes", metavar="N", type=whole(0, PAYLOAD_SIZE_MAX), default=default, help=about)


def show(
    arguments: argparse.Namespace,
    paths: InstancePaths,
    header: ArenaHeader,
    rows: Sequence[Row],
    table: Table,
    cells: Callable[[Row], Sequence[object]],
    nothing: str,
    more: str = "",
    notes: Sequence[str] = (),
    hints: Sequence[Row] = (),
) -> int:
    """Print rows as JSON or as a table, and `more` below them. If there are no rows, print `nothing` and the hints.

    `more` says that there are more rows. `notes` are lines below the table. `hints` say what may have been meant.
    """
    life = life_of(paths, header)
    if arguments.json:
        print_json(life.row() | {"more": bool(more), "rows": rows, "hints": list(hints)})
        return Exit.OK
    if note := life.note():
        print(note)
    if rows:
        table.print([cells(row) for row in rows])
    else:
        print(nothing)
        print_hints(hints)
    for line in (*notes, *filter(None, [more])):
        print(line)
    return Exit.OK
