"""python -m timerd_spark run: the whole pipeline as one command. See pipeline/pipeline.py."""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from timerd_shm.declare.errors import InvalidValueError, TimerdError

PLAYED = 500_000
MEMORY = re.compile(r"[1-9]\d*[kmgt]?", re.IGNORECASE)
SPARK_LOG = "spark.log"  # in the directory of the run: Spark's own log
FINDINGS, FAILED, INTERRUPTED = 1, 2, 130
# The line of a Python worker's error in a message of Spark.
PYTHON_ERROR = re.compile(r"^(?:\w+\.)*\w+(?:Error|Exception): .*", re.MULTILINE)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="python -m timerd_spark", description="timerd's journal on Spark.")
    commands = top.add_subparsers(dest="command", required=True)
    run = commands.add_parser(
        "run",
        help="from a workload or a journal to Parquet files and a page to read",
        description="Plays a workload against a daemon (or takes a journal), reads the journal as a stream, rolls up, "
        "reports, audits every outcome, and writes Parquet and report.html. The same command goes on where it was "
        "interrupted. Exit status: 0; 1 if the audit has findings: the journal is not whole, or the daemon is wrong; "
        "2 for wrong use, and if a step has failed; 130 if it was interrupted.",
    )
    run.add_argument("--out", default="timerd-pipeline", metavar="DIR", help="results (default: ./%(default)s)")
    run.add_argument(
        "--journal", metavar="DIR", help="read this journal, and play nothing (the audit needs level events)"
    )
    run.add_argument(
        "--open-end",
        action="store_true",
        help="an open end of --journal is no finding: its daemon still runs, or was killed",
    )
    run.add_argument("--ops", type=int, default=5_000_000, help="operations, played and planned (default: %(default)s)")
    run.add_argument("--played", type=int, help=f"number of played operations (default: {PLAYED:,} at most)")
    run.add_argument("--rate", type=float, default=10_000.0, help="operations a second (default: %(default)s)")
    run.add_argument("--profile", default="seed", help="seed (7.9 %% expire) or slow (half) (default: %(default)s)")
    run.add_argument("--seed", type=int, default=1, help="seed of the workload (default: %(default)s)")
    run.add_argument("--window", default="auto", help='window of rollup and report: "10 seconds" (default: auto)')
    run.add_argument("--timeouts", default="auto", help='other timeouts to estimate: "50ms,1s" (default: auto)')
    run.add_argument("--cores", type=int, default=2, help="cores of the local Spark session (default: %(default)s)")
    run.add_argument("--memory", default="2g", help="memory of the session's JVM (default: %(default)s)")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit status."""
    given, begun = parser().parse_args(arguments), time.monotonic()
    from timerd_spark.pipeline.options import Options
    from timerd_spark.pipeline.pipeline import PAGE, Pipeline, check_out
    from timerd_spark.pipeline.progress import short

    from .session import local_session

    def show(text: str) -> None:
        print(text, flush=True)

    out = Path(given.out).absolute()
    try:
        check_out(out, given.journal)
        if not MEMORY.fullmatch(given.memory):
            raise InvalidValueError(f"--memory={given.memory!r}: give a size such as 2g or 512m")
        # With --journal nothing is played, so the options of a workload have their defaults.
        plan = given if given.journal is None else parser().parse_args(["run"])
        options = Options(
            given.journal,
            plan.ops,
            min(PLAYED, plan.ops) if plan.played is None else plan.played,
            plan.rate,
            plan.profile,
            plan.seed,
            given.window,
            tuple(one.strip() for one in given.timeouts.split(",")),
            plan.cores,
            given.open_end,
        ).check()
        pipeline = Pipeline(out, options, show)
        if pipeline.is_done:
            show(f"{out / PAGE}: done before; {pipeline.verdict}")
            return FINDINGS if pipeline.findings else 0
        out.mkdir(parents=True, exist_ok=True)
        show("starting Spark, some 5 s")
        logging.basicConfig(filename=out / SPARK_LOG)
        with errors_into(out / SPARK_LOG):  # Spark's processes begin here, and keep the file for their errors
            spark = local_session(given.cores, spark__driver__memory=given.memory, spark__log__level="ERROR")
        try:
            findings = pipeline.run(spark)
        finally:
            spark.stop()
    except KeyboardInterrupt:
        show(f"interrupted: finished steps are kept in {out}, and the same command goes on from there")
        return INTERRUPTED
    except (TimerdError, OSError) as error:  # for example: a directory that cannot be written, a disk that is full
        print(f"timerd_spark: {error}", file=sys.stderr)
        return FAILED
    except Exception as error:  # Spark raises errors of its own; their cause may be one of those above
        if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):
            raise
        print(f"timerd_spark: Spark failed: {cause_of(str(error))}; {out / SPARK_LOG} has its log", file=sys.stderr)
        return FAILED
    peak = pipeline.state.get("peak_bytes", 0) / 2**30
    took = time.monotonic() - begun
    show(f"{out / PAGE}: {short(took)}, {peak:.1f} GiB at most; {pipeline.verdict}")
    return FINDINGS if findings else 0


@contextmanager
def errors_into(path: Path) -> Iterator[None]:
    """Write the standard error output of this process and of its children into a file."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with path.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def cause_of(message: str) -> str:
    """The important lines of Spark's message, without stacks: the first, and the last error of Python or Java."""
    first = message.strip().partition("\n")[0]
    below = PYTHON_ERROR.findall(message)[-1:] or re.findall(r"^Caused by: (.*)", message, re.MULTILINE)[-1:]
    return "; ".join(dict.fromkeys([first, *below]))


if __name__ == "__main__":
    sys.exit(main())
