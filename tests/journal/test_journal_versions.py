"""Segments of an older version are read, and no row is appended to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.oracle.olderjournals import as_older
from support.rig.journals import JournaledRig, numbered, settle
from timerd_client.audit.journal import audit_journal
from timerd_shm.declare.journal import JOURNAL_VERSION, OLDER, RowKind, journal_fingerprint
from timerd_shm.read.journal_reader import JournalReader
from timerd_shm.read.segment import JournalError, segment_path, segments_of

VERSIONS = sorted(OLDER)


@pytest.fixture
def rig(tmp_path: Path) -> JournaledRig:
    rig = JournaledRig(tmp_path / "journal", capacity=512, quota_operations=512)
    client = rig.client()
    for turn in range(12):
        settle(rig, client, *numbered(turn * 20, 20))
    return rig


def test_the_older_versions_that_are_read_end_with_the_version_before_this_one() -> None:
    assert [version for version, _ in VERSIONS] == list(range(JOURNAL_VERSION - len(OLDER), JOURNAL_VERSION))
    assert (JOURNAL_VERSION, journal_fingerprint()) not in OLDER


@pytest.mark.parametrize("layout", VERSIONS)
def test_segments_of_an_older_version_are_read_without_the_fields_that_they_lack(
    rig: JournaledRig, layout: tuple[int, int]
) -> None:
    whole = list(rig.rows())
    rig.drop_journal()
    as_older(rig.plan.directory, layout)
    lacks = OLDER[layout]
    with JournalReader(rig.plan.directory) as reader:
        found = list(reader.rows())
        assert not reader.damage
    assert [(row.offset, row.number) for row in found] == [(row.offset, row.number) for row in whole]
    for new, old in zip(whole, found, strict=True):
        absent = lacks.fields.get(RowKind(new.record.kind), frozenset())
        assert old.record == new.record._replace(**dict.fromkeys(absent, 0))


@pytest.mark.parametrize("layout", VERSIONS)
def test_nothing_is_written_in_a_segment_of_an_older_version(rig: JournaledRig, layout: tuple[int, int]) -> None:
    as_older(rig.plan.directory, layout)
    older = {
        sequence: segment_path(rig.plan.directory, sequence).read_bytes()
        for sequence in segments_of(rig.plan.directory)
    }
    rig.restart()
    settle(rig, rig.client(), *numbered(1000, 20))
    rig.end()
    assert segments_of(rig.plan.directory)[-1] > max(older)
    for sequence, content in older.items():
        assert segment_path(rig.plan.directory, sequence).read_bytes().startswith(content.rstrip(b"\0"))
    with JournalReader(rig.plan.directory) as reader:
        keys = [reader.text(row.record.key) for row in reader.rows() if row.record.kind == RowKind.OUTCOME]
    assert len(keys) == len(set(keys)) == 260


@pytest.mark.parametrize("layout", VERSIONS)
def test_an_audit_refuses_segments_of_an_older_version(rig: JournaledRig, layout: tuple[int, int]) -> None:
    rig.end()
    as_older(rig.plan.directory, layout)
    with pytest.raises(
        JournalError, match=f"is of journal version {layout[0]} .*read it with the version that wrote it"
    ):
        audit_journal(rig.plan.directory)
