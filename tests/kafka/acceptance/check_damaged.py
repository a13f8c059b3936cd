"""Damaged frames over many connections. Each frame gets an answer or loses its connection; other clients are served."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading
import time
from collections import Counter

from bench.lib.common import Suite
from processes import RawPeer, resident_bytes
from support.kafka.rawkafka import RawKafka
from timerd_kafka.cluster.settings import FRAME_MAX
from timerd_kafka.testing import KafkaCluster
from timerd_kafka.wire.connection import BYTES_MAX
from world import answering, cluster, eventually, percentiles

PARTITIONS = 3
MIB = 1 << 20
TRACEBACK = re.compile(r"^Traceback .*?^\w[^\n]*$", re.MULTILINE | re.DOTALL)
GROWTH_MAX = 256 << 20  # of a worker's resident memory
BYSTANDER_P99_S, BYSTANDER_MAX_S = 1.0, 5.0
LARGE, MORE = 80 << 20, 5  # bytes sent on each connection, and connections after a worker's limit of bytes is reached
SPARE = 4_000  # the last bytes before this limit, which are sent one by one
LARGE_GROWTH_MAX = 768 << 20


class Memory(threading.Thread):
    """Watches the resident memory of each process, and keeps the highest value."""

    def __init__(self, pids: dict[str, int]) -> None:
        super().__init__(daemon=True)
        self._pids, self._over = pids, threading.Event()
        self.before = {name: resident_bytes(pid) for name, pid in pids.items()}
        self.peak = dict(self.before)

    def run(self) -> None:
        while not self._over.wait(0.1):
            for name, pid in self._pids.items():
                self.peak[name] = max(self.peak[name], resident_bytes(pid))

    def end(self) -> dict[str, int]:
        """Stop watching. Returns the memory now."""
        self._over.set()
        self.join()
        return {name: resident_bytes(pid) for name, pid in self._pids.items()}


def play(suite: Suite) -> None:
    # Without this level, the log has a warning for each unknown version in a frame, up to a thousand per worker.
    with cluster(suite, "--no-auto-create", "--log-level", "error") as kafka:
        topic, bystanders = kafka.topic(partitions=PARTITIONS, replicas=3), kafka.topic(replicas=3)
        with RawKafka(kafka.bootstrap) as raw:
            leader = raw.leaders(bystanders)[0]
            addresses = sorted(set(raw.leaders(kafka.topic(partitions=4, replicas=1)).values()))
        plan = {
            "addresses": [kafka.bootstrap, *addresses],
            "topic": topic,
            "partitions": PARTITIONS,
            "group": "workers",
        }
        pids = kafka.pids()
        with RawPeer("bystander", address=leader, topic=bystanders, all=True) as bystander:
            bystander.ready()
            memory = Memory(pids)
            memory.start()
            with RawPeer("attack", count=suite.args.mutations, seed=suite.seed, **plan) as attacker:
                attacker.ready()
                done = attacker.result(7_200.0)
            bystander.stop()
            seen = bystander.result()
            after = memory.end()
        suite.add(
            "damaged",
            mutations=done["sent"],
            of_valid_frames=done["frames"],
            seconds=round(done["seconds"], 1),
            per_s=round(done["sent"] / done["seconds"]),
            **done["ends"],
        )
        suite.add("damaged_ways", **done["kinds"])
        report_bystander(suite, "damaged frames", seen["rows"])
        report_memory(suite, "damaged frames", memory, after, GROWTH_MAX)
        ends = done["ends"]
        suite.check(
            "each_ends",
            sum(ends.values()) - ends.get("no connection", 0) == done["sent"] == suite.args.mutations,
            "each damaged frame was answered, or its connection was closed, or a request waited",
        )
        raised = exceptions_in(kafka.log)
        for (where, error), times in raised.most_common():
            suite.add("damaged_exceptions", where=where, error=error, times=times)
        suite.check("no_exception", not raised, "no damaged frame raised an error that nobody expected")
        play_large(suite, kafka, leader, bystanders)
        suite.check("nobody_ended", kafka.pids() == pids, "no worker and no daemon has ended")
        eventually(lambda: all_answer(kafka), "all workers answer")


def play_large(suite: Suite, kafka: KafkaCluster, address: str, topic: str) -> None:
    """Fill the bytes that one worker may hold: by connections that send most of a frame. A bystander is served."""
    host, _, port = address.rpartition(":")
    lines: list[socket.socket] = []
    closed = 0
    with RawPeer("bystander", address=address, topic=topic, all=True) as bystander:
        bystander.ready()
        memory = Memory(kafka.pids())
        memory.start()
        most = BYTES_MAX - SPARE  # nearly as much as a worker takes from all connections together
        for at in range(0, most, LARGE):
            line = socket.create_connection((host, int(port)), 10)
            lines.append(line)
            closed += not send_slowly(line, struct.pack(">i", FRAME_MAX) + b"\0" * (min(LARGE, most - at) - 4))
        end = time.monotonic() + (0.3 if suite.short else 2.0)
        while time.monotonic() < end:  # then connections that send the remaining bytes one by one
            line = socket.create_connection((host, int(port)), 10)
            lines.append(line)
            with contextlib.suppress(OSError):
                line.sendall(struct.pack(">i", FRAME_MAX))
                for _ in range(SPARE):
                    line.sendall(b"\0")
                    time.sleep(0.0001)
        for _ in range(1 if suite.short else MORE):  # then connections whose bytes exceed the limit
            line = socket.create_connection((host, int(port)), 10)
            lines.append(line)
            closed += not send_slowly(line, struct.pack(">i", FRAME_MAX) + b"\0" * LARGE)
        time.sleep(0.3 if suite.short else 1.0)
        bystander.stop()
        seen = bystander.result()
        for line in lines:
            line.close()
        after = memory.end()
    suite.add("damaged_large", connections=len(lines), of_mib=LARGE / MIB, closed_while_sending=closed)
    report_bystander(suite, "large frames", seen["rows"])
    report_memory(suite, "large frames", memory, after, LARGE_GROWTH_MAX)


def send_slowly(line: socket.socket, data: bytes) -> bool:
    """Send in small pieces. Returns whether all was sent."""
    try:
        for at in range(0, len(data), 64 << 10):
            line.sendall(data[at : at + (64 << 10)])
    except OSError:
        return False
    return True


def report_memory(suite: Suite, what: str, memory: Memory, after: dict[str, int], most: int) -> None:
    for name, before in memory.before.items():
        suite.add(
            "damaged_memory",
            sent=what,
            process=name,
            before_mib=before / MIB,
            peak_mib=memory.peak[name] / MIB,
            after_mib=after[name] / MIB,
        )
    grown = max(memory.peak[name] - before for name, before in memory.before.items())
    suite.check(
        f"memory_of_{what.replace(' ', '_')}", grown <= most, f"no process grew by more than {most / MIB:,.0f} MiB"
    )


def exceptions_in(log: str) -> Counter[tuple[str, str]]:
    """The exceptions of a log: the place where each was raised and its message, and how often."""
    found: Counter[tuple[str, str]] = Counter()
    for block in TRACEBACK.findall(log):
        lines = block.splitlines()
        where = [line.strip() for line in lines if line.startswith("  File ") and "timerd_kafka" in line]
        last = re.sub(r'File ".*/timerd_kafka/', "", where[-1]).replace('"', "") if where else "?"
        found[last, lines[-1][:100]] += 1
    return found


def all_answer(kafka: KafkaCluster) -> bool:
    """Whether all workers answer their supervisor."""
    return len(answering(kafka)) == len(kafka.pids()) - 1


def is_late(row: list[object]) -> bool:
    """Whether a request has timed out after 5 s or more. Only the check "a bystander was served in time" counts it."""
    return row[4] == "request_timed_out" and float(row[3]) >= BYSTANDER_MAX_S  # type: ignore[arg-type]


def report_bystander(suite: Suite, what: str, rows: list[list[object]]) -> None:
    by_kind: dict[str, list[float]] = {}
    for kind, _, _, took, _ in rows:
        by_kind.setdefault(str(kind), []).append(float(took))  # type: ignore[arg-type]
    wrong = [row for row in rows if row[4] != "none" and not is_late(row)]
    for kind, values in by_kind.items():
        failed = sum(row[0] == kind for row in wrong)
        figures = percentiles(values)
        suite.add("damaged_bystander", meanwhile=what, request=kind, requests=len(values), failed=failed, **figures)
        slow = figures["p99_ms"] > BYSTANDER_P99_S * 1e3 or figures["max_ms"] > BYSTANDER_MAX_S * 1e3
        suite.check("bystander_answered", not failed, "a bystander was served all along, without an error")
        suite.check(
            "bystander_served",
            not slow,
            f"a bystander was served in time: p99 within {BYSTANDER_P99_S:g} s, none over {BYSTANDER_MAX_S:g} s",
        )
