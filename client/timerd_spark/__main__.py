"""python -m timerd_spark run: the whole pipeline as one command. See pipeline.py."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from timerd_shm.errors import TimerdError

TIMEOUTS = "25ms,50ms,100ms,150ms,200ms,300ms,500ms"
DISAGREES, WRONG_USE, INTERRUPTED = 1, 2, 130


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="python -m timerd_spark", description="timerd's journal on Spark.")
    commands = top.add_subparsers(dest="command", required=True)
    run = commands.add_parser(
        "run",
        help="from a workload or a journal to Parquet files and a page to read",
        description="Plays a workload against a daemon (or takes a journal), reads the journal as a stream, rolls up, "
        "reports, audits every outcome, and writes Parquet and report.html. The same command goes on where it was "
        "interrupted. Exit status: 0; 1 where the audit disagrees with the daemon; 2 for wrong use; 130 interrupted.",
    )
    run.add_argument("--out", default="timerd-pipeline", metavar="DIR", help="results (default: %(default)s)")
    run.add_argument("--journal", metavar="DIR", help="take this journal, and play nothing")
    run.add_argument("--ops", type=int, default=5_000_000, help="operations, played and planned (default: %(default)s)")
    run.add_argument("--played", type=int, default=500_000, help="of these, played (default: %(default)s)")
    run.add_argument("--rate", type=float, default=10_000.0, help="operations a second (default: %(default)s)")
    run.add_argument("--profile", default="seed", help="seed (7.9 %% expire) or slow (half) (default: %(default)s)")
    run.add_argument("--seed", type=int, default=1, help="of the workload (default: %(default)s)")
    run.add_argument("--window", default="10 seconds", help="of rollup and report (default: %(default)s)")
    run.add_argument("--timeouts", default=TIMEOUTS, help="others to ask about (default: %(default)s)")
    run.add_argument("--cores", type=int, default=2, help="of the local Spark session (default: %(default)s)")
    run.add_argument("--memory", default="2g", help="of its JVM (default: %(default)s)")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs it; the exit status."""
    given = parser().parse_args(arguments)
    from .pipeline import Options, Pipeline
    from .session import local_session

    def say(text: str) -> None:
        print(text, flush=True)

    out = Path(given.out)
    try:
        options = Options(
            given.journal,
            given.ops,
            given.played,
            given.rate,
            given.profile,
            given.seed,
            given.window,
            tuple(one.strip() for one in given.timeouts.split(",")),
            given.cores,
        ).check()
        spark = local_session(given.cores, spark__driver__memory=given.memory, spark__log__level="ERROR")
        try:
            pipeline = Pipeline(spark, out, options, say)
            disagreements = pipeline.run()
        finally:
            spark.stop()
    except KeyboardInterrupt:
        say(f"interrupted: what is done is kept in {out}, and the same command goes on from there")
        return INTERRUPTED
    except (TimerdError, OSError) as error:  # a directory that cannot be written, a disk that is full
        print(f"timerd_spark: {error}", file=sys.stderr)
        return WRONG_USE
    peak = pipeline.state.get("peak_bytes", 0) / 2**30
    verdict = "the audit disagrees with the daemon" if disagreements else "the audit found nothing"
    say(f"{out / 'report.html'}: {pipeline.seconds:.0f} s, {peak:.1f} GiB at most; {verdict}")
    return DISAGREES if disagreements else 0


if __name__ == "__main__":
    sys.exit(main())
