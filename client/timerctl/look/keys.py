"""timerctl keys: the watch keys of an instance, with their watchers and watermarks."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Any

from timerctl.instance import open_arena, paths_of
from timerctl.known import of_near_keys, of_near_names, purgatories_of
from timerctl.listing import Row, add_limit, declare, show
from timerctl.show.table import Column, Table
from timerctl.show.text import key_of, word
from timerd_shm.declare.records import WatermarkRecord
from timerd_shm.declare.states import KeyKind, Place
from timerd_shm.read.reader import ArenaReader, DamageError
from timerd_shm.read.text import plain

ORDERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "watchers": lambda row: (-row["watchers"], row["purgatory"], row["key"]),
    "key": lambda row: (row["purgatory"], row["key"]),
    "watermark": lambda row: (-(row["watermark"] if row["watermark"] is not None else -1), row["key"]),
}
EPILOG = """\
A key stands here while an operation watches it, or while it has a watermark.
`events` counts the watchers that wait for a fire, `advance` the watchers that
wait for the watermark, `observe` the subscriptions and delayed operations. An
operation leaves a key when that key is satisfied or failed.

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
    """Print the keys."""
    paths = paths_of(arguments)
    with open_arena(paths) as reader:
        header = reader.header()
        found = [
            row
            for row in rows_of(reader)
            if (arguments.purgatory is None or row["purgatory"] == arguments.purgatory)
            and (arguments.match is None or fnmatchcase(row["key"], arguments.match))
        ]
        nothing, hints = ("", []) if found else absence(reader, arguments)
    rows = sorted(found, key=ORDERS[arguments.sort])[: arguments.limit]
    table = Table(
        Column("watchers", right=True),
        Column("events", right=True, optional=True),
        Column("advance", right=True, optional=True),
        Column("observe", right=True, optional=True),
        Column("watermark", right=True),
        Column("key", flexible=True),
        Column("purgatory", flexible=True),
    )
    more = f"{len(found) - len(rows)} more: raise --limit ({arguments.limit})." if len(found) > len(rows) else ""
    return show(arguments, paths, header, rows, table, cells_of, nothing, more, hints=hints)


def absence(reader: ArenaReader, arguments: argparse.Namespace) -> tuple[str, list[Row]]:
    """A sentence for a listing without rows, and hints at names that are near those of the filters."""
    purgatories = list(purgatories_of(reader).values())
    if arguments.purgatory is not None and arguments.purgatory not in purgatories:
        near = of_near_names(arguments, "purgatory", arguments.purgatory, purgatories, "keys", "--purgatory")
        return f"No keys: there is no purgatory {arguments.purgatory!r:.40} now.", list(near)
    if arguments.match is None:
        return "No keys.", []
    return "No keys.", list(of_near_keys(reader, arguments, key_of(arguments.match), "keys", "--match"))


def cells_of(row: Row) -> tuple[object, ...]:
    watermark = "-" if row["watermark"] is None else row["watermark"]
    watchers = row["watchers"], row["event_watchers"], row["watermark_watchers"], row["observers"]
    return *watchers, watermark, word(row["key"]), row["purgatory"]


def rows_of(reader: ArenaReader) -> Iterator[dict[str, Any]]:
    """Every key that is watched or has a watermark."""
    watchers: Counter[tuple[int, bytes, int]] = Counter()
    set_by: dict[tuple[int, bytes], WatermarkRecord] = {}
    for node in reader.nodes.used():
        if node.place != Place.NOWHERE:
            with suppress(DamageError):  # the node's operation settled while the node was read
                watchers[node.purgatory, reader.key_name(node), node.kind] += 1
    for record in reader.watermarks.used():
        if record.used:
            with suppress(DamageError):
                set_by[record.purgatory, reader.key_name(record)] = record
    for purgatory, name in dict.fromkeys([*set_by, *((purgatory, name) for purgatory, name, _ in watchers)]):
        counts = [watchers[purgatory, name, kind] for kind in KeyKind]
        yield row_of(reader.purgatory_name(purgatory), name, counts, set_by.get((purgatory, name)))


def most_watched(reader: ArenaReader, count: int) -> Iterator[Row]:
    """The keys with the most watchers, `count` at most. For very many keys: a row is made only for these."""
    nodes = reader.nodes.columns("hash", "place")
    counts = Counter(hash_ for _, hash_, place in nodes if place != Place.NOWHERE)
    most = {hash_ for hash_, _ in counts.most_common(count)}
    kinds: Counter[tuple[int, int]] = Counter()
    names: dict[int, tuple[int, bytes]] = {}
    for index, hash_, kind, place in reader.nodes.columns("hash", "kind", "place"):
        if hash_ not in most or place == Place.NOWHERE:
            continue
        kinds[hash_, kind] += 1
        if hash_ not in names:
            with suppress(DamageError):
                node = reader.nodes[index]
                if node.hash == hash_:
                    names[hash_] = node.purgatory, reader.key_name(node)
    set_by = {record.hash: record for record in reader.watermarks.used() if record.used and record.hash in most}
    for hash_, (purgatory, name) in names.items():
        watchers = [kinds[hash_, kind] for kind in KeyKind]
        yield row_of(reader.purgatory_name(purgatory), name, watchers, set_by.get(hash_))


def row_of(
    purgatory: str, name: bytes, watchers: Sequence[int] = (0, 0, 0), watermark: WatermarkRecord | None = None
) -> Row:
    """A key as a row. `watchers` has a number for each KeyKind."""
    events, advances, observers = watchers
    return {
        "key": plain(name),
        "purgatory": purgatory,
        "watchers": sum(watchers),
        "event_watchers": events,
        "watermark_watchers": advances,
        "observers": observers,
        "watermark": watermark.watermark if watermark else None,
        "watermark_of_client": watermark.setter if watermark else None,
    }
