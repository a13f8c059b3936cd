"""Names change, bytes do not: every record has the offsets, types and sizes that it had before fields were renamed.

records_before.txt was written by commit 5b23236, before the renaming. Later records were added by hand. A line is a
record: the kind of its file, its name at that time, its size in bytes, and offset:type of each field. The test compares
the order of records and fields, and not their names, so a field may get a better name.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from timerd_shm.declare import journal, layout, wire
from timerd_shm.declare.fields import Field, fields, size_of

BEFORE = [line.split() for line in Path(__file__).with_name("records_before.txt").read_text().splitlines()]
NOW: dict[str, tuple[type, ...]] = {
    "arena": layout.RECORDS,
    "wire": wire.WIRE_RECORDS,
    "journal": journal.JOURNAL_RECORDS,
}


def said(field: Field) -> str:
    """A field in the form of records_before.txt."""
    storage = field.storage
    return f"{field.offset}:{storage.c_type}{f'*{storage.count}' if storage.count > 1 else ''}"


@pytest.mark.parametrize("kind", NOW)
def test_every_offset_type_and_size_is_the_same_as_before(kind: str) -> None:
    before = [line[1:] for line in BEFORE if line[0] == kind]
    assert len(before) == len(NOW[kind])
    for (name, size, *places), record in zip(before, NOW[kind], strict=True):
        assert size_of(record) == int(size), f"{record.__name__}, once {name}"
        assert [said(field) for field in fields(record)] == places, f"{record.__name__}, once {name}"
