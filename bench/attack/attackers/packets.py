"""Attacks on NAME.unix, with bare packets."""

from __future__ import annotations

import array
import contextlib
import os
import socket
import struct
from collections.abc import Iterable

from timerd_shm.declare.limits import FRAME_SIZE_MAX, PACKET_SIZE_MAX
from timerd_wire.packets import FRAME, MORE, SUBSCRIBE, cut

from .attacker import Attacker
from .members import hello

CONNECTIONS = 400
FRAMES = 150  # frames over a connection; then it is closed in the middle of a further frame
PACKETS = 64  # packets over a connection, before the next connection has its turn
WAITS = 100_000  # commands that a hello lists as waited for
LINGER_S = 5


def leave_in_the_midst(attacker: Attacker) -> None:
    """Send frames and the first part of a further frame, then close the connection."""
    begun = [*[(FRAME, b"x")] * FRAMES, next(cut(bytes(FRAME_SIZE_MAX)))]
    while attacker.is_on():
        with contextlib.suppress(OSError), connected(attacker) as connection:
            _send(attacker, connection, begun)


def send_parts_without_end(attacker: Attacker) -> None:
    """Begin frame after frame, and never send the last part of any."""
    begun = list(cut(bytes(FRAME_SIZE_MAX)))[:-1]
    while attacker.is_on():
        with contextlib.suppress(OSError), connected(attacker) as connection:
            while attacker.is_on():
                _send(attacker, connection, begun)


def hang_in_large_frames(attacker: Attacker) -> None:
    """Begin a frame of 4 MiB over each of many connections, and never send the last packet."""
    begun = list(cut(bytes(FRAME_SIZE_MAX)))[:-1]
    with contextlib.ExitStack() as stack:
        while attacker.is_on():
            with contextlib.suppress(OSError):
                connection = stack.enter_context(connected(attacker))
                connection.settimeout(0.05)
                _send(attacker, connection, begun)
            attacker.rest(0.001)


def send_smallest(attacker: Attacker) -> None:
    """Send empty frames, parts of one byte and unknown sessions over many connections, and read no answer."""
    mixed = [(FRAME, b""), (MORE, b"x"), (SUBSCRIBE, os.urandom(16))] * (PACKETS // 3)
    _over_many(attacker, mixed)


def show_sessions(attacker: Attacker) -> None:
    """Show the attacker's session over many connections in turn: each becomes the outlet instead of the one before."""
    with attacker.client(name="attacker") as client:
        _over_many(attacker, [(SUBSCRIBE, client._link.protocol.session.secret)] * PACKETS)


def greet_in_parts(attacker: Attacker) -> None:
    """Say hello with new incarnations, and with so many waits that the hello goes in parts."""
    waits = list(range(1 << 20, (1 << 20) + WAITS))
    while attacker.is_on():
        with contextlib.suppress(OSError), connected(attacker) as connection:
            while attacker.is_on():
                _send(attacker, connection, cut(hello(os.urandom(16), waits=waits)))


def read_nothing(attacker: Attacker) -> None:
    """Ask again and again over many connections, and read no answer: answers fill the daemon's queues."""
    _over_many(attacker, [(FRAME, bytes(PACKET_SIZE_MAX))] * 4 + [(FRAME, hello(os.urandom(16)))] * PACKETS)


def send_descriptors(attacker: Attacker) -> None:
    """Send descriptors whose last close blocks: TCP sockets with SO_LINGER, and data that nobody reads."""
    while attacker.is_on():
        for path, kind in (
            (attacker.paths.packets, socket.SOCK_SEQPACKET),
            (attacker.paths.commands, socket.SOCK_STREAM),
            (attacker.paths.outcomes, socket.SOCK_STREAM),
            (attacker.paths.liveness, socket.SOCK_STREAM),
        ):
            attacker.did()
            with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", 0)) as server:
                full = socket.create_connection(server.getsockname())
                full.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    while full.send(bytes(1 << 20)):
                        pass
                full.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LINGER_S))
                with full, socket.socket(socket.AF_UNIX, kind) as connection:
                    connection.connect(str(path))
                    along = array.array("i", [full.fileno()])
                    try:
                        connection.sendmsg([bytes((FRAME,)) + b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, along)])
                    except OSError:  # the daemon refused it: this process has the last copy, whose close must not block
                        full.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
        attacker.rest(0.05)


def _over_many(attacker: Attacker, packets: list[tuple[int, bytes]]) -> None:
    """Send these packets over many connections in turn, as far as there is room. A connection that ends is replaced."""
    with contextlib.ExitStack() as stack:
        connections: list[socket.socket] = []
        while attacker.is_on():
            if len(connections) < CONNECTIONS:
                with contextlib.suppress(OSError):
                    connections.append(stack.enter_context(connected(attacker)))
                    connections[-1].setblocking(False)
            for connection in list(connections):
                try:
                    _send(attacker, connection, packets)
                except BlockingIOError:
                    continue
                except OSError:
                    connections.remove(connection)
                    connection.close()
                if not attacker.is_on():
                    break


def _send(attacker: Attacker, connection: socket.socket, packets: Iterable[tuple[int, bytes]]) -> None:
    for kind, body in packets:
        connection.send(bytes((kind,)) + body)
        attacker.did()


def connected(attacker: Attacker) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(1.0)
    try:
        connection.connect(str(attacker.paths.packets))
    except OSError:
        connection.close()
        raise
    return connection
