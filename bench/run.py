"""Runs all benches, one after the other. Each writes bench/results/SUITE.json; at the end RESULTS.md is made from them.

    python bench/run.py [SUITE ...] [--short] [--results DIR] [--seed N]

With names it runs only these suites. --short is a quick look, in under two minutes: its results go to build/bench, and
do not replace the results of the last full run. A full run needs an idle machine: on a busy one the figures also
measure the other work. Ctrl-C ends the running suite and keeps its rows so far (marked partial). The exit status is
then 130.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from bench.lib.common import CHILD_END_S, INTERRUPTED, ROOT, amount, interrupt
from bench.lib.report import BENCH, RESULTS, SUITES

SHORT_RESULTS = ROOT / "build" / "bench"
MORE = {"core": ["--huge-pages"], "rivals": ["--huge-pages"]}  # further arguments
BUSY = 0.5  # load average for each core, above which a warning is printed


def play(name: str, arguments: list[str], results: Path) -> int:
    """Run one suite. Returns its exit status."""
    command = [
        sys.executable,
        str(BENCH / "suites" / f"{name}.py"),
        f"--json={results / name}.json",
        *MORE.get(name, []),
        *arguments,
    ]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(CHILD_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        return INTERRUPTED


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"some of {', '.join(SUITES)} (all)")
    parser.add_argument("--short", action="store_true", help="a quick look (see above)")
    parser.add_argument("--results", type=Path, metavar="DIR", help="the directory of the results (see above)")
    parser.add_argument("--seed", type=amount(0, 1 << 32), metavar="N", help="the seed of every suite (1)")
    args = parser.parse_args()
    for name in args.suites:
        if name not in SUITES:
            parser.error(f"{name!r:.40} is no suite: name some of {', '.join(SUITES)}")
    results = args.results or (SHORT_RESULTS if args.short else RESULTS)
    results.mkdir(parents=True, exist_ok=True)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    cores = psutil.cpu_count() or 1
    if (load := psutil.getloadavg()[0]) > BUSY * cores:
        print(f"bench: the machine is busy (load average {load:.1f} on {cores} cores), which makes figures worse")
    arguments = [*(["--short"] if args.short else []), *([f"--seed={args.seed}"] if args.seed is not None else [])]
    names = args.suites or SUITES
    failed, began = [], time.monotonic()
    for at, name in enumerate(names, start=1):
        print(f"\nbench: {time.monotonic() - began:.0f} s, {at} of {len(names)}: {name}", flush=True)
        status = play(name, arguments, results)
        if status == INTERRUPTED:
            print(f"bench: interrupted in {name}; {results / name}.json has the rows so far", file=sys.stderr)
            return INTERRUPTED
        if status:
            failed.append(f"{name} (status {status})")
    report = [sys.executable, str(BENCH / "lib" / "report.py"), f"--results={results}"]
    if results.resolve() != RESULTS:
        report.append(f"--out={results / 'RESULTS.md'}")
    if subprocess.run(report).returncode:
        failed.append("report")
    print(f"bench: {time.monotonic() - began:.0f} s in all" + (f"; FAILED: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
