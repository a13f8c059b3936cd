"""A process that serves one instance again and again: importing the daemon takes ten times as long as starting it.

    start\\n --> serves until SIGTERM --> "ended STATUS"          start\\n --> ...

The arena stays from one start to the next, until the parent process removes it. A runner whose parent has ended
removes the arena itself: the tests were killed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

from timerd.__main__ import main as serve_instance
from timerd_shm.host.paths import InstancePaths, remove_arena

PR_SET_PDEATHSIG = 1


def main(directory: str, instance: str, *flags: str) -> int:
    """Serve at each line of stdin, until stdin ends."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    while sys.stdin.readline() and os.getppid() == parent:
        status = serve_instance(["--runtime-dir", directory, "--instance", instance, *flags])
        if os.getppid() != parent:
            remove_arena(InstancePaths(Path(directory), instance))
            return status
        sys.stdout.write(f"ended {status}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
