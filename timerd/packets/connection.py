"""One connection of packets: its descriptor, packets that wait to be sent, a frame in parts. No call blocks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Protocol

from timerd.host.shares import Share
from timerd_shm.declare.limits import PACKET_SIZE_MAX
from timerd_wire.packets import FRAME, Joined, Packets, cut

QUEUED_MAX = 4 << 20  # bytes that wait to be sent to one client; beyond it frames are dropped
EASY_SIZE_MAX = 16_384  # a frame of this size may wait even if its process has no memory left, if no other frame waits
PACKETS_PER_WRITE = 64
PACKET_COST = 128  # bytes that a waiting packet takes beside its body: many small packets took three times their bodies


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
        "_queued",
        "_server",
        "_taken",
        "_waiting",
        "descriptor",
        "has_ended",
        "interest",
        "is_admitted",
        "is_closed",
        "is_listed",
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
        self.interest = 0  # what its server waits for
        self.is_listed = False  # whether its server looks at it without waiting
        self.is_closed = False
        self.has_ended = False  # whether the client has closed it
        self._server = server
        self._waiting: deque[tuple[int, bytes]] = deque()  # packets, as (kind, body)
        self._queued = 0  # bytes of them
        self._joined = Joined()
        self._taken = 0  # memory for the frame that comes in parts

    @property
    def waits_to_send(self) -> bool:
        """Whether something waits until the client reads."""
        return bool(self._waiting)

    @property
    def has_parts(self) -> bool:
        """Whether a frame that comes in parts is not complete."""
        return self._taken > 0

    @property
    def wanted_memory(self) -> int:
        return 0

    def wake(self) -> None:
        """Do nothing: a connection does not wait for memory. A frame without room is dropped."""

    def end(self) -> None:
        self._server.close_connection(self)

    def deliver(self, frame: bytes) -> None:
        """Send a frame; dropped when the client does not keep up."""
        self._server.send(self, frame)

    def take_part(self, kind: int, body: bytes) -> bytes | None:
        """Take a part of a frame. Returns the frame if it is complete. Raises ValueError for what no client sends."""
        if not self.share.has_room(len(body)):
            self.drop_parts()
            return None
        frame = self._joined.take(kind, body)
        self._charge(self._joined.held)
        return frame

    def drop_parts(self) -> None:
        """Drop the parts of a frame: something else has come, so the frame will not be completed."""
        self._joined.drop()
        self._charge(0)

    def send(self, frame: bytes) -> bool:
        """Send a frame; False: it was dropped, because the client does not keep up. Raises OSError."""
        size = len(frame)
        if size <= PACKET_SIZE_MAX:
            if not self._waiting and self.packets.send(FRAME, frame):
                return True
            return self._wait_with(((FRAME, frame),), size)
        if not self._wait_with(cut(frame), size):
            return False
        self.write_more()
        return True

    def write_more(self) -> None:
        """Send some of the waiting packets. Raises OSError."""
        for _ in range(PACKETS_PER_WRITE):
            if not self._waiting:
                return
            kind, body = self._waiting[0]
            if not self.packets.send(kind, body):
                return
            self._waiting.popleft()
            self._queued -= len(body) + PACKET_COST
            self.share.give(len(body) + PACKET_COST)

    def drop_waiting(self) -> None:
        """Drop the packets that wait to be sent."""
        self._waiting.clear()
        given, self._queued = self._queued, 0
        self.share.give(given)

    def close(self) -> None:
        """Close the descriptor; what waited is dropped."""
        self.is_closed = True
        self.packets.close()
        self.drop_parts()
        self.drop_waiting()

    def _wait_with(self, packets: Iterable[tuple[int, bytes]], size: int) -> bool:
        if self._queued + size > QUEUED_MAX:
            return False
        if not self.share.has_room(size) and (self._queued or size > EASY_SIZE_MAX):
            return False
        for kind, body in packets:
            self._waiting.append((kind, body))
            self._queued += len(body) + PACKET_COST
            self.share.memory += len(body) + PACKET_COST
        return True

    def _charge(self, held: int) -> None:
        """Charge the process for `held` bytes of a frame that comes in parts."""
        taken, self._taken = self._taken, held
        if held > taken:
            self.share.memory += held - taken
        elif held < taken:
            self.share.give(taken - held)
