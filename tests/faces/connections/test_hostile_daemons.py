"""A client beside a hostile daemon, over real sockets: each odd answer raises a TimerdError that says what was odd."""

from __future__ import annotations

import asyncio
import os
import random
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import pytest
import zmq

import msgpack
import timerd as td
from support.fakes.fakedaemon import HEADER, FakeDaemon
from support.fakes.mutations import down
from support.real.patience import PATIENCE_S
from support.real.planted_files import within
from timerd_shm.declare.errors import MalformedError
from timerd_shm.declare.fields import offset_of, size_of, unpack
from timerd_shm.declare.wire import CommandHeader, DownKind, OutcomeRecord, PacketKind, ReportHeader, UpKind
from timerd_shm.host.paths import InstancePaths

TRANSPORTS: tuple[td.Transport, ...] = ("zeromq", "unix")
STATE = size_of(ReportHeader) + offset_of(OutcomeRecord, "state")
ROUNDS = 40
LONG_S = 60.0
PACKET = 1 + 131_072


def as_it_is(frame: bytes) -> list[bytes]:
    return [frame]


class HostileDaemon:
    """A FakeDaemon whose answers and frames a test changes. Serves one client at a time, over both transports.

    daemon.results["watermark"] = {"watermark": "x"}         # answers to questions
    daemon.twist = lambda frame: [frame[:9]]                 # any frame to the client
    """

    def __init__(self, paths: InstancePaths) -> None:
        self.paths = paths
        self.results: dict[str, dict[str, Any]] = {}
        self.twist: Callable[[bytes], list[bytes]] = as_it_is
        self.hellos = 0
        self.flood = b""  # a frame to be sent without end
        self._fake = FakeDaemon()
        self._stop, self._stopping = os.pipe()
        self._thread = threading.Thread(target=self._run)
        self._live = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._packets = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for listener, path in ((self._live, paths.liveness), (self._packets, paths.packets)):
            listener.bind(str(path))
            listener.listen()
        self._context = zmq.Context()
        self._router, self._outlet = self._context.socket(zmq.ROUTER), self._context.socket(zmq.XPUB)
        self._access = self._context.socket(zmq.REP)  # lets everybody in (ZAP, RFC 27)
        self._access.bind("inproc://zeromq.zap.01")
        self._outlet.plain_server = True
        self._router.bind(paths.commands_endpoint)
        self._outlet.bind(paths.outcomes_endpoint)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.write(self._stopping, b"x")
        self._thread.join()
        for one in (self._stop, self._stopping):
            os.close(one)
        for listener in (self._live, self._packets):
            listener.close()
        self._context.destroy(linger=0)
        for path in (self.paths.liveness, self.paths.packets, self.paths.commands, self.paths.outcomes):
            path.unlink(missing_ok=True)

    def _run(self) -> None:
        poller = zmq.Poller()
        held: dict[int, socket.socket] = {}
        for one in (self._router, self._outlet, self._access, self._live.fileno(), self._packets.fileno(), self._stop):
            poller.register(one, zmq.POLLIN)
        try:
            while True:
                if self.flood:
                    self._publish(self.flood, held)
                for ready, _ in poller.poll(0 if self.flood else None):
                    if ready == self._stop:
                        return
                    if ready is self._router:
                        peer, frame = self._router.recv_multipart()
                        self._take(frame)
                        for answer in self._down(self._fake.routed):
                            self._router.send_multipart([peer, answer])
                    elif ready is self._access:
                        version, request, *_ = self._access.recv_multipart()
                        self._access.send_multipart([version, request, b"200", b"OK", b"", b""])
                    elif ready is self._outlet:
                        if self._outlet.recv()[:1] == b"\x01":
                            self._fake.subscribe(self._fake.session)
                    elif ready in held:
                        if not self._packet(held[ready]):
                            poller.unregister(ready)
                            held.pop(ready).close()
                    else:
                        came, _ = (self._live if ready == self._live.fileno() else self._packets).accept()
                        held[came.fileno()] = came
                        poller.register(came.fileno(), zmq.POLLIN)
                    self._fake.turn()
                    for answer in self._down(self._fake.published):
                        self._publish(answer, held)
        finally:
            for connection in held.values():
                connection.close()

    def _publish(self, answer: bytes, held: dict[int, socket.socket]) -> None:
        self._outlet.send(answer)
        for one in held.values():
            if one.type == socket.SOCK_SEQPACKET:
                self._send(one, answer)

    def _packet(self, connection: socket.socket) -> bool:
        """Take a packet, and answer it. Returns False when the connection has ended."""
        try:
            packet = connection.recv(PACKET)
        except ConnectionResetError:
            return False
        if connection.type == socket.SOCK_STREAM:
            return bool(packet)
        if packet[:1] == bytes([PacketKind.SUBSCRIBE]):
            self._fake.subscribe(packet[1:])
        elif packet:
            self._take(packet[1:])
            for answer in self._down(self._fake.routed):
                self._send(connection, answer)
        return bool(packet)

    @staticmethod
    def _send(connection: socket.socket, frame: bytes) -> None:
        if select.select([], [connection], [], 0)[1]:
            with suppress(OSError):  # the client has ended the connection
                connection.send((bytes([PacketKind.FRAME]) + frame)[:PACKET])

    def _take(self, frame: bytes) -> None:
        header = unpack(CommandHeader, frame)
        if header.kind == UpKind.HELLO:
            self.hellos += 1
            self._fake.known = None  # so that each hello counts as that of a new client
            frame = frame[:HEADER].replace(header.session, bytes(16)) + frame[HEADER:]
        if header.kind == UpKind.QUERY:
            question = msgpack.unpackb(frame[HEADER:])
            if (answer := self.results.get(question["query"])) is not None:
                self._fake.routed.append(self._fake.message(DownKind.RESULT, {"id": question["id"], **answer}))
                return
        self._fake.receive(frame)

    def _down(self, frames: list[bytes]) -> list[bytes]:
        taken, frames[:] = list(frames), []
        return [twisted for frame in taken for twisted in self.twist(frame)]


