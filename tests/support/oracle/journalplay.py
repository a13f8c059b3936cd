"""Random programs on a core that writes a journal, and situations with a crash while the journal is written."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import timerd.core
from support.oracle.play import Play
from support.rig.crashes import record
from support.rig.faults import core_faults
from support.rig.harness import BUDGET, Rig
from support.rig.journals import JournaledRig
from support.rig.situations import SITUATIONS
from timerd_shm.declare.journal import RowKind
from timerd_shm.read.journal_reader import Row

TURNS = 120
POINTS_TRIED = 8  # at most this number of a situation's crash points, evenly spread; test_redo tries all, without files


class JournaledPlay(Play):
    """A random program on a core that writes a journal."""

    def __init__(self, seed: int, directory: Path, core: ModuleType = timerd.core, **more: Any) -> None:
        self.directory, self.more = directory, more
        super().__init__(seed, core)

    def make_rig(self, **knobs: Any) -> Rig:
        return JournaledRig(self.directory, **self.more, **knobs)


def play(seed: int, directory: Path, core: ModuleType = timerd.core, **more: Any) -> JournaledPlay:
    made = JournaledPlay(seed, directory, core, **more)
    for turn in range(TURNS):
        try:
            made.step()
            made.compare_all()
        except AssertionError as error:
            raise AssertionError(f"seed={seed}, turn={turn}: {error}") from error
    made.rig.turn(only=[])
    assert made.rig.core.journal_dropped == 0
    return made


def facts(rows: list[Row]) -> list[tuple[object, ...]]:
    """The facts about operations and events in the rows, without positions. An operation is (slot, command number)."""
    found: list[tuple[object, ...]] = []
    names = {}
    for row, rest in pairwise([*rows, *rows[:1]]):
        if row.record.kind == RowKind.REGISTER:
            names[row.record.operation] = (rest.record.client, row.record.command)
    for row in rows:
        record = row.record
        name = names.get(getattr(record, "operation", 0))
        if record.kind == RowKind.OUTCOME:
            found.append(("settled", name, record.outcome, record.settled_key, record.sequence, record.settled_ns))
        elif record.kind == RowKind.REGISTER:
            found.append(("registered", name, record.mark_sequence, record.deadline_ns))
        elif record.kind == RowKind.EVENT:
            found.append(("event", record.sequence, record.amount))
        elif record.kind == RowKind.ACTION:
            found.append(("action", name, record.command_kind))
        elif record.kind == RowKind.GROUP:
            found.append(("group", name, record.step, record.deliveries, record.client))
        elif record.kind == RowKind.KEY:
            found.append(("key", name, record.ordinal, record.target))
        elif record.kind == RowKind.CLIENT:
            found.append(("client", record.client, record.state))
    return found


def no_row_is_lost_or_written_twice(directory: Path, name: str, points: int = POINTS_TRIED) -> None:
    """Play a situation, and copy the memory at its crash points. A new daemon goes on from each copy.

    The journal of the new daemon equals that of a run without a crash.
    """
    rig = JournaledRig(directory / "whole", core=core_faults)
    act = SITUATIONS[name](rig)
    rig.tend()
    shutil.copytree(directory / "whole", directory / "before")
    copies = record(rig, act)
    rig.tend()
    whole = facts(rig.rows())
    for point, copy in enumerate(copies[:: len(copies) // points + 1]):
        files = directory / str(point)
        shutil.copytree(directory / "before", files)
        again = rig.clone(copy, files)
        while again.core.resume(again.now_ns, BUDGET):
            pass
        if point % 2:
            again.tend()
        act(again)
        again.tend()
        assert facts(again.rows()) == whole, f"{name}, point {point}"
        again.drop_journal()
        again.core.release()
        shutil.rmtree(files)
