"""Children of the workers of bench/suites/storm.py, and their records. A child's last act returns before it is applied.

A child's record has the time of its act, and its stderr. A child does not flush: the end of the process does that.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import timerd as td
from bench.attack.storm_calls import GROUP
from bench.attack.storm_notes import INNOCENT, Verdict
from timerd_shm.declare.errors import InvalidValueError
from timerd_shm.declare.journal import RowKind
from timerd_shm.read.journal_reader import JournalReader

RECORDS = "children"
METHODS = {"fork": 18, "forkserver": 1, "spawn": 1}  # with weights: the last two start an interpreter, so they are rare
VERBS = ("fire", "advance", "register", "call_later")
LIVING_MAX = 8  # children of one worker that live at the same time
KEY = "child/"
SAID = re.compile(r"the process ends, and .* lost|all that follows to .* is lost as well")
LATE_S = 0.5  # an act up to this time after a start of the daemon may still be lost


def configure() -> None:
    """Have `td.client()` be a member of the group, unless it was called before."""
    with suppress(InvalidValueError):
        td.configure(group=GROUP)


def bear(rng: random.Random, directory: Path, name: str) -> None:
    """Start a child."""
    if len(multiprocessing.active_children()) >= LIVING_MAX:
        return
    method = rng.choices(tuple(METHODS), tuple(METHODS.values()))[0]
    context: Any = multiprocessing.get_context(method)
    verb = rng.choice(VERBS)
    context.Process(target=act, args=(str(directory / RECORDS / f"{verb}.{method}.{name}"), verb, name)).start()


def act(path: str, verb: str, name: str) -> None:
    """The steps of a child."""
    record = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.dup2(record, 2)
    os.close(record)
    configure()
    os.write(2, f"{time.monotonic()}\n".encode())
    key = KEY + name
    match verb:
        case "fire":
            td.client().fire(key, value=b"last")
        case "advance":
            td.client().advance(key, 7)
        case "register":
            td.client().register(key, timeout=random.random(), orphans="keep")
        case "call_later":
            id = id_of(name)
            td.client().call_later(INNOCENT, random.random(), f"run {id}".encode(), id=id)


def id_of(name: str) -> str:
    """The id of a child's call."""
    return f"{INNOCENT}/{KEY}{name}"


class Child(NamedTuple):
    """A child, by its record. Times are those of time.monotonic()."""

    name: str
    verb: str
    method: str
    acted: float
    ended: float  # approximately
    lost: bool  # its stderr reports a loss
    else_said: str


def read_children(directory: Path) -> Iterator[Child]:
    """All children that have acted."""
    ahead = time.time() - time.monotonic()
    for path in sorted((directory / RECORDS).iterdir()):
        verb, method, name = path.name.split(".")
        acted, *lines = path.read_text().splitlines()
        said = [line for line in lines if SAID.search(line)]
        other = " / ".join(line for line in lines if line not in said)
        yield Child(name, verb, method, float(acted), path.stat().st_mtime - ahead, bool(said), other)


def journaled(journal: Path) -> set[str]:
    """The keys of children for which the journal has an event or a registration."""
    found: set[str] = set()
    with JournalReader(journal) as reader:
        for row in reader.rows():
            if row.record.kind in (RowKind.EVENT, RowKind.KEY):
                text = reader.text(row.record.key) or b""
                if text.startswith(KEY.encode()):
                    found.add(text.decode())
    return found


def judge_children(children: Sequence[Child], keys: set[str], away: Sequence[tuple[float, float]]) -> Verdict:
    """Find faults of the children.

    `keys` are the children's keys in the journal. `away` has the begin and end of each time in which the daemon did not
    run. Calls of children are judged in storm_notes.py.
    """
    faults, counts = [], Counter[str]()
    for child in children:
        who = f"child {child.name} ({child.verb}, {child.method})"
        counts[f"acted, {child.verb}, {child.method}"] += 1
        counts["said lost"] += child.lost
        is_found = KEY + child.name in keys
        counts["said lost, and found"] += child.lost and is_found
        if child.else_said:
            faults.append(f"{who} has written: {child.else_said[:300]}")
        if not (child.lost or is_found or child.verb == "call_later"):
            faults.append(f"{who} has reported no loss, and the journal has no row of its act")
        if child.lost and not any(child.acted <= end + LATE_S and child.ended >= begin for begin, end in away):
            faults.append(f"{who} has reported a loss, though the daemon was running")
    return Verdict(faults, counts)
