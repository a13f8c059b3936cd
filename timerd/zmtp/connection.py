"""One connection: its descriptor, its peer, and the messages that wait to be sent. No call blocks."""

from __future__ import annotations

import fcntl
import os
import sys
import termios
from typing import Protocol

from timerd.host.chunks import Chunks
from timerd.host.listener import SEND_BUFFER
from timerd.host.shares import Share

from .peer import EASY_SIZE_MAX, Peer, Side, head_of

QUEUED_MAX = 4 << 20  # bytes that wait to be sent to one peer; beyond it messages are dropped
CHUNKS_PER_WRITE = 64
WAIT_COST = 512  # bytes that a message may take beside its own when it waits
KERNEL_COST = 16_384  # bytes that the kernel may count beside those of a message: it counts whole pages


class MessageServer(Protocol):
    """The server of a connection, as the connection knows it."""

    def wake(self, connection: Connection) -> None:
        """Look at a connection again that was held back, or that waited to be admitted."""

    def send(self, connection: Connection, message: bytes) -> bool:
        """Send a message of one part; False: it was dropped."""

    def close_connection(self, connection: Connection) -> None:
        """Close the connection, and forget it."""


class Connection:
    """A connection that was accepted. It owns its descriptor."""

    __slots__ = (
        "_kept",
        "_queue",
        "_server",
        "_taken",
        "descriptor",
        "interest",
        "is_admitted",
        "is_closed",
        "is_held_back",
        "is_listed",
        "is_new",
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
        self.is_new = True  # whether its handshake is not complete
        self.interest = 0  # what its server waits for
        self.is_listed = False  # whether its server looks at it without waiting for the selector
        self.is_read_dry = False  # whether the last read found less than it could have
        self.is_held_back = False  # whether it waits for memory to go on reading
        self.is_closed = False
        self._server = server
        self._queue = Chunks()  # bytes that wait to be sent
        self._kept = 0  # bytes that were read and are no message yet; without those of the large frame
        self._taken = 0  # memory for the large frame that comes in

    @property
    def waits_to_send(self) -> bool:
        """Whether something waits until the peer reads."""
        return bool(self._queue)

    @property
    def memory(self) -> int:
        return self._queue.memory + self._kept + self._taken

    @property
    def wanted_memory(self) -> int:
        return self.peer.large

    def wake(self) -> None:
        self._server.wake(self)

    def end(self) -> None:
        self._server.close_connection(self)

    def deliver(self, message: bytes) -> None:
        """Send a message. It is dropped if the peer does not keep up, or if its process lacks memory."""
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
            if not self.share.take(self.peer.large):
                self.is_held_back = True
                self.share.wait(self)
                return False
            self._taken = self.peer.large
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

    @property
    def is_unsettled(self) -> bool:
        """Whether more bytes, or fewer, are kept than its process is charged for."""
        return self._kept != (0 if self._taken else self.peer.kept)

    def settle(self) -> None:
        """Charge the process for the bytes that were read and are no message yet. That may close this connection."""
        kept, self._kept = self._kept, 0 if self._taken else self.peer.kept
        if self._kept > kept:
            self.share.charge(self._kept - kept)
        else:
            self.share.give(kept - self._kept)

    # Out --------------------------------------------------------------------------------------------------------------

    def send(self, message: bytes) -> bool:
        """Send a message of one part; False: it was dropped. Raises OSError.

        The peer's handshake is not complete, or the peer does not keep up, or its process lacks memory.
        """
        return self.peer.is_ready and self._write(head_of(message), message)

    def send_handshake(self) -> None:
        """Send the bytes of the handshake, from the `out` of the Peer. Raises OSError."""
        out, self.peer.out = self.peer.out, b""
        self._write(out, b"")  # there is no room only if the peer asks again and again, and does not read

    def write_more(self) -> None:
        """Send some of what waits, by one system call. Raises OSError."""
        try:
            sent = os.writev(self.descriptor, self._queue.first(CHUNKS_PER_WRITE))
        except BlockingIOError:
            return
        before = self._queue.memory
        self._queue.drop(sent)
        self.share.give(before - self._queue.memory)

    def close(self) -> None:
        """Close the descriptor; what waited is dropped."""
        self.is_closed = True
        os.close(self.descriptor)
        if self.is_held_back:
            self.share.waiting.remove(self)
        given, self._kept, self._taken = self._kept + self._taken, 0, 0
        self.share.give(given)
        size = self._queue.memory
        self.share.give_later(self._queue.take_all(), size)

    def _write(self, head: bytes, body: bytes) -> bool:
        """Send bytes, or have them wait. False: there is no room, and they were dropped. Raises OSError."""
        share, size, sent = self.share, len(head) + len(body), 0
        if self._queue:
            if self._queue.memory + size > QUEUED_MAX or not share.has_room(size + WAIT_COST):
                return False
        else:
            may_wait = size <= EASY_SIZE_MAX or share.has_room(size + WAIT_COST)
            if not may_wait and not self._kernel_takes(size):
                return False
            try:
                sent = os.writev(self.descriptor, (head, body))
            except BlockingIOError:
                if share.is_short or not may_wait:
                    return False
        if sent < size:
            self._wait(head[sent:], body[max(0, sent - len(head)) :])
        return True

    def _kernel_takes(self, size: int) -> bool:
        """Whether the kernel has room for a whole message. Such a message takes no memory of the process."""
        unread = int.from_bytes(fcntl.ioctl(self.descriptor, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
        return unread + size + KERNEL_COST <= SEND_BUFFER

    def _wait(self, head: bytes, body: bytes) -> None:
        """Have bytes wait to be sent. That may close this connection, if its process is over its share."""
        before = self._queue.memory
        self._queue.add(head)
        self._queue.add(body)
        grown = self._queue.memory - before
        if not self.share.take(grown):
            self.share.charge(grown)  # small, or sent in part: it waits without room, too
