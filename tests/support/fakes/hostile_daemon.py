"""A daemon that answers what a test wants, over real sockets of both transports: a FakeDaemon whose frames are changed.

with HostileDaemon(paths) as daemon:
    daemon.results["watermark"] = {"watermark": "x"}         # answers to questions
    daemon.twist = lambda frame: [frame[:9]]                 # any frame down
"""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable
from typing import Any, Self

import zmq

import msgpack
from support.fakes.fakedaemon import HEADER, FakeDaemon
from timerd_shm.declare.fields import unpack
from timerd_shm.declare.wire import CommandHeader, DownKind, PacketKind, UpKind
from timerd_shm.host.paths import InstancePaths

PACKET = 1 + 131_072


def as_it_is(frame: bytes) -> list[bytes]:
    return [frame]


class HostileDaemon:
    """Serves one client at a time, in a thread."""

    def __init__(self, paths: InstancePaths) -> None:
        self.paths = paths
        self.results: dict[str, dict[str, Any]] = {}
        self.twist: Callable[[bytes], list[bytes]] = as_it_is
        self.hellos = 0
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
                for ready, _ in poller.poll():
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
                        made, _ = (self._live if ready == self._live.fileno() else self._packets).accept()
                        held[made.fileno()] = made
                        poller.register(made.fileno(), zmq.POLLIN)
                    self._fake.turn()
                    for answer in self._down(self._fake.published):
                        self._publish(answer, held)
        finally:
            for one in held.values():
                one.close()

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
            try:
                connection.send((bytes([PacketKind.FRAME]) + frame)[:PACKET])
            except OSError:
                pass  # the client has ended the connection

    def _take(self, frame: bytes) -> None:
        header = unpack(CommandHeader, frame)
        if header.kind == UpKind.HELLO:
            self.hellos += 1
            self._fake.known = None  # each hello is that of a new client
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
