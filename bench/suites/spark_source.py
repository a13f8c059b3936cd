"""How fast Spark's data source `timerd` reads a journal on this machine, in rows of the terminal view per second.

    .venv-spark/bin/python bench/suites/spark_source.py [--rows 4M] [--repeat 3] [--cores 2] [--audit JOURNAL]

The journal is synthetic. Each outcome has a key of its own, so two rows of the journal make one row of Spark. Segments
have 64 MiB, as the daemon writes them. The journal is decoded in one process without Spark. Then Spark reads it into
its noop sink (two columns; the columns that rollup() and report() need; all columns), and counts its rows by outcome.
The best of the repeats counts. Beside it is the CPU time of all processes: on a busy machine it shows how long an idle
machine would take. Each query takes some tenths of a second for any number of rows, and the JVM compiles in its first
seconds. So give --rows 16M for the rate of a large journal.

With --audit it measures audit() of a journal that a daemon has written with `--journal-level events`, and the same
audit without Spark. The figures are rows of the journal per second, rows of texts included.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from bench.lib.common import amount
from timerd_client.audit.journal import audit_journal
from timerd_shm.declare.fields import struct_of
from timerd_shm.declare.journal import (
    BLOCK_ROWS,
    BLOCK_SIZE,
    JOURNAL_MAGIC,
    JOURNAL_VERSION,
    BlockHeader,
    OutcomeRow,
    RowKind,
    SegmentHeader,
    TextKind,
    TextRow,
    journal_fingerprint,
)
from timerd_shm.declare.states import Outcome
from timerd_shm.read.segment import HEADER_CRC, segment_path
from timerd_spark import audit, local_session
from timerd_spark.reports.audit_rows import COLUMNS
from timerd_spark.reports.rollups import NEEDED
from timerd_spark.source.batches import batches
from timerd_spark.source.decode import dtype_of
from timerd_spark.source.schema import TERMINAL
from timerd_spark.source.segments import Walk, first_offset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEGMENT_BLOCKS = (64 << 20) // BLOCK_SIZE - 1
MS = 1_000_000
WALL_NS = 1_700_000_000_000_000_000


def fill(directory: Path, count: int, seed: int = 1) -> None:
    """Write segments with `count` outcomes, each after the row of its key. Waits have the load test's distribution."""
    random = np.random.default_rng(seed)
    per_segment = (SEGMENT_BLOCKS * BLOCK_ROWS - 3) // 2
    for sequence, first in enumerate(range(0, count, per_segment), start=1):
        number = np.arange(first, min(first + per_segment, count))
        rows = np.zeros((3 + 2 * len(number), 64), np.uint8)
        rows[0, 0] = RowKind.SEGMENT
        rows[1] = np.frombuffer(struct_of(TextRow).pack(RowKind.TEXT, TextKind.PURGATORY, 7, 0, b"default"), np.uint8)
        client = struct_of(TextRow).pack(RowKind.TEXT, TextKind.CLIENT, 20, 0, b"i" * 16 + b"load")
        rows[2] = np.frombuffer(client, np.uint8)
        texts = rows[3::2]
        texts[:, :3] = (RowKind.TEXT, TextKind.KEY, 12)
        texts[:, 4:8] = np.frombuffer(b"key/", np.uint8)
        texts[:, 8:16] = 48 + number[:, None] // 10 ** np.arange(7, -1, -1) % 10
        outcomes = np.zeros(len(number), dtype_of(RowKind.OUTCOME))
        wait = random.lognormal(np.log(20 * MS), 1.629, len(number)).astype(np.uint64)
        late = random.integers(0, 2 * MS, len(number), np.uint64)
        expired = wait >= 200 * MS
        outcomes["kind"], outcomes["outcome"] = RowKind.OUTCOME, np.where(expired, Outcome.EXPIRED, Outcome.COMPLETED)
        outcomes["settled_key"], outcomes["key"] = ~expired, 3 + 2 * np.arange(len(number))
        outcomes["operation"] = number + (1 << 32)
        outcomes["registered_ns"] = 10**12 + number * 10_000
        outcomes["deadline_ns"] = outcomes["registered_ns"] + 200 * MS
        outcomes["settled_ns"] = np.where(expired, outcomes["deadline_ns"] + late, outcomes["registered_ns"] + wait)
        outcomes["purgatory"], outcomes["owner"] = 1, 2
        rows[4::2] = outcomes.view(np.uint8).reshape(-1, 64)
        write_segment(directory, sequence, rows)


