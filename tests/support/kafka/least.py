"""The smallest request of each API that has an element in each of its arrays."""

from __future__ import annotations

import dataclasses
from typing import Any
from uuid import UUID

from kio.serial._introspect import EntityField, EntityTupleField, classify_field, get_schema_field_type

from support.kafka.rawkafka import seconds


def least(kind: Any) -> Any:
    """An object of the library kio: one element in each array, a small value in each other field without a default."""
    given = {}
    for field in dataclasses.fields(kind):
        of = classify_field(field)
        if isinstance(of, EntityField | EntityTupleField):
            given[field.name] = (least(of.type_),) if of.is_array else least(of.type_)
        elif of.is_array or field.default is dataclasses.MISSING:
            made = LEAST[get_schema_field_type(field)]
            given[field.name] = (made,) if of.is_array else made
    return kind(**given)


LEAST = {
    **dict.fromkeys(("int8", "int16", "int32", "int64"), 1),
    **{"string": "x", "bytes": b"", "records": b"", "bool": False, "uuid": UUID(int=7)},
    **dict.fromkeys(("timedelta_i32", "timedelta_i64"), seconds(0.05)),
}
