"""Sends damaged frames over many connections at once, and notes for each frame whether it was answered."""

from __future__ import annotations

import random
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from clients.damaged_frames import Frames

CONNECTIONS = 48
SILENT_S = 0.25  # a request that waits and a frame that was cut get no answer: then the attack closes the connection
FRAMES_OF_ONE = 40  # on one connection, at most
REFUSED_S = 0.05  # the pause before the next try of a line that gets no connection
CONNECT_S = 1.0  # the longest wait for a connection


class Line:
    """A sender that has one connection at a time, and sends one frame at a time. It connects again after an end."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self.socket: socket.socket | None = None
        self.sent_at = 0.0
        self.again_at = 0.0  # without a connection: when to try again
        self.sent = 0
        self.received = bytearray()
        self.left = b""  # bytes that the socket did not take yet

    def answered(self) -> bool:
        """Whether a whole answer is there."""
        return len(self.received) >= 4 and len(self.received) >= 4 + int.from_bytes(self.received[:4])

    def drop(self) -> None:
        """Close the connection."""
        if self.socket is not None:
            self.socket.close()
        self.socket, self.sent = None, 0


class Attack:
    """Sends the damaged frames, on all connections."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.frames = Frames(random.Random(plan["seed"]), plan["topic"], plan["partitions"], plan["group"])
        self.count, self.sent = plan["count"], 0
        self.ends: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self._selector = selectors.DefaultSelector()
        places = [(host, int(port)) for host, _, port in (one.rpartition(":") for one in plan["addresses"])]
        self._lines = [Line(places[number % len(places)]) for number in range(CONNECTIONS)]

    def run(self, stop: threading.Event, say: Callable[..., None]) -> None:
        """Send all frames."""
        now = said = time.monotonic()
        while not stop.is_set() and (self.sent < self.count or any(line.socket for line in self._lines)):
            for line in self._lines:
                if line.socket is None and now >= line.again_at:
                    self._send(line)
            for key, events in self._selector.select(0.05):
                line = key.data
                if events & selectors.EVENT_WRITE and not self._flush(line):
                    self._send(line)
                if events & selectors.EVENT_READ:
                    self._read(line)
            now = time.monotonic()
            for line in self._lines:
                if line.socket is not None and now > line.sent_at + SILENT_S:
                    self._ended(line, "no answer yet")
                    self._drop(line)
                    self._send(line)
            if now > said + 5:
                said = now
                say(sent=self.sent)
        for line in self._lines:
            self._drop(line)

    def _send(self, line: Line) -> None:
        """Send the next frame, on this connection or on a new one. If there is none, the line tries again later."""
        while self.sent < self.count:
            if line.socket is None and not self._connect(line):
                return
            kind, line.left = self.frames.damaged()
            self.kinds[kind] += 1
            self.sent, line.sent, line.sent_at = self.sent + 1, line.sent + 1, time.monotonic()
            if self._flush(line):
                return
        self._drop(line)

    def _connect(self, line: Line) -> bool:
        """Open a new connection. Returns whether there is one."""
        line.socket = socket.socket()
        line.received.clear()
        line.socket.settimeout(CONNECT_S)
        try:
            line.socket.connect(line.address)
        except OSError:
            self.ends["no connection"] += 1
            line.drop()
            line.again_at = time.monotonic() + REFUSED_S
            return False
        line.socket.setblocking(False)
        self._selector.register(line.socket, selectors.EVENT_READ, line)
        return True

    def _flush(self, line: Line) -> bool:
        """Send the rest of the frame. Returns whether the connection is still there."""
        assert line.socket is not None
        try:
            line.left = line.left[line.socket.send(line.left) :] if line.left else b""
        except BlockingIOError:
            pass
        except OSError:
            self._ended(line, "closed")
            self._drop(line)
            return False
        wants = selectors.EVENT_READ | (selectors.EVENT_WRITE if line.left else 0)
        self._selector.modify(line.socket, wants, line)
        return True

    def _read(self, line: Line) -> None:
        if line.socket is None:
            return
        try:
            data = line.socket.recv(262_144)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        line.received += data
        if not data:
            self._ended(line, "closed")
            self._drop(line)
        elif line.answered():
            self._ended(line, "answered")
            del line.received[: 4 + int.from_bytes(line.received[:4])]
            if line.sent >= FRAMES_OF_ONE:
                self._drop(line)
        else:
            return
        self._send(line)

    def _ended(self, line: Line, how: str) -> None:
        self.ends[how] += 1

    def _drop(self, line: Line) -> None:
        if line.socket is not None:
            self._selector.unregister(line.socket)
            line.drop()


def play(plan: dict[str, Any], stop: threading.Event, say: Callable[..., None]) -> dict[str, Any]:
    """Play the role "attack" of a process."""
    attack = Attack(plan)
    say(ready=True)
    begun = time.monotonic()
    attack.run(stop, say)
    return {
        "sent": attack.sent,
        "ends": dict(attack.ends),
        "kinds": dict(attack.kinds),
        "frames": len(attack.frames.valid),
        "seconds": time.monotonic() - begun,
    }
