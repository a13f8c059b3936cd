"""The events view: rows of all kinds in one table, with a column for each field of any kind of row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from timerd_shm.declare.journal import TIMES, RowKind
from timerd_shm.declare.limits import NO_DEADLINE

from .decode import (
    SegmentRows,
    constant,
    group_name,
    hexadecimal,
    instants,
    names_of_codes,
    numbers,
    owner_name,
    readable,
    strings,
)
from .schema import ENUM_TYPES, HEXADECIMAL, TEXTS, shown_fields, shown_kinds

# The fields that name a group, and the kinds of rows in which they do.
GROUPS = (("group", shown_kinds()), ("owner", [RowKind.OUTCOME, RowKind.REGISTERED]))
KINDS = {int(kind): kind.name.lower() for kind in RowKind}


class Events:
    """The events view of some rows of a span."""

    def __init__(self, source: SegmentRows, records: np.ndarray, lines: np.ndarray) -> None:
        self._source, self._records, self._lines = source, records, lines
        self._kinds = source.kinds(lines)
        self._by_kind = {kind: np.flatnonzero(self._kinds == kind) for kind in shown_kinds()}

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
            case "segment":
                return numbers(np.full(len(self), source.header.sequence, np.int64))
            case "record":
                return numbers(self._records.astype(np.int64))
            case "kind":
                return names_of_codes(self._kinds, KINDS)
            case "at":
                at, present = self._spread(TIMES)
                return instants(source.wall_us(self._records, at), present & (at != 0))
            case "op_id":
                operations, present = self._field("operation")
                data = source.op_id_bytes(operations[present])
                return strings(data, np.where(present, 33, 0).astype(np.int32), present)
            case "group":
                # The owner of an operation is a group while no member holds it.
                groups, owners = (self._spread(self._having(name, kinds)) for name, kinds in GROUPS)
                return self._texts(name, np.where(groups[1], groups[0], np.where(owners[1], owners[0], 0)))
        values, present = self._field(name)
        if name in TEXTS:
            return self._texts(name, np.where(present, values, 0))
        if name in ENUM_TYPES:
            names = {int(member): member.name.lower() for member in ENUM_TYPES[name]}
            return pa.array(names.get(code, str(code)) for code in range(256)).take(
                numbers(values.astype(np.int64), present)
            )
        if name in HEXADECIMAL:
            return strings(hexadecimal(values[present]).ravel(), np.where(present, 16, 0).astype(np.int32), present)
        if name == "deadline_ns":
            present = present & (values != NO_DEADLINE)
        return numbers(values.view(np.int64), present)

    def _field(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """(values, present): the field of that name in 64 bits, 0 in rows without it; and which rows have the field."""
        return self._spread(self._having(name, list(self._by_kind)))

    @staticmethod
    def _having(name: str, kinds: list[RowKind]) -> dict[RowKind, str]:
        """Those of these kinds that have the field of that name."""
        return {kind: name for kind in kinds if name in {field.name for field in shown_fields(kind)}}

    def _spread(self, names: dict[RowKind, str]) -> tuple[np.ndarray, np.ndarray]:
        values, present = np.zeros(len(self), np.uint64), np.zeros(len(self), bool)
        for kind, name in names.items():
            where = self._by_kind.get(kind, ())
            if len(where) and not self._source.lacks(kind, name):
                values[where] = self._source.rows(kind, self._lines[where])[name]
                present[where] = True
        return values, present

    def _texts(self, name: str, texts: np.ndarray) -> Any:
        if name == "id":
            return self._source.hashes(texts)
        if name == "key":
            return self._source.many_texts(texts)
        return self._source.few_texts(texts, {"owner": owner_name, "group": group_name}.get(name, readable))