@pytest.fixture
def hostile(runtime_dir: Path) -> Iterator[HostileDaemon]:
    with HostileDaemon(InstancePaths(runtime_dir, "default")) as daemon:
        yield daemon


def in_state(state: int) -> Callable[[bytes], list[bytes]]:
    """Change the state of the first outcome of each report."""

    def change(frame: bytes) -> list[bytes]:
        if len(frame) < size_of(ReportHeader) + size_of(OutcomeRecord) or frame[offset_of(ReportHeader, "kind")] != 1:
            return [frame]
        return [frame[:STATE] + bytes([state]) + frame[STATE + 1 :]]

    return change


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_odd_answers_to_questions_are_errors_that_show_them(hostile: HostileDaemon, transport: td.Transport) -> None:
    with td.connect(transport=transport, timeout=PATIENCE_S) as client:
        for answer, shown in (
            ({"watermark": "x"}, "watermark is 'x'"),
            ({"watermark": 5}, "index is None"),
            ({"watermark": 5, "index": 1, "hash": 1.5}, "hash is 1.5"),
            ({"watermark": -1, "index": 1, "hash": 1}, "watermark is -1"),
        ):
            hostile.results["watermark"] = answer
            with pytest.raises(MalformedError, match=f"the daemon's answer is odd: {shown}"):
                client.watermark("k", timeout=PATIENCE_S)
        for path in ("/etc/passwd", "../default.snapshot.x", 7, None, "/x/other.snapshot.1"):
            hostile.results["snapshot"] = {"path": path}
            with pytest.raises(MalformedError, match="the daemon's answer is odd: path is "):
                client.snapshot(timeout=PATIENCE_S)
        hostile.results["snapshot"] = {"path": "/elsewhere/default.snapshot.17"}
        assert client.snapshot(timeout=PATIENCE_S) == str(hostile.paths.snapshot(17)), "it is in the client's directory"

    async def ask() -> None:
        async with td.aio.connect(transport=transport, timeout=PATIENCE_S) as client:
            hostile.results["watermark"] = {"watermark": "x"}
            with pytest.raises(MalformedError, match="watermark is 'x'"):
                await client.watermark("k", timeout=PATIENCE_S)

    asyncio.run(ask())


