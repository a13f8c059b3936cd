"""A thread for each wait, in the owner's process. Another thread of this process receives events over a socket."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from .book import Book, Firer, Owner, Way

ADDRESS = "threads.sock"
STACK_BYTES = 256 << 10


class ThreadOwner(Owner):
    """Starts a thread for each operation."""

    def __init__(self, directory: Path, book: Book) -> None:
        super().__init__(directory, book)
        threading.stack_size(STACK_BYTES)
        self._pending: dict[str, tuple[threading.Event, list[int]]] = {}
        self._lock = threading.Lock()
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(str(directory / ADDRESS))
        self._server.listen()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def register(self, keys: Sequence[str]) -> None:
        for key in keys:
            event, fired = threading.Event(), list[int]()
            self._pending[key] = event, fired
            self.book.call()
            threading.Thread(target=self._wait, args=(key, event, fired), daemon=True).start()

    def _wait(self, key: str, event: threading.Event, fired: list[int]) -> None:
        event.wait(self.book.timeout_ns / 1e9)
        self._pending.pop(key, None)
        with self._lock:
            if fired:
                self.book.completed(key, fired[0])
            else:
                self.book.expired(key)

    def _listen(self) -> None:
        connection, _ = self._server.accept()
        with suppress(OSError), connection.makefile("r") as lines:
            for line in lines:
                key, at_ns = line.split()
                if found := self._pending.pop(key, None):
                    event, fired = found
                    fired.append(int(at_ns))
                    event.set()

    def close(self) -> None:
        self._thread.join()
        self._server.close()


class ThreadFirer(Firer):
    """Sends a line for each event."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(str(directory / ADDRESS))

    def fire(self, keys: Sequence[str], at_ns: Sequence[int]) -> None:
        self._socket.sendall("".join(f"{key} {at}\n" for key, at in zip(keys, at_ns, strict=True)).encode())

    def close(self) -> None:
        self._socket.close()


class Threads(Way):
    """See the module."""

    name = "a thread for each wait, in one process"

    @contextmanager
    def serve(self, directory: Path) -> Iterator[list[int]]:
        yield []

    def owner(self, directory: Path, book: Book) -> Owner:
        return ThreadOwner(directory, book)

    def firer(self, directory: Path) -> Firer:
        return ThreadFirer(directory)
