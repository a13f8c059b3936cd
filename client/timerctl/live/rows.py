"""The operations behind a row of top, and the explanation of one of them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import islice
from typing import Final

from timerctl.instance import open_arena
from timerctl.listing import BYTES_DEFAULT, Row
from timerctl.look import explain
from timerctl.look.clocks import Clocks
from timerctl.look.ops import Rows
from timerd_shm.declare.states import OpState
from timerd_shm.host.paths import InstancePaths
from timerd_shm.read.reader import ArenaReader
from timerd_shm.read.text import plain
from timerd_shm.read.watched import watches

SHOWN: Final = 200  # operations of a row
STANDING: Final = (OpState.PENDING, OpState.SETTLED)


def operations_of(reader: ArenaReader, row: Row) -> list[Row]:
    """The first operations of a client, a group or a purgatory, or those that watch a key."""
    rows = Rows(reader, Clocks(reader.header()))
    found = []
    for index in islice(dict.fromkeys(_indexes(reader, row, rows)), SHOWN):
        op = reader.ops[index]
        if op.state in STANDING and op.purgatory < len(rows.purgatories):
            found.append(rows.of(index, op))
    return found


def _indexes(reader: ArenaReader, row: Row, rows: Rows) -> Iterator[int]:
    """The records of these operations."""
    if "key" in row:
        for watch in watches(reader):
            if plain(watch.name) == row["key"] and rows.purgatories[watch.purgatory] == row["purgatory"]:
                yield watch.op
        return
    for index, op in enumerate(reader.ops.used()):
        if op.state not in STANDING:
            continue
        if "slot" in row:
            is_meant = rows.client_of(op) == row["slot"]
        elif "members" in row:
            is_meant = rows.group_of(op) == row["name"]
        else:
            is_meant = rows.purgatories[op.purgatory] == row["name"]
        if is_meant:
            yield index


def explained(paths: InstancePaths, number: str, instance: str | None) -> list[str]:
    """The lines that `timerctl explain NUMBER` prints."""
    arguments = argparse.Namespace(
        instance=instance, what=number.encode(), by="number", purgatory=None, bytes=BYTES_DEFAULT
    )
    with open_arena(paths) as reader:
        rows, _ = explain.explained(reader, paths, arguments)
    return [line for row in rows for line in explain.lines_of(row)]
