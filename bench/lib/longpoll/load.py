"""A client of the application in one thread: readers that poll again and again, and posts at planned times.

The loop is open: each post is due at its planned time, whatever became of earlier posts. Its latency counts from this
time.
"""

from __future__ import annotations

import heapq
import random
import selectors
import socket
import time
from collections import deque
from typing import NamedTuple

POSTERS = 64  # connections for posts
SETTLE_S = 10.0  # after the run: messages that have not come by then are lost
AGAIN_S = 0.05  # a reader's pause after 503 or a broken connection


class Result(NamedTuple):
    """The results of the posts of a run."""

    planned: int
    accepted: set[int]  # numbers of posts that were answered with 204
    received: dict[int, int]  # number -> how often a reader got it
    latencies: list[float]  # seconds from the planned time of the post to its reader

    @property
    def lost(self) -> int:
        return len(self.accepted - set(self.received))

    @property
    def twice(self) -> int:
        return sum(times > 1 for times in self.received.values())


class Line:
    """A kept connection of a reader or a poster. It has one request at a time."""

    def __init__(self, load: Load, key: str) -> None:
        self.key = key  # of a reader; empty = it posts
        self.since = ""
        self.number = -1  # of the post that is under way
        self.socket: socket.socket | None = None
        self._load = load
        self._received = bytearray()

    def ask(self, method: str, path: str, body: bytes = b"") -> None:
        try:
            if self.socket is None:
                self.socket = socket.create_connection(("127.0.0.1", self._load.port))
                self.socket.setblocking(False)
                self._load.selector.register(self.socket, selectors.EVENT_READ, self)
            self.socket.sendall(b"%s %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (
                method.encode(), path.encode(), len(body), body
            ))  # fmt: skip
        except OSError:
            self.drop()
            self._load.answered(self, 0, {}, b"")

    def readable(self) -> None:
        assert self.socket is not None
        try:
            data = self.socket.recv(65_536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.drop()
            self._load.answered(self, 0, {}, b"")
            return
        self._received += data
        head, found, rest = bytes(self._received).partition(b"\r\n\r\n")
        if not found:
            return
        lines = head.decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        length = int(headers.get("content-length", 0))
        if len(rest) >= length:
            self._received.clear()
            if headers.get("connection", "").lower() == "close":
                self.drop()
            self._load.answered(self, int(lines[0].split()[1]), headers, rest[:length])

    def drop(self) -> None:
        self._received.clear()
        if self.socket is not None:
            self._load.selector.unregister(self.socket)
            self.socket.close()
            self.socket = None


class Load:
    """All readers and posters."""

    def __init__(self, port: int, readers: int, seed: int) -> None:
        self.port = port
        self.selector = selectors.DefaultSelector()
        self._rng = random.Random(seed)
        self._readers = [Line(self, f"k{number}") for number in range(readers)]
        self._free = [Line(self, "") for _ in range(POSTERS)]
        self._due: deque[tuple[int, float]] = deque()  # posts that wait for a poster: number, planned time
        self._later: list[tuple[float, int]] = []  # readers that ask again, by their times
        self._result = Result(0, set(), {}, [])
        self._next = 0  # the number of the next post

    def open(self) -> None:
        """Begin to poll with every reader."""
        for reader in self._readers:
            self._poll(reader)

    def run(self, rate: float, seconds: float) -> Result:
        """Post at this rate for `seconds`, while the readers go on polling.

        It returns once the last post was due. settle() waits for posts that are under way.
        """
        first, count = self._next, round(rate * seconds)
        self._result = Result(count, set(), {}, [])
        began = time.monotonic()
        while self._next < first + count:
            at = began + (self._next - first) / rate
            if at <= time.monotonic():
                self._due.append((self._next, at))
                self._next += 1
                self._post()
            else:
                self.turn(at - time.monotonic())
        return self._result

    def rest(self, seconds: float) -> None:
        """Go on polling for `seconds`, without posts."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.turn(left)

    def settle(self, *results: Result) -> None:
        """Wait until all posts of these runs were answered, and all accepted posts received; SETTLE_S at most."""
        end = time.monotonic() + SETTLE_S
        while time.monotonic() < end:
            self.turn(0.1)
            received = {number for result in results for number in result.received}
            is_answered = not self._due and len(self._free) == POSTERS
            if is_answered and all(result.accepted <= received for result in results):
                return

    def turn(self, seconds: float) -> None:
        """Take answers for `seconds` at most."""
        if self._later:
            seconds = min(seconds, self._later[0][0] - time.monotonic())
        for key, _ in self.selector.select(max(seconds, 0.0)):
            key.data.readable()
        while self._later and self._later[0][0] <= time.monotonic():
            self._poll(self._readers[heapq.heappop(self._later)[1]])

    def answered(self, line: Line, status: int, headers: dict[str, str], body: bytes) -> None:
        """Handle the answer to a line's request. Status 0: the connection broke."""
        if not line.key:
            if status == 204:
                self._result.accepted.add(line.number)
            self._free.append(line)
            self._post()
            return
        if status == 200:
            number, at = body.split()
            received = self._result.received
            received[int(number)] = received.get(int(number), 0) + 1
            self._result.latencies.append(time.monotonic() - float(at))
            line.since = headers["x-since"]
        if status in (200, 204):
            self._poll(line)
        else:
            heapq.heappush(self._later, (time.monotonic() + AGAIN_S, self._readers.index(line)))

    def _poll(self, reader: Line) -> None:
        reader.ask("GET", f"/poll/{reader.key}?since={reader.since}")

    def _post(self) -> None:
        while self._due and self._free:
            poster, (number, at) = self._free.pop(), self._due.popleft()
            poster.number = number
            key = self._rng.choice(self._readers).key
            poster.ask("POST", f"/post/{key}", b"%d %.6f" % (number, at))

    def close(self) -> None:
        for line in (*self._readers, *self._free):
            line.drop()
        self.selector.close()
