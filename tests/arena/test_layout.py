"""The declarations: no padding, stable offsets, a fingerprint that each change changes, unique names and codes."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path
from typing import Annotated, NamedTuple

import pytest

import timerd.core
from timerd_shm import generate
from timerd_shm.declare import layout, wire
from timerd_shm.declare.counters import DAEMON_COUNTERS, PURGATORY_COUNTERS, index_of
from timerd_shm.declare.errors import ErrorCode, TimerdError, error_for
from timerd_shm.declare.fields import U8, U32, U64, Field, fields, offset_of, size_of, struct_of, unpack
from timerd_shm.declare.records import ArenaHeader
from timerd_shm.declare.states import RULES, Condition

EVERY_RECORD = layout.RECORDS + wire.WIRE_RECORDS


@pytest.mark.parametrize("record", EVERY_RECORD, ids=lambda record: record.__name__)
def test_no_compiler_would_pad_a_record(record: type) -> None:
    at = 0
    for field in fields(record):
        assert field.offset == at, f"{field.name} lies at {field.offset}, and the field before it ends at {at}"
        assert field.offset % field.storage.align == 0
        at += field.storage.size
    assert at == size_of(record)
    assert at % 8 == 0


def value_of(field: Field, at: int) -> int | bytes:
    """A value that uses every byte of a field, and differs from field to field."""
    if field.storage.code.endswith("s"):
        return bytes(index % 256 for index in range(at, at + field.storage.size))
    return (1 << 8 * field.storage.size) - 1 - at


@pytest.mark.parametrize("record", EVERY_RECORD, ids=lambda record: record.__name__)
def test_a_record_is_unpacked_as_it_was_packed(record: type) -> None:
    values = [value_of(field, at) for at, field in enumerate(fields(record))]
    packed = b"before!!" + struct_of(record).pack(*values)
    assert unpack(record, packed, 8) == record(*values)
    for field, value in zip(fields(record), values, strict=True):
        raw = packed[8 + field.offset : 8 + field.offset + field.storage.size]
        assert struct.unpack(f"<{field.storage.code}", raw)[0] == value, field.name


def test_fields_that_a_compiler_would_move_are_refused() -> None:
    class Padded(NamedTuple):
        small: Annotated[int, U8, "one byte"]
        large: Annotated[int, U64, "eight bytes"]

    class Short(NamedTuple):
        small: Annotated[int, U32, "four bytes"]

    class Silent(NamedTuple):
        small: Annotated[int, U64]

    for record, complaint in ((Padded, "lies at 1"), (Short, "not a multiple of 8"), (Silent, "needs a storage type")):
        with pytest.raises(TypeError, match=complaint):
            fields(record)


def test_the_first_bytes_of_an_arena_never_move() -> None:
    """A reader finds these fields in an arena of any version, and can name the version that it refuses."""
    header = ArenaHeader
    places = [offset_of(header, name) for name in ("magic", "layout_version", "fingerprint", "incarnation", "size")]
    assert places == [0, 8, 16, 24, 32]


def test_every_change_changes_the_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    before = layout.fingerprint()

    class OpRecord(NamedTuple):
        state: Annotated[int, U64, "renamed, resized, or moved"]

    for changed in (layout.RECORDS[:-1], layout.RECORDS[::-1], (*layout.RECORDS, OpRecord)):
        monkeypatch.setattr(layout, "RECORDS", changed)
        assert layout.fingerprint() != before
    monkeypatch.undo()
    rule = RULES[Condition.AT_LEAST]
    for other in (rule._replace(fails="keys - failed <= needed"), rule._replace(takes_needed=False)):
        with monkeypatch.context() as patch:
            patch.setitem(RULES, Condition.AT_LEAST, other)
            assert layout.fingerprint() != before
    assert layout.fingerprint() == before == timerd.core.LAYOUT_FINGERPRINT


def test_a_stale_generated_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not generate.stale_files()
    copies = {tmp_path / path.name: text for path, text in generate.GENERATED.items()}
    for path, text in copies.items():
        path.write_text(text())
    monkeypatch.setattr(generate, "GENERATED", copies)
    assert not generate.stale_files()
    header = tmp_path / "timerd_layout.h"
    header.write_text(header.read_text().replace("uint64_t", "uint32_t", 1))
    assert [path.name for path in generate.stale_files()] == ["timerd_layout.h"]


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (cc)")
def test_a_header_edited_by_hand_does_not_compile(tmp_path: Path) -> None:
    text = (generate.HERE / "timerd_layout.h").read_text()
    program = tmp_path / "it.c"
    program.write_text('#include "timerd_layout.h"\nint main(void) { return 0; }\n')

    def compiles(header: str) -> bool:
        (tmp_path / "timerd_layout.h").write_text(header)
        command = ["cc", "-std=gnu11", "-Wall", "-Werror", "-fsyntax-only", str(program)]
        return subprocess.run(command, capture_output=True).returncode == 0

    assert compiles(text)
    swapped = text.replace("uint32_t generation;", "uint64_t generation;", 1)
    assert swapped != text
    assert not compiles(swapped)


def test_counters_have_one_name_and_fit_their_regions() -> None:
    names = [counter.name for counter in (*PURGATORY_COUNTERS, *DAEMON_COUNTERS)]
    assert len(set(names)) == len(names)
    assert all(len(counter.name) <= 32 and len(counter.unit) <= 16 for counter in PURGATORY_COUNTERS + DAEMON_COUNTERS)
    assert len(PURGATORY_COUNTERS) <= layout.PURGATORY_COUNTERS_MAX
    assert len(DAEMON_COUNTERS) <= layout.DAEMON_COUNTERS_MAX
    assert index_of(PURGATORY_COUNTERS, "registered") == 0
    with pytest.raises(KeyError, match="no counter 'nothing'"):
        index_of(DAEMON_COUNTERS, "nothing")


def test_every_code_has_one_error_that_says_what_to_do() -> None:
    for code in ErrorCode:
        if code is not ErrorCode.NONE:
            error = error_for(code, "why")
            assert type(error).code is code
            assert str(error) == "why"
            assert "." in (type(error).__doc__ or ""), (
                f"the docstring of {type(error).__name__} lacks its second sentence"
            )
    assert type(error_for(9_999, "from the future")) is TimerdError


def test_two_errors_cannot_share_a_code() -> None:
    with pytest.raises(TypeError, match="share"):
        type("Twin", (TimerdError,), {"code": ErrorCode.MALFORMED})
