"""The clients' processes, as objects that the checks start, stop and ask for results."""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

from bench.lib.common import Failed
from clients.roster import PYTHON
from timerd_shm.host.descriptors import is_ready

HERE = Path(__file__).resolve().parent
TESTS = HERE.parents[1]
END_S = 120.0  # many clients start at once, some of them in a JVM
_numbers = itertools.count(1)


class Nursery:
    """The process that forks the clients' processes. It runs clients/nursery.py."""

    def __init__(self) -> None:
        self._socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "clients.nursery", str(its.fileno())],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (TESTS, HERE, PYTHON)))},
                pass_fds=[its.fileno()],
                start_new_session=True,
            )
        self._lock = threading.Lock()
        atexit.register(self.close)

    def fork(self, plan: dict[str, Any], files: list[int]) -> Child:
        """Fork a process that has these files as its input, output and errors."""
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(plan).encode()], files)
            answer, handles, _, _ = socket.recv_fds(self._socket, 64, 1)
        if not handles:
            raise Failed("the process that forks the clients has ended")
        return Child(int(answer), handles[0])

    def close(self) -> None:
        """End the process."""
        self._socket.close()
        self._process.wait()


class Child:
    """A client's process. It is a child of the nursery, not of this process."""

    def __init__(self, pid: int, handle: int) -> None:
        self.pid, self._handle = pid, handle

    def has_ended(self, patience: float = 0.0) -> bool:
        """Whether the process has ended. Waits up to `patience` seconds for its end."""
        return is_ready(self._handle, patience)

    def kill(self) -> None:
        """Send SIGKILL, and wait for the end."""
        if not self.has_ended():
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        self.has_ended(END_S)

    def forget(self) -> None:
        """Close the handle."""
        os.close(self._handle)


@functools.cache
def _nursery() -> Nursery:
    return Nursery()


_beginning = threading.Lock()


def nursery() -> Nursery:
    """The nursery of this process. It starts with the first client."""
    with _beginning:
        return _nursery()


class Peer:
    """One client in a process of its own. Its lines of output are in `said`."""

    def __init__(self, role: str, client: str, bootstrap: str, **plan: Any) -> None:
        self.client, self.said = client, list[dict[str, Any]]()
        number = next(_numbers)
        self._scratch = tempfile.TemporaryDirectory(prefix="peer-")
        self._result = Path(self._scratch.name, "result.json")
        self._log = Path(self._scratch.name, "log")
        asked = {
            **{"role": role, "client": client, "bootstrap": bootstrap, "name": f"{role}-{client}-{number}"},
            **{"result": str(self._result), **plan},
        }
        its_input, self._orders = os.pipe()
        output, its_output = os.pipe()
        with self._log.open("wb") as log:
            self.process = nursery().fork(asked, [its_input, its_output, log.fileno()])
        os.close(its_input)
        os.close(its_output)
        self._thread = threading.Thread(target=self._hear, args=(output,), daemon=True)
        self._thread.start()

    def _hear(self, output: int) -> None:
        with open(output, "rb") as lines:
            for line in lines:
                self.said.append(json.loads(line))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def log(self) -> str:
        """The end of its error output."""
        return self._log.read_text(errors="replace")[-2_000:]

    def last(self, key: str) -> dict[str, Any] | None:
        """Its last line of output with this key."""
        return next((line for line in reversed(self.said) if key in line), None)

    @property
    def records_read(self) -> int:
        """The number of records that a consumer has reported as read, each counted once."""
        said = self.last("read")
        return said["read"] if said else 0

    def ready(self) -> None:
        """Wait until the process says that it is ready. Raises Failed if it ends, or takes too long."""
        self._await(lambda: self.last("ready") is not None, END_S)

    def _await(self, condition: Callable[[], bool], patience: float) -> None:
        end = time.monotonic() + patience
        while not condition():
            if self.process.has_ended() and not condition():
                raise Failed(f"the process of {self.client} has ended:\n{self.log}")
            if time.monotonic() > end:
                raise Failed(f"the process of {self.client} is not ready in {patience:g} s:\n{self.log}")
            time.sleep(0.005)

    def stop(self) -> None:
        """Ask it to leave as a client should."""
        with contextlib.suppress(OSError):
            os.write(self._orders, b"stop\n")

    def kill(self) -> float:
        """Send SIGKILL, and wait for the end. Returns the time of the end."""
        self.process.kill()
        return time.monotonic()

    def result(self, patience: float = 600.0) -> dict[str, Any]:
        """Wait for the end of the process, and return its results. Raises Failed if there are none."""
        if not self.process.has_ended(patience):
            raise Failed(f"the process of {self.client} has not ended in {patience:g} s:\n{self.log}")
        self._thread.join(END_S)  # so that `said` has all lines
        if not self._result.exists():
            raise Failed(f"the process of {self.client} has ended without a result:\n{self.log}")
        found: dict[str, Any] = json.loads(self._result.read_text())
        return found

    def end(self) -> None:
        """Kill its process, if it has not ended, and remove its files."""
        self.process.kill()
        self.process.forget()
        self._thread.join(5.0)
        os.close(self._orders)
        self._scratch.cleanup()


class RawPeer(Peer):
    """A raw client in a process of its own."""

    def __init__(self, role: str, **plan: Any) -> None:
        super().__init__(role, "raw", "", **plan)

    def result(self, patience: float = 600.0) -> dict[str, Any]:
        """As `Peer.result`. Raises Failed also if one of the process's threads has ended with an error."""
        found = super().result(patience)
        if "Traceback" in self.log:
            raise Failed(f"a thread of the raw client has ended:\n{self.log}")
        return found


@contextlib.contextmanager
def several(*made: Callable[[], Peer]) -> Iterator[list[Peer]]:
    """Run several clients at once."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(make()) for make in made]


def resident_bytes(pid: int) -> int:
    """The resident memory of a process."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGESIZE")
