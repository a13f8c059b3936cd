"""What the GIL costs: threads of one process beside several processes, and the daemon's time that needs no GIL.

    python bench/suites/gil.py [--seconds 3] [--short] [--json FILE]

*workers*: each thread registers CHUNK operations, fires the event of each, waits for all outcomes, and begins again, as
fast as it can. The threads of a process share its client. *times one* is the rate, divided by that of one process with
one thread. On two cores, of which the daemon needs a part, it is two at most.

*daemon*: the load test runs, and two py-spy processes look at the conductor, each RATE times a second. One counts how
often the conductor is at work, the other how often it holds the GIL. Falling asleep and waking up do not count, because
they take long on a busy machine. CPU time is the kernel's, by thread; libzmq's thread needs no GIL.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import timerd as td
from bench.lib.common import Failed, Parser, Row, Suite, amount, child, listed, need_memory, real, run_suite
from bench.lib.loads import document_of, environment_of, figures, load_command, memory_of, workload_of
from timerctl.instance import open_arena
from timerctl.load.own_daemon import flags_of, private_daemon
from timerd_shm.declare.counters import PURGATORY_COUNTERS, index_of
from timerd_shm.declare.layout import PURGATORY_COUNTERS_MAX
from timerd_shm.host.paths import RUNTIME_DIR_VARIABLE, InstancePaths
from timerd_shm.read.reader import ArenaReader

CHUNK = 256
PER_OP_MAX = 100_000  # operations a second; beyond it the load test uses the bulk API
RATE = 500  # looks a second
SLEEPING = "Loop.run"
READY_S = 30.0
END_S = 30.0
REGISTERED = index_of(PURGATORY_COUNTERS, "registered")


class Done(NamedTuple):
    """The counts of a worker process."""

    operations: int
    wrong: int  # outcomes that were not COMPLETED
    cpu_ns: int
    seconds: float


def work(paths: InstancePaths, index: int, threads: int, seconds: float, connection: Connection) -> None:
    """A worker process. It sends "ready", receives the start, and sends a Done."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ[RUNTIME_DIR_VARIABLE] = str(paths.directory)
    counts, wrong = [0] * threads, [0] * threads
    with td.connect(paths.instance, timeout=READY_S) as client:

        def loop(thread: int, end: float) -> None:
            name = f"{index}/{thread}/"
            while time.monotonic() < end:
                keys = [f"{name}{number}" for number in range(CHUNK)]
                operations = [client.register(key, timeout=END_S) for key in keys]
                for key in keys:
                    client.fire(key)
                wrong[thread] += sum(not operation.result() for operation in operations)
                counts[thread] += CHUNK

        connection.send("ready")
        try:
            connection.recv()
        except EOFError:
            return
        began, cpu_ns = time.monotonic(), time.process_time_ns()
        crew = [threading.Thread(target=loop, args=(each, began + seconds), daemon=True) for each in range(threads)]
        for thread in crew:
            thread.start()
        for thread in crew:
            thread.join()
        took, cpu_ns = time.monotonic() - began, time.process_time_ns() - cpu_ns
        connection.send(Done(sum(counts), sum(wrong), cpu_ns, took))


