"""As much of a kernel as packets need: sockets, epoll and eventfd on the schedule. The real code uses them.

A connection keeps the order of its packets, and loses none while it stands. A packet is seen some time after it was
sent, as by a reader that the scheduler wakes late. A queue that nobody reads fills up. After one side closes, the other
side can still read what was sent to it. Packets that the closing side has not read are lost.
"""

from __future__ import annotations

import errno
import select
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import timerd.conductor.transport
import timerd.host.listener
import timerd.host.selector
import timerd.packets.connection
import timerd_client.transport.unix_sockets
import timerd_wire.packets
from timerd.packets.connection import PacketConnection
from timerd.packets.server import PacketServer
from timerd_client.transport.unix_sockets import UnixSockets
from timerd_shm.declare.limits import UID_UNKNOWN
from timerd_wire.packets import FRAME, SUBSCRIBE

from .network import CALM
from .schedule import Schedule

HUNG_UP = select.EPOLLIN | select.EPOLLHUP


class File:
    """The open file of a descriptor."""

    def __init__(self, kernel: Kernel, *, is_daemons: bool) -> None:
        self.kernel = kernel
        self.is_daemons = is_daemons
        self.is_closed = False
        self.descriptor = kernel.number(self)
        self.epolls: dict[Epoll, int] = {}  # the epolls that watch it, and the events for which each waits

    @property
    def closed(self) -> bool:
        return self.is_closed

    def fileno(self) -> int:
        return self.descriptor

    def ready(self) -> int:
        """Events that epoll would report."""
        return 0

    def changed(self) -> None:
        """Wake its watchers, if it is ready."""
        for epoll, interest in list(self.epolls.items()):
            if self.ready() & (interest | select.EPOLLHUP):
                epoll.on_ready()

    def close(self) -> None:
        self.is_closed = True
        self.kernel.files.pop(self.descriptor, None)
        self.epolls.clear()


class Bell(File):
    """An eventfd."""

    count = 0

    def ready(self) -> int:
        return select.EPOLLIN if self.count else 0


class Epoll(File):
    """An epoll, level-triggered. `on_ready` is called when something that it watches becomes ready."""

    on_ready: Callable[[], None] = staticmethod(lambda: None)

    def register(self, descriptor: int, events: int) -> None:
        file = self.kernel.file(descriptor)
        if self in file.epolls:
            raise FileExistsError(errno.EEXIST, "it is watched already")
        self._watch(file, events)

    def modify(self, descriptor: int, events: int) -> None:
        file = self.kernel.file(descriptor)
        if self not in file.epolls:
            raise FileNotFoundError(errno.ENOENT, "it is not watched")
        self._watch(file, events)

    def _watch(self, file: File, events: int) -> None:
        file.epolls[self] = events
        file.changed()

    def unregister(self, descriptor: int) -> None:
        del self.kernel.file(descriptor).epolls[self]

    def poll(self, timeout: float = -1, maxevents: int = -1) -> list[tuple[int, int]]:
        assert timeout == 0, "the schedule would sleep"
        found = [
            (file.descriptor, events)
            for file in self.kernel.files.values()
            if self in file.epolls and (events := file.ready() & (file.epolls[self] | select.EPOLLHUP))
        ]
        return found[:maxevents] if maxevents > 0 else found


class Half(File):
    """One side of a connection."""

    def __init__(self, kernel: Kernel, *, is_daemons: bool) -> None:
        super().__init__(kernel, is_daemons=is_daemons)
        self.peer: Half = self
        self.arrived: deque[tuple[int, bytes]] = deque()
        self.queued = 0  # packets that were sent to it and not received yet, whether they have arrived or not
        self.has_end = False  # the other side is closed, and all that it had sent has arrived
        self._newest_ns = 0

    def ready(self) -> int:
        events = HUNG_UP if self.has_end else select.EPOLLIN if self.arrived else 0
        if self.has_end or 2 * self.peer.queued <= self.kernel.high_water:
            events |= select.EPOLLOUT
        return events

    def send(self, kind: int, body: bytes) -> bool:
        if self.is_closed or self.has_end:
            raise BrokenPipeError(errno.EPIPE, "the other side has ended")
        peer = self.peer
        if peer.is_closed or (self.is_daemons and self.kernel.drops_what_the_daemon_sends):
            return True  # if the other side is closed, this side learns it soon
        if peer.queued >= self.kernel.high_water:
            self.kernel.faults[f"no room for a packet {'down' if self.is_daemons else 'up'}"] += 1
            return False
        peer.queued += 1
        peer.later(lambda: peer.arrived.append((kind, body)))
        return True

    def later(self, what: Callable[[], object]) -> None:
        """Do `what` at this side, after all that was sent to it before, unless this side is closed by then."""
        kernel, weather, rng = self.kernel, self.kernel.weather, self.kernel.rng
        longest_ns = weather.delay_ns
        if rng.random() < weather.long_delay:
            kernel.faults["delayed packets"] += 1
            longest_ns = weather.long_delay_ns
        self._newest_ns = max(kernel.schedule.now_ns + rng.randrange(1 + longest_ns), self._newest_ns + 1)

        def act() -> None:
            if not self.is_closed:
                what()
                self.changed()

        kernel.schedule.at(self._newest_ns, act)

    def receive(self) -> tuple[int, bytes] | None:
        if self.arrived:
            found = self.arrived.popleft()
            self.queued -= 1
            self.peer.changed()
            return found
        if self.is_closed or self.has_end:
            raise ConnectionResetError(errno.ECONNRESET, "the other side has ended")
        return None

    def close(self) -> None:
        if not self.is_closed:
            super().close()
            self.peer.later(self.peer.end)

    def end(self) -> None:
        """All that the other side sent has arrived. Nothing follows."""
        self.has_end = True

    def cut(self) -> None:
        """The other side is lost, and with it all that was not received here."""
        self.arrived.clear()
        self.has_end = True
        self.changed()


