"""Findings of the audit in an incomplete journal: names instead of numbers and bytes, and causes before effects."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.real.shell import Run
from support.rig.arenas import SEED, Memory
from support.rig.commands import Key, Register
from support.rig.damage import with_right_sums
from support.rig.harness import INCARNATION, MS, S, fire
from support.rig.journals import SEGMENT_ROWS, JournaledRig, numbered, settle
from timerd_client.audit.audited import FOLLOWS, AuditedArena
from timerd_client.audit.journal import audit_journal
from timerd_client.audit.records import Finding
from timerd_client.audit.words import (
    counted,
    differing,
    name_of,
    rows_are,
    shown,
    shown_id,
    shown_key,
    shown_owner,
    shown_owners,
)
from timerd_shm.declare.fields import fields, offset_of
from timerd_shm.declare.journal import BLOCK_SIZE, ROW_SIZE, ROWS, JournalLevel, RowKind
from timerd_shm.declare.layout import Region
from timerd_shm.declare.states import Outcome
from timerd_shm.read.segment import JournalError, headers_of, segment_path, segments_of


def played(directory: Path, incarnation: int = INCARNATION) -> None:
    """Three segments of an ended daemon. Operations settle some turns after their registration."""
    rig = JournaledRig(directory, capacity=512, quota_operations=512, incarnation=incarnation)
    client = rig.client()
    for turn in range(15):
        for key in numbered(turn * 20, 20):
            client.issue(Register((Key(key),), timeout_ns=100 * S))
        rig.turn(rig.now_ns + MS)
        settle(rig, client, *numbered(10_000 + turn * 20, 10))
        if turn % 5 == 4:
            for key in numbered((turn - 4) * 20, 100):
                client.issue(fire(key))
            rig.turn(rig.now_ns + MS)
            rig.acknowledge(client)
    rig.end()


def change(path: Path, kind: RowKind, column: str, value: int) -> None:
    """Change a column of the first row of a kind, and make the checksums right again."""
    content = bytearray(path.read_bytes())
    for at in range(BLOCK_SIZE, len(content), ROW_SIZE):
        if at % BLOCK_SIZE and content[at] == kind:
            field = next(each for each in fields(ROWS[kind]) if each.name == column)
            at += offset_of(ROWS[kind], column)
            content[at : at + field.storage.size] = value.to_bytes(field.storage.size, "little")
            break
    path.write_bytes(with_right_sums(content, 1))


# words ----------------------------------------------------------------------------------------------------------------


def test_texts_keys_owners_and_codes_are_named_as_people_read_them() -> None:
    incarnation = bytes(range(16))
    assert shown(b"session/9") == shown("session/9") == "'session/9'"
    assert shown(b"\xff'") == '"\\\\xff\'"'
    assert (shown(None), shown_id(None), shown_id(b"\x01\xab"), shown_id("01ab")) == (
        *("none", "no id", "id 01ab", "id 01ab"),
    )
    assert shown_key((b"default", b"k")) == "'k' of purgatory 'default'"
    assert shown_owners([(incarnation + b"web-1", False), None]) == "client 'web-1' (00010203) or nobody"
    assert shown_owner((b"billing", True)) == "group 'billing'"
    assert shown_owner(("web-1", False)) == "client 'web-1'"
    assert shown_owner((None, False)) == "a text that cannot be read"
    assert (name_of(Outcome, 2), name_of(Outcome, 99)) == ("EXPIRED", "99")
    names, found = ("pid", "owner", "key"), (1, (incarnation + b"a", False), (b"p", b"k"))
    assert differing(names, found, (2, *found[1:])) == "pid is 1, and should be 2"
    assert differing(names, found, (1, None, (b"p", b"l"))) == (
        "owner is client 'a' (00010203), and should be None, "
        "key is 'k' of purgatory 'p', and should be 'l' of purgatory 'p'"
    )


def test_findings_show_neither_bytes_nor_numbers_of_outcomes(tmp_path: Path) -> None:
    played(tmp_path)
    segment_path(tmp_path, segments_of(tmp_path)[1]).unlink()
    told = [finding.what for finding in audit_journal(tmp_path).wrong]
    assert "it settles as COMPLETED, and no row that was read registers it" in told
    assert not [what for what in told if "b'" in what or "outcome 1" in what]


# causes ---------------------------------------------------------------------------------------------------------------


def test_the_cause_comes_first_and_what_follows_from_it_is_counted(tmp_path: Path) -> None:
    played(tmp_path)
    segment_path(tmp_path, 2).unlink()
    found = audit_journal(tmp_path)
    missing = f"rows {SEGMENT_ROWS} to {2 * SEGMENT_ROWS - 1} are in no segment (at 3:0)"
    assert found.wrong[0] == Finding(SEGMENT_ROWS, 0, missing)
    first, second, *lines = found.lines()
    assert (first, second) == (f"row {SEGMENT_ROWS}: {missing}", FOLLOWS)
    unknown = [each for each in found.wrong if "no row that was read registers it" in each.what]
    said = f"  {len(unknown)} operations, rows {unknown[0].row} to {unknown[-1].row}: {unknown[0].what} (operation "
    assert len(unknown) > 5 and any(line.startswith(said) for line in lines)
    assert len(lines) < 10 < len(found.wrong)
    assert all(found.arenas[0].follows(each) for each in found.wrong[1:])


def test_a_damaged_block_a_broken_header_and_a_file_of_zeros_come_first_as_well(tmp_path: Path) -> None:
    played(tmp_path)
    path = segment_path(tmp_path, 2)
    whole = path.read_bytes()
    content = bytearray(whole)
    content[4 * BLOCK_SIZE + 100] ^= 1
    path.write_bytes(content)
    assert "blocks 3 to 3 are damaged (at 2:189)" in audit_journal(tmp_path).lines()[0]
    content = bytearray(whole)
    content[40] ^= 1
    for broken, said in ((content, "the header of segment 2 is damaged"), (b"", "segment 2 has 0 bytes")):
        path.write_bytes(broken)
        first, second, third, *_ = audit_journal(tmp_path).lines()
        assert first.startswith(said), first
        assert "are in no segment (at 3:0)" in second
        assert third == FOLLOWS


def test_a_defect_before_the_cause_does_not_follow_from_it(tmp_path: Path) -> None:
    played(tmp_path)
    change(segment_path(tmp_path, 1), RowKind.OUTCOME, "error", 7)
    alone = audit_journal(tmp_path)
    assert alone.lines()[0].startswith("row ") and "error 7" in alone.lines()[0] and not alone.arenas[0].causes
    segment_path(tmp_path, 2).unlink()
    found = audit_journal(tmp_path)
    assert "are in no segment" in found.lines()[0]
    assert found.lines()[1:3] == [alone.lines()[0], FOLLOWS]
    assert not found.arenas[0].follows(alone.wrong[0])


def test_a_row_is_named_with_its_arena_if_the_journal_has_two(tmp_path: Path) -> None:
    for incarnation in (7, 8):
        played(tmp_path, incarnation=incarnation)
    assert not audit_journal(tmp_path).wrong
    segment_path(tmp_path, 5).unlink()
    for line in audit_journal(tmp_path).lines():
        assert line.startswith("arena 0000000000000008: ")


def test_a_journal_that_lacks_its_beginning_says_what_is_wrong_with_the_first_file(tmp_path: Path) -> None:
    played(tmp_path)
    path = segment_path(tmp_path, 1)
    path.write_bytes(path.read_bytes()[:10])
    with pytest.raises(JournalError, match=r"needs it from row 0: .* segment 1 has 10 bytes, less than its header"):
        audit_journal(tmp_path)


def test_findings_that_are_alike_are_one_line() -> None:
    alike = [Finding(7, 1, "its key is 'a'"), Finding(7, 2, "its key is 'b'")]
    others = [*alike, Finding(8, 0, "event 2 follows 1"), Finding(-1, 3, "should"), Finding(-1, 4, "should")]
    assert list(AuditedArena(1, others=others).lines()) == [
        "2 operations, row 7: for example, its key is 'a' (operation 0x1 first)",
        "row 8: event 2 follows 1",
        "2 operations, at the end: should (operation 0x3 first)",
    ]


def test_the_command_line_prints_causes_first_and_marks_them_in_json(tmp_path: Path, run: Run) -> None:
    played(tmp_path)
    segment_path(tmp_path, 2).unlink()
    status, out, _ = run("journal", "audit", "--directory", str(tmp_path))
    assert status == 1 and "are in no segment (at 3:0)" in out.splitlines()[0]
    _, out, _ = run("journal", "audit", "--directory", str(tmp_path), "--json")
    first, *others = json.loads(out)["findings"]
    assert (first["cause"], first["follows"], first["row"]) == (True, False, SEGMENT_ROWS)
    assert len(first["arena"]) == 16
    assert others and all(each["follows"] and not each["cause"] for each in others)


# several arenas, instances and levels ---------------------------------------------------------------------------------


def restart(rig: JournaledRig, level: JournalLevel = JournalLevel.EVENTS, instance: str = "test") -> None:
    """Start again on the arena of a daemon that has ended."""
    rig.core.release()
    rig.core = rig.module.Core(rig.memory, rig.now_ns, SEED)
    rig.plan = rig.plan._replace(level=level, instance=instance)
    rig.open_journal()
    rig.turn(rig.now_ns + MS)


def errors(rig: JournaledRig) -> list[str]:
    records = Memory(rig.memory).all_records(Region.ERRORS)
    return [record.message.rstrip(b"\0").decode() for record in records if record.count]


@pytest.mark.parametrize("turns", [0, 1, 8, 40])
def test_arenas_that_write_by_turns_into_one_directory_are_audited_each_by_itself(tmp_path: Path, turns: int) -> None:
    first = JournaledRig(tmp_path, capacity=512, quota_operations=512, incarnation=7)
    client = first.client()
    for turn in range(turns):
        settle(first, client, *numbered(turn * 20, 20))
    first.end()
    second = JournaledRig(tmp_path, incarnation=8)
    settle(second, second.client(), *numbered(0, 5))
    second.end()
    restart(first)
    settle(first, client, *numbered(10_000, 5))
    first.end()
    found = audit_journal(tmp_path, arena=first.arena.header)
    assert found.wrong == []
    assert [(arena.incarnation, arena.outcomes) for arena in found.arenas] == [(7, turns * 20 + 5), (8, 5)]
    assert not errors(first) and not errors(second), (
        "a second arena of the same instance and level, as after `timerctl destroy`, is reported as an error"
    )
    # Rows of arena 7 are missing before those of arena 8. The audit notices it at the next row of arena 7.
    if turns == 40:
        lost = next(each for each in headers_of(tmp_path) if each.incarnation == 8).sequence - 1
        segment_path(tmp_path, lost).unlink()
        assert "are in no segment" in audit_journal(tmp_path).lines()[0]


def test_a_directory_with_rows_of_another_instance_or_level_is_an_error_of_the_daemon(tmp_path: Path) -> None:
    rig = JournaledRig(tmp_path, level=JournalLevel.OUTCOMES)
    rig.end()
    first = segment_path(tmp_path, 1)
    remedy = ": give each instance and level a --journal directory of its own"
    restart(rig, JournalLevel.OUTCOMES)
    assert errors(rig) == []
    rig.end()
    restart(rig)
    assert errors(rig) == [f"{first} is of another level than events{remedy}"]
    rig.end()
    restart(rig, JournalLevel.OUTCOMES, "other")
    assert f"{first} is of instance 'test'{remedy}" in errors(rig)


def test_the_error_of_an_audit_that_another_instance_prevents_names_file_instance_and_remedy(tmp_path: Path) -> None:
    rig = JournaledRig(tmp_path)
    settle(rig, rig.client(), *numbered(0, 5))
    rig.end()
    restart(rig, JournalLevel.OUTCOMES, "other")
    rig.end()
    with pytest.raises(JournalError) as refused:
        audit_journal(tmp_path)
    said = str(refused.value)
    assert said.startswith(f"{segment_path(tmp_path, 2)}, which instance 'other' wrote, is of level outcomes")
    assert "copy those segments alone, and audit the copy with an open end: --open-end" in said
    mixed = "instance 'other' with level outcomes, instance 'test' with level events: give each a --journal directory"
    assert mixed in said
    segment_path(tmp_path, 2).unlink()
    assert not audit_journal(tmp_path, open_end=True).wrong, "the remedy that the error names does not help"
    late = JournaledRig(tmp_path / "elsewhere", capacity=512, quota_operations=512, incarnation=8)
    client = late.client()
    for turn in range(40):  # more rows than the buffer holds
        settle(late, client, *numbered(turn * 20, 20))
    late.end()
    late.plan = late.plan._replace(directory=tmp_path)
    restart(late, instance="late")
    late.end()
    with pytest.raises(JournalError) as refused:
        audit_journal(tmp_path)
    assert str(refused.value).startswith(f"{segment_path(tmp_path, 2)}, which instance 'late' wrote, begins with row ")
    assert "rows of instance 'late' with level events, instance 'test' with level events: give" in str(refused.value)


def test_a_segment_under_another_number_is_said_to_be_renamed(tmp_path: Path) -> None:
    played(tmp_path)
    segment_path(tmp_path, 2).rename(segment_path(tmp_path, 77))
    said = "segment 77 says that it is segment 2: the file was renamed"
    assert any(said in each.what for each in audit_journal(tmp_path).wrong)


def test_the_singular_is_used_for_one_thing() -> None:
    assert [counted(number, "segment") for number in (0, 1, 2_000)] == ["0 segments", "1 segment", "2,000 segments"]
    assert [rows_are(5, last) for last in (5, 9)] == ["row 5 is", "rows 5 to 9 are"]
