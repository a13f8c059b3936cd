"""Ports that several processes share."""

from __future__ import annotations

import socket


def shared_port(host: str, port: int) -> socket.socket:
    """A socket that is bound to a port (0: any free one). Other processes may bind to this port, too. Raises OSError.

    The system divides the connections among the listening sockets (SO_REUSEPORT). A socket that does not listen only
    keeps the port.
    """
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.setblocking(False)
        made.bind((host, port))
    except OSError:
        made.close()
        raise
    return made


def check_free(host: str, port: int) -> None:
    """Raise OSError if another program listens at the port: it would get a part of the shared port's connections."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # earlier connections may linger
        made.bind((host, port))
        made.listen()
