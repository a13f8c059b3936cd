"""The messages between a supervisor and a broker's process: lines of JSON over a socket pair."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Callable
from typing import Any

SHOWN = 200  # bytes of a command in the log

log = logging.getLogger("timerd_kafka.broker")

Command = Callable[[dict[str, Any]], dict[str, Any]]


class Control(asyncio.Protocol):
    """The broker's side. A command is {"do": NAME, "number": N, ...}, and its answer has the same number."""

    def __init__(self, commands: dict[str, Command], ended: Callable[[], None]) -> None:
        """`ended` is called when the supervisor has ended."""
        self._commands, self._ended = commands, ended
        self._buffer = b""
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._ended()

    def data_received(self, data: bytes) -> None:
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            number = None
            try:
                command = json.loads(line)
                number = command.get("number")
                answer = self._commands[command["do"]](command)
            except Exception as error:
                log.exception("the command %r failed", line[:SHOWN])
                answer = {"error": f"{type(error).__name__}: {error}"}
            self.say(answer | {"number": number})

    def say(self, what: dict[str, Any]) -> None:
        """Send a message to the supervisor."""
        assert isinstance(self._transport, asyncio.WriteTransport)
        self._transport.write(line_of(what))


def line_of(what: dict[str, Any]) -> bytes:
    """A message as a line of JSON."""
    return json.dumps(what).encode() + b"\n"


async def serve_control(end: socket.socket, commands: dict[str, Command], ended: Callable[[], None]) -> Control:
    """Take the supervisor's commands."""
    loop = asyncio.get_running_loop()
    _, control = await loop.create_connection(lambda: Control(commands, ended), sock=end)
    return control
