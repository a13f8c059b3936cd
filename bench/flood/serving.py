"""A daemon of its own for each part of the run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from timerctl.load.own_daemon import private_daemon
from timerd_shm.host.paths import RUNTIME_DIR_VARIABLE, InstancePaths, open_arena_file
from timerd_shm.read.reader import ArenaReader


@contextlib.contextmanager
def daemon(*flags: str) -> Iterator[tuple[InstancePaths, int]]:
    """Run a daemon that this process's clients find. Gives its paths and its pid."""
    with private_daemon(flags) as paths:
        os.environ[RUNTIME_DIR_VARIABLE] = str(paths.directory)
        reader = ArenaReader.from_descriptor(open_arena_file(paths))
        pid = reader.header().pid
        reader.close()
        yield paths, pid
