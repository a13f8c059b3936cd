"""A daemon process for tests, which may be stopped, killed and started again.

with Daemon(directory) as daemon:      # it serves
    daemon.stop()                      # SIGTERM: the arena stays, as when a machine's daemon is restarted
    daemon.start()
    daemon.renew()                     # another daemon with another arena: nothing of the last one is left
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from timerd_shm.host.descriptors import is_ready
from timerd_shm.host.paths import INSTANCE_DEFAULT, INSTANCE_VARIABLE, InstancePaths, remove_arena
from timerd_shm.host.places import RUNTIME_DIR_VARIABLE

RUNNER = "timerd.testing.real.runner"
READY_TIMEOUT_S = 30.0
END_TIMEOUT_S = 30.0
LOOK_S = 0.1  # from one look to the next, whether the process still runs
SMALL = ("--capacity=4096", "--ring-events=4096", "--clients=64")  # 3 MiB: several fit in a container's 64 MiB


class DaemonEndedError(Exception):
    """The daemon of the tests does not run, has ended, or did not serve in time. The text has its output: read it."""


class Daemon:
    """The daemon of one instance. `directory` is its runtime directory, `flags` follow those of a small arena."""

    def __init__(self, directory: Path, flags: Sequence[str] = (), instance: str = INSTANCE_DEFAULT) -> None:
        self.paths = InstancePaths(directory, instance)
        self._flags = (*SMALL, *flags)
        self._log_path = directory / f"{instance}.log"
        self._runner: subprocess.Popen[str] | None = None
        self._serves = False

    @property
    def instance(self) -> str:
        """The name of its instance."""
        return self.paths.instance

    @property
    def runtime_dir(self) -> str:
        """Its runtime directory."""
        return str(self.paths.directory)

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables with which a process reaches it: for example a gunicorn that a test starts."""
        return {RUNTIME_DIR_VARIABLE: self.runtime_dir, INSTANCE_VARIABLE: self.instance}

    @property
    def pid(self) -> int:
        """Its process. Raises DaemonEndedError while it does not run."""
        if self._runner is None or not self._serves:
            raise DaemonEndedError("the daemon does not run: daemon.start()")
        return self._runner.pid

    @property
    def running(self) -> bool:
        """Whether it serves; False after stop() and kill()."""
        return self._serves

    @property
    def log(self) -> str:
        """Its output, over all its starts."""
        return self._log_path.read_text(errors="replace") if self._log_path.exists() else ""

    def start(self) -> None:
        """Start it if it does not serve, and return when it serves. Raises DaemonEndedError."""
        if self._serves:
            return
        address = self.paths.directory / "notify"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifications:
            address.unlink(missing_ok=True)
            notifications.bind(str(address))
            notifications.settimeout(LOOK_S)
            if self._runner is None:
                self._runner = self._run(address)
            assert self._runner.stdin is not None
            self._runner.stdin.write("start\n")
            self._runner.stdin.flush()
            self._await_ready(self._runner, notifications)
        self._serves = True

    def stop(self) -> None:
        """End it by SIGTERM. Its arena stays: when it starts again, clients go on where they were."""
        if self._serves:
            self._serves = False
            runner = self._runner
            assert runner is not None and runner.stdout is not None
            runner.send_signal(signal.SIGTERM)
            if not runner.stdout.readline():
                self._forget()
                raise DaemonEndedError(f"the daemon ended with {runner.returncode}:\n{self.log}")

    def kill(self) -> None:
        """End it by SIGKILL. Its arena stays as it was at that moment."""
        if self._runner is not None:
            self._serves = False
            self._runner.kill()
            self._forget()

    def restart(self) -> None:
        """Stop it and start it again, on the same arena."""
        self.stop()
        self.start()

    def renew(self) -> None:
        """Start it on an arena of its own: no earlier operation, id, watermark, call or purgatory is left."""
        self.stop()
        remove_arena(self.paths)
        self.start()

    def close(self) -> None:
        """End it, and remove its arena."""
        self.stop()
        if self._runner is not None:
            assert self._runner.stdin is not None
            self._runner.stdin.close()
            self._forget()
        remove_arena(self.paths)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, address: Path) -> subprocess.Popen[str]:
        """Start a runner. Without -P a folder `timerd` of the caller's directory would be taken for the package."""
        with self._log_path.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", RUNNER, self.runtime_dir, self.instance, *self._flags],
                env={
                    **{name: value for name, value in os.environ.items() if not name.startswith("TIMERD_")},
                    "NOTIFY_SOCKET": str(address),
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # Ctrl-C is for the tests
            )

    def _await_ready(self, runner: subprocess.Popen[str], notifications: socket.socket) -> None:
        end = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < end:
            try:
                if b"READY=1" in notifications.recv(4_096):
                    return
            except TimeoutError:
                if self._has_ended(runner):
                    break
        self.kill()
        raise DaemonEndedError(f"the daemon does not serve:\n{self.log}")

    def _has_ended(self, runner: subprocess.Popen[str]) -> bool:
        """Whether the runner, or the daemon in it, has ended before it was ready."""
        assert runner.stdout is not None
        return runner.poll() is not None or is_ready(runner.stdout.fileno())

    def _forget(self) -> None:
        """Wait for the end of the runner."""
        runner, self._runner = self._runner, None
        assert runner is not None
        try:
            runner.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            runner.kill()
            runner.wait()
        for pipe in (runner.stdin, runner.stdout):
            if pipe is not None:
                pipe.close()
