"""The channel by means of pyzmq alone: for where the compiled one was not built, and as its measure."""

from __future__ import annotations

from typing import cast

import zmq


class PlainChannel:
    """By means of pyzmq alone."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket

    def receive(self) -> bytes | None:
        """The next message; None if there is none. Of several parts, which nobody sends: b""."""
        try:
            parts = self._socket.recv_multipart(zmq.DONTWAIT)
        except zmq.Again:
            return None
        return parts[0] if len(parts) == 1 else b""

    def receive_routed(self) -> tuple[bytes, bytes] | None:
        """The next message of a ROUTER: routing id and frame, b"" if that has another number of parts than one."""
        try:
            parts = self._socket.recv_multipart(zmq.DONTWAIT)
        except zmq.Again:
            return None
        return parts[0], parts[1] if len(parts) == 2 else b""

    def send(self, frame: bytes) -> bool:
        """Send a message; False if it cannot be taken now, or there is nobody any more."""
        return self._send(frame, 0)

    def send_routed(self, routing: bytes, frame: bytes) -> bool:
        """Send a frame by a ROUTER; False as above."""
        return self._send(routing, zmq.SNDMORE) and self._send(frame, 0)

    def events(self) -> int:
        """ZMQ_EVENTS: what can be done now."""
        return int(cast(int, self._socket.get(zmq.EVENTS)))

    def close(self, linger: int) -> None:
        """Close the socket, which is not to be used any more."""
        self._socket.close(linger)

    def _send(self, part: bytes, flags: int) -> bool:
        try:
            self._socket.send(part, flags | zmq.DONTWAIT)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            return False
        return True
