"""The channel over pyzmq, for where the compiled one was not built. Tests compare both."""

from __future__ import annotations

from typing import cast

import zmq


class PlainChannel:
    """A channel over pyzmq."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self._newest: zmq.Frame | None = None

    def receive(self) -> bytes | None:
        """The next message; None if there is none; b"" for a message of several parts, which no peer sends.

        The compiled channel drops some of these parts in each call, and gives b"" each time.
        """
        try:
            parts = self._socket.recv_multipart(zmq.DONTWAIT)
        except zmq.Again:
            return None
        return parts[0] if len(parts) == 1 else b""

    def receive_routed(self) -> tuple[bytes, bytes] | None:
        """The next message of a ROUTER: routing id and frame; the frame is b"" unless it has exactly one part."""
        try:
            parts = self._socket.recv_multipart(zmq.DONTWAIT, copy=False)
        except zmq.Again:
            return None
        self._newest = parts[-1]
        return parts[0].bytes, parts[1].bytes if len(parts) == 2 else b""

    def sender(self) -> str:
        """Who sent the message that receive_routed() gave last: libzmq's Peer-Address, "" if it knows none.

        Over ipc its end is ":UID:GID:PID" of the process that has connected, as the kernel says (SO_PEERCRED).
        """
        try:
            return "" if self._newest is None else str(self._newest.get("Peer-Address"))
        except zmq.ZMQError:
            return ""

    def send(self, frame: bytes) -> bool:
        """Send a message; False if the socket is full, or has no peer any more."""
        return self._send(frame, 0)

    def send_routed(self, routing: bytes, frame: bytes) -> bool:
        """Send a frame by a ROUTER; False in the cases of send()."""
        return self._send(routing, zmq.SNDMORE) and self._send(frame, 0)

    def events(self) -> int:
        """ZMQ_EVENTS: whether the socket can send, and can receive, now."""
        return int(cast(int, self._socket.get(zmq.EVENTS)))

    def close(self, linger: int) -> None:
        """Close the socket. It must not be used after that."""
        self._socket.close(linger)

    def _send(self, part: bytes, flags: int) -> bool:
        try:
            self._socket.send(part, flags | zmq.DONTWAIT)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            return False
        return True
