"""How much memory a daemon has during a flood, and whether its counters can be read."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time

import psutil

from timerd_shm.host.paths import InstancePaths

from .senders import PATIENCE_S


class Watcher(threading.Thread):
    """Looks at the daemon's memory ten times a second, and runs `timerctl stats` each second."""

    def __init__(self, paths: InstancePaths, pid: int) -> None:
        super().__init__(name="watcher")
        self.paths, self.process = paths, psutil.Process(pid)
        self.memory: list[tuple[float, int]] = []  # (seconds, private bytes)
        self.stats_ns: list[int] = []
        self.counters: dict[str, int] = {}  # the daemon's, as they were last read
        self.wrong: list[str] = []
        self.stop = threading.Event()

    def private(self) -> int:
        """Bytes of the daemon's memory that are not shared, so not the arena's."""
        memory = self.process.memory_info()
        return int(memory.rss - memory.shared)

    def run(self) -> None:
        began = last = time.monotonic()
        while not self.stop.wait(0.1):
            now = time.monotonic()
            self.memory.append((round(now - began, 1), self.private()))
            if now - last >= 1:
                last = now
                self.ask()

    def ask(self) -> None:
        command = [
            sys.executable,
            "-m",
            "timerctl",
            "stats",
            "--json",
            f"--instance={self.paths.instance}",
        ]
        before_ns = time.monotonic_ns()
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
        self.stats_ns.append(time.monotonic_ns() - before_ns)
        if done.returncode:
            self.wrong.append(f"timerctl stats ended with status {done.returncode}: {done.stderr.strip()}")
        else:
            self.counters = json.loads(done.stdout)["counters"]

    def close(self) -> None:
        self.stop.set()
        self.join()
