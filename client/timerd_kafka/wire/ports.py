"""Ports that several processes share."""

from __future__ import annotations

import errno
import random
import socket
from pathlib import Path

LOWEST = 10_000  # of the ports that a cluster takes by itself
TRIES = 100
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")  # the first and the last port of outgoing connections


def kept_port(host: str, port: int) -> socket.socket:
    """A socket that keeps a port for processes that share it. Port 0 stands for any free one. Raises OSError.

    If possible, the free port is not one of those that the system gives to outgoing connections. Else a connection
    could take the port while the cluster does not run, and the cluster could not come back to it.
    """
    highest = int(EPHEMERAL.read_text().split()[0]) if EPHEMERAL.exists() else 0
    for _ in range(TRIES if not port and highest > LOWEST else 0):
        try:
            return kept_port(host, random.randrange(LOWEST, highest))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    check_free(host, port)
    return shared_port(host, port)


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
