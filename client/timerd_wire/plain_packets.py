"""Packets in Python, for where the compiled ones were not built. Tests compare both."""

from __future__ import annotations

import errno
import socket

from timerd_shm.declare.limits import PACKET_SIZE_MAX

SIZE_MAX = 1 + PACKET_SIZE_MAX  # the kind, and the body
FULL = (errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM)


class PlainPackets:
    """The packets of a connected socket, which is this object's own. `kind` is that of the packet received last."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fileno=descriptor)
        self.kind = 0

    def send(self, kind: int, body: bytes) -> bool:
        """Send a packet; False if there is no room. Raises OSError where the other side has ended."""
        try:
            self._socket.sendmsg((bytes((kind,)), body), (), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError as error:
            if error.errno not in FULL:
                raise
            return False
        return True

    def receive(self) -> bytes | None:
        """The body of the next packet; None if there is none.

        Raises OSError where the other side has ended, ValueError for a packet that is too large.
        """
        try:
            try:
                packet, _, flags, _ = self._socket.recvmsg(SIZE_MAX, 0, socket.MSG_DONTWAIT)
            except ConnectionResetError:  # the other side has left packets unread; its last ones come behind this error
                packet, _, flags, _ = self._socket.recvmsg(SIZE_MAX, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        if not packet:
            raise ConnectionResetError(errno.ECONNRESET, "the other side has ended")
        if flags & socket.MSG_TRUNC:
            raise ValueError(f"a packet has more than {SIZE_MAX} bytes")
        self.kind = packet[0]
        return packet[1:]

    def close(self) -> None:
        """Close the socket. It must not be used after that."""
        self._socket.close()
