"""Integers in a mapped file: a store needs no system call, and survives the end of its process."""

from __future__ import annotations

import mmap
import os
from pathlib import Path


class Numbers:
    """`count` integers of 64 bits. Several processes may map the file; each number has one writer. Raises OSError."""

    def __init__(self, path: Path, count: int) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, count * 8)  # with a hole in the file, a full disk would end the process
            self._map = mmap.mmap(descriptor, count * 8)
        finally:
            os.close(descriptor)
        self.values = memoryview(self._map).cast("q")

    def close(self) -> None:
        """Unmap the file."""
        self.values.release()
        self._map.close()
