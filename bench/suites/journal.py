"""The journal: what it adds to an operation in the core, how fast its files are written, and how fast they are read.

    python bench/suites/journal.py [--rows 1M] [--repeat 5] [--directory DIR] [--short] [--json FILE]

The operations are those of the suite `core`. Each has a 12-byte key of its own, so an outcome makes two rows of the
journal: the name of the key, and the outcome. An insert and a completion are measured beside 10,000 pending operations,
in turns: without a journal, and at each of its two levels (*outcomes* and *events*). At the end of each frame the
frame's rows are freed, as if they had been written. Then the buffer is written to files in a new directory (under DIR,
if it is given), by the call that the daemon's thread makes. The files are read by chunks() and by rows(). All figures
of this paragraph are the best of the repeats: the cost of the code, not of a busy machine.

The last two tables show how long a turn takes, and how many rows were dropped. *turns*: 500 operations settle in each
millisecond, which is a million rows a second, with the journal's thread and without. *burst*: 200,000 operations expire
in one tick, with a buffer of 4 MiB and with one of 16 MiB.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
import zlib
from pathlib import Path

from bench.lib.common import Parser, Suite, amount, need_memory, run_suite
from bench.lib.core_rig import BATCH, S, fire, register
from bench.lib.core_rig import Rig as CoreRig
from timerd.clock import ManualClock
from timerd.journal.blocks import write_blocks
from timerd.journal.files import JournalFiles, JournalPlan
from timerd.journal.writer import Journal
from timerd_shm.declare.fields import size_of, struct_of, unpack
from timerd_shm.declare.journal import (
    BLOCK_ROWS,
    BLOCK_SIZE,
    BUFFER_HEADER_SIZE,
    BUFFER_MAGIC,
    JOURNAL_MAGIC,
    JOURNAL_VERSION,
    ROW_SIZE,
    BufferHeader,
    JournalLevel,
    SegmentHeader,
    journal_fingerprint,
)
from timerd_shm.declare.records import ArenaHeader
from timerd_shm.read.journal_reader import JournalReader
from timerd_shm.read.segment import HEADER_CRC, segment_path

BUFFER_ROWS = 1 << 16
SEGMENT_ROWS = 16_383 * BLOCK_ROWS


def empty_buffer(rows: int = BUFFER_ROWS) -> bytearray:
    buffer = bytearray(BUFFER_HEADER_SIZE + rows * ROW_SIZE)
    struct_of(BufferHeader).pack_into(buffer, 0, BUFFER_MAGIC, journal_fingerprint(), rows, 1)
    return buffer


def cost(level: JournalLevel) -> dict[str, float]:
    """Measure at one level: ns for an insert and for a completion, and rows for both together."""
    work = 40_000
    rig = CoreRig(10_000 + 2 * work)
    rig.apply(rig.frames(register(each, rig.now_ns, 3600 * S) for each in range(1, 10_001)))
    if level:
        rig.core.open_journal(empty_buffer(), level, SEGMENT_ROWS, 0, rig.now_ns)
        while rig.core.tend_journal(rig.core.journal_rows):
            pass
    before = rig.core.journal_rows
    first = rig.number
    steps = {
        "insert": rig.frames(register(each, rig.now_ns, 3600 * S) for each in range(first, first + work)),
        "complete": rig.frames(fire(each) for each in range(first, first + work)),
    }
    found: dict[str, float] = {}
    for name, frames in steps.items():
        spent = 0.0
        for frame in frames:
            spent += rig.apply([frame])
            if level:
                rig.core.tend_journal(rig.core.journal_rows)
        found[name] = spent / work * 1e9
        rig.acknowledge()
    found["rows"] = (rig.core.journal_rows - before) / work
    assert rig.core.journal_dropped == 0
    rig.close()
    return found


def write(directory: Path, rows: int) -> float:
    """Write a segment of `rows` rows, by writing the rows of a full buffer again and again. Returns seconds."""
    rig = CoreRig(BUFFER_ROWS)
    buffer = empty_buffer()
    rig.core.open_journal(buffer, JournalLevel.OUTCOMES, SEGMENT_ROWS, 0, rig.now_ns)
    count = BUFFER_ROWS // 2 - BATCH
    rig.apply(rig.frames(register(each, rig.now_ns, 3600 * S) for each in range(1, count + 1)))
    rig.apply(rig.frames(fire(each) for each in range(1, count + 1)))
    header = SegmentHeader(
        JOURNAL_MAGIC, 0, JOURNAL_VERSION, journal_fingerprint(), 1, 1, 0, 1, bytes(16), 0, 0, 0, 0, b"bench", b""
    )
    packed = struct_of(SegmentHeader).pack(*header)
    packed = struct_of(SegmentHeader).pack(*header._replace(crc=zlib.crc32(packed[HEADER_CRC:])))
    descriptor = os.open(segment_path(directory, 1), os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    os.posix_fallocate(descriptor, 0, (2 + rows // BLOCK_ROWS) * BLOCK_SIZE)
    os.pwrite(descriptor, packed, 0)
    step = 1_000 // BLOCK_ROWS * BLOCK_ROWS  # the rows of a millisecond, at a million a second
    began = time.perf_counter()
    for first in range(0, rows - step, step):
        write_blocks(buffer, first, first + step, descriptor, 0, 1)
    took = time.perf_counter() - began
    os.close(descriptor)
    rig.close()
    return took


def open_journal(rig: CoreRig, directory: Path, rows: int) -> Journal:
    """Open a journal of the rig's core. The journal's clock shows the rig's present time, and never moves."""
    header = unpack(ArenaHeader, rig.memory[: size_of(ArenaHeader)])
    plan = JournalPlan(directory, JournalLevel.OUTCOMES, 64 << 20, 1 << 40, 0, None, "bench")
    clock = ManualClock(rig.now_ns)
    files = JournalFiles(plan, clock, bytes(16))
    return Journal(rig.core, files, empty_buffer(rows), header, clock, buffered=True)


