"""Packets over a Unix socket (SOCK_SEQPACKET), as daemon and client use them: no call blocks.

A frame is a packet. A frame that is too large is cut() into several packets, and `Joined` puts them together again. If
a packet is lost, the whole frame is lost, and its sender sends it again. A hello or a welcome can be so large, because
it lists operations, and so can a report, because it has values and payloads. A frame of commands is never so large.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from timerd_shm.declare.limits import FRAME_SIZE_MAX, PACKET_SIZE_MAX
from timerd_shm.declare.wire import PacketKind

from ._packets import Packets as Packets

FRAME: Final = int(PacketKind.FRAME)
SUBSCRIBE: Final = int(PacketKind.SUBSCRIBE)
PART: Final = int(PacketKind.PART)
MORE: Final = int(PacketKind.MORE)
_SIZE: Final = struct.Struct("<I")


def cut(frame: bytes) -> Iterator[tuple[int, bytes]]:
    """The packets of a frame that is too large for one packet, as (kind, body)."""
    first = PACKET_SIZE_MAX - _SIZE.size
    yield PART, _SIZE.pack(len(frame)) + frame[:first]
    for at in range(first, len(frame), PACKET_SIZE_MAX):
        yield MORE, frame[at : at + PACKET_SIZE_MAX]


class Joined:
    """Joins the packets of a cut frame. Each connection has a `Joined` of its own."""

    __slots__ = ("_frame", "_skipped", "wanted")

    def __init__(self) -> None:
        self._frame = bytearray()  # the bytes that have come; a list of the parts would take 60 bytes more for each
        self._skipped = 0  # bytes of a dropped frame that may still come
        self.wanted = 0  # the size of the frame that is not complete; 0 = there is none

    def drop(self) -> None:
        """Forget a frame that is not complete. Its other parts may still come."""
        if self.wanted:
            self._skipped = self.wanted - len(self._frame)
            self._frame, self.wanted = bytearray(), 0

    def take(self, kind: int, body: bytes) -> bytes | None:
        """Take a PART or MORE. Returns the frame if it is complete. Raises ValueError for an impossible packet."""
        if kind == PART:
            self._begin(body)
            body = body[_SIZE.size :]
        elif kind != MORE:
            raise ValueError(f"a packet of kind {kind}")
        if not body:
            raise ValueError("a part of a frame is empty")
        if not self.wanted:
            if len(body) > self._skipped:
                raise ValueError(f"a part of {len(body)} bytes continues no frame")
            self._skipped -= len(body)
            return None
        self._frame += body
        if len(self._frame) < self.wanted:
            return None
        if len(self._frame) > self.wanted:
            raise ValueError(f"the parts of a frame of {self.wanted} bytes have {len(self._frame)}")
        frame, self._frame, self.wanted = bytes(self._frame), bytearray(), 0
        return frame

    def _begin(self, body: bytes) -> None:
        if len(body) < _SIZE.size:
            raise ValueError(f"the first part of a frame has {len(body)} bytes")
        size = _SIZE.unpack_from(body)[0]
        if not PACKET_SIZE_MAX < size <= FRAME_SIZE_MAX:
            raise ValueError(f"a frame in parts has {size} bytes; {PACKET_SIZE_MAX} to {FRAME_SIZE_MAX} are taken")
        self._frame, self._skipped, self.wanted = bytearray(), 0, size
