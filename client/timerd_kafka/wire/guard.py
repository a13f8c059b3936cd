"""Checks a frame before kio reads it, because kio allocates an array by the length that a frame states.

A frame of 20 bytes may state an array of 4 billion elements, and kio 0.6.5 then ends the process. So this module walks
over the same fields first. It refuses arrays that do not fit into the frame, and more elements than any client sends. A
frame that passes may still be wrong: then kio raises an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any

from kio.serial._introspect import (
    EntityField,
    EntityTupleField,
    PrimitiveTupleField,
    classify_field,
    get_field_tag,
    get_schema_field_type,
    is_optional,
)

ELEMENTS_MAX = 200_000  # of all arrays and tagged fields of a frame: for example, 19 topics with 10,000 partitions each
SIZES = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "error_code": 2,
    "int32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "float64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "uuid": 16,
}
SIZED = ("string", "bytes", "records")


class Hostile(ValueError):
    """A frame that states more than it has, or more than any client sends."""


class Walk:
    """A walk over one frame."""

    __slots__ = ("elements", "frame")

    def __init__(self, frame: bytes) -> None:
        self.frame, self.elements = frame, 0

    def varint(self, position: int) -> tuple[int, int]:
        """An unsigned number, and the position after it."""
        number = shift = 0
        while True:
            byte = self.frame[position]
            number |= (byte & 0x7F) << shift
            position += 1
            if byte < 0x80:
                return number, position
            shift += 7
            if shift > 63:
                raise Hostile("a number of more than ten bytes")

    def count(self, number: int, position: int) -> None:
        """Count the elements of an array, each of which takes a byte at least. Raises Hostile."""
        self.elements += number
        if number > len(self.frame) - position:
            raise Hostile(f"an array of {number} elements in {len(self.frame) - position} bytes")
        if self.elements > ELEMENTS_MAX:
            raise Hostile(f"more than {ELEMENTS_MAX} elements of arrays")


Step = Callable[[Walk, int], int]  # from the position of a field to the position after it


def check(kind: Any, frame: bytes, position: int) -> None:
    """Check an entity of kio that begins at this position. Raises Hostile, IndexError."""
    steps_of(kind)(Walk(frame), position)


@cache
def steps_of(kind: Any) -> Step:
    """The step over an entity."""
    flexible = kind.__flexible__
    plain, tagged = [], dict[int, Step]()
    for field in fields(kind):
        tag = get_field_tag(field)
        # The client's id in a header is a string of the old form, not a compact one, in every version.
        of_header = kind.__name__ == "RequestHeader" and field.name == "client_id"
        step = step_of(field, flexible=flexible and not of_header, is_tagged=tag is not None)
        if tag is None:
            plain.append(step)
        else:
            tagged[int(tag)] = step

    def walk(over: Walk, position: int) -> int:
        for step in plain:
            position = step(over, position)
        if not flexible:
            return position
        number, position = over.varint(position)
        over.count(number, position)
        for _ in range(number):
            tag, position = over.varint(position)
            size, position = over.varint(position)
            if tag in tagged:
                tagged[tag](over, position)
            position += size
        return position

    return walk


def step_of(field: Any, *, flexible: bool, is_tagged: bool) -> Step:
    """The step over a field."""
    kind = classify_field(field)
    if isinstance(kind, EntityField):
        inner = steps_of(kind.type_)
        if not is_optional(field) or is_tagged:
            return inner
        return lambda over, position: position + 1 if over.frame[position] == 0xFF else inner(over, position + 1)
    if isinstance(kind, EntityTupleField):
        return array(steps_of(kind.type_), flexible=flexible, may_be_null=is_optional(field))
    one = primitive(get_schema_field_type(field), flexible=flexible)
    if isinstance(kind, PrimitiveTupleField):
        return array(one, flexible=flexible, may_be_null=is_optional(field))
    return one


def array(element: Step, *, flexible: bool, may_be_null: bool) -> Step:
    """The step over an array, which follows its length (in a compact array: length + 1).

    kio accepts null for every array. This step refuses it for an array that may not be null.
    """

    def walk(over: Walk, position: int) -> int:
        if flexible:
            number, position = over.varint(position)
            number -= 1
        else:
            number = int.from_bytes(over.frame[position : position + 4], signed=True)
            position += 4
        if number < (-1 if may_be_null else 0):
            raise Hostile(f"an array of {number} elements")
        if number > 0:
            over.count(number, position)
            for _ in range(number):
                position = element(over, position)
        return position

    return walk


def primitive(name: str, *, flexible: bool) -> Step:
    """The step over a number of a fixed size, or over a text or bytes, which follow their length."""
    if name not in SIZED:
        size = SIZES[name]
        return lambda over, position: position + size
    if flexible:

        def compact(over: Walk, position: int) -> int:
            size, position = over.varint(position)
            return position + max(0, size - 1)

        return compact
    width = 2 if name == "string" else 4

    def legacy(over: Walk, position: int) -> int:
        size = int.from_bytes(over.frame[position : position + width], signed=True)
        return position + width + max(0, size)

    return legacy
