"""The contestants of bench/suites/quiet.py: how each registers and awaits operations, and how it fires events."""

from __future__ import annotations

import asyncio
import shutil
import socket
import struct
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import zmq

import timerd as td
from bench.lib import core_rig as core
from bench.lib import hops
from bench.rivals import seqpacket
from bench.rivals.alternative.scripts import address_of, redis_server
from timerctl.instance import open_arena
from timerctl.load.own_daemon import INSTANCE, private_daemon
from timerd_client import aio
from timerd_shm.declare.fields import struct_of
from timerd_shm.declare.wire import OutcomeRecord, ReportHeader
from timerd_wire.transports import Transport

TIMEOUT_S = 30.0
READY_S = 10.0
ENDLESS = 1 << 62
VALUE = struct.Struct("<qq")  # CLOCK_MONOTONIC at the call of fire(), and the number of the operation
HEAP = struct_of(ReportHeader).size + struct_of(OutcomeRecord).size  # where the value begins in a report of one outcome
Found = list[tuple[int, int]]  # the number in the value, and ns from fire() to the result
Take = Callable[[int, int, Callable[[], None]], Found]  # arguments: count, operations registered ahead, ready()
Fire = Callable[[int, bytes], object]


class Way(NamedTuple):
    """A contestant."""

    serve: Callable[[], Any]  # its server; gives the directory and the processes
    owner: Callable[[Path], Any]  # gives a Take
    firer: Callable[[Path], Any]  # gives a Fire
    missing: Callable[[], str] = lambda: ""


def found_in(value: bytes) -> tuple[int, int]:
    now_ns = time.monotonic_ns()
    if len(value) != VALUE.size:
        return -1, 0  # the operation has expired: its event was lost, or came before its registration
    sent_ns, number = VALUE.unpack(value)
    return number, now_ns - sent_ns


def taking(register: Callable[[int], Any], result: Callable[[Any], bytes]) -> Take:
    """Wait for the results in order, and keep `ahead` operations registered in advance. `ready` waits for the start."""

    def take(count: int, ahead: int, ready: Callable[[], None]) -> Found:
        pending, found = deque(register(number) for number in range(ahead)), []
        ready()
        for number in range(ahead, ahead + count):
            pending.append(register(number))
            found.append(found_in(result(pending.popleft())))
        return found

    return take


# timerd --------------------------------------------------------------------------------------------------------------
@contextmanager
def daemon() -> Iterator[tuple[Path, list[int]]]:
    with private_daemon([]) as paths:
        with open_arena(paths) as reader:
            pid = reader.header().pid
        yield paths.directory, [pid]


def sync_owner(transport: Transport) -> Callable[[Path], Any]:
    @contextmanager
    def own(directory: Path) -> Iterator[Take]:
        with td.connect(INSTANCE, runtime_dir=str(directory), timeout=READY_S, transport=transport) as client:
            yield taking(
                lambda number: client.register(f"k{number}", timeout=TIMEOUT_S),
                lambda operation: operation.result().value,
            )

    return own


def aio_owner(transport: Transport) -> Callable[[Path], Any]:
    async def play(directory: Path, count: int, ahead: int, ready: Callable[[], None]) -> Found:
        async with aio.connect(INSTANCE, runtime_dir=str(directory), timeout=READY_S, transport=transport) as client:
            pending = deque([client.register(f"k{number}", timeout=TIMEOUT_S) for number in range(ahead)])
            await client.flush()
            ready()
            found = []
            for number in range(ahead, ahead + count):
                pending.append(client.register(f"k{number}", timeout=TIMEOUT_S))
                found.append(found_in((await pending.popleft()).value))
            return found

    @contextmanager
    def own(directory: Path) -> Iterator[Take]:
        yield lambda count, ahead, ready: asyncio.run(play(directory, count, ahead, ready))

    return own


def sync_firer(transport: Transport) -> Callable[[Path], Any]:
    @contextmanager
    def fire(directory: Path) -> Iterator[Fire]:
        with td.connect(INSTANCE, runtime_dir=str(directory), timeout=READY_S, transport=transport) as client:
            yield lambda number, value: client.fire(f"k{number}", value=value)

    return fire


# a server of the bench's own -----------------------------------------------------------------------------------------
@contextmanager
def forked(play: Callable[..., None], *arguments: Any) -> Iterator[int]:
    part = hops.FORK.Process(target=play, args=arguments, daemon=True)
    part.start()
    try:
        yield part.pid or 0
    finally:
        part.kill()
        part.join()


@contextmanager
def two_hops() -> Iterator[tuple[Path, list[int]]]:
    with own_directory() as directory, forked(hops.hub, str(directory), ENDLESS, True) as pid:
        yield directory, [pid]


