"""timerctl keys: the watch keys of an instance, with their watchers and watermarks."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import Any

from timerctl.instance import open_arena, paths_of
from timerctl.listing import Row, add_limit, declare, show
from timerctl.show.table import Column, Table
from timerctl.show.text import plain
from timerd_shm.declare.states import KeyFlag, KeyKind
from timerd_shm.read.reader import ArenaReader, DamageError

ORDERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "watchers": lambda row: (-row["watchers"], row["purgatory"], row["key"]),
    "key": lambda row: (row["purgatory"], row["key"]),
    "watermark": lambda row: (-(row["watermark"] if row["watermark"] is not None else -1), row["key"]),
}
EPILOG = """\
A key stands here while an operation watches it, or while it has a watermark.
`events` are watchers that wait for a fire, `advance` those that wait for the
watermark. An operation leaves a key once that key is satisfied or failed.

examples:
  timerctl keys                             the keys with the most watchers
  timerctl keys --match 'orders/*' --sort key
  timerctl keys --sort watermark --limit 5 --json
"""


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declare the command."""
    command = declare(
        commands,
        common,
        "keys",
        run,
        help="watch keys, their watchers and watermarks",
        description="The watch keys of an instance.",
        epilog=EPILOG,
    )
    command.add_argument("--purgatory", metavar="NAME", help="only of this purgatory")
    command.add_argument("--match", metavar="PATTERN", help="only keys that match (*, ?, [...])")
    command.add_argument("--sort", choices=ORDERS, default="watchers", help="default: watchers, the most first")
    add_limit(command)


def run(arguments: argparse.Namespace) -> int:
    """Print them."""
    paths = paths_of(arguments)
    with open_arena(paths) as reader:
        header = reader.header()
        found = [
            row
            for row in rows_of(reader)
            if (arguments.purgatory is None or row["purgatory"] == arguments.purgatory)
            and (arguments.match is None or fnmatchcase(row["key"], arguments.match))
        ]
    rows = sorted(found, key=ORDERS[arguments.sort])[: arguments.limit]
    table = Table(
        Column("watchers", right=True),
        Column("events", right=True, optional=True),
        Column("advance", right=True, optional=True),
        Column("watermark", right=True),
        Column("key", flexible=True),
        Column("purgatory", flexible=True),
    )
    more = f"{len(found) - len(rows)} more: raise --limit ({arguments.limit})." if len(found) > len(rows) else ""
    return show(arguments, paths, header, rows, table, cells_of, "No keys.", more)


def cells_of(row: Row) -> tuple[object, ...]:
    watermark = "-" if row["watermark"] is None else row["watermark"]
    watchers = row["watchers"], row["event_watchers"], row["watermark_watchers"]
    return *watchers, watermark, row["key"], row["purgatory"]


def rows_of(reader: ArenaReader) -> Iterator[dict[str, Any]]:
    """Every key that is in use."""
    waiting = Counter((node.key, node.kind) for node in reader.nodes.used() if node.linked)
    for index, key in enumerate(reader.keys.used()):
        has_watermark = bool(key.flags & KeyFlag.HAS_WATERMARK)
        if not key.refs and not has_watermark:
            continue
        try:
            name, purgatory = plain(reader.key_name(index)), reader.purgatory_name(key.purgatory)
        except DamageError:
            continue  # the key was freed while it was read
        events, advances = waiting[index, KeyKind.EVENT], waiting[index, KeyKind.WATERMARK]
        yield {
            "key": name,
            "purgatory": purgatory,
            "watchers": events + advances,
            "event_watchers": events,
            "watermark_watchers": advances,
            "watermark": key.watermark if has_watermark else None,
            "watermark_of_client": key.setter if has_watermark else None,
        }
