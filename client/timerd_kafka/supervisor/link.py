"""A socket of the supervisor, with lines of JSON in both directions: to a broker, or to a user who gives commands.

The supervisor waits for nobody. It keeps the bytes that the other end does not take at once, and sends them later.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable
from typing import Any

from timerd_kafka.worker.control import line_of

READ = 64 << 10  # bytes at once


class Link:
    """The supervisor's side."""

    def __init__(
        self,
        end: socket.socket,
        selector: selectors.BaseSelector,
        take: Callable[[Link, bytes], object],
        ended: Callable[[Link], object],
        line_max: int | None = None,
    ) -> None:
        """`take` gets each line. `ended` is called when the other end has gone, or has sent too long a line."""
        end.setblocking(False)
        self._end, self._selector = end, selector
        self._take, self._ended, self._line_max = take, ended, line_max
        self._begun = b""  # a line whose end has not arrived
        self._unsent = bytearray()
        self._is_open = True
        selector.register(end, selectors.EVENT_READ, self._turn)

    def close(self) -> None:
        """Close the socket. `ended` is not called."""
        if self._is_open:
            self._is_open = False
            self._selector.unregister(self._end)
            self._end.close()

    def say(self, what: dict[str, Any]) -> None:
        """Send a message. It is lost if the other end has gone."""
        self._unsent += line_of(what)
        self._send()

    def _send(self) -> None:
        if not self._is_open:
            return
        try:
            del self._unsent[: self._end.send(self._unsent)]
        except BlockingIOError:
            pass  # the selector says when there is room
        except OSError:  # the other end has gone, which the next turn finds
            self._unsent.clear()
        writes = selectors.EVENT_WRITE if self._unsent else 0
        self._selector.modify(self._end, selectors.EVENT_READ | writes, self._turn)

    def _turn(self, _: object) -> None:
        """Send the rest if there is room, and read the lines that have arrived."""
        if self._unsent:
            self._send()
        if not self._is_open:
            return  # it was closed in this turn of the selector
        try:
            data = self._end.recv(READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, self._begun = (self._begun + data).split(b"\n")
        if not data or (self._line_max is not None and len(self._begun) > self._line_max):
            self.close()
            self._ended(self)
            return
        for line in lines:
            self._take(self, line)
