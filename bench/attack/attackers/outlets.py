"""Attacks on the sockets for outcomes."""

from __future__ import annotations

import contextlib
import os

import zmq

import timerd as td
from timerd_wire.outlet import SUBSCRIBE, connect_outlet

from .attacker import Attacker

PREFIXES = 200_000  # over one connection. Then the connection ends, and the daemon has to remove them
SOCKETS = 400


def subscribe_as_stranger(attacker: Attacker) -> None:
    """Show no session, and subscribe to as many prefixes as possible."""
    while attacker.is_on():
        with attacker.socket(zmq.XSUB) as socket:
            connect_outlet(socket, attacker.paths.outcomes_endpoint, os.urandom(16))
            _subscribe(attacker, socket)


def subscribe_as_member(attacker: Attacker) -> None:
    """As `subscribe_as_stranger`, but show a session first."""
    with attacker.client(name="attacker") as client:
        session = client._link.protocol.session.secret
        while attacker.is_on():
            with attacker.socket(zmq.XSUB) as socket:
                connect_outlet(socket, attacker.paths.outcomes_endpoint, session)
                _subscribe(attacker, socket)


def connect_often(attacker: Attacker) -> None:
    """Show the attacker's session over many connections in turn: each becomes the outlet instead of the one before."""
    with attacker.client(name="attacker") as client:
        session = client._link.protocol.session.secret
        while attacker.is_on():
            with contextlib.ExitStack() as stack:
                for _ in range(SOCKETS):
                    socket = stack.enter_context(attacker.socket(zmq.XSUB))
                    socket.send(SUBSCRIBE)
                    connect_outlet(socket, attacker.paths.outcomes_endpoint, session)
                    attacker.did()
                    client.fire("nobody")
                    if not attacker.is_on():
                        break


def read_nothing(attacker: Attacker) -> None:
    """Cause outcomes with large values, and read none of them: the attacker's reports fill the daemon's queue."""
    with attacker.client(name="attacker") as client:
        session = client._link.protocol.session.secret
        with attacker.socket(zmq.XSUB) as socket:
            socket.set(zmq.RCVHWM, 1)
            socket.set(zmq.RCVBUF, 4_096)
            socket.send(SUBSCRIBE)
            connect_outlet(socket, attacker.paths.outcomes_endpoint, session)
            number = 0
            while attacker.is_on():
                with contextlib.suppress(td.TimerdError):
                    client.register("large", timeout=1)
                    client.fire("large", value=number.to_bytes(4, "little") * 15_000)
                    number += 1
                    attacker.did()
                attacker.rest(0.001)


def _subscribe(attacker: Attacker, socket: zmq.Socket[bytes]) -> None:
    for number in range(PREFIXES):
        while attacker.is_on():
            with contextlib.suppress(zmq.Again):
                socket.send(SUBSCRIBE + number.to_bytes(3, "little") + attacker.random.randbytes(13), zmq.DONTWAIT)
                attacker.did()
                break
            attacker.rest(0.001)
