"""Attacks on the table of clients, and on the rights that a hello may ask for."""

from __future__ import annotations

import contextlib
import gc
import os
import time

import zmq

import msgpack
import timerd as td
from timerd_shm.declare.fields import struct_of
from timerd_shm.declare.records import ClientRecord
from timerd_shm.declare.wire import PROTOCOL_VERSION, CommandHeader, UpKind
from timerd_shm.host.paths import open_arena_file
from timerd_shm.read.reader import ArenaReader

from .attacker import Attacker

CLIENTS = 600
DEAD_GROUPS = 16
DEAD_OUTCOMES = 1_000


def take_slots(attacker: Attacker) -> None:
    """Be as many clients as possible in one process."""
    with contextlib.ExitStack() as stack:
        while attacker.is_on():
            try:
                stack.enter_context(td.connect(attacker.paths.instance, timeout=1))
                attacker.did()
            except td.TimerdError:
                attacker.rest(0.1)


def name_purgatories(attacker: Attacker) -> None:
    """Use a new purgatory for each event."""
    with attacker.client(name="attacker") as client:
        number = 0
        while attacker.is_on():
            number += 1
            with contextlib.suppress(td.TimerdError):
                client.purgatory(f"p{number}").fire("k")
                attacker.did()


def drop_clients(attacker: Attacker) -> None:
    """Connect, and drop the client without closing it."""
    while attacker.is_on():
        with contextlib.suppress(td.TimerdError):
            client = td.connect(attacker.paths.instance, timeout=1)
            client.register("dropped", timeout=0.01)
            del client
            gc.collect()
            attacker.did()


def fill_and_end(attacker: Attacker) -> None:
    """Connect as one new client after another, each within its quotas. Each makes outcomes that nobody takes."""
    number = 0
    while attacker.is_on():
        number += 1
        with contextlib.suppress(td.TimerdError), attacker.client(group=f"dead-{number % DEAD_GROUPS}") as client:
            for _ in range(DEAD_OUTCOMES):
                client.register("k", timeout=0, group=True)
            client.flush()
            attacker.did(DEAD_OUTCOMES)


def claim_incarnations(attacker: Attacker) -> None:
    """Read the incarnations of other clients from the arena, and show them as proofs in hellos."""
    reader = ArenaReader.from_descriptor(open_arena_file(attacker.paths))
    with attacker.socket(zmq.DEALER) as socket:
        socket.connect(attacker.paths.commands_endpoint)
        while attacker.is_on():
            for record in list(reader.clients):
                if isinstance(record, ClientRecord) and record.state:
                    taken = record.incarnation_low.to_bytes(8, "little") + record.incarnation_high.to_bytes(8, "little")
                    with contextlib.suppress(zmq.Again):
                        socket.send(hello(taken), zmq.DONTWAIT)
                        attacker.did()
            with contextlib.suppress(zmq.Again):
                while True:
                    socket.recv(zmq.DONTWAIT)
            attacker.rest(0.001)
    reader.close()


def hello(proof: bytes, **said: object) -> bytes:
    """A HELLO frame with this proof, without a session."""
    header = struct_of(CommandHeader).pack(PROTOCOL_VERSION, UpKind.HELLO, 0, 0, 0, bytes(16), 1, 0, 0)
    message = {
        "protocol": PROTOCOL_VERSION,
        "proof": proof,
        "name": "attacker",
        "pid": os.getpid(),
        "start_ticks": 0,
        "pid_namespace": 0,
        "time_namespace": 0,
        "boot_id": bytes(16),
        "now_ns": time.monotonic_ns(),
        "orphans": 0,
        "group": None,
        "waits": [],
        "purgatories": [],
    }
    return header + bytes(msgpack.packb(message | said))
