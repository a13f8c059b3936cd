"""The events view: rows of all kinds in one table, with a column for each field of any kind of row."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import numpy as np
import pyarrow as pa

from timerd_shm.declare.journal import TIMES, RowKind
from timerd_shm.declare.limits import NO_DEADLINE

from .decode import (
    SegmentRows,
    constant,
    hexadecimal,
    instants,
    names_of,
    names_of_codes,
    numbers,
    strings,
)
from .schema import ENUM_TYPES, HEXADECIMAL, TEXTS, shown_fields, shown_kinds


@cache
def having(name: str) -> tuple[tuple[RowKind, str], ...]:
    """The sources of a column: each kind of row that has a value for the column, with the field that has the value."""
    found = [(kind, name) for kind in shown_kinds() if name in {field.name for field in shown_fields(kind)}]
    if name == "group":  # the owner of an operation is a group while no member holds it
        found += [(kind, "owner") for kind in (RowKind.OUTCOME, RowKind.REGISTERED)]
    return tuple(found)


class Events:
    """The events view of some rows of a span."""

    def __init__(self, source: SegmentRows, records: np.ndarray, lines: np.ndarray) -> None:
        self._source, self._records, self._lines = source, records, lines
        self._kinds = source.kinds(lines)
        # For each kind that occurs: which rows have it, and these rows.
        self._by_kind = {
            kind: (where, source.rows(kind, lines[where]))
            for kind in shown_kinds()
            if len(where := np.flatnonzero(self._kinds == kind))
        }

    def __len__(self) -> int:
        return len(self._records)

    def column(self, name: str) -> pa.Array:
        """A column of schema.EVENTS by its name."""
        source = self._source
        match name:
            case "host" | "instance":
                return constant(getattr(source, name), len(self))
            case "incarnation":
                return constant(f"{source.header.incarnation:016x}", len(self))
            case "row":
                return numbers(self._records + source.header.first_row)
            case "bytes":
                return self._source.rows_as_bytes(self._lines)
            case "segment":
                return numbers(np.full(len(self), source.header.sequence, np.int64))
            case "record":
                return numbers(self._records.astype(np.int64))
            case "kind":
                return names_of_codes(self._kinds, names_of(RowKind))
            case "at":
                at, present = self._spread(TIMES.items())
                return instants(source.wall_us(self._records, at), present & (at != 0))
            case "op_id":
                operations, present = self._field("operation")
                data = source.op_id_bytes(operations[present])
                return strings(data, np.where(present, 33, 0).astype(np.int32), present)
        values, present = self._field(name)
        if name in TEXTS:
            return source.texts(name, values)
        if name in ENUM_TYPES:
            return names_of_codes(values.astype(np.uint8), names_of(ENUM_TYPES[name]), present)
        if name in HEXADECIMAL:
            return strings(hexadecimal(values[present]).ravel(), np.where(present, 16, 0).astype(np.int32), present)
        if name == "deadline_ns":
            present = present & (values != NO_DEADLINE)
        return numbers(values.view(np.int64), present)

    def _field(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """(values, present): the field of that name in 64 bits, 0 in rows without it; and which rows have the field."""
        return self._spread(having(name))

    def _spread(self, names: Iterable[tuple[RowKind, str]]) -> tuple[np.ndarray, np.ndarray]:
        values, present = np.zeros(len(self), np.uint64), np.zeros(len(self), bool)
        for kind, name in names:
            if kind in self._by_kind and not self._source.lacks(kind, name):
                where, rows = self._by_kind[kind]
                values[where] = rows[name]
                present[where] = True
        return values, present
