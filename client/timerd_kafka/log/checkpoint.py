"""Two numbers that outlive a killed process: how far all replicas have the log, and where it begins."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

COUNT = 2


class Checkpoint:
    """A file of two integers, mapped: a store takes no call of the system, and is whole, whenever the process ends."""

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, COUNT * 8)
            self._map = mmap.mmap(descriptor, COUNT * 8)
        finally:
            os.close(descriptor)
        self._numbers = memoryview(self._map).cast("q")

    @property
    def high_watermark(self) -> int:
        """All replicas have the records before this offset."""
        return self._numbers[0]

    @high_watermark.setter
    def high_watermark(self, offset: int) -> None:
        self._numbers[0] = offset

    @property
    def start_offset(self) -> int:
        """The first offset that may be read."""
        return self._numbers[1]

    @start_offset.setter
    def start_offset(self, offset: int) -> None:
        self._numbers[1] = offset

    def close(self) -> None:
        """Unmap the file."""
        self._numbers.release()
        self._map.close()
