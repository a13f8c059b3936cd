"""The notes that workers of bench/suites/storm.py write about calls, and the faults that the notes show.

    asked ID       the daemon has accepted this call       starts ID   its handler begins
    cancels ID     a worker is about to cancel it          again ID    the handler returns, and asks for a retry
    cancelled ID   it was cancelled in time                done ID     the handler returns, and the call is over
    kept ID        the cancel came too late                fails ID    its on_failure begins

The id of a call begins with the name of its handler. A worker that was stopped for longer than its lease has lost its
calls, and does not know it yet. If it starts such a call when it goes on, the daemon does not count that start.

The end of a process counts for each call that had begun there. So if two killers run in one process, its end counts for
both. An on_failure may also be given up because of a killer beside it. This is counted, and is no fault.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

NOTES = "notes"
INNOCENT = "innocent"
KILLERS = {"killer2": 2, "killer3": 3}  # handlers that end their process, each with its `deliveries`
TOGETHER_MAX = 2  # starts of a call beside others; in later starts it is alone in its process


class Note(NamedTuple):
    """A worker's note about a call."""

    worker: str
    verb: str
    id: str


class Notes:
    """The notes of one worker. A line is whole or missing: the worker may be killed at any moment."""

    def __init__(self, directory: Path, worker: str) -> None:
        self._worker = worker
        self._file = os.open(directory / NOTES, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def add(self, verb: str, id: str) -> None:
        """Write a note. When this returns, the note outlives the process."""
        os.write(self._file, f"{self._worker} {verb} {id}\n".encode())


def read_notes(directory: Path) -> list[Note]:
    """All notes, in the order in which they were written."""
    return [Note(*line.split()) for line in (directory / NOTES).read_text().splitlines()]


def name_of(id: str) -> str:
    """The handler of a call."""
    return id.partition("/")[0]


@dataclass
class Call:
    """All that was noted about a call."""

    asked: bool = False
    cancels: bool = False
    kept: bool = False
    cancelled: bool = False
    starts: int = 0  # of this attempt
    fails: int = 0
    failed: bool = False  # its on_failure has begun, in whatever worker
    done: int = 0

    @property
    def must_end(self) -> bool:
        """Whether the daemon accepted the call, and certainly did not cancel it."""
        return self.asked and (self.kept if self.cancels else True)


@dataclass
class Verdict:
    """The faults that were found, and the counts."""

    faults: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


def judge_notes(
    notes: Iterable[Note], asked: Iterable[str], letters: Iterable[str], silent: Set[str], ended: Mapping[str, int]
) -> Verdict:
    """Find faults of the calls.

    `asked` are ids of calls that other processes have made, and `letters` the ids of the dead letters. `silent` are
    workers that were stopped for longer than their lease. `ended` are workers that ended by themselves, with their
    status.
    """
    found = Verdict()
    calls: defaultdict[str, Call] = defaultdict(Call)
    running: defaultdict[str, set[str]] = defaultdict(set)  # calls that run, by worker
    alone: dict[str, str] = {}  # calls that run alone, by worker
    killing: set[str] = set()  # workers in which a killer has begun
    for id in asked:
        calls[id].asked = True
    for worker, verb, id in notes:
        call, name, counted = calls[id], name_of(id), worker not in silent
        found.counts[f"{verb}, {name}"] += 1
        match verb:
            case "asked":
                call.asked = True
            case "cancels":
                call.cancels = True
            case "kept":
                call.kept = True
            case "cancelled":
                call.cancelled = True
            case "starts":
                if call.cancelled and counted:
                    found.faults.append(f"{id} was started in worker {worker} after it was cancelled")
                if name in KILLERS:
                    killing.add(worker)
                if counted:
                    call.starts += 1
                    _judge_alone(found, alone.get(worker), worker, [id])
                    if call.starts > TOGETHER_MAX:
                        found.counts[f"starts alone, {name}"] += 1
                        _judge_alone(found, id, worker, running[worker])
                        alone[worker] = id
                running[worker].add(id)
            case "again" | "done":
                running[worker].discard(id)
                if alone.get(worker) == id:
                    del alone[worker]
                call.starts = 0
                call.done += verb == "done"
            case "fails":
                killing.add(worker)
                call.failed = True
                call.fails += counted
                if counted:
                    _judge_alone(found, alone.get(worker), worker, [id])
        if not counted:
            found.counts["notes of workers that were silent"] += 1
    ended_there = [name_of(id) for ids in running.values() for id in ids]
    found.counts["innocents that were ended"] = ended_there.count(INNOCENT)
    found.counts["innocents that have run twice"] = sum(call.done > 1 for call in calls.values())
    _judge_ends(found, calls, Counter(letters))
    for worker, status in ended.items():
        found.counts["workers ended by a handler"] += 1
        if worker not in killing:
            found.faults.append(f"worker {worker} has ended with {status}, and no killer had begun in it")
    return found


def _judge_alone(found: Verdict, id: str | None, worker: str, others: Iterable[str]) -> None:
    if id is not None:
        found.faults += [f"{id} is to be alone in worker {worker}: {other} runs" for other in others]


def _judge_ends(found: Verdict, calls: Mapping[str, Call], letters: Counter[str]) -> None:
    """Find accepted calls that never ended, calls that began too often, and dead letters that should not be there."""
    for id, call in calls.items():
        name = name_of(id)
        found.counts[f"calls, {name}"] += call.asked
        if (most := KILLERS.get(name)) is None:
            if call.must_end and not call.done:
                found.faults.append(f"{id} was accepted, and has never run to its end")
            continue
        if call.starts > most or call.fails > most:
            found.faults.append(f"{id} was started {call.starts} times, its on_failure {call.fails} times")
        if call.must_end and not letters[id]:
            found.faults.append(f"{id} was accepted, and is no dead letter")
        found.counts["dead letters without on_failure"] += letters[id] > 0 and not call.failed
    for id, count in letters.items():
        found.counts["dead letters"] += count
        if name_of(id) not in KILLERS or count > 1 or calls[id].cancelled:
            found.faults.append(f"{id} is {count} dead letters, and noted as {calls[id]}")
