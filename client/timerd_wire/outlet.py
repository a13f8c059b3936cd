"""How a client over ZeroMQ gets its outcomes: it connects an XSUB to NAME.pub, and the daemon sends them there.

The client shows its session as the password of ZeroMQ's PLAIN handshake. The daemon closes a connection that shows no
known session. A client has one subscription: the empty prefix. All messages of a connection are for its client, so
there is nothing to select. If several connections show one session, the newest gets the outcomes, and the daemon closes
the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import zmq  # the daemon imports this module too, and does without libzmq

USER = b"timerd"  # PLAIN requires a user name; the session identifies the client
SUBSCRIBE = b"\x01"  # the one subscription
UNSUBSCRIBE = b"\x00"  # the end of the one subscription, or of the connection


def connect_outlet(socket: zmq.Socket[Any], endpoint: str, session: bytes) -> None:
    """Connect an XSUB for the outcomes of a session. It connects again by itself if the connection is closed."""
    socket.plain_username = USER
    socket.plain_password = session
    socket.connect(endpoint)
