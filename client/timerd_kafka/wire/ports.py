"""Ports that several processes have at once."""

from __future__ import annotations

import socket


def shared_port(host: str, port: int) -> socket.socket:
    """A socket that is bound to a port, of which other processes may have sockets, too. 0 = any port. Raises OSError.

    Of those that listen, the system gives each its share of the connections (SO_REUSEPORT). One that does not listen
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
    """Raises OSError if another program listens there: a shared port would be shared with it."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of before may linger
        made.bind((host, port))
        made.listen()
