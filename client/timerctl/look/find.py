"""Finds the operation that a person means: by the id that its caller gave, or by the number that timerctl shows.

The arena has a hash of each id, not the id. So an id is looked up by its hash, in each purgatory. The id of a call is
known to the daemon as GROUP/ID.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

from timerctl.exits import UsageError
from timerd_client.groups.listing import listed
from timerd_client.protocol.session import CALLS
from timerd_shm.declare.limits import ID_SIZE_MAX
from timerd_shm.declare.records import IdRecord, OpRecord
from timerd_shm.declare.states import IdState, OpState
from timerd_shm.read.hashing import id_hash
from timerd_shm.read.reader import ArenaReader
from timerd_shm.read.text import plain

NUMBER = re.compile(r"(\d{1,10})\.(\d{1,10})")
WHOLE = re.compile(r"0x[0-9a-fA-F]{1,16}|\d{1,20}")
INDEX_BITS = 32


class Found(NamedTuple):
    """An operation that stands in the arena."""

    at: int  # the index of its record
    op: OpRecord
    id: bytes | None  # as it was given, if it was found by its id


class Remembered(NamedTuple):
    """An id whose operation has settled and left the arena. The id is remembered for a time."""

    id: bytes
    purgatory: str
    record: IdRecord


class Gone(NamedTuple):
    """A number whose record is free, or another operation's by now; `used` if there was an operation of the number."""

    number: int
    used: bool
    op: OpRecord | None = None  # the record of the operation, until it is used again


Meant = Found | Remembered | Gone


def number_of(generation: int, index: int) -> str:
    """The number of an operation, as people read it: 7.1."""
    return f"{index}.{generation}"


def meant(reader: ArenaReader, text: bytes, by: str | None, purgatory: str | None) -> list[Meant]:
    """The operations whose id or number is `text`; ids only in `purgatory`, if it is given. Empty: nothing is known.

    An operation that stands in the arena comes before ids that are remembered. Raises UsageError if the text is the id
    of one operation and the number of another, and `by` is None; or if `by` is "number", and the text is no number.
    """
    number = _number(text)
    if by == "number" and number is None:
        raise UsageError(
            f"{plain(text)!r:.60} is not the number of an operation: that is INDEX.GENERATION, such as 7.1, or the "
            "`op` of `timerctl ops --json`"
        )
    ids: list[Meant] = [] if by == "number" else list(_by_id(reader, text, purgatory))
    numbers: list[Meant] = [] if by == "id" or number is None else [_by_number(reader, number)]
    standing = [each for each in numbers if isinstance(each, Found)]
    if ids and standing and by is None and not _same(ids, standing[0]):
        raise UsageError(
            f"{plain(text)!r:.60} is the id of one operation and the number of another one: give --by id or --by number"
        )
    return sorted(ids, key=lambda each: not isinstance(each, Found)) or numbers


def _same(ids: list[Meant], other: Meant) -> bool:
    return isinstance(other, Found) and [each.at for each in ids if isinstance(each, Found)] == [other.at]


def _number(text: bytes) -> int | None:
    """The op id in a text, if the text has the form of one."""
    written = text.decode("ascii", "replace")
    if found := NUMBER.fullmatch(written):
        index, generation = map(int, found.groups())
        return generation << INDEX_BITS | index if max(index, generation) >> INDEX_BITS == 0 else None
    if WHOLE.fullmatch(written):
        number = int(written, 16 if written.startswith("0x") else 10)
        return number if number >> 64 == 0 else None
    return None


def by_number(reader: ArenaReader, text: bytes) -> Found | Gone | None:
    """The operation of which the text is the number; None if the text is no number."""
    number = _number(text)
    return None if number is None else _by_number(reader, number)


def _by_number(reader: ArenaReader, number: int) -> Found | Gone:
    generation, index = number >> INDEX_BITS, number & (1 << INDEX_BITS) - 1
    if index >= len(reader.ops):
        return Gone(number, used=False)
    op = reader.ops[index]
    if op.generation == generation and op.state in (OpState.PENDING, OpState.SETTLED):
        return Found(index, op, None)
    # A freed record keeps its outcome until another operation gets the record.
    kept = op if op.generation == generation > 0 and op.state == OpState.FREE and op.outcome else None
    return Gone(number, 0 < generation <= op.generation, kept)


def _by_id(reader: ArenaReader, text: bytes, purgatory: str | None) -> Iterator[Meant]:
    names = {index: reader.purgatory_name(index) for index, each in enumerate(reader.purgatories) if each.state}
    groups = [group.name[: group.name_length] for group in reader.groups if group.state]
    wanted: dict[tuple[int, int, int], bytes] = {}
    for index, name in names.items():
        if purgatory not in (None, name):
            continue
        for id in [text, *(group + b"/" + text for group in groups if name == CALLS)]:
            if 1 <= len(id) <= ID_SIZE_MAX:
                wanted[(index, *struct.unpack("<QQ", id_hash(id)))] = text
    for at, record in enumerate(reader.ids.used()):
        if record.state in (IdState.LIVE, IdState.SETTLED):
            key = (record.purgatory, record.hash_low, record.hash_high)
            if key in wanted:
                found: list[Meant] = list(_operations_of(reader, at, record, text))
                yield from found or [Remembered(text, names[record.purgatory], record)]
    if purgatory in (None, CALLS):
        yield from _letters_of(reader, text)


def _operations_of(reader: ArenaReader, at: int, record: IdRecord, text: bytes) -> Iterator[Found]:
    """The operations of an id that stand in the arena: one, or two calls, of which one runs."""
    if record.state == IdState.LIVE:
        indexes = [record.op - 1]
    else:
        indexes = [call - 1 for call in (record.running, record.call) if call]
        if not indexes:
            indexes = [index for index, op in enumerate(reader.ops.used()) if _is_of(op, at, record)]
    for index in dict.fromkeys(indexes):
        op = reader.ops[index]
        if op.id_record == at + 1 and op.state in (OpState.PENDING, OpState.SETTLED):
            yield Found(index, op, text)


def _letters_of(reader: ArenaReader, text: bytes) -> Iterator[Found]:
    """In each group, the newest dead letter that had this id. The record of the id does not lead to it any more."""
    newest = {
        each.group: each
        for each in sorted(listed(reader, failed=True), key=lambda letter: letter.number)
        if each.id.encode() == text
    }
    for letter in newest.values():
        index = letter.op & (1 << INDEX_BITS) - 1
        op = reader.ops[index]
        if op.generation == letter.op >> INDEX_BITS:
            yield Found(index, op, text)


def _is_of(op: OpRecord, at: int, record: IdRecord) -> bool:
    """Whether a settled operation has this id. Its id may have been forgotten, and the record given to another id."""
    return op.state == OpState.SETTLED and op.id_record == at + 1 and op.settled_ns == record.settled_ns


def id_hash_of(reader: ArenaReader, op: OpRecord) -> str | None:
    """The hash of an operation's id, as the journal shows it; None if it has no id, or the id is forgotten."""
    if not op.id_record:
        return None
    at = op.id_record - 1
    record = reader.ids[at]
    known = record.state == IdState.LIVE or (
        record.state == IdState.SETTLED and (record.call or record.running or _is_of(op, at, record))
    )
    return struct.pack("<QQ", record.hash_low, record.hash_high).hex() if known else None
