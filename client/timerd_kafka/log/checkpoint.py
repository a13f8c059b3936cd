"""Two numbers that outlive a killed process: the high watermark of the log, and its first offset."""

from __future__ import annotations

from pathlib import Path

from timerd_kafka.numbers import Numbers


class Checkpoint:
    """The checkpoint of one log."""

    def __init__(self, path: Path) -> None:
        self._numbers = Numbers(path, 2)

    @property
    def high_watermark(self) -> int:
        """All replicas have the records before this offset."""
        return self._numbers.values[0]

    @high_watermark.setter
    def high_watermark(self, offset: int) -> None:
        self._numbers.values[0] = offset

    @property
    def start_offset(self) -> int:
        """The first offset that may be read."""
        return self._numbers.values[1]

    @start_offset.setter
    def start_offset(self, offset: int) -> None:
        self._numbers.values[1] = offset

    def close(self) -> None:
        """Unmap the file."""
        self._numbers.close()
