"""timerctl destroy: removes an instance's arena and files, once its daemon has ended."""

from __future__ import annotations

import argparse
import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from timerctl.exits import Exit, NoInstanceError, UsageError
from timerctl.instance import paths_of
from timerctl.show.text import size
from timerd_shm.declare.errors import ArenaNotReadyError, InstanceRunningError, LayoutMismatchError
from timerd_shm.host.paths import ArenaLocation, InstancePaths, daemon_running, find_remains, read_location

EPILOG = """\
The files of a journal stay where they are.

examples:
  timerctl destroy                          asks first
  timerctl --instance test destroy --yes
"""


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "destroy",
        parents=[common],
        help="remove an instance's arena and files",
        description="Remove an instance's arena with every operation in it, its sockets and\nfiles. Its daemon must "
        "have ended. The lock file stays: without it,\ntwo daemons could start.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("--yes", action="store_true", help="do not ask")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Ask, then remove. Raises InstanceRunningError, and UsageError where there is no terminal to ask at."""
    try:
        paths = paths_of(arguments)
    except NoInstanceError:
        remains = find_remains(arguments.instance)
        if remains is None:
            raise
        paths = remains
    with locked(paths):
        try:
            location = read_location(paths)
        except (ArenaNotReadyError, LayoutMismatchError):
            location = ArenaLocation("shm", paths.shm_name, 0)
        arena = location.path
        if not arguments.yes and not confirmed(paths, arena):
            print("Nothing was removed.")
            return Exit.PROBLEM
        for path in (
            *location.files,
            paths.commands,
            paths.liveness,
            *paths.snapshots(),
            paths.journal,
            paths.arena,
        ):
            path.unlink(missing_ok=True)
        paths.remove_outlets()
    print(f"Removed instance {paths.instance!r} ({arena}).")
    return Exit.OK


def confirmed(paths: InstancePaths, arena: os.PathLike[str]) -> bool:
    """Ask at the terminal. Raises UsageError where there is none."""
    if not sys.stdin.isatty():
        raise UsageError(f"instance {paths.instance!r} would be removed with all its operations: confirm with --yes")
    held = f" ({size(os.stat(arena).st_size)})" if os.path.exists(arena) else ""
    answer = input(f"Remove instance {paths.instance!r} with every operation in {arena}{held}? [y/N] ")
    return answer.strip().lower() in ("y", "yes")


@contextmanager
def locked(paths: InstancePaths) -> Iterator[None]:
    """Hold the instance's lock, so that no daemon starts meanwhile. Raises InstanceRunningError when one holds it."""
    descriptor = os.open(paths.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if daemon_running(paths):  # its lock file was removed by hand
                raise BlockingIOError
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "not known"
            raise InstanceRunningError(
                f"the daemon of instance {paths.instance!r} is running (pid {holder}): stop it first (SIGTERM)"
            ) from None
        yield
    finally:
        os.close(descriptor)
