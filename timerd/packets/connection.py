"""One connection of packets: its descriptor, packets that wait to be sent, a frame in parts. No call blocks."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Protocol

from timerd.host.chunks import OWN_SIZE, Chunks
from timerd.host.shares import Share
from timerd_shm.declare.limits import PACKET_SIZE_MAX
from timerd_wire.packets import FRAME, Joined, Packets, cut

QUEUED_MAX = 4 << 20  # bytes that wait to be sent to one client; beyond it frames are dropped
EASY_SIZE_MAX = 16_384  # if no other frame waits, such a frame may wait without room, unless its process `is_short`
PACKETS_PER_WRITE = 64
HEAD = struct.Struct("<IB")  # of a packet that waits: the size of its body, and its kind
WAIT_COST = 512  # bytes that a frame may take beside its own when it waits


class FrameServer(Protocol):
    """The server of a connection, as the connection knows it."""

    def send(self, connection: PacketConnection, frame: bytes) -> bool:
        """Send a frame; False: it was dropped."""

    def close_connection(self, connection: PacketConnection) -> None:
        """Close the connection, and forget it."""


class PacketConnection:
    """A connection that was accepted. It owns its descriptor."""

    __slots__ = (
        "_joined",
        "_queue",
        "_server",
        "_taken",
        "descriptor",
        "has_ended",
        "interest",
        "is_admitted",
        "is_closed",
        "is_listed",
        "is_new",
        "number",
        "packets",
        "session",
        "share",
        "slot",
        "watch",
    )

    def __init__(self, descriptor: int, number: int, share: Share, server: FrameServer) -> None:
        self.descriptor = descriptor
        self.packets = Packets(descriptor)
        self.number = number  # never used twice
        self.share = share
        self.session = b""  # the one that it has shown
        self.slot = -1  # the client whose outcomes it gets
        self.watch = 0  # the watch by which its end is reported as its client's end; 0 = it has no client
        self.is_admitted = False
        self.is_new = True  # whether it has never been admitted
        self.interest = 0  # what its server waits for
        self.is_listed = False  # whether its server looks at it without waiting for the selector
        self.is_closed = False
        self.has_ended = False  # whether the client has closed it
        self._server = server
        self._queue = Chunks()  # packets that wait to be sent: a head, and a body
        self._joined = Joined()
        self._taken = 0  # memory for the frame that comes in parts

    @property
    def waits_to_send(self) -> bool:
        """Whether something waits until the client reads."""
        return bool(self._queue)

    @property
    def has_parts(self) -> bool:
        """Whether a frame that comes in parts is not complete."""
        return self._taken > 0

    @property
    def memory(self) -> int:
        return self._queue.memory + self._taken

    @property
    def wanted_memory(self) -> int:
        return 0

    def wake(self) -> None:
        """Do nothing: a connection does not wait for memory. A frame without room is dropped."""

    def end(self) -> None:
        self._server.close_connection(self)

    def deliver(self, frame: bytes) -> None:
        """Send a frame. It is dropped if the client does not keep up, or if its process lacks memory."""
        self._server.send(self, frame)

    def take_part(self, kind: int, body: bytes) -> bytes | None:
        """Take a part of a frame. Returns the frame if it is complete. Raises ValueError for what no client sends."""
        frame = self._joined.take(kind, body)
        wanted, taken = self._joined.wanted, self._taken
        if wanted != taken:
            self._taken = 0
            self.share.give(taken)
            if wanted and self.share.take(wanted):
                self._taken = wanted
            elif wanted:
                self._joined.drop()
        return frame

    def drop_parts(self) -> None:
        """Drop the parts of a frame: something else has come, so the frame will not be completed."""
        self._joined.drop()
        taken, self._taken = self._taken, 0
        self.share.give(taken)

    def send(self, frame: bytes) -> bool:
        """Send a frame; False: it was dropped, because the client does not keep up, or its process lacks memory.

        Raises OSError.
        """
        size, share = len(frame), self.share
        if self._queue:
            if self._queue.memory + size > QUEUED_MAX or not share.has_room(size + WAIT_COST):
                return False
        elif size <= PACKET_SIZE_MAX and self.packets.send(FRAME, frame):
            return True
        elif share.is_short if size <= EASY_SIZE_MAX else not share.has_room(size + WAIT_COST):
            return False
        if size <= PACKET_SIZE_MAX:
            self._wait(((FRAME, frame),))
        else:
            self._wait(cut(frame))
            if not self.is_closed:
                self.write_more()
        return True

    def write_more(self) -> None:
        """Send some of the waiting packets. Raises OSError."""
        queue = self._queue
        before = queue.memory
        try:
            for _ in range(PACKETS_PER_WRITE):
                if not queue or not self._send_first():
                    return
        finally:
            self.share.give(before - queue.memory)

    def drop_waiting(self) -> None:
        """Drop the packets that wait to be sent."""
        size = self._queue.memory
        self.share.give_later(self._queue.take_all(), size)

    def close(self) -> None:
        """Close the descriptor; what waited is dropped."""
        self.is_closed = True
        self.packets.close()
        self.drop_parts()
        self.drop_waiting()

    def _send_first(self) -> bool:
        """Send the first packet that waits. False: there is no room for it. Raises OSError."""
        chunk, *others = self._queue.first(2)
        size, kind = HEAD.unpack_from(chunk)
        # A large body is a chunk of its own: bytes, which are not copied here.
        body = bytes(others[0]) if size >= OWN_SIZE else bytes(chunk[HEAD.size : HEAD.size + size])
        if not self.packets.send(kind, body):
            return False
        del chunk, others
        self._queue.drop(HEAD.size + size)
        return True

    def _wait(self, packets: Iterable[tuple[int, bytes]]) -> None:
        """Have packets wait to be sent. That may close this connection, if its process is over its share."""
        queue = self._queue
        before = queue.memory
        for kind, body in packets:
            head = HEAD.pack(len(body), kind)
            if len(body) >= OWN_SIZE:
                queue.add(head)
                queue.add(body)
            else:
                queue.add(head + body)
        grown = queue.memory - before
        if not self.share.take(grown):
            self.share.charge(grown)  # a small frame may wait without room, too
