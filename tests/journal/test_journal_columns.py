"""Each column of each kind of row is changed, and its checksum with it. The audit finds the change if it should.

The declaration of the rows (timerd_shm/declare/journal.py) says how each column is checked, and so which changes an
audit may miss. These tests verify that.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from support.oracle.journalplay import JournaledPlay
from support.rig.damage import with_right_sums
from support.rig.harness import MS, Rig, S, advance
from support.rig.journals import SEGMENT_SIZE, JournaledRig, empty_buffer
from timerd.journal.files import JournalPlan
from timerd_client.audit.journal import audit_journal
from timerd_shm.declare.fields import Field, fields
from timerd_shm.declare.journal import BLOCK_ROWS, BLOCK_SIZE, ROW_SIZE, ROWS, JournalLevel, RowKind, TextKind, is_shown
from timerd_shm.declare.states import EventKind
from timerd_shm.read.journal_reader import JournalReader
from timerd_shm.read.segment import JournalError, Offset, segment_path

OF_REGISTRATIONS = (RowKind.REGISTER, RowKind.REGISTERED, RowKind.KEY)
STEPS = 90
ROWS_TRIED = 10
SEED = 6
UNUSED = (RowKind.CONTINUED, "length"), (RowKind.CONTINUED, "text_kind")  # both are always zero in a CONTINUED row
# How a column is checked (the first words of `checked`), and the share of its changes that may be missed.
MISSED = {"computed": 0.0, "nearly computed": 0.5, "bounded": 1.0, "by effect": 1.0, "free": 1.0}


def may_be_missed(kind: RowKind, field: Field) -> float:
    if (kind, field.name) in UNUSED or not is_shown(field):
        return 0.0
    return next(share for words, share in MISSED.items() if field.checked.startswith(words))


class Made(NamedTuple):
    """A sound journal that has ended in order."""

    directory: Path
    places: dict[RowKind, list[tuple[int, int]]]  # (segment, record) of the rows of each kind
    texts: dict[tuple[int, TextKind], dict[int, bytes | None]]  # the texts of each kind in a segment, by record


def made(directory: Path) -> Made:
    """A sound journal, with the places of its rows. Rows of registrations count only if the operation has settled."""
    found = Made(directory, {}, {})
    pending: dict[int, list[tuple[RowKind, Offset]]] = {}
    with JournalReader(directory) as reader:
        for row in reader.rows():
            kind, record = RowKind(row.record.kind), row.record
            if kind is RowKind.TEXT:
                texts = found.texts.setdefault((row.offset.segment, TextKind(record.text_kind)), {})
                texts[row.offset.record] = reader.text(row.offset.record)
            if kind in OF_REGISTRATIONS:
                pending.setdefault(record.operation, []).append((kind, row.offset))
                continue
            if kind is RowKind.OUTCOME:
                for of_kind, offset in pending.pop(record.operation, ()):
                    found.places.setdefault(of_kind, []).append(offset)
            found.places.setdefault(kind, []).append(row.offset)
    assert not (wrong := audit_journal(directory).wrong), wrong[:3]
    return found


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A program with dying owners, groups, ids, grants, restarts, and rows of every kind except GAP and WATERMARK."""
    directory = tmp_path_factory.mktemp("journal")
    play = JournaledPlay(SEED, directory)
    for step in range(STEPS):
        play.step()
        play.compare_all()
        if step == STEPS // 2:
            play.rig.restart()
    rig = play.rig
    assert isinstance(rig, JournaledRig)
    rig.turn(rig.now_ns + 11 * S)  # so late that an anchor is written
    rig.end()
    return made(directory)


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A journal that began when a key already had a watermark."""
    before = Rig()
    before.do(before.client(), advance(b"k", 7))
    rig = object.__new__(JournaledRig)
    vars(rig).update(vars(before))
    rig.plan = JournalPlan(
        tmp_path_factory.mktemp("late"), JournalLevel.EVENTS, SEGMENT_SIZE, 1 << 30, 1 << 30, None, ""
    )
    rig.buffer = empty_buffer(rig.arena.header.incarnation)
    rig.open_journal()
    rig.turn(rig.now_ns + MS)
    rig.end()
    return made(rig.plan.directory)


def changed_values(field: Field, was: int, place: tuple[int, int], of: Made, rng: random.Random) -> Iterator[int]:
    """Other values of a column, in a random order."""
    top = (1 << 8 * field.storage.size) - 1
    values = {was + 1, was - 1, was ^ (1 << rng.randrange(8 * field.storage.size)), 0, top}
    if field.name.endswith("_ns"):
        values |= {was + 50 * MS, was - 50 * MS}
    if isinstance(field.shown, TextKind):
        texts = of.texts.get((place[0], field.shown), {})
        values = {0, top, *(record for record, text in texts.items() if text != texts.get(was))}
    found = sorted(value for value in values if 0 <= value <= top and value != was)
    rng.shuffle(found)
    yield from found


def is_found(of: Made, place: tuple[int, int], field: Field, value: int) -> bool:
    """Whether the audit finds the change of a column in a copy."""
    segment, record = place
    path = segment_path(of.directory, segment)
    whole = path.read_bytes()
    block, row = divmod(record, BLOCK_ROWS)
    at = (1 + block) * BLOCK_SIZE + (1 + row) * ROW_SIZE + field.offset
    size = field.storage.size
    content = bytearray(whole)
    if field.storage.count > 1:
        content[at + value % size] ^= 1 + value % 255
    else:
        content[at : at + size] = value.to_bytes(size, "little")
    path.write_bytes(with_right_sums(content))
    try:
        return bool(audit_journal(of.directory).wrong)
    except JournalError:
        return True
    finally:
        path.write_bytes(whole)


def value_at(of: Made, place: tuple[int, int], field: Field) -> int:
    block, row = divmod(place[1], BLOCK_ROWS)
    at = (1 + block) * BLOCK_SIZE + (1 + row) * ROW_SIZE + field.offset
    with segment_path(of.directory, place[0]).open("rb") as file:
        file.seek(at)
        return int.from_bytes(file.read(field.storage.size), "little")


KINDS = [kind for kind in ROWS if kind is not RowKind.GAP]


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS, ids=[kind.name.lower() for kind in KINDS])
def test_a_change_of_each_column_is_found(kind: RowKind, journal: Made, late: Made, tmp_path: Path, seed: int) -> None:
    of = late if kind is RowKind.WATERMARK else journal
    copy = of._replace(directory=Path(shutil.copytree(of.directory, tmp_path / "copy")))
    rng = random.Random(seed)
    places = rng.sample(of.places[kind], min(ROWS_TRIED, len(of.places[kind])))
    missed = []
    for field in fields(ROWS[kind]):
        tried = []
        for place in places:
            value = next(changed_values(field, value_at(of, place, field), place, of, rng), None)
            if value is not None:
                tried.append((place, value, is_found(copy, place, field, value)))
        lost = [(place, value) for place, value, found in tried if not found]
        allowed = may_be_missed(kind, field)
        if allowed < 1 and (len(lost) > int(len(tried) * allowed) or not tried):
            missed.append(f"{field.name}: {len(lost)} of {len(tried)}: {lost[:2]}")
    assert not missed, f"seed={seed}: {kind.name}: " + "; ".join(missed)


@pytest.mark.long
def test_a_limited_event_of_another_kind_ends_no_audit(journal: Made, tmp_path: Path) -> None:
    copy = journal._replace(directory=Path(shutil.copytree(journal.directory, tmp_path / "copy")))
    columns = {field.name: field for field in fields(ROWS[RowKind.EVENT])}
    limited = [at for at in journal.places[RowKind.EVENT] if value_at(journal, at, columns["limit"])]
    for place in limited:
        for kind in EventKind:
            is_found(copy, place, columns["event_kind"], kind)
    assert limited


def test_a_changed_generation_in_any_row_of_a_client_is_found(journal: Made, tmp_path: Path) -> None:
    """Another generation means another client in the slot. It is found even if neither client has a later row."""
    copy = journal._replace(directory=Path(shutil.copytree(journal.directory, tmp_path / "copy")))
    (generation,) = (field for field in fields(ROWS[RowKind.CLIENT]) if field.name == "client_generation")
    places = journal.places[RowKind.CLIENT]
    missed = [at for at in places if not is_found(copy, at, generation, value_at(journal, at, generation) + 1)]
    assert places and not missed


def test_each_column_says_how_it_is_checked() -> None:
    for kind in ROWS:
        for field in fields(ROWS[kind]):
            assert not is_shown(field) or may_be_missed(kind, field) in MISSED.values(), f"{kind.name}.{field.name}"
