"""Packets over a Unix socket (SOCK_SEQPACKET), as daemon and client use them: no call blocks.

A frame is a packet. A frame that is too large is cut() into several packets, and `Joined` puts them together again. If
a packet is lost, the whole frame is lost, and its sender sends it again. Only a hello or a welcome can be so large,
because it lists operations.
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
    """Puts the packets of one connection together again."""

    __slots__ = ("_parts", "_size", "held")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0  # of the frame whose parts these are
        self.held = 0  # bytes of the frame that have come

    @property
    def wanted(self) -> int:
        """The size of the frame that is not complete; 0 = there is none."""
        return self._size

    def drop(self) -> None:
        """Forget a frame that is not complete."""
        self._parts, self._size, self.held = [], 0, 0

    def take(self, kind: int, body: bytes) -> bytes | None:
        """Take a PART or MORE. Returns the frame if it is complete. Raises ValueError for an impossible packet."""
        if kind == PART:
            self.drop()
            if len(body) < _SIZE.size:
                raise ValueError(f"the first part of a frame has {len(body)} bytes")
            size, body = _SIZE.unpack_from(body)[0], body[_SIZE.size :]
            if not PACKET_SIZE_MAX < size <= FRAME_SIZE_MAX:
                raise ValueError(f"a frame in parts has {size} bytes; {PACKET_SIZE_MAX} to {FRAME_SIZE_MAX} are taken")
            self._size = size
        elif kind != MORE:
            raise ValueError(f"a packet of kind {kind}")
        elif not self._size:
            return None  # its beginning was lost
        if not body:
            raise ValueError("a part of a frame is empty")
        self._parts.append(body)
        self.held += len(body)
        if self.held < self._size:
            return None
        if self.held > self._size:
            raise ValueError(f"the parts of a frame of {self._size} bytes have {self.held}")
        frame = b"".join(self._parts)
        self.drop()
        return frame
