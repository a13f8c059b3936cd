"""The watchers of a key: a search of all watch nodes. A reader cannot use the key table: its hashes have a secret seed.

A search costs at most a microsecond for each node. On a live instance the result is not of a single moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from timerd_shm.declare.records import WatchNode, WatermarkRecord
from timerd_shm.declare.states import Place

from .reader import ArenaReader, DamageError

# Names of fields in the record's order, in which Table.columns() gives the values.
_OF_NODES = ("target", "op", "purgatory", "name_length", "kind", "place", "name", "name_blob")
_OF_WATERMARKS = ("watermark", "used", "purgatory", "name_length", "name", "name_blob")
assert tuple(name for name in WatchNode._fields if name in _OF_NODES) == _OF_NODES
assert tuple(name for name in WatermarkRecord._fields if name in _OF_WATERMARKS) == _OF_WATERMARKS


class Watch(NamedTuple):
    """A key that an operation waits for: neither satisfied nor failed yet."""

    purgatory: int
    name: bytes
    kind: int  # KeyKind
    target: int  # the watermark to reach, of KeyKind.WATERMARK
    op: int  # index


def watches(reader: ArenaReader, name: bytes | None = None) -> Iterator[Watch]:
    """All watches, or those on the keys of that name, in any purgatory, in the order of their nodes."""
    for _, target, op, purgatory, length, kind, place, inline, blob in reader.nodes.columns(*_OF_NODES):
        if place == Place.NOWHERE or (name is not None and length != len(name)):
            continue
        found = _name(reader, inline[:length], blob)
        if found is not None and name in (None, found):
            yield Watch(purgatory, found, kind, target, op)


def watermarks(reader: ArenaReader) -> Iterator[tuple[int, bytes, int]]:
    """(purgatory, name, watermark) of each watermark."""
    for _, watermark, used, purgatory, length, inline, blob in reader.watermarks.columns(*_OF_WATERMARKS):
        found = _name(reader, inline[:length], blob) if used else None
        if found is not None:
            yield purgatory, found, watermark


def _name(reader: ArenaReader, inline: bytes, blob: int) -> bytes | None:
    """The name of a key; None if its record has changed while it was read."""
    try:
        return reader.blob(blob) if blob else inline
    except DamageError:
        return None
