"""Long polls: a BLPOP on a connection of its own for each pending operation, an RPUSH for its event.

Redis keeps the deadlines. An event that comes before its registration stays in its list for a second. Connections are
kept and used again.
"""

from __future__ import annotations

import resource
import select
import socket
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from .book import Book, Firer, Owner
from .scripts import Redis, Scripts, command, redis_server

CONNECTIONS_MAX = 4_000
KEPT_MS = 1_000
LISTEN_S = 0.1


class PollOwner(Owner):
    """Sends a BLPOP for each operation. A thread watches all connections."""

    def __init__(self, directory: Path, book: Book) -> None:
        super().__init__(directory, book)
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self._connections: dict[int, Redis] = {}
        self._keys: dict[int, str] = {}
        self._free: deque[Redis] = deque()
        self._freed = threading.Semaphore(CONNECTIONS_MAX)
        self._poller = select.epoll()
        self._closed = False
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def register(self, keys: Sequence[str]) -> None:
        timeout = f"{self.book.timeout_ns / 1e9:.9f}"
        for key in keys:
            self.book.call()
            self._freed.acquire()
            client = self._free.popleft() if self._free else self._connect()
            self._keys[client.socket.fileno()] = key
            client.socket.sendall(command("BLPOP", key, timeout))

    def _connect(self) -> Redis:
        client = Redis(self.directory)
        self._connections[client.socket.fileno()] = client
        self._poller.register(client.socket.fileno(), select.EPOLLIN)
        return client

    def _listen(self) -> None:
        book = self.book
        while not self._closed:
            for descriptor, _ in self._poller.poll(LISTEN_S):
                client = self._connections[descriptor]
                reply = client.socket.recv(4_096)
                key = self._keys.pop(descriptor, "")
                if not key:  # no operation: the server has closed the connection
                    self._poller.unregister(descriptor)
                    continue
                if reply.startswith(b"*-1"):
                    book.expired(key)
                else:
                    book.completed(key, int(reply.split(b"\r\n")[4]))
                self._free.append(client)
                self._freed.release()

    def close(self) -> None:
        self._closed = True
        self._thread.join()
        self._poller.close()
        for client in self._connections.values():
            client.socket.close()


class PollFirer(Firer):
    """Sends an RPUSH and a PEXPIRE for each event, since an event may find no BLPOP."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._client = Redis(directory)

    def fire(self, keys: Sequence[str], at_ns: Sequence[int]) -> None:
        pairs = zip(keys, at_ns, strict=True)
        self._client.send(b"".join(command("RPUSH", key, at) + command("PEXPIRE", key, KEPT_MS) for key, at in pairs))

    def close(self) -> None:
        self._client.socket.shutdown(socket.SHUT_WR)
        while self._client.socket.recv(1 << 16):
            pass
        self._client.socket.close()


class Polls(Scripts):
    """See the module."""

    name = "Redis BLPOP long polls, client by hand"

    @contextmanager
    def serve(self, directory: Path) -> Iterator[list[int]]:
        with redis_server(directory) as pid:
            yield [pid]

    def owner(self, directory: Path, book: Book) -> Owner:
        return PollOwner(directory, book)

    def firer(self, directory: Path) -> Firer:
        return PollFirer(directory)
