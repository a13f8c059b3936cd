"""A daemon that is asked for three times what it can do: what its other clients notice of it, and what it remembers.

    python bench/overload.py [--seconds 30] [--senders 3] [--flood commands] [--json FILE]

A daemon of its own; `senders` processes with frames encoded beforehand, which speak the wire themselves; and one client
of the usual kind beside them, whose round trips are measured all the time. In this order:

    sustained    one sender that keeps up (65,536 commands in flight at most): commands applied in a second
    before       the client alone
    during       the senders together ask three times the sustained rate, by the clock. A sender whose socket is full
                 leaves out what was due ("held back"): that is where the pressure goes
    after        the senders stop; how long until the client is served as before
    full         another, small daemon: two clients fill its arena, a third one has operations pending

--flood says what the senders send: `commands` (128 in a frame: registrations, each with the event that completes it),
`single` (the same, one command in a frame), `largest` (frames of 4 MiB, full of values), `hellos` (each with 100,000
waits), `asks` (by clients that have 4,096 outcomes, acknowledge none and read no answer), `queries`, `snapshots`. For
the kinds without commands the rate asked is that of RATES.

Bounds, with their reasons, stand in BOUNDS and in `memory_bound`; exit status 1 where one is broken. `--slack 3` makes
those of time three times as wide, for a machine that does other work.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from ctypes import Array
from itertools import cycle
from typing import Any, NamedTuple

import msgpack
import psutil
import zmq

import timerd as td
from common import Parser, Suite, amount, real, run_suite
from timerd.transport import QUEUED_ANSWERS_MAX, QUEUED_FRAMES_MAX, QUEUED_REPORTS_MAX
from timerd_client.commands import KEY_COMMAND_SIZE, REGISTER_SIZE, pack_key, pack_register
from timerd_client.link import identity
from timerd_client.protocol import LinkState, Protocol
from timerd_client.sockets import RECONNECT_MS
from timerd_client.timerctl.load.private import private_daemon
from timerd_client.timerctl.load.report import percentiles
from timerd_shm.fields import struct_of
from timerd_shm.layout import Condition, KeyKind, Orphans
from timerd_shm.limits import BACKPRESSURE_TIMEOUT_S, FRAME_SIZE_MAX, PAYLOAD_SIZE_MAX
from timerd_shm.reader import ArenaReader
from timerd_shm.rundir import RUNTIME_DIR_VARIABLE, InstancePaths, open_arena_file
from timerd_shm.wire import (
    PROTOCOL_VERSION,
    CommandHeader,
    CommandKind,
    DownKind,
    RegisterFlag,
    ReportHeader,
    UpKind,
)

MS = 1_000_000
S = 1_000_000_000
OVER = 3.0  # times the sustained rate
COMMANDS = 128  # in a frame, as clients that are busy send
IN_FLIGHT = 65_536  # commands of the sender that keeps up
BODIES = 8  # frames that a sender has ready
ASKED_FOR = 4_096  # outcomes of one that asks for them again and again
WAITS = 100_000
RATES = {"hellos": 300, "asks": 30_000, "queries": 300_000, "snapshots": 3_000}  # frames a second, of all senders
PENDING = 5_000
PATIENCE_S = 30.0
SMALL = 4_096  # operations of the arena that is filled
REPORT_SIZE_MAX = 16_384 * 96 + (1 << 20) + PAYLOAD_SIZE_MAX  # outcomes and values of one report
SPARE_BYTES = 64 << 20  # what the daemon takes for itself, and what malloc keeps
HEADER, REPORT = struct_of(CommandHeader), struct_of(ReportHeader)
SLICE_NS, SLOWER_NS = 100 * MS, 10 * MS


class Bound(NamedTuple):
    """The most that a figure may be (ms for times), and why."""

    most: float
    why: str
    of_time: bool = True


BOUNDS = {
    "cancel_during_max_ms": Bound(
        1e3 * BACKPRESSURE_TIMEOUT_S, "nothing takes longer than a call would wait for room before it raises"
    ),
    "fire_wait_during_max_ms": Bound(1e3 * BACKPRESSURE_TIMEOUT_S, "the same"),
    "refusal_during_max_ms": Bound(1e3 * BACKPRESSURE_TIMEOUT_S, "the same: a refusal is told, it does not time out"),
    "cancel_during_p99_ms": Bound(
        250.0, "a few turns of 65,536 records a step (20 ms each), and two busy processes for each CPU between them"
    ),
    "fire_wait_during_p99_ms": Bound(250.0, "the same"),
    "recovered_ms": Bound(1e3, "normal service within a second of the end"),
    "stats_max_ms": Bound(5e3, "a start of Python among busy processes; what it reads needs no daemon"),
    "lateness_p99_ms": Bound(250.0, "as a cancel: a deadline waits for the turn that is under way"),
    "lateness_max_ms": Bound(1e3, "no operation is forgotten for a turn that others fill"),
    "full_refusal_max_ms": Bound(1e3 * BACKPRESSURE_TIMEOUT_S, "a full arena is said at once, not after a time"),
    "full_lateness_max_ms": Bound(1e3, "settling needs no room"),
}


def memory_bound(senders: int, frame: int, at_rest: int) -> int:
    """Private bytes that the daemon may have: libzmq's queues, full, each way, and what it had before."""
    # libzmq reads QUEUED_FRAMES_MAX frames of a client, and the one that is on its way; malloc may need as much again.
    up = (QUEUED_FRAMES_MAX + 1) * frame
    down = (QUEUED_REPORTS_MAX + QUEUED_ANSWERS_MAX) * min(REPORT_SIZE_MAX, 1 << 19)
    return at_rest + 2 * senders * up + senders * down + SPARE_BYTES