class Packets:
    """Packets over a Half, with the interface of timerd_wire.packets."""

    def __init__(self, half: Half) -> None:
        self.half = half
        self.kind = 0

    def send(self, kind: int, body: bytes) -> bool:
        return self.half.send(kind, body)

    def receive(self) -> bytes | None:
        found = self.half.receive()
        if found is None:
            return None
        self.kind, body = found
        return body

    def close(self) -> None:
        self.half.close()


class Socket(File):
    """A socket that is not connected, or one that listens."""

    def __init__(self, kernel: Kernel, *, is_daemons: bool) -> None:
        super().__init__(kernel, is_daemons=is_daemons)
        self.backlog: deque[Half] = deque()
        self._half: Half | None = None

    def ready(self) -> int:
        return select.EPOLLIN if self.backlog else 0

    def setblocking(self, blocks: bool) -> None:
        assert not blocks, "the schedule would block"

    def setsockopt(self, level: int, option: int, value: int) -> None:
        """Do nothing: `weather` decides how much a queue of this kernel holds."""

    def getsockopt(self, level: int, option: int) -> int:
        return 1 << 20

    def connect(self, path: str) -> None:
        self._half = self.kernel.connect(path)

    def detach(self) -> int:
        """The descriptor of what it is connected to."""
        assert self._half is not None
        self.close()
        return self._half.descriptor

    def close(self) -> None:
        super().close()
        for half in self.backlog:
            half.close()
        self.backlog.clear()


class CountedServer(PacketServer):
    """A server that counts the frames that it drops."""

    kernel: Kernel

    def send(self, connection: PacketConnection, frame: bytes) -> bool:
        sent = super().send(connection, frame)
        if not sent:
            self.kernel.faults["dropped where the daemon's queue is full"] += 1
        return sent


class NoServer:
    """Stands for a server of ZeroMQ: clients of ZeroMQ use network.py instead."""

    def __init__(self, *given: object, **more: object) -> None:
        self.received = self._nothing

    def has_input(self) -> bool:
        return False

    def is_dry(self) -> bool:
        return True

    def get(self, number: int) -> None:
        return None

    def close(self) -> None:
        """Nothing to do."""

    def _nothing(self, limit: int) -> Iterator[tuple[int, bytes]]:
        return iter(())


