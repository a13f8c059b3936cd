"""A reader of server-sent events. Like a browser's EventSource, it goes on after the last event that it has."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from typing import NamedTuple


class Sent(NamedTuple):
    """A block of a stream."""

    id: str
    name: str
    data: str
    retry: str
    comment: bool


class EventSource:
    """One stream, over as many connections as it takes."""

    def __init__(self, port: int, path: str, patience_s: float) -> None:
        self.last_id = ""
        self.retries: list[str] = []
        self._port = port
        self._path = path
        self._patience_s = patience_s
        self._socket: socket.socket | None = None

    def connect(self) -> Iterator[Sent]:
        """The blocks of one connection, until it ends or breaks."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=self._patience_s)
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": self.last_id} if self.last_id else {})
        try:
            connection.request("GET", self._path, headers=headers)
            self._socket = connection.sock
            response = connection.getresponse()
            if response.status != 200:
                return
            lines: list[str] = []
            while line := response.readline().decode():
                if line != "\n":
                    lines.append(line.rstrip("\n"))
                elif lines:
                    sent = parsed(lines)
                    self.last_id = sent.id or self.last_id
                    if sent.retry:
                        self.retries.append(sent.retry)
                    yield sent
                    lines = []
        except (OSError, http.client.HTTPException):  # the server's worker was killed
            return
        finally:
            connection.close()


def parsed(lines: list[str]) -> Sent:
    """The fields of a block."""
    fields: dict[str, list[str]] = {}
    for line in lines:
        name, _, value = line.partition(":")
        fields.setdefault(name, []).append(value.removeprefix(" "))

    def of(name: str) -> str:
        return "\n".join(fields.get(name, ()))

    return Sent(of("id"), of("event"), of("data"), of("retry"), "" in fields)
