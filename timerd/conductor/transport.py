"""The daemon's sockets. What the conductor needs of them is `Transport`; `ZmtpTransport` is the real one.

    NAME.sock    ROUTER: commands come in, and are answered over the same connection
    NAME.pub     XPUB: each connection is one client's, and has its outcomes alone; it drops rather than blocks

A peer of NAME.pub shows a session in the handshake (PLAIN's password). The newest connection that shows a session hears
it; an older one is closed. Clients use libzmq; the daemon speaks its protocol itself, because every byte of a peer has
to have a bound (timerd/zmtp).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from timerd.host.descriptors import CONNECTIONS_PER_CLIENT
from timerd.host.selector import Selector
from timerd.zmtp.connection import Connection
from timerd.zmtp.peer import ProtocolError, Side
from timerd.zmtp.server import Server
from timerd.zmtp.shares import Shares
from timerd_shm.declare.errors import MalformedError, ResourceLimitError, TimerdError
from timerd_shm.declare.limits import FRAME_SIZE_MAX
from timerd_shm.host.paths import InstancePaths
from timerd_wire.outlet import UNSUBSCRIBE

NOT_ADMITTED = -1
COMMANDS = Side(b"ROUTER", (b"DEALER", b"REQ", b"ROUTER"), FRAME_SIZE_MAX)
OUTCOMES = Side(b"XPUB", (b"XSUB", b"SUB"), 64, is_plain=True)  # bytes of the one subscription, and some more
CONNECTIONS_BESIDE = 64  # of a process, beyond those of its clients: tools, and clients that connect again


class Heard(NamedTuple):
    """What came over a connection for outcomes: a session, from one that asks to be admitted, or a message."""

    connection: int  # a number that is never used twice
    slot: int  # whose outcomes it hears, or NOT_ADMITTED
    message: bytes


class Transport(Protocol):
    """What the conductor needs of a network. Nothing here blocks."""

    def receive(self, limit: int) -> Iterator[tuple[int, bytes]]:
        """Up to `limit` frames as (connection, frame), taken from the network one by one as they are asked for."""

    def is_dry(self) -> bool:
        """Whether the last receive(), taken to its end, has given all that had come."""

    def sender(self, connection: int) -> int:
        """Pid of the process that has opened a connection for commands, as the kernel says; 0 = not known."""

    def send(self, connection: int, frame: bytes) -> None:
        """Send a frame over a connection for commands; dropped when the client is lost or does not keep up."""

    def hear(self, limit: int) -> Iterable[Heard]:
        """Up to `limit` messages of connections for outcomes. One that asks is admitted at once, or it is refused."""

    def admit(self, connection: int, slot: int) -> None:
        """Let a connection that has asked hear the outcomes of a slot. An earlier connection of the slot is closed."""

    def close_outlet(self, slot: int) -> None:
        """Close the connection that hears a slot, if there is one."""

    def publish(self, slot: int, frame: bytes) -> None:
        """Send a frame to who hears a slot; dropped if there is nobody, or if the client does not keep up."""

    def complaints(self) -> list[tuple[int, TimerdError]]:
        """What was wrong with connections that were closed since the last call, as (pid, error)."""


class ZmtpTransport:
    """ROUTER and XPUB over Unix sockets, with safe permissions from the moment of bind.

    `clients_max`: as many clients one process may have. `connections_max`: as many connections there may be at all.
    Stale socket files of a killed daemon are replaced; so the caller holds the instance's lock. Raises
    ResourceLimitError.
    """

    def __init__(
        self,
        paths: InstancePaths,
        selector: Selector,
        group_id: int | None = None,
        *,
        clients_max: int,
        connections_max: int,
    ) -> None:
        self._shares = Shares(CONNECTIONS_PER_CLIENT * clients_max + CONNECTIONS_BESIDE, connections_max)
        self._complaints: list[tuple[int, TimerdError]] = []
        self._heard_by: dict[int, Connection] = {}  # by slot
        self._left: dict[int, Heard] = {}  # by slot: its connection has ended
        self._commands = Server(paths.commands, COMMANDS, self._shares, selector, group_id, on_error=self._on_error)
        try:
            self._outcomes = Server(
                paths.outcomes, OUTCOMES, self._shares, selector, group_id, on_end=self._on_end, on_error=self._on_error
            )
        except BaseException:
            self._commands.close()
            raise

    def has_input(self) -> bool:
        """Whether something that the selector has reported, or that was read before, waits to be received."""
        return self._commands.has_input() or self._outcomes.has_input() or bool(self._left)

    def connections(self) -> int:
        """How many there are."""
        return len(self._shares)

    # Commands ---------------------------------------------------------------------------------------------------------

    def receive(self, limit: int) -> Iterator[tuple[int, bytes]]:
        return self._commands.received(limit)

    def is_dry(self) -> bool:
        return self._commands.is_dry()

    def sender(self, connection: int) -> int:
        found = self._commands.get(connection)
        return 0 if found is None else found.share.pid

    def send(self, connection: int, frame: bytes) -> None:
        found = self._commands.get(connection)
        if found is not None:
            self._commands.send(found, frame)

    # Outcomes ---------------------------------------------------------------------------------------------------------

    def hear(self, limit: int) -> Iterable[Heard]:
        return self._hear(limit) if self._left or self._outcomes.has_input() else ()

    def _hear(self, limit: int) -> Iterator[Heard]:
        while self._left:
            yield self._left.popitem()[1]
        for number, message in self._outcomes.received(limit):
            connection = self._outcomes.get(number)
            assert connection is not None, f"connection {number} is closed, and gave a message"
            is_asking = connection.slot == NOT_ADMITTED
            yield Heard(number, connection.slot, message)
            if is_asking and connection.slot == NOT_ADMITTED:
                self._outcomes.close_connection(connection)

    def admit(self, connection: int, slot: int) -> None:
        found = self._outcomes.get(connection)
        if found is not None:
            self.close_outlet(slot)
            self._heard_by[slot] = found
            found.admit(slot)

    def close_outlet(self, slot: int) -> None:
        self._left.pop(slot, None)
        found = self._heard_by.pop(slot, None)
        if found is not None:
            self._outcomes.close_connection(found)

    def publish(self, slot: int, frame: bytes) -> None:
        found = self._heard_by.get(slot)
        if found is not None:
            self._outcomes.send(found, frame)

    # Connections ------------------------------------------------------------------------------------------------------

    def complaints(self) -> list[tuple[int, TimerdError]]:
        if not self._complaints and not self._shares.has_refused:
            return []
        found, self._complaints = self._complaints, []
        for (pid, has_all), number in self._shares.take_refused().items():
            why = "no more files may be open (LimitNOFILE=, ulimit -n)"
            if has_all:
                most = self._shares.most_of(pid)
                why = f"it has {most}, as many as it may: close some, or use a larger --quota-clients"
            found += [(pid, ResourceLimitError(f"{_named(pid)}: a connection was closed: {why}"))] * number
        return found

    def close(self) -> None:
        """Close the sockets and remove their files, before the lock is given up: they could be the next daemon's."""
        self._outcomes.close()
        self._commands.close()

    def _on_end(self, connection: Connection) -> None:
        if self._heard_by.get(connection.slot) is connection:
            del self._heard_by[connection.slot]
            self._left[connection.slot] = Heard(connection.number, connection.slot, UNSUBSCRIBE)

    def _on_error(self, connection: Connection, error: ProtocolError) -> None:
        pid = connection.share.pid
        self._complaints.append((pid, MalformedError(f"{_named(pid)}: a connection was closed: {error}")))


def _named(pid: int) -> str:
    return f"process {pid}" if pid else "processes of other pid namespaces"
