"""A peer of NAME.unix without a client: it sends any packets, and reads when a test wants it to."""

from __future__ import annotations

import contextlib
import select
import socket
from pathlib import Path
from typing import Self

from support.real.patience import PATIENCE_S
from timerd_shm.declare.limits import PACKET_SIZE_MAX


class PacketPeer:
    """A connection. Packets are (kind, body)."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.connect(str(path))
        self._socket.setblocking(False)

    def send(self, kind: int, body: bytes) -> None:
        """Send a packet; the socket must have room. Does nothing if the daemon has ended the connection."""
        self.send_raw(bytes((kind,)) + body)

    def send_raw(self, packet: bytes) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.send(packet)

    def try_send(self, kind: int, body: bytes) -> bool:
        """Send a packet; False if there is no room, or the connection has ended."""
        return self.try_send_raw(bytes((kind,)) + body)

    def try_send_raw(self, packet: bytes) -> bool:
        try:
            self._socket.send(packet)
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            return False
        return True

    def receive(self) -> tuple[int, bytes]:
        """The next packet. Waits until it comes."""
        assert select.select([self._socket], [], [], PATIENCE_S)[0], "no packet came"
        packet = self._socket.recv(1 + PACKET_SIZE_MAX)
        return packet[0], packet[1:]

    def drain(self) -> list[tuple[int, bytes]]:
        """All packets that have arrived."""
        found = []
        while select.select([self._socket], [], [], 0)[0] and (packet := self._socket.recv(1 + PACKET_SIZE_MAX)):
            found.append((packet[0], packet[1:]))
        return found

    def is_ended(self) -> bool:
        """Whether the daemon has closed the connection."""
        try:
            while self._socket.recv(1 + PACKET_SIZE_MAX):
                pass
        except BlockingIOError:
            return False
        except ConnectionResetError:
            pass
        return True

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
