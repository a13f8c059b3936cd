"""The channel over pyzmq, for where the compiled one was not built. Tests compare both."""

from __future__ import annotations

from typing import cast

import zmq


class PlainChannel:
    """A channel over pyzmq."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket

    def receive(self) -> bytes | None:
        """The next message; None if there is none; b"" for a message of several parts, which no daemon sends."""
        try:
            parts = self._socket.recv_multipart(zmq.DONTWAIT)
        except zmq.Again:
            return None
        return parts[0] if len(parts) == 1 else b""

    def send(self, frame: bytes) -> bool:
        """Send a message; False if the socket is full, or has no peer any more."""
        try:
            self._socket.send(frame, zmq.DONTWAIT)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            return False
        return True

    def events(self) -> int:
        """ZMQ_EVENTS: whether the socket can send, and can receive, now."""
        return int(cast(int, self._socket.get(zmq.EVENTS)))

    def close(self, linger: int) -> None:
        """Close the socket. It must not be used after that."""
        self._socket.close(linger)
