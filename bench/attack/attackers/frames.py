"""Attacks on the conductor: valid frames, in numbers that no client of ours sends."""

from __future__ import annotations

import contextlib

import zmq

import timerd as td
from timerd_shm.declare.fields import struct_of
from timerd_shm.declare.wire import PROTOCOL_VERSION, CommandHeader, UpKind

from .attacker import Attacker
from .members import hello

OUTCOMES = 60_000


def ask_again(attacker: Attacker) -> None:
    """Have many outcomes unacknowledged, and ask for all of them, again and again."""
    with attacker.client(name="attacker") as client:
        session = client._link.protocol.session
        with contextlib.suppress(td.TimerdError):
            client.register_many([b"asked"] * OUTCOMES, timeout=3_600)
            client.flush(timeout=10)
        header = CommandHeader(PROTOCOL_VERSION, UpKind.ASK, 0, 0, session.arena, session.secret, 1, 0, 0)
        frame = struct_of(CommandHeader).pack(*header)
        with attacker.socket(zmq.DEALER) as socket:
            socket.connect(attacker.paths.commands_endpoint)
            client.fire("asked")
            while attacker.is_on():
                with contextlib.suppress(zmq.Again):
                    socket.send(frame, zmq.DONTWAIT)
                    attacker.did()
                    continue
                attacker.rest(0.0005)


def be_refused_differently(attacker: Attacker) -> None:
    """Cause refusals, each with a different text."""
    with attacker.socket(zmq.DEALER) as socket:
        socket.connect(attacker.paths.commands_endpoint)
        number = 0
        while attacker.is_on():
            number += 1
            with contextlib.suppress(zmq.Again):
                socket.send(hello(attacker.random.randbytes(16), group=f"bad name {number}"), zmq.DONTWAIT)
                attacker.did()
                continue
            with contextlib.suppress(zmq.Again):
                while True:
                    socket.recv(zmq.DONTWAIT)
            attacker.rest(0.0005)
