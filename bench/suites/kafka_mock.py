"""The start and the idle cost of timerd's Kafka broker, beside the mock cluster of librdkafka.

    python bench/suites/kafka_mock.py [--rounds 5] [--seconds 10] [--ways "timerd_kafka 1,mock 1,..."] [--short]
                                      [--json FILE]

A way is a kind of cluster and its number of brokers. *start* is from the start of the process to the end of a client's
first list_topics(); the client is confluent-kafka, in another process. Then nothing is asked, and all processes of the
cluster are watched: their memory (each shared page counts once, divided among the processes that share it), their CPU
and their context switches.

The two do not do the same. timerd_kafka has a process for each broker, one that starts them, and a timer daemon; it
writes records to files. The mock cluster is a thread of a client (`test.mock.num.brokers`) with its records in memory:
usually it has no process of its own. Here it has one, so its figures include Python and the library. *client alone* is
such a process with a client and without a cluster, so that the difference shows the cluster.

The ways take turns. A figure is the median of the rounds, and the worst round is beside it.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import NamedTuple

import psutil

from bench.lib.common import Failed, Parser, Refused, Row, Suite, amount, child, chosen, listed, real, run_suite
from bench.suites.quiet import of_rounds, spent

READY_S = 30.0  # the longest wait for a cluster
REST_S = 2.0  # the work that follows a start is over by then
MIB = 1 << 20

# The program of a mock cluster. It prints the address of a broker, or null if it has none.
MOCK = """
import json, signal, sys
from confluent_kafka import Producer

signal.signal(signal.SIGINT, signal.SIG_DFL)
number = int(sys.argv[1])
client = Producer({"test.mock.num.brokers": number} if number else {})
brokers = client.list_topics(timeout=20).brokers.values() if number else ()
print(json.dumps({"bootstrap": next((f"{one.host}:{one.port}" for one in brokers), None)}), flush=True)
signal.pause()
"""


class Way(NamedTuple):
    """A kind of cluster, and the number of its brokers."""

    is_mock: bool
    brokers: int

    def command(self, directory: str) -> list[str]:
        """The command of a program that prints a line of JSON with the cluster's address, and runs until SIGINT."""
        if self.is_mock:
            return [sys.executable, "-c", MOCK, str(self.brokers)]
        flags = ["--workers", str(self.brokers), "--port", "0", "--runtime-dir", directory, "--json"]
        return [sys.executable, "-m", "timerd_kafka", *flags]


WAYS = {
    **{f"timerd_kafka {number}": Way(False, number) for number in (1, 3, 4)},
    **{f"mock {number}": Way(True, number) for number in (1, 3)},
    "client alone": Way(True, 0),
}


@contextmanager
def running(way: Way) -> Iterator[tuple[psutil.Process, float | None]]:
    """A cluster that runs: its first process, and the seconds until a client had its metadata."""
    from confluent_kafka.admin import AdminClient

    with tempfile.TemporaryDirectory(prefix="mock-") as directory:
        begun = time.monotonic()
        with child(way.command(directory), {"TMPDIR": directory}) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise Failed(f"{way} did not start: {process.communicate()[1][-2_000:]}")
            bootstrap = json.loads(line)["bootstrap"]
            took = None
            if bootstrap is not None:
                AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=READY_S)
                took = time.monotonic() - begun
            yield psutil.Process(process.pid), took


def measure(way: Way, seconds: float) -> Row:
    """One run of one way."""
    with running(way) as (process, took):
        time.sleep(REST_S)
        processes = [process, *process.children(recursive=True)]
        pids = [one.pid for one in processes]
        before = spent(pids)
        time.sleep(seconds)
        after = spent(pids)
        memory = sum(int(one.memory_full_info().pss) for one in processes)
    tens = seconds / 10
    return {
        **({"start_ms": took * 1e3} if took is not None else {}),
        "memory_mib": memory / MIB,
        "cpu_ms_in_10_s": (after.cpu_ns - before.cpu_ns) / 1e6 / tens,
        "switch_ins_in_10_s": (after.switches - before.switches) / tens,
        "processes": len(processes),
    }


def play(suite: Suite) -> None:
    args = suite.args
    if find_spec("confluent_kafka") is None:
        raise Refused("confluent-kafka is not installed, whose mock cluster is measured: pip install confluent-kafka")
    rounds: dict[str, list[Row]] = {}
    try:
        for at in range(args.rounds):
            for name in args.ways:
                suite.say(f"{name}, round {at + 1} of {args.rounds}")
                rounds.setdefault(name, []).append(measure(WAYS[name], args.seconds))
    finally:  # after an interruption, too: the rounds so far
        for name, found in rounds.items():
            figures = of_rounds(found, "")
            del figures["processes_worst"]
            suite.add("idle", way=name, brokers=WAYS[name].brokers, rounds=len(found), **figures)


def main() -> int:
    parser = Parser("kafka_mock", __doc__)
    parser.size("--rounds", amount(1, 100, "rounds"), "5", "1", "rounds, each with all ways")
    parser.size("--seconds", real(0.1, 600, "seconds"), "10", "1", "seconds of watching")
    names = ",".join(WAYS)
    parser.size("--ways", listed(chosen(tuple(WAYS))), names, names, "kinds of clusters, with their brokers")
    return run_suite(parser, play)


if __name__ == "__main__":
    sys.exit(main())
