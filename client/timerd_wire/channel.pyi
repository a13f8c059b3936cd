"""A ZeroMQ socket as links and the daemon use it: no call blocks, and a full or empty socket raises no error.

A channel keeps the GIL in its calls, because a call takes less time than releasing and taking the GIL. pyzmq releases
the GIL in each call. Beside a busy thread it then gets the GIL back only 5 ms later (sys.getswitchinterval).
"""

import zmq

class Channel:
    """A channel over a socket of pyzmq. One thread at a time may use it."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None: ...
    def receive(self) -> bytes | None:
        """The next message; None if there is none; b"" for a message of several parts, which no daemon sends."""
    def send(self, frame: bytes) -> bool:
        """Send a message; False if the socket is full, or has no peer any more."""
    def events(self) -> int:
        """ZMQ_EVENTS: whether the socket can send, and can receive, now."""
    def close(self, linger: int) -> None:
        """Close the socket. It must not be used after that."""