# senders --------------------------------------------------------------------------------------------------------------


def register(key: bytes, timeout_ns: int) -> bytes:
    flags, size = RegisterFlag.NO_MARK, REGISTER_SIZE + 2 + len(key)
    fixed: bytes = pack_register(
        CommandKind.REGISTER, 0, flags, size, Condition.AT_LEAST, 1, 1, 0, 0, 0, timeout_ns, 0, 0, 0
    )
    return fixed + bytes((len(key), KeyKind.EVENT)) + key


def fire(key: bytes, value: bytes = b"") -> bytes:
    fixed: bytes = pack_key(
        CommandKind.FIRE, 0, 0, len(key), KEY_COMMAND_SIZE + len(key) + len(value), 1, len(value), 0
    )
    return fixed + key + value


def packed(message: dict[str, Any]) -> bytes:
    return bytes(msgpack.packb(message))


def bodies(flood: str, sender: int) -> list[tuple[UpKind, int, bytes]]:
    """What follows the headers, again and again: (kind, number of commands, bytes)."""
    keys = [b"%d/%d" % (sender, number) for number in range(BODIES * COMMANDS // 2)]
    pairs = [command for key in keys for command in (register(key, 60 * S), fire(key))]
    match flood:
        case "commands":
            frames = [pairs[at : at + COMMANDS] for at in range(0, len(pairs), COMMANDS)]
        case "single":
            frames = [[command] for command in pairs]
        case "largest":
            large = fire(keys[0], os.urandom(PAYLOAD_SIZE_MAX))
            frames = [[large] * ((FRAME_SIZE_MAX - HEADER.size) // len(large))]
        case "asks":
            return [(UpKind.ASK, 0, b"")]
        case "queries":
            return [(UpKind.QUERY, 0, packed({"id": 1, "query": "ping"}))]
        case "snapshots":
            return [(UpKind.QUERY, 0, packed({"id": 1, "query": "snapshot"}))]
        case _:
            assert flood == "hellos", flood
            return [(UpKind.HELLO, 0, b"")]
    return [(UpKind.COMMANDS, len(commands), b"".join(commands)) for commands in frames]


class Counts:
    """What the processes share. Of each sender: one writes, the others read."""

    NAMES = ("asked", "held_back", "sent", "applied", "told_expected", "hellos")

    def __init__(self, senders: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.phase = context.Value("i", 0, lock=False)  # 0 wait, 1 the first one keeps up, 2 flood, 3 end
        self.rate = context.Value("d", 0.0, lock=False)  # commands a second, of each sender
        self.ready = context.Value("i", 0)
        self.rows: list[Array[Any]] = [context.Array("Q", len(self.NAMES), lock=False) for _ in range(senders)]

    def total(self, name: str) -> int:
        return sum(int(row[self.NAMES.index(name)]) for row in self.rows)


class Sender:
    """One process that floods. What it is told matters to it only as far as it has to go on."""

    def __init__(self, paths: InstancePaths, flood: str, index: int, counts: Counts) -> None:
        self.flood, self.index, self.counts, self.row = flood, index, counts, counts.rows[index]
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.commands, self.outcomes = self.context.socket(zmq.DEALER), self.context.socket(zmq.XSUB)
        for socket in (self.commands, self.outcomes):
            socket.set(zmq.LINGER, 0)
            socket.set(zmq.RECONNECT_IVL, RECONNECT_MS)
            socket.set(zmq.SNDHWM, 8)
        self.reads_answers = flood != "asks"
        if not self.reads_answers:
            self.commands.set(zmq.RCVHWM, 1)
        self.outcomes.connect(paths.outcomes_endpoint)
        self.commands.connect(paths.commands_endpoint)
        self.protocol = Protocol(identity(f"sender-{index}", Orphans.CANCEL, None), time.monotonic_ns())
        self.next = 1
        self.applied = 0
        self.outcome = self.answer = 0  # acknowledged
        self.hello_body = b""

    def count(self, name: str, amount: int = 1) -> None:
        self.row[Counts.NAMES.index(name)] += amount

    def greet(self) -> None:
        """Say hello until it is welcomed and heard, as any client does."""
        protocol = self.protocol
        while protocol.state is not LinkState.LIVE:
            now_ns = time.monotonic_ns()
            if now_ns >= protocol.poll_deadline():
                protocol.tick(now_ns)
            while (frame := protocol.next_frame(now_ns)) is not None:
                if frame[1] == UpKind.HELLO:
                    self.hello_body = frame[HEADER.size :]
                self.commands.send(frame)
            while protocol.subscriptions:
                self.outcomes.send(protocol.subscriptions.popleft())
            for socket, published in ((self.outcomes, True), (self.commands, False)):
                with contextlib.suppress(zmq.Again):
                    while True:
                        protocol.receive(socket.recv(zmq.DONTWAIT), now_ns, published=published)
            time.sleep(0.001)
        self.count("hellos")
        self.applied = protocol.applied
        self.next = self.applied + 1

    def header(self, kind: UpKind, count: int) -> bytes:
        header: bytes = HEADER.pack(
            PROTOCOL_VERSION,
            kind,
            0,
            count,
            self.protocol.arena,
            self.protocol.session,
            self.next,
            self.outcome,
            self.answer,
        )
        return header

    def hear(self) -> None:
        """Take what was sent; acknowledge all of it."""
        self._drain(self.outcomes)
        if self.reads_answers:
            self._drain(self.commands)
        self.row[Counts.NAMES.index("applied")] = self.applied

    def _drain(self, socket: zmq.Socket[bytes]) -> None:
        with contextlib.suppress(zmq.Again):
            for _ in range(256):
                frame = socket.recv(zmq.DONTWAIT)
                report = ReportHeader._make(REPORT.unpack_from(frame))
                self.applied = max(self.applied, report.applied)
                if self.reads_answers:
                    self.outcome = max(self.outcome, report.outcome_newest)
                    self.answer = max(self.answer, report.answer_newest)
                if report.kind == DownKind.EXPECTED:
                    self.count("told_expected")
                    self.next = report.applied + 1
                elif report.kind == DownKind.HELLO_FIRST:
                    self.protocol.receive(frame, time.monotonic_ns(), published=False)
                    self.greet()

    def send(self, kind: UpKind, count: int, body: bytes) -> bool:
        try:
            self.commands.send(self.header(kind, count) + body, zmq.DONTWAIT)
        except zmq.Again:
            return False
        self.next += count
        self.count("sent", count or 1)
        return True

    def run(self) -> None:
        """Wait for the phases, and do what they say."""
        counts = self.counts
        self.greet()
        if self.flood == "asks":
            self.leave_outcomes()
        with counts.ready.get_lock():
            counts.ready.value += 1
        while counts.phase.value == 0:
            time.sleep(0.005)
        if self.index == 0:
            self.keep_up()
        while counts.phase.value < 2:
            time.sleep(0.005)
        self.overrun()
        self.context.destroy(linger=0)

    def leave_outcomes(self) -> None:
        """Have outcomes that are never acknowledged."""
        pairs = [command for _ in range(ASKED_FOR // 2) for command in (register(b"asked for", 0),) * 2]
        self.send(UpKind.COMMANDS, len(pairs), b"".join(pairs))
        while self.applied < len(pairs):
            self._drain(self.outcomes)
            time.sleep(0.001)

    def keep_up(self) -> None:
        """Send as fast as is applied."""
        frames = cycle(bodies("single" if self.flood == "single" else "commands", self.index))
        while self.counts.phase.value == 1:
            kind, count, body = next(frames)
            while self.next - 1 - self.applied + count > IN_FLIGHT and self.counts.phase.value == 1:
                self.rest()
            while not self.send(kind, count, body) and self.counts.phase.value == 1:
                self.rest()

    def rest(self) -> None:
        """Leave the processor to the daemon for a moment, and hear what it says."""
        time.sleep(0.0002)
        self.hear()

    def overrun(self) -> None:
        """Send what the clock says, and leave out what the socket does not take."""
        frames = bodies(self.flood, self.index)
        if self.flood == "hellos":
            hello = dict(msgpack.unpackb(self.hello_body), waits=list(range(1 << 20, (1 << 20) + WAITS)))
            frames = [(UpKind.HELLO, 0, packed(hello))]
        turn = cycle(frames)
        rate, began_ns, asked = self.counts.rate.value, time.monotonic_ns(), 0
        kind, count, body = next(turn)
        while self.counts.phase.value == 2:
            due = rate * (time.monotonic_ns() - began_ns) / S
            if asked + max(count, 1) > due:
                self.hear()
                time.sleep(0.0005)
            for _ in range(64):
                if asked + max(count, 1) > due:
                    break
                if not self.send(kind, count, body):
                    left_out = int(due - asked)
                    asked += left_out
                    self.count("held_back", left_out)
                    self.count("asked", left_out)
                    time.sleep(0.0002)
                    break
                asked += max(count, 1)
                self.count("asked", max(count, 1))
                kind, count, body = next(turn)
            self.hear()


def send_from(paths: InstancePaths, flood: str, index: int, counts: Counts) -> None:
    Sender(paths, flood, index, counts).run()


# the client beside them -----------------------------------------------------------------------------------------------


class Round(NamedTuple):
    """A call that was answered."""

    what: str
    at_ns: int
    took_ns: int


class Customer(threading.Thread):
    """A client of the usual kind, which cancels, fires and is refused, again and again, and judges what it gets."""

    def __init__(self, instance: str) -> None:
        super().__init__(name="customer")
        self.client = td.connect(instance, timeout=PATIENCE_S, name="customer")
        self.taken = self.client.register("taken", timeout=None, id="taken")
        self.rounds: list[Round] = []
        self.told: dict[int, int] = {}  # how often each operation was told
        self.wrong: list[str] = []
        self.stop = threading.Event()

    def run(self) -> None:
        number = 0
        while not self.stop.wait(0.002):
            number += 1
            try:
                self.time("cancel", self.cancel, number)
                self.time("fire_wait", self.fire_wait, number)
                self.time("refusal", self.be_refused, number)
            except td.TimerdError as error:
                self.wrong.append(f"round {number}: {error!r}")

    def time(self, what: str, call: Callable[[int], None], number: int) -> None:
        before_ns = time.monotonic_ns()
        call(number)
        self.rounds.append(Round(what, before_ns, time.monotonic_ns() - before_ns))

    def watch(self, operation: td.Operation, number: int) -> None:
        self.told.setdefault(number, 0)

        def tell(_: object) -> None:
            self.told[number] += 1

        operation.add_done_callback(tell)

    def cancel(self, number: int) -> None:
        operation = self.client.register("never", timeout=600)
        self.watch(operation, 2 * number)
        self.judge("cancel()", operation.cancel(), True)
        self.judge("a cancelled operation", operation.result(PATIENCE_S).state, td.State.CANCELLED)

    def fire_wait(self, number: int) -> None:
        operation = self.client.register("mine", timeout=600)
        self.watch(operation, 2 * number + 1)
        self.judge("fire_wait()", self.client.fire_wait("mine", value=b"yours"), 1)
        self.judge("a completed operation", operation.result(PATIENCE_S).value, b"yours")

    def be_refused(self, number: int) -> None:
        error = self.client.register("taken", timeout=600, id=b"taken").result(PATIENCE_S).error
        self.judge("an id that is taken", type(error), td.OperationExistsError)

    def judge(self, what: str, found: object, right: object) -> None:
        if found != right:
            self.wrong.append(f"{what} was {found!r}, not {right!r}")

    def close(self) -> list[str]:
        """End it; what was wrong."""
        self.stop.set()
        self.join()
        self.taken.cancel()
        often = {number: times for number, times in self.told.items() if times != 1}
        if often:
            self.wrong.append(f"operations that were not told once: {dict(list(often.items())[:5])}")
        if unknown := self.client.stats().outcomes_unknown:
            self.wrong.append(f"{unknown} outcomes that nobody waited for")
        self.client.close()
        return self.wrong


class Watcher(threading.Thread):
    """The daemon's memory ten times a second, and `timerctl stats` each second."""

    def __init__(self, paths: InstancePaths, pid: int) -> None:
        super().__init__(name="watcher")
        self.paths, self.process = paths, psutil.Process(pid)
        self.memory: list[tuple[float, int]] = []  # (seconds, private bytes)
        self.stats_ns: list[int] = []
        self.counters: dict[str, int] = {}  # of the daemon, as it was told last
        self.wrong: list[str] = []
        self.stop = threading.Event()

    def private(self) -> int:
        """Bytes of its memory that are not the arena's."""
        memory = self.process.memory_info()
        return int(memory.rss - memory.shared)

    def run(self) -> None:
        began = last = time.monotonic()
        while not self.stop.wait(0.1):
            now = time.monotonic()
            self.memory.append((round(now - began, 1), self.private()))
            if now - last >= 1:
                last = now
                self.ask()

    def ask(self) -> None:
        command = [
            sys.executable,
            "-m",
            "timerd_client.timerctl",
            "stats",
            "--json",
            f"--instance={self.paths.instance}",
        ]
        before_ns = time.monotonic_ns()
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
        self.stats_ns.append(time.monotonic_ns() - before_ns)
        if done.returncode:
            self.wrong.append(f"timerctl stats ended with {done.returncode}: {done.stderr.strip()}")
        else:
            self.counters = json.loads(done.stdout)["counters"]

    def close(self) -> None:
        self.stop.set()
        self.join()


# the run --------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def daemon(*flags: str) -> Iterator[tuple[InstancePaths, int]]:
    """A daemon that this process's clients find, and its pid."""
    with private_daemon(flags) as paths:
        os.environ[RUNTIME_DIR_VARIABLE] = str(paths.directory)
        reader = ArenaReader.from_descriptor(open_arena_file(paths))
        pid = reader.header().pid
        reader.close()
        yield paths, pid


@contextlib.contextmanager
def crew(paths: InstancePaths, flood: str, senders: int) -> Iterator[Counts]:
    """Sender processes that have said hello."""
    context, counts = multiprocessing.get_context("spawn"), Counts(senders)
    processes = [
        context.Process(target=send_from, args=(paths, flood, index, counts), daemon=True) for index in range(senders)
    ]
    for process in processes:
        process.start()
    try:
        end = time.monotonic() + PATIENCE_S
        while counts.ready.value < senders:
            if time.monotonic() > end or not all(process.is_alive() for process in processes):
                raise SystemExit("overload: a sender did not begin")
            time.sleep(0.01)
        yield counts
    finally:
        counts.phase.value = 3
        for process in processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()


def overload(flood: str, seconds: float, senders: int) -> dict[str, Any]:
    """Everything but the full arena."""
    short_s = min(max(seconds / 6, 0.4), 2.0)
    with daemon() as (paths, pid), crew(paths, flood, senders) as counts:
        counts.phase.value = 1
        time.sleep(short_s / 2)
        began, first = time.monotonic(), counts.total("applied")
        time.sleep(short_s)
        sustained = (counts.total("applied") - first) / (time.monotonic() - began)
        counts.phase.value = 0
        customer, watcher = Customer(paths.instance), Watcher(paths, pid)
        at_rest = watcher.private()
        customer.start()
        watcher.start()
        before_ns = time.monotonic_ns()
        time.sleep(short_s)
        counts.rate.value = RATES.get(flood, OVER * sustained) / senders
        start = {name: counts.total(name) for name in Counts.NAMES}
        client = td.connect(paths.instance, timeout=PATIENCE_S)
        spread = [0.2 + (seconds + 0.5) * row / PENDING for row in range(PENDING)]
        batch = client.register_many([b"pending"] * PENDING, timeout=spread)
        counts.phase.value = 2
        during_ns = time.monotonic_ns()
        time.sleep(seconds)
        done = {name: counts.total(name) - start[name] for name in Counts.NAMES}
        counts.phase.value = 3
        after_ns = time.monotonic_ns()
        time.sleep(1.0 + short_s)
        rounds = list(customer.rounds)  # those that follow share this process with the reckoning
        outcomes = batch.outcomes(PATIENCE_S)
        states = {outcome.state.name for outcome in outcomes}
        wrong = [] if states == {"EXPIRED"} else [f"pending operations ended as {states}"]
        wrong += [f"{client.stats().outcomes_unknown} outcomes twice"] if client.stats().outcomes_unknown else []
        client.close()
        watcher.close()
        wrong += customer.close() + watcher.wrong
    spans = {"before": (before_ns, during_ns), "during": (during_ns, after_ns), "after": (after_ns, after_ns + S)}
    frame = max(len(body) for _, _, body in bodies(flood, 0)) + HEADER.size + (5 * WAITS if flood == "hellos" else 0)
    return {
        "flood": flood,
        "sustained_rate": round(sustained),
        **{f"{name}_rate": round(done[name] / seconds) for name in ("asked", "sent", "held_back", "applied")},
        "told_expected": done["told_expected"],
        "hellos": done["hellos"],
        "latency_us": {
            what: {
                when: percentiles(r.took_ns for r in customer.rounds if r.what == what and first_ns <= r.at_ns < end_ns)
                for when, (first_ns, end_ns) in spans.items()
            }
            for what in ("cancel", "fire_wait", "refusal")
        },
        "recovered_ms": recovered_ms(rounds, before_ns, during_ns, after_ns),
        "lateness_us": percentiles(outcome.lateness_ns for outcome in outcomes if outcome.state is td.State.EXPIRED),
        "stats_us": percentiles(watcher.stats_ns),
        "private_bytes": {
            "at_rest": at_rest,
            "max": max(size for _, size in watcher.memory),
            "bound": memory_bound(senders, frame, at_rest),
        },
        "counters": watcher.counters,
        "rounds": len(customer.rounds),
        "wrong": wrong,
    }


def recovered_ms(rounds: Sequence[Round], before_ns: int, during_ns: int, after_ns: int) -> float:
    """When most round trips are as before for good, after the end. In tenths of a second, by their medians."""
    median = statistics.median(r.took_ns for r in rounds if before_ns <= r.at_ns < during_ns)
    slices: dict[int, list[int]] = {}
    for r in rounds:
        slices.setdefault((r.at_ns + r.took_ns - after_ns) // SLICE_NS, []).append(r.took_ns)
    slow = [at for at, took in slices.items() if at >= 0 and statistics.median(took) > 5 * median + SLOWER_NS]
    return max(slow, default=-1) * SLICE_NS / MS + SLICE_NS / MS


def fill(seconds: float) -> dict[str, Any]:
    """A full arena: two clients take what there is, a third one's operations settle, who comes is refused by name."""
    wrong: list[str] = []
    refused_ns: list[int] = []
    with daemon(f"--capacity={SMALL}") as (paths, _), contextlib.ExitStack() as stack:
        customer, *fillers = [stack.enter_context(td.connect(paths.instance, timeout=PATIENCE_S)) for _ in range(3)]
        many = SMALL // 8
        # They come due in the second half, so that until then nothing makes room.
        due = [seconds * (0.5 + 0.5 * n / many) for n in range(many)]
        pending, kept = customer.register_many([b"due"] * many, timeout=due), customer.register("kept", timeout=None)
        customer.flush()
        end = time.monotonic() + seconds / 2
        filled = [filler.register_many([b"full"] * SMALL, timeout=seconds) for filler in fillers]
        for filler in fillers:
            filler.flush()
        while time.monotonic() < end - 0.1:
            before_ns = time.monotonic_ns()
            try:
                customer.register("one more", timeout=60, wait=True)
                wrong.append("there was room in a full arena")
            except td.ArenaFullError as error:
                refused_ns.append(time.monotonic_ns() - before_ns)
                if f"{SMALL} of {SMALL}" not in str(error) or "--capacity" not in str(error):
                    wrong.append(f"refused without the limit and the remedy: {error}")
            time.sleep(0.005)
        if not kept.cancel():
            wrong.append("a cancel was refused in a full arena")
        late = [outcome.lateness_ns for outcome in pending.outcomes(PATIENCE_S) if outcome.state is td.State.EXPIRED]
        if len(late) != many:
            wrong.append(f"{len(late)} of {many} pending operations expired")
        ends = [outcome for batch in filled for outcome in batch.outcomes(PATIENCE_S)]
        names = {type(outcome.error).__name__ for outcome in ends if outcome.error is not None}
        if not refused_ns or not {"ArenaFullError"} <= names <= {"ArenaFullError", "QuotaExceededError"}:
            wrong.append(f"the arena was not full: refusals were {names or 'none'}")
        if any(outcome.state is not td.State.EXPIRED and outcome.error is None for outcome in ends):
            wrong.append("an operation that was taken did not expire")
        again = customer.register("after", timeout=60)
        customer.fire("after")
        if not again.result(PATIENCE_S):
            wrong.append("no service after the arena was full")
    return {"refusal_us": percentiles(refused_ns), "lateness_us": percentiles(late), "refusals": names, "wrong": wrong}


def bounds(suite: Suite, run: dict[str, Any], full: dict[str, Any], slack: float) -> None:
    """Claim each bound, and that nothing was wrong otherwise."""
    figures = {
        "recovered_ms": run["recovered_ms"],
        "stats_max_ms": run["stats_us"]["max"] / 1e3,
        "lateness_p99_ms": run["lateness_us"]["p99"] / 1e3,
        "lateness_max_ms": run["lateness_us"]["max"] / 1e3,
        "full_refusal_max_ms": full["refusal_us"]["max"] / 1e3,
        "full_lateness_max_ms": full["lateness_us"]["max"] / 1e3,
    }
    for what, spans in run["latency_us"].items():
        figures |= {f"{what}_during_{name}_ms": spans["during"][name] / 1e3 for name in ("p99", "max")}
        if not spans["during"]["count"] or not spans["after"]["count"]:
            figures[f"{what}_during_max_ms"] = float("inf")
    for name, bound in BOUNDS.items():
        most = bound.most * slack
        suite.check(name, figures[name] <= most, f"{figures[name]:.1f}, and at most {most:g} is right: {bound.why}")
    memory = run["private_bytes"]
    held = memory["max"] <= memory["bound"]
    suite.check("private_bytes", held, f"{memory['max']:,} at most; the bound is {memory['bound']:,}")
    wrong = [*run["wrong"], *full["wrong"]]
    suite.check("outcomes", not wrong, "; ".join(wrong) or "every outcome and refusal was right")


def rows(suite: Suite, run: dict[str, Any], full: dict[str, Any]) -> None:
    """The figures, as tables."""
    flood = run["flood"]
    names = ("sustained_rate", "asked_rate", "sent_rate", "held_back_rate", "applied_rate", "told_expected", "hellos")
    suite.add("flood", flood=flood, **{name: run[name] for name in names}, recovered_ms=run["recovered_ms"])
    for what, spans in run["latency_us"].items():
        for when, values in spans.items():
            suite.add("latency_us", flood=flood, what=what, when=when, **values)
    suite.add("latency_us", flood=flood, what="lateness of what was pending", when="during", **run["lateness_us"])
    suite.add("latency_us", flood=flood, what="timerctl stats", when="during", **run["stats_us"])
    suite.add("latency_us", flood=flood, what="refusal", when="arena full", **full["refusal_us"])
    suite.add("latency_us", flood=flood, what="lateness", when="arena full", **full["lateness_us"])
    memory = run["private_bytes"]
    suite.add("private_bytes", flood=flood, **{name: memory[name] for name in ("at_rest", "max", "bound")})


def play(suite: Suite) -> None:
    args = suite.args
    suite.say(f"a flood of {args.flood}, {args.seconds:g} s")
    run = overload(args.flood, args.seconds, args.senders)
    suite.say("a full arena")
    full = fill(min(args.seconds / 3, 3.0))
    rows(suite, run, full)
    bounds(suite, run, full, args.slack)


def main() -> int:
    parser = Parser("overload", __doc__)
    parser.size("--seconds", real(1, 3_600, "seconds"), "30", "3", "of the flood")
    parser.add_argument("--senders", type=amount(1, 64, "processes"), default=3, help="processes (3)")
    kinds = ["commands", "single", "largest", *RATES]
    parser.add_argument("--flood", default="commands", choices=kinds, help="what they send (commands)")
    parser.add_argument(
        "--slack", type=real(1, 1_000, ""), default=1.0, help="bounds of time so many times as wide (1)"
    )
    return run_suite(parser, play)


if __name__ == "__main__":
    sys.exit(main())
