"""Facts of a client's process, if psutil is installed and this user may look."""

from __future__ import annotations

import os
from typing import NamedTuple

from timerd_shm.host.process import namespace_inode, process_start_ticks

try:
    import psutil
except ImportError:
    # psutil comes with the distribution, but the commands that only look work without it.
    INSTALLED = False
else:
    INSTALLED = True


class Process(NamedTuple):
    """Facts of a process. None = not known."""

    command: str | None
    cpu_percent: float | None  # of one core, on average since the process started
    rss_bytes: int | None


UNKNOWN = Process(None, None, None)


def process_of(pid: int, start_ticks: int, pid_namespace: int) -> Process | None:
    """The process of a client; None when it has ended (another process may have its pid now)."""
    if pid == 0 or (pid_namespace and pid_namespace != namespace_inode("pid")):
        return UNKNOWN
    if process_start_ticks(pid) != start_ticks:
        return None
    if not INSTALLED:
        return UNKNOWN
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            times = process.cpu_times()
            age = max(_seconds_since_boot() - start_ticks / os.sysconf("SC_CLK_TCK"), 0.01)
            return Process(
                " ".join(process.cmdline()) or process.name(),
                round(100 * (times.user + times.system) / age, 1),
                process.memory_info().rss,
            )
    except psutil.NoSuchProcess:
        return None
    except psutil.AccessDenied:
        return UNKNOWN


def _seconds_since_boot() -> float:
    with open("/proc/uptime") as file:
        return float(file.read().split()[0])