@contextmanager
def worker(paths: InstancePaths, index: int, threads: int, seconds: float) -> Iterator[Connection]:
    """Start a worker process, and wait until it is ready."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(paths, index, threads, seconds, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        answer(ours, READY_S)
        yield ours
    finally:
        ours.close()
        process.join(1.0)
        if process.is_alive():
            process.kill()
            process.join()


def answer(connection: Connection, timeout_s: float) -> object:
    """A message of a worker. Raises Failed when none comes in time."""
    try:
        if connection.poll(timeout_s):
            return connection.recv()
    except EOFError:
        pass
    raise Failed("a worker has ended, or does not answer")


def workers(suite: Suite, paths: InstancePaths, pid: int) -> None:
    """Measure each crew: processes with some threads each."""
    one = 0.0
    for processes, threads in suite.args.crews:
        suite.say(f"{processes} processes of {threads} threads")
        with ExitStack() as stack:
            crew = [
                stack.enter_context(worker(paths, index, threads, suite.args.seconds)) for index in range(processes)
            ]
            before_ns = sum(cpu_of(pid).values())
            for connection in crew:
                connection.send("start")
            answers = [answer(connection, suite.args.seconds + END_S) for connection in crew]
            daemon_ns = sum(cpu_of(pid).values()) - before_ns
        found = [answer for answer in answers if isinstance(answer, Done)]
        operations, seconds = sum(each.operations for each in found), max(each.seconds for each in found)
        rate = operations / seconds
        one = one or rate
        wrong = sum(each.wrong for each in found)
        suite.check("outcomes", not wrong, f"{wrong} of {operations:,} operations did not complete")
        suite.add(
            "workers",
            processes=processes,
            threads_each=threads,
            operations_per_s=round(rate),
            times_one=rate / one,
            worker_cpu_us=sum(each.cpu_ns for each in found) / operations / 1e3,
            daemon_cpu_us=daemon_ns / operations / 1e3,
            daemon_busy_percent=100 * daemon_ns / 1e9 / seconds,
        )


def cpu_of(pid: int) -> dict[int, int]:
    """CPU time of each thread of a process, in ns."""
    return {
        int(task.name): int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir()
    }


def daemon_share(suite: Suite, api: str, rate: int) -> None:
    """Measure how much of the daemon's CPU time needs no GIL, under a load."""
    seconds = suite.args.seconds + 1  # py-spy looks in the middle
    workload = workload_of(rate, seconds, "low", suite.seed)
    with private_daemon(flags_of(workload, 0)) as paths, open_arena(paths) as reader:
        pid = reader.header().pid
        with child(load_command(workload, api), environment_of(paths)) as load:
            while not any(reader.purgatory_counters[at].value for at in registered_counters(reader)):
                if load.poll() is not None:
                    break
                time.sleep(0.02)
            time.sleep(0.2)
            before = cpu_of(pid)
            running, held, why = looks(pid, suite.args.seconds)
            after = cpu_of(pid)
            out, err = load.communicate()
            document = document_of(subprocess.CompletedProcess(load.args, load.returncode, out, err))
    spent = {thread: after[thread] - before.get(thread, 0) for thread in after}
    conductor, others = spent[pid], sum(spent.values()) - spent[pid]
    row: Row = {"api": api, "rate": rate, "reached_rate": figures(document)["reached_rate"]}
    row |= {"conductor_busy_percent": conductor / suite.args.seconds / 1e7}
    row |= {"other_threads_busy_percent": others / suite.args.seconds / 1e7, "looks_at_work": running}
    if running:
        held_share = min(held / running, 1.0)
        free = (conductor * (1 - held_share) + others) / max(conductor + others, 1)
        row |= {"held_gil_percent": 100 * held_share, "without_gil_percent": 100 * free}
    suite.add("daemon", **row, note=why)


def registered_counters(reader: ArenaReader) -> range:
    """The indexes of the purgatories' counters of registrations."""
    return range(REGISTERED, len(reader.purgatory_counters), PURGATORY_COUNTERS_MAX)


def looks(pid: int, seconds: float) -> tuple[int, int, str]:
    """How many looks saw the conductor at work, how many saw it with the GIL; or (0, 0, why that is not known)."""
    program = shutil.which("py-spy", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if program is None:
        time.sleep(seconds)
        return 0, 0, "not installed: pip install 'timerd[bench]'"
    command = [program, "record", f"--rate={RATE}", f"--duration={max(round(seconds), 1)}", "--nonblocking"]
    command += ["--format=raw", f"--pid={pid}"]
    with tempfile.TemporaryDirectory(prefix="td-gil-") as directory:
        files = [Path(directory, name) for name in ("running", "holding")]
        with (
            child([*command, f"--output={files[0]}"]) as running,
            child([*command, f"--output={files[1]}", "--gil"]) as holding,
        ):
            says = [process.communicate()[1] for process in (running, holding)]
        if running.returncode or holding.returncode:
            return 0, 0, f"py-spy ended with status {running.returncode}: {says[0].strip().splitlines()[-1]}"
        counts = [sum(map(working, file.read_text().splitlines())) for file in files]
    return counts[0], counts[1], ""


def working(line: str) -> int:
    """The count in a line of py-spy; 0 for a stack with the loop itself on top, because then the conductor sleeps."""
    stack, _, count = line.rpartition(" ")
    return 0 if SLEEPING in stack.rpartition(";")[2] else int(count)


def crew_of(text: str) -> tuple[int, int]:
    """Type of an argument: 2x1 is two processes of one thread each."""
    processes, _, threads = text.partition("x")
    return amount(1, 16, "processes")(processes), amount(1, 64, "threads")(threads)


def play(suite: Suite) -> None:
    seconds, rates = suite.args.seconds, suite.args.rates
    need_memory(memory_of(max(rates), seconds, 0), f"{max(rates):,}/s for {seconds:g} s", "ask for less (--rates)")
    with private_daemon([]) as paths, open_arena(paths) as reader:
        workers(suite, paths, reader.header().pid)
    for rate in rates:
        api = "per-op" if rate <= PER_OP_MAX else "bulk"
        suite.say(f"the daemon at {rate:,}/s, {api}")
        daemon_share(suite, api, rate)


def main() -> int:
    parser = Parser("gil", __doc__)
    rates = listed(amount(100, 1_000_000, "operations a second"))
    parser.size("--seconds", real(0.2, 600, "seconds"), "3", "1", "of each measurement")
    parser.size("--crews", listed(crew_of), "1x1,1x2,1x4,2x1,4x1", "1x1,2x1", "processes x threads of each")
    parser.size("--rates", rates, "30k,100k,300k", "30k", "operations a second, for the looks at the daemon")
    return run_suite(parser, play)


if __name__ == "__main__":
    sys.exit(main())
