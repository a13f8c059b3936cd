"""How a client gets its outcomes: it connects an XSUB to its outlet, which is a socket of the daemon for it alone.

The client shows its session as the password of ZeroMQ's PLAIN handshake. The daemon refuses everybody else in the
handshake, so a stranger gets no pipe. A client has one subscription: the empty prefix. All that an outlet publishes is
its client's, so there is nothing to choose.
"""

from __future__ import annotations

from typing import Any

import zmq

USER = b"timerd"  # PLAIN wants a name; who the client is, its session says
SUBSCRIBE = b"\x01"  # the one subscription
UNSUBSCRIBE = b"\x00"  # the end of the one subscription, or of the connection


def connect_outlet(socket: zmq.Socket[Any], endpoint: str, session: bytes) -> None:
    """Connect an XSUB to an outlet; it connects again by itself, until the daemon refuses the session."""
    socket.set(zmq.PLAIN_USERNAME, USER)
    socket.set(zmq.PLAIN_PASSWORD, session)
    socket.connect(endpoint)
