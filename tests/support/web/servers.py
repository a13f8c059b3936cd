"""Real web servers for tests, and a client that awaits a thousand of their answers without a thread for each.

with Server.gunicorn("application:app", directory, "-k", "gthread", workers=4) as server:
    with Polls(server.port) as polls:
        polls.open("/poll/7", 100)             # 100 requests, whose answers are awaited
        assert all(answer.status == 200 for answer in polls.answers())
"""

from __future__ import annotations

import http.client
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Self

import psutil

from support.real.patience import PATIENCE_S, eventually

ENDS_S = 10.0  # within this time a server ends after SIGTERM. An idle machine needs 1 to 2 s; without drain, 30 s
START_S = 4 * PATIENCE_S  # four workers import a framework each, on a busy machine

# A worker of gunicorn loses a SIGTERM that comes before it has installed its handlers. The master kills it after 30 s.
# So each worker logs READY when it has its handlers, and a Server waits for that.
READY = "This worker takes signals"
TELL_READY = f"""
_own = globals().get("post_worker_init")

def post_worker_init(worker):
    if _own is not None:
        _own(worker)
    worker.log.info("{READY}")
"""


class Answer(NamedTuple):
    """An HTTP answer. Status 0: the connection ended without one."""

    status: int
    headers: dict[str, str]
    body: bytes
    path: str = ""
    arrived: float = 0.0

    @property
    def retry_after(self) -> str | None:
        return self.headers.get("retry-after")


