"""How many files a process may have open: RLIMIT_NOFILE, whose soft limit is usually 1,024."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

LOW = 1_024  # select() takes only descriptors below this number
BESIDE = 256  # files that a test's own process opens


@contextmanager
def at_least(files: int) -> Iterator[None]:
    """This process, and each that it starts, may open at least `files`. Skips the test if the hard limit is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < files:
        pytest.skip(f"needs {files:,} open files, and the hard limit is {hard:,} (ulimit -Hn)")
    with limited(files if soft != resource.RLIM_INFINITY and soft < files else soft):
        yield


@contextmanager
def limited(files: int) -> Iterator[None]:
    """Set the soft limit to `files` for the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def free_files(count: int) -> Iterator[None]:
    """In the block, this process may open `count` more files."""
    lowest_free = os.dup(0)
    os.close(lowest_free)
    with limited(lowest_free + count):
        yield


@contextmanager
def many_open() -> Iterator[None]:
    """In the block, all descriptors below LOW are taken, as in a process with many connections."""
    with at_least(LOW + BESIDE):
        taken: list[int] = []
        try:
            while not taken or taken[-1] < LOW:
                taken.append(os.open(os.devnull, os.O_RDONLY))
            yield
        finally:
            for descriptor in taken:
                os.close(descriptor)
