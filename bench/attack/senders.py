"""The senders of a flood: processes that encode frames themselves, and memory that they share with the main process."""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
import time
from collections.abc import Iterator
from ctypes import Array
from enum import IntEnum
from itertools import cycle
from typing import Any

import zmq

import msgpack
from timerd_client.discovery.identity import identity
from timerd_client.protocol.protocol import Protocol
from timerd_client.protocol.state import LinkState
from timerd_client.transport.zmq_sockets import RECONNECT_MS
from timerd_shm.declare.fields import struct_of
from timerd_shm.declare.states import Orphans
from timerd_shm.declare.wire import PROTOCOL_VERSION, DownKind, ReportHeader, UpKind
from timerd_shm.host.paths import InstancePaths
from timerd_wire.outlet import SUBSCRIBE, connect_outlet

from .frames import HEADER, WAITS, S, bodies, packed, register

IN_FLIGHT = 65_536  # the most commands of the sender in phase KEEP_UP that are sent and not yet applied
ASKED_FOR = 4_096  # outcomes that a sender of the flood `asks` leaves unacknowledged
SINK_FRAMES = 8  # queued at the sink's socket, at most
PATIENCE_S = 30.0
REPORT = struct_of(ReportHeader)


class Phase(IntEnum):
    """The phases of the senders. The main process sets one after the other."""

    WAIT = 0
    UNHINDERED = 1  # all senders write to the sink
    KEEP_UP = 2  # the first sender sends as fast as the daemon applies
    PAUSE = 3
    FLOOD = 4
    END = 5


