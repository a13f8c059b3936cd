"""How a client gets its outcomes: it connects an XSUB to NAME.pub, and the daemon sends it its own alone.

The client shows its session as the password of ZeroMQ's PLAIN handshake. The daemon closes the connection of everybody
else in the handshake. A client has one subscription: the empty prefix. All that comes is its own, so there is nothing
to choose. Of several connections that show one session the newest has the outcomes; the daemon closes the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import zmq  # the daemon imports this module too, and does without libzmq

USER = b"timerd"  # PLAIN wants a name; who the client is, its session says
SUBSCRIBE = b"\x01"  # the one subscription
UNSUBSCRIBE = b"\x00"  # the end of the one subscription, or of the connection


def connect_outlet(socket: zmq.Socket[Any], endpoint: str, session: bytes) -> None:
    """Connect an XSUB for the outcomes of a session; it connects again by itself where the connection was closed."""
    socket.plain_username = USER
    socket.plain_password = session
    socket.connect(endpoint)
