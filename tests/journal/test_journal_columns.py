"""Each column of each kind of row, changed under a right checksum: the audit finds it, or it is listed here why not.

docs/audit.md says how each column is checked; this module holds that page.
"""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from support.oracle.journalplay import JournaledPlay
from support.real.trees import ROOT
from support.rig.damage import with_right_sums
from support.rig.harness import MS, Rig, S, advance
from support.rig.journals import SEGMENT_SIZE, JournaledRig, empty_buffer
from timerd.journal.files import JournalPlan
from timerd_client.audit.journal import audit_journal
from timerd_shm.declare.fields import Field, fields
from timerd_shm.declare.journal import BLOCK_ROWS, BLOCK_SIZE, ROW_SIZE, ROWS, JournalLevel, RowKind, TextKind
from timerd_shm.declare.states import EventKind
from timerd_shm.read.journal_reader import JournalReader
from timerd_shm.read.segment import JournalError, Offset, segment_path

OF_REGISTRATIONS = (RowKind.REGISTER, RowKind.REGISTERED, RowKind.KEY)
STEPS = 90
ROWS_TRIED = 10
SEED = 6
TEXTS = {
    "key": TextKind.KEY,
    "owner": TextKind.CLIENT,
    "group": TextKind.GROUP,
    "purgatory": TextKind.PURGATORY,
    "id": TextKind.ID,
}
# Columns that the journal shows only by their effects: a change is found if it changes an outcome or another row.
BY_EFFECT = {
    (RowKind.TEXT, "length"): "a text is what the caller gave; it shows where it stands twice, or another row has it",
    (RowKind.TEXT, "text"): "the same",
    (RowKind.CONTINUED, "text"): "the same",
    (RowKind.OUTCOME, "flags"): "whether there was room for a value depends on what was acknowledged",
    (RowKind.REGISTER, "condition"): "the caller's",
    (RowKind.REGISTER, "needed"): "the caller's, from 1 to the number of keys",
    (RowKind.REGISTER, "command_flags"): "the caller's; those of ids, groups and policies are compared",
    (RowKind.REGISTER, "orphans"): "the caller's, with ORPHANS_GIVEN",
    (RowKind.REGISTER, "command"): "the client's; it only rises",
    (RowKind.REGISTER, "mark_sequence"): "the caller's",
    (RowKind.REGISTER, "mark_command"): "the caller's",
    (RowKind.REGISTER, "flags"): "SNAPSHOT hides a registration, and then its outcome has none",
    (RowKind.REGISTER, "registration"): "behind a start it is bounded by the newest before; then one follows the other",
    (RowKind.REGISTER, "deadline_ns"): "the outcome has it as well, unless the operation was rescheduled",
    (RowKind.REGISTERED, "total"): "the caller's, under TOTAL",
    (RowKind.KEY, "key_kind"): "the caller's",
    (RowKind.KEY, "key"): "the caller's; the outcome has one of the keys",
    (RowKind.KEY, "target"): "the caller's, of a watermark",
    (RowKind.EVENT, "event_kind"): "the caller's",
    (RowKind.EVENT, "flags"): "WANTS_ANSWER changes nothing",
    (RowKind.EVENT, "key"): "the caller's",
    (RowKind.EVENT, "amount"): "the caller's",
    (RowKind.EVENT, "command"): "the client's; it only rises",
    (RowKind.EVENT, "limit"): "the caller's, of a limited event",
    (RowKind.EVENT, "purgatory"): "the caller's",
    (RowKind.ACTION, "command_kind"): "the caller's",
    (RowKind.ACTION, "flags"): "WANTS_ANSWER changes nothing",
    (RowKind.ACTION, "orphans"): "the caller's, of SET_ORPHANS",
    (RowKind.ACTION, "deadline_ns"): "the caller's, of RESCHEDULE: the outcome has the last one",
    (RowKind.ACTION, "command"): "the client's; it only rises",
    (RowKind.CLIENT, "state"): "SILENT may be LIVE: deliveries show it",
    (RowKind.CLIENT, "orphans"): "the caller's; all rows of a client have the same",
    (RowKind.CLIENT, "flags"): "LISTENS is the caller's: deliveries show it",
    (RowKind.CLIENT, "pid"): "the client's; all rows of a client have the same",
    (RowKind.CLIENT, "group"): "the client's; all rows of a client have the same",
    (RowKind.GROUP, "command"): "the client's; it only rises",
    (RowKind.TURN, "effective_ns"): "in a gap without an event or a registration nothing else has it",
    (RowKind.SEGMENT, "monotonic_ns"): "bounded by the rows around it; the first one has none before it",
    (RowKind.SEGMENT, "kept_ns"): "it shows where it ends something",
}
# Columns that are computed, but that may have several right values: at most half of the changes are missed.
NEARLY = {
    (RowKind.OUTCOME, "sequence"): "with an event in delivery that came too late, two values are possible",
    (RowKind.CLIENT, "client"): "a slot that no other row has is as good as any other",
    (RowKind.TURN, "now_ns"): "where nothing settles, any time between the turns around is as good",
}
# Columns that nothing else in the journal depends on.
FREE = {
    (RowKind.ANCHOR, "wall_ns"): "the wall clock may be set to any time",
    (RowKind.REGISTERED, "payload_length"): "the caller's; bounded by the longest payload",
    (RowKind.EVENT, "value_length"): "the caller's; bounded by the longest value",
    (RowKind.WATERMARK, "key"): "what was there before the journal",
    (RowKind.WATERMARK, "watermark"): "the same",
    (RowKind.WATERMARK, "purgatory"): "the same",
}


