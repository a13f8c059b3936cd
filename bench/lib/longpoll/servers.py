"""Runs the daemon or Redis, and gunicorn with the application that uses it."""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

import timerd as td
from bench.lib.common import Failed

APPLICATION = Path(__file__).with_name("app.py")
START_S, END_S = 60.0, 10.0
WORKERS = 4


class Server:
    """The daemon, or Redis. `restart` ends it by SIGTERM, and starts it again."""

    def __init__(self, way: str, directory: Path) -> None:
        self._command, self._is_ready = commands(way, directory)
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        process = started(self._command)
        wait_for(self._is_ready, process, self._command[0])
        return process

    def restart(self) -> None:
        ended(self.process)
        self.process = self._start()


def commands(way: str, directory: Path) -> tuple[list[str], Callable[[], bool]]:
    """The command that starts the server, and a check whether it answers. Redis logs its writes (appendonly)."""
    if way == "timerd":
        return [sys.executable, "-m", "timerd", "--capacity=65536", "--clients=64"], timerd_answers
    address = directory / "redis.sock"
    options = {"port": "0", "unixsocket": str(address), "save": "", "appendonly": "yes", "dir": str(directory)}
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    return [str(shutil.which("redis-server")), *words, "--maxclients", "10000"], lambda: redis_answers(address)


def timerd_answers() -> bool:
    try:
        with td.connect(timeout=1):
            return True
    except td.TimerdUnavailableError:
        return False


def redis_answers(address: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as asking:
        try:
            asking.connect(str(address))
            asking.sendall(b"PING\r\n")
            return asking.recv(64).startswith(b"+PONG")
        except OSError:
            return False


@contextmanager
def gunicorn(way: str, directory: Path, waiters: int) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run the application in four gevent workers. Gives gunicorn's process and its port."""
    (directory / "gunicorn.conf.py").write_text("from timerd_client.web.gunicorn import *\n")
    shutil.copy(APPLICATION, directory / "app.py")
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
        port: int = listener.getsockname()[1]
        process = started(
            [
                *(sys.executable, "-m", "gunicorn", f"--bind=fd://{listener.fileno()}", f"--chdir={directory}"),
                *(f"--workers={WORKERS}", "-k", "gevent", f"--worker-connections={2 * waiters + 200}"),
                *("--keep-alive=120", "--log-level=error", "app:application"),
            ],
            listener.fileno(),
            LONGPOLL_WAY=way,
            HOME=str(directory),
        )
    try:
        answering: set[bytes] = set()

        def all_answer() -> bool:
            answering.update(workers_at(port))
            return len(answering) >= WORKERS

        wait_for(all_answer, process, "gunicorn")
        yield process, port
    finally:
        ended(process)


def workers_at(port: int) -> set[bytes]:
    """The workers that answer a few requests, which are sent now."""
    found = set()
    for _ in range(2 * WORKERS):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=START_S)
        try:
            connection.request("GET", "/pid/x")
            found.add(connection.getresponse().read())
        except OSError:
            pass
        finally:
            connection.close()
    return found


def started(command: list[str], *descriptors: int, **environment: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=descriptors,
        start_new_session=True,
    )


def wait_for(is_ready: Callable[[], bool], process: subprocess.Popen[bytes], what: str) -> None:
    end = time.monotonic() + START_S
    while not is_ready():
        if process.poll() is not None or time.monotonic() > end:
            raise Failed(f"{what} did not start (status {process.poll()})")
        time.sleep(0.05)


def ended(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def memory(*pids: int) -> int:
    """The bytes of these processes and their children; shared memory counts once."""
    every = [one for pid in pids for one in (psutil.Process(pid), *psutil.Process(pid).children())]
    return sum(int(one.memory_full_info().pss) for one in every)
