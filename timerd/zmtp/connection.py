"""One connection: its descriptor, its peer, and the messages that wait to be sent. No call blocks."""

from __future__ import annotations

import os
from collections import deque
from itertools import islice
from typing import Protocol

from timerd.host.shares import Share

from .peer import EASY_SIZE_MAX, Peer, Side, head_of

QUEUED_MAX = 4 << 20  # bytes that wait to be sent to one peer; beyond it messages are dropped
PIECES_PER_WRITE = 64


class MessageServer(Protocol):
    """The server of a connection, as the connection knows it."""

    def wake(self, connection: Connection) -> None:
        """Look at a connection again that was held back, or that waited to be admitted."""

    def send(self, connection: Connection, message: bytes) -> bool:
        """Send a message of one part; False: it was dropped."""

    def close_connection(self, connection: Connection) -> None:
        """Close the connection, and forget it."""


class Connection:
    """Made for an accepted connection, of which it owns the descriptor."""

    __slots__ = (
        "_pieces",
        "_queued",
        "_server",
        "_taken",
        "descriptor",
        "interest",
        "is_admitted",
        "is_closed",
        "is_held_back",
        "is_listed",
        "is_read_dry",
        "number",
        "peer",
        "share",
        "slot",
    )

    def __init__(self, descriptor: int, number: int, side: Side, share: Share, server: MessageServer) -> None:
        self.descriptor = descriptor
        self.number = number  # never used twice
        self.share = share
        self.peer = Peer(side)
        self.slot = -1  # the client whose outcomes the peer gets
        self.is_admitted = False
        self.interest = 0  # what its server waits for
        self.is_listed = False  # whether its server looks at it without waiting
        self.is_read_dry = False  # whether the last read found less than it could have
        self.is_held_back = False  # whether it waits for memory to go on reading
        self.is_closed = False
        self._server = server
        self._pieces: deque[bytes | memoryview] = deque()  # they wait to be sent
        self._queued = 0  # bytes of these
        self._taken = 0  # memory for the large frame that comes in

    @property
    def waits_to_send(self) -> bool:
        """Whether something waits until the peer reads."""
        return bool(self._pieces)

    @property
    def wanted_memory(self) -> int:
        return self.peer.large

    def wake(self) -> None:
        self._server.wake(self)

    def end(self) -> None:
        self._server.close_connection(self)

    def deliver(self, message: bytes) -> None:
        """Send a message; dropped when the peer does not keep up."""
        self._server.send(self, message)

    def admit(self, slot: int) -> None:
        """Go on with the handshake of a peer that has shown the session of a client."""
        self.slot = slot
        self.is_admitted = True
        self.share.clients += 1
        self.peer.admit()
        self.wake()

    # In ---------------------------------------------------------------------------------------------------------------

    def make_room(self) -> bool:
        """Take memory for the large frame that comes in, if any. False: no memory is left, so the connection waits."""
        if self.peer.large and not self._taken:
            if not self.share.has_room(self.peer.large):
                self.is_held_back = True
                self.share.waiting.append(self)
                return False
            self._taken = self.peer.large
            self.share.memory += self._taken
        return True

    def read(self) -> bytes | None:
        """The bytes that have come, b"" at the end; None: nothing has come. Raises OSError."""
        wanted = self.peer.wanted
        try:
            data = os.read(self.descriptor, wanted)
        except BlockingIOError:
            return None
        self.is_read_dry = len(data) < wanted
        return data

    def next(self) -> bytes | None:
        """The peer's next message, as Peer.next() gives it. Raises ProtocolError."""
        message = self.peer.next()
        if self._taken and not self.peer.large:
            taken, self._taken = self._taken, 0
            self.share.give(taken)
        return message

    # Out --------------------------------------------------------------------------------------------------------------

    def send(self, message: bytes) -> bool:
        """Send a message of one part; False: it was dropped, because the peer does not keep up. Raises OSError."""
        size = len(message)
        if not self.peer.is_ready or not self._has_room(size):
            return False
        self._write((head_of(message), message))
        return True

    def send_handshake(self) -> None:
        """Send the bytes of the handshake, from the `out` of the Peer. Raises OSError."""
        out, self.peer.out = self.peer.out, b""
        if self._has_room(len(out)):  # otherwise the peer asks again and again, and does not read
            self._write((out,))

    def write_more(self) -> None:
        """Send some of the waiting pieces, by one system call. Raises OSError."""
        pieces = self._pieces
        try:
            sent = os.writev(self.descriptor, list(islice(pieces, PIECES_PER_WRITE)))
        except BlockingIOError:
            return
        self._queued -= sent
        given = sent
        while pieces and sent >= len(pieces[0]):
            sent -= len(pieces.popleft())
        if sent:
            pieces[0] = memoryview(pieces[0])[sent:]
        self.share.give(given)

    def close(self) -> None:
        """Close the descriptor; what waited is dropped."""
        self.is_closed = True
        os.close(self.descriptor)
        if self.is_held_back:
            self.share.waiting.remove(self)
        self._pieces.clear()
        given, self._queued, self._taken = self._queued + self._taken, 0, 0
        self.share.give(given)

    def _has_room(self, size: int) -> bool:
        if self._queued + size > QUEUED_MAX:
            return False
        return self.share.has_room(size) or (not self._queued and size <= EASY_SIZE_MAX)

    def _write(self, pieces: tuple[bytes, ...]) -> None:
        sent = 0
        if not self._pieces:
            try:
                sent = os.writev(self.descriptor, pieces)
            except BlockingIOError:
                sent = 0
        for piece in pieces:
            if sent < len(piece):
                left = memoryview(piece)[sent:] if sent else piece
                self._pieces.append(left)
                self._queued += len(left)
                self.share.memory += len(left)
            sent = max(0, sent - len(piece))
