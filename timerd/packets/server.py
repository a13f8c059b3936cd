"""A listening socket of packets with its connections, in the conductor's thread. Nothing here blocks.

    the selector reports --> received(): accept some, read some, and give the frames one by one, processes in turn

A call has bounds: for the connections that it accepts, for packets, and for bytes. Packets beyond these wait in the
kernel, and hold their sender back.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from timerd.host.listener import Listener
from timerd.host.selector import Selector
from timerd.host.shares import Share, Shares
from timerd.host.turns import Turns
from timerd_wire.packets import FRAME, MORE, PART, SUBSCRIBE

from .connection import PacketConnection

WRITES_PER_CALL = 64
STEPS_PER_CALL = 1_024  # packets, of 1 to 10 us each
STEPS_PER_END = 16  # to close a connection takes 20 to 100 us: the kernel frees what waits in it
BYTES_PER_CALL = 1 << 20
SESSION_SIZE = 16


class PacketServer:
    """Listens at `path` from the moment it is made (listener.py). `on_end` is called for each connection that is
    closed, `on_error` before that if its peer has broken the protocol. Raises ResourceLimitError.

    `asking` are the open connections that have shown a session, and were not taken out since.
    """

    def __init__(
        self,
        path: Path,
        shares: Shares,
        selector: Selector,
        group_id: int | None = None,
        *,
        on_end: Callable[[PacketConnection], None],
        on_error: Callable[[PacketConnection, ValueError], None],
    ) -> None:
        self._shares = shares
        self._selector = selector
        self._on_end = on_end
        self._on_error = on_error
        self._by_descriptor: dict[int, PacketConnection] = {}
        self._by_number: dict[int, PacketConnection] = {}
        self._listed: Turns[PacketConnection] = Turns()  # to be looked at without waiting for the selector
        self._writable: dict[int, PacketConnection] = {}  # by descriptor
        self.asking: dict[int, PacketConnection] = {}  # by number
        self._listener = Listener(path, socket.SOCK_SEQPACKET, shares, selector, group_id, self._add)

    def has_input(self) -> bool:
        """Whether something waits for a call of received()."""
        return bool(self._listed or self._writable or self._listener.has_newcomers)

    def is_dry(self) -> bool:
        """Whether the last received(), when exhausted, had given all that had come when the selector looked."""
        return not self._listed and not self._selector.is_full

    def get(self, number: int) -> PacketConnection | None:
        """The connection of that number, while it is open."""
        return self._by_number.get(number)

    def received(self, limit: int) -> Iterator[tuple[int, bytes]]:
        """Up to `limit` frames as (connection's number, frame), taken one by one as they are asked for.

        Processes take turns, packet by packet, and so do the connections of a process.
        """
        if self._writable:
            self._write()
        if self._listener.has_newcomers:
            self._listener.accept()
        steps, left, listed = STEPS_PER_CALL, BYTES_PER_CALL, self._listed
        listed.begin()
        while listed and steps > 0 and left > 0 and limit > 0:
            steps -= 1
            connection = listed.next()
            if connection is None:
                return
            connection.is_listed = False
            if connection.is_closed:
                continue
            try:
                body = connection.packets.receive()
                if body is None:
                    continue
                self._list(connection)
                left -= len(body)
                is_frame = connection.packets.kind == FRAME and not connection.has_parts
                frame = body if is_frame else self._take(connection, body)
            except OSError:
                connection.has_ended = True
                self.close_connection(connection)
                steps -= STEPS_PER_END
                continue
            except ValueError as error:
                self._on_error(connection, error)
                self.close_connection(connection)
                steps -= STEPS_PER_END
                continue
            if frame is not None:
                limit -= 1
                yield connection.number, frame

    def send(self, connection: PacketConnection, frame: bytes) -> bool:
        """Send a frame; False: it was dropped. Its client has ended or is too slow, or its process lacks memory."""
        try:
            sent = connection.send(frame)
        except OSError:  # the client has ended; its last packets are still to be read
            return False
        if not connection.is_closed:
            self._set_interest(connection)
        return sent

    def close_connection(self, connection: PacketConnection) -> None:
        if connection.is_closed:
            return
        del self._by_descriptor[connection.descriptor], self._by_number[connection.number]
        self._writable.pop(connection.descriptor, None)
        self.asking.pop(connection.number, None)
        self._selector.forget(connection.descriptor)
        connection.close()
        self._shares.remove(connection.share, connection)
        self._on_end(connection)

    def close(self) -> None:
        """Close everything and remove the socket's file. The caller still holds the instance's lock."""
        for connection in list(self._by_number.values()):
            self.close_connection(connection)
        self._listener.close()

    def _take(self, connection: PacketConnection, body: bytes) -> bytes | None:
        """Take a packet that is no whole frame, or follows parts of one. Raises ValueError for what no client sends."""
        kind = connection.packets.kind
        if kind in (PART, MORE):
            return connection.take_part(kind, body)
        connection.drop_parts()
        if kind == FRAME:
            return body
        if kind != SUBSCRIBE or len(body) != SESSION_SIZE:
            raise ValueError(f"a packet of kind {kind} has {len(body)} bytes")
        connection.session = body
        self.asking[connection.number] = connection
        return None

    def _on_ready(self, descriptor: int, events: int) -> None:
        """The selector reports a connection."""
        connection = self._by_descriptor[descriptor]
        if events & select.EPOLLOUT:
            self._writable[descriptor] = connection
        if events & ~select.EPOLLOUT:
            self._list(connection)

    def _write(self) -> None:
        """Write to connections that can be written to."""
        for _ in range(WRITES_PER_CALL):
            if not self._writable:
                return
            connection = self._writable.popitem()[1]
            try:
                connection.write_more()
            except OSError:
                connection.drop_waiting()  # otherwise a connection whose client lives would be writable for ever
                self._list(connection)
            self._set_interest(connection)

    def _add(self, descriptor: int, share: Share) -> None:
        connection = PacketConnection(descriptor, self._shares.new_number(), share, self)
        self._shares.add(share, connection)
        self._by_descriptor[descriptor] = self._by_number[connection.number] = connection
        try:
            self._selector.register(descriptor, select.EPOLLIN, self._on_ready)
        except OSError:  # fs.epoll.max_user_watches is one number for all processes of a user
            self.close_connection(connection)
            return
        connection.interest = select.EPOLLIN
        self._list(connection)  # the first packet of its client is often there already

    def _list(self, connection: PacketConnection) -> None:
        if not connection.is_listed:
            connection.is_listed = True
            self._listed.add(connection.share, connection)

    def _set_interest(self, connection: PacketConnection) -> None:
        """Wait for the events with which the connection can go on."""
        interest = select.EPOLLIN | select.EPOLLOUT if connection.waits_to_send else select.EPOLLIN
        if interest != connection.interest:
            connection.interest = interest
            self._selector.modify(connection.descriptor, interest)