@contextmanager
def hops_owner(directory: Path) -> Iterator[Take]:
    with hops.open_socket(zmq.SUB) as sub:
        sub.setsockopt(zmq.RCVTIMEO, hops.PATIENCE_MS)
        sub.subscribe(b"")
        sub.connect(f"ipc://{directory}/down")
        yield taking(lambda number: None, lambda _: sub.recv())


@contextmanager
def hops_firer(directory: Path) -> Iterator[Fire]:
    with hops.open_socket(zmq.DEALER) as dealer:
        dealer.connect(f"ipc://{directory}/up")
        dealer.send(b"")
        dealer.recv()  # the owner has subscribed
        yield lambda number, value: dealer.send(value)


def hub(with_core: bool) -> Callable[[], Any]:
    @contextmanager
    def run() -> Iterator[tuple[Path, list[int]]]:
        with own_directory() as directory, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(seqpacket.address_of(directory))
            listener.listen()
            with forked(seqpacket.serve, listener, with_core) as pid:
                yield directory, [pid]

    return run


@contextmanager
def packet_owner(directory: Path) -> Iterator[Take]:
    with seqpacket.dial(directory, b"owner") as peer:
        yield taking(lambda number: None, lambda _: peer.recv(seqpacket.FRAME_MAX))


@contextmanager
def packet_firer(directory: Path) -> Iterator[Fire]:
    with seqpacket.dial(directory, b"firer") as peer:
        yield lambda number, value: peer.send(value)


@contextmanager
def core_owner(directory: Path) -> Iterator[Take]:
    with seqpacket.dial(directory, b"owner") as peer:
        told = 0

        def register(number: int) -> None:
            command = core.register(number, time.monotonic_ns(), int(TIMEOUT_S * 1e9))
            peer.send(seqpacket.frame(command, number + 1, told))

        def result(_: None) -> bytes:
            nonlocal told
            told += 1  # each report has one outcome: the next registration acknowledges it
            return peer.recv(seqpacket.FRAME_MAX)[HEAP:]

        yield taking(register, result)


@contextmanager
def core_firer(directory: Path) -> Iterator[Fire]:
    with seqpacket.dial(directory, b"firer") as peer:
        yield lambda number, value: peer.send(seqpacket.frame(core.fire(number, value), number + 1))


# Redis ---------------------------------------------------------------------------------------------------------------
def no_redis() -> str:
    if not shutil.which("redis-server"):
        return "apt-get install redis-server"
    return "" if find_spec("redis") else "pip install 'timerd[bench]'"


@contextmanager
def redis_way() -> Iterator[tuple[Path, list[int]]]:
    with own_directory() as directory, redis_server(directory) as pid:
        yield directory, [pid]


def redis_client(directory: Path) -> Any:
    import redis

    return redis.Redis(unix_socket_path=address_of(directory))


@contextmanager
def blpop_owner(directory: Path) -> Iterator[Take]:
    with redis_client(directory) as client:
        yield taking(lambda number: number, lambda number: client.blpop(f"k{number}", timeout=TIMEOUT_S)[1])


@contextmanager
def blpop_firer(directory: Path) -> Iterator[Fire]:
    with redis_client(directory) as client:
        yield lambda number, value: client.rpush(f"k{number}", value)


@contextmanager
def pubsub_owner(directory: Path) -> Iterator[Take]:
    with redis_client(directory) as client, client.pubsub() as channel:
        channel.subscribe("outcomes")
        channel.get_message(timeout=READY_S)
        yield taking(lambda number: None, lambda _: channel.get_message(timeout=TIMEOUT_S)["data"])


@contextmanager
def pubsub_firer(directory: Path) -> Iterator[Fire]:
    with redis_client(directory) as client:
        yield lambda number, value: client.publish("outcomes", value)


@contextmanager
def own_directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="td-quiet-") as directory:
        yield Path(directory)


WAYS = {
    "timerd": Way(daemon, sync_owner("zeromq"), sync_firer("zeromq")),
    "timerd asyncio": Way(daemon, aio_owner("zeromq"), sync_firer("zeromq")),
    "timerd unix": Way(daemon, sync_owner("unix"), sync_firer("unix")),
    "timerd unix asyncio": Way(daemon, aio_owner("unix"), sync_firer("unix")),
    "hops": Way(two_hops, hops_owner, hops_firer),
    "seqpacket": Way(hub(False), packet_owner, packet_firer),
    "seqpacket core": Way(hub(True), core_owner, core_firer),
    "redis blpop": Way(redis_way, blpop_owner, blpop_firer, no_redis),
    "redis pubsub": Way(redis_way, pubsub_owner, pubsub_firer, no_redis),
}
