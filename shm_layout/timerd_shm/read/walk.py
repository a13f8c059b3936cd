"""Walks over the links of an arena: buckets, watcher lists, heaps, outcomes, answers, ids, chains, free records.

All of them are iterators, most of them over indexes of records, and all of them end. If a walk does not end after as
many steps as the region has records, or if something does not fit, it raises a DamageError that says where. So they are
safe on any bytes. On an arena that is being written, a DamageError may only mean that a turn came in between (see
ArenaReader.between_turns).

A walk takes its records from the arena, or from `records` if they are given: a copy by index, for callers that walk
everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, NamedTuple, Protocol, TypeVar

from timerd_shm.declare import layout
from timerd_shm.declare.fields import offset_of
from timerd_shm.declare.layout import Region
from timerd_shm.declare.records import (
    AnswerRecord,
    ClientRecord,
    EventRecord,
    GroupRecord,
    IdRecord,
    OpRecord,
    WatchNode,
)

from .reader import ArenaReader, DamageError, Table

Item = TypeVar("Item", covariant=True)
# The heads of a client's other lists: their distances, in links, from the head of its list of outcomes.
ANSWERS_HEAD, IDS_HEAD = (
    (offset_of(ClientRecord, name) - offset_of(ClientRecord, "next")) // layout.LINK_UNIT
    for name in ("answers_next", "ids_next")
)
LETTERS_HEAD = (offset_of(GroupRecord, "letters_next") - offset_of(GroupRecord, "next")) // layout.LINK_UNIT


class Indexed(Protocol[Item]):
    """Records by index: a Table, or a copy of its records."""

    def __getitem__(self, index: int, /) -> Item: ...


class OccupiedBucket(NamedTuple):
    """A bucket: its level and index in the wheel, and the number of operations that its record counts."""

    level: int
    index: int
    count: int


def linked(
    table: Table[Any], head: int, first: int, last: int, what: str, records: Indexed[Any] | None = None
) -> Iterator[int]:
    """Indexes of the records in the circular list whose head has link `head` and holds (first, last)."""
    source: Indexed[Any] = table if records is None else records
    at, before = first, head
    for _ in range(table.count + 1):
        if at == head:
            if before != last:
                raise DamageError(f"{what}: its head says that link {last} is the last one, and it is {before}")
            return
        index = table.index_of_link(at)
        if index is None:
            raise DamageError(f"{what}: link {at} does not name a record of {table.region.name}")
        record = record_of(source, index, what)
        if record.prev != before:
            raise DamageError(
                f"{what}: record {index} says that link {record.prev} comes before it, and it was reached from {before}"
            )
        yield index
        before, at = at, record.next
    raise DamageError(f"{what}: it does not end within the {table.count} records of {table.region.name}")


def chain(first: int, next_of: Callable[[int], int], most: int, what: str) -> Iterator[int]:
    """Indexes of the records in a chain. `first` and `next_of` give the index + 1 of a record, or 0 at the end."""
    at = first
    for _ in range(most + 1):
        if at == 0:
            return
        if at > most:
            raise DamageError(f"{what}: record {at - 1} does not exist, there are {most}")
        yield at - 1
        at = next_of(at - 1)
    raise DamageError(f"{what}: it does not end within {most} records")


def occupied_buckets(reader: ArenaReader) -> Iterator[OccupiedBucket]:
    """The buckets whose record counts at least one operation, level by level."""
    for number, bucket in enumerate(reader.buckets):
        if bucket.count:
            yield OccupiedBucket(*divmod(number, layout.BUCKETS), bucket.count)


def bucket(reader: ArenaReader, level: int, index: int, records: Indexed[OpRecord] | None = None) -> Iterator[int]:
    """The operations in bucket `index` of `level`, in the order of their list."""
    number = level * layout.BUCKETS + index
    head = reader.buckets[number]
    what = f"bucket {level}:{index}"
    return linked(reader.ops, reader.buckets.link(number), head.next, head.prev, what, records)


def nodes_of(reader: ArenaReader, operation: int, records: Indexed[WatchNode] | None = None) -> Iterator[int]:
    """The watch nodes of an operation (index) that is pending or keeps its keys, in the order of the keys."""
    what = f"watch nodes of operation {operation}"
    following = field(reader.nodes if records is None else records, "next_of_op", what)
    return chain(operation + 1, following, reader.nodes.count, what)


def event_watchers(reader: ArenaReader, first: int, records: Indexed[WatchNode] | None = None) -> Iterator[int]:
    """The watch nodes in a key's list: those that wait for an event, in order of registration.

    `first` is the first node (Place.FIRST). The list is a circle without a head.
    """
    table: Table[WatchNode] = reader.nodes
    source: Indexed[WatchNode] = table if records is None else records
    what = f"watcher list from node {first}"
    own, last = table.link(first), record_of(source, first, what).prev
    at, before = own, last
    for _ in range(table.count + 1):
        index = table.index_of_link(at)
        if index is None:
            raise DamageError(f"{what}: link {at} does not name a record of NODES")
        record = record_of(source, index, what)
        if record.prev != before:
            raise DamageError(
                f"{what}: node {index} says that link {record.prev} comes before it, and it was reached from {before}"
            )
        yield index
        before, at = at, record.next
        if at == own:
            if before != last:
                raise DamageError(f"{what}: it says that link {last} is the last one, and it is {before}")
            return
    raise DamageError(f"{what}: it does not end within the {table.count} records of NODES")


def watermark_watchers(
    reader: ArenaReader, top: int, records: Indexed[WatchNode] | None = None
) -> Iterator[tuple[int, int]]:
    """Pairs (watch node, its parent or -1): the nodes that wait for a key's watermark, parents first, left first.

    `top` is the node at the top of the heap (Place.FIRST). Each node of the heap has two links (see WatchNode): `prev`
    is the left child. The left child's `next` is the right child, or the parent when there is no right child.
    """
    source: Indexed[WatchNode] = reader.nodes if records is None else records
    what = f"heap from node {top}"
    if up := record_of(source, top, what).next:
        raise DamageError(f"{what}: it must have 0 as its parent, and has {up}")
    waiting = [(top + 1, 0)]
    for _ in range(reader.nodes.count + 1):
        if not waiting:
            return
        at, parent = waiting.pop()
        yield at - 1, parent - 1
        left = record_of(source, at - 1, what).prev
        if not left:
            continue
        right = record_of(source, left - 1, what).next
        if right != at:
            if right == 0 or record_of(source, right - 1, what).next != at:
                raise DamageError(f"{what}: the last child of node {at - 1} does not lead back to it")
            waiting.append((right, at))
        waiting.append((left, at))
    raise DamageError(f"{what}: it does not end within the {reader.nodes.count} records of NODES")


def outcomes(reader: ArenaReader, slot: int, records: Indexed[OpRecord] | None = None) -> Iterator[int]:
    """The settled operations of a client that it has not acknowledged, in order of outcome number."""
    head = reader.clients[slot]
    what = f"outcomes of client {slot}"
    return linked(reader.ops, reader.clients.link(slot), head.next, head.prev, what, records)


def waiting(reader: ArenaReader, group: int, records: Indexed[OpRecord] | None = None) -> Iterator[int]:
    """The outcomes of a group (index) that no member holds now, without calls, in the order of their list."""
    head = reader.groups[group]
    return linked(reader.ops, reader.groups.link(group), head.next, head.prev, f"outcomes of group {group}", records)


def waiting_calls(reader: ArenaReader, group: int, records: Indexed[OpRecord] | None = None) -> Iterator[int]:
    """The calls of a group (index) that are due and that no member holds now, in the order of their list."""
    head = reader.groups[group]
    link = reader.groups.link(group) + 1
    return linked(reader.ops, link, head.calls_next, head.calls_prev, f"calls of group {group}", records)


def dead_letters(reader: ArenaReader, group: int, records: Indexed[OpRecord] | None = None) -> Iterator[int]:
    """The dead letters of a group (index), in order of their numbers."""
    head = reader.groups[group]
    link = reader.groups.link(group) + LETTERS_HEAD
    return linked(reader.ops, link, head.letters_next, head.letters_prev, f"dead letters of group {group}", records)


def answers(reader: ArenaReader, slot: int, records: Indexed[AnswerRecord] | None = None) -> Iterator[int]:
    """The answers that a client has not acknowledged, in order of command number."""
    head = reader.clients[slot]
    link = reader.clients.link(slot) + ANSWERS_HEAD
    return linked(reader.answers, link, head.answers_next, head.answers_prev, f"answers of client {slot}", records)


def remembered_ids(reader: ArenaReader, slot: int, records: Indexed[IdRecord] | None = None) -> Iterator[int]:
    """The ids of settled operations that a client slot pays for, oldest first."""
    head = reader.clients[slot]
    link = reader.clients.link(slot) + IDS_HEAD
    return linked(reader.ids, link, head.ids_next, head.ids_prev, f"remembered ids of client {slot}", records)


def free_records(reader: ArenaReader, region: Region, records: Indexed[Any]) -> Iterator[int]:
    """The free records of a region that chains them, in the order in which they will be allocated."""
    row, what = reader.region(region), f"free list of {region.name}"
    return chain(row.free_head, field(records, layout.FREE_LINKS[region], what), row.count, what)


def events(reader: ArenaReader) -> Iterator[EventRecord]:
    """The events in the ring, oldest first."""
    header = reader.header()
    for sequence in range(max(header.tail, header.newest + 1 - reader.events.count), header.newest + 1):
        yield reader.event(sequence)


def field(records: Indexed[Any], name: str, what: str) -> Callable[[int], int]:
    """The function that gives a field of the record with some index, for chain()."""
    value = attrgetter(name)
    return lambda index: int(value(record_of(records, index, what)))


def record_of(records: Indexed[Item], index: int, what: str) -> Item:
    """records[index]; DamageError instead of IndexError or KeyError."""
    try:
        return records[index]
    except LookupError:
        raise DamageError(f"{what}: record {index} was never used") from None
