"""The pipeline: from a journal, or from a workload that is played and planned, to Parquet files and a page.

Each step writes its result into a directory below `out`, and `out/state.json` says which steps are done. So an
interrupted run continues behind its last step, the ingestion at its checkpoint, the load test at its last round.

    journal/        the journals of the run's own daemons, a directory for each round
    played/         the results that the load test's clients saw, a directory for each round
    planned/        lives of the operations that were planned and not played
    lives/          terminal rows of the journal, from the stream
    rollup/  report/  windows/  what_if/  hot_keys/  audit/
    report.html     the results as a page
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from timerctl.load.own_daemon import INSTANCE, flags_of, private_daemon
from timerd_client import connect
from timerd_shm.declare.errors import InvalidValueError
from timerd_shm.declare.journal import JournalLevel
from timerd_shm.host.paths import InstancePaths
from timerd_shm.read.segment import JournalError, segments_of
from timerd_spark.reports.audit import audit
from timerd_spark.reports.audit_rows import COLUMNS
from timerd_spark.reports.report import hot_keys, report
from timerd_spark.reports.rollups import NEEDED, rollup
from timerd_spark.reports.survival import what_if
from timerd_spark.source.schema import TERMINAL
from timerd_spark.source.segments import Walk, first_offset, hosts_of

from .loadtest import loadtest
from .memory import Memory
from .options import Options
from .page import page
from .plans import planned_lives, shape_of, workload
from .results import PLANNED, PLAYED, RECORDED, SEEN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PAGE: Final = "report.html"
ROUND: Final = 100_000  # operations of a step that plays; an interrupted step is played again
PART: Final = 1_000_000  # operations of a step that plans
ROWS_PER_BATCH: Final = 1_000_000  # rows of the journal, with texts
KEEP: Final = 1 << 40  # bytes: the daemon never removes files of the run's own journal
LIVES: Final = ("key", "purgatory", "timeout_ns", *NEEDED)  # the columns of lives that reports need
PENDING: Final = 32_768  # operations for which a daemon has room beyond those of the rate: a busy machine is late


def check_out(out: Path) -> None:
    """Raises InvalidValueError for a directory whose name Spark would read as a pattern."""
    if strange := set(str(out)) & set("*?[]{}\\"):
        raise InvalidValueError(f"--out={str(out)!r}: Spark reads {min(strange)} as a pattern: give another directory")


@contextmanager
def lock_directory(out: Path) -> Iterator[None]:
    """Hold the directory's lock, so that no other process writes there. Raises InvalidValueError if one does."""
    descriptor = os.open(out, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidValueError(f"another process writes into {out}: wait for it, or give another --out") from None
        yield
    finally:
        os.close(descriptor)


class Pipeline:
    """A run in a directory. run() returns the number of defects that the audit has found."""

    def __init__(self, spark: SparkSession, out: Path, options: Options, show: Callable[[str], None]) -> None:
        """Raises InvalidValueError if the directory has a run with other options, or a state that cannot be read."""
        self.spark, self.out, self.options, self.show = spark, out, options, show
        self.memory = Memory()
        self._state_path = out / "state.json"
        wanted = json.loads(json.dumps(options._asdict()))
        self.state: dict[str, Any] = {"options": wanted, "start_us": time.time_ns() // 1_000, "steps": {}}
        if self._state_path.exists():
            try:
                self.state = {**self.state, **json.loads(self._state_path.read_bytes())}
            except (ValueError, TypeError):
                raise InvalidValueError(f"{self._state_path} is damaged: remove {out}, or give another --out") from None
            if self.state["options"] != wanted:
                different = [name for name, value in wanted.items() if self.state["options"].get(name) != value]
                raise InvalidValueError(
                    f"{out} has a run with another {', '.join(different)}: give another --out, or remove the directory"
                )

    def run(self) -> int:
        """Run all steps that are not done yet. Raises InvalidValueError if another process runs them."""
        self.out.mkdir(parents=True, exist_ok=True)
        with lock_directory(self.out):
            return self._run()

    def _run(self) -> int:
        if not (self.out / PAGE).exists():
            self.state["steps"].pop("page", None)  # the page was removed: the step runs again
        self._write()
        steps = list(self._steps())
        with self.memory.watched():
            for number, (name, what, step) in enumerate(steps, 1):
                if name in self.state["steps"]:
                    continue
                self.show(f"[{number}/{len(steps)}] {what}")
                begun = time.monotonic()
                found = step() or {}
                took = time.monotonic() - begun
                peak = max(self.state.get("peak_bytes", 0), self.memory.peak)
                self.state["steps"][name] = {"seconds": took, **found}
                self._write(peak_bytes=peak)
                self.show(f"      {took:.1f} s{''.join(f', {key} {value:,}' for key, value in found.items())}")
        return int(self.state["steps"]["audit"].get("disagreements", 0))

    @property
    def seconds(self) -> float:
        """The seconds of all finished steps, over all runs in the directory."""
        return float(sum(step["seconds"] for step in self.state["steps"].values()))

    def _write(self, **more: Any) -> None:
        self.state |= more
        fresh = self._state_path.with_suffix(".new")
        fresh.write_text(json.dumps(self.state, indent=1))
        fresh.rename(self._state_path)

    def _steps(self) -> Iterator[tuple[str, str, Callable[[], dict[str, Any] | None]]]:
        o = self.options
        if o.journal is None:
            for first in range(0, o.played, ROUND):
                count = min(ROUND, o.played - first)
                what = f"play operations {first:,} to {first + count - 1:,} against a daemon, {o.rate:,.0f} a second"
                yield f"play-{first}", what, partial(self._play, first, count)
            for first in range(o.played, o.ops, PART):
                count = min(PART, o.ops - first)
                what = f"plan operations {first:,} to {first + count - 1:,}, which are not played"
                yield f"plan-{first}", what, partial(self._plan, first, count)
        yield "ingest", "read the journal as a stream, into Parquet", self._ingest
        yield "rollup", f"roll up, in windows of {o.window}", self._rollup
        yield "report", "report: rates, percentiles, other timeouts, hot keys", self._report
        yield "audit", "audit: every outcome computed again from the events", self._audit
        yield "page", f"draw, and write {self.out / PAGE}", self._page

    # steps ---------------------------------------------------------------------------------------------------------

    @property
    def journal(self) -> str:
        return self.options.journal or str(self.out / "journal")

    def _play(self, first: int, count: int) -> dict[str, Any]:
        o = self.options
        plan = workload(
            self.spark, o.profile, ops=count, first=first, rate=o.rate, seed=o.seed, partitions=o.players
        ).selectExpr("op", f"due_ns - {int(first / o.rate * 1e9)} AS due_ns", "delay_ns", "timeout_ns", "key")
        shape = shape_of(o.profile, ops=count, rate=o.rate, seed=o.seed, timeout=None)._replace(payload=100)
        journal = Path(self.journal, f"round={first}")
        shutil.rmtree(journal, ignore_errors=True)  # the rest of an interrupted round
        journal.parent.mkdir(exist_ok=True)
        flags = [
            *flags_of(shape, PENDING),
            f"--journal={journal}",
            "--journal-level=events",
            "--journal-buffer=64MiB",
        ]
        with private_daemon([*flags, f"--journal-keep={KEEP}"]) as paths, kept_running(paths):
            played = loadtest(
                self.spark,
                plan,
                players=o.players,
                instance=INSTANCE,
                runtime_dir=str(paths.directory),
                run=f"{first // ROUND:x}.",
            )
            played.write.mode("overwrite").parquet(str(self.out / "played" / f"round={first}"))
        if (outcomes := outcomes_in(journal)) < count:  # an audit of these alone would find no defect
            raise JournalError(
                f"{journal} holds {outcomes:,} of the {count:,} operations that were played: the disk is full, or the "
                "daemon could not keep up. Make room, or give a lower --rate, and begin again"
            )
        return {}

    def _plan(self, first: int, count: int) -> dict[str, Any]:
        o = self.options
        plan = workload(self.spark, o.profile, ops=count, first=first, rate=o.rate, seed=o.seed, partitions=4)
        lives = planned_lives(plan, self.state["start_us"])
        lives.write.mode("overwrite").parquet(str(self.out / "planned" / f"part={first}"))
        return {}

    def _ingest(self) -> dict[str, Any]:
        source = self.spark.readStream.format("timerd").option("maxOffsetsPerTrigger", ROWS_PER_BATCH)
        query = (
            source.load(self.journal)
            .writeStream.format("parquet")
            .option("path", str(self.out / "lives"))
            .option("checkpointLocation", str(self.out / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        shown = -1
        try:
            while not query.awaitTermination(1):
                progress = query.lastProgress
                if progress is not None and progress["batchId"] != shown:
                    shown = progress["batchId"]
                    self.show(f"      batch {shown}: {progress['numInputRows']:,} operations")
        finally:
            query.stop()
        return {"operations": self.spark.read.parquet(str(self.out / "lives")).count()}

    def lives(self) -> DataFrame:
        """All lives, with the column `what`: PLAYED, SEEN, PLANNED or RECORDED."""
        from pyspark.sql import functions as F

        def of(name: str, what: str) -> DataFrame:
            return self.spark.read.parquet(str(self.out / name)).select(*LIVES, F.lit(what).alias("what"))

        if self.options.journal is not None:
            return of("lives", RECORDED)
        lives = of("lives", PLAYED).unionByName(of("played", SEEN))
        return lives.unionByName(of("planned", PLANNED)) if self.options.ops > self.options.played else lives

    def _rollup(self) -> None:
        self._store(rollup(self.lives(), by="what", window=self.options.window), "rollup")

    def _report(self) -> None:
        lives = self.lives()
        rolled = self.stored("rollup")
        self._store(report(rolled, by="what"), "report")
        self._store(report(rolled, by="what", window=self.options.window).orderBy("what", "start"), "windows")
        self._store(what_if(lives, self.options.timeouts, by="what").orderBy("what", "timeout_ns"), "what_if")
        recorded = lives.where(~lives["what"].isin(SEEN, PLANNED))
        self._store(hot_keys(recorded, 10), "hot_keys")

    def _audit(self) -> dict[str, Any]:
        if not self._of_level_events():
            self.show("      not audited: the journal is of level outcomes, which says how operations settled, not why")
            return {}
        reader = self.spark.read.format("timerd").option("view", "events").option("columns", ",".join(COLUMNS))
        # A journal that is given may be one that a daemon still writes.
        found = audit(
            reader.load(self.journal),
            open_end=self.options.journal is not None,
            show=lambda line: self.show(f"      {line}"),
        )
        self._store(found, "audit")
        return {"disagreements": self.stored("audit").count()}

    def _of_level_events(self) -> bool:
        from timerd_shm.read.segment import Segment

        for directory in hosts_of(self.journal).values():
            for sequence in segments_of(directory):
                segment = Segment(directory, sequence)
                segment.close()
                if segment.header.level != JournalLevel.EVENTS:
                    return False
        return True

    def _page(self) -> None:
        (self.out / PAGE).write_text(page(self))

    # Parquet -------------------------------------------------------------------------------------------------------

    def stored(self, name: str) -> DataFrame:
        """The result of a step that is done."""
        return self.spark.read.parquet(str(self.out / name))

    def _store(self, df: DataFrame, name: str) -> None:
        df.coalesce(1).write.mode("overwrite").parquet(str(self.out / name))


def outcomes_in(journal: Path) -> int:
    """The number of operations whose outcomes are in a journal."""
    from timerd_spark.source.batches import batches

    spans = Walk(journal, first_offset(journal)).spans()
    return sum(batch.num_rows for span in spans for batch in batches(span, TERMINAL[:1], "terminal"))


@contextmanager
def kept_running(paths: InstancePaths) -> Iterator[None]:
    """Connect a client while Spark's tasks come and go: without any client the daemon would end."""
    with connect(paths.instance, runtime_dir=str(paths.directory)):
        yield


assert {column.name for column in TERMINAL} >= set(LIVES)
