"""A client's process, if this daemon can see it, and the boot and namespaces that both must share for that."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from timerd_shm.declare.errors import ResourceLimitError
from timerd_shm.host.process import boot_id, namespace_inode, process_is_running, process_start_ticks


class Process(NamedTuple):
    """A client's process, where this daemon can see it; pid 0 = it cannot."""

    pid: int
    start_ticks: int


class Host(NamedTuple):
    """The boot and namespaces of the daemon, and a look at pids.

    A client of the same boot and time namespace has the same clock. If the pid namespace is the same, a pid names the
    same process here.
    """

    boot_id: bytes
    pid_namespace: int
    time_namespace: int
    start_ticks_of: Callable[[int], int | None]  # None = no process has this pid. OSError: not known
    is_running_of: Callable[[int, int], bool]  # (pid, start ticks): seen, and not stopped. OSError: not known

    @classmethod
    def here(cls) -> Host:
        """The boot and namespaces of this process."""
        return cls(boot_id(), namespace_inode("pid"), namespace_inode("time"), process_start_ticks, process_is_running)

    def maker(self, pid: int) -> Process:
        """The process of a pid that the kernel has named; pid 0 if that process has ended, or cannot be seen here.

        Raises ResourceLimitError where no file can be opened to look.
        """
        try:
            start_ticks = self.start_ticks_of(pid) if pid else None
        except OSError as error:
            # The client must not count as one of pid 0: unknown processes have a share of their own, which is larger.
            raise ResourceLimitError(f"process {pid} cannot be looked up ({error.strerror}): try again") from None
        return Process(0, 0) if start_ticks is None else Process(pid, start_ticks)

    def has_ended(self, process: Process) -> bool:
        """Whether the process has certainly ended."""
        try:
            return process.pid != 0 and self.start_ticks_of(process.pid) != process.start_ticks
        except OSError:
            return False

    def is_running(self, process: Process) -> bool | None:
        """Whether the process is seen here, and is not stopped; None where that is not known."""
        try:
            return process.pid != 0 and self.is_running_of(process.pid, process.start_ticks)
        except OSError:
            return None

    def shows(self, process: Process) -> bool | None:
        """Whether /proc shows this process or none under the pid, but no other one; None where that is not known."""
        try:
            return self.start_ticks_of(process.pid) in (None, process.start_ticks)
        except OSError:
            return None
