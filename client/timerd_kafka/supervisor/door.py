"""The socket in the cluster's directory: the user of the cluster gives commands to it while it runs.

A connection sends a command as a line of JSON, and gets the answer as a line of JSON. A command that waits, such as
`await_group`, does not delay the commands of other connections.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from timerd_kafka.supervisor.commands import Commands
from timerd_kafka.supervisor.link import Link
from timerd_kafka.worker.control import line_of

DOOR = "commands.sock"
LINE_MAX = 64 << 10
BACKLOG = 64

log = logging.getLogger("timerd_kafka.supervisor")


class Door:
    """The supervisor's side."""

    def __init__(self, data: Path, selector: selectors.BaseSelector, commands: Commands) -> None:
        self._data, self._selector, self._commands = data, selector, commands
        self._links: set[Link] = set()
        self._listens = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listens.setblocking(False)
        try:
            (data / DOOR).unlink(missing_ok=True)  # of a cluster that was killed
            with address(data) as path:
                self._listens.bind(path)
            (data / DOOR).chmod(0o600)
            self._listens.listen(BACKLOG)
        except OSError as error:
            log.warning("%s: %s; no faults can be set while this cluster runs", data / DOOR, error.strerror)
            return
        selector.register(self._listens, selectors.EVENT_READ, self._accept)

    def close(self) -> None:
        """End all connections, and remove the socket."""
        self._listens.close()
        for link in self._links:
            link.close()
        with contextlib.suppress(OSError):
            (self._data / DOOR).unlink(missing_ok=True)

    def _accept(self, _: object) -> None:
        with contextlib.suppress(OSError):
            connection, _address = self._listens.accept()
            self._links.add(Link(connection, self._selector, self._hear, self._links.discard, LINE_MAX))

    def _hear(self, link: Link, line: bytes) -> None:
        try:
            command = json.loads(line)
        except (ValueError, RecursionError) as error:
            link.say({"error": f"{type(error).__name__}: {error}"})
        else:
            self._commands.take(command, link.say)


@contextlib.contextmanager
def address(data: Path) -> Iterator[str]:
    """The address of the socket. It is short for any directory: a path of a socket has 107 bytes at most."""
    directory = os.open(data, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{DOOR}"
    finally:
        os.close(directory)


def ask(data: Path, command: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Give a running cluster a command. Returns its answer. Raises OSError, TimeoutError, EOFError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(seconds)
        with address(data) as path:
            connection.connect(path)
        connection.sendall(line_of(command))
        with connection.makefile("rb") as answers:
            line = answers.readline()
    if not line:
        raise EOFError("the cluster has ended")
    answer: dict[str, Any] = json.loads(line)
    return answer
