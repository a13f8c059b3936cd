"""The journal of batches (many commands in one transaction): a crash inside one, and a buffer that one fills."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType

import pytest

import timerd.core
from support.oracle.journalplay import no_row_is_lost_or_written_twice
from support.rig.commands import Key, Register
from support.rig.crashes import record
from support.rig.faults import core_faults
from support.rig.harness import BUDGET, Rig, S, cancel, fire
from support.rig.journals import BUFFER_ROWS, JournaledRig
from support.rig.situations import SITUATIONS
from timerd_shm.declare.journal import RowKind
from timerd_shm.read.journal_reader import Row

RUN = 16
DROPPED = "rows were dropped here: no later row can be audited"
FORM = (
    RowKind.SEGMENT,
    RowKind.TEXT,
    RowKind.CONTINUED,
    RowKind.ANCHOR,
    RowKind.TURN,
)  # rows that say nothing of operations, events or clients


def watch(number: int) -> Register:
    return Register((Key(b"%d" % number),), timeout_ns=S)


def named(row: Row) -> tuple[object, ...]:
    """The content of a row without its texts, because the numbers of texts differ from journal to journal."""
    record = row.record
    names = ("operation", "sequence", "command", "ordinal", "outcome", "state", "settled_ns", "command_kind")
    return (record.kind, *(getattr(record, name, None) for name in names))


def of_operations(rows: list[Row]) -> set[tuple[int, ...]]:
    """The rows of operations, by index.

    After a crash the generation may differ, and a start writes the rows of pending operations again.
    """
    return {
        (record.kind, record.operation & 0xFFFF_FFFF, getattr(record, "ordinal", 0))
        for record in (row.record for row in rows)
        if record.kind in (RowKind.REGISTER, RowKind.REGISTERED, RowKind.KEY, RowKind.OUTCOME)
    }


def missing(rows: list[Row], whole: list[Row]) -> int:
    """How many rows of the journal `whole` are missing in `rows`. Each GAP row says how many it stands for."""
    known = [named(row) for row in whole if row.record.kind not in FORM]
    at = gaps = 0
    for row in rows:
        if row.record.kind == RowKind.GAP:
            at += row.record.rows
            gaps += row.record.rows
        elif row.record.kind not in FORM:
            assert named(row) == known[at], f"row {at}"
            at += 1
    assert at == len(known)
    return gaps


def play(rig: JournaledRig, before: int, *, stopped: bool) -> None:
    """Batches of registrations, events, cancels and expiries. If `stopped`, the writer stands still in the middle."""
    client = rig.client()
    rig.do(client, *(watch(1_000 + number) for number in range(before)))
    if stopped:
        rig.tend = lambda: None  # type: ignore[method-assign]
    first = 0
    for turn in range(20):
        first = rig.do(client, *(watch(turn * RUN + number) for number in range(RUN)))
    rig.do(client, *(fire(b"%d" % number) for number in range(2 * RUN)))
    rig.do(client, *(cancel(first + number) for number in range(RUN)))
    rig.turn(rig.now_ns + 2 * S)
    rig.acknowledge(client)
    if stopped:
        del rig.tend
    for turn in range(4):
        rig.do(client, *(watch(turn * RUN + number) for number in range(RUN)))
        rig.turn(rig.now_ns + 2 * S)
        rig.acknowledge(client)
    rig.turn()


@pytest.mark.parametrize("before", range(0, 18, 3))
def test_a_gap_counts_exactly_the_missing_rows_if_the_buffer_fills_in_the_middle_of_a_batch(
    tmp_path: Path, before: int
) -> None:
    whole = JournaledRig(tmp_path / "whole", capacity=1_024)
    play(whole, before, stopped=False)
    assert whole.core.journal_dropped == 0
    rig = JournaledRig(tmp_path / "short", capacity=1_024)
    play(rig, before, stopped=True)
    gap = missing(rig.rows(), whole.rows())
    assert gap == rig.core.journal_dropped == rig.arena.count("journal_rows_dropped") > 0
    found = rig.audit()
    assert [finding.what.partition(" ")[2] for finding in found.wrong] == [DROPPED]
    complete = whole.audit()
    assert not complete.wrong and complete.outcomes > found.outcomes


@pytest.mark.skipif(core_faults is None, reason="the build for tests was not made (TIMERD_FAULTS)")
@pytest.mark.parametrize("name", [name for name in SITUATIONS if name.startswith("a batch of")])
def test_a_crash_at_every_ordering_point_of_a_batch_loses_no_row_and_writes_none_twice(
    tmp_path: Path, name: str
) -> None:
    no_row_is_lost_or_written_twice(tmp_path, name, points=1_000)


@pytest.mark.skipif(core_faults is None, reason="the build for tests was not made (TIMERD_FAULTS)")
@pytest.mark.parametrize("before", (14, 15, 16))
def test_after_a_crash_in_a_batch_that_a_full_buffer_drops_a_gap_counts_the_missing_rows(
    tmp_path: Path, before: int
) -> None:
    def prepared(directory: Path, buffer_rows: int, core: ModuleType) -> tuple[JournaledRig, bytes]:
        rig = JournaledRig(directory, buffer_rows=buffer_rows, capacity=1_024, core=core)
        client = rig.client()
        rig.tend = lambda: None  # type: ignore[method-assign]
        for turn in range(before):
            rig.do(client, *(watch(turn * RUN + number) for number in range(RUN)))
        frame = client.frame([(client.issue(watch(5_000 + number)), watch(5_000 + number)) for number in range(RUN)])
        del rig.tend
        return rig, frame

    def act(rig: Rig, frame: bytes) -> None:
        rig.core.begin_turn(rig.now_ns)
        assert rig.core.apply(0, frame, rig.now_ns, BUDGET) == rig.module.APPLIED
        rig.core.end_turn(rig.now_ns)

    def end(rig: JournaledRig) -> list[Row]:
        rig.tend()
        for _ in range(3):
            rig.turn(rig.now_ns + 2 * S)
        return rig.rows()

    whole, frame = prepared(tmp_path / "whole", 4 * BUFFER_ROWS, timerd.core)
    act(whole, frame)
    known = of_operations(end(whole))
    rig, frame = prepared(tmp_path / "short", BUFFER_ROWS, core_faults)
    copies = record(rig, lambda _: act(rig, frame))
    for point, copy in enumerate(copies[:: len(copies) // 12 + 1]):
        files = tmp_path / str(point)
        shutil.copytree(tmp_path / "short", files)
        again = rig.clone(copy, files)
        while again.core.resume(again.now_ns, BUDGET):
            pass
        act(again, frame)
        found = end(again)
        more = sum(row.record.rows for row in found if row.record.kind == RowKind.GAP) - len(
            known - of_operations(found)
        )
        assert more == 0, f"point {point}: the GAP has {more} rows too many"
        wrong = again.audit().wrong
        assert all(finding.what.partition(" ")[2] == DROPPED for finding in wrong), wrong
        again.drop_journal()
        again.core.release()
