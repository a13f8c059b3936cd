"""Shared by the checks: a cluster, raw connections to it, times and their percentiles."""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.lib.common import Failed, Suite
from clients.roster import CLIENTS
from support.kafka.rawkafka import PRODUCE, RawKafka, seconds
from timerd_kafka.testing import KafkaCluster
from timerd_kafka.wire.codec import Question

WORKERS = 4
# Purgatories with operations of clients. In "replica" followers wait, all the time. In "fault" nothing waits here.
PURGATORIES = ("produce", "fetch", "heartbeat", "rebalance", "topic", "quota")
QUIET_S = 5.0
QUIET_AT_LAST_S = 60.0  # a busy machine needs longer
AT_ONCE = 3  # clients: with more of them a machine of two cores would be too busy for bounds of time
PATIENCE_S = 60.0

_own = threading.local()


@contextlib.contextmanager
def cluster(suite: Suite, *flags: str) -> Iterator[KafkaCluster]:
    """A cluster of four workers. After the block no client's operation may still wait.

    Without flags it is the one cluster that this thread's checks share; `end_shared` ends it.
    """
    if flags:
        with KafkaCluster(["--workers", str(WORKERS), *flags]) as own:
            yield own
            be_quiet(suite, own)
        return
    shared: KafkaCluster | None = getattr(_own, "shared", None)
    if shared is None:
        shared = _own.shared = KafkaCluster(["--workers", str(WORKERS), "--capacity", "32768"]).start()
    yield shared
    be_quiet(suite, shared)


def end_shared() -> None:
    """End the cluster that this thread's checks share."""
    shared: KafkaCluster | None = _own.__dict__.pop("shared", None)
    if shared is not None:
        shared.close()


def pending(kafka: KafkaCluster) -> dict[str, int]:
    """The number of clients' operations that wait in each purgatory."""
    counts = kafka.purgatories()
    return {name: counts[name]["pending"] for name in PURGATORIES}


def waiting(kafka: KafkaCluster) -> str:
    """The waiting operations, as `timerctl ops` shows them: with their clients, keys and ages."""
    command = [sys.executable, "-m", "timerctl", "ops"]
    environment = {**os.environ, **kafka.environment}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout


def be_quiet(suite: Suite, kafka: KafkaCluster) -> None:
    """Check that no operation is pending when the clients have left: within 5 s, or later on a busy machine."""
    begun = time.monotonic()
    while any((left := pending(kafka)).values()) and time.monotonic() < begun + QUIET_AT_LAST_S:
        time.sleep(0.02)
    took = time.monotonic() - begun
    suite.add("pending_after_the_clients_left", check=current(suite), **left, seconds=took)
    if any(left.values()):
        suite.say(f"these operations still wait:\n{waiting(kafka)}")
    suite.check(
        "nothing_waits", not any(left.values()), "after the clients have left nothing is pending in any purgatory"
    )
    says = f"nothing is pending {QUIET_S:g} s after the clients have left"
    suite.check("nothing_waits_in_time", took <= QUIET_S, says)


def current(suite: Suite) -> str:
    """The name of the check that runs."""
    return str(getattr(suite.args, "current", "-"))


def able(suite: Suite, *needs: str) -> list[str]:
    """The clients of this run that can do all this: roles, and other abilities (see clients/roster.py)."""
    return [client for client in suite.args.clients if set(needs) <= CLIENTS[client].can]


def registered(kafka: KafkaCluster, purgatory: str) -> int:
    """The number of operations that a purgatory has had. It may rise late: see `settled`."""
    return kafka.purgatories()[purgatory]["registered"]


def settled(kafka: KafkaCluster, purgatory: str, expected: int, patience: float = PATIENCE_S) -> int:
    """As `registered`, but waits for the expected number. After `patience` seconds, returns the number as it is.

    A worker does not wait until the daemon has registered an operation, so the answer to a request may come earlier.
    """
    end = time.monotonic() + patience
    while (found := registered(kafka, purgatory)) != expected and time.monotonic() < end:
        time.sleep(0.02)
    return found


def eventually(condition: Callable[[], object], what: str, patience: float = PATIENCE_S) -> float:
    """Wait until the condition is true. Returns how long that took. Raises Failed after `patience`."""
    begun = time.monotonic()
    while not condition():
        if time.monotonic() > begun + patience:
            raise Failed(f"after {patience:g} s still not: {what}")
        time.sleep(0.01)
    return time.monotonic() - begun


def side_by_side(play: Callable[[str], None], clients: Sequence[str]) -> None:
    """Call `play` with three clients at once, in threads. Raises the first error when all have ended."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for turn in [pool.submit(play, client) for client in clients]:
            turn.result()


# figures --------------------------------------------------------------------------------------------------------------


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value that this share of all values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def percentiles(values: Iterable[float | None], unit: str = "ms", scale: float = 1e3) -> dict[str, Any]:
    """p50, p99 and the maximum, as columns of a row. The values are seconds, or None where a client cannot say it."""
    scaled = [value * scale for value in values if value is not None]
    return {
        f"p50_{unit}": percentile(scaled, 0.5),
        f"p99_{unit}": percentile(scaled, 0.99),
        f"max_{unit}": max(scaled, default=None),
    }


# raw connections ------------------------------------------------------------------------------------------------------


def arrivals(connections: Sequence[RawKafka], patience: float) -> list[float]:
    """The time when something arrived at each connection, in monotonic seconds; infinity if nothing did."""
    came = [math.inf] * len(connections)
    with selectors.DefaultSelector() as selector:
        for number, connection in enumerate(connections):
            selector.register(connection._socket, selectors.EVENT_READ, number)
        end = time.monotonic() + patience
        while math.inf in came and (left := end - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                came[key.data] = time.monotonic()
                selector.unregister(key.fileobj)
    return came


def produce_fields(topic: str, batches: dict[int, bytes], acks: int = -1, timeout: float = 5.0) -> dict[str, Any]:
    """The fields of a produce request (version 9) for one topic."""
    module = Question(PRODUCE, 9).module
    data = tuple(module.PartitionProduceData(index=number, records=batch) for number, batch in batches.items())
    return {
        "transactional_id": None,
        "acks": acks,
        "timeout": seconds(timeout),
        "topic_data": (module.TopicProduceData(name=topic, partition_data=data),),
    }


def logs(kafka: KafkaCluster, topic: str) -> dict[str, dict[str, Path]]:
    """The log files of each partition of a topic, by broker."""
    found: dict[str, dict[str, Path]] = {}
    for broker, state in kafka.state().items():
        for name, partition in state["partitions"].items():
            if name.rpartition("-")[0] == topic:
                found.setdefault(name, {})[broker] = Path(partition["log"])
    return found


def logs_equal(kafka: KafkaCluster, topic: str, replicas: int, patience: float = PATIENCE_S) -> tuple[bool, int]:
    """Whether the logs of all replicas become equal, byte for byte, within `patience`; and the bytes of one replica."""
    end = time.monotonic() + patience
    while True:
        size, equal = 0, True
        for files in logs(kafka, topic).values():
            texts = [path.read_bytes() for path in files.values()]
            size += len(texts[0])
            equal = equal and len(texts) == replicas and len(set(texts)) == 1
        if equal or time.monotonic() > end:
            return equal, size
        time.sleep(0.2)


def ends(kafka: KafkaCluster, topic: str) -> dict[int, int]:
    """The end offset of each partition, as its leader has it."""
    return {
        int(name.rpartition("-")[2]): partition["end"]
        for state in kafka.state().values()
        for name, partition in state["partitions"].items()
        if name.rpartition("-")[0] == topic and partition["leads"]
    }
