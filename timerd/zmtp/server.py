"""A listening Unix socket with its connections, in the conductor's thread. Nothing here blocks.

    the selector reports --> received(): accept some, read some, and give the messages one by one, processes in turn

A call of received() is bounded: in the connections that it accepts, in its steps, and in the bytes that it reads. Bytes
beyond these wait in the kernel, and hold their sender back.
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

from .connection import Connection
from .peer import ProtocolError, Side

WRITES_PER_CALL = 64
STEPS_PER_CALL = 1_024  # messages, commands and reads, of 1 to 10 us each
STEPS_PER_END = 16  # to close a connection takes 20 to 100 us: the kernel frees what waits in it
BYTES_PER_CALL = 1 << 20
ENDED = select.EPOLLHUP | select.EPOLLERR


class Server:
    """Listens at `path` from the moment it is made (listener.py). `on_end` is called for each connection that is
    closed, `on_error` before that if its peer has broken the protocol. Raises ResourceLimitError.
    """

    def __init__(
        self,
        path: Path,
        side: Side,
        shares: Shares,
        selector: Selector,
        group_id: int | None = None,
        *,
        on_end: Callable[[Connection], None] = lambda connection: None,
        on_error: Callable[[Connection, ProtocolError], None],
    ) -> None:
        self._side = side
        self._shares = shares
        self._on_end = on_end
        self._on_error = on_error
        self._by_descriptor: dict[int, Connection] = {}
        self._by_number: dict[int, Connection] = {}
        self._listed: Turns[Connection] = Turns()  # to be looked at without waiting for the selector
        # By descriptor: the events of connections that can be written to, or were held back.
        self._stuck: dict[int, int] = {}
        self._selector = selector
        self._listener = Listener(path, socket.SOCK_STREAM, shares, selector, group_id, self._add)

    def has_input(self) -> bool:
        """Whether something that was read, or may be read, waits for a call of received()."""
        return bool(self._listed or self._stuck or self._listener.has_newcomers)

    def is_dry(self) -> bool:
        """Whether the last received(), when exhausted, had given all that had come when the selector looked."""
        return not self._listed and not self._selector.is_full

    def get(self, number: int) -> Connection | None:
        """The connection of that number, while it is open."""
        return self._by_number.get(number)

    def received(self, limit: int) -> Iterator[tuple[int, bytes]]:
        """Up to `limit` messages as (connection's number, message), taken one by one as they are asked for.

        Processes take turns, and so do the connections of a process.
        """
        steps, left, listed = STEPS_PER_CALL, BYTES_PER_CALL, self._listed
        if self._stuck:
            self._look_after_stuck()
        if self._listener.has_newcomers:
            self._listener.accept()
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
                size, message = 0, connection.next()
                if message is None and connection.peer.is_starved:
                    size = self._read(connection)
                    left -= size
                    message = connection.next() if size else None
                if connection.peer.out:
                    connection.send_handshake()
                if connection.is_unsettled and not connection.is_closed:
                    connection.settle()
                if connection.is_closed:  # its process was over its share: the message is lost, too
                    steps -= STEPS_PER_END
                    continue
                may_read = not connection.is_read_dry and (size > 0 or message is not None)
                if may_read or not connection.peer.is_starved:
                    self._list(connection)
                if connection.is_new and connection.peer.is_ready:
                    self._shares.shown(connection.share, connection)
                self._set_interest(connection)
            except (ProtocolError, OSError) as error:
                if isinstance(error, ProtocolError):
                    self._on_error(connection, error)
                self.close_connection(connection)
                steps -= STEPS_PER_END
                continue
            if message is not None:
                limit -= 1
                yield connection.number, message

    def send(self, connection: Connection, message: bytes) -> bool:
        """Send a message of one part; False: it was dropped (see Connection.send), or its peer has ended."""
        try:
            sent = connection.send(message)
        except OSError:
            self.close_connection(connection)
            return False
        if not connection.is_closed:
            self._set_interest(connection)
        return sent

    def wake(self, connection: Connection) -> None:
        connection.is_held_back = False
        self._list(connection)
        self._set_interest(connection)

    def close_connection(self, connection: Connection) -> None:
        if connection.is_closed:
            return
        del self._by_descriptor[connection.descriptor], self._by_number[connection.number]
        self._stuck.pop(connection.descriptor, None)
        self._selector.forget(connection.descriptor)
        connection.close()
        self._shares.remove(connection.share, connection)
        self._on_end(connection)

    def close(self) -> None:
        """Close everything and remove the socket's file. The caller still holds the instance's lock."""
        for connection in list(self._by_number.values()):
            self.close_connection(connection)
        self._listener.close()

    # Connections ------------------------------------------------------------------------------------------------------

    def _on_ready(self, descriptor: int, events: int) -> None:
        """The selector reports a connection."""
        connection = self._by_descriptor[descriptor]
        if connection.is_held_back or events & select.EPOLLOUT:
            self._stuck[descriptor] = events
        if not connection.is_held_back and events & ~select.EPOLLOUT:
            connection.is_read_dry = False
            self._list(connection)

    def _look_after_stuck(self) -> None:
        """Write to the connections that can be written to, and close those that were held back and have ended."""
        for _ in range(WRITES_PER_CALL):
            if not self._stuck:
                return
            descriptor, events = self._stuck.popitem()
            connection = self._by_descriptor[descriptor]
            if connection.is_held_back and events & ENDED:
                self.close_connection(connection)
            elif events & select.EPOLLOUT:
                self._write_more(connection)

    def _add(self, descriptor: int, share: Share) -> None:
        connection = Connection(descriptor, self._shares.new_number(), self._side, share, self)
        self._shares.add(share, connection)
        self._by_descriptor[descriptor] = self._by_number[connection.number] = connection
        try:
            self._selector.register(descriptor, select.EPOLLIN, self._on_ready)
        except OSError:  # fs.epoll.max_user_watches is one number for all processes of a user
            self.close_connection(connection)
            return
        connection.interest = select.EPOLLIN
        self._list(connection)  # its greeting is to be sent, and the peer's is often there already

    def _read(self, connection: Connection) -> int:
        """Read once, unless the last read was dry or no memory is left. Returns how many bytes came. Raises OSError."""
        if connection.is_read_dry or not connection.peer.wanted or not connection.make_room():
            return 0
        data = connection.read()
        if data is None:
            return 0
        if not data:
            raise ConnectionResetError
        connection.peer.feed(data)
        return len(data)

    def _write_more(self, connection: Connection) -> None:
        try:
            connection.write_more()
            self._set_interest(connection)
        except OSError:
            self.close_connection(connection)

    def _list(self, connection: Connection) -> None:
        if not connection.is_listed:
            connection.is_listed = True
            self._listed.add(connection.share, connection)

    def _set_interest(self, connection: Connection) -> None:
        """Wait for the events with which the connection can go on."""
        interest = 0 if connection.is_held_back else select.EPOLLIN
        if connection.waits_to_send:
            interest |= select.EPOLLOUT
        if interest != connection.interest:
            connection.interest = interest
            self._selector.modify(connection.descriptor, interest)
