"""A process with many descriptors open, as one with many connections has."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

LOW = 1_024  # select() takes those below


@contextmanager
def many_open() -> Iterator[None]:
    """All descriptors below LOW are taken."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2 * LOW)), hard))
    taken: list[int] = []
    try:
        while not taken or taken[-1] < LOW:
            taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
