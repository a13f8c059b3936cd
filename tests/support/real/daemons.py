"""Real daemons for tests: started as a user would start them, ended by pid, with nothing left behind.

with Daemon(directory, "--capacity=1024") as daemon:       # ready: it has said READY=1
    daemon.stop()                                          # SIGTERM: the arena stays
    daemon.start()                                         # and the next one attaches to it
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

import psutil

from support.real.trees import TESTS
from timerctl.instance import open_arena
from timerd_shm.host.paths import INSTANCE_DEFAULT, SHM_DIRECTORY, InstancePaths, read_location
from timerd_shm.host.places import RUNTIME_DIR_VARIABLE
from timerd_shm.read.statistics import collect, look

READY_TIMEOUT_S = 20.0
END_TIMEOUT_S = 20.0
LEAVE_TIMEOUT_S = 5.0  # for processes that a test has left, but that are about to end
SMALL = ("--capacity=2048", "--ring-events=1024", "--clients=64")
# Code before a patch: a patch cannot replace parts of compiled modules, so the daemon imports their sources.
INTERPRETED = f"import sys; sys.path.append({str(TESTS)!r}); import support.real.interpreted\n"
SMALL_BY_ENVIRONMENT = {"TIMERD_CAPACITY": "2048", "TIMERD_RING_EVENTS": "1024"}  # for daemons that others start


class Daemon:
    """One instance's daemon process, which may be ended and started again on the same arena."""

    def __init__(
        self, directory: Path, *flags: str, instance: str = INSTANCE_DEFAULT, start: bool = True, patch: str = ""
    ) -> None:
        """`directory` is the runtime directory. On the command line `flags` follow the flags of a small arena.

        Arenas are small because many tests share a /dev/shm, which has 64 MiB in a container. `patch` is Python that
        the daemon runs first. For example, it makes the system refuse something, or an hour as short as a second.
        """
        self.patch = patch
        self.paths = InstancePaths(directory, instance)
        self.flags = (*SMALL, *flags)
        self.log_path = directory / f"{instance}.log"
        self.process: subprocess.Popen[bytes] | None = None
        if start:
            self.start()

    @property
    def pid(self) -> int:
        """Pid of the running daemon."""
        assert self.process is not None, "the daemon was not started, or has ended"
        return self.process.pid

    @property
    def log(self) -> str:
        """The daemon's stderr, over all its starts."""
        return self.log_path.read_text() if self.log_path.exists() else ""

    def start(self, *flags: str) -> None:
        """Start it and wait until it says that it is ready."""
        assert self.process is None, f"daemon {self.pid} is running"
        address = self.paths.directory / f"{self.paths.instance}.notify"
        address.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifications:
            notifications.bind(str(address))
            self.process = self.spawn(*flags, NOTIFY_SOCKET=str(address))
            self._wait_ready(notifications)
        address.unlink()

    def spawn(self, *flags: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start a daemon process of this instance, and do not wait: for example, one that is to be refused."""
        with self.log_path.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, *self._program(), "--instance", self.paths.instance, *self.flags, *flags],
                env={**os.environ, RUNTIME_DIR_VARIABLE: str(self.paths.directory), **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _program(self) -> tuple[str, ...]:
        if not self.patch:
            return "-m", "timerd"
        return "-c", f"{INTERPRETED}{self.patch}\nfrom timerd.__main__ import main\nsys.exit(main())"

    def stop(self) -> int:
        """Send SIGTERM, and wait. Returns the exit status. The arena stays."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        """Send SIGKILL, and wait. The arena stays as it was at that moment."""
        return self._end(signal.SIGKILL)

    def destroy(self) -> None:
        """End it and remove its arena."""
        if self.process is not None:
            self.stop()
        if self.paths.arena.exists():
            for file in read_location(self.paths).files:
                file.unlink(missing_ok=True)
            self.paths.arena.unlink()

    def stats(self) -> dict[str, Any]:
        """The output of `timerctl stats --json`, made without starting that program."""
        with open_arena(self.paths) as reader:
            seen = reader.between_turns(lambda: look(reader))
        return collect(seen, self.paths)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()

    def _wait_ready(self, notifications: socket.socket) -> None:
        process = self.process
        assert process is not None
        notifications.settimeout(0.1)
        end = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < end:
            try:
                if b"READY=1" in notifications.recv(4096):
                    return
            except TimeoutError:
                if process.poll() is not None:
                    self.process = None
                    raise AssertionError(f"the daemon ended with {process.returncode}:\n{self.log}") from None
        self.kill()
        raise AssertionError(f"the daemon was not ready within {READY_TIMEOUT_S} s:\n{self.log}")

    def _end(self, number: signal.Signals) -> int:
        process, self.process = self.process, None
        assert process is not None, "the daemon was not started, or has ended"
        process.send_signal(number)
        try:
            return process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(
                f"the daemon did not end within {END_TIMEOUT_S} s of {number.name}:\n{self.log}"
            ) from None


def arenas_of(directory: Path) -> list[Path]:
    """Shared memory that daemons of this runtime directory have made and not removed."""
    suffix = InstancePaths(directory, "x").shm_name.rpartition("-")[2]
    return sorted(SHM_DIRECTORY.glob(f"timerd-*-{suffix}*"))


def processes_of(directory: Path, timeout: float = LEAVE_TIMEOUT_S) -> list[psutil.Process]:
    """Processes that were started for this runtime directory (by their environment) and do not end within `timeout`."""
    found = []
    for process in psutil.process_iter():
        try:
            ours = process.environ().get(RUNTIME_DIR_VARIABLE) == str(directory)
        except psutil.Error:
            continue
        if ours and process.pid != os.getpid():
            found.append(process)
    return psutil.wait_procs(found, timeout)[1] if found else []


def clean_up(directory: Path) -> list[str]:
    """End processes that still run for this runtime directory, and remove its shared memory. Returns a list of both."""
    left = []
    for process in processes_of(directory):
        left.append(f"process {process.pid} ({process.name()})")
        process.kill()
        process.wait(5)
    for path in arenas_of(directory):
        left.append(str(path))
        path.unlink(missing_ok=True)
    return left


def ended(pid: int) -> bool:
    """Whether a process that is not our child has ended. Its parent may not have noticed yet."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
