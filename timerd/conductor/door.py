"""The door: keeps the connections that libzmq accepts within what clients may need, whoever opens them.

libzmq accepts connections in its own thread, and ends its process where it may open no more files (4.3.5, ipc_listener:
EMFILE). The daemon cannot refuse a connection, but it can end one: a socket that is shut down has an end for libzmq.

    accepted --monitor--> look: too many files are open --> shed: shut down the newest of those who have most

libzmq reports each connection for commands to a monitor, and waits where the monitor's queue is full. So between two
looks it accepts at most MONITORED_MAX of them, however long the look takes to come. A connection to an outlet wakes the
conductor, unless libzmq has accepted it by then; the next turn finds it. So few of them stay unseen, and UNSEEN_MAX
leaves room for as many again. A process has a right to two connections for each one that it holds to NAME.live, as
every client does. What it has beyond that is its excess.
"""

from __future__ import annotations

import logging
import os
import resource
import socket
import struct
import time
from collections import Counter

import zmq

from timerd.clients.liveness import CONNECTIONS_PER_CLIENT, DESCRIPTORS_BESIDE, SOCKETS_PER_CLIENT
from timerd_shm.host.paths import InstancePaths

from .transport import ZmqTransport

EXCESS_MAX = 1_024  # connections beyond what all clients may have: clients that connect, and tools
EVENTS_PER_LOOK = 64  # that are taken from a monitor between two looks; libzmq may accept as many more then
MONITORED_MAX = 1_001 + EVENTS_PER_LOOK  # libzmq's queue of a monitor, and RCVHWM of ours
UNSEEN_MAX = 2 * MONITORED_MAX
CLOSE_S = 1.0
SAY_AGAIN_S = 1.0
LOOK_NS = 100_000_000  # with a turn so long after a look there is another: for connections to outlets that were unseen
OPEN_FILES = "/proc/self/fd"
_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid

log = logging.getLogger("timerd")


class Door:
    """Looks at the connections when there are new ones. `clients`: as many as may be connected."""

    def __init__(self, transport: ZmqTransport, paths: InstancePaths, clients: int) -> None:
        self._transport = transport
        self._liveness = str(paths.liveness)
        self._monitor = transport.monitor(zmq.EVENT_ACCEPTED | zmq.EVENT_CLOSED)
        needed = files_needed(clients)
        self._most = files_max(needed, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self._kept = max(0, self._most - needed) // 2  # of the excess, when connections are ended
        self._closed = False  # the listener
        self._said_s = -SAY_AGAIN_S
        self._more = True  # what the descriptor does not say: it is edge-triggered
        self._looked_ns = 0

    def fileno(self) -> int:
        """A descriptor that is readable when connections for commands were accepted."""
        return int(self._monitor.getsockopt(zmq.FD))

    def has_more(self, now_ns: int) -> bool:
        """Whether to look without waiting for the descriptor."""
        return self._more or self._transport.newcomers or now_ns >= self._looked_ns + LOOK_NS

    def look(self, now_ns: int) -> None:
        """After the descriptor was readable, and while there is more: end connections if there are too many."""
        self._transport.newcomers = False
        self._looked_ns = now_ns
        if open_files() > self._most:
            self._shed()
        self._more = self._take()

    def _take(self) -> bool:
        """Take some events from the monitor; whether there may be more."""
        for _ in range(EVENTS_PER_LOOK):
            try:
                event, _ = self._monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return False
            self._closed |= struct.unpack_from("<H", event)[0] == zmq.EVENT_CLOSED
        return True

    def _shed(self) -> None:
        """Shut down connections of those who have most beyond their right, the newest first."""
        connections, rights = self._connections()
        excess = {pid: max(0, len(found) - rights[pid]) for pid, found in connections.items()}
        level = level_of(list(excess.values()), self._kept)
        ended = 0
        for pid, found in connections.items():
            for descriptor in found[len(found) - max(0, excess[pid] - level) :]:
                ended += _shut_down(descriptor)
        if ended and time.monotonic() - self._said_s >= SAY_AGAIN_S:
            self._said_s = time.monotonic()
            greediest = max(excess, key=excess.__getitem__)
            log.warning(
                "more than %d files are open: %d connections were ended. Process %d had %d, and a right to %d",
                self._most,
                ended,
                greediest,
                len(connections[greediest]),
                rights[greediest],
            )

    def _connections(self) -> tuple[dict[int, list[int]], Counter[int]]:
        """By process: its connections to libzmq's sockets, the oldest first, and how many it has a right to."""
        connections: dict[int, list[int]] = {}
        rights: Counter[int] = Counter()
        own = os.getpid()
        for descriptor in descriptors():
            pid, name = _peer_of(descriptor)
            if pid == own or pid < 0:
                continue
            if name == self._liveness:
                rights[pid] += CONNECTIONS_PER_CLIENT
            else:
                connections.setdefault(pid, []).append(descriptor)
        return connections, rights

    def close(self) -> None:
        """Accept nothing more, and end the monitor. libzmq must not wait for it then."""
        self._transport.unbind()
        until_s = time.monotonic() + CLOSE_S
        while not self._closed and time.monotonic() < until_s:
            self.look(self._looked_ns)
            if not self._more:
                time.sleep(0.001)
        self._transport.end_monitor(self._monitor)


def files_needed(clients: int) -> int:
    """How many files are open where so many clients are connected."""
    return (SOCKETS_PER_CLIENT + 1) * clients + DESCRIPTORS_BESIDE


def files_max(needed: int, limit: int) -> int:
    """How many files may be open before connections are ended, where `limit` may be open at all (-1: any number)."""
    if limit == resource.RLIM_INFINITY:
        return needed + EXCESS_MAX
    reserve = UNSEEN_MAX if limit - UNSEEN_MAX >= needed else limit // 8
    return min(needed + EXCESS_MAX, limit - reserve)


def level_of(excess: list[int], most: int) -> int:
    """The level to which each number has to be lowered, where it is higher, so that their sum is `most` at most."""
    left, level = most, 0
    for rank, number in enumerate(sorted(excess)):
        level = left // (len(excess) - rank)
        if number > level:
            return level
        left -= number
    return max(excess, default=0)


def open_files() -> int:
    """How many files are open. The lowest free number would say less: who closes an old connection makes a hole."""
    return os.stat(OPEN_FILES).st_size or len(descriptors())  # the kernel counts them since Linux 6.2


def descriptors() -> list[int]:
    """The open files, in order of their numbers; all numbers that there may be if no more can be opened to look."""
    try:
        return sorted(map(int, os.listdir(OPEN_FILES)))
    except OSError:
        return list(range(resource.getrlimit(resource.RLIMIT_NOFILE)[0]))


def _peer_of(descriptor: int) -> tuple[int, str]:
    """The process at the other end of a socket (0: not visible here; -1: it is none), and the socket's own path."""
    try:
        found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=descriptor)
    except OSError:
        return -1, ""
    try:
        pid = _CREDENTIALS.unpack(found.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[0]
        name = found.getsockname()
        return pid, name if isinstance(name, str) else ""
    except OSError:
        return -1, ""
    finally:
        found.detach()


def _shut_down(descriptor: int) -> bool:
    """End a connection for both sides; whether it was one. libzmq then closes it as if the other side had ended."""
    try:
        found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=descriptor)
    except OSError:
        return False  # it has ended meanwhile
    try:
        found.shutdown(socket.SHUT_RDWR)
    except OSError:
        return False
    finally:
        found.detach()
    return True
