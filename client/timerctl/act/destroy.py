"""timerctl destroy: removes an instance's arena and files, once its daemon has ended.

No daemon of any instance may use the arena at that time: two instances may have the same --arena-file, one after the
other. So the command holds NAME.lock and ARENA.lock, as a daemon does.
"""

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
from timerctl.listing import add_json
from timerctl.show.text import print_json, size
from timerd_shm.declare.errors import (
    ArenaNotReadyError,
    ArenaTruncatedError,
    InstanceRunningError,
    LayoutMismatchError,
)
from timerd_shm.host.access import user_named
from timerd_shm.host.lock import ArenaLock, holder_of
from timerd_shm.host.paths import ArenaLocation, InstancePaths, daemon_running, owner_of, read_location, remove_files
from timerd_shm.host.plain_file import open_plain
from timerd_shm.host.process import process_start_ticks
from timerd_shm.host.search import find_remains
from timerd_shm.read.reader import ArenaReader

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
    add_json(command)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Ask, then remove. Raises InstanceRunningError, and UsageError if there is no terminal to ask at."""
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
        with arena_locked(location, owner_of(paths)):
            if not arguments.yes and not confirmed(paths, arena):
                _print(arguments, paths, None)
                return Exit.PROBLEM
            remove_files(paths, location)
            for path in (*paths.sockets, *paths.snapshots(), paths.journal, paths.arena):
                path.unlink(missing_ok=True)
    _print(arguments, paths, arena)
    return Exit.OK


def _print(arguments: argparse.Namespace, paths: InstancePaths, removed: os.PathLike[str] | None) -> None:
    """Print which arena was removed."""
    if arguments.json:
        print_json({"instance": paths.instance, "removed": None if removed is None else os.fspath(removed)})
    else:
        what = f"Removed instance {paths.instance!r} ({removed})." if removed else "Nothing was removed."
        print(what)


def confirmed(paths: InstancePaths, arena: os.PathLike[str]) -> bool:
    """Ask at the terminal. Raises UsageError if there is none."""
    if not sys.stdin.isatty():
        raise UsageError(f"instance {paths.instance!r} would be removed with all its operations: confirm with --yes")
    held = f" ({size(os.stat(arena).st_size)})" if os.path.exists(arena) else ""
    answer = input(f"Remove instance {paths.instance!r} with every operation in {arena}{held}? [y/N] ")
    return answer.strip().lower() in ("y", "yes")


@contextmanager
def locked(paths: InstancePaths) -> Iterator[None]:
    """Hold the instance's lock, so that no daemon starts in the block. Raises InstanceRunningError if a daemon has it.

    Raises PermissionError for all users except the daemon's user and root, even for users of the daemon's unix group.
    """
    try:
        descriptor = open_plain(paths.lock, os.O_RDWR | os.O_CREAT, owners=paths.owners)
    except PermissionError as error:
        owned = paths.lock if paths.lock.exists() else paths.directory
        remedy = f"only {user_named(owned.stat().st_uid)}, who runs the daemon, may remove it"
        raise PermissionError(error.errno, f"{error.strerror}: {remedy}", str(paths.lock)) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if daemon_running(paths):  # the daemon holds another lock file, which was removed by hand
                raise BlockingIOError
        except BlockingIOError:
            raise InstanceRunningError(holder_of(descriptor, paths)) from None
        yield
    finally:
        os.close(descriptor)


@contextmanager
def arena_locked(location: ArenaLocation, owner: int) -> Iterator[None]:
    """Hold the lock of `owner`'s arena. Raises InstanceRunningError if a daemon of any instance uses the arena."""
    if not location.path.parent.is_dir():
        yield  # the directory is gone, and no lock can be made
        return
    lock = ArenaLock(location.lock, location.path, owner=owner)
    try:
        if pid := pid_in(location):  # the daemon holds another lock file, which was removed by hand
            raise InstanceRunningError(
                f"another daemon (pid {pid}) uses the arena {location.path}: stop it first (SIGTERM)"
            )
        yield
    finally:
        if not location.path.exists():
            lock.remove()  # this command may have made the lock file
        lock.release()


def pid_in(location: ArenaLocation) -> int:
    """The pid of the running daemon that the arena's header names; 0 if there is none."""
    try:
        with ArenaReader.from_path(location.path) as reader:
            header = reader.header()
    except (OSError, ArenaNotReadyError, ArenaTruncatedError, LayoutMismatchError):
        return 0  # the arena is incomplete, or of another version
    return header.pid if header.pid and process_start_ticks(header.pid) == header.start_ticks else 0
