"""Clients of the asyncio daemon (broker.py). Commands due at one time go in one frame. A thread receives outcomes."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import zmq

import msgpack
from bench.lib.common import Failed

from .book import Book, Firer, Owner, Way

OWNER = b"owner"
START_S = 10.0
LISTEN_MS = 100


def connected(directory: Path, identity: bytes = b"") -> zmq.Socket[bytes]:
    """A socket to the daemon. Its queues have no limit, so no frame is dropped."""
    dealer: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    dealer.sndhwm = dealer.rcvhwm = 0
    if identity:
        dealer.setsockopt(zmq.IDENTITY, identity)
    dealer.connect(f"ipc://{directory}/broker")
    return dealer


def listens(address: Path) -> bool:
    """Whether a process accepts connections there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(str(address)) == 0


class ZmqOwner(Owner):
    """Registers over one socket, and receives outcomes over another."""

    def __init__(self, directory: Path, book: Book) -> None:
        super().__init__(directory, book)
        self._socket = connected(directory)
        self._closed = False
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def register(self, keys: Sequence[str]) -> None:
        call, payload = self.book.call, self.book.payload
        self._socket.send(msgpack.packb([OWNER, [(key, call(), payload) for key in keys]]))

    def _listen(self) -> None:
        book = self.book
        dealer = connected(self.directory, OWNER)
        dealer.send(msgpack.packb([OWNER, []]))  # registers nothing: the daemon learns this identity from it
        while not self._closed:
            if not dealer.poll(LISTEN_MS):
                continue
            for key, kind, at_ns in msgpack.unpackb(dealer.recv()):
                if kind == "c":
                    book.completed(key, at_ns)
                else:
                    book.expired(key, at_ns)
        dealer.close(linger=0)

    def close(self) -> None:
        self._closed = True
        self._thread.join()
        self._socket.close(linger=0)


class ZmqFirer(Firer):
    """Sends all events that are due at one time in one frame."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._socket = connected(directory)

    def fire(self, keys: Sequence[str], at_ns: Sequence[int]) -> None:
        self._socket.send(msgpack.packb([b"", list(zip(keys, at_ns, strict=True))]))

    def close(self) -> None:
        self._socket.close(linger=5_000)


class Broker(Way):
    """See the module."""

    name = "40-line daemon: asyncio, pyzmq ipc"
    loop = "asyncio"

    @contextmanager
    def serve(self, directory: Path) -> Iterator[list[int]]:
        command = [sys.executable, "-m", "bench.rivals.alternative.broker", f"ipc://{directory}/broker", self.loop]
        daemon = subprocess.Popen(command, start_new_session=True)
        try:
            end = time.monotonic() + START_S
            while not listens(directory / "broker"):
                if daemon.poll() is not None or time.monotonic() > end:
                    raise Failed(f"the daemon did not start (status {daemon.poll()})")
                time.sleep(0.02)
            yield [daemon.pid]
        finally:
            daemon.terminate()
            daemon.wait()

    def owner(self, directory: Path, book: Book) -> Owner:
        return ZmqOwner(directory, book)

    def firer(self, directory: Path) -> Firer:
        return ZmqFirer(directory)


class UvBroker(Broker):
    """The same daemon on uvloop."""

    name = "40-line daemon: uvloop, pyzmq ipc"
    loop = "uvloop"

    def missing(self) -> str:
        return "" if find_spec("uvloop") else "pip install 'timerd[bench]'"