class Server:
    """A server process with its workers, at a port of its own."""

    def __init__(self, directory: Path, *command: str, workers: int, port: str = "", **environment: str) -> None:
        """`command` is what python -m runs. {fd} in it becomes the descriptor of a listening socket. If `port` is
        given, the server opens its own socket at that port.
        """
        listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
        self.port: int = int(port) if port else listener.getsockname()[1]
        self.log_path = directory / "server.log"
        self._workers = workers
        with listener, self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *(word.format(fd=listener.fileno()) for word in command)],
                env={
                    **os.environ,
                    "HOME": str(directory),
                    **environment,
                },
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[listener.fileno()],
                start_new_session=True,
            )
        end = time.monotonic() + START_S
        try:
            while not self._is_ready():
                assert time.monotonic() < end, f"the server is not ready:\n{self.log}"
                time.sleep(0.02)
        except BaseException:
            self.kill()
            raise

    @classmethod
    def gunicorn(
        cls,
        application: str,
        directory: Path,
        *flags: str,
        workers: int = 4,
        hooks: bool = True,
        **environment: str,
    ) -> Self:
        """A gunicorn of that application, with the hooks of timerd_client.web. Without `hooks`: with the configuration
        that lies in `directory`, if there is one.
        """
        own = directory / "gunicorn.conf.py"
        base = "from timerd_client.web.gunicorn import *\n" if hooks else own.read_text() if own.exists() else ""
        configuration = directory / "gunicorn_tests.py"
        configuration.write_text(base + TELL_READY)
        bind = (f"--config={configuration}", "--bind=fd://{fd}", f"--workers={workers}", f"--chdir={directory}")
        return cls(directory, "gunicorn", *bind, *flags, application, workers=workers, **environment)

    @classmethod
    def uvicorn(cls, application: str, directory: Path, *flags: str, workers: int = 4, **environment: str) -> Self:
        """A uvicorn of that application."""
        bind = ("--fd={fd}", f"--workers={workers}")
        return cls(directory, "uvicorn", *bind, *flags, application, workers=workers, **environment)

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def workers(self) -> list[psutil.Process]:
        """The processes that answer: the workers, or the server's own process if it has none."""
        try:
            children = psutil.Process(self.process.pid).children(recursive=True)
            found = [one for one in children if "resource_tracker" not in " ".join(one.cmdline())]
        except psutil.Error:
            return []
        return found or [psutil.Process(self.process.pid)]

    def busiest(self) -> psutil.Process:
        """The worker with the most connections."""
        return max(self.workers(), key=connections)

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, f"the server has ended:\n{self.log}"
        ready = (READY, "Started server process")  # of gunicorn, of uvicorn
        if self.log.count(ready[0]) < self._workers and self.log.count(ready[1]) < self._workers:
            return False
        try:
            return self.get("/pid").status == 200
        except OSError:
            return False

    def get(self, path: str, method: str = "GET", body: bytes | None = None) -> Answer:
        """One request, on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2 * PATIENCE_S)
        try:
            connection.request(method, path, body)
            response = connection.getresponse()
            headers = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, headers, response.read(), path, time.monotonic())
        finally:
            connection.close()

    def post(self, path: str, body: bytes = b"") -> Answer:
        return self.get(path, "POST", body)

    def terminate(self, polls: Polls) -> float:
        """Send SIGTERM, take all answers, and wait for the server's end. Returns the seconds that this took."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        polls.answers()  # before the wait, because a worker waits for a moment until its clients have hung up
        self.process.wait(4 * PATIENCE_S)
        return time.monotonic() - began

    def hang_up(self) -> None:
        """SIGHUP: gunicorn starts other workers, and ends these."""
        self.process.send_signal(signal.SIGHUP)

    def kill(self) -> None:
        """End it and its workers at once. All of them, even a worker that is only starting, are one process group."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        eventually(lambda: not self._is_there(), "a worker is there after SIGKILL")

    def _is_there(self) -> bool:
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()


def connections(process: psutil.Process) -> int:
    """How many connections the process has; -1: it has ended."""
    try:
        return len(process.net_connections())
    except psutil.Error:
        return -1


class Polls:
    """Requests whose answers are awaited, all in one thread: raw sockets and a selector."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._selector = selectors.DefaultSelector()
        self._open: dict[socket.socket, tuple[str, bytearray]] = {}
        self.done: list[Answer] = []

    def __len__(self) -> int:
        return len(self._open)

    def open(self, path: str, count: int = 1) -> None:
        """Send `count` requests."""
        for _ in range(count):
            connection = socket.create_connection(("127.0.0.1", self._port))
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            connection.setblocking(False)
            self._open[connection] = path, bytearray()
            self._selector.register(connection, selectors.EVENT_READ)

    def hang_up(self) -> None:
        """Close all open connections, and wait for no answer."""
        for connection in list(self._open):
            self._end(connection)

    def answers(self, count: int | None = None, seconds: float = 4 * PATIENCE_S) -> list[Answer]:
        """`count` further answers, or all. AssertionError if they do not come."""
        wanted = len(self._open) if count is None else count
        first, end = len(self.done), time.monotonic() + seconds
        while len(self.done) - first < wanted:
            assert time.monotonic() < end, f"{len(self.done) - first} of {wanted} answers came"
            self._read()
        return self.done[first:]

    def _read(self) -> None:
        for key, _ in self._selector.select(0.1):
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            path, received = self._open[connection]
            try:
                data = connection.recv(65536)
            except BlockingIOError:
                continue
            except ConnectionError:
                data = b""
            if data:
                received += data
            else:
                self._end(connection)
                self.done.append(parsed(bytes(received), path))

    def _end(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        del self._open[connection]
        connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.hang_up()
        self._selector.close()


def again_at_503(ask: Callable[[], Answer]) -> Answer:
    """`ask`, and once more after each 503, as clients do: on a busy machine the daemon may be silent for 3 s."""
    answer = ask()

    def is_served() -> bool:
        nonlocal answer
        if answer.status == 503:
            answer = ask()
        return answer.status != 503

    eventually(is_served, "each answer is 503")
    return answer


def parsed(received: bytes, path: str) -> Answer:
    """The answer of a connection that has ended."""
    head, _, body = received.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    if not lines[0].startswith("HTTP/"):
        return Answer(0, {}, received, path, time.monotonic())
    headers = dict(_fields(lines[1:]))
    if headers.get("transfer-encoding") == "chunked":
        body = b"".join(_chunks(body))
    return Answer(int(lines[0].split()[1]), headers, body, path, time.monotonic())


def _fields(lines: list[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        name, _, value = line.partition(":")
        yield name.strip().lower(), value.strip()


def _chunks(body: bytes) -> Iterator[bytes]:
    while body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size or b"0", 16)
        yield rest[:length]
        body = rest[length + 2 :]