class Counts:
    """Counts in shared memory. Each sender writes a row of its own, and the main process reads all."""

    NAMES = ("asked", "held_back", "sent", "unhindered", "applied", "told_expected", "hellos")

    def __init__(self, senders: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.phase = context.Value("i", Phase.WAIT, lock=False)
        self.rate = context.Value("d", 0.0, lock=False)  # commands a second for each sender
        self.ready = context.Value("i", 0)
        self.rows: list[Array[Any]] = [context.Array("Q", len(self.NAMES), lock=False) for _ in range(senders)]

    def total(self, name: str) -> int:
        return sum(int(row[self.NAMES.index(name)]) for row in self.rows)


class Sink(threading.Thread):
    """A socket that receives every frame, and drops it."""

    def __init__(self, paths: InstancePaths) -> None:
        super().__init__(name="sink")
        self.endpoint = f"ipc://{paths.directory}/sink"
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.set(zmq.LINGER, 0)
        self._socket.set(zmq.RCVHWM, SINK_FRAMES)
        self._socket.bind(self.endpoint)
        self._stopping = threading.Event()

    def run(self) -> None:
        while not self._stopping.is_set():
            if self._socket.poll(10):
                with contextlib.suppress(zmq.Again):
                    while True:
                        self._socket.recv(zmq.DONTWAIT, copy=False)

    def close(self) -> None:
        self._stopping.set()
        self.join()
        self._context.destroy(linger=0)


class Sender:
    """One process that floods. It reads the daemon's answers only as far as it needs them."""

    def __init__(self, paths: InstancePaths, sink: str, flood: str, index: int, counts: Counts) -> None:
        self.sink, self.flood, self.index, self.counts, self.row = sink, flood, index, counts, counts.rows[index]
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.commands, self.outcomes = self.context.socket(zmq.DEALER), self.context.socket(zmq.XSUB)
        for socket in (self.commands, self.outcomes):
            socket.set(zmq.LINGER, 0)
            socket.set(zmq.RECONNECT_IVL, RECONNECT_MS)
            socket.set(zmq.SNDHWM, 8)
        self.reads_answers = flood != "asks"
        if not self.reads_answers:
            self.commands.set(zmq.RCVHWM, 1)
        self.outcomes.send(SUBSCRIBE)
        self.paths = paths
        self.commands.connect(paths.commands_endpoint)
        self.protocol = Protocol(identity(f"sender-{index}", Orphans.CANCEL, None), time.monotonic_ns())
        self.next = 1
        self.applied = 0
        self.outcome = self.answer = 0  # the newest outcome and the newest answer that the next header acknowledges
        self.hello_body = b""

    def count(self, name: str, amount: int = 1) -> None:
        self.row[Counts.NAMES.index(name)] += amount

    def greet(self) -> None:
        """Send hellos until this client is live, as any client does."""
        protocol = self.protocol
        while protocol.state is not LinkState.LIVE:
            now_ns = time.monotonic_ns()
            if now_ns >= protocol.poll_deadline():
                protocol.tick(now_ns)
            while (frame := protocol.next_frame(now_ns)) is not None:
                if frame[1] == UpKind.HELLO:
                    self.hello_body = frame[HEADER.size :]
                self.commands.send(frame)
            while protocol.session.subscriptions:
                connect_outlet(self.outcomes, self.paths.outcomes_endpoint, protocol.session.subscriptions.popleft())
            for socket, published in ((self.outcomes, True), (self.commands, False)):
                with contextlib.suppress(zmq.Again):
                    while True:
                        protocol.receive(socket.recv(zmq.DONTWAIT), now_ns, published=published)
            time.sleep(0.001)
        self.count("hellos")
        self.applied = protocol.ledger.applied
        self.next = self.applied + 1

    def header(self, kind: UpKind, count: int) -> bytes:
        header: bytes = HEADER.pack(
            PROTOCOL_VERSION,
            kind,
            0,
            count,
            self.protocol.session.arena,
            self.protocol.session.secret,
            self.next,
            self.outcome,
            self.answer,
        )
        return header

    def receive(self) -> None:
        """Receive frames. The next header acknowledges all of them, except in the flood `asks`."""
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
        """Wait for each phase, and do its work."""
        counts = self.counts
        self.greet()
        if self.flood == "asks":
            self.leave_outcomes()
        with counts.ready.get_lock():
            counts.ready.value += 1
        self.wait_for(Phase.UNHINDERED)
        self.write_all()
        self.wait_for(Phase.KEEP_UP)
        if self.index == 0:
            self.keep_up()
        self.wait_for(Phase.FLOOD)
        self.overrun()
        self.context.destroy(linger=0)

    def wait_for(self, phase: Phase) -> None:
        """Sleep until this phase or a later one."""
        while self.counts.phase.value < phase:
            time.sleep(0.002)

    def leave_outcomes(self) -> None:
        """Cause outcomes that are never acknowledged."""
        pairs = [command for _ in range(ASKED_FOR // 2) for command in (register(b"asked for", 0),) * 2]
        self.send(UpKind.COMMANDS, len(pairs), b"".join(pairs))
        while self.applied < len(pairs):
            self._drain(self.outcomes)
            time.sleep(0.001)

    def frames(self) -> list[tuple[UpKind, int, bytes]]:
        """The frames of this sender's flood, without headers."""
        if self.flood != "hellos":
            return bodies(self.flood, self.index)
        hello = dict(msgpack.unpackb(self.hello_body), waits=list(range(1 << 20, (1 << 20) + WAITS)))
        return [(UpKind.HELLO, 0, packed(hello))]

    def write_all(self) -> None:
        """Write the frames of the flood to the sink, which only drops them."""
        sink = self.context.socket(zmq.DEALER)
        sink.set(zmq.LINGER, 0)
        sink.set(zmq.SNDHWM, self.commands.get(zmq.SNDHWM))
        sink.connect(self.sink)
        for kind, count, body in cycle(self.frames()):
            while self.counts.phase.value == Phase.UNHINDERED:
                with contextlib.suppress(zmq.Again):
                    sink.send(self.header(kind, count) + body, zmq.DONTWAIT)
                    self.count("unhindered", max(count, 1))
                    break
                time.sleep(0.0002)
            if self.counts.phase.value != Phase.UNHINDERED:
                break
        sink.close()

    def keep_up(self) -> None:
        """Send as fast as the daemon applies."""
        frames = cycle(bodies("single" if self.flood == "single" else "commands", self.index))
        while self.counts.phase.value == Phase.KEEP_UP:
            kind, count, body = next(frames)
            while self.next - 1 - self.applied + count > IN_FLIGHT and self.counts.phase.value == Phase.KEEP_UP:
                self.rest()
            while not self.send(kind, count, body) and self.counts.phase.value == Phase.KEEP_UP:
                self.rest()

    def rest(self) -> None:
        """Leave the processor to the daemon for a moment, and receive its frames."""
        time.sleep(0.0002)
        self.receive()

    def overrun(self) -> None:
        """Send at the rate of the flood. Commands that are due while the socket is full are skipped."""
        frames = cycle(self.frames())
        rate, began_ns, asked = self.counts.rate.value, time.monotonic_ns(), 0
        kind, count, body = next(frames)
        while self.counts.phase.value == Phase.FLOOD:
            due = rate * (time.monotonic_ns() - began_ns) / S
            if asked + max(count, 1) > due:
                self.receive()
                time.sleep(0.0005)
            for _ in range(64):
                if asked + max(count, 1) > due:
                    break
                if not self.send(kind, count, body):
                    skipped = int(due - asked)
                    asked += skipped
                    self.count("held_back", skipped)
                    self.count("asked", skipped)
                    time.sleep(0.0002)
                    break
                asked += max(count, 1)
                self.count("asked", max(count, 1))
                kind, count, body = next(frames)
            self.receive()


def send_from(paths: InstancePaths, sink: str, flood: str, index: int, counts: Counts) -> None:
    Sender(paths, sink, flood, index, counts).run()


@contextlib.contextmanager
def crew(paths: InstancePaths, flood: str, senders: int) -> Iterator[Counts]:
    """Run the sender processes. Each one is live when the block begins."""
    context, counts, sink = multiprocessing.get_context("spawn"), Counts(senders), Sink(paths)
    sink.start()
    processes = [
        context.Process(target=send_from, args=(paths, sink.endpoint, flood, index, counts), daemon=True)
        for index in range(senders)
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
        counts.phase.value = Phase.END
        for process in processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
        sink.close()
