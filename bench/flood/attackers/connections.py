"""Against the listening sockets, without a word of ZeroMQ."""

from __future__ import annotations

import contextlib
import resource
import socket

from .attacker import Attacker

CONNECTIONS = 4_000


def connect_raw(attacker: Attacker) -> None:
    """Hold as many connections as possible, and say nothing."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with contextlib.ExitStack() as stack:
        held = 0
        while attacker.is_on():
            paths = [attacker.paths.commands, attacker.paths.liveness, attacker.paths.outcomes]
            for path in paths if held < CONNECTIONS else ():
                with contextlib.suppress(OSError):
                    connection = stack.enter_context(socket.socket(socket.AF_UNIX))
                    connection.setblocking(False)
                    connection.connect(str(path))
                    held += 1
                    attacker.did()
            attacker.rest(0.0005)


def look_and_leave(attacker: Attacker) -> None:
    """Connect and leave, as fast as possible."""
    while attacker.is_on():
        for path in (attacker.paths.commands, attacker.paths.liveness, attacker.paths.outcomes):
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
                connection.setblocking(False)
                connection.connect(str(path))
                attacker.did()
