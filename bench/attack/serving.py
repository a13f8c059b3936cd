"""Daemons of the suite `overload`: each part of a run has a new one."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from timerctl.load.own_daemon import private_daemon
from timerd_client.discovery.autostart import await_daemon
from timerd_shm.host.paths import ArenaLocation, InstancePaths, open_arena_file
from timerd_shm.host.places import RUNTIME_DIR_VARIABLE
from timerd_shm.read.reader import ArenaReader

INSTANCE = "gate"
RESTART_S = 0.2  # RestartSec of the unit
NICE = -7  # as CPUWeight=500 of the unit: five times the processor time of an ordinary process, if processors are short
END_S = 10.0
# Runs a daemon. The first argument is the number of files that it may open.
LIMITED = "import os, resource, sys; n = int(sys.argv[1]); resource.setrlimit(resource.RLIMIT_NOFILE, (n, n)); "
LIMITED += "os.execv(sys.argv[2], sys.argv[2:])"


@contextlib.contextmanager
def daemon(*flags: str) -> Iterator[tuple[InstancePaths, int]]:
    """Run a daemon that this process's clients find. Gives its paths and its pid."""
    with private_daemon(flags) as paths:
        os.environ[RUNTIME_DIR_VARIABLE] = str(paths.directory)
        reader = ArenaReader.from_descriptor(open_arena_file(paths))
        pid = reader.header().pid
        reader.close()
        yield paths, pid


class Unit:
    """A daemon as its systemd unit runs it: started again whenever it ends. After a kill it goes on with its arena.

    `files`: how many files the daemon may open; 0 = as many as this process. `restarts`: how often it was started
    again.
    """

    def __init__(self, directory: Path, flags: list[str], files: int = 0) -> None:
        self.paths = InstancePaths(directory, INSTANCE)
        self.restarts = 0
        self._log = directory / "log"
        # --ephemeral: if this process is killed, the daemon ends once it has no clients, and removes its arena.
        self._command = [sys.executable, "-m", "timerd", f"--instance={INSTANCE}", "--ephemeral", *flags]
        if files:
            most = min(files, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
            self._command = [sys.executable, "-c", LIMITED, str(most), *self._command]
        if not os.geteuid():
            self._command = ["nice", f"--adjustment={NICE}", *self._command]
        self._over = threading.Event()
        self._process = self._start()
        self._thread = threading.Thread(target=self._watch, name="unit", daemon=True)
        try:
            await_daemon(self._process, self.paths)
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise
        self._thread.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        """The daemon's log, over all its starts."""
        return self._log.read_text(errors="replace")

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill the daemon. It is started again."""
        self._process.kill()

    def close(self) -> None:
        """End the daemon for good, and remove its arena."""
        self._over.set()
        until_s = time.monotonic() + END_S
        while self._thread.is_alive():
            self._process.terminate() if time.monotonic() < until_s else self._process.kill()
            self._thread.join(0.2)  # not only once: the thread may have started another daemon meanwhile
        for path in ArenaLocation("shm", self.paths.shm_name, 0).files:
            path.unlink(missing_ok=True)

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TIMERD_")}
        with self._log.open("ab") as log:
            return subprocess.Popen(
                self._command,
                env=environment | {RUNTIME_DIR_VARIABLE: str(self.paths.directory)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _watch(self) -> None:
        while True:
            self._process.wait()
            if self._over.wait(RESTART_S):
                return
            self._process = self._start()
            self.restarts += 1


@contextlib.contextmanager
def unit(flags: list[str], files: int = 0) -> Iterator[Unit]:
    """Run a daemon that is started again whenever it ends, and that this process's clients find."""
    with tempfile.TemporaryDirectory(prefix="timerd-gate-", ignore_cleanup_errors=True) as directory:
        os.environ[RUNTIME_DIR_VARIABLE] = directory
        Path(directory).chmod(0o710)  # an attacker that is another user has the group of this process
        running = Unit(Path(directory), flags, files)
        try:
            yield running
        finally:
            running.close()