class Made(NamedTuple):
    """A sound journal that has ended in order."""

    directory: Path
    places: dict[RowKind, list[tuple[int, int]]]  # (segment, record) of the rows of each kind
    texts: dict[tuple[int, TextKind], dict[int, bytes | None]]  # the texts of each kind in a segment, by record


def made(directory: Path) -> Made:
    """A sound journal, with the places of its rows; of registrations, those whose operation has settled."""
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
    """A program with owners that die, groups, ids, grants, restarts, and every kind of row but GAP and WATERMARK."""
    directory = tmp_path_factory.mktemp("journal")
    play = JournaledPlay(SEED, directory)
    for step in range(STEPS):
        play.step()
        play.compare_all()
        if step == STEPS // 2:
            play.rig.restart()
    rig = play.rig
    assert isinstance(rig, JournaledRig)
    rig.turn(rig.now_ns + 11 * S)  # an anchor
    rig.end()
    return made(directory)


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A journal that began when a key had a watermark."""
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
    if kind := TEXTS.get(field.name):
        texts = of.texts.get((place[0], kind), {})
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
        if (kind, field.name) in FREE or (kind, field.name) in BY_EFFECT:
            continue
        allowed = len(tried) // 2 if (kind, field.name) in NEARLY else 0
        if len(lost) > allowed or not tried:
            missed.append(f"{field.name}: {len(lost)} of {len(tried)}: {lost[:2]}")
    assert not missed, f"seed={seed}: {kind.name}: " + "; ".join(missed)


def test_a_limited_event_of_another_kind_ends_no_audit(journal: Made, tmp_path: Path) -> None:
    copy = journal._replace(directory=Path(shutil.copytree(journal.directory, tmp_path / "copy")))
    columns = {field.name: field for field in fields(ROWS[RowKind.EVENT])}
    limited = [at for at in journal.places[RowKind.EVENT] if value_at(journal, at, columns["limit"])]
    for place in limited:
        for kind in EventKind:
            is_found(copy, place, columns["event_kind"], kind)
    assert limited


def test_a_client_that_begins_in_the_slot_of_another_one_is_found(journal: Made, tmp_path: Path) -> None:
    """In each row of a client, also in one behind which neither of the two does anything."""
    copy = journal._replace(directory=Path(shutil.copytree(journal.directory, tmp_path / "copy")))
    (generation,) = (field for field in fields(ROWS[RowKind.CLIENT]) if field.name == "client_generation")
    places = journal.places[RowKind.CLIENT]
    missed = [at for at in places if not is_found(copy, at, generation, value_at(journal, at, generation) + 1)]
    assert places and not missed


def test_the_page_says_of_each_column_how_it_is_checked() -> None:
    page = (ROOT / "docs" / "audit.md").read_text()
    known = {(kind, field.name) for kind in ROWS for field in fields(ROWS[kind])}
    assert known >= BY_EFFECT.keys() | FREE.keys() | NEARLY.keys() and not BY_EFFECT.keys() & FREE.keys()
    for kind in ROWS:
        if kind is RowKind.CONTINUED:
            continue
        section = page.partition(f"\n### {kind.name}\n")[2].partition("\n### ")[0]
        named = set(re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in section.splitlines() if "|" in line)))
        wanted = {field.name for field in fields(ROWS[kind]) if not field.name.startswith(("reserved", "rest", "kind"))}
        assert named == wanted, f"{kind.name}: {named ^ wanted}"
