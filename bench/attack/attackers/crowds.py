"""Attacks by several processes at once, so that bounds of one process do not stop them."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from timerd_shm.declare.limits import FRAME_SIZE_MAX
from timerd_wire.packets import FRAME, MORE, cut

from . import members, operations
from .attacker import Act, Attacker
from .connections import greeted
from .packets import connected

PROCESSES = 8
CONNECTIONS = 8  # of each process: one queue holds 4 MiB at most, and all queues of a process 24 MiB
FILL_S = 2.5  # until all processes are killed at once
SILENT_PROCESSES = 20
SILENT_CONNECTIONS = 180  # of each of these processes
SMALL = 256  # bytes of a part
REFUSED = b"x"  # a frame that is too short: the daemon answers it with an error

EIGHT: tuple[Act, ...] = (
    operations.fire_many_watchers,
    operations.fire_20_at_counting_watchers,
    operations.advance_many_watchers,
    operations.leave_calls_unhandled,
    operations.use_up_ids,
    operations.register_64_keys,
    operations.ask_for_snapshots,
    members.drop_clients,
)


def leave_unread_and_die(attacker: Attacker) -> None:
    """Cause answers over many connections and read none. Then all processes die at the same moment; again and again."""
    _fill_and_die(attacker, _leave_unread)


def leave_packets_unread_and_die(attacker: Attacker) -> None:
    """As `leave_unread_and_die`, with NAME.unix."""
    _fill_and_die(attacker, _leave_packets_unread)


def hang_in_large_frames(attacker: Attacker) -> None:
    """Begin frames of 4 MiB over many connections of many processes, and never send the last byte."""
    play_all(attacker, [_begin_large_frames] * PROCESSES)


def hang_in_parts(attacker: Attacker) -> None:
    """As `hang_in_large_frames`, with frames in small parts over NAME.unix."""
    play_all(attacker, [_begin_parts] * PROCESSES)


def be_eight(attacker: Attacker) -> None:
    """Eight other attacks at once, each by a process of its own."""
    play_all(attacker, EIGHT)


def play_all(attacker: Attacker, parts: Iterable[Act]) -> None:
    """Play all parts at once, each in a process of its own, until the attack ends."""
    with crowd(attacker, parts):
        while attacker.is_on():
            attacker.rest()


def continue_nothing(attacker: Attacker) -> None:
    """Send continuations of frames that never began, over NAME.unix."""
    while attacker.is_on():
        with contextlib.suppress(OSError), connected(attacker) as connection:
            while attacker.is_on():
                connection.send(bytes((MORE,)) + bytes(1_000))
                attacker.did()


def stay_silent(attacker: Attacker) -> None:
    """Take all connections, say nothing over them, and replace each that is closed."""
    play_all(attacker, [_stay_silent(attacker.paths.commands, socket.SOCK_STREAM)] * SILENT_PROCESSES)


def stay_silent_at_packets(attacker: Attacker) -> None:
    """As `stay_silent`, with NAME.unix."""
    play_all(attacker, [_stay_silent(attacker.paths.packets, socket.SOCK_SEQPACKET)] * SILENT_PROCESSES)


# processes ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def crowd(attacker: Attacker, parts: Iterable[Act]) -> Iterator[list[int]]:
    """Play each part in a process of its own until the block ends. Then all processes are killed at once."""
    started = []
    for part in parts:
        child = os.fork()
        if not child:
            with contextlib.suppress(BaseException):
                part(attacker)
            os._exit(0)
        started.append(child)
    try:
        yield started
    finally:
        for child in started:
            os.kill(child, signal.SIGKILL)
        for child in started:
            os.waitpid(child, 0)


def _fill_and_die(attacker: Attacker, part: Act) -> None:
    while attacker.is_on():
        with crowd(attacker, [part] * PROCESSES):
            attacker.rest(FILL_S)


# parts --------------------------------------------------------------------------------------------------------------


def _leave_unread(attacker: Attacker) -> None:
    _send_over_all(attacker, lambda: greeted(attacker), (bytes((0, len(REFUSED))) + REFUSED) * 100)


def _leave_packets_unread(attacker: Attacker) -> None:
    _send_over_all(attacker, lambda: connected(attacker), bytes((FRAME,)) + REFUSED)


def _send_over_all(attacker: Attacker, connect: Callable[[], socket.socket], data: bytes) -> None:
    """Send the same bytes over all connections of a process for ever, and read nothing. Closed ones are replaced."""
    connections: list[socket.socket] = []
    while attacker.is_on():
        while len(connections) < CONNECTIONS:
            with contextlib.suppress(OSError):
                connections.append(connect())
                connections[-1].setblocking(False)
        for connection in list(connections):
            try:
                for _ in range(100):
                    connection.send(data)
                    attacker.did()
            except BlockingIOError:
                continue
            except OSError:
                connections.remove(connection)
                connection.close()


def _begin_large_frames(attacker: Attacker) -> None:
    frame = b"\2" + FRAME_SIZE_MAX.to_bytes(8, "big") + bytes(FRAME_SIZE_MAX - 1)
    _begin(attacker, lambda: greeted(attacker), [frame])


def _begin_parts(attacker: Attacker) -> None:
    kind, first = next(cut(bytes(FRAME_SIZE_MAX)))
    small = [bytes((kind,)) + first[:SMALL], *[bytes((MORE,)) + bytes(SMALL)] * (FRAME_SIZE_MAX // SMALL - 2)]
    _begin(attacker, lambda: connected(attacker), small)


def _begin(attacker: Attacker, connect: Callable[[], socket.socket], pieces: Iterable[bytes]) -> None:
    """Begin the same frame over connection after connection, and keep all of them."""
    with contextlib.ExitStack() as stack:
        while attacker.is_on():
            with contextlib.suppress(OSError):
                connection = stack.enter_context(connect())
                connection.settimeout(0.05)
                attacker.did()
                for piece in pieces:
                    connection.sendall(piece)
            attacker.rest(0.001)


def _stay_silent(path: Path, kind: int) -> Act:
    def part(attacker: Attacker) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        connections: list[socket.socket] = []
        while attacker.is_on():
            for connection in list(connections):
                with contextlib.suppress(BlockingIOError):
                    try:
                        if connection.recv(1_000):
                            continue
                    except ConnectionError:
                        pass
                    connections.remove(connection)
                    connection.close()
            while len(connections) < SILENT_CONNECTIONS:
                made = socket.socket(socket.AF_UNIX, kind)
                made.setblocking(False)
                try:
                    made.connect(str(path))
                except OSError:
                    made.close()
                    break
                connections.append(made)
                attacker.did()
            attacker.rest()

    return part
