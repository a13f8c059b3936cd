"""The daemon's sockets. The conductor knows them as a `Transport`. `SocketTransport` has the sockets of the kernel.

    NAME.sock    ROUTER: commands come in, and are answered over the same connection
    NAME.pub     XPUB: a connection gets the outcomes of one client; if the connection is full, they are dropped
    NAME.unix    packets: both in one connection, for clients without ZeroMQ

A peer of NAME.pub shows a session in the handshake (PLAIN's password), a peer of NAME.unix in a packet. The newest
connection that shows a session gets its outcomes; an older one is closed. The end of a connection of NAME.unix is the
end of its client. Clients of ZeroMQ use libzmq. The daemon has its own code for ZeroMQ's protocol, because the bytes of
each peer must have a bound (timerd/zmtp).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import NamedTuple, Protocol

from timerd.clients.liveness import Adopter
from timerd.host.accepting import credentials_of
from timerd.host.budget import Budget
from timerd.host.descriptors import CONNECTIONS_PER_CLIENT
from timerd.host.newcomers import SHOWN_WITHIN_NS
from timerd.host.selector import Selector
from timerd.host.shares import Shares, Why
from timerd.packets.connection import PacketConnection
from timerd.packets.server import PacketServer
from timerd.zmtp.connection import Connection
from timerd.zmtp.peer import ProtocolError, Side
from timerd.zmtp.server import Server
from timerd_shm.declare.errors import MalformedError, ResourceLimitError, TimerdError
from timerd_shm.declare.limits import FRAME_SIZE_MAX, UID_UNKNOWN
from timerd_shm.host.paths import InstancePaths
from timerd_wire.outlet import SUBSCRIBE, UNSUBSCRIBE

NOT_ADMITTED = -1
COMMANDS = Side(b"ROUTER", (b"DEALER", b"REQ", b"ROUTER"), FRAME_SIZE_MAX)
OUTCOMES = Side(b"XPUB", (b"XSUB", b"SUB"), 64, is_plain=True)  # 64 bytes: the one subscription, and some more
CONNECTIONS_BESIDE = 64  # of a process, beyond those of its clients: tools, and clients that connect again


class OutletMessage(NamedTuple):
    """A message of a connection for outcomes. Before the connection is admitted, the message is its session."""

    connection: int  # a number that is never used twice
    slot: int  # the client whose outcomes it gets, or NOT_ADMITTED
    message: bytes


class Transport(Protocol):
    """The network as the conductor sees it. Nothing here blocks."""

    def receive(self, limit: int) -> Iterator[tuple[int, bytes]]:
        """Up to `limit` frames as (connection, frame), taken from the network one by one as they are asked for."""

    def is_dry(self) -> bool:
        """Whether the last receive(), when exhausted, had given all that had come."""

    def sender(self, connection: int) -> int:
        """The process that has opened a connection for commands, as the kernel says (host/listener.py).

        Its pid; in another pid namespace a negative number; 0 = not known.
        """

    def user(self, connection: int) -> int:
        """The uid of that process, as the kernel says; UID_UNKNOWN if the connection has ended."""

    def hold(self, process: int, is_held: bool) -> None:
        """Leave the frames of a process (as sender() names it) in the network; or read them again."""

    def defer(self, process: int, size: int) -> bool:
        """Charge a process for memory of its deferred frames; a negative size: give it back. False: hold the process.

        False means that the process is over its share, and most of the memory is in use (host/budget.py).
        """

    def on_shed(self, drop: Callable[[int], None]) -> None:
        """Call `drop` with a process whose deferred frames have to go, because others need their memory."""

    def renew(self, now_ns: int) -> None:
        """The daemon stood still: the time in which a connection has to show something begins anew."""

    def tend(self, now_ns: int) -> None:
        """Close connections that have shown nothing for too long, and free memory. Call it after receive()."""

    @property
    def due_ns(self) -> int:
        """When to call tend() even if nothing has come."""

    def send(self, connection: int, frame: bytes) -> None:
        """Send a frame over a connection for commands; dropped when the client is lost or does not keep up."""

    def outlet_messages(self, limit: int) -> Iterable[OutletMessage]:
        """Up to `limit` messages of connections for outcomes.

        A connection that asks (NOT_ADMITTED) is refused if the caller takes the next message without admit() for it.
        """

    def admit(self, connection: int, slot: int) -> None:
        """Give the outcomes of a slot to a connection that has asked. An earlier connection of the slot is closed."""

    def close_outlet(self, slot: int) -> None:
        """Close the outlet of a slot, if there is one."""

    def publish(self, slot: int, frame: bytes) -> None:
        """Send a frame to the outlet of a slot. It is dropped without an outlet, or if the client does not keep up."""

    def complaints(self) -> list[tuple[int, TimerdError]]:
        """The errors for which connections were closed since the last call, as (pid, error)."""


class SocketTransport:
    """ROUTER, XPUB and packets over Unix sockets, with safe permissions from the moment of bind.

    `liveness` learns of the connections whose end is a client's end. `clients_max`: the largest number of clients of
    one process. `connections_max`: the largest number of all connections. `budget`: the memory for frames. Stale socket
    files of a killed daemon are replaced; so the caller holds the instance's lock. Raises ResourceLimitError.
    """

    def __init__(
        self,
        paths: InstancePaths,
        selector: Selector,
        liveness: Adopter,
        group_id: int | None = None,
        *,
        clients_max: int,
        connections_max: int,
        budget: Budget,
    ) -> None:
        self._liveness = liveness
        most = CONNECTIONS_PER_CLIENT * clients_max + CONNECTIONS_BESIDE
        self._shares = shares = Shares(most, connections_max, budget)
        self._complaints: list[tuple[int, TimerdError]] = []
        self._outlets: dict[int, Connection | PacketConnection] = {}  # by slot
        self._ready: dict[int, OutletMessage] = {}  # by slot: an outlet has ended, or was made by a packet
        self._takes_packets_first = False
        with ExitStack() as undo:
            self._commands = Server(paths.commands, COMMANDS, shares, selector, group_id, on_error=self._on_error)
            undo.callback(self._commands.close)
            self._outcomes = Server(
                paths.outcomes, OUTCOMES, shares, selector, group_id, on_end=self._on_end, on_error=self._on_error
            )
            undo.callback(self._outcomes.close)
            self._packets = PacketServer(
                paths.packets, shares, selector, group_id, on_end=self._on_packets_end, on_error=self._on_error
            )
            undo.pop_all()

    def has_input(self) -> bool:
        """Whether something that the selector has reported, or that was read before, waits to be received."""
        return (
            self._commands.has_input()
            or self._packets.has_input()
            or self._outcomes.has_input()
            or bool(self._ready or self._packets.asking or self._shares.budget.is_releasing)
        )

    def connections(self) -> int:
        """The number of open connections."""
        return len(self._shares)

    # Commands ---------------------------------------------------------------------------------------------------------

    def receive(self, limit: int) -> Iterator[tuple[int, bytes]]:
        if not self._packets.has_input():
            return self._commands.received(limit)
        if not self._commands.has_input():
            return self._packets.received(limit)
        return self._receive_from_both(limit)

    def _receive_from_both(self, limit: int) -> Iterator[tuple[int, bytes]]:
        # The caller may stop long before the limit. So the two take turns to be the first.
        self._takes_packets_first = is_first = not self._takes_packets_first
        for takes_packets in (is_first, not is_first):
            for each in self._packets.received(limit) if takes_packets else self._commands.received(limit):
                limit -= 1
                yield each
            if limit <= 0:
                return

    def is_dry(self) -> bool:
        return self._commands.is_dry() and self._packets.is_dry()

    def sender(self, connection: int) -> int:
        found = self._commands.get(connection) or self._packets.get(connection)
        return 0 if found is None else found.share.process

    def user(self, connection: int) -> int:
        found = self._commands.get(connection) or self._packets.get(connection)
        return UID_UNKNOWN if found is None else credentials_of(found.descriptor)[1]

    def hold(self, process: int, is_held: bool) -> None:
        self._shares.hold(process, is_held)

    def defer(self, process: int, size: int) -> bool:
        return self._shares.defer(process, size)

    def on_shed(self, drop: Callable[[int], None]) -> None:
        self._shares.drop_deferred = drop

    def renew(self, now_ns: int) -> None:
        self._shares.renew(now_ns)

    def tend(self, now_ns: int) -> None:
        self._shares.tend(now_ns)

    @property
    def due_ns(self) -> int:
        return self._shares.due_ns

    def send(self, connection: int, frame: bytes) -> None:
        found = self._commands.get(connection) or self._packets.get(connection)
        if found is not None:
            found.deliver(frame)

    # Outcomes ---------------------------------------------------------------------------------------------------------

    def outlet_messages(self, limit: int) -> Iterable[OutletMessage]:
        if self._ready or self._packets.asking or self._outcomes.has_input():
            return self._outlet_messages(limit)
        return ()

    def _outlet_messages(self, limit: int) -> Iterator[OutletMessage]:
        asking = self._packets.asking
        while asking and limit > 0:
            limit -= 1
            number = next(iter(asking))
            # If the connection is refused, it may still say hello.
            yield OutletMessage(number, NOT_ADMITTED, asking.pop(number).session)
        while self._ready and limit > 0:
            limit -= 1
            yield self._ready.popitem()[1]
        for number, message in self._outcomes.received(limit):
            connection = self._outcomes.get(number)
            assert connection is not None, f"connection {number} is closed, and gave a message"
            is_asking = connection.slot == NOT_ADMITTED
            yield OutletMessage(number, connection.slot, message)
            if is_asking and connection.slot == NOT_ADMITTED:
                self._outcomes.close_connection(connection)

    def admit(self, connection: int, slot: int) -> None:
        found = self._outcomes.get(connection)
        if found is not None:
            self._end_outlet(slot)
            self._outlets[slot] = found
            found.admit(slot)
            return
        packets = self._packets.get(connection)
        if packets is None:
            return
        if self._outlets.get(slot) is not packets:
            self._end_outlet(slot)
            self.close_outlet(packets.slot)  # it has shown another session before
            packets.slot, packets.watch = slot, self._liveness.adopt(packets.session)
            packets.is_admitted = True
            packets.share.clients += 1
            self._shares.shown(packets.share, packets)
            self._outlets[slot] = packets
        self._ready[slot] = OutletMessage(connection, slot, SUBSCRIBE)

    def close_outlet(self, slot: int) -> None:
        found = self._outlets.get(slot)
        if isinstance(found, PacketConnection):  # commands may still come over it
            self._ready.pop(slot, None)
            del self._outlets[slot]
            self._leave_slot(found)
        else:
            self._end_outlet(slot)

    def _end_outlet(self, slot: int) -> None:
        """Close the outlet of a slot, also if commands come over it: another connection takes its place."""
        self._ready.pop(slot, None)
        found = self._outlets.pop(slot, None)
        if isinstance(found, PacketConnection):
            self._leave_slot(found)
            self._packets.close_connection(found)
        elif found is not None:
            self._outcomes.close_connection(found)

    def _leave_slot(self, packets: PacketConnection) -> None:
        """From now on the connection gets no outcomes, belongs to no client, and its end is the end of no client."""
        self._liveness.adopted_ended(packets.watch, is_client=False)  # else its watch would stay with the session
        packets.slot, packets.watch = NOT_ADMITTED, 0
        packets.is_admitted = False
        packets.share.clients -= 1

    def publish(self, slot: int, frame: bytes) -> None:
        found = self._outlets.get(slot)
        if found is not None:
            found.deliver(frame)

    # Connections ------------------------------------------------------------------------------------------------------

    def complaints(self) -> list[tuple[int, TimerdError]]:
        if not self._complaints and not self._shares.has_refused:
            return []
        found, self._complaints = self._complaints, []
        for (process, why), number in self._shares.take_refused().items():
            error = ResourceLimitError(f"{_named(process)}: {self._reason(why, process)}")
            found += [(max(process, 0), error)] * number
        return found

    def _reason(self, why: Why, process: int) -> str:
        """The event and its reason, for an error message. The error log has room for 223 bytes."""
        mib = self._shares.budget.most >> 20
        spent = (
            f"the {mib} MiB of --frame-memory are in use, and it has more than its share: read answers, or raise "
            "--frame-memory"
        )
        match why:
            case Why.HAS_ALL:
                most = self._shares.most_of(process)
                why_closed = f"it has {most}, as many as it may: close some, or use a larger --quota-clients"
            case Why.NO_FILES:
                why_closed = "no more files may be open (LimitNOFILE=, ulimit -n)"
            case Why.SILENT:
                why_closed = f"it had shown nothing after {SHOWN_WITHIN_NS // 1_000_000_000} s"
            case Why.OVER_SHARE:
                why_closed = spent
            case Why.FRAMES_OVER_SHARE:
                return f"its deferred frames were dropped: {spent}"
        return f"a connection was closed: {why_closed}"

    def close(self) -> None:
        """Close the sockets and remove their files, while the lock is held: later, they may be the next daemon's."""
        self._packets.close()
        self._outcomes.close()
        self._commands.close()

    def _on_end(self, connection: Connection) -> None:
        self._left(connection.slot, connection)

    def _on_packets_end(self, connection: PacketConnection) -> None:
        if connection.watch:
            self._liveness.adopted_ended(connection.watch, is_client=connection.has_ended)
        self._left(connection.slot, connection)

    def _left(self, slot: int, connection: Connection | PacketConnection) -> None:
        if self._outlets.get(slot) is connection:
            del self._outlets[slot]
            self._ready[slot] = OutletMessage(connection.number, slot, UNSUBSCRIBE)

    def _on_error(self, connection: Connection | PacketConnection, error: ProtocolError | ValueError) -> None:
        process = connection.share.process
        closed = MalformedError(f"{_named(process)}: a connection was closed: {error}")
        self._complaints.append((max(process, 0), closed))


def _named(process: int) -> str:
    if process > 0:
        return f"process {process}"
    return "a process of another pid namespace" if process else "processes of other pid namespaces"
