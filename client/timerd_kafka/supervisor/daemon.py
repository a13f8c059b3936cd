"""The timer daemon of a cluster without --instance: a process that the supervisor starts and restarts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from timerd_client.discovery.autostart import NOT_INHERITED
from timerd_kafka.cluster.settings import SettingsError
from timerd_shm.host.paths import InstancePaths, daemon_running, remove_arena
from timerd_shm.host.search import make_instance

LEFT_S = 15.0  # a daemon ends 10 s after its last client
POLL_S = 0.05
LAST_BYTES = 2_000


class TimerDaemon:
    """The daemon's process. A killed daemon leaves its arena to the next one, and stop() removes the arena."""

    def __init__(self, instance: str, runtime_dir: str | None, flags: tuple[str, ...], log: Path) -> None:
        self.paths: InstancePaths = make_instance(instance, runtime_dir)
        self._flags, self._log = flags, log
        self._process: subprocess.Popen[bytes] | None = None
        self.started = 0.0  # the time of the last start()

    @property
    def pid(self) -> int | None:
        """The pid of the daemon's process, or None."""
        return self._process.pid if self._process else None

    @property
    def serves(self) -> bool:
        """Whether clients can reach the daemon."""
        paths = self.paths
        return daemon_running(paths) and all(path.exists() for path in (paths.arena, paths.commands, paths.outcomes))

    @property
    def runs(self) -> bool:
        """Whether the daemon's process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def said(self) -> str:
        """The last part of the daemon's log."""
        return self._log.read_text(errors="replace")[-LAST_BYTES:] if self._log.exists() else ""

    def await_its_end(self) -> None:
        """Wait for the end of a killed cluster's daemon. Raises SettingsError if the daemon does not end."""
        end = time.monotonic() + LEFT_S
        while daemon_running(self.paths):
            if time.monotonic() > end:
                raise SettingsError(
                    f"a timer daemon of instance {self.paths.instance!r} runs in {self.paths.directory}: end it, take "
                    "another port, or use it (--instance)"
                )
            time.sleep(POLL_S)

    def start(self) -> None:
        """Start the daemon. It serves a moment later."""
        self.started = time.monotonic()
        command = [sys.executable, "-P", "-m", "timerd", "--instance", self.paths.instance]
        with self._log.open("ab") as said:
            self._process = subprocess.Popen(
                [*command, "--runtime-dir", str(self.paths.directory), *self._flags],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
                env={name: value for name, value in os.environ.items() if not name.startswith(NOT_INHERITED)},
            )

    def ended(self, pid: int) -> bool:
        """Note that a process has ended. Returns whether it was the daemon."""
        if pid != self.pid:
            return False
        assert self._process is not None
        self._process.returncode = 0  # the supervisor has waited for the process already
        self._process = None
        return True

    def stop(self) -> None:
        """End the daemon, and remove its arena."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(10.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        # A daemon that was killed, by this call or before, has left its arena.
        if not daemon_running(self.paths):
            remove_arena(self.paths)
