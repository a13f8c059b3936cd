"""How a fixed-size record is declared: a NamedTuple whose fields carry a storage type and a sentence.

One class is at once the C struct (`generate` writes it), what a reader gets (`unpack` returns the class itself) and
the documentation. Rules, checked when a record is first used:

* every field lies on a multiple of its own size, so that no compiler ever pads; a hole is declared as `reserved`;
* a record's size is a multiple of 8.

Each field also has a role after a crash (DESIGN.md, rule 2): truth changes only through the redo slot, derived fields
are rebuilt at every start, and settlement fields are filled before the state word that makes them true.

Modules that declare records do not use `from __future__ import annotations`. With it, Python would keep each annotation
as a text and compile each text by itself, which took a third of the import's time.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from enum import Enum, EnumMeta, IntEnum, IntFlag
from functools import cache
from typing import Annotated, Any, NamedTuple, TypeVar, get_type_hints


class Storage(NamedTuple):
    """A storage type: its C name, its struct code and its size and alignment in bytes."""

    c_type: str
    code: str
    size: int
    align: int
    count: int = 1


U8 = Storage("uint8_t", "B", 1, 1)
U16 = Storage("uint16_t", "H", 2, 2)
U32 = Storage("uint32_t", "I", 4, 4)
U64 = Storage("uint64_t", "Q", 8, 8)


def raw(size: int) -> Storage:
    """`size` bytes, as they are."""
    return Storage("uint8_t", f"{size}s", size, 1, size)


class Role(Enum):
    """How a field gets its value again after a crash."""

    TRUTH = "truth"  # changed only through the redo slot, once other records lead to its record
    SETTLEMENT = "settlement"  # filled before the state word says SETTLED; means nothing until then
    DERIVED = "derived"  # rebuilt from the truth at every start
    STATISTIC = "statistic"  # a crash may lose its changes of one turn
    HINT = "hint"  # names a record to load early; a stale hint costs time, and nothing else


TRUTH, SETTLEMENT, DERIVED, STATISTIC, HINT = Role

u8 = Annotated[int, U8]
u16 = Annotated[int, U16]
u32 = Annotated[int, U32]
u64 = Annotated[int, U64]


Shown = type[IntEnum] | type[IntFlag] | IntEnum  # the class of a code or of flags; the TextKind of a text


class Field(NamedTuple):
    """One field of a record, with its offset."""

    name: str
    storage: Storage
    offset: int
    role: Role
    about: str
    shown: Shown | None = None  # the meaning of its number, if it is no plain number
    checked: str = ""  # of a journal's column: how the audit checks it


Record = TypeVar("Record", bound=NamedTuple)
Made = TypeVar("Made")


def once(make: Callable[[type[Any]], Made]) -> Callable[[type[Any]], Made]:
    """functools.cache for a function of a record class, typed."""
    return cache(make)  # type: ignore[return-value]  # mypy takes classes for unhashable


@once
def fields(record: type[Any]) -> tuple[Field, ...]:
    """The fields of a record, with their offsets in bytes. Raises TypeError if a rule of this module is broken."""
    placed: list[Field] = []
    offset = 0
    for name, hint in get_type_hints(record, include_extras=True).items():
        marks = getattr(hint, "__metadata__", ())
        storage = next((mark for mark in marks if isinstance(mark, Storage)), None)
        about, checked, *_ = *(mark for mark in marks if isinstance(mark, str)), "", ""
        if storage is None or not about:
            raise TypeError(f"{record.__name__}.{name} needs a storage type and a sentence")
        if offset % storage.align:
            raise TypeError(f"{record.__name__}.{name} lies at {offset}, not on a multiple of {storage.align}")
        role = next((mark for mark in marks if isinstance(mark, Role)), TRUTH)
        shown: Shown | None = next((mark for mark in marks if isinstance(mark, (EnumMeta, IntEnum))), None)
        placed.append(Field(name, storage, offset, role, about, shown, checked))
        offset += storage.size
    if offset % 8:
        raise TypeError(f"{record.__name__} has {offset} bytes, not a multiple of 8")
    return tuple(placed)


@once
def struct_of(record: type[Any]) -> struct.Struct:
    """The `struct.Struct` that packs and unpacks a record class (little endian, no padding)."""
    return struct.Struct("<" + "".join(field.storage.code for field in fields(record)))


def size_of(record: type[Any]) -> int:
    """Size of a record class in bytes."""
    return struct_of(record).size


@cache
def fingerprint_of(records: tuple[type[Any], ...]) -> int:
    """CRC-32 of a field table: names, types, offsets and record sizes, in order."""
    table = ";".join(
        f"{record.__name__}:" + ",".join(f"{f.name}@{f.offset}{f.storage.code}" for f in fields(record))
        for record in records
    )
    return zlib.crc32(table.encode())


def offset_of(record: type[Any], name: str) -> int:
    """Offset in bytes of the named field; raises KeyError."""
    for field in fields(record):
        if field.name == name:
            return field.offset
    raise KeyError(f"{record.__name__} has no field {name!r}")


def unpack(record: type[Record], view: bytes | memoryview, offset: int = 0) -> Record:
    """A typed, immutable copy of the record that starts at `offset` bytes in `view`."""
    return record._make(struct_of(record).unpack_from(view, offset))