def write_segment(directory: Path, sequence: int, rows: np.ndarray) -> None:
    """Write rows as a segment, in blocks with their checksums."""
    header = SegmentHeader(
        *(JOURNAL_MAGIC, 0, JOURNAL_VERSION, journal_fingerprint(), 1, sequence, 0, sequence, bytes(16)),
        *(10**12, WALL_NS, 0, 0, b"bench", b"host"),
    )
    packed = struct_of(SegmentHeader).pack(*header)
    packed = struct_of(SegmentHeader).pack(*header._replace(crc=zlib.crc32(packed[HEADER_CRC:])))
    with segment_path(directory, sequence).open("wb") as file:
        file.write(packed.ljust(BLOCK_SIZE, b"\0"))
        for first in range(0, len(rows), BLOCK_ROWS):
            part = rows[first : first + BLOCK_ROWS]
            head = struct_of(BlockHeader).pack(0, len(part), first, sequence, sequence, bytes(32))
            block = (head + part.tobytes()).ljust(BLOCK_SIZE, b"\0")
            file.write(zlib.crc32(block[4:]).to_bytes(4, "little") + block[4:])


def cpu_of_spark() -> float:
    """CPU seconds of this process, Spark's JVM and Spark's workers."""
    me = psutil.Process()
    return sum(sum(process.cpu_times()[:2]) for process in (me, *me.children(recursive=True)))


def best(
    repeat: int, what: str, rows: int, run: Callable[[], object], cpu_s: Callable[[], float] = cpu_of_spark
) -> None:
    took, spent = [], []
    for _ in range(repeat):
        began, before = time.perf_counter(), cpu_s()
        run()
        took.append(time.perf_counter() - began)
        spent.append(cpu_s() - before)
    rate = f"{rows / min(took) / 1e6:6.2f} M rows/s {min(spent) / rows * 1e6:6.2f} us of CPU per row"
    print(f"{what:<46} {min(took):6.2f} s {rate}", flush=True)


def noop(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def count(frame: Any) -> None:
    frame.groupBy("outcome").count().collect()


def audit_rates(spark: SparkSession, journal: Path, repeat: int) -> None:
    """Measure how fast a journal is audited, with Spark and without. The audit must find nothing wrong."""
    spans = list(Walk(journal, first_offset(journal)).spans())
    rows = sum(span.end - span.first for span in spans)

    def on_spark() -> None:
        events = spark.read.format("timerd").option("view", "events").option("columns", ",".join(COLUMNS))
        assert not audit(events.load(str(journal))).take(1)

    def without() -> None:
        assert not audit_journal(journal).wrong

    print(f"{rows:,} rows of {len(spans)} parts")
    best(repeat, "audit()", rows, on_spark)
    # Spark's idle workers end meanwhile, so only the CPU time of this process is measured.
    best(repeat, "audit_journal(), without Spark, one process", rows, without, time.process_time)


def main() -> int:
    assert struct_of(OutcomeRow).size == 64
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rows", type=amount(1, 1e9, "rows"), default=4_000_000, help="rows of the terminal view (default 4M)"
    )
    parser.add_argument("--repeat", type=int, default=3, help="runs, of which the best counts (default 3)")
    parser.add_argument("--cores", type=int, default=2, help="threads of Spark (default 2)")
    parser.add_argument("--audit", type=Path, metavar="JOURNAL", help="measure audit() of this journal instead")
    args = parser.parse_args()
    if args.audit is not None:
        spark = local_session(args.cores, spark__driver__memory="2g")
        audit_rates(spark, args.audit, args.repeat)
        spark.stop()
        return 0
    directory = Path(tempfile.mkdtemp(prefix="tdj-"))
    try:
        fill(directory, args.rows)
        spans = list(Walk(directory, first_offset(directory)).spans())
        decoded = lambda: sum(len(batch) for span in spans for batch in batches(span, TERMINAL, "terminal"))  # noqa: E731
        best(args.repeat, "decoded, without Spark, one process", args.rows, decoded)
        spark = local_session(args.cores, spark__driver__memory="2g", spark__ui__enabled="false")
        source = spark.read.format("timerd").load(str(directory))
        for what, columns in (("2 columns", ("outcome", "wait_ns")), ("a report's 5 columns", NEEDED)):
            some = spark.read.format("timerd").option("columns", ",".join(columns)).load(str(directory))
            best(args.repeat, f"source -> noop, {what}", args.rows, partial(noop, some))
            best(args.repeat, f"source -> count by outcome, {what}", args.rows, partial(count, some))
        best(args.repeat, "source -> noop, every column", args.rows, lambda: noop(source))
        assert source.count() == args.rows
        spark.stop()
    finally:
        shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