class Kernel:
    """The descriptors of all processes of one simulation. `weather` has the delays, the faults and the queues' room."""

    def __init__(self, schedule: Schedule, rng: Random, faults: Counter[str]) -> None:
        self.schedule = schedule
        self.rng = rng
        self.faults = faults
        self.weather = CALM
        self.drops_what_the_daemon_sends = False  # True in a turn in which the daemon is killed
        self.packet_size_max = rng.choice((2_048, 4_096, 131_072))  # each is larger than a command
        self.queued_max = rng.choice((1 << 16, 4 << 20))  # at least the largest frame that the daemon sends here
        self.files: dict[int, File] = {}
        self._listening: dict[str, Socket] = {}
        self._made = 0

    @property
    def high_water(self) -> int:
        return self.weather.high_water

    def number(self, file: File) -> int:
        """The descriptor of a new file: 1, 2, and so on. No number is used again, so no file is taken for another."""
        self._made += 1
        self.files[self._made] = file
        return self._made

    def file(self, descriptor: int) -> File:
        if descriptor not in self.files:
            raise OSError(errno.EBADF, f"no file is open as {descriptor}")
        return self.files[descriptor]

    # acts on this kernel ----------------------------------------------------------------------------------------------

    def connect(self, path: str) -> Half:
        """Connect to the listener at this path. Returns the caller's side of the connection. Raises OSError."""
        listening = self._listening.get(path)
        if listening is None or listening.is_closed:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "nobody listens")
        if self.rng.random() < self.weather.drop:
            self.faults["no room to connect"] += 1
            raise BlockingIOError(errno.EAGAIN, "very many clients connect")
        mine, others = Half(self, is_daemons=False), Half(self, is_daemons=True)
        mine.peer, others.peer = others, mine
        listening.backlog.append(others)
        listening.changed()
        return mine

    def close(self, descriptor: int) -> None:
        """Close this descriptor, if it is open."""
        file = self.files.get(descriptor)
        if isinstance(file, Half):
            file.close()
            for listening in self._listening.values():
                if file in listening.backlog:
                    listening.backlog.remove(file)

    def kill_daemon(self) -> None:
        """Close the daemon's descriptors."""
        self.drops_what_the_daemon_sends = False
        for file in list(self.files.values()):
            if file.is_daemons:
                file.close()

    def intrude(self, path: Path, frame: bytes) -> None:
        """Connect as a stranger, send something, and end."""
        try:
            half = self.connect(str(path))
        except OSError:
            return
        kind = self.rng.choice((FRAME, FRAME, SUBSCRIBE, self.rng.randrange(256)))
        for _ in range(self.rng.randrange(3)):
            half.send(kind, frame)
        half.send(SUBSCRIBE, frame[:16])
        self.schedule.after(1 + self.rng.randrange(10**9), half.close)

    # in the place of the real kernel ----------------------------------------------------------------------------------

    @contextmanager
    def in_charge(self) -> Iterator[None]:
        """Until the end of the block, both sides use this kernel for packets."""
        client, wire = timerd_client.transport.unix_sockets, timerd_wire.packets
        server, listener = timerd.packets.connection, timerd.host.listener
        CountedServer.kernel = self
        replaced: list[tuple[Any, str, Any]] = [
            *((client, name, made) for name, made in self._modules(is_daemons=False).items()),
            (client, "native", SimpleNamespace(unix_socket=self._client_socket, epoll=self._client_epoll)),
            (client, "Packets", self._packets),
            (UnixSockets, "frame_size_max", self.packet_size_max),
            *((module, "PACKET_SIZE_MAX", self.packet_size_max) for module in (client, wire, server)),
            (server, "Packets", self._packets),
            (server, "QUEUED_MAX", self.queued_max),
            (listener, "socket", self._modules(is_daemons=True)["socket"]),
            (listener, "listen_guarded", self._listen),
            (listener, "_spare_file", lambda: SimpleNamespace(close=lambda: None)),
            (listener, "process_of", lambda descriptor: 0),
            (listener, "accept", self._accept),
            (timerd.host.selector, "select", self._modules(is_daemons=True)["select"]),
            (timerd.conductor.transport, "credentials_of", lambda descriptor: (0, UID_UNKNOWN)),
            (timerd.conductor.transport, "Server", NoServer),
            (timerd.conductor.transport, "PacketServer", CountedServer),
        ]
        with ExitStack() as undo:
            for where, name, what in replaced:
                undo.enter_context(patch.object(where, name, what))
            yield

    def _accept(self, listening: int) -> int:
        found = self.file(listening)
        assert isinstance(found, Socket)
        if not found.backlog:
            raise BlockingIOError(errno.EAGAIN, "nobody has connected")
        return found.backlog.popleft().descriptor

    def _modules(self, *, is_daemons: bool) -> dict[str, Any]:
        """The parts of the standard modules that a process uses."""
        return {
            "socket": SimpleNamespace(
                AF_UNIX=0,
                SOCK_SEQPACKET=0,
                SOCK_NONBLOCK=0,
                SOL_SOCKET=0,
                SO_SNDBUF=0,
                socket=lambda *kind: Socket(self, is_daemons=is_daemons),
            ),
            "select": SimpleNamespace(
                EPOLLIN=select.EPOLLIN,
                EPOLLOUT=select.EPOLLOUT,
                epoll=lambda: Epoll(self, is_daemons=is_daemons),
            ),
            "os": SimpleNamespace(
                EFD_NONBLOCK=0,
                EFD_CLOEXEC=0,
                eventfd=lambda *given: Bell(self, is_daemons=is_daemons).descriptor,
                eventfd_write=self._ring,
                eventfd_read=self._take,
                close=lambda descriptor: self.file(descriptor).close(),
            ),
            "FileIO": lambda descriptor, *mode: self.file(descriptor),
        }

    def _client_socket(self, kind: int) -> Any:
        return Socket(self, is_daemons=False)

    def _client_epoll(self) -> Any:
        return Epoll(self, is_daemons=False)

    def _packets(self, descriptor: int) -> Packets:
        half = self.file(descriptor)
        assert isinstance(half, Half)
        return Packets(half)

    def _listen(self, socket: Socket, path: Path, group_id: int | None) -> None:
        self._listening[str(path)] = socket

    def _ring(self, descriptor: int, count: int) -> None:
        bell = self.file(descriptor)
        assert isinstance(bell, Bell)
        bell.count += count
        bell.changed()

    def _take(self, descriptor: int) -> int:
        bell = self.file(descriptor)
        assert isinstance(bell, Bell)
        if not bell.count:
            raise BlockingIOError(errno.EAGAIN, "it was not rung")
        count, bell.count = bell.count, 0
        return count
