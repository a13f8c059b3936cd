"""The pipeline: from a journal, or from a workload that is played and planned, to Parquet files and a page.

Each step writes its result into a directory below `out`, and `out/state.json` says which steps are done. So an
interrupted run continues after its last finished step. The ingestion continues at its checkpoint, the load test at its
unfinished round.

    journal/        the journals of the run's own daemons, a directory for each round
    played/         the results that the load test's clients saw, a directory for each round
    lives/          terminal rows of the journal, from the stream
    rollup/  seen/  report/  windows/  purgatories/  rounds/  what_if/  curve/  hot_keys/  audit/
    report.html     the results as a page
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from timerctl.load.own_daemon import INSTANCE, flags_of, private_daemon
from timerd_client import connect
from timerd_client.workload import NS
from timerd_shm.declare.errors import InvalidValueError
from timerd_shm.host.paths import InstancePaths
from timerd_shm.read.segment import JournalError
from timerd_spark.reports.audit import AuditedArena, audit
from timerd_spark.reports.audit_rows import COLUMNS
from timerd_spark.reports.percentiles import LATENCY, LATENESS, percentiles
from timerd_spark.reports.report import hot_keys, report
from timerd_spark.reports.rollups import NEEDED, rollup
from timerd_spark.reports.survival import what_if
from timerd_spark.source.progress import places_in
from timerd_spark.source.schema import TERMINAL
from timerd_spark.source.segments import Walk, first_offset, hosts_of

from . import verdicts
from .loadtest import loadtest
from .machine import Machine, described
from .options import AUTO, Options
from .page import page
from .plans import due_of, planned_lives, shape_of, workload
from .progress import Rest, Step, said
from .results import ADDED, PLAN, PLANNED, PLAYED, RECORDED, SEEN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PAGE: Final = "report.html"
ROUND: Final = 170_000  # operations of a round, which is a step; an interrupted step is played again
PART: Final = 1_000_000  # planned operations of a task
ROWS_PER_BATCH: Final = 4_000_000  # rows of the journal, with texts
KEEP: Final = 1 << 40  # bytes: the daemon never removes files of the run's own journal
BYTES_OF_LIFE: Final = 350  # the bytes of one operation in a journal of level events; for estimates
# Windows that --window auto chooses from, in seconds.
WINDOWS: Final = {
    "1 second": 1, "2 seconds": 2, "5 seconds": 5, "10 seconds": 10, "30 seconds": 30, "1 minute": 60,
    "5 minutes": 300, "15 minutes": 900, "1 hour": 3_600, "6 hours": 21_600, "1 day": 86_400,
}  # fmt: skip
WINDOWS_MAX: Final = 300
LIVES: Final = ("timeout_ns", *NEEDED)  # the columns of lives that reports need
CURVE: Final = tuple(at / 50 for at in range(1, 50))  # the shares of settled waits at which what_if's curve has points
TABLE: Final = (0.5, 0.75, 0.9, 0.95, 0.99, 0.999)  # the shares of completed waits from which timeouts are chosen
# Measures of percentiles(), in ns: of the journal's rows, and of the rows that the clients of a load test saw.
OF_LIVES: Final = {"latency": LATENCY, "lateness": LATENESS}
OF_PLAYED: Final = {
    **OF_LIVES,
    "planned": "CASE outcome WHEN 'completed' THEN wait_ns - added_ns END",
    "added": "added_ns",
    "behind": "behind_ns",
}
PENDING: Final = 32_768  # a daemon's extra room for operations, because on a busy machine they are pending longer


def check_out(out: Path, journal: str | None = None) -> None:
    """Raise InvalidValueError for a directory whose name is a pattern for Spark, or that is in the journal."""
    if journal is not None and out.resolve().is_relative_to(Path(journal).resolve()):
        raise InvalidValueError(f"--out={str(out)!r} is in the journal: give a directory of its own")
    if strange := set(str(out)) & set("*?[]{}\\"):
        raise InvalidValueError(f"--out={str(out)!r}: Spark reads {min(strange)} as a pattern: give another directory")


@contextmanager
def lock_directory(out: Path) -> Iterator[None]:
    """Hold the directory's lock, so that no other process writes there. Raises InvalidValueError if it is held."""
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
    """A run in a directory. run() returns the number of the audit's findings, and needs `spark`."""

    spark: SparkSession

    def __init__(self, out: Path, options: Options, show: Callable[[str], None]) -> None:
        """Raises InvalidValueError if the directory has a run with other options, or a state that cannot be read."""
        self.out, self.options, self.show = out, options, show
        self.machine = Machine()
        self.share: float | None = None  # the finished share of the running step, if it is known
        self._state_path = out / "state.json"
        wanted = json.loads(json.dumps(options._asdict()))
        self.state: dict[str, Any] = {"options": wanted, "start_us": time.time_ns() // 1_000, "steps": {}}
        if self._state_path.exists():
            try:
                self.state = {**self.state, **json.loads(self._state_path.read_bytes())}
            except (ValueError, TypeError):
                raise InvalidValueError(f"{self._state_path} is damaged: remove {out}, or give another --out") from None
            if any("at" not in step for step in self.state["steps"].values()):
                raise InvalidValueError(f"{out} has a run of an older timerd: give another --out, or remove it")
            if self.state["options"] != wanted:
                different = [name for name, value in wanted.items() if self.state["options"].get(name) != value]
                raise InvalidValueError(
                    f"{out} has a run with another {', '.join(different)}: give another --out, or remove the directory"
                )

    @property
    def is_done(self) -> bool:
        """Whether all steps are done."""
        return (self.out / PAGE).exists() and all(step.name in self.state["steps"] for step in self._steps())

    @property
    def findings(self) -> int:
        """The number of the audit's findings."""
        return int(self.state["steps"]["audit"].get("findings") or 0)

    @property
    def verdict(self) -> str:
        """The result of the audit, in a few words."""
        return verdicts.in_short(self.state["steps"]["audit"])

    def run(self, spark: SparkSession) -> int:
        """Run all steps that are not done yet. Raises InvalidValueError if another process runs them."""
        self.spark = spark
        self.out.mkdir(parents=True, exist_ok=True)
        with lock_directory(self.out):
            return self._run()

    def _run(self) -> int:
        done = self.state["steps"]
        if not (self.out / PAGE).exists():
            done.pop("page", None)  # the page was removed: the step runs again
        steps = list(self._steps())
        if any(step.name not in done for step in steps):
            self._write(machine=described(self.spark))
        rest = Rest(steps, {name: step["seconds"] for name, step in done.items()})
        with self.machine.watched():
            for step in steps:
                if step.name not in done:
                    self._play_step(step, rest)
        return self.findings

    def _play_step(self, step: Step, rest: Rest) -> None:
        self.show(rest.head(step))
        self.share, at, begun = None, time.time(), time.monotonic()
        with said(rest, step, self.show, lambda: self.share), self.machine.load() as loads:
            found = step.run() or {}
        took = time.monotonic() - begun
        rest.done(step, took)
        load = loads[0]._asdict() if loads else {}
        self.state["steps"][step.name] = {"at": at, "seconds": took, **load, **found}
        self._write(peak_bytes=max(self.state.get("peak_bytes", 0), self.machine.peak))
        counts = (f", {name} {count:,}" for name, count in found.items() if isinstance(count, int))
        self.show(f"      {took:.1f} s{''.join(counts)}")

    @property
    def seconds(self) -> float:
        """The seconds of all finished steps, over all runs in the directory."""
        return float(sum(step["seconds"] for step in self.state["steps"].values()))

    def _write(self, **more: Any) -> None:
        self.state |= more
        fresh = self._state_path.with_suffix(".new")
        fresh.write_text(json.dumps(self.state, indent=1))
        fresh.rename(self._state_path)

    def _steps(self) -> Iterator[Step]:
        """All steps, with estimates that were measured on two idle processors."""
        o = self.options
        recorded = o.played if o.journal is None else bytes_of(o.journal) // BYTES_OF_LIFE
        rows = o.ops + o.played if o.journal is None else recorded
        if o.journal is None:
            for first in range(0, o.played, ROUND):
                count = min(ROUND, o.played - first)
                what = f"play operations {first:,} to {first + count - 1:,} against a daemon, {o.rate:,.0f} a second"
                cold = 5.0 if first == 0 else 0.0
                yield Step(f"play-{first}", what, partial(self._play, first, count), 4.0 + cold + count / o.rate)
        yield Step("ingest", "read the journal as a stream, into Parquet", self._ingest, 2.0 + recorded * 6e-6)
        yield Step("rollup", "roll up, in windows of time", self._rollup, 2.0 + rows * 1.7e-6)
        yield Step("report", "report: rates and percentiles, also over time", self._report, 3.5)
        yield Step(
            "what_if", "look: other timeouts, hot keys, percentiles", self._look, 3.0 + rows * 1.2e-6 + recorded * 8e-6
        )
        yield Step("audit", "audit: compute every outcome again from the events", self._audit, 3.0 + recorded * 16e-6)
        yield Step("page", f"draw, and write {self.out / PAGE}", self._page, 4.0)

    # steps ---------------------------------------------------------------------------------------------------------

    @property
    def journal(self) -> str:
        return self.options.journal or str(self.out / "journal")

    def _play(self, first: int, count: int) -> dict[str, Any]:
        o = self.options
        begun_ns = due_of(shape_of(o.profile, ops=first + count, rate=o.rate, seed=o.seed, timeout=None), first)
        plan = workload(
            self.spark, o.profile, ops=count, first=first, rate=o.rate, seed=o.seed, partitions=o.players
        ).selectExpr("op", f"due_ns - {begun_ns} AS due_ns", "delay_ns", "timeout_ns", "key")
        shape = shape_of(o.profile, ops=count, rate=o.rate, seed=o.seed, timeout=None)._replace(payload=100)
        journal = Path(self.journal, f"round={first}")
        shutil.rmtree(journal, ignore_errors=True)  # what an interrupted run of this round has left
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
        if (outcomes := outcomes_in(journal)) < count:  # the audit would find no defect in what was written
            raise JournalError(
                f"{journal} holds {outcomes:,} of the {count:,} operations that were played: the disk is full, or the "
                "daemon could not keep up. Make room, or give a lower --rate, and begin again"
            )
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
        try:
            while not query.awaitTermination(0.5):
                self.share = share_of(query.lastProgress)
        finally:
            query.stop()
        return {"operations": self.spark.read.parquet(str(self.out / "lives")).count()}

    def lives(self) -> DataFrame:
        """Terminal rows of operations, called lives, with the column `what`: PLAYED, PLANNED or RECORDED."""
        from pyspark.sql import functions as F

        def of(lives: DataFrame, what: str) -> DataFrame:
            return lives.select(*LIVES, F.lit(what).alias("what"))

        if self.options.journal is not None:
            return of(self.stored("lives"), RECORDED)
        lives = of(self.stored("lives"), PLAYED)
        return lives.unionByName(of(self._planned(), PLANNED)) if self.options.ops > self.options.played else lives

    def _planned(self) -> DataFrame:
        """The lives of the operations that are planned and not played. Each read draws them anew."""
        o, count = self.options, self.options.ops - self.options.played
        partitions = max(4, count // PART)
        plan = workload(
            self.spark, o.profile, ops=count, first=o.played, rate=o.rate, seed=o.seed, partitions=partitions
        )
        return planned_lives(plan, self.state["start_us"])

    def _rollup(self) -> dict[str, Any]:
        lives = self.lives()
        window = self.options.window
        if window == AUTO:
            window = window_for(lives.where(lives["what"] != PLANNED))
        self._store(rollup(lives, by="what", window=window), "rollup")
        if self.options.journal is None:
            self._store(rollup(seen_of(self.stored("played")), by="what", window=window), "seen")
        return {"window": window}

    def _report(self) -> None:
        rolled = self.stored("rollup")
        window = self.state["steps"]["rollup"]["window"]
        self._store(report(rolled, by="what"), "report")
        self._store(report(rolled, by="what", window=window).orderBy("what", "start"), "windows")

    def _look(self) -> None:
        lives, rolled = self.lives(), self.stored("rollup")
        real = lives.where(lives["what"] != PLANNED)
        timeouts: Sequence[str | float] = self.options.timeouts
        if timeouts == (AUTO,):
            timeouts = timeouts_for(real)
        asked = what_if(lives, timeouts, by="what", rolled=rolled)
        self._store(asked.orderBy("what", "timeout_ns"), "what_if")
        curve = what_if(real, curve_for(real), by="what", rolled=rolled.where(rolled["what"] != PLANNED))
        self._store(curve.orderBy("what", "timeout_ns"), "curve")
        self._store(hot_keys(self.stored("lives"), 10), "hot_keys")
        self._store(percentiles(self.stored("lives"), OF_LIVES, "purgatory"), "purgatories")
        if self.options.journal is None:
            self._store(percentiles(self.stored("played"), OF_PLAYED, "round"), "rounds")

    def _audit(self) -> dict[str, Any]:
        reader = self.spark.read.format("timerd").option("view", "events").option("columns", ",".join(COLUMNS))
        arenas: list[AuditedArena] = []
        try:
            found = audit(reader.load(self.journal), open_end=self.options.open_end, show=arenas.append)
        except InvalidValueError as error:  # no events in the journal, or its first files are missing: no audit then
            self.show(f"      not audited: {error}")
            return {"not_audited": str(error)}
        self._store(found, "audit")
        for arena in arenas:
            self.show(f"      {arena}")
        rows = self.stored("audit")
        causes = [row.what for row in rows.where("cause").collect()]
        found_all = {"findings": rows.count(), "follows": rows.where("follows").count(), "causes": causes}
        return {**found_all, "arenas": [arena._asdict() for arena in arenas]}

    def _page(self) -> None:
        (self.out / PAGE).write_text(page(self))

    # Parquet -------------------------------------------------------------------------------------------------------

    def stored(self, name: str) -> DataFrame:
        """The result of a step that is done."""
        return self.spark.read.parquet(str(self.out / name))

    def _store(self, df: DataFrame, name: str) -> None:
        df.coalesce(1).write.mode("overwrite").parquet(str(self.out / name))


def bytes_of(journal: str) -> int:
    """The size of a journal, whose daemon may remove files at the same time."""
    size = 0
    for host in hosts_of(journal).values():
        for file in host.iterdir():
            with suppress(OSError):
                size += file.stat().st_size
    return size


def share_of(progress: Mapping[str, Any] | None) -> float | None:
    """The share of the journals that a query has read, from Spark's report; None if it is not known.

    Rows are counted within an arena. So the share is not known if the newest rows of a journal are of a later arena.
    """
    read = there = 0
    for source in progress["sources"] if progress else ():
        now, newest = (places_in(source, name) or {} for name in ("endOffset", "latestOffset"))
        for journal, place in newest.items():
            if (at := now.get(journal, place | {"number": 0})).get("incarnation") != place.get("incarnation"):
                return None
            read, there = read + at.get("number", 0), there + place.get("number", 0)
    return min(read / there, 1.0) if there else None


def window_for(lives: DataFrame) -> str:
    """The shortest of WINDOWS that divides the time in which these lives settled into WINDOWS_MAX parts or fewer.

    If none of WINDOWS does, it is the longest one.
    """
    seconds = "(unix_micros(max(settled_at)) - unix_micros(min(settled_at))) / 1e6D"
    length_s = lives.selectExpr(seconds).collect()[0][0] or 0.0
    return next((name for name, each in WINDOWS.items() if length_s <= WINDOWS_MAX * each), [*WINDOWS][-1])


def seen_of(played: DataFrame) -> DataFrame:
    """Three lives of each operation of a loadtest(), as NEEDED and `what`: its wait, the plan's, and the difference."""
    views = ((SEEN, "outcome", "wait_ns"), (PLAN, "outcome", "wait_ns - added_ns"), (ADDED, "'completed'", "added_ns"))
    stacked = ", ".join(f"'{what}', {outcome}, {wait}" for what, outcome, wait in views)
    return played.selectExpr(
        "registered_at", "settled_at", "lateness_ns", f"stack({len(views)}, {stacked}) AS (what, outcome, wait_ns)"
    )


def timeouts_for(lives: DataFrame) -> list[float]:
    """Timeouts to compare, in seconds: percentiles of the waits of completed operations, rounded to two digits.

    A timeout from the longest of today on is left out: the data say little about it.
    """
    longest_ns = lives.selectExpr("max(timeout_ns)").collect()[0][0] or NS
    rounded = {float(f"{wait_ns / NS:.2g}") for wait_ns in shares_of(lives, LATENCY, TABLE)}
    return sorted(timeout for timeout in rounded if 0 < timeout * NS < longest_ns) or [longest_ns / NS]


def curve_for(lives: DataFrame) -> list[float]:
    """Timeouts at which the whole curve of what_if() has points, in seconds: the waits themselves, and the timeouts."""
    waits_ns = {*shares_of(lives, "least(wait_ns, timeout_ns)", CURVE), *shares_of(lives, "timeout_ns", (0.0, 1.0))}
    return sorted(wait_ns / NS for wait_ns in waits_ns if wait_ns > 0) or [1.0]


def shares_of(lives: DataFrame, column: str, shares: Sequence[float]) -> list[int]:
    """Approximate percentiles of a column: places of points, and no figures to print. Empty if there are no values."""
    wanted = ", ".join(f"{share!r}D" for share in shares)
    return lives.selectExpr(f"percentile_approx({column}, array({wanted}), 1000)").collect()[0][0] or []


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