def burst(directory: Path, rows: int, count: int = 200_000) -> tuple[float, int]:
    """Let `count` operations expire in one tick. Returns ms of the longest turn, and the rows dropped."""
    rig = CoreRig(count)
    journal = open_journal(rig, directory, rows)
    journal.start()
    rig.apply(rig.frames(register(each, rig.now_ns, S) for each in range(1, count + 1)))
    rig.now_ns += 2 * S
    worst = 0.0
    while rig.count("pending"):
        began = time.perf_counter()
        rig.core.begin_turn(rig.now_ns)
        rig.core.advance(rig.now_ns, 65_536)
        journal.tend(rig.now_ns)
        rig.core.end_turn(rig.now_ns)
        worst = max(worst, (time.perf_counter() - began) * 1e3)
    dropped = rig.core.journal_dropped
    journal.close()
    rig.core.release()
    return worst, dropped


def pace(directory: Path | None, turns: int = 2_000, settle: int = 500) -> tuple[list[float], int]:
    """Register and complete `settle` operations in each turn of 1 ms. Returns ms of each turn, and the rows dropped."""
    rig = CoreRig(10_000 + settle)
    journal = None
    frames = []
    for _ in range(turns):
        frames += rig.frames(
            [register(each, rig.now_ns, 3600 * S) for each in range(rig.number, rig.number + settle)]
            + [fire(each) for each in range(rig.number, rig.number + settle)]
        )
    if directory is not None:
        journal = open_journal(rig, directory, BUFFER_ROWS)
        journal.start()
    took = []
    begin = time.perf_counter()
    for turn, frame in enumerate(frames):
        time.sleep(max(0.0, begin + turn * 0.001 - time.perf_counter()))
        began = time.perf_counter()
        rig.apply([frame])
        if journal is not None:
            journal.tend(rig.now_ns)
        took.append((time.perf_counter() - began) * 1e3)
        rig.acknowledge()
    dropped = rig.core.journal_dropped
    assert rig.count("completed") == turns * settle
    if journal is not None:
        journal.close()
    rig.core.release()
    return took, dropped


def play(suite: Suite) -> None:
    args = suite.args
    need_memory(args.rows * ROW_SIZE, f"{args.rows:,} rows", "ask for fewer (--rows)")
    runs: dict[JournalLevel, list[dict[str, float]]] = {level: [] for level in JournalLevel}
    for repeat in range(args.repeat):
        suite.say(f"the core's rows, run {repeat + 1} of {args.repeat}")
        for level in JournalLevel:
            runs[level].append(cost(level))
    for level, found in runs.items():
        insert, complete, rows = (min(run[each] for run in found) for each in found[0])
        suite.add("core", level=level.name.lower(), insert_ns=insert, complete_ns=complete, rows_for_both=rows)
    directory = Path(tempfile.mkdtemp(prefix="tdj-", dir=args.directory))
    try:
        files(suite, directory)
        turns(suite, directory)
    finally:
        shutil.rmtree(directory)


def files(suite: Suite, directory: Path) -> None:
    """Measure how fast files are written and read."""
    rows: int = suite.args.rows
    times: dict[str, list[float]] = {"write": [], "chunks": [], "rows": []}
    for repeat in range(suite.args.repeat):
        suite.say(f"files, run {repeat + 1} of {suite.args.repeat}")
        times["write"].append(write(directory, rows))
        with JournalReader(directory) as reader:
            began = time.perf_counter()
            found = sum(chunk.rows for chunk in reader.chunks())
            times["chunks"].append((time.perf_counter() - began) / found * rows)
    with JournalReader(directory) as reader:
        began = time.perf_counter()
        found = sum(1 for _ in reader.rows())
        times["rows"].append((time.perf_counter() - began) / found * rows)
    for name, seconds in times.items():
        suite.add("files", what=name, million_rows_per_s=rows / min(seconds) / 1e6)


def turns(suite: Suite, directory: Path) -> None:
    """Measure how long turns take with a journal, and count the rows dropped."""
    for name, journal in (("without", None), ("with", directory / "paced")):
        suite.say(f"a million rows a second, {name} a journal")
        turns_ms, dropped = pace(journal, turns=500 if suite.short else 2_000)
        turns_ms.sort()
        p99 = turns_ms[len(turns_ms) * 99 // 100]
        median = statistics.median(turns_ms)
        suite.add("turns", journal=name, median_ms=median, p99_ms=p99, worst_ms=turns_ms[-1], rows_dropped=dropped)
    for mib in (4, 16):
        suite.say(f"200,000 expire in one tick, a buffer of {mib} MiB")
        worst, dropped = burst(directory / f"burst-{mib}", (mib << 20) // ROW_SIZE)
        suite.add("burst", buffer_mib=mib, worst_turn_ms=worst, rows_dropped=dropped)


def main() -> int:
    parser = Parser("journal", __doc__)
    parser.size("--rows", amount(100_000, 8_000_000, "rows"), "1M", "200k", "rows to write and read")
    parser.size("--repeat", amount(1, 100, "runs"), "5", "1", "runs of each")
    parser.add_argument("--directory", type=Path, help="where the files are written (the temporary directory)")
    return run_suite(parser, play)


if __name__ == "__main__":
    sys.exit(main())