@pytest.mark.parametrize("state", [0, 5, 6, 255])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_outcome_in_an_unknown_state_is_unavailable_and_names_that_state(
    hostile: HostileDaemon, transport: td.Transport, state: int
) -> None:
    hostile.twist = in_state(state)
    with td.connect(transport=transport, timeout=PATIENCE_S) as client:
        operation = client.register("k", timeout=None)
        client.fire("k", value=b"v")
        outcome = operation.result(PATIENCE_S)
        batch = client.register_many(["b"], timeout=None)
        client.fire("b")
        assert batch.states(timeout=PATIENCE_S) == [td.State.UNAVAILABLE]
        for each in (outcome, *batch.outcomes()):
            assert each.state is td.State.UNAVAILABLE and not each
            with pytest.raises(MalformedError, match=f"settled in state {state}, which no operation has"):
                each.check()
            assert f"state {state}" in repr(each) and each.lateness_ns == 0


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_random_frames_of_a_daemon_raise_nothing_but_errors_of_timerd(
    hostile: HostileDaemon, transport: td.Transport, seed: int
) -> None:
    draw = random.Random(seed)
    corpus = list(down(5, 77).values())

    def twist(frame: bytes) -> list[bytes]:
        kind = draw.randrange(6)
        if kind == 0:
            return [draw.randbytes(draw.randrange(200))]
        if kind == 1:
            return [draw.choice(corpus), frame]
        if kind == 2:
            at = draw.randrange(len(frame) + 1)
            return [frame[:at] + draw.randbytes(draw.randrange(9)) + frame[at + draw.randrange(9) :]]
        return [frame]

    def attempt(call: Callable[[], object]) -> None:
        with suppress(td.TimerdError):
            call()

    hostile.results["snapshot"] = {"path": 1}
    with td.connect(transport=transport, timeout=PATIENCE_S) as client:
        hostile.twist = twist
        for number in range(ROUNDS):
            operation = client.register(f"k{number}", timeout=0.01, payload=b"p")
            client.fire(f"k{number}", value=bytes(draw.randrange(100)))
            attempt(lambda: client.fire_wait("k", timeout=0.005))
            attempt(lambda: client.watermark("k", timeout=0.005))
            td.wait([operation], timeout=0.005)
            outcome = operation.outcome()
            if outcome is not None:
                assert repr(outcome)
                attempt(outcome.check)
        hostile.twist = lambda frame: [frame]
        attempt(lambda: client.close(timeout=0.1))
    assert hostile.hellos < 3 * ROUNDS


@pytest.mark.parametrize("kind", ["reports", "malformed"])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_daemon_that_sends_without_end_holds_up_no_caller_and_no_loop(
    hostile: HostileDaemon, transport: td.Transport, kind: str
) -> None:
    sound = down(5, 77)
    flood = {"reports": sound["report"], "malformed": sound["welcome"]}[kind]

    def attempt() -> None:
        with td.connect(transport=transport, timeout=PATIENCE_S) as client:
            hostile.flood = flood
            with pytest.raises(td.TimerdError):
                client.watermark("k", timeout=0.05)
            with pytest.raises((td.TimerdError, TimeoutError)):
                client.register("k", timeout=None).result(timeout=0.05)
            with suppress(td.TimerdError):
                client.close(timeout=0.05)

    async def in_loop() -> int:
        client = await td.aio.connect(transport=transport, timeout=PATIENCE_S)
        hostile.flood = flood
        ticks = 0
        for _ in range(20):
            await asyncio.sleep(0)
            ticks += 1
        with suppress(td.TimerdError):
            await client.close(timeout=0.05)
        return ticks

    hostile.results["watermark"] = {"watermark": None, "id": 0}  # the answer to another question
    assert within(LONG_S, attempt), "the caller is held up"
    hostile.flood = b""
    assert within(LONG_S, lambda: asyncio.run(in_loop())) == [20], "the loop is held up"
