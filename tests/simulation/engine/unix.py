"""The transport "unix" in the simulation: the real sockets of a client and the real server, on a kernel in memory."""

from __future__ import annotations

import _socket
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from timerd.clients.liveness import Adopter
from timerd.conductor.transport import OutletMessage, SocketTransport
from timerd.config.config import FRAME_MEMORY
from timerd.host.budget import Budget
from timerd.host.selector import Selector
from timerd_client.transport.unix_sockets import End, UnixSockets
from timerd_shm.declare.errors import TimerdError
from timerd_shm.declare.limits import UID_UNKNOWN
from timerd_shm.host.paths import InstancePaths
from timerd_shm.read.reader import ArenaReader

from .kernel import Epoll, Half, Kernel
from .network import Network


class SimulatedPaths(InstancePaths):
    """Paths of a kernel in memory, in which there is one user."""

    def judged(self) -> InstancePaths:
        return self

    def connect(self, made: _socket.socket, path: Path) -> None:
        made.connect(str(path))


PATHS = SimulatedPaths(Path("/nowhere"), "simulated")
SPINS_MAX = 500  # how often in a row a client may be woken and leave events in its epoll


class PacketEnd(End):
    """The lifeline of a client of packets: its bell rings when the connection has ended. The client polls it."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.on_end: Callable[[], None] = lambda: None
        self._kernel = kernel

    def look(self) -> None:
        """Call `on_end` if the bell has rung."""
        if self.fileno() >= 0 and self._kernel.file(self.fileno()).ready():
            self.on_end()


class PacketSockets(UnixSockets):
    """A client's sockets for packets. `on_input` is called when its epoll has something."""

    def __init__(
        self, kernel: Kernel, end_connection: Callable[[int], None], memory: Callable[[], bytearray | None]
    ) -> None:
        """`end_connection(descriptor)`: the daemon ends the connection that has this descriptor in the daemon."""
        self.on_input: Callable[[], None] = lambda: None
        self._kernel = kernel
        self._memory = memory
        self._end_connection = end_connection
        self._spins = 0
        super().__init__(PATHS, lambda: kernel.schedule.now_ns)
        self._end.close()
        self.lifeline = self._end = self.packet_end = PacketEnd(kernel)
        epoll = kernel.file(self._epoll.fileno())
        assert isinstance(epoll, Epoll)
        epoll.on_ready = lambda: self.on_input()
        self._watching = epoll

    @property
    def half(self) -> Half | None:
        """Its side of the connection, if there is one."""
        half = self._kernel.files.get(self._descriptor)
        return half if isinstance(half, Half) else None

    def passed(self) -> None:
        """After a pass of the client: if its epoll still has events, wake the client again, SPINS_MAX times at most."""
        if self._watching.is_closed or not self._watching.poll(0):
            self._spins = 0
            return
        self._spins += 1
        assert self._spins < SPINS_MAX, "a client is woken again and again, and does nothing"
        self.on_input()

    def disconnected(self) -> None:
        """Break the connection: the daemon ends it, and packets on their way are lost. (A living client ends none.)"""
        half = self.half
        if half is not None:
            self._end_connection(half.peer.descriptor)
            half.cut()

    def filenos(self) -> list[int]:
        return []

    def map_arena(self) -> ArenaReader:
        memory = self._memory()
        if memory is None:
            raise OSError("there is no arena to map")
        return ArenaReader(memoryview(memory).toreadonly())


class Transports:
    """The conductor's Transport of one daemon: the network of ZeroMQ, and packets."""

    def __init__(self, network: Network, kernel: Kernel, liveness: Adopter, on_input: Callable[[], None]) -> None:
        self._network = network
        self.selector = Selector()
        budget = Budget(FRAME_MEMORY)
        self.packets = SocketTransport(
            PATHS, self.selector, liveness, None, clients_max=1_000, connections_max=1_000, budget=budget
        )
        epoll = kernel.file(self.selector.fileno())
        assert isinstance(epoll, Epoll)
        epoll.on_ready = on_input
        self._epoll = epoll

    def look(self) -> None:
        """Learn what is ready, as the loop does before each turn."""
        self.selector.poll(0)

    def has_input(self) -> bool:
        return self._network.has_input() or self.packets.has_input() or bool(self._epoll.poll(0))

    def receive(self, limit: int) -> Iterator[tuple[int, bytes]]:
        for each in self._network.receive(limit):
            limit -= 1
            yield each
        if limit > 0:
            yield from self.packets.receive(limit)

    def is_dry(self) -> bool:
        return self._network.is_dry() and self.packets.is_dry()

    def sender(self, connection: int) -> int:
        return self._network.sender(connection) or self.packets.sender(connection)

    def user(self, connection: int) -> int:
        known = self._network.user(connection)
        return self.packets.user(connection) if known == UID_UNKNOWN else known

    def hold(self, process: int, is_held: bool) -> None:
        self._network.hold(process, is_held)
        self.packets.hold(process, is_held)

    def defer(self, process: int, size: int) -> bool:
        return self.packets.defer(process, size)

    def on_shed(self, drop: Callable[[int], None]) -> None:
        self.packets.on_shed(drop)

    def renew(self, now_ns: int) -> None:
        self.packets.renew(now_ns)

    def tend(self, now_ns: int) -> None:
        self.packets.tend(now_ns)

    @property
    def due_ns(self) -> int:
        return self.packets.due_ns

    def send(self, connection: int, frame: bytes) -> None:
        self._network.send(connection, frame)
        self.packets.send(connection, frame)

    def outlet_messages(self, limit: int) -> Iterable[OutletMessage]:
        yield from self._network.outlet_messages(limit)
        yield from self.packets.outlet_messages(limit)

    def admit(self, connection: int, slot: int) -> None:
        if connection:
            self.packets.admit(connection, slot)
        else:
            self._network.admit(connection, slot)

    def close_outlet(self, slot: int) -> None:
        self._network.close_outlet(slot)
        self.packets.close_outlet(slot)

    def publish(self, slot: int, frame: bytes) -> None:
        self._network.publish(slot, frame)
        self.packets.publish(slot, frame)

    def complaints(self) -> list[tuple[int, TimerdError]]:
        return self._network.complaints() + self.packets.complaints()

    def end(self, descriptor: int) -> bool:
        """The daemon ends the connection that has this descriptor; False: there is none."""
        connection = self.packets._packets._by_descriptor.get(descriptor)
        if connection is not None:
            connection.end()
        return connection is not None

    def end_some(self, choose: Callable[[int], int]) -> bool:
        """The daemon ends one connection of packets: `choose(their number)` is its index. False: there is none."""
        connections = list(self.packets._packets._by_number.values())
        if connections:
            connections[choose(len(connections))].end()
        return bool(connections)
